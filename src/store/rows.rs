//! Row lengths of a sparse element: two bytes a row (four where a row is longer than that tells), and one running sum per
//! 64 rows.
//!
//! The stored `indptr` takes 8 bytes a row and is asked for two things: how long a row is, and where it starts. The length
//! is kept as it is; the start is the running sum at the last multiple of 64 rows plus at most 63 lengths.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::array::Array;
use super::cache::{Cacheable, Sections};
use crate::num::{to_u64, to_usize};

/// Rows per running sum.
pub const GROUP: usize = 64;

/// Number of stored values of each row, with fast access to where each row starts.
#[derive(Debug, Clone, Default)]
pub struct RowLengths {
    lens: Lens,
    group_starts: Array<u64>,
    facts: Facts,
}

/// The lengths in the smallest type that holds them.
#[derive(Debug, Clone)]
enum Lens {
    Short(Array<u16>),
    Long(Array<u32>),
}

/// What is known of all rows together.
#[doc(hidden)]
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Facts {
    n_rows: u64,
    total: u64,
    max: u32,
    digest: [u8; 32],
}

impl Default for Lens {
    fn default() -> Self {
        Self::Short(Array::default())
    }
}

impl RowLengths {
    /// From the lengths themselves. `None` if their sum exceeds `u64`.
    #[must_use]
    pub fn new(lens: Vec<u32>) -> Option<Self> {
        let mut builder = RowLengthsBuilder::with_capacity(lens.len());
        lens.into_iter().try_for_each(|len| builder.push(len))?;
        Some(builder.finish())
    }

    /// Number of rows.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        to_usize(self.facts.n_rows)
    }

    /// Stored values of `row`.
    #[must_use]
    pub fn len(&self, row: usize) -> u32 {
        match &self.lens {
            Lens::Short(lens) => u32::from(lens[row]),
            Lens::Long(lens) => lens[row],
        }
    }

    /// True if there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.facts.n_rows == 0
    }

    /// The stored values of `row`, as a range of the element's arrays.
    #[must_use]
    pub fn range(&self, row: usize) -> Range<u64> {
        let group = row / GROUP;
        let before: u64 = match &self.lens {
            Lens::Short(lens) => lens[group * GROUP..row].iter().map(|&len| u64::from(len)).sum(),
            Lens::Long(lens) => lens[group * GROUP..row].iter().map(|&len| u64::from(len)).sum(),
        };
        let start = self.group_starts[group] + before;
        start..start + u64::from(self.len(row))
    }

    /// Where every [`GROUP`]-th row starts.
    #[must_use]
    pub fn group_starts(&self) -> &[u64] {
        &self.group_starts
    }

    /// Stored values of all rows.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.facts.total
    }

    /// The longest row.
    #[must_use]
    pub fn max(&self) -> u32 {
        self.facts.max
    }

    /// BLAKE3 of the lengths as little-endian u32.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        self.facts.digest
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let lens = match &self.lens {
            Lens::Short(lens) => lens.heap_bytes(),
            Lens::Long(lens) => lens.heap_bytes(),
        };
        lens + self.group_starts.heap_bytes()
    }
}

/// Makes [`RowLengths`] of lengths that come one by one, in no more memory than the result takes.
#[derive(Debug, Default)]
pub struct RowLengthsBuilder {
    short: Vec<u16>,
    /// All lengths, from the first one on that needs more than 16 bits.
    long: Vec<u32>,
    group_starts: Vec<u64>,
    facts: Facts,
    hash: blake3::Hasher,
    /// Bytes that are not hashed yet.
    unhashed: Vec<u8>,
}

impl RowLengthsBuilder {
    /// Bytes hashed at a time.
    const RUN_BYTES: usize = 1 << 16;

    /// For about so many rows.
    #[must_use]
    pub fn with_capacity(n_rows: usize) -> Self {
        let (short, group_starts) = (Vec::with_capacity(n_rows), Vec::with_capacity(n_rows.div_ceil(GROUP)));
        Self { short, group_starts, ..Self::default() }
    }

    /// Appends the length of the next row. `None` if the sum exceeds `u64`.
    #[must_use]
    pub fn push(&mut self, len: u32) -> Option<()> {
        if self.facts.n_rows.is_multiple_of(to_u64(GROUP)) {
            self.group_starts.push(self.facts.total);
        }
        self.facts.total = self.facts.total.checked_add(u64::from(len))?;
        self.facts.max = self.facts.max.max(len);
        self.facts.n_rows += 1;
        match u16::try_from(len) {
            Ok(len) if self.long.is_empty() => self.short.push(len),
            _ => {
                if self.long.is_empty() {
                    self.long = std::mem::take(&mut self.short).into_iter().map(u32::from).collect();
                }
                self.long.push(len);
            }
        }
        self.unhashed.extend(len.to_le_bytes());
        if self.unhashed.len() >= Self::RUN_BYTES {
            self.hash.update(&self.unhashed);
            self.unhashed.clear();
        }
        Some(())
    }

    /// The lengths.
    #[must_use]
    pub fn finish(mut self) -> RowLengths {
        self.hash.update(&self.unhashed);
        self.facts.digest = *self.hash.finalize().as_bytes();
        let lens = if self.long.is_empty() { Lens::Short(self.short.into()) } else { Lens::Long(self.long.into()) };
        RowLengths { lens, group_starts: self.group_starts.into(), facts: self.facts }
    }
}

impl Cacheable for RowLengths {
    type Facts = Facts;

    fn to_entry<'a>(&'a self, sections: &mut Vec<&'a [u8]>) -> Facts {
        sections.push(match &self.lens {
            Lens::Short(lens) => lens.as_bytes(),
            Lens::Long(lens) => lens.as_bytes(),
        });
        sections.push(self.group_starts.as_bytes());
        self.facts.clone()
    }

    fn from_entry(facts: Facts, sections: &mut Sections<'_>) -> Option<Self> {
        let n_rows = to_usize(facts.n_rows);
        let lens = match u16::try_from(facts.max) {
            Ok(_) => Lens::Short(sections.array(n_rows)?),
            Err(_) => Lens::Long(sections.array(n_rows)?),
        };
        Some(Self { lens, group_starts: sections.array(n_rows.div_ceil(GROUP))?, facts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lens: &[u32]) {
        let rows = RowLengths::new(lens.to_vec()).unwrap();
        let mut at = 0;
        for (i, len) in lens.iter().enumerate() {
            assert_eq!(rows.range(i), at..at + u64::from(*len));
            at += u64::from(*len);
        }
        assert_eq!((rows.total(), Some(&rows.max())), (at, lens.iter().max()));
    }

    #[test]
    fn ranges_equal_a_running_sum() {
        let mut lens: Vec<u32> = (0..1000_u32).map(|i| i * 7919 % 13).collect();
        check(&lens);
        lens[500] = u32::from(u16::MAX);
        check(&lens);
        lens[700] = u32::from(u16::MAX) + 1;
        check(&lens);
    }

    #[test]
    fn the_digest_does_not_depend_on_how_lengths_are_kept() {
        let hash =
            |lens: &[u32]| *blake3::hash(&lens.iter().flat_map(|l| l.to_le_bytes()).collect::<Vec<_>>()).as_bytes();
        for lens in [vec![1; 40_000], vec![3, 70_000, 0], Vec::new()] {
            assert_eq!(RowLengths::new(lens.clone()).unwrap().digest(), hash(&lens));
        }
    }
}
