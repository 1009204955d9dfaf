//! Records: read in runs, decoded and taken apart one by one.
//!
//! A row that is a record needs no piece per array but one for all of it. Records that follow each other in the file make one task, a *run*, so that
//! what a task costs is shared by the records of a block. The store hands the bytes of each column to a [`BatchRow`], which knows
//! the row's place in every column of its batch. A record that fails fails the batches that hold it, and no others.

use std::sync::Arc;

use super::assembly::Assembly;
use super::counters::Counters;
use super::plan::{ChunkTask, PieceTask, WindowPlan};
use super::worker::Decoder;
use crate::codec::stream_copy::Fence;
use crate::num::to_u64;
use crate::store::records::RowKind;
use crate::store::{ElementId, Extent, ReadError, RecordBuffers, RecordSink, Schema, StoredRecord};

/// Where the columns of records lie in the batches of a window, close together: every record asks for all of them.
#[derive(Debug, Default)]
pub struct ColumnPlaces {
    rules: Vec<ColumnRule>,
    /// First byte per batch and column, `u64::MAX` for a column that the batch does not hold.
    offsets: Vec<u64>,
}

impl ColumnPlaces {
    /// Of the columns of `schema` in these batches.
    #[must_use]
    pub fn new(schema: &Schema, batches: &[Arc<Assembly>]) -> Self {
        let rules = ColumnRule::of_schema(schema);
        let of_batch = |batch: &Arc<Assembly>| {
            let offset = |column: usize| batch.layout.column_offsets.get(column).copied().unwrap_or(u64::MAX);
            (0..rules.len()).map(offset).collect::<Vec<u64>>()
        };
        let offsets = batches.iter().flat_map(of_batch).collect();
        Self { rules, offsets }
    }

    fn of_batch(&self, batch: u32) -> &[u64] {
        let n = self.rules.len();
        &self.offsets[batch as usize * n..(batch as usize + 1) * n]
    }
}

/// How the rows of a column follow each other in a batch.
#[derive(Debug, Clone, Copy)]
struct ColumnRule {
    /// Bytes of one entry.
    entry_bytes: u64,
    /// The element whose row lengths count the entries; one each if there is none.
    along: Option<ElementId>,
}

impl ColumnRule {
    /// The rules of all columns.
    fn of_schema(schema: &Schema) -> Vec<Self> {
        let columns = schema.records.iter().flat_map(|records| &records.columns);
        columns
            .map(|column| {
                let along = match column.rows {
                    RowKind::One => None,
                    RowKind::Along(element) => Some(element),
                };
                Self { entry_bytes: column.entry_bytes(), along }
            })
            .collect()
    }
}

/// The places of one row in its batch.
struct BatchRow<'a> {
    batch: &'a Assembly,
    slot: usize,
    rules: &'a [ColumnRule],
    offsets: &'a [u64],
    /// First entry and number of entries in the first element, which most columns go along.
    first: (u64, u64),
}

/// First entry of a row in an element, and their number.
fn entries(batch: &Assembly, element: ElementId, slot: usize) -> Option<(u64, u64)> {
    let starts = batch.row_starts.get(element)?;
    let (start, end) = (*starts.get(slot)?, *starts.get(slot + 1)?);
    Some((u64::from(start), u64::from(end - start)))
}

impl RecordSink for BatchRow<'_> {
    #[inline]
    fn place(&mut self, column: usize) -> Option<&mut [u8]> {
        let offset = self.offsets.get(column).copied().filter(|&offset| offset != u64::MAX)?;
        let rule = self.rules.get(column)?;
        let (first, n) = match rule.along {
            None => (to_u64(self.slot), 1),
            Some(0) => self.first,
            Some(element) => entries(self.batch, element, self.slot)?,
        };
        // The layout fits the buffer, so these products do.
        let len = usize::try_from(n * rule.entry_bytes).ok()?;
        Some(self.batch.piece_bytes(offset + first * rule.entry_bytes, len))
    }
}

/// A record of a run, of which `stored` are the bytes.
fn of_run<'a>(piece: &PieceTask, stored: &'a [u8]) -> StoredRecord<'a> {
    let bytes = &stored[piece.from as usize..(piece.from + piece.len) as usize];
    StoredRecord { row: piece.dest, bytes }
}

impl Decoder<'_> {
    /// Decodes and scatters a run of records, of which `stored` are the bytes in the file. A record that fails fails its batch.
    pub(super) fn records(
        &self,
        plan: &WindowPlan,
        task: &ChunkTask,
        stored: &Result<&[u8], ReadError>,
        buffers: &mut RecordBuffers,
    ) {
        let mut alone = Vec::new();
        let mut n_decoded = 0;
        let pieces = plan.pieces_of(task);
        // Before anybody is told that they arrived.
        let _fence = Fence::new();
        buffers.next.forget();
        for (i, piece) in pieces.iter().enumerate() {
            let batch = &*plan.batches[piece.batch as usize];
            let slot = piece.slot as usize;
            let record = match stored {
                Ok(stored) => Ok(of_run(piece, stored)),
                // What one of them spoils shall not spoil the others.
                Err(error) if pieces.len() == 1 => Err(error.clone()),
                Err(_) => {
                    let bytes = self.read_alone(task, piece, &mut alone);
                    bytes.map(|bytes| StoredRecord { row: piece.dest, bytes })
                }
            };
            let offsets = plan.columns.of_batch(piece.batch);
            let first = entries(batch, 0, slot).unwrap_or((0, 0));
            let mut sink = BatchRow { batch, slot, rules: &plan.columns.rules, offsets, first };
            let next = pieces.get(i + 1).zip(stored.as_ref().ok()).map(|(piece, stored)| of_run(piece, stored));
            match record.and_then(|record| self.store.record(record, next, buffers, &mut sink)) {
                Ok(decoded) => n_decoded += decoded,
                Err(error) => batch.fail(error.into()),
            }
        }
        Counters::add(&self.counters.bytes_decoded, n_decoded);
        Counters::add(&self.counters.chunks, to_u64(pieces.len()));
        Counters::add(&self.counters.pieces, to_u64(pieces.len()));
    }

    fn read_alone<'a>(
        &self,
        task: &ChunkTask,
        piece: &PieceTask,
        into: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], ReadError> {
        let Extent::File { file, address, .. } = task.extent else { return Ok(&[]) };
        into.resize(piece.len as usize, 0);
        self.read(file, address + u64::from(piece.from), into)?;
        Ok(into)
    }
}
