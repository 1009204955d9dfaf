//! Errors as the reader sees them: one exhaustive match gives the errno, one the log level, and warnings are limited.
//!
//! A walk over damaged data would write a line per file; after [`BURST`] warnings within [`PERIOD`] the rest is counted,
//! and the number is told with the first warning of a later period.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::Level;

use crate::store::ReadError;
use crate::window::BatchError;

/// Why an operation on the tree failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ViewError {
    /// No node has this name or number.
    #[error("no such name")]
    NoEntry,
    /// The node is a file.
    #[error("not a directory")]
    NotDirectory,
    /// The node is a directory.
    #[error("is a directory")]
    IsDirectory,
    /// An open for writing.
    #[error("the tree is read-only")]
    ReadOnly,
    /// A file handle that was never given out, or was released.
    #[error("no such open file")]
    BadHandle,
    /// Too many files are open at once.
    #[error("{limit} files are open already")]
    TooManyOpen {
        /// The limit.
        limit: usize,
    },
    /// The batch could not be assembled.
    #[error("{path}: {source}")]
    Batch {
        /// Path of the batch in the tree.
        path: String,
        /// What the engine says.
        source: BatchError,
    },
    /// The engine's image of a batch does not have the size that was promised.
    #[error("{path}: the image has {found} bytes, its size is {expected}")]
    WrongSize {
        /// Path of the batch in the tree.
        path: String,
        /// The size in the attributes.
        expected: u64,
        /// The size of the image.
        found: u64,
    },
    /// The engine dropped the request without an answer.
    #[error("{path}: internal error: the request was dropped")]
    Dropped {
        /// Path of the batch in the tree.
        path: String,
    },
    /// A defect of this program, caught at the boundary of an operation.
    #[error("internal error: {what}")]
    Panicked {
        /// The panic's message.
        what: String,
    },
}

/// The errno of an error. There is no `_` arm: a new variant does not compile until somebody decides its errno.
#[must_use]
pub fn errno(error: &ViewError) -> i32 {
    match error {
        ViewError::NoEntry => libc::ENOENT,
        ViewError::NotDirectory => libc::ENOTDIR,
        ViewError::IsDirectory => libc::EISDIR,
        ViewError::ReadOnly => libc::EROFS,
        ViewError::BadHandle => libc::EBADF,
        ViewError::TooManyOpen { .. } => libc::ENFILE,
        ViewError::Batch { source, .. } => match source {
            BatchError::Read(read) => match read {
                ReadError::Stale { .. } => libc::ESTALE,
                ReadError::Io { .. } | ReadError::Corrupt { .. } | ReadError::BadRow { .. } | ReadError::Short => {
                    libc::EIO
                }
            },
            // Not EAGAIN: Python makes that a BlockingIOError, on a regular file.
            BatchError::NoMemory { .. } => libc::ENOMEM,
            // What the kernel says for requests that are still open when the mount ends.
            BatchError::ShuttingDown => libc::ECONNABORTED,
            BatchError::Timeout { .. } | BatchError::Internal { .. } => libc::EIO,
        },
        ViewError::WrongSize { .. } | ViewError::Dropped { .. } | ViewError::Panicked { .. } => libc::EIO,
    }
}

/// How loud an error is in the log.
#[must_use]
pub fn level(error: &ViewError) -> Level {
    match error {
        ViewError::NoEntry
        | ViewError::NotDirectory
        | ViewError::IsDirectory
        | ViewError::ReadOnly
        | ViewError::BadHandle => Level::DEBUG,
        ViewError::Batch { source: BatchError::ShuttingDown, .. } => Level::DEBUG,
        ViewError::TooManyOpen { .. } | ViewError::Batch { .. } => Level::WARN,
        ViewError::WrongSize { .. } | ViewError::Dropped { .. } | ViewError::Panicked { .. } => Level::ERROR,
    }
}

/// Warnings in a period.
pub const BURST: u32 = 10;
/// Length of a period.
pub const PERIOD: Duration = Duration::from_secs(30);

/// Writes errors to the log.
#[derive(Debug, Default)]
pub struct Reporter {
    limiter: Mutex<Limiter>,
}

impl Reporter {
    /// Logs a failed operation at its level, warnings at most [`BURST`] times per [`PERIOD`], and returns the errno.
    pub fn report(&self, op: &'static str, error: &ViewError) -> i32 {
        let level = level(error);
        if level == Level::DEBUG {
            tracing::debug!("{op}: {error}");
            return errno(error);
        }
        match self.limiter.lock().admit(Instant::now()) {
            Admitted::Silent => {}
            Admitted::Told { suppressed } => {
                if suppressed > 0 {
                    tracing::warn!("{suppressed} more failed operations were not logged");
                }
                if level == Level::ERROR {
                    tracing::error!("{op}: {error}");
                } else {
                    tracing::warn!("{op}: {error}");
                }
            }
        }
        errno(error)
    }
}

/// Lets [`BURST`] events through per [`PERIOD`].
#[derive(Debug, Default)]
struct Limiter {
    period_start: Option<Instant>,
    n_told: u32,
    n_suppressed: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Admitted {
    Silent,
    Told { suppressed: u64 },
}

impl Limiter {
    fn admit(&mut self, now: Instant) -> Admitted {
        let fresh = self.period_start.is_none_or(|start| now.saturating_duration_since(start) >= PERIOD);
        if fresh {
            self.period_start = Some(now);
            self.n_told = 0;
        }
        if self.n_told == BURST {
            self.n_suppressed += 1;
            return Admitted::Silent;
        }
        self.n_told += 1;
        Admitted::Told { suppressed: std::mem::take(&mut self.n_suppressed) }
    }
}

/// The message of a panic, as far as it is text.
#[must_use]
pub fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn readers_see_the_errno_of_the_cause() {
        let of = |source| errno(&ViewError::Batch { path: "epoch-00000/batch-0000000.npz".into(), source });
        assert_eq!(of(BatchError::Read(ReadError::Stale { file: PathBuf::from("a") })), libc::ESTALE);
        assert_eq!(of(BatchError::NoMemory { waited_s: 3 }), libc::ENOMEM);
        assert_eq!(of(BatchError::Timeout { waited_s: 3 }), libc::EIO);
        assert_eq!(errno(&ViewError::TooManyOpen { limit: 4 }), libc::ENFILE);
        assert_eq!(level(&ViewError::NoEntry), Level::DEBUG);
    }

    #[test]
    fn warnings_are_limited_and_the_rest_is_counted() {
        let mut limiter = Limiter::default();
        let start = Instant::now();
        for i in 0..BURST {
            let at = start + Duration::from_secs(u64::from(i));
            assert_eq!(limiter.admit(at), Admitted::Told { suppressed: 0 });
        }
        for _ in 0..7 {
            assert_eq!(limiter.admit(start + PERIOD - Duration::from_millis(1)), Admitted::Silent);
        }
        assert_eq!(limiter.admit(start + PERIOD), Admitted::Told { suppressed: 7 });
        assert_eq!(limiter.admit(start + PERIOD), Admitted::Told { suppressed: 0 });
    }
}
