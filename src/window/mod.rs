//! The engine: from a row order to finished batch files in memory.
//!
//! For a window the [`order`](crate::order) gives which row goes to which slot of which batch; the [layouts](crate::batch) give where the row's
//! values go in the batch's image; the [`store`](crate::store) gives in which chunks they are and where those lie. The
//! [plan] turns this into coalesced reads. [Worker threads](worker) decode each chunk once into a reused buffer and copy every
//! row's slice straight to its final place: one copy per value after decoding. Every batch counts the pieces it still misses; the piece that
//! brings the count to zero [finishes](assembly) the batch and answers whoever waits for it, so an open waits for its batch and
//! not for the window.
//!
//! ```text
//! open -> stream (window or batch?) -> state (jobs, slots) -> threads -> plan -> worker -> assembly -> deliver -> reply
//!                                                               \-> arena (memory of images, one reservation)
//! ```
//!
//! Reading in order, a reader finds the next window assembled when it gets there: each open of a [stream] queues the window after
//! its own, across the end of an epoch. An isolated open assembles its own batch. When memory is short, windows are
//! assembled in groups of batches, down to the one that is waited for: slower, same bytes.

pub mod arena;
pub mod assembly;
pub mod bad;
pub mod cost;
pub mod counters;
pub mod decode_only;
pub mod engine;
mod errors;
mod hints;
pub mod image;
pub mod kept;
pub mod plan;
pub mod records;
pub mod sizes;
pub mod state;
pub mod stream;
mod threads;
mod wake;
pub mod worker;

pub use counters::CounterValues;
pub use engine::{Engine, EngineConfig};
pub use errors::Failure;
pub use image::Image;

use crate::order::{Pass, RankPolicy};
use crate::store::ReadError;

/// Of batches that were read, a window divided by this is kept before their memory is used again.
pub const KEPT_PART: u64 = 8;

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

    /// Hints that readers are going to deal windows among this many hosts: what is assembled ahead is then every so-many-th window. Wrong
    /// hints cost nothing but a wrong first guess.
    fn expect_hosts(&self, _n_hosts: u32, _policy: RankPolicy) {}

    /// The state of the engine as a JSON document, for `status.json`.
    fn status_json(&self) -> serde_json::Value;

    /// The last failures that readers saw, oldest first, for `errors.tsv`.
    fn failures(&self) -> Vec<Failure>;
}

#[cfg(test)]
mod tests;
