//! Errors of opening a source and of reading its rows.

use std::io;
use std::path::{Path, PathBuf};

/// Why a source cannot be served. Its text is one line: file, element, reason, remedy.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The content cannot be served.
    #[error("{}: {element}: {reason}; {remedy}", file.display())]
    Refused {
        /// The file.
        file: PathBuf,
        /// The element inside it, such as `X/indptr` or `obs/cell_type`; `file` for the file as a whole.
        element: String,
        /// What is wrong.
        reason: String,
        /// What the user can do.
        remedy: String,
    },
    /// The operating system said no.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl OpenError {
    /// A refusal from its four parts.
    pub fn refused(
        file: &Path,
        element: impl Into<String>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::Refused { file: file.to_owned(), element: element.into(), reason: reason.into(), remedy: remedy.into() }
    }
}

/// Why rows could not be read after the source was opened. Cloneable, since one bad chunk answers many readers.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// The source changed under the mount.
    #[error("{}: changed since it was mounted; mount it again", file.display())]
    Stale {
        /// The file.
        file: PathBuf,
    },
    /// The operating system failed the read, or the file ended early.
    #[error("{}: read of {len} bytes at {offset}: {reason}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: usize,
        /// What the operating system said.
        reason: String,
    },
    /// A stored chunk is damaged.
    #[error("{}: {element}: chunk {chunk}: {reason}", file.display())]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// The array, such as `X/data`.
        element: String,
        /// Number of the chunk.
        chunk: u32,
        /// What is wrong.
        reason: String,
    },
    /// A value of a row is not legal.
    #[error("{}: {element}: row {row}: {reason}", file.display())]
    BadRow {
        /// The file.
        file: PathBuf,
        /// The array, such as `X/indices`.
        element: String,
        /// Global row id.
        row: u64,
        /// What is wrong.
        reason: String,
    },
    /// The prefix of a chunk that was read does not hold the needed elements.
    #[error("prefix too short")]
    Short,
}
