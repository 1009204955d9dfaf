//! Matrices that blocks of rows cannot serve, rewritten by rows into the cache folder.
//!
//! A row of a CSC matrix is spread over all of it, and compressed chunks that cut a dense matrix along its genes make every row
//! decode many of them. Both are rewritten once: [`transpose`] turns columns into rows, [`stripes`] puts the pieces of rows
//! together, in bounded memory, and what they write is an entry of [`crate::store::cache`] that is found by the next mount. Values keep their
//! type, little-endian; column indices are int32, as they are served, so that reading copies them and converts nothing.
//!
//! What comes out is a layout like any other, of contiguous arrays in the entry, which [`Rewritten`] names. The order does not
//! notice: the arrays remember how the source was cut and how large its arrays were ([`Origin`]).

mod columns;
mod stripes;
mod transpose;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::OpenedLayout;
use super::node::{Node, Source};
use super::raw_array::RawArray;
use crate::dtype::{DType, Stored};
use crate::num::to_u64;
use crate::store::cache::{Cacheable, Draft, LargeSlot, Progress, Refusal, Sections, amount};
use crate::store::chunk_map::{ChunkFiles, ChunkMap, Origin};
use crate::store::error::OpenError;
use crate::store::files::Files;
use crate::store::rows::RowLengths;

pub use columns::Csc;

/// Compression can make a matrix this many times smaller, not more: a small file must not fill the disk.
const MAX_EXPANSION: u64 = 1024;
/// What any source may expand to.
const SMALL_BYTES: u64 = 48 << 20;

/// The file that holds the rows of a rewritten matrix.
#[derive(Debug)]
pub struct Rewritten {
    /// Where it is, or will be.
    pub path: PathBuf,
    /// The file; `None` if it is only planned.
    pub file: Option<File>,
    /// The files of the source that it was made of, by their numbers there.
    pub made_of: Vec<MadeOf>,
}

/// Files of one array of the source.
#[derive(Debug, Clone, Copy)]
pub struct MadeOf {
    /// The files.
    pub files: ChunkFiles,
    /// Their number.
    pub n_files: u32,
}

impl MadeOf {
    fn new(array: &RawArray) -> Self {
        Self { files: array.files, n_files: array.n_files() }
    }

    fn numbers(&self) -> Range<u32> {
        self.files.first..self.files.first.saturating_add(self.n_files)
    }
}

impl Rewritten {
    /// Adds the file to those of its source, and lets `layout` name it. False if there are 2^32 files.
    pub fn attach(self, files: &mut Files, layout: &mut OpenedLayout) -> bool {
        let mut made_of: Vec<Range<u32>> = self.made_of.iter().map(MadeOf::numbers).collect();
        // All arrays of an HDF5 file lie in one.
        made_of.dedup();
        let Some(number) = files.add_made(&self.path, self.file, made_of.into()) else { return false };
        layout.maps_mut().for_each(|map| map.files = ChunkFiles::one(number));
        true
    }
}

/// Bytes of the rows of a matrix: of `n_values` values of type `dtype`, with column indices if it is sparse.
#[must_use]
pub fn rewritten_bytes(n_values: u64, dtype: DType, is_sparse: bool) -> u64 {
    let index_bytes = if is_sparse { INDEX_BYTES } else { 0 };
    n_values.saturating_mul(to_u64(dtype.size_bytes()) + index_bytes)
}

/// Bytes of a column index.
const INDEX_BYTES: u64 = 4;

/// What an entry says of itself.
#[derive(Debug, Serialize, Deserialize)]
struct Facts {
    shape: [u64; 2],
    dtype: String,
    /// For sparse rows.
    lengths: Option<<RowLengths as Cacheable>::Facts>,
}

/// What an entry, or a draft, holds.
struct Content {
    lengths: Option<Arc<RowLengths>>,
    /// Offset and size of the values, and of the column indices if there are any. The size may be larger than what they take.
    places: Vec<(u64, u64)>,
}

impl Content {
    /// The content of an entry for a matrix of this shape and type; `None` if it is that of another one.
    fn read(facts: Facts, sections: &mut Sections<'_>, shape: [u64; 2], dtype: DType) -> Option<Self> {
        if facts.shape != shape || facts.dtype != dtype.numpy_name() {
            return None;
        }
        let size = to_u64(dtype.size_bytes());
        let (lengths, sizes) = match facts.lengths {
            Some(lengths) => {
                let lengths = RowLengths::from_entry(lengths, sections)?;
                let n_values = lengths.total();
                let sizes = vec![n_values.checked_mul(size)?, n_values.checked_mul(INDEX_BYTES)?];
                (Some(Arc::new(lengths)), sizes)
            }
            None => (None, vec![shape[0].checked_mul(shape[1])?.checked_mul(size)?]),
        };
        let mut places = Vec::new();
        for size in sizes {
            places.push(sections.place().filter(|(_, len)| *len >= size)?);
        }
        Some(Self { lengths, places })
    }

    /// The layout of the rows, in a file that is numbered later.
    fn layout(&self, shape: [u64; 2], dtype: DType, origins: &[Origin]) -> Option<OpenedLayout> {
        let address = |i: usize| self.places.get(i).map(|(offset, _)| *offset);
        let origin = |i: usize| origins.get(i).copied();
        let stored = Stored::little(dtype);
        Some(match &self.lengths {
            None => OpenedLayout::Dense {
                values: ChunkMap { origin: origin(0), ..ChunkMap::contiguous(address(0)?, shape, stored) },
            },
            Some(lengths) => {
                let array = |i: usize, stored| {
                    let map = ChunkMap::contiguous(address(i)?, [lengths.total(), 1], stored);
                    Some(ChunkMap { origin: origin(i), ..map })
                };
                let (data, indices) = (array(0, stored)?, array(1, Stored::little(DType::I32))?);
                OpenedLayout::Sparse { lengths: Arc::clone(lengths), data, indices }
            }
        })
    }
}

/// A matrix that is rewritten: what both kinds have in common.
struct Job<'a> {
    node: &'a dyn Node,
    shape: [u64; 2],
    dtype: DType,
    /// What its arrays were, in the order of [`Content::places`].
    origins: Vec<Origin>,
    /// The arrays.
    arrays: Vec<&'a RawArray>,
    /// Bytes of the rows.
    bytes: u64,
    /// Why it is rewritten, for messages.
    reason: String,
}

/// Why rewriting stopped.
enum Stop {
    /// The source cannot be read.
    Source(OpenError),
    /// The draft cannot be written.
    Draft(io::Error),
}

impl From<OpenError> for Stop {
    fn from(error: OpenError) -> Self {
        Self::Source(error)
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Draft(error)
    }
}

/// The part of a job that depends on how the source is stored.
trait Rewriter {
    /// How far it is, in the journal.
    type State: Serialize + for<'de> Deserialize<'de>;

    /// Bytes of work before, while and after rows are written.
    fn work_bytes(&self) -> u64;

    /// Finds out what must be known before the size of the entry is.
    fn prepare(&mut self, meter: &mut Meter) -> Result<(), Stop>;

    /// What a resumed draft tells of that. False if it cannot go on with `state`.
    fn resume(&mut self, content: &Content, state: &Self::State) -> bool;

    /// Row lengths and sizes of the sections behind them.
    fn sections(&self) -> (Option<Arc<RowLengths>>, Vec<u64>);

    /// The state of a draft in which nothing is done.
    fn start(&self) -> Self::State;

    /// Writes all rows, from `state` on.
    fn write(
        &mut self,
        draft: &Draft,
        places: &[(u64, u64)],
        state: Self::State,
        meter: &mut Meter,
    ) -> Result<(), Stop>;
}

impl Job<'_> {
    fn source(&self) -> &Source {
        self.node.source()
    }

    /// Hash of what identifies the content of the arrays.
    fn state(&self) -> Result<[u8; 32], OpenError> {
        let numbers: Vec<_> = self.arrays.iter().map(|array| MadeOf::new(array).numbers()).collect();
        let state = self.source().state(&numbers);
        let state =
            state.map_err(|_| self.node.refused("changed while it was opened", "try again when its writer is done"))?;
        let mut hash = blake3::Hasher::new();
        hash.update(&state);
        for array in &self.arrays {
            for number in array.dims.iter().chain(&array.chunk) {
                hash.update(&number.to_le_bytes());
            }
            hash.update(&array.fill);
        }
        Ok(*hash.finalize().as_bytes())
    }

    fn refused(&self, refusal: Refusal) -> OpenError {
        self.node.refused(&format!("{}; {}", self.reason, refusal.reason), &refusal.remedy)
    }

    /// The layout of the rewritten matrix, which is made if it is not there yet.
    fn run<R: Rewriter>(
        &self,
        rewriter: &mut R,
        warnings: &mut Vec<String>,
    ) -> Result<(OpenedLayout, Rewritten), OpenError> {
        let cache = self.source().cache();
        let name = format!("rows of {}", self.node.path());
        let state = self.state()?;
        let slot = cache.large(&name, &state).map_err(|refusal| self.refused(refusal))?;
        let read = |facts, sections: &mut Sections<'_>| Content::read(facts, sections, self.shape, self.dtype);
        if let Some(found) = slot.find(read) {
            return self.done(found.content, found.path, Some(found.file));
        }
        slot.check_room(self.bytes, false).map_err(|refusal| self.refused(refusal))?;
        let config = cache.rewrite();
        if config.planned {
            let mut meter = Meter::new(&config.progress, "counting values of rows", rewriter.work_bytes());
            rewriter.prepare(&mut meter).map_err(|stop| self.stopped(&slot, stop))?;
            let (content, _) = self.front(&slot, rewriter).map_err(|e| self.stopped(&slot, e.into()))?;
            let at = slot.folder().display();
            warnings.push(format!(
                "{}: {}: a mount first writes its rows, once, {} in {at}",
                self.node.path(),
                self.reason,
                amount(self.bytes)
            ));
            return self.done(content, slot.entry_path(), None);
        }
        let _lock = slot.lock().map_err(|refusal| self.refused(refusal))?;
        if let Some(found) = slot.find(read) {
            return self.done(found.content, found.path, Some(found.file));
        }
        cache.wait_until_settled();
        self.check_unchanged(&state)?;
        tracing::info!(
            "{}: {}: writing its rows, {}, to {}",
            self.node.source().path().display(),
            self.reason,
            amount(self.bytes),
            slot.entry_path().display()
        );
        self.make(&slot, &state, rewriter).map_err(|stop| self.stopped(&slot, stop))?;
        match slot.find(read) {
            Some(found) => self.done(found.content, found.path, Some(found.file)),
            None => Err(self.node.refused("its rows were written but cannot be read back", "mount it again")),
        }
    }

    /// Makes the entry: from a draft that was left, or from the beginning.
    fn make<R: Rewriter>(&self, slot: &LargeSlot<'_>, source_state: &[u8; 32], rewriter: &mut R) -> Result<(), Stop> {
        let config = self.source().cache().rewrite();
        let what = format!("rewriting {} by rows, once", self.node.path());
        let mut meter = Meter::new(&config.progress, &what, rewriter.work_bytes().saturating_add(self.bytes));
        let read = |facts, sections: &mut Sections<'_>| Content::read(facts, sections, self.shape, self.dtype);
        let resumed =
            slot.resume::<Facts, Content, R::State>(read).filter(|(_, content, state)| rewriter.resume(content, state));
        let (draft, content, state) = match resumed {
            Some(resumed) => {
                tracing::info!(
                    "{}: going on with the rows that an earlier mount wrote",
                    self.source().path().display()
                );
                resumed
            }
            None => {
                rewriter.prepare(&mut meter)?;
                let (content, front) = self.front(slot, rewriter)?;
                let refused = |refusal| Stop::Source(self.refused(refusal));
                slot.check_room(front.file_bytes, true).map_err(refused)?;
                let mut head = Vec::new();
                if let Some(lengths) = &content.lengths {
                    lengths.to_entry(&mut head);
                }
                let draft = slot.begin(front, &head).map_err(refused)?;
                draft.checkpoint(rewriter.start())?;
                (draft, content, rewriter.start())
            }
        };
        rewriter.write(&draft, &content.places, state, &mut meter)?;
        let before = meter.done;
        let scale = |done: u64, all: u64, bytes: u64| u128::from(done) * u128::from(bytes) / u128::from(all.max(1));
        let file_bytes = draft.file_bytes();
        // What was read may be of two states of the source.
        self.check_unchanged(source_state)?;
        draft.finish(&mut |done| {
            meter.at(before.saturating_add(u64::try_from(scale(done, file_bytes, self.bytes)).unwrap_or(0)))
        })?;
        Ok(())
    }

    /// Front of the entry, and its content as far as it is known.
    fn front<R: Rewriter>(
        &self,
        slot: &LargeSlot<'_>,
        rewriter: &R,
    ) -> io::Result<(Content, crate::store::cache::Front)> {
        let (lengths, sizes) = rewriter.sections();
        let mut head = Vec::new();
        let facts = Facts {
            shape: self.shape,
            dtype: self.dtype.numpy_name().to_owned(),
            lengths: lengths.as_ref().map(|lengths| lengths.to_entry(&mut head)),
        };
        let lens: Vec<u64> = head.iter().map(|array| to_u64(array.len())).chain(sizes).collect();
        let n_head = head.len();
        let label = format!("rows of {} of {}", self.node.path(), self.source().path().display());
        let front = slot.front(&label, facts, &lens)?;
        let places = front.sections.get(n_head..).unwrap_or_default().to_vec();
        Ok((Content { lengths, places }, front))
    }

    fn check_unchanged(&self, state: &[u8; 32]) -> Result<(), OpenError> {
        if self.state()? == *state {
            return Ok(());
        }
        Err(self.node.refused("changed while its rows were written", "try again when its writer is done"))
    }

    fn stopped(&self, slot: &LargeSlot<'_>, stop: Stop) -> OpenError {
        match stop {
            Stop::Source(error) => error,
            Stop::Draft(error) => self.refused(slot.failed(&error)),
        }
    }

    fn done(
        &self,
        content: Content,
        path: PathBuf,
        file: Option<File>,
    ) -> Result<(OpenedLayout, Rewritten), OpenError> {
        let layout = content.layout(self.shape, self.dtype, &self.origins);
        let layout = layout.ok_or_else(|| self.node.refused("its rows are incomplete", "empty the cache folder"))?;
        let made_of = self.arrays.iter().map(|array| MadeOf::new(array)).collect();
        Ok((layout, Rewritten { path, file, made_of }))
    }

    /// Refuses matrices that claim to be much larger than what is stored of them.
    fn check_expansion(&self) -> Result<(), OpenError> {
        let stored: u64 = self.arrays.iter().map(|array| array.stored_bytes()).sum();
        if self.bytes > stored.saturating_mul(MAX_EXPANSION).max(SMALL_BYTES) {
            let reason = format!("{}; its rows would take {} bytes, {stored} are stored", self.reason, self.bytes);
            return Err(self.node.refused(&reason, "write it again by rows"));
        }
        Ok(())
    }
}

/// Tells how far the work is.
struct Meter {
    progress: Arc<dyn Progress>,
    done: u64,
}

impl Meter {
    fn new(progress: &Arc<dyn Progress>, what: &str, total_bytes: u64) -> Self {
        progress.begin(what, total_bytes);
        Self { progress: Arc::clone(progress), done: 0 }
    }

    fn at(&mut self, done_bytes: u64) {
        self.done = done_bytes;
        self.progress.at(done_bytes);
    }

    fn add(&mut self, bytes: u64) {
        self.at(self.done.saturating_add(bytes));
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.progress.end();
    }
}

/// Rewrites a CSC matrix.
///
/// # Errors
/// [`OpenError`] if it may not be rewritten, cannot be, or is damaged.
pub fn sparse(
    node: &dyn Node,
    shape: [u64; 2],
    csc: &Csc<'_>,
    warnings: &mut Vec<String>,
) -> Result<(OpenedLayout, Rewritten), OpenError> {
    let dtype = csc.data_type.dtype;
    let job = Job {
        node,
        shape,
        dtype,
        origins: [&csc.data, &csc.indices].map(|array| Origin { cut: None, total_bytes: array.total_bytes() }).to_vec(),
        arrays: vec![&csc.data, &csc.indices],
        bytes: rewritten_bytes(csc.data.dims[0], dtype, true),
        reason: "is stored by columns (csc), so that every row needs all of it".to_owned(),
    };
    job.check_expansion()?;
    let memory_bytes = node.source().cache().rewrite().memory_bytes;
    let mut rewriter = transpose::Transpose::new(node, csc, shape, memory_bytes)?;
    job.run(&mut rewriter, warnings)
}

/// Rewrites a dense matrix whose chunks cut its rows.
///
/// # Errors
/// As [`sparse`].
pub fn dense(
    node: &dyn Node,
    raw: &RawArray,
    stored: Stored,
    reason: String,
    warnings: &mut Vec<String>,
) -> Result<(OpenedLayout, Rewritten), OpenError> {
    let job = Job {
        node,
        shape: raw.dims,
        dtype: stored.dtype,
        origins: vec![Origin { cut: Some(raw.chunk[0]), total_bytes: raw.total_bytes() }],
        arrays: vec![raw],
        bytes: raw.total_bytes(),
        reason,
    };
    job.check_expansion()?;
    let memory_bytes = node.source().cache().rewrite().memory_bytes;
    let mut rewriter = stripes::Stripes::new(node, raw, stored, memory_bytes);
    job.run(&mut rewriter, warnings)
}
