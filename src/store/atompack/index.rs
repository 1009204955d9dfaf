//! The index of an Atompack file: where each record lies, and how many atoms it has.
//!
//! The index takes 20 bytes per molecule, 2 GB for 100 million, so it is read once, in pieces, and kept as columns: atoms and stored
//! sizes (two bytes per row each as a rule), decoded sizes where records are compressed. Offsets are not kept. Records lie one behind the other,
//! except where a commit left its schema and its index between them: so an offset is the sum of the sizes before it (see [`RowLengths`]) plus
//! a *shift* that changes only there.
//!
//! Every entry is checked before anything is read by it.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::bytes::Reader;
use super::header::{INDEX_ENTRY_BYTES, RecordCodec, Slot};
use crate::num::{to_u64, to_usize};
use crate::store::array::Array;
use crate::store::cache::{Cacheable, Sections};
use crate::store::rows::{Facts as LengthFacts, RowLengths, RowLengthsBuilder};

/// Entries read at a time.
pub const RUN_ENTRIES: u64 = 1 << 16;
/// Largest decoded record.
const MAX_RAW_BYTES: u32 = 1 << 30;
/// Rows for which room is made at once: a number from a file is not trusted with more.
const MAX_ROOM: u64 = 1 << 20;
/// Bytes of a record without atoms and sections.
const LEAST_RECORD_BYTES: u64 = 6;

/// One entry of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry {
    /// First byte of the record in the file.
    pub offset: u64,
    /// Bytes of the record in the file.
    pub stored_size: u32,
    /// Bytes of the record, decoded.
    pub raw_size: u32,
    /// Atoms.
    pub n_atoms: u32,
}

impl IndexEntry {
    /// The entry in 20 bytes; `None` if there are fewer.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut r = Reader::new(bytes);
        Some(Self { offset: r.u64()?, stored_size: r.u32()?, raw_size: r.u32()?, n_atoms: r.u32()? })
    }

    /// The bytes of the entry.
    #[must_use]
    pub fn encode(&self) -> [u8; 20] {
        let mut bytes = [0; 20];
        let (offset, rest) = bytes.split_at_mut(8);
        offset.copy_from_slice(&self.offset.to_le_bytes());
        for (out, n) in rest.chunks_exact_mut(4).zip([self.stored_size, self.raw_size, self.n_atoms]) {
            out.copy_from_slice(&n.to_le_bytes());
        }
        bytes
    }

    /// Checks the entry of a file whose newest commit is `slot` and whose positions have elements of `item` bytes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, slot: &Slot, item: u64) -> Result<(), String> {
        let Self { offset, stored_size, raw_size, n_atoms } = *self;
        let end = offset.checked_add(u64::from(stored_size));
        if offset < slot.data_start || end.is_none_or(|end| end > slot.index_offset) {
            let (from, to) = (slot.data_start, slot.index_offset);
            return Err(format!(
                "{stored_size} bytes at {offset} go past the end of the records, which lie from {from} to {to}"
            ));
        }
        if slot.codec == RecordCodec::None && stored_size != raw_size {
            return Err(format!("{stored_size} bytes are stored, but {raw_size} without compression"));
        }
        let least = LEAST_RECORD_BYTES + u64::from(n_atoms) * (3 * item + 1);
        if u64::from(raw_size) < least {
            return Err(format!("{n_atoms} atoms need {least} bytes, the record has {raw_size}"));
        }
        if raw_size > MAX_RAW_BYTES {
            return Err(format!("a record of {raw_size} bytes, at most {MAX_RAW_BYTES} are served"));
        }
        Ok(())
    }
}

/// Where the records of a file lie.
#[derive(Debug, Clone)]
pub struct RecordIndex {
    /// Atoms of each molecule.
    pub atoms: RowLengths,
    /// Bytes of each record in the file.
    pub stored: RowLengths,
    /// Bytes of each record, decoded; `None` where that is the same.
    pub raw: Option<RowLengths>,
    /// Rows from which on another shift holds, ascending, the first one 0.
    shift_rows: Array<u64>,
    /// What to add to the sum of the sizes before a record for its offset, wrapping.
    shifts: Array<u64>,
}

/// What of the index is no array.
#[doc(hidden)]
#[derive(Serialize, Deserialize)]
pub struct Facts {
    atoms: LengthFacts,
    stored: LengthFacts,
    raw: Option<LengthFacts>,
    n_shifts: usize,
}

impl RecordIndex {
    /// Molecules.
    #[must_use]
    pub fn n_rows(&self) -> u64 {
        to_u64(self.atoms.n_rows())
    }

    /// The bytes of the file that hold the record of `row`.
    #[must_use]
    pub fn place(&self, row: usize) -> Range<u64> {
        let Range { start, end } = self.stored.range(row);
        let at = self.shift_rows.partition_point(|&first| first <= to_u64(row)).saturating_sub(1);
        let shift = self.shifts.get(at).copied().unwrap_or(0);
        start.wrapping_add(shift)..end.wrapping_add(shift)
    }

    /// Bytes of the record of `row`, decoded.
    #[must_use]
    pub fn raw_size(&self, row: usize) -> u32 {
        self.raw().len(row)
    }

    /// Bytes of the records, decoded.
    #[must_use]
    pub fn raw(&self) -> &RowLengths {
        self.raw.as_ref().unwrap_or(&self.stored)
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let lengths = [Some(&self.atoms), Some(&self.stored), self.raw.as_ref()];
        let lengths: u64 = lengths.into_iter().flatten().map(RowLengths::resident_bytes).sum();
        lengths + self.shift_rows.heap_bytes() + self.shifts.heap_bytes()
    }
}

/// Takes the entries of an index one by one.
pub struct IndexBuilder<'a> {
    slot: &'a Slot,
    item: u64,
    atoms: RowLengthsBuilder,
    stored: RowLengthsBuilder,
    raw: Option<RowLengthsBuilder>,
    shift_rows: Vec<u64>,
    shifts: Vec<u64>,
    n_rows: u64,
    /// Stored bytes of the rows so far.
    total: u64,
}

impl<'a> IndexBuilder<'a> {
    /// For the index of a file whose newest commit is `slot` and whose positions have elements of `item` bytes.
    #[must_use]
    pub fn new(slot: &'a Slot, item: u64) -> Self {
        let lengths = || RowLengthsBuilder::with_capacity(to_usize(slot.n_molecules.min(MAX_ROOM)));
        let raw = (slot.codec != RecordCodec::None).then(lengths);
        let (atoms, stored) = (lengths(), lengths());
        Self { slot, item, atoms, stored, raw, shift_rows: Vec::new(), shifts: Vec::new(), n_rows: 0, total: 0 }
    }

    /// Takes the next entries.
    ///
    /// # Errors
    /// The first one that cannot be right, with its number.
    pub fn push(&mut self, entries: &[u8]) -> Result<(), String> {
        for bytes in entries.chunks_exact(to_usize(INDEX_ENTRY_BYTES)) {
            let Some(entry) = IndexEntry::parse(bytes) else { break };
            entry.check(self.slot, self.item).map_err(|why| format!("entry {}: {why}", self.n_rows))?;
            // Sums of sizes below 2^32, as many as there are rows in a file.
            self.push_checked(entry).ok_or("the sizes of its records add up to more than any file")?;
        }
        Ok(())
    }

    fn push_checked(&mut self, entry: IndexEntry) -> Option<()> {
        let shift = entry.offset.wrapping_sub(self.total);
        if self.shifts.last() != Some(&shift) {
            self.shift_rows.push(self.n_rows);
            self.shifts.push(shift);
        }
        self.atoms.push(entry.n_atoms)?;
        self.stored.push(entry.stored_size)?;
        self.raw.as_mut().map_or(Some(()), |raw| raw.push(entry.raw_size))?;
        self.total = self.total.checked_add(u64::from(entry.stored_size))?;
        self.n_rows += 1;
        Some(())
    }

    /// The index.
    #[must_use]
    pub fn finish(self) -> RecordIndex {
        RecordIndex {
            atoms: self.atoms.finish(),
            stored: self.stored.finish(),
            raw: self.raw.map(RowLengthsBuilder::finish),
            shift_rows: self.shift_rows.into(),
            shifts: self.shifts.into(),
        }
    }
}

impl Cacheable for RecordIndex {
    type Facts = Facts;

    fn to_entry<'a>(&'a self, sections: &mut Vec<&'a [u8]>) -> Facts {
        let (atoms, stored) = (self.atoms.to_entry(sections), self.stored.to_entry(sections));
        let raw = self.raw.as_ref().map(|raw| raw.to_entry(sections));
        sections.push(self.shift_rows.as_bytes());
        sections.push(self.shifts.as_bytes());
        Facts { atoms, stored, raw, n_shifts: self.shifts.len() }
    }

    fn from_entry(facts: Facts, sections: &mut Sections<'_>) -> Option<Self> {
        let atoms = RowLengths::from_entry(facts.atoms, sections)?;
        let stored = RowLengths::from_entry(facts.stored, sections)?;
        let raw = match facts.raw {
            Some(raw) => Some(RowLengths::from_entry(raw, sections)?),
            None => None,
        };
        let (shift_rows, shifts) = (sections.array(facts.n_shifts)?, sections.array(facts.n_shifts)?);
        Some(Self { atoms, stored, raw, shift_rows, shifts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slot(codec: RecordCodec) -> Slot {
        Slot {
            generation: 1,
            data_start: 8192,
            index_offset: 1 << 20,
            index_len: 0,
            n_molecules: 0,
            codec,
            level: 0,
            record_format: 2,
            schema_offset: 0,
            schema_len: 0,
        }
    }

    fn entry(offset: u64, stored_size: u32, n_atoms: u32) -> IndexEntry {
        IndexEntry { offset, stored_size, raw_size: stored_size, n_atoms }
    }

    #[test]
    fn records_are_found_over_gaps() {
        let slot = slot(RecordCodec::None);
        let entries =
            [entry(8192, 100, 1), entry(8292, 50, 2), entry(9000, 60, 0), entry(9060, 6, 0), entry(8192, 100, 1)];
        let mut builder = IndexBuilder::new(&slot, 4);
        let bytes: Vec<u8> = entries.iter().flat_map(IndexEntry::encode).collect();
        builder.push(&bytes[..40]).unwrap();
        builder.push(&bytes[40..]).unwrap();
        let index = builder.finish();
        assert_eq!(index.n_rows(), 5);
        for (row, e) in entries.iter().enumerate() {
            assert_eq!(index.place(row), e.offset..e.offset + u64::from(e.stored_size));
            assert_eq!((index.raw_size(row), index.atoms.len(row)), (e.raw_size, e.n_atoms));
        }
        assert_eq!(index.shifts.len(), 3);
    }

    #[test]
    fn impossible_entries_are_refused() {
        let none = slot(RecordCodec::None);
        assert_eq!(entry(8192, 100, 7).check(&none, 4), Ok(()));
        let refused = |entry: IndexEntry, slot: &Slot| entry.check(slot, 4).unwrap_err();
        assert!(refused(entry(8191, 100, 1), &none).contains("past the end"));
        assert!(refused(entry((1 << 20) - 99, 100, 1), &none).contains("past the end"));
        assert!(refused(entry(u64::MAX, 100, 1), &none).contains("past the end"));
        assert!(refused(entry(8192, 100, 8), &none).contains("8 atoms need 110 bytes"));
        assert!(refused(entry(8192, 100, u32::MAX), &none).contains("atoms need"));
        assert!(refused(IndexEntry { raw_size: 99, ..entry(8192, 100, 1) }, &none).contains("without compression"));
        let zstd = slot(RecordCodec::Zstd);
        let mut builder = IndexBuilder::new(&zstd, 4);
        builder.push(&entry(8192, 100, 1).encode()).unwrap();
        let huge = IndexEntry { raw_size: u32::MAX, ..entry(8192, 100, 1) };
        assert!(builder.push(&huge.encode()).unwrap_err().starts_with("entry 1: a record of 4294967295 bytes"));
    }

    proptest! {
        #[test]
        fn any_order_of_records_is_kept(offsets in proptest::collection::vec((8192_u64..100_000, 6_u32..70_000), 1..200)) {
            let slot = slot(RecordCodec::Lz4);
            let mut builder = IndexBuilder::new(&slot, 8);
            for &(offset, size) in &offsets {
                builder.push(&entry(offset, size, 0).encode()).unwrap();
            }
            let index = builder.finish();
            for (row, &(offset, size)) in offsets.iter().enumerate() {
                prop_assert_eq!(index.place(row), offset..offset + u64::from(size));
            }
        }

        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let slot = Slot { index_offset: u64::MAX, ..slot(RecordCodec::Zstd) };
            let _ = IndexBuilder::new(&slot, 8).push(&bytes);
        }
    }
}
