//! The engine.

pub mod image;

pub use image::Image;

use crate::order::Pass;
use crate::store::ReadError;

/// One batch of one pass over the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BatchId {
    /// The epoch, or the source order.
    pub pass: Pass,
    /// Number of the batch in the pass.
    pub batch: u64,
}

/// Why a batch could not be opened. Cloneable, since one failure answers many readers.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BatchError {
    /// A row of the batch could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Other readers hold the memory.
    #[error("no memory for the batch after waiting {waited_s} s: close batch files, or raise --memory")]
    NoMemory {
        /// Seconds waited.
        waited_s: u64,
    },
    /// No progress was made for the batch in time.
    #[error("no progress for {waited_s} s (--timeout)")]
    Timeout {
        /// Seconds waited.
        waited_s: u64,
    },
    /// The mount is ending.
    #[error("the mount is ending")]
    ShuttingDown,
    /// A defect of this program, caught at the boundary of a task.
    #[error("internal error: {what}")]
    Internal {
        /// What happened.
        what: String,
    },
}

/// What answers an open: called exactly once, from any thread.
pub type OpenReply = Box<dyn FnOnce(Result<Image, BatchError>) + Send>;

/// What the tree needs from the engine. One seam, so that the tree is tested without sources.
pub trait Batches: Send + Sync {
    /// Exact size of the batch file, from row lengths alone: no value is read.
    fn size_bytes(&self, id: BatchId) -> u64;

    /// Assembles the batch, or joins an assembly under way, and replies. Never blocks.
    fn open(&self, id: BatchId, reply: OpenReply);

    /// The state of the engine as a JSON document, for `status.json`.
    fn status_json(&self) -> serde_json::Value;

    /// One line per failed batch, for `errors.tsv`.
    fn errors_tsv(&self) -> String;
}
