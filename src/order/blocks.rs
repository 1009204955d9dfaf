//! Blocks: runs of consecutive rows of one source that move as a unit.
//!
//! A source is cut either where its store is cut, or every b rows. The first is kept as one 16-bit size per block and a running
//! total every 64 blocks, so that 10^7 blocks take 21 MB; the second is a number. Each source chooses for itself: a dataset may
//! mix files with chunks and files without.
//!
//! Along chunks: the rows with which chunks begin cut a source into runs. k neighbouring chunks are joined, with k the
//! smallest that leaves 16 rows per block on average, and what is longer than W_max / 256 rows is cut into equal parts (their
//! sizes differ by at most one row), so that a default window holds 256 blocks wherever the data allow it.
//!
//! Blocks are runs of *positions in the selection*, which is all rows today: position and row id are the same. A filter
//! keeps the borders and drops rows: it hands in the kept row ids, ascending; a block then keeps the positions of its rows
//! that are left, a block without any disappears, and window rows are mapped through the list once, at the end. Nothing else
//! in this module asks for more than runs of consecutive positions.

use std::ops::Range;

use super::cuts::Cuts;
use super::defaults;
use super::error::OrderError;
use crate::num::{to_u64, to_usize};

/// Blocks per entry of a running total.
pub(super) const STRIDE: usize = 64;
/// Mean rows below which neighbouring chunks are joined.
const MIN_MEAN_ROWS: u64 = 16;
/// The longest stored block: its size less one takes 16 bits. No automatic block is longer: W_max / 256 is at most 2^16.
const MAX_STORED_ROWS: u64 = 1 << 16;
/// Row ids are served as int64 and numbered in batches; far above any dataset, far below any overflow.
const MAX_ROWS: u64 = 1 << 48;
/// The table of an epoch has 32-bit entries.
const MAX_BLOCKS: u64 = u32::MAX as u64;

/// What one source tells the order about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRows {
    /// Global ids of its rows. The sources of a dataset follow each other without a gap, from row 0.
    pub rows: Range<u64>,
    /// Global ids of the rows with which a chunk of X begins: ascending, without repetition, the first one `rows.start`. A
    /// chunk where no row begins has no entry. `None` where X has no chunks, or cannot be cut along them.
    pub first_rows: Option<Vec<u64>>,
    /// Bytes of X as stored, before compression, in all rows of the source; 0 without X.
    pub x_bytes: u64,
}

/// How one source is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cut {
    /// Into stored sizes.
    Stored {
        /// Which ones.
        entries: Range<u32>,
        /// Rows of all stored blocks before them.
        rows_before: u64,
    },
    /// Every so many rows, behind a phase.
    Fixed {
        /// Rows of a block, at least 1.
        block_rows: u32,
    },
}

/// The blocks of a dataset. They depend on its sources and on `--block-size` alone; see [`super::Order`] for their shuffle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocks {
    pub(super) sources: Vec<(Range<u64>, Cut)>,
    /// Rows of each stored block, less one.
    sizes: Vec<u16>,
    /// Rows of all stored blocks before every 64th one.
    totals: Vec<u64>,
    /// Rows of all stored blocks.
    stored_total: u64,
    n_rows: u64,
    n_blocks: u64,
}

impl Blocks {
    /// `--block-size auto`: along chunks where a source has them, else fixed blocks of [`defaults::fixed_block_rows`].
    ///
    /// # Errors
    /// If the sources do not follow each other, their borders are not ascending, or there are too many rows or blocks.
    pub fn auto(sources: &[SourceRows]) -> Result<Self, OrderError> {
        let (longest, fixed) = (defaults::max_block_rows(sources), defaults::fixed_block_rows(sources));
        let mut blocks = Self::empty();
        for source in sources {
            match &source.first_rows {
                Some(first_rows) => blocks.push_along_chunks(&source.rows, first_rows, longest)?,
                None => blocks.push_fixed(&source.rows, fixed)?,
            }
        }
        blocks.checked()
    }

    /// `--block-size b`: blocks of `block_rows` rows in every source.
    ///
    /// # Errors
    /// As [`Blocks::auto`], and if `block_rows` is 0.
    pub fn fixed(block_rows: u32, sources: &[SourceRows]) -> Result<Self, OrderError> {
        if block_rows == 0 {
            return Err(OrderError::ZeroBlockSize);
        }
        let mut blocks = Self::empty();
        for source in sources {
            blocks.push_fixed(&source.rows, block_rows)?;
        }
        blocks.checked()
    }

    /// Number of rows.
    #[must_use]
    pub fn n_rows(&self) -> u64 {
        self.n_rows
    }

    /// Number of blocks at phase 0. An epoch has up to one more per source with fixed blocks.
    #[must_use]
    pub fn n_blocks(&self) -> u64 {
        self.n_blocks
    }

    /// First rows of all blocks at phase 0, ascending, as published in `blocks.npy`.
    #[must_use]
    pub fn first_rows(&self) -> Vec<i64> {
        let cuts = Cuts::new(self, |_, _| 0);
        let mut next = 0_u64;
        let mut first_rows = Vec::with_capacity(to_usize(self.n_blocks));
        for block in 0..cuts.n_blocks() {
            first_rows.push(next.cast_signed()); // below MAX_ROWS
            next += u64::from(cuts.len_of(self, block));
        }
        first_rows
    }

    /// The rows of every source, and the rows of a block where they are fixed (`None` along chunks): with `blocks.npy` all
    /// that is needed to recompute the blocks of an epoch.
    pub fn sources(&self) -> impl Iterator<Item = (Range<u64>, Option<u32>)> {
        self.sources.iter().map(|(rows, cut)| match *cut {
            Cut::Stored { .. } => (rows.clone(), None),
            Cut::Fixed { block_rows } => (rows.clone(), Some(block_rows)),
        })
    }

    /// Bytes of memory the blocks take.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let lists = size_of_val(&*self.sources) + size_of_val(&*self.sizes) + size_of_val(&*self.totals);
        to_u64(lists + size_of::<Self>())
    }

    /// Rows of a stored block.
    pub(super) fn stored_rows(&self, entry: u32) -> u32 {
        u32::from(self.sizes[entry as usize]) + 1
    }

    /// Rows of all stored blocks before `entry`.
    pub(super) fn stored_rows_before(&self, entry: u32) -> u64 {
        let entry = entry as usize;
        let from = entry - entry % STRIDE;
        let rest: u64 = self.sizes[from..entry].iter().map(|&size| u64::from(size) + 1).sum();
        self.totals[entry / STRIDE] + rest
    }

    pub(super) fn empty() -> Self {
        Self { sources: Vec::new(), sizes: Vec::new(), totals: Vec::new(), stored_total: 0, n_rows: 0, n_blocks: 0 }
    }

    /// Checks that `rows` begin where the last source ended.
    fn check_source(&self, rows: &Range<u64>) -> Result<(), OrderError> {
        let source_index = self.sources.len();
        if rows.start != self.n_rows || rows.end < rows.start {
            return Err(OrderError::Sources { source_index, found: rows.start, expected: self.n_rows });
        }
        if rows.end > MAX_ROWS {
            return Err(OrderError::TooManyRows { n_rows: rows.end, limit: MAX_ROWS });
        }
        Ok(())
    }

    fn push_fixed(&mut self, rows: &Range<u64>, block_rows: u32) -> Result<(), OrderError> {
        self.check_source(rows)?;
        self.n_rows = rows.end;
        self.n_blocks += (rows.end - rows.start).div_ceil(u64::from(block_rows));
        self.sources.push((rows.clone(), Cut::Fixed { block_rows }));
        Ok(())
    }

    fn push_along_chunks(&mut self, rows: &Range<u64>, first_rows: &[u64], longest: u64) -> Result<(), OrderError> {
        let n_chunks = to_u64(first_rows.len());
        let joined = match (rows.end.saturating_sub(rows.start)) / MIN_MEAN_ROWS {
            0 => n_chunks.max(1),
            most_blocks => n_chunks.div_ceil(most_blocks).max(1),
        };
        self.push_stored(rows, first_rows, to_usize(joined), longest)
    }

    /// Adds a source whose blocks are `joined` neighbouring chunks each, cut into equal parts of at most `longest` rows.
    pub(super) fn push_stored(
        &mut self,
        rows: &Range<u64>,
        first_rows: &[u64],
        joined: usize,
        longest: u64,
    ) -> Result<(), OrderError> {
        self.check_source(rows)?;
        self.check_borders(rows, first_rows)?;
        let longest = longest.clamp(1, MAX_STORED_ROWS);
        let first_entry = self.sizes.len();
        let rows_before = self.stored_total;
        for (i, &first) in first_rows.iter().enumerate().step_by(joined) {
            let run = first_rows.get(i + joined).copied().unwrap_or(rows.end) - first;
            let parts = run.div_ceil(longest);
            for part in 0..parts {
                let size = (part + 1) * run / parts - part * run / parts;
                if self.sizes.len().is_multiple_of(STRIDE) {
                    self.totals.push(self.stored_total);
                }
                self.sizes.push((size - 1) as u16); // 1 <= size <= MAX_STORED_ROWS
                self.stored_total += size;
            }
        }
        let last_entry = self.sizes.len();
        self.n_rows = rows.end;
        self.n_blocks += to_u64(last_entry - first_entry);
        self.check_count()?;
        let entries = first_entry as u32..last_entry as u32; // fewer than MAX_BLOCKS
        self.sources.push((rows.clone(), Cut::Stored { entries, rows_before }));
        Ok(())
    }

    fn check_borders(&self, rows: &Range<u64>, first_rows: &[u64]) -> Result<(), OrderError> {
        let wrong = |entry| Err(OrderError::Borders { source_index: self.sources.len(), entry });
        if first_rows.first().is_some_and(|&first| first != rows.start) || first_rows.is_empty() != rows.is_empty() {
            return wrong(0);
        }
        if let Some(i) = first_rows.windows(2).position(|pair| pair[0] >= pair[1]) {
            return wrong(i + 1);
        }
        match first_rows.last() {
            Some(&last) if last >= rows.end => wrong(first_rows.len() - 1),
            _ => Ok(()),
        }
    }

    /// Refuses more blocks than a table can number, the one that a phase may add to each source included.
    fn check_count(&self) -> Result<(), OrderError> {
        let n_blocks = self.n_blocks + to_u64(self.sources.len());
        if n_blocks > MAX_BLOCKS {
            return Err(OrderError::TooManyBlocks { n_blocks: self.n_blocks, limit: MAX_BLOCKS });
        }
        Ok(())
    }

    pub(super) fn checked(mut self) -> Result<Self, OrderError> {
        self.check_count()?;
        self.sizes.shrink_to_fit();
        self.totals.shrink_to_fit();
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source of `n_rows` rows with chunks at `first_rows` and rows of `row_bytes`.
    fn chunked(rows: Range<u64>, first_rows: Vec<u64>, row_bytes: u64) -> SourceRows {
        let x_bytes = (rows.end - rows.start) * row_bytes;
        SourceRows { rows, first_rows: Some(first_rows), x_bytes }
    }

    #[test]
    fn chunks_of_16_rows_are_blocks() {
        let first_rows = vec![0, 10, 30, 45, 63];
        let blocks = Blocks::auto(&[chunked(0..80, first_rows, 100)]).unwrap();
        assert_eq!(blocks.first_rows(), [0, 10, 30, 45, 63]);
        assert_eq!(blocks.sources().collect::<Vec<_>>(), [(0..80, None)]);
    }

    #[test]
    fn small_chunks_are_joined() {
        // One row fewer, and five blocks would hold 15.8 rows on average: two chunks make a block.
        let blocks = Blocks::auto(&[chunked(0..79, vec![0, 10, 30, 45, 63], 100)]).unwrap();
        assert_eq!(blocks.first_rows(), [0, 30, 63]);
        // k is the smallest that does: 10 chunks of 100 rows in all allow 6 blocks, and k = 2 makes 5.
        let blocks = Blocks::auto(&[chunked(0..100, (0..10).map(|i| i * 10).collect(), 100)]).unwrap();
        assert_eq!(blocks.first_rows(), [0, 20, 40, 60, 80]);
        // Fewer than 16 rows are one block.
        let blocks = Blocks::auto(&[chunked(0..15, (0..15).collect(), 100)]).unwrap();
        assert_eq!(blocks.first_rows(), [0]);
    }

    #[test]
    fn k_is_chosen_per_source_and_blocks_never_cross() {
        let sources = [
            chunked(0..32, (0..32).collect(), 8),
            chunked(32..80, vec![32, 50, 70], 8),
            chunked(80..85, vec![80, 84], 8),
        ];
        assert_eq!(Blocks::auto(&sources).unwrap().first_rows(), [0, 16, 32, 50, 70, 80]);
    }

    #[test]
    fn long_runs_are_cut_into_equal_parts() {
        // Rows of 768 KiB: W_max = 1024 rows, so no block exceeds 4.
        let blocks = Blocks::auto(&[chunked(0..23, vec![0, 10, 14], 768 << 10)]).unwrap();
        // k: 23 rows allow one block of 16 on average, so all three chunks are joined, then cut into ceil(23 / 4) parts.
        assert_eq!(blocks.first_rows(), [0, 3, 7, 11, 15, 19]);
        let blocks = Blocks::auto(&[chunked(0..200_000, vec![0, 1000], 0)]).unwrap();
        assert_eq!(blocks.first_rows(), [0, 1000, 50_750, 100_500, 150_250]);
    }

    #[test]
    fn sources_without_chunks_are_fixed() {
        let sources = [
            SourceRows { rows: 0..100, first_rows: None, x_bytes: 0 },
            chunked(100..140, vec![100, 120], 0),
            SourceRows { rows: 140..140, first_rows: None, x_bytes: 0 },
            SourceRows { rows: 140..210, first_rows: None, x_bytes: 0 },
        ];
        let blocks = Blocks::auto(&sources).unwrap();
        assert_eq!(blocks.first_rows(), [0, 64, 100, 120, 140, 204]);
        assert_eq!(blocks.sources().map(|(_, fixed)| fixed).collect::<Vec<_>>(), [Some(64), None, Some(64), Some(64)]);
        assert_eq!(Blocks::fixed(30, &sources).unwrap().first_rows(), [0, 30, 60, 90, 100, 130, 140, 170, 200]);
    }

    #[test]
    fn stored_totals_are_sparse_and_exact() {
        let first_rows: Vec<u64> = (0..1000).map(|i| i * 20 + i % 7).collect();
        let mut blocks = Blocks::empty();
        blocks.push_stored(&(0..20_000), &first_rows, 1, u64::MAX).unwrap();
        blocks.push_stored(&(20_000..20_003), &[20_000, 20_002], 1, u64::MAX).unwrap();
        for (entry, &first) in first_rows.iter().enumerate() {
            assert_eq!(blocks.stored_rows_before(entry as u32), first);
        }
        assert_eq!(blocks.stored_rows_before(1001), 20_002);
        assert_eq!(blocks.totals.len(), 1002_usize.div_ceil(STRIDE));
    }

    #[test]
    fn damaged_borders_are_refused() {
        let refused =
            |rows: Range<u64>, first_rows: Vec<u64>| Blocks::auto(&[chunked(rows, first_rows, 8)]).unwrap_err();
        let borders = |entry| OrderError::Borders { source_index: 0, entry };
        assert_eq!(refused(0..50, vec![]), borders(0));
        assert_eq!(refused(0..50, vec![1, 20]), borders(0));
        assert_eq!(refused(0..50, vec![0, 20, 20]), borders(2));
        assert_eq!(refused(0..50, vec![0, 30, 20]), borders(2));
        assert_eq!(refused(0..50, vec![0, 50]), borders(1));
        assert_eq!(refused(0..0, vec![0]), borders(0));
        assert_eq!(refused(1..50, vec![1]), OrderError::Sources { source_index: 0, found: 1, expected: 0 });
        assert!(matches!(refused(0..1 << 60, vec![0]), OrderError::TooManyRows { .. }));
        assert!(Blocks::auto(&[chunked(0..0, vec![], 8)]).is_ok());
    }

    #[test]
    fn too_many_blocks_are_refused() {
        let source = |n_rows| [SourceRows { rows: 0..n_rows, first_rows: None, x_bytes: 0 }];
        assert_eq!(Blocks::fixed(0, &source(5)).unwrap_err(), OrderError::ZeroBlockSize);
        let refused = Blocks::fixed(1, &source(u64::from(u32::MAX))).unwrap_err();
        assert_eq!(refused, OrderError::TooManyBlocks { n_blocks: u64::from(u32::MAX), limit: MAX_BLOCKS });
        assert!(refused.to_string().contains("--block-size"));
        assert!(Blocks::fixed(1, &source(u64::from(u32::MAX) - 1)).is_ok());
    }
}
