//! A file of a source while the source is opened: read-only, stamped, and only ever `pread`.
//!
//! A mapped source that shrinks kills the process, so every byte is read. What is served later is read through
//! [`OpenFiles`](super::files::OpenFiles), by the stamp that was taken here.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::error::{OpenError, ReadError};

/// What identifies the content of a file as far as the file system tells: if any of it changes, nothing more is served.
/// The change time is left out: it also moves on chmod, chown and hard-link backups, which change no byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Modification time: seconds and nanoseconds.
    pub mtime: (i64, i64),
}

impl Stamp {
    /// Stamp of an open file.
    ///
    /// # Errors
    /// What `fstat` says.
    pub fn of(file: &File) -> io::Result<Self> {
        Ok(Self::of_metadata(&file.metadata()?))
    }

    /// Stamp from what `fstat` told.
    #[must_use]
    pub fn of_metadata(m: &Metadata) -> Self {
        Self { device: m.dev(), inode: m.ino(), size: m.size(), mtime: (m.mtime(), m.mtime_nsec()) }
    }
}

/// One source file: a read-only descriptor and its stamp.
#[derive(Debug)]
pub struct SourceFile {
    path: PathBuf,
    file: File,
    stamp: Stamp,
}

impl SourceFile {
    /// Opens `path` for reading and takes its stamp.
    ///
    /// # Errors
    /// [`OpenError::Io`] if it cannot be opened.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let open = || -> io::Result<Self> {
            let file = File::open(path)?;
            let stamp = Stamp::of(&file)?;
            Ok(Self { path: path.to_owned(), file, stamp })
        };
        open().map_err(|source| OpenError::Io { file: path.to_owned(), source })
    }

    /// Path it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Stamp at the time of opening.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// The descriptor, for who reads it by other means.
    #[must_use]
    pub fn as_file(&self) -> &File {
        &self.file
    }

    /// Fills `buf` from `offset`, or fails.
    ///
    /// # Errors
    /// [`ReadError::Stale`] if the file changed and is too short now, [`ReadError::Io`] for every other failure.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), ReadError> {
        self.file.read_exact_at(buf, offset).map_err(|e| match self.check_unchanged() {
            Err(stale) => stale,
            Ok(()) => ReadError::Io { file: self.path.clone(), offset, len: buf.len(), reason: e.to_string() },
        })
    }

    /// Compares the stamp with the one taken at opening.
    ///
    /// # Errors
    /// [`ReadError::Stale`] if they differ or the file cannot be asked.
    pub fn check_unchanged(&self) -> Result<(), ReadError> {
        match Stamp::of(&self.file) {
            Ok(now) if now == self.stamp => Ok(()),
            _ => Err(ReadError::Stale { file: self.path.clone() }),
        }
    }
}
