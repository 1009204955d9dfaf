//! The block table of an epoch, and the cache of the last few.
//!
//! A table is the shuffled block ids (4 bytes per block) and, every 64 entries, the position in the epoch's sequence of rows at
//! which the block stands. A position is found by a search in the second and at most 63 steps in the first. A table is built by
//! whoever asks first; others who ask for the same epoch wait for it, those who ask for another epoch do not.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::blocks::{Blocks, STRIDE};
use super::cuts::Cuts;
use super::rng::{Domain, Draws};
use crate::num::to_u64;

/// Tables are kept up to this many bytes together, but never fewer than two: an epoch and the one prepared after it.
const CACHE_BYTES: u64 = 128 << 20;
const MIN_TABLES: u64 = 2;
const MAX_TABLES: u64 = 64;
/// Block lengths looked up at a time; a multiple of [`STRIDE`].
const LENS: usize = 64 * STRIDE;

/// Where each row of one epoch stands before the rows are shuffled inside windows.
#[derive(Debug)]
pub(super) struct EpochTable {
    cuts: Cuts,
    /// Block ids in shuffled order.
    ids: Vec<u32>,
    /// Position in the sequence of the first row of every 64th of `ids`.
    positions: Vec<u64>,
}

impl EpochTable {
    fn build(blocks: &Blocks, seed: u64, epoch: u32) -> Self {
        let cuts = Cuts::new(blocks, |source, block_rows| {
            // Below block_rows, which has 32 bits.
            Draws::new(seed, epoch, Domain::Phase, to_u64(source)).below(u64::from(block_rows)) as u32
        });
        let mut ids: Vec<u32> = (0..cuts.n_blocks()).collect();
        Draws::new(seed, epoch, Domain::Blocks, 0).shuffle(&mut ids);
        let mut position = 0;
        let mut positions = Vec::with_capacity(ids.len().div_ceil(STRIDE));
        let mut lens = [0; LENS];
        for ids in ids.chunks(LENS) {
            cuts.lens_of(blocks, ids, &mut lens);
            for lens in lens[..ids.len()].chunks(STRIDE) {
                positions.push(position);
                position += lens.iter().map(|&len| u64::from(len)).sum::<u64>();
            }
        }
        Self { cuts, ids, positions }
    }

    /// Appends the row ids at `positions` of the sequence of shuffled blocks. They must not be beyond its end.
    pub(super) fn extend(&self, blocks: &Blocks, positions: Range<u64>, rows: &mut Vec<u64>) {
        let group = self.positions.partition_point(|&position| position <= positions.start).saturating_sub(1);
        let Some(mut position) = self.positions.get(group).copied() else { return };
        for &id in &self.ids[group * STRIDE..] {
            if position >= positions.end {
                break;
            }
            let block = self.cuts.rows_of(blocks, id);
            let end = position + (block.end - block.start);
            if end > positions.start {
                let first = block.start + positions.start.saturating_sub(position);
                rows.extend(first..block.end - end.saturating_sub(positions.end));
            }
            position = end;
        }
    }

    fn resident_bytes(&self) -> u64 {
        to_u64(size_of_val(&*self.ids) + size_of_val(&*self.positions)) + self.cuts.resident_bytes()
    }
}

/// The tables of the last few epochs that were asked for.
pub(super) struct Tables {
    capacity: usize,
    /// Least recently used first.
    entries: Mutex<Vec<(u32, Arc<OnceLock<EpochTable>>)>>,
}

impl Tables {
    pub(super) fn new(blocks: &Blocks) -> Self {
        let capacity = (CACHE_BYTES / table_bytes(blocks)).clamp(MIN_TABLES, MAX_TABLES);
        Self { capacity: crate::num::to_usize(capacity), entries: Mutex::new(Vec::new()) }
    }

    /// Calls `use_table` with the table of `epoch`, which is built first if it is not there.
    pub(super) fn with<T>(
        &self,
        blocks: &Blocks,
        seed: u64,
        epoch: u32,
        use_table: impl FnOnce(&EpochTable) -> T,
    ) -> T {
        let cell = {
            let mut entries = self.entries.lock();
            let entry = match entries.iter().position(|(cached, _)| *cached == epoch) {
                Some(i) => entries.remove(i),
                None => {
                    if entries.len() >= self.capacity {
                        entries.remove(0);
                    }
                    (epoch, Arc::new(OnceLock::new()))
                }
            };
            let cell = Arc::clone(&entry.1);
            entries.push(entry);
            cell
        };
        use_table(cell.get_or_init(|| EpochTable::build(blocks, seed, epoch)))
    }

    pub(super) fn resident_bytes(&self) -> u64 {
        self.entries.lock().iter().filter_map(|(_, cell)| cell.get()).map(EpochTable::resident_bytes).sum()
    }

    /// Bytes when the cache is full.
    pub(super) fn max_bytes(&self, blocks: &Blocks) -> u64 {
        to_u64(self.capacity) * table_bytes(blocks)
    }
}

/// Bytes of one table, phases and lookup of several sources included.
fn table_bytes(blocks: &Blocks) -> u64 {
    let n_sources = to_u64(blocks.sources.len());
    let n_blocks = blocks.n_blocks() + n_sources;
    // 4 bytes per id, 8 per 64 ids, 4 per 1,024 blocks of hints, rounded up, and a run per source.
    n_blocks * 4 + n_blocks / 8 + n_blocks / 256 + n_sources * 64 + 64
}

#[cfg(test)]
mod tests {
    use super::super::blocks::SourceRows;
    use super::*;

    fn blocks(n_rows: u64, block_rows: u32) -> Blocks {
        Blocks::fixed(block_rows, &[SourceRows { rows: 0..n_rows, first_rows: None, x_bytes: 0 }]).unwrap()
    }

    #[test]
    fn any_range_is_a_slice_of_the_sequence() {
        let blocks = blocks(1000, 3);
        let table = EpochTable::build(&blocks, 5, 6);
        let mut all = Vec::new();
        table.extend(&blocks, 0..1000, &mut all);
        assert_eq!(all.len(), 1000);
        for (start, end) in [(0, 0), (0, 1), (1, 2), (191, 193), (192, 500), (500, 1000), (999, 1000), (1000, 1000)] {
            let mut part = Vec::new();
            table.extend(&blocks, start..end, &mut part);
            assert_eq!(part, all[start as usize..end as usize], "{start}..{end}");
        }
    }

    #[test]
    fn cache_keeps_the_last_used() {
        let blocks = blocks(100, 1);
        let mut tables = Tables::new(&blocks);
        assert_eq!(tables.capacity, 64);
        tables.capacity = 2;
        for epoch in [0, 1, 0, 2] {
            tables.with(&blocks, 1, epoch, |_| ());
        }
        let cached: Vec<u32> = tables.entries.lock().iter().map(|(epoch, _)| *epoch).collect();
        assert_eq!(cached, [0, 2]);
        assert!(tables.resident_bytes() > 800 && tables.resident_bytes() <= tables.max_bytes(&blocks));
    }

    #[test]
    fn large_tables_are_few() {
        assert_eq!(Tables::new(&blocks(100_000_000, 1)).capacity, 2);
        assert_eq!(Tables::new(&blocks(100_000_000, 10)).capacity, 3);
    }
}
