//! The two header slots of an Atompack file: which commit counts, and where it put its schema and its index.
//!
//! Commits write slot A and slot B in turn, so that one of them is whole whatever happens. A slot is *well-formed* if its magic, version and
//! checksum are right; it is *usable* if what it points to lies inside the file. The usable slot of the highest generation counts (A
//! on a tie). A well-formed slot that is newer than it and not usable means that the file was cut, which is refused: an older
//! commit, or none, would be served silently otherwise.

use std::ops::Range;

use super::bytes::Reader;

/// Size of a slot in bytes. Slot B follows slot A.
pub const SLOT_BYTES: usize = 4096;
/// Where records may begin: behind both slots.
pub const FIRST_RECORD: u64 = 8192;
/// Bytes of one entry of the index.
pub const INDEX_ENTRY_BYTES: u64 = 20;
/// Bytes before the entries of the index: their number.
pub const INDEX_HEAD_BYTES: u64 = 8;

/// The first four bytes of a slot.
pub const MAGIC: [u8; 4] = *b"ATPK";
const VERSION: u32 = 2;
/// Bytes that the checksum covers; it stands behind them.
const SUMMED_BYTES: usize = SLOT_BYTES - 4;

/// How the records of a file are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordCodec {
    /// Not at all.
    None,
    /// One LZ4 block each.
    Lz4,
    /// One zstd frame each.
    Zstd,
}

impl RecordCodec {
    const ALL: [Self; 3] = [Self::None, Self::Lz4, Self::Zstd];

    fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    /// The codec in one word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// What a slot says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Number of the commit.
    pub generation: u64,
    /// First byte of the records.
    pub data_start: u64,
    /// First byte of the index; 0: there is none.
    pub index_offset: u64,
    /// Bytes of the index.
    pub index_len: u64,
    /// Molecules.
    pub n_molecules: u64,
    /// How records are compressed.
    pub codec: RecordCodec,
    /// Level of the compression, 0 unless zstd.
    pub level: i32,
    /// 2 or 3, see [`super::record`].
    pub record_format: u32,
    /// First byte of the schema; 0: there is none.
    pub schema_offset: u64,
    /// Bytes of the schema.
    pub schema_len: u64,
}

/// Why the headers of a file are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeaderError {
    /// Neither slot is one.
    NotAtompack,
    /// The newest commit points behind the end of the file.
    Truncated {
        /// Bytes that the commit needs.
        needed: u64,
    },
    /// Well-formed slots, but none of them can be right.
    Inconsistent,
}

/// The slot that counts, and what is odd about the other one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// The slot.
    pub slot: Slot,
    /// The other slot is damaged: the generation that it claims, if it can be told.
    pub damaged: Option<Option<u64>>,
}

impl Slot {
    /// Reads a slot; `None` if it is not well-formed.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (summed, rest) = bytes.get(..SLOT_BYTES)?.split_at_checked(SUMMED_BYTES)?;
        let mut r = Reader::new(summed);
        if r.array::<4>()? != MAGIC || r.u32()? != VERSION || rest != adler32(summed).to_le_bytes() {
            return None;
        }
        let (generation, data_start, index_offset, index_len) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
        let n_molecules = r.u64()?;
        let code = r.u8()?;
        let codec = RecordCodec::ALL.into_iter().find(|codec| codec.code() == code)?;
        r.take(3)?;
        let level = i32::from_le_bytes(r.array()?);
        let (record_format, schema_offset, schema_len) = (r.u32()?, r.u64()?, r.u64()?);
        Some(Self {
            generation,
            data_start,
            index_offset,
            index_len,
            n_molecules,
            codec,
            level,
            record_format,
            schema_offset,
            schema_len,
        })
    }

    /// The bytes of the slot, checksum included.
    #[must_use]
    pub fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut text = Vec::with_capacity(SLOT_BYTES);
        text.extend(MAGIC);
        text.extend(VERSION.to_le_bytes());
        for n in [self.generation, self.data_start, self.index_offset, self.index_len, self.n_molecules] {
            text.extend(n.to_le_bytes());
        }
        text.extend([self.codec.code(), 0, 0, 0]);
        text.extend(self.level.to_le_bytes());
        text.extend(self.record_format.to_le_bytes());
        text.extend(self.schema_offset.to_le_bytes());
        text.extend(self.schema_len.to_le_bytes());
        text.resize(SUMMED_BYTES, 0);
        text.extend(adler32(&text).to_le_bytes());
        let mut bytes = [0; SLOT_BYTES];
        bytes.copy_from_slice(&text);
        bytes
    }

    /// Bytes that the file must have for this commit, `None` if the slot cannot be right in any file.
    #[must_use]
    pub fn needed_bytes(&self) -> Option<u64> {
        if self.data_start < FIRST_RECORD {
            return None;
        }
        let mut needed = self.data_start;
        if (self.schema_offset, self.schema_len) != (0, 0) {
            needed = needed.max(self.inside(self.schema_offset, self.schema_len)?);
        }
        if (self.index_offset, self.index_len, self.n_molecules) != (0, 0, 0) {
            let len = self.n_molecules.checked_mul(INDEX_ENTRY_BYTES)?.checked_add(INDEX_HEAD_BYTES)?;
            if len != self.index_len {
                return None;
            }
            needed = needed.max(self.inside(self.index_offset, self.index_len)?);
        }
        Some(needed)
    }

    fn inside(&self, offset: u64, len: u64) -> Option<u64> {
        if offset < self.data_start { None } else { offset.checked_add(len) }
    }

    /// Where the entries of the index lie, without their number.
    #[must_use]
    pub fn index_entries(&self) -> Range<u64> {
        self.index_offset.saturating_add(INDEX_HEAD_BYTES)..self.index_offset.saturating_add(self.index_len)
    }
}

/// Chooses between the slots in the first `2 * SLOT_BYTES` bytes of a file of `file_bytes` bytes (fewer if the file is shorter).
///
/// # Errors
/// [`HeaderError`] if no commit can be served.
pub fn choose(head: &[u8], file_bytes: u64) -> Result<Chosen, HeaderError> {
    let raw = [head.get(..SLOT_BYTES), head.get(SLOT_BYTES..2 * SLOT_BYTES)];
    let slots = raw.map(|bytes| bytes.and_then(Slot::parse));
    if slots.iter().all(Option::is_none) {
        return Err(HeaderError::NotAtompack);
    }
    let usable = |slot: &&Slot| slot.needed_bytes().is_some_and(|needed| needed <= file_bytes);
    let best = slots.iter().flatten().filter(usable).reduce(|a, b| if b.generation > a.generation { b } else { a });
    let cut = slots.iter().flatten().filter(|slot| !usable(slot));
    let newest_cut = cut.max_by_key(|slot| slot.generation);
    match (best, newest_cut) {
        (None, None) => Err(HeaderError::NotAtompack),
        (best, Some(cut)) if best.is_none_or(|best| cut.generation > best.generation) => {
            Err(cut.needed_bytes().map_or(HeaderError::Inconsistent, |needed| HeaderError::Truncated { needed }))
        }
        (None, Some(_)) => Err(HeaderError::Inconsistent),
        (Some(best), _) => {
            let other = raw.into_iter().zip(&slots).find(|(_, slot)| slot.is_none()).map(|(bytes, _)| bytes);
            Ok(Chosen { slot: best.clone(), damaged: other.map(|bytes| bytes.and_then(claimed_generation)) })
        }
    }
}

/// The generation in a slot whose checksum is wrong.
fn claimed_generation(bytes: &[u8]) -> Option<u64> {
    let mut r = Reader::new(bytes);
    (r.array::<4>()? == MAGIC).then_some(())?;
    r.u32()?;
    r.u64()
}

/// Gives a slot of [`SLOT_BYTES`] bytes its checksum.
pub fn seal(slot: &mut [u8]) {
    if let Some((summed, rest)) = slot.split_at_mut_checked(SUMMED_BYTES)
        && rest.len() == 4
    {
        rest.copy_from_slice(&adler32(summed).to_le_bytes());
    }
}

/// Adler-32 of `bytes`.
fn adler32(bytes: &[u8]) -> u32 {
    const MODULUS: u32 = 65521;
    // The longest run after which 32 bits still hold the sums (RFC 1950).
    const RUN: usize = 5552;
    let (mut a, mut b) = (1_u32, 0_u32);
    for run in bytes.chunks(RUN) {
        for &byte in run {
            a += u32::from(byte);
            b += a;
        }
        a %= MODULUS;
        b %= MODULUS;
    }
    b << 16 | a
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slot(generation: u64, n_molecules: u64) -> Slot {
        Slot {
            generation,
            data_start: FIRST_RECORD,
            index_offset: 9000,
            index_len: 8 + 20 * n_molecules,
            n_molecules,
            codec: RecordCodec::Zstd,
            level: 3,
            record_format: 2,
            schema_offset: 8900,
            schema_len: 50,
        }
    }

    fn head(a: &Slot, b: &Slot) -> Vec<u8> {
        [a.encode(), b.encode()].concat()
    }

    #[test]
    fn slots_come_back() {
        let slot = slot(7, 3);
        assert_eq!(Slot::parse(&slot.encode()), Some(slot));
        // The definition's own example.
        assert_eq!(adler32(b"Wikipedia"), 0x11E6_0398);
    }

    #[test]
    fn the_newest_usable_slot_counts() {
        let chosen = choose(&head(&slot(4, 1), &slot(5, 2)), 10_000).unwrap();
        assert_eq!((chosen.slot.generation, chosen.damaged), (5, None));
        let same = choose(&head(&slot(4, 1), &slot(4, 2)), 10_000).unwrap();
        assert_eq!(same.slot.n_molecules, 1, "slot A on a tie");
    }

    #[test]
    fn a_damaged_slot_leaves_the_other_one() {
        let mut bytes = head(&slot(5, 2), &slot(4, 1));
        bytes[100] ^= 1;
        let chosen = choose(&bytes, 10_000).unwrap();
        assert_eq!((chosen.slot.generation, chosen.damaged), (4, Some(Some(5))));
        bytes[0] = 0;
        assert_eq!(choose(&bytes, 10_000).unwrap().damaged, Some(None));
        bytes[5000] ^= 1;
        assert_eq!(choose(&bytes, 10_000), Err(HeaderError::NotAtompack));
    }

    #[test]
    fn a_cut_file_is_told_apart() {
        let bytes = head(&slot(4, 1), &slot(5, 20));
        assert_eq!(choose(&bytes, 9400), Err(HeaderError::Truncated { needed: 9408 }));
        assert_eq!(choose(&bytes, 9408).unwrap().slot.generation, 5);
        let older_cut = head(&slot(4, 50), &slot(5, 20));
        assert_eq!(choose(&older_cut, 9408).unwrap().slot.generation, 5);
        assert_eq!(choose(&bytes[..100], 100), Err(HeaderError::NotAtompack));
        let wrong = Slot { index_len: 1, ..slot(9, 1) };
        assert_eq!(choose(&head(&slot(4, 1), &wrong), 10_000), Err(HeaderError::Inconsistent));
    }

    proptest! {
        #[test]
        fn nothing_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..100), size in any::<u64>(), sealed in any::<bool>()) {
            bytes.splice(..bytes.len().min(8), [&MAGIC[..], &VERSION.to_le_bytes()].concat());
            bytes.resize(2 * SLOT_BYTES, 0);
            if sealed {
                seal(&mut bytes[..SLOT_BYTES]);
            }
            let _ = choose(&bytes, size);
        }
    }
}
