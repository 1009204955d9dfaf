//! Row lengths of a sparse element: four bytes a row, and one running sum per 64 rows.
//!
//! The stored `indptr` takes 8 bytes a row and is asked for two things: how long a row is, and where it starts. The length
//! is kept as it is; the start is the running sum at the last multiple of 64 rows plus at most 63 lengths.

use std::ops::Range;

/// Rows per running sum.
const GROUP: usize = 64;

/// Number of stored values of each row, with fast access to where each row starts.
#[derive(Debug, Clone, Default)]
pub struct RowLengths {
    lens: Vec<u32>,
    group_starts: Vec<u64>,
    total: u64,
    max: u32,
}

impl RowLengths {
    /// From the lengths themselves. `None` if their sum exceeds `u64`.
    #[must_use]
    pub fn new(lens: Vec<u32>) -> Option<Self> {
        let mut group_starts = Vec::with_capacity(lens.len().div_ceil(GROUP));
        let (mut total, mut max) = (0_u64, 0_u32);
        for group in lens.chunks(GROUP) {
            group_starts.push(total);
            for &len in group {
                total = total.checked_add(u64::from(len))?;
                max = max.max(len);
            }
        }
        Some(Self { lens, group_starts, total, max })
    }

    /// Number of rows.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        self.lens.len()
    }

    /// Stored values of `row`.
    #[must_use]
    pub fn len(&self, row: usize) -> u32 {
        self.lens[row]
    }

    /// True if there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    /// The stored values of `row`, as a range of the element's arrays.
    #[must_use]
    pub fn range(&self, row: usize) -> Range<u64> {
        let group = row / GROUP;
        let before: u64 = self.lens[group * GROUP..row].iter().map(|&len| u64::from(len)).sum();
        let start = self.group_starts[group] + before;
        start..start + u64::from(self.lens[row])
    }

    /// Stored values of all rows.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The longest row.
    #[must_use]
    pub fn max(&self) -> u32 {
        self.max
    }

    /// All lengths, in row order.
    #[must_use]
    pub fn as_slice(&self) -> &[u32] {
        &self.lens
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        (self.lens.len() * 4 + self.group_starts.len() * 8) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_equal_a_running_sum() {
        let lens: Vec<u32> = (0..1000_u32).map(|i| i * 7919 % 13).collect();
        let rows = RowLengths::new(lens.clone()).unwrap();
        let mut at = 0;
        for (i, len) in lens.iter().enumerate() {
            assert_eq!(rows.range(i), at..at + u64::from(*len));
            at += u64::from(*len);
        }
        assert_eq!((rows.total(), rows.max()), (at, 12));
    }
}
