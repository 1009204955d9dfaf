//! What a worker thread does with one group of chunks: read, decode each chunk once, copy every piece to its place.
//!
//! A failure is as small as it can be. If a coalesced read fails, its chunks are read one by one; a chunk that fails fails the batches
//! that have pieces in it; a column index out of range fails the batch that holds the row.

use std::sync::Arc;
use std::time::Instant;

use super::assembly::Assembly;
use super::bad::BadChunks;
use super::counters::Counters;
use super::kept::KeptChunks;
use super::plan::{ChunkTask, Group, ReadRange, WindowPlan};
use crate::codec::{Scratch, convert, narrow, sized};
use crate::dtype::{DType, Stored};
use crate::num::to_u64;
use crate::store::{ChunkForm, Extent, GeneMap, PartRole, ReadError, RecordBuffers, Store};

/// Buffers of one thread, reused from group to group.
pub struct ThreadBuffers {
    /// Stored bytes of a group.
    pub stored: Vec<u8>,
    /// Stored bytes of a chunk that has to be read again as a whole.
    whole: Vec<u8>,
    /// One decoded chunk.
    decoded: Vec<u8>,
    scratch: Scratch,
    /// What records need.
    records: RecordBuffers,
}

impl ThreadBuffers {
    /// Empty buffers; they grow to what the store's chunks need.
    #[must_use]
    pub fn new() -> Self {
        Self {
            stored: Vec::new(),
            whole: Vec::new(),
            decoded: Vec::new(),
            scratch: Scratch::default(),
            records: RecordBuffers::default(),
        }
    }
}

impl Default for ThreadBuffers {
    fn default() -> Self {
        Self::new()
    }
}

/// The store and the counters, as the workers use them.
pub struct Decoder<'a> {
    /// The dataset.
    pub store: &'a dyn Store,
    /// Chunks that are kept once they are decoded.
    pub kept: Option<&'a KeptChunks>,
    /// Chunks that were found damaged.
    pub bad: &'a BadChunks,
    /// Where work is counted.
    pub counters: &'a Counters,
}

impl Decoder<'_> {
    /// Reads the stored bytes of a group of `plan` into `into`.
    ///
    /// # Errors
    /// What the store says.
    pub fn read_group(&self, plan: &WindowPlan, group: usize, into: &mut Vec<u8>) -> Result<(), ReadError> {
        let Some(group) = plan.groups.get(group) else { return Ok(()) };
        self.read_all(plan.reads_of(group), sized(into, group.len as usize))
    }

    pub(super) fn read(&self, file: u32, address: u64, into: &mut [u8]) -> Result<(), ReadError> {
        let len = u32::try_from(into.len()).unwrap_or(u32::MAX);
        self.read_all(&[ReadRange { file, address, len, at: 0 }], into)
    }

    /// Reads all of `reads` to their places in `into`.
    fn read_all(&self, reads: &[ReadRange], into: &mut [u8]) -> Result<(), ReadError> {
        let start = Instant::now();
        let result = reads.chunk_by(|a, b| a.file == b.file).try_for_each(|of_file| {
            for read in of_file {
                let at = read.at as usize;
                self.store.read_at(read.file, read.address, &mut into[at..at + read.len as usize])?;
            }
            // Checked after reading: what was read before the source changed is right, and what is read later fails, so that no mixture of
            // old and new bytes is ever served. What would fail to decode because the source changed is told as that.
            of_file.first().map_or(Ok(()), |read| self.store.check_unchanged(read.file))
        });
        Counters::lap(&self.counters.read_ns, start);
        Counters::add(&self.counters.reads, to_u64(reads.len()));
        Counters::add(&self.counters.bytes_read, reads.iter().map(|read| u64::from(read.len)).sum());
        result
    }

    /// Decodes and scatters a group, of which `read` are the stored bytes. Calls `finished` with every batch whose last piece this
    /// was.
    pub fn run(
        &self,
        plan: &WindowPlan,
        group: &Group,
        read: Result<&[u8], ReadError>,
        buffers: &mut ThreadBuffers,
        finished: &mut dyn FnMut(&Arc<Assembly>),
    ) {
        let tasks = &plan.tasks[group.tasks.start as usize..group.tasks.end as usize];
        for task in tasks {
            let mut alone = Vec::new();
            let stored = match (&read, task.extent) {
                (Ok(bytes), Extent::File { len, .. }) => Ok(&bytes[task.at as usize..][..len as usize]),
                (Err(_), Extent::File { file, address, len, .. }) if tasks.len() > 1 => {
                    alone.resize(len as usize, 0);
                    self.read(file, address, &mut alone).map(|()| &*alone)
                }
                (Err(error), Extent::File { .. }) => Err(error.clone()),
                (_, Extent::Resident) => Ok(&[][..]),
            };
            let result = match self.store.schema().parts[task.part as usize].role {
                PartRole::Records => {
                    // A record that fails fails its batch by itself.
                    self.run_of_records(plan, task, &stored, buffers);
                    Ok(())
                }
                PartRole::Values | PartRole::Indices => {
                    stored.and_then(|stored| self.chunk(plan, task, stored, buffers))
                }
            };
            self.settle(plan, task, result, finished);
        }
    }

    fn run_of_records(
        &self,
        plan: &WindowPlan,
        task: &ChunkTask,
        stored: &Result<&[u8], ReadError>,
        buffers: &mut ThreadBuffers,
    ) {
        let start = Instant::now();
        self.records(plan, task, stored, &mut buffers.records);
        let is_plain = self.store.is_plain(task.part as usize, task.chunk);
        let counters = &self.counters;
        Counters::lap(if is_plain { &counters.scatter_ns } else { &counters.decode_ns }, start);
    }

    /// Counts down the batches of a chunk's pieces; fails them if the chunk failed.
    fn settle(
        &self,
        plan: &WindowPlan,
        task: &ChunkTask,
        result: Result<(), ReadError>,
        finished: &mut dyn FnMut(&Arc<Assembly>),
    ) {
        for piece in plan.pieces_of(task) {
            let batch = &plan.batches[piece.batch as usize];
            if let Err(error) = &result {
                batch.fail(error.clone().into());
            }
            if batch.arrived() {
                finished(batch);
            }
        }
    }

    /// Decodes one chunk and scatters its pieces.
    fn chunk(
        &self,
        plan: &WindowPlan,
        task: &ChunkTask,
        stored: &[u8],
        buffers: &mut ThreadBuffers,
    ) -> Result<(), ReadError> {
        let part = task.part as usize;
        if let Some(error) = self.bad.get(task.part, task.chunk) {
            return Err(error);
        }
        if let Some(decoded) = self.kept.and_then(|kept| kept.get(part, task.chunk)) {
            // What was read of a source that changed since is not served.
            if let Extent::File { file, .. } = self.store.extent(part, task.chunk, task.need.clone(), false) {
                self.store.check_unchanged(file)?;
            }
            Counters::add(&self.counters.chunks_kept, 1);
            let start = Instant::now();
            self.scatter(plan, task, decoded, 0);
            Counters::lap(&self.counters.scatter_ns, start);
            return Ok(());
        }
        Counters::add(&self.counters.chunks, 1);
        let is_file = matches!(task.extent, Extent::File { .. });
        let start = Instant::now();
        if is_file && self.store.is_plain(part, task.chunk) {
            self.scatter(plan, task, stored, task.need.start);
            Counters::lap(&self.counters.scatter_ns, start);
            return Ok(());
        }
        let mut decoded = std::mem::take(&mut buffers.decoded);
        let form = self.store.chunk_form(part, task.chunk);
        let (chunk_bytes, item) = (form.bytes, form.stored.dtype.size_bytes());
        let result = self.decode(task, stored, buffers, sized(&mut decoded, chunk_bytes));
        let start = Counters::lap(&self.counters.decode_ns, start);
        if let Err(error) = &result {
            self.bad.note(task.part, task.chunk, error);
        } else {
            if let Some(kept) = self.kept {
                kept.put(part, task.chunk, &decoded[..chunk_bytes]);
            }
            let from = task.need.start as usize * item;
            self.scatter(plan, task, &decoded[from..task.need.end as usize * item], task.need.start);
            Counters::lap(&self.counters.scatter_ns, start);
        }
        buffers.decoded = decoded;
        result
    }

    fn decode(
        &self,
        task: &ChunkTask,
        stored: &[u8],
        buffers: &mut ThreadBuffers,
        decoded: &mut [u8],
    ) -> Result<(), ReadError> {
        let part = task.part as usize;
        let scratch = &mut buffers.scratch;
        let result = self.store.decode(part, task.chunk, task.need.clone(), stored, false, scratch, decoded);
        let result = match result {
            Err(ReadError::Short) => {
                Counters::add(&self.counters.prefix_retries, 1);
                let mut whole: &mut [u8] = &mut [];
                if let Extent::File { file, address, len, .. } =
                    self.store.extent(part, task.chunk, task.need.clone(), true)
                {
                    whole = sized(&mut buffers.whole, len as usize);
                    self.read(file, address, whole)?;
                }
                self.store.decode(part, task.chunk, task.need.clone(), whole, true, scratch, decoded)
            }
            other => other,
        };
        Counters::add(&self.counters.bytes_decoded, result?);
        Ok(())
    }

    /// Copies the pieces of a chunk to their places. `elements` holds the elements from number `first` of the chunk on.
    fn scatter(&self, plan: &WindowPlan, task: &ChunkTask, elements: &[u8], first: u32) {
        let schema = self.store.schema();
        let part = &schema.parts[task.part as usize];
        let element = &schema.elements[part.element];
        let ChunkForm { source: chunk_source, stored, .. } = self.store.chunk_form(task.part as usize, task.chunk);
        let n_cols = schema.source_cols(part.element, chunk_source);
        let genes = schema.genes_of(part.element).and_then(|genes| genes.of(chunk_source));
        let renumbering = genes.and_then(GeneMap::renumbering);
        let item = stored.dtype.size_bytes();
        let served = element.served(part.role);
        let out_item = served.size_bytes();
        let mut copied = 0;
        for piece in plan.pieces_of(task) {
            let from = (piece.from - first) as usize * item;
            let source = &elements[from..from + piece.len as usize * item];
            let batch = &plan.batches[piece.batch as usize];
            let out = batch.piece_bytes(piece.dest, piece.len as usize * out_item);
            copied += out.len();
            let bad = match part.role {
                PartRole::Values if stored.dtype == served => {
                    copy_values(stored, source, out);
                    None
                }
                PartRole::Values => {
                    narrow::convert_values(source, stored, served, out).err().map(|bad| bad.to_string())
                }
                PartRole::Indices => {
                    let result = match (served, renumbering) {
                        (DType::I32, None) => convert::indices_to_i32(source, stored, n_cols, out),
                        (other, _) => narrow::indices_to(source, stored, n_cols, renumbering, other, out),
                    };
                    result.err().map(|bad| bad.to_string())
                }
                // Goes another way, see `super::records`.
                PartRole::Records => None,
            };
            if let Some(reason) = bad {
                let row = batch.rows[piece.slot as usize];
                batch.fail(self.store.bad_row(task.part as usize, row, reason).into());
            }
        }
        Counters::add(&self.counters.bytes_copied, copied as u64);
        Counters::add(&self.counters.pieces, u64::from(task.pieces.end - task.pieces.start));
    }
}

/// Copies values in their own type, to little-endian.
fn copy_values(stored: Stored, source: &[u8], out: &mut [u8]) {
    match stored.dtype {
        // Any non-zero byte is true; readers of BOOL may assume 0 or 1.
        DType::Bool => out.iter_mut().zip(source).for_each(|(out, &byte)| *out = u8::from(byte != 0)),
        dtype => convert::copy_elements(source, out, dtype.size_bytes(), stored.big_endian),
    }
}
