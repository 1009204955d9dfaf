//! The plan of a window: which stored bytes are read and decoded, and where every value goes.
//!
//! The rows of all wanted batches are sorted by row id, and each part of the store is asked for the pieces of each row, so that
//! pieces of one chunk stand together whatever batch they go to. One [`ChunkTask`] is made per chunk, with the range of elements that
//! anybody needs; tasks are ordered by file address and neighbours are coalesced into one read ([`Group`]).
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

/// Chunks this close to each other are read together: reading a gap costs less than another call.
const MAX_GAP_BYTES: u64 = 64 * 1024;

/// Largest coalesced read, unless one chunk alone is larger.
const MAX_GROUP_BYTES: u64 = 1024 * 1024;

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
}

/// Chunks that are read together.
#[derive(Debug, Clone)]
pub struct Group {
    /// A range of [`WindowPlan::tasks`].
    pub tasks: Range<u32>,
    /// File and first byte, `None` if nothing is to be read.
    pub at: Option<(u32, u64)>,
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
    /// Reads.
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
    pub fn new(store: &dyn Store, kept: Option<&KeptChunks>, batches: Vec<Arc<Assembly>>, order: ReadOrder) -> Self {
        let rows = sorted_rows(&batches);
        let columns = ColumnPlaces::new(store.schema(), &batches);
        let mut plan = Self {
            batches,
            pieces: Vec::new(),
            tasks: Vec::new(),
            columns,
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
        plan.group_tasks();
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
                self.tasks.push(ChunkTask { part: index(part), chunk, need: 0..0, pieces: at..at + 1, extent });
            }
        }
    }

    /// True if a group has anything to read.
    #[must_use]
    pub fn reads(&self, group: usize) -> bool {
        self.groups.get(group).is_some_and(|group| group.at.is_some())
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

    fn group_tasks(&mut self) {
        for (i, task) in (0_u32..).zip(&self.tasks) {
            let Extent::File { file, address, len, .. } = task.extent else {
                self.groups.push(Group { tasks: i..i + 1, at: None, len: 0 });
                continue;
            };
            let end = address + u64::from(len);
            if let Some(Group { tasks, at: Some((group_file, start)), len: group_len }) = self.groups.last_mut()
                && *group_file == file
                && address >= *start
                && address <= *start + u64::from(*group_len) + MAX_GAP_BYTES
                && end - *start <= MAX_GROUP_BYTES
            {
                *group_len = (*group_len).max(index64(end - *start));
                tasks.end = i + 1;
                continue;
            }
            self.groups.push(Group { tasks: i..i + 1, at: Some((file, address)), len });
        }
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
