//! The cache folder: what took long to find out about a large source, for the next mount of it.
//!
//! Row lengths, chunk maps, columns and names are pieces. A piece of a large source is written into a file of its own (see
//! [`entry`]) when it was read for the first time, and mapped from then on: it costs no memory of the process, and the next
//! open finds it there. Pieces do not depend on what else was selected.
//!
//! An entry belongs to a canonical path, to a stamp of the file (inode, size, modification time, hash of its first and last
//! 4 KiB; the device number is left out, since it changes when a network or a removable disk is mounted again), and to a format
//! version. The stamp of a zarr store in a folder is that of all its files. An entry is used if all of it is right, down to the checksum over every byte; otherwise the piece is read from the
//! source again and the entry replaced. Entries are written beside and renamed, never modified. Whatever goes wrong with
//! writing one is a warning, and the piece stays in memory.
//!
//! Matrices that row blocks cannot serve are rewritten by rows into the folder, see [`large`].
//!
//! Small pieces are not worth an entry: below a million rows (65,536 chunks) nothing is looked up and nothing written. Nor are
//! pieces of a file that was modified a moment ago: its next modification might leave the same stamp.

mod entry;
mod folder;
mod large;
#[cfg(test)]
mod tests;

use std::cell::{OnceCell, RefCell};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::file::{SourceFile, Stamp};
use crate::num::to_usize;
use entry::Identity;
use folder::Folder;

pub use entry::{Front, Sections};
pub use folder::{LARGE_FREE_SHARE, free_bytes};
pub use large::{Draft, LargeSlot, Progress, Refusal, RewriteConfig, amount};

/// Rows of a piece that is worth an entry.
const MIN_ROWS: u64 = 1_000_000;
/// Most bytes of all entries.
const MAX_BYTES: u64 = 20 << 30;
/// Rows that cost about as much as one chunk to find out about.
const ROWS_PER_CHUNK: u64 = 16;
/// How long a file must have been left alone before what was read from it is kept.
const SETTLED: Duration = Duration::from_secs(2);
/// Bytes hashed at the beginning and at the end of a file.
const EDGE_BYTES: u64 = 4096;

/// Which folder is the cache, if any, and what is worth an entry.
#[derive(Debug, Clone)]
pub struct CacheConfig {
    /// The folder. `None`: there is none, which is worth a warning where one would have been used.
    pub folder: Option<PathBuf>,
    /// Rows from which on a piece is kept, see [`CacheConfig::DEFAULT_MIN_ROWS`].
    pub min_rows: u64,
    /// Most bytes of all entries; never more than a tenth of the free space. Rewritten matrices have a limit of their own.
    pub max_bytes: u64,
    /// How matrices are rewritten.
    pub rewrite: RewriteConfig,
}

impl CacheConfig {
    /// Rows below which a piece is read again faster than it is worth keeping.
    pub const DEFAULT_MIN_ROWS: u64 = MIN_ROWS;
    /// Bytes that all entries may take.
    pub const DEFAULT_MAX_BYTES: u64 = MAX_BYTES;

    /// Nothing is kept, and nothing is said about it.
    #[must_use]
    pub fn off() -> Self {
        Self { folder: None, min_rows: u64::MAX, max_bytes: 0, rewrite: RewriteConfig::default() }
    }
}

/// What can be kept in an entry: numbers in sections, and some facts about them.
pub trait Cacheable: Sized {
    /// What is not an array.
    type Facts: Serialize + DeserializeOwned;

    /// Appends the arrays, and returns the facts.
    fn to_entry<'a>(&'a self, sections: &mut Vec<&'a [u8]>) -> Self::Facts;

    /// The same from an entry: takes the arrays in the order in which they were appended. `None` if they do not fit the facts.
    fn from_entry(facts: Self::Facts, sections: &mut Sections<'_>) -> Option<Self>;
}

/// The stamp of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Hash of what identifies its content.
    pub hash: [u8; 32],
    /// When it was modified, in seconds.
    pub modified: i64,
}

impl Taken {
    /// For how long the source has been left alone; zero if its time of modification is ahead of the clock.
    fn age(&self) -> Duration {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let modified = Duration::from_secs(u64::try_from(self.modified).unwrap_or(0));
        now.checked_sub(modified).unwrap_or_default()
    }
}

/// The entries of one source.
pub struct SourceCache {
    config: CacheConfig,
    path: PathBuf,
    /// Stamp of the source, once it was needed; `None` if it could not be read, and then nothing is kept.
    stamp: OnceCell<Option<Taken>>,
    /// Takes it, where it was not taken at once.
    take: Option<Box<dyn Fn() -> Option<Taken>>>,
    trouble: RefCell<Option<String>>,
}

impl SourceCache {
    /// The entries of the file `file`, which was just opened.
    #[must_use]
    pub fn new(config: &CacheConfig, file: &SourceFile) -> Self {
        let cache = Self::new_at(config, file.path(), None);
        let stamp = if config.min_rows == u64::MAX { None } else { stamp(file) };
        // Taken before anything else is read of the file.
        let _ = cache.stamp.set(stamp);
        cache
    }

    /// The entries of the source at `path`, whose stamp is taken when it is first needed.
    #[must_use]
    pub fn of(config: &CacheConfig, path: &Path, take: Box<dyn Fn() -> Option<Taken>>) -> Self {
        Self::new_at(config, path, Some(take))
    }

    fn new_at(config: &CacheConfig, path: &Path, take: Option<Box<dyn Fn() -> Option<Taken>>>) -> Self {
        // Small sources are many, and do not need it.
        let path = match config.min_rows {
            u64::MAX => PathBuf::new(),
            _ => path.canonicalize().unwrap_or_else(|_| path.to_owned()),
        };
        Self { config: config.clone(), path, stamp: OnceCell::new(), take, trouble: RefCell::new(None) }
    }

    /// True if the source is what it was when entries were looked up for it. To be asked when everything was read, where the stamp was
    /// not taken at once.
    #[must_use]
    pub fn is_current(&self) -> bool {
        match (&self.take, self.stamp.get()) {
            (Some(take), Some(Some(stamp))) => take().as_ref() == Some(stamp),
            _ => true,
        }
    }

    /// The stamp of the source, taken now if it was not yet.
    fn stamp(&self) -> Option<&Taken> {
        self.stamp.get_or_init(|| self.take.as_ref().and_then(|take| take())).as_ref()
    }

    /// The piece `name` of `n_rows` rows: from its entry, or from `read`, which is then kept.
    ///
    /// # Errors
    /// What `read` returns.
    pub fn rows<T: Cacheable, E>(&self, name: &str, n_rows: u64, read: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        if n_rows < self.config.min_rows {
            return read();
        }
        let Some(folder) = self.folder() else { return read() };
        let Some(stamp) = self.stamp() else { return read() };
        let identity = Identity::new(self.path.as_os_str().as_bytes(), &stamp.hash, name);
        let label = format!("{} of {}", name, self.path.display());
        let path = folder.entry_path(&identity);
        match entry::open(&path, &identity) {
            Ok(Some(piece)) => {
                tracing::debug!("cache: {label} from {}", path.display());
                return Ok(piece);
            }
            Ok(None) => {}
            Err(why) => tracing::info!("cache: {} is not used ({why}), {label} is read again", path.display()),
        }
        let piece = read()?;
        if stamp.age() < SETTLED || self.trouble.borrow().is_some() {
            return Ok(piece);
        }
        match folder.keep(&path, &identity, &label, &piece) {
            // From now on the file is mapped, and the memory of what was read is free again.
            Ok(()) => Ok(entry::open(&path, &identity).ok().flatten().unwrap_or(piece)),
            Err(why) => {
                let said = format!("cache folder: {why}; the next mount reads the index again (see --cache-dir)");
                *self.trouble.borrow_mut() = Some(said);
                Ok(piece)
            }
        }
    }

    /// As [`SourceCache::rows`] for the chunk table of an array of `n_chunks` chunks.
    ///
    /// # Errors
    /// What `read` returns.
    pub fn chunks<T: Cacheable, E>(
        &self,
        name: &str,
        n_chunks: u64,
        read: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.rows(name, n_chunks.saturating_mul(ROWS_PER_CHUNK), read)
    }

    /// What went wrong, once.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.trouble.borrow().clone()
    }

    fn folder(&self) -> Option<Folder<'_>> {
        let folder = self.config.folder.as_deref().map(|path| Folder::new(path, self.config.max_bytes));
        if folder.is_none() {
            let said = "cache folder: none (neither --cache-dir, $XDG_CACHE_HOME nor $HOME is given); \
                        the next mount reads the index again";
            self.trouble.borrow_mut().get_or_insert_with(|| said.to_owned());
        }
        folder
    }
}

/// What identifies the content of a file that was just opened, and when it was modified.
fn stamp(file: &SourceFile) -> Option<Taken> {
    Some(Taken { hash: content_stamp(file)?, modified: file.stamp().mtime.0 })
}

/// Hash of what identifies the content of a file: inode, size, modification time, first and last bytes. `None` if these cannot be read.
#[must_use]
pub fn content_stamp(file: &SourceFile) -> Option<[u8; 32]> {
    let stamp = file.stamp();
    let mut hash = blake3::Hasher::new();
    hash_stamp(&stamp, &mut hash);
    let mut edge = vec![0; to_usize(EDGE_BYTES.min(stamp.size))];
    for offset in [0, stamp.size.saturating_sub(EDGE_BYTES)] {
        file.read_at(offset, &mut edge).ok()?;
        hash.update(&edge);
    }
    Some(*hash.finalize().as_bytes())
}

/// Adds inode, size and modification time to a hash.
pub fn hash_stamp(stamp: &Stamp, hash: &mut blake3::Hasher) {
    hash.update(&stamp.inode.to_le_bytes());
    hash.update(&stamp.size.to_le_bytes());
    hash.update(&stamp.mtime.0.to_le_bytes());
    hash.update(&stamp.mtime.1.to_le_bytes());
}

/// The folder that is used if none is given: `$XDG_CACHE_HOME/shufflefs`, else `$HOME/.cache/shufflefs`. Relative values do not
/// count, as the XDG specification says.
#[must_use]
pub fn default_folder(xdg_cache_home: Option<&Path>, home: Option<&Path>) -> Option<PathBuf> {
    let absolute = |path: &&Path| path.is_absolute();
    let parent = xdg_cache_home.filter(absolute).map(Path::to_owned);
    let parent = parent.or_else(|| home.filter(absolute).map(|home| home.join(".cache")));
    parent.map(|parent| parent.join("shufflefs"))
}
