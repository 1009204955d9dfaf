//! Defaults of the order. They depend on the rows and bytes of X as stored, never on the machine, and use integers only, so
//! that two machines cannot round differently.

use super::blocks::{Blocks, SourceRows};

/// Default rows of a batch.
pub const BATCH_SIZE: u32 = 256;
/// Blocks a default window holds on average.
pub const BLOCKS_PER_WINDOW: u64 = 1024;
/// The same for a store that says of itself that it is already shuffled.
pub const BLOCKS_PER_WINDOW_SHUFFLED: u64 = 256;
/// A default window, and so 256 blocks of the largest automatic size, holds no more bytes of X than this: two windows, and the batches that
/// are being read, fit into 2 GiB.
const MAX_WINDOW_BYTES: u64 = 768 << 20;
/// Nor more rows.
const MAX_WINDOW_ROWS: u64 = 1 << 24;
/// The largest automatic block is this part of the largest default window.
const MIN_BLOCKS_PER_WINDOW: u64 = 256;
/// A fixed block is at least worth one efficient read.
const FIXED_BLOCK_BYTES: u64 = 256 << 10;
/// The largest default of fixed blocks, in rows.
const MAX_FIXED_BLOCK_ROWS: u32 = 64;

/// Rows and bytes of X of all sources.
fn totals(sources: &[SourceRows]) -> (u128, u128) {
    sources.iter().fold((0, 0), |(rows, bytes), source| {
        let source_rows = source.rows.end.saturating_sub(source.rows.start);
        (rows + u128::from(source_rows), bytes + u128::from(source.x_bytes))
    })
}

/// W_max: the rows that 768 MiB of X as stored holds (mean row of all sources), at least 1 and at most 2^24.
#[must_use]
pub fn max_window_rows(sources: &[SourceRows]) -> u64 {
    let (rows, bytes) = totals(sources);
    let fitting = (u128::from(MAX_WINDOW_BYTES) * rows).checked_div(bytes);
    fitting.and_then(|rows| u64::try_from(rows).ok()).map_or(MAX_WINDOW_ROWS, |rows| rows.clamp(1, MAX_WINDOW_ROWS))
}

/// The most rows of an automatic block: W_max / 256, at least 1.
#[must_use]
pub fn max_block_rows(sources: &[SourceRows]) -> u64 {
    (max_window_rows(sources) / MIN_BLOCKS_PER_WINDOW).max(1)
}

/// Rows of fixed blocks where X has no chunks: the smallest power of two, at most 64, whose rows are 256 KiB of X on average.
#[must_use]
pub fn fixed_block_rows(sources: &[SourceRows]) -> u32 {
    let (rows, bytes) = totals(sources);
    let mut block_rows = 1;
    while block_rows < MAX_FIXED_BLOCK_ROWS && u128::from(block_rows) * bytes < u128::from(FIXED_BLOCK_BYTES) * rows {
        block_rows *= 2;
    }
    block_rows
}

/// The smallest fetch factor whose window holds 1,024 mean blocks (256 if the store is `already_shuffled`), at most
/// floor(W_max / `batch_size`), at least 1.
#[must_use]
pub fn fetch_factor(blocks: &Blocks, sources: &[SourceRows], batch_size: u32, already_shuffled: bool) -> u32 {
    let wanted = if already_shuffled { BLOCKS_PER_WINDOW_SHUFFLED } else { BLOCKS_PER_WINDOW };
    let batch_size = u64::from(batch_size.max(1));
    let block_batches = u128::from(blocks.n_blocks().max(1)) * u128::from(batch_size);
    let smallest = (u128::from(wanted) * u128::from(blocks.n_rows())).div_ceil(block_batches);
    let largest = u128::from(max_window_rows(sources) / batch_size);
    u32::try_from(smallest.min(largest)).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(n_rows: u64, row_bytes: u64) -> SourceRows {
        SourceRows { rows: 0..n_rows, first_rows: None, x_bytes: n_rows * row_bytes }
    }

    #[test]
    fn largest_window_is_768_mib_of_x() {
        assert_eq!(max_window_rows(&[source(1000, 12 << 10)]), 65_536);
        assert_eq!(max_window_rows(&[source(1000, 3)]), 1 << 24);
        assert_eq!(max_window_rows(&[source(1000, 0)]), 1 << 24);
        assert_eq!(max_window_rows(&[source(3, 2 << 30)]), 1);
        assert_eq!(max_window_rows(&[]), 1 << 24);
        let mixed = [source(100, 0), SourceRows { rows: 100..200, first_rows: None, x_bytes: 100 << 20 }];
        assert_eq!(max_window_rows(&mixed), 1536);
        assert_eq!(max_block_rows(&mixed), 6);
        assert_eq!(max_block_rows(&[source(3, 2 << 30)]), 1);
    }

    #[test]
    fn fixed_blocks_are_a_quarter_mib() {
        for (row_bytes, expected) in [
            (0, 64),
            (1, 64),
            (4096, 64),
            (4097, 64),
            (8191, 64),
            (8192, 32),
            (131_072, 2),
            (262_143, 2),
            (262_144, 1),
            (1 << 40, 1),
        ] {
            assert_eq!(fixed_block_rows(&[source(10, row_bytes)]), expected, "{row_bytes}");
        }
    }

    #[test]
    fn windows_hold_1024_blocks() {
        let sources = [source(1_000_000, 1000)];
        let blocks = Blocks::fixed(64, &sources).unwrap();
        assert_eq!(fetch_factor(&blocks, &sources, 256, false), 256);
        assert_eq!(fetch_factor(&blocks, &sources, 256, true), 64);
        assert_eq!(fetch_factor(&blocks, &sources, 100, false), 656);
        assert_eq!(fetch_factor(&blocks, &sources, 1 << 20, false), 1);
        let heavy = [source(1_000_000, 100_000)];
        assert_eq!(max_window_rows(&heavy), 8053);
        assert_eq!(fetch_factor(&Blocks::fixed(64, &heavy).unwrap(), &heavy, 256, false), 31);
        assert_eq!(fetch_factor(&Blocks::fixed(64, &heavy).unwrap(), &heavy, 20_000, false), 1);
    }
}
