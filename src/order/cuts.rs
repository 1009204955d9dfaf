//! The blocks of one epoch by number: which rows are block i, once the phases of that epoch are drawn.
//!
//! Blocks are numbered through the sources in order. Neighbouring sources with stored sizes form one run, so that a dataset
//! of a thousand chunked files is looked up like a single file. With several runs, a hint every 1,024 blocks leaves a
//! search among the few runs that begin in between.

use std::ops::Range;

use super::blocks::{Blocks, Cut};
use crate::num::to_u64;

const HINT_SHIFT: u32 = 10;

/// Numbering of the blocks of one epoch.
#[derive(Debug)]
pub(super) struct Cuts {
    runs: Vec<Run>,
    /// The run of every 1,024th block.
    hints: Vec<u32>,
    n_blocks: u32,
}

#[derive(Debug)]
struct Run {
    first_block: u32,
    rows: Range<u64>,
    cut: RunCut,
}

#[derive(Debug, Clone, Copy)]
enum RunCut {
    Stored {
        first_entry: u32,
        rows_before: u64,
    },
    Fixed {
        block_rows: u64,
        /// Rows of the first block: the phase, or a whole block if that is 0.
        lead: u64,
    },
}

impl Cuts {
    /// Numbers the blocks. `phase(source, block_rows)` in `[0, block_rows)` is asked for each source with fixed blocks.
    pub(super) fn new(blocks: &Blocks, mut phase: impl FnMut(usize, u32) -> u32) -> Self {
        let mut runs: Vec<Run> = Vec::new();
        let mut n_blocks = 0_u32;
        for (source, (rows, cut)) in blocks.sources.iter().enumerate().filter(|(_, (rows, _))| !rows.is_empty()) {
            let first_block = n_blocks;
            let cut = match cut {
                Cut::Stored { entries, rows_before } => {
                    n_blocks += entries.end - entries.start;
                    if let Some(Run { rows: last_rows, cut: RunCut::Stored { .. }, .. }) = runs.last_mut() {
                        last_rows.end = rows.end;
                        continue;
                    }
                    RunCut::Stored { first_entry: entries.start, rows_before: *rows_before }
                }
                Cut::Fixed { block_rows } => {
                    let phase = u64::from(phase(source, *block_rows));
                    let block_rows = u64::from(*block_rows);
                    let lead = if phase == 0 { block_rows } else { phase };
                    let behind_lead = (rows.end - rows.start).saturating_sub(lead);
                    // The total was checked against 2^32 when the blocks were made.
                    n_blocks += 1 + behind_lead.div_ceil(block_rows) as u32;
                    RunCut::Fixed { block_rows, lead }
                }
            };
            runs.push(Run { first_block, rows: rows.clone(), cut });
        }
        let mut hints = Vec::new();
        for (i, run) in runs.iter().enumerate() {
            let end = runs.get(i + 1).map_or(n_blocks, |next| next.first_block);
            let first_hint = run.first_block.div_ceil(1 << HINT_SHIFT);
            hints.extend((first_hint..end.div_ceil(1 << HINT_SHIFT)).map(|_| i as u32));
        }
        Self { runs, hints, n_blocks }
    }

    pub(super) fn n_blocks(&self) -> u32 {
        self.n_blocks
    }

    /// The rows of `block`, which must be below [`Cuts::n_blocks`].
    pub(super) fn rows_of(&self, blocks: &Blocks, block: u32) -> Range<u64> {
        let run = self.run_of(block);
        let i = block - run.first_block;
        match run.cut {
            RunCut::Stored { first_entry, rows_before } => {
                let start = run.rows.start + blocks.stored_rows_before(first_entry + i) - rows_before;
                start..start + u64::from(blocks.stored_rows(first_entry + i))
            }
            RunCut::Fixed { block_rows, lead } => {
                let end = (run.rows.start + lead + u64::from(i) * block_rows).min(run.rows.end);
                let start = if i == 0 { run.rows.start } else { run.rows.start + lead + u64::from(i - 1) * block_rows };
                start..end
            }
        }
    }

    /// Number of rows of `block`.
    #[inline]
    pub(super) fn len_of(&self, blocks: &Blocks, block: u32) -> u32 {
        let run = self.run_of(block);
        if let RunCut::Stored { first_entry, .. } = run.cut {
            return blocks.stored_rows(first_entry + block - run.first_block);
        }
        let rows = self.rows_of(blocks, block);
        (rows.end - rows.start) as u32 // at most block_rows, which has 32 bits
    }

    /// Writes the number of rows of each of `ids`.
    ///
    /// The loop over all blocks of an epoch: no iteration depends on another, so that their cache misses overlap.
    pub(super) fn lens_of(&self, blocks: &Blocks, ids: &[u32], lens: &mut [u32]) {
        let pairs = lens.iter_mut().zip(ids);
        match &*self.runs {
            [Run { cut: RunCut::Stored { first_entry, .. }, .. }] => {
                pairs.for_each(|(len, &id)| *len = blocks.stored_rows(first_entry + id));
            }
            _ => pairs.for_each(|(len, &id)| *len = self.len_of(blocks, id)),
        }
    }

    pub(super) fn resident_bytes(&self) -> u64 {
        to_u64(size_of_val(&*self.runs) + size_of_val(&*self.hints))
    }

    fn run_of(&self, block: u32) -> &Run {
        if let [only] = &*self.runs {
            return only;
        }
        let hint = (block >> HINT_SHIFT) as usize;
        let first = self.hints[hint] as usize;
        let last = self.hints.get(hint + 1).map_or(self.runs.len() - 1, |&run| run as usize);
        let begun = self.runs[first..=last].partition_point(|run| run.first_block <= block);
        &self.runs[first + begun - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::super::blocks::SourceRows;
    use super::*;

    fn all_rows(cuts: &Cuts, blocks: &Blocks) -> Vec<Range<u64>> {
        (0..cuts.n_blocks()).map(|block| cuts.rows_of(blocks, block)).collect()
    }

    #[test]
    fn phases_move_the_borders_of_fixed_blocks() {
        let source = |rows| SourceRows { rows, first_rows: None, x_bytes: 0 };
        let blocks = Blocks::fixed(10, &[source(0..25), source(25..25), source(25..29), source(29..40)]).unwrap();
        let ends = |phases: [u32; 4]| {
            let rows = all_rows(&Cuts::new(&blocks, |source, _| phases[source]), &blocks);
            assert!(rows.windows(2).all(|pair| pair[0].end == pair[1].start));
            rows.iter().map(|rows| rows.end).collect::<Vec<_>>()
        };
        assert_eq!(ends([0, 0, 0, 0]), [10, 20, 25, 29, 39, 40]);
        assert_eq!(ends([5, 0, 3, 1]), [5, 15, 25, 28, 29, 30, 40]);
        assert_eq!(ends([9, 0, 4, 9]), [9, 19, 25, 29, 38, 40]);
        assert_eq!(ends([1, 9, 9, 2]), [1, 11, 21, 25, 29, 31, 40]);
    }

    #[test]
    fn lookup_among_many_runs() {
        // Sources of 1 to 5,000 rows of 256 KiB, with stored sizes (16 rows) or fixed blocks (1 row): runs shorter and longer
        // than the distance of hints.
        let mut sources = Vec::new();
        let mut next = 0;
        for i in 0..300_u64 {
            let rows = next..next + 1 + (i * i * 131) % 5000;
            next = rows.end;
            let first_rows = (i % 3 == 0 || i % 10 < 2).then(|| vec![rows.start]);
            sources.push(SourceRows { x_bytes: (rows.end - rows.start) << 18, rows, first_rows });
        }
        let blocks = Blocks::auto(&sources).unwrap();
        let cuts = Cuts::new(&blocks, |_, _| 0);
        assert!(cuts.runs.len() > 50 && cuts.n_blocks() > 100_000);
        let mut end = 0;
        for block in 0..cuts.n_blocks() {
            let rows = cuts.rows_of(&blocks, block);
            assert_eq!(rows.start, end);
            assert!((1..=16).contains(&cuts.len_of(&blocks, block)));
            assert_eq!(rows.end - rows.start, u64::from(cuts.len_of(&blocks, block)));
            end = rows.end;
        }
        assert_eq!(end, next);
    }
}
