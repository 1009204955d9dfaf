//! The plan of a window: which stored bytes are read and decoded, and where every value goes.
//!
//! The rows of all wanted batches are sorted by row id, and each part of the store is asked for the pieces of each row, so that
//! pieces of one chunk stand together whatever batch they go to. One [`ChunkTask`] is made per chunk, with the range of elements that
//! anybody needs; tasks are ordered by file address, neighbours are coalesced into one read ([`ReadRange`]), and small reads are done one
//! after the other by one thread ([`Group`]).
//!
//! Records ([`PartRole::Records`]) are planned in runs: those that follow each other in the file make one task with a piece per record.
//!
//! A window that nobody waits for yet is read in file order. For one that is waited for (the first after a mount or a
//! seek), tasks are ordered by the earliest batch that needs them, so that the first batch is complete long before the window.

use std::ops::Range;
use std::sync::Arc;

use super::assembly::Assembly;
use super::kept::KeptChunks;
use super::records::ColumnPlaces;
use crate::store::{Extent, PartRole, Store};

/// Largest coalesced read, unless one chunk alone is larger.
const MAX_GROUP_BYTES: u64 = 1024 * 1024;

/// Most reads of a group: what one thread does before it looks for something more urgent.
const MAX_GROUP_READS: usize = 64;

/// Most bytes of a run of records, unless one alone is larger: a part of a read, so that several threads have something to do.
const MAX_RUN_BYTES: u64 = 256 * 1024;

/// A run of elements on its way from a decoded chunk to a batch, or a record on its way from a run.
#[derive(Debug, Clone, Copy)]
pub struct PieceTask {
    /// The batch, an index of [`WindowPlan::batches`].
    pub batch: u32,
    /// The row's place in the batch.
    pub slot: u32,
    /// First element within the decoded chunk; of a record the first byte within the run.
    pub from: u32,
    /// Number of elements; of a record its stored bytes.
    pub len: u32,
    /// First byte within the batch's buffer; of a record, which has several places there, the row id.
    pub dest: u64,
}

/// How reads are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spacing {
    /// Chunks this close to each other are read together: reading the gap costs less than another call.
    pub max_gap_bytes: u64,
    /// Reads of a group are together no longer than this, unless it is one read.
    max_small_bytes: u64,
}

impl Spacing {
    /// For storage where a read costs a round trip: it takes longer than reading 64 KiB too many, and every group is one read, so that
    /// as many as possible are under way at one time.
    pub const SLOW: Self = Self { max_gap_bytes: 64 * 1024, max_small_bytes: 0 };

    /// For sources in the page cache: a call costs less than copying a few pages, but finding the next thing to do costs as much
    /// again, so small reads share that.
    pub const FAST: Self = Self { max_gap_bytes: 8 * 1024, max_small_bytes: 128 * 1024 };
}

/// Bytes of a file that are read by one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRange {
    /// The file.
    pub file: u32,
    /// First byte.
    pub address: u64,
    /// Number of bytes.
    pub len: u32,
    /// Where they go in the group's buffer.
    pub at: u32,
}

/// All that is wanted from one chunk, or from one run of records.
#[derive(Debug, Clone)]
pub struct ChunkTask {
    /// The part.
    pub part: u32,
    /// The chunk; of a run the first record.
    pub chunk: u32,
    /// First and last element that a piece needs. Nothing for runs.
    pub need: Range<u32>,
    /// Its pieces, a range of [`WindowPlan::pieces`].
    pub pieces: Range<u32>,
    /// What to read.
    pub extent: Extent,
    /// Where its bytes are in the group's buffer.
    pub at: u32,
}

/// Chunks that one thread reads, and then decodes and scatters.
#[derive(Debug, Clone)]
pub struct Group {
    /// A range of [`WindowPlan::tasks`].
    pub tasks: Range<u32>,
    /// A range of [`WindowPlan::reads`]; empty if nothing is to be read.
    pub reads: Range<u32>,
    /// Bytes to read.
    pub len: u32,
}

/// The plan of a window, or of some batches of it.
pub struct WindowPlan {
    /// The batches, by falling urgency.
    pub batches: Vec<Arc<Assembly>>,
    /// Pieces, chunk by chunk.
    pub pieces: Vec<PieceTask>,
    /// Chunks, in the order they are read.
    pub tasks: Vec<ChunkTask>,
    /// Where the columns of records lie.
    pub columns: ColumnPlaces,
    /// What is read, group by group.
    pub reads: Vec<ReadRange>,
    /// What is done by one thread.
    pub groups: Vec<Group>,
    /// Bytes of stored elements that the pieces need.
    pub wanted_bytes: u64,
    /// The same, of chunks that have filters.
    pub needed_filtered_bytes: u64,
}

/// In which order chunks are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOrder {
    /// By address.
    File,
    /// By the first batch that needs the chunk, then by address.
    Need,
}

impl WindowPlan {
    /// Plans `batches`. Each of them still holds the planner's share of its count of pieces, which the caller drops.
    #[must_use]
    pub fn new(
        store: &dyn Store,
        kept: Option<&KeptChunks>,
        batches: Vec<Arc<Assembly>>,
        order: ReadOrder,
        spacing: Spacing,
    ) -> Self {
        let rows = sorted_rows(&batches);
        let columns = ColumnPlaces::new(store.schema(), &batches);
        let mut plan = Self {
            batches,
            pieces: Vec::new(),
            tasks: Vec::new(),
            columns,
            reads: Vec::new(),
            groups: Vec::new(),
            wanted_bytes: 0,
            needed_filtered_bytes: 0,
        };
        for (part, p) in store.schema().parts.iter().enumerate() {
            match p.role {
                PartRole::Records => plan.add_records(store, part, &rows),
                PartRole::Values | PartRole::Indices => plan.add_part(store, kept, part, &rows),
            }
        }
        plan.sort_tasks(order);
        plan.group_tasks(spacing);
        plan
    }

    /// Adds the pieces and chunks of one part.
    fn add_part(&mut self, store: &dyn Store, kept: Option<&KeptChunks>, part: usize, rows: &[(u64, u32, u32)]) {
        let mut found: Vec<(u32, PieceTask)> = Vec::with_capacity(rows.len() + rows.len() / 8);
        let layout = PartLayout::of(store, part);
        for &(row, batch, slot) in rows {
            let assembly = &self.batches[batch as usize];
            let start = assembly.layout.part_offsets[part] + layout.row_offset(assembly, slot);
            store.pieces(part, row, &mut |piece| {
                let dest = start + u64::from(piece.to) * layout.item;
                assembly.expect_piece();
                found.push((piece.chunk, PieceTask { batch, slot, from: piece.from, len: piece.len, dest }));
            });
        }
        // Rows ascend, so the chunks of arrays of rank 1 do too; those cut along both axes do not.
        if !found.is_sorted_by_key(|&(chunk, _)| chunk) {
            found.sort_by_key(|&(chunk, _)| chunk);
        }
        for run in found.chunk_by(|a, b| a.0 == b.0) {
            let first = index(self.pieces.len());
            self.pieces.extend(run.iter().map(|&(_, piece)| piece));
            let start = run.iter().map(|(_, p)| p.from).min().unwrap_or(0);
            let need = start..run.iter().map(|(_, p)| p.from + p.len).max().unwrap_or(0);
            let chunk = run[0].0;
            let stored_item = store.chunk_form(part, chunk).stored.dtype.size_bytes() as u64;
            let wanted = stored_item * run.iter().map(|(_, p)| u64::from(p.len)).sum::<u64>();
            self.wanted_bytes += wanted;
            self.needed_filtered_bytes += if store.is_plain(part, chunk) { 0 } else { wanted };
            let need = kept.map_or(need.clone(), |kept| kept.to_decode(store, part, chunk, need));
            let mut extent = store.extent(part, chunk, need.clone(), false);
            if kept.is_some_and(|kept| kept.get(part, chunk).is_some()) {
                extent = Extent::Resident;
            }
            self.tasks.push(ChunkTask {
                part: index(part),
                chunk,
                need,
                pieces: first..index(self.pieces.len()),
                extent,
                at: 0,
            });
        }
    }

    /// Adds the records of the rows, as runs.
    fn add_records(&mut self, store: &dyn Store, part: usize, rows: &[(u64, u32, u32)]) {
        self.pieces.reserve(rows.len());
        for batch in &self.batches {
            batch.expect_pieces(index(batch.rows.len()));
        }
        for &(row, batch, slot) in rows {
            // Records are numbered like rows.
            let chunk = u32::try_from(row).unwrap_or(u32::MAX);
            store.pieces(part, row, &mut |piece| {
                self.wanted_bytes += u64::from(piece.len);
                self.needed_filtered_bytes += if store.is_plain(part, chunk) { 0 } else { u64::from(piece.len) };
            });
            let extent = store.extent(part, chunk, 0..0, false);
            let (file, address, len) = match extent {
                Extent::File { file, address, len, .. } => (file, address, len),
                Extent::Resident => (0, 0, 0),
            };
            let at = index(self.pieces.len());
            let from = self.tasks.last_mut().and_then(|run| run.continue_with(file, address, len, at + 1));
            self.pieces.push(PieceTask { batch, slot, from: from.unwrap_or(0), len, dest: row });
            if from.is_none() {
                self.tasks.push(ChunkTask { part: index(part), chunk, need: 0..0, pieces: at..at + 1, extent, at: 0 });
            }
        }
    }

    /// True if a group has anything to read.
    #[must_use]
    pub fn is_read(&self, group: usize) -> bool {
        self.groups.get(group).is_some_and(|group| !group.reads.is_empty())
    }

    /// The reads of a group.
    #[must_use]
    pub fn reads_of(&self, group: &Group) -> &[ReadRange] {
        &self.reads[group.reads.start as usize..group.reads.end as usize]
    }

    /// The pieces of a task.
    #[must_use]
    pub fn pieces_of(&self, task: &ChunkTask) -> &[PieceTask] {
        &self.pieces[task.pieces.start as usize..task.pieces.end as usize]
    }

    fn sort_tasks(&mut self, order: ReadOrder) {
        let pieces = &self.pieces;
        let first_batch = |task: &ChunkTask| {
            let range = task.pieces.start as usize..task.pieces.end as usize;
            pieces[range].iter().map(|p| p.batch).min().unwrap_or(u32::MAX)
        };
        match order {
            ReadOrder::File => self.tasks.sort_unstable_by_key(|t| address(t.extent)),
            ReadOrder::Need => self.tasks.sort_by_cached_key(|t| (first_batch(t), address(t.extent))),
        }
    }

    fn group_tasks(&mut self, spacing: Spacing) {
        for (i, task) in (0_u32..).zip(&mut self.tasks) {
            let n_reads = index(self.reads.len());
            let Extent::File { file, address, len, .. } = task.extent else {
                self.groups.push(Group { tasks: i..i + 1, reads: n_reads..n_reads, len: 0 });
                continue;
            };
            // A group that reads nothing is closed.
            let group = self.groups.last_mut().filter(|group| !group.reads.is_empty());
            if let (Some(group), Some(read)) = (group, self.reads.last_mut()) {
                let fits = |group_len: u32| u64::from(group_len) <= spacing.max_small_bytes;
                let is_alone = group.reads.len() == 1;
                let grown = read.reach(file, address, len, spacing);
                if let Some(grown) = grown.filter(|grown| is_alone || fits(group.len + (grown - read.len))) {
                    group.len += grown - read.len;
                    read.len = grown;
                    task.at = read.at + index64(address - read.address);
                    group.tasks.end = i + 1;
                    continue;
                }
                if group.reads.len() < MAX_GROUP_READS && group.len.checked_add(len).is_some_and(fits) {
                    task.at = group.len;
                    self.reads.push(ReadRange { file, address, len, at: group.len });
                    group.reads.end += 1;
                    group.len += len;
                    group.tasks.end = i + 1;
                    continue;
                }
            }
            self.reads.push(ReadRange { file, address, len, at: 0 });
            self.groups.push(Group { tasks: i..i + 1, reads: n_reads..n_reads + 1, len });
        }
    }
}

impl ReadRange {
    /// The length that this read needs in order to cover another run of bytes too; `None` if they are not read together.
    fn reach(&self, file: u32, address: u64, len: u32, spacing: Spacing) -> Option<u32> {
        let own_end = self.address + u64::from(self.len);
        let end = (address + u64::from(len)).max(own_end);
        let is_near = self.file == file && address >= self.address && address <= own_end + spacing.max_gap_bytes;
        (is_near && end - self.address <= MAX_GROUP_BYTES.max(u64::from(self.len))).then(|| index64(end - self.address))
    }
}

impl ChunkTask {
    /// Adds a record to a run of records if it follows the last one in the file. Returns where it begins in the run.
    fn continue_with(&mut self, file: u32, address: u64, len: u32, pieces_end: u32) -> Option<u32> {
        let Extent::File { file: run_file, address: start, len: run_len, .. } = &mut self.extent else { return None };
        let from = *run_len;
        let follows = *run_file == file && start.checked_add(u64::from(from)) == Some(address);
        let grown = from.checked_add(len).filter(|&grown| follows && u64::from(grown) <= MAX_RUN_BYTES)?;
        *run_len = grown;
        self.pieces.end = pieces_end;
        Some(from)
    }
}

/// How the rows of a part lie in a batch.
struct PartLayout {
    element: usize,
    /// Bytes of one served element.
    item: u64,
    /// Elements from row to row, if it is the same for all.
    fixed: Option<u64>,
}

impl PartLayout {
    fn of(store: &dyn Store, part: usize) -> Self {
        let schema = store.schema();
        let p = &schema.parts[part];
        let element = &schema.elements[p.element];
        let item = element.served(p.role).size_bytes() as u64;
        let fixed = (element.kind.dense() == Some(part)).then_some(element.stored_cols);
        Self { element: p.element, item, fixed }
    }

    fn row_offset(&self, batch: &Assembly, slot: u32) -> u64 {
        let first = match self.fixed {
            Some(n) => u64::from(slot) * n,
            None => u64::from(batch.row_starts[self.element][slot as usize]),
        };
        first * self.item
    }
}

/// `(row id, batch, slot)` of all rows, by row id.
fn sorted_rows(batches: &[Arc<Assembly>]) -> Vec<(u64, u32, u32)> {
    let mut rows = Vec::with_capacity(batches.iter().map(|b| b.rows.len()).sum());
    for (batch, assembly) in (0_u32..).zip(batches) {
        rows.extend((0_u32..).zip(&assembly.rows).map(|(slot, &row)| (row, batch, slot)));
    }
    rows.sort_unstable();
    rows
}

fn address(extent: Extent) -> (u32, u64) {
    match extent {
        Extent::File { file, address, .. } => (file, address),
        Extent::Resident => (0, 0),
    }
}

/// A position in a list of a plan. Plans are limited by the memory they take long before 2^32 entries.
fn index(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn index64(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reads of each group, as (address, length), for chunks at these places of file 0; those of file 1 have 2^40 in the address,
    /// those without a byte are resident.
    fn reads(chunks: &[(u64, u32)], spacing: Spacing) -> Vec<Vec<(u64, u32)>> {
        let task = |&(address, len): &(u64, u32)| {
            let extent = match len {
                0 => Extent::Resident,
                _ => Extent::File { file: u32::from(address >= 1 << 40), address, len, is_prefix: false },
            };
            ChunkTask { part: 0, chunk: 0, need: 0..0, pieces: 0..0, extent, at: 0 }
        };
        let mut plan = WindowPlan {
            batches: Vec::new(),
            pieces: Vec::new(),
            tasks: chunks.iter().map(task).collect(),
            columns: ColumnPlaces::default(),
            reads: Vec::new(),
            groups: Vec::new(),
            wanted_bytes: 0,
            needed_filtered_bytes: 0,
        };
        plan.group_tasks(spacing);
        for group in &plan.groups {
            let reads = plan.reads_of(group);
            assert_eq!(reads.iter().map(|read| read.len).sum::<u32>(), group.len);
            // Every chunk is where its task says.
            for task in &plan.tasks[group.tasks.start as usize..group.tasks.end as usize] {
                let (address, len) = chunks[plan.tasks.iter().position(|t| std::ptr::eq(t, task)).unwrap()];
                if len == 0 {
                    assert!(reads.is_empty());
                    continue;
                }
                let read = reads.iter().rfind(|read| read.at <= task.at).unwrap();
                assert_eq!(read.address + u64::from(task.at - read.at), address);
                assert!(task.at + len <= read.at + read.len && read.file == u32::from(address >= 1 << 40));
            }
            assert!(reads.len() == 1 || u64::from(group.len) <= spacing.max_small_bytes);
            assert!(reads.len() <= MAX_GROUP_READS);
        }
        plan.groups.iter().map(|g| plan.reads_of(g).iter().map(|r| (r.address, r.len)).collect()).collect()
    }

    #[test]
    fn gaps_are_read_where_calls_cost_more() {
        let chunks = [(0, 1000), (1000, 500), (9000, 1000), (70_000, 10), (70_005, 3), (400_000, 1)];
        assert_eq!(reads(&chunks, Spacing::SLOW), [vec![(0, 70_010)], vec![(400_000, 1)]]);
        assert_eq!(reads(&chunks, Spacing::FAST), [vec![(0, 10_000), (70_000, 10), (400_000, 1)]]);
    }

    #[test]
    fn small_reads_share_a_group_and_large_ones_do_not() {
        let large = [(0, 100_000), (500_000, 20_000), (900_000, 30_000), (2_000_000, 3_000_000), (6_000_000, 8)];
        let expected = [vec![(0, 100_000), (500_000, 20_000)], vec![(900_000, 30_000)], vec![(2_000_000, 3_000_000)]];
        let found = reads(&large, Spacing::FAST);
        assert_eq!(found[..3], expected);
        assert_eq!(found[3..], [vec![(6_000_000, 8)]]);
        assert_eq!(reads(&large, Spacing::SLOW).len(), 5);
    }

    #[test]
    fn groups_stay_small_whatever_the_order() {
        // A read of eight bytes does not grow by what was joined to it later.
        let mut chunks = vec![(0, 8)];
        chunks.extend((0..1000).map(|i| (1_000_000 + i * 1000, 1000)));
        let found = reads(&chunks, Spacing::FAST);
        assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
        // Not by address, overlapping, repeated, of two files, resident in between.
        let file = 1 << 40;
        let odd = [
            (9000, 10),
            (file + 9000, 10),
            (50, 0),
            (500, 10),
            (500, 10),
            (505, 20),
            (9000, 10),
            (file, 7),
            (8995, 10),
        ];
        assert_eq!(reads(&odd, Spacing::FAST).len(), 3);
        assert_eq!(reads(&odd, Spacing::SLOW).len(), 6);
        let many: Vec<(u64, u32)> = (0..200).map(|i| (i * 100_000, 8)).collect();
        assert_eq!(reads(&many, Spacing::FAST).len(), 4);
    }

    #[test]
    fn no_read_is_longer_than_a_mebibyte() {
        let chunks: Vec<(u64, u32)> = (0..30).map(|i| (i * 100_000, 100_000)).collect();
        let found = reads(&chunks, Spacing::FAST);
        assert_eq!(found, [vec![(0, 1_000_000)], vec![(1_000_000, 1_000_000)], vec![(2_000_000, 1_000_000)]]);
    }
}
