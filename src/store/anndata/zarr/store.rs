//! Where a zarr store lies: a folder, or a zip archive. Both give small documents as a whole, the names below a group, and the extents
//! of an array's chunks.
//!
//! Sizes and stamps of chunk files are taken here, once, when the array is opened. A chunk that is not there then reads as the fill value,
//! and one that was there and is gone later is an error, see [`OpenFiles`](crate::store::files::OpenFiles).

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use nix::dir::{Dir, Type};
use nix::fcntl::AtFlags;
use nix::sys::stat::{FileStat, fstatat};

use super::archive::{Archive, Member};
use super::beneath;
use super::keys::{ChunkNames, Keys};
use super::stamp;
use crate::num::to_usize;
use crate::store::anndata::node::{MAX_ATTR_BYTES, SourceFiles};
use crate::store::cache::{CacheConfig, SourceCache, hash_stamp};
use crate::store::chunk_map::ChunkFiles;
use crate::store::error::{OpenError, ReadError};
use crate::store::file::{SourceFile, Stamp};
use crate::store::files::{Files, StampHash, stamp_hash};

/// Most chunk files, or shards, of an array.
pub const MAX_CHUNK_FILES: u64 = 1 << 22;
/// Most entries of one folder that are listed.
const MAX_LISTED: usize = 1 << 20;

/// Where the stored bytes of a chunk (or of a shard) lie in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredChunk {
    /// First byte.
    pub address: u64,
    /// Number of bytes.
    pub len: u64,
    /// True if the archive compressed it.
    pub deflated: bool,
}

/// The chunks (or shards) of an array.
#[derive(Debug)]
pub struct StoredChunks {
    /// Their files.
    pub files: ChunkFiles,
    /// One per place of the grid; `None` where nothing is stored.
    pub chunks: Vec<Option<StoredChunk>>,
}

enum Place {
    Folder { root: Arc<Path>, dir: OwnedFd },
    Archive(Archive),
}

/// An open store.
pub struct ZarrStore {
    path: PathBuf,
    place: Place,
    files: RefCell<Files>,
    /// The chunk file that was read last.
    last: RefCell<Option<(u32, File)>>,
}

impl ZarrStore {
    /// Opens the folder at `path`.
    ///
    /// # Errors
    /// [`OpenError::Io`].
    pub fn folder(path: &Path) -> Result<Rc<Self>, OpenError> {
        let dir = beneath::folder(path).map_err(|source| OpenError::Io { file: path.to_owned(), source })?;
        let root: Arc<Path> = std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).into();
        Ok(Self::new(path, Place::Folder { root, dir }, Files::default()))
    }

    /// Opens the zip archive at `path`.
    ///
    /// # Errors
    /// [`OpenError`] if it is damaged.
    pub fn archive(path: &Path) -> Result<Rc<Self>, OpenError> {
        let file = SourceFile::open(path)?;
        let files = Files::one(&file);
        let archive = Archive::open(file)?;
        Ok(Self::new(path, Place::Archive(archive), files))
    }

    fn new(path: &Path, place: Place, files: Files) -> Rc<Self> {
        Rc::new(Self { path: path.to_owned(), place, files: RefCell::new(files), last: RefCell::new(None) })
    }

    /// What is kept of it in the cache folder.
    pub fn cache(&self, config: &CacheConfig) -> SourceCache {
        match &self.place {
            Place::Archive(archive) => SourceCache::new(config, archive.file()),
            Place::Folder { root, .. } => {
                let root = Arc::clone(root);
                SourceCache::of(config, &self.path, Box::new(move || stamp::of_folder(&root)))
            }
        }
    }

    /// Its path, as given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True for a zip archive.
    pub fn is_archive(&self) -> bool {
        matches!(self.place, Place::Archive(_))
    }

    /// Bytes of the archive; 0 for a folder, whose files count when they are looked at.
    pub fn archive_bytes(&self) -> u64 {
        match &self.place {
            Place::Archive(archive) => archive.size_bytes(),
            Place::Folder { .. } => 0,
        }
    }

    /// The files that arrays were opened with.
    pub fn take_files(&self) -> Files {
        self.files.take()
    }

    /// The archive changed since it was opened.
    ///
    /// # Errors
    /// [`OpenError::Refused`].
    pub fn check_unchanged(&self) -> Result<(), OpenError> {
        match &self.place {
            Place::Archive(archive) => archive.check_unchanged(),
            Place::Folder { .. } => Ok(()),
        }
    }

    fn fault(&self, key: &str, error: io::Error) -> OpenError {
        if beneath::leads_out(&error) {
            let remedy = "a store may only hold what is below its folder: copy the data into it";
            return OpenError::refused(&self.path, key, "link out of the store", remedy);
        }
        OpenError::Io { file: self.path.join(key), source: error }
    }

    /// The document `key`; `None` if there is none.
    ///
    /// # Errors
    /// [`OpenError`] if it leads out of the store, is larger than a document may be, or cannot be read.
    pub fn document(&self, key: &str) -> Result<Option<Vec<u8>>, OpenError> {
        let too_large = |len: u64| {
            let reason = format!("a document of {len} bytes");
            Err(OpenError::refused(&self.path, key, reason, "write the store again"))
        };
        match &self.place {
            Place::Archive(archive) => match archive.member(key)? {
                Some(member) if member.size > MAX_ATTR_BYTES => too_large(member.size),
                Some(member) => archive.read(key, &member).map(Some),
                None => Ok(None),
            },
            Place::Folder { dir, .. } => {
                let file = match beneath::file(dir.as_fd(), Path::new(key)) {
                    Ok(file) => file,
                    Err(error) if beneath::is_absent(&error) => return Ok(None),
                    Err(error) => return Err(self.fault(key, error)),
                };
                let found = file.metadata().map_err(|e| self.fault(key, e))?;
                if !found.is_file() {
                    return Ok(None);
                }
                if found.len() > MAX_ATTR_BYTES {
                    return too_large(found.len());
                }
                let mut bytes = vec![0; to_usize(found.len())];
                file.read_exact_at(&mut bytes, 0).map_err(|e| self.fault(key, e))?;
                Ok(Some(bytes))
            }
        }
    }

    /// Names of the folders below `key`, sorted.
    ///
    /// # Errors
    /// [`OpenError`] if the folder leads out of the store or cannot be listed.
    pub fn folders(&self, key: &str) -> Result<Vec<String>, OpenError> {
        match &self.place {
            Place::Archive(archive) => Ok(archive.folders(key)),
            Place::Folder { dir, .. } => {
                let listed = if key.is_empty() { "." } else { key };
                let names = beneath::subfolder(dir.as_fd(), Path::new(listed)).and_then(list_folders);
                names.map_err(|e| self.fault(key, e))
            }
        }
    }

    /// Finds the chunks of the array `array` in a grid of `grid` chunks.
    ///
    /// # Errors
    /// [`OpenError`] if a chunk leads out of the store, is not a file, or there are too many.
    pub fn chunks(&self, array: &str, keys: Keys, grid: [u64; 2]) -> Result<StoredChunks, OpenError> {
        let n = grid[0].saturating_mul(grid[1]);
        if n > MAX_CHUNK_FILES {
            let reason = format!("is cut into {n} chunk files");
            return Err(OpenError::refused(&self.path, array, reason, "write it again with larger chunks or shards"));
        }
        match &self.place {
            Place::Archive(archive) => {
                let mut chunks = Vec::with_capacity(to_usize(n));
                for key in all_keys(array, keys, grid) {
                    chunks.push(match archive.member(&key)? {
                        Some(member) => Some(archive.locate(&key, &member)?),
                        None => None,
                    });
                }
                Ok(StoredChunks { files: ChunkFiles::one(0), chunks })
            }
            Place::Folder { root, dir } => self.chunk_files(root, dir, array, keys, grid),
        }
    }

    fn chunk_files(
        &self,
        root: &Arc<Path>,
        dir: &OwnedFd,
        array: &str,
        keys: Keys,
        grid: [u64; 2],
    ) -> Result<StoredChunks, OpenError> {
        let mut seen = Vec::new();
        let mut only = None;
        if grid == [1, 1] {
            // Small arrays are read at once: opening tells what `stat` would.
            for key in all_keys(array, keys, grid) {
                only = self.open_chunk(dir, &key)?;
                seen.push(only.as_ref().map(|(_, stamp)| *stamp));
            }
        } else {
            let mut finder = Finder { store: self, root: dir, folder: None };
            for key in all_keys(array, keys, grid) {
                seen.push(finder.stamp(&key)?);
            }
        }
        let chunks = seen.iter().map(|stamp| stamp.map(whole_file)).collect();
        let stamps: Box<[StampHash]> = seen.iter().map(|stamp| stamp.as_ref().and_then(stamp_hash)).collect();
        let grid_cols = u32::try_from(grid[1]).unwrap_or(u32::MAX);
        let names = ChunkNames { root: Arc::clone(root), array: array.into(), keys, grid_cols };
        let Some(first) = self.files.borrow_mut().add_run(Arc::new(names), stamps) else {
            return Err(OpenError::refused(&self.path, array, "more than 2^32 chunk files", "leave it out"));
        };
        if let Some((file, _)) = only {
            self.last.replace(Some((first, file)));
        }
        Ok(StoredChunks { files: ChunkFiles { first, per_file: Some([1, 1]) }, chunks })
    }

    /// Opens a chunk file; `None` if there is none.
    fn open_chunk(&self, dir: &OwnedFd, key: &str) -> Result<Option<(File, Stamp)>, OpenError> {
        match beneath::file(dir.as_fd(), Path::new(key)) {
            Ok(file) => {
                let found = file.metadata().map_err(|e| self.fault(key, e))?;
                if !found.is_file() {
                    return Err(self.not_a_file(key));
                }
                let stamp = Stamp::of_metadata(&found);
                Ok(Some((file, stamp)))
            }
            Err(error) if beneath::is_absent(&error) => Ok(None),
            Err(error) => Err(self.fault(key, error)),
        }
    }

    fn not_a_file(&self, key: &str) -> OpenError {
        OpenError::refused(&self.path, key, "is not a regular file", "write the store again")
    }
}

impl SourceFiles for ZarrStore {
    fn total_bytes(&self) -> u64 {
        match &self.place {
            Place::Archive(archive) => archive.size_bytes(),
            Place::Folder { root, .. } => stamp::size_of_folder(root),
        }
    }

    fn state(&self, files: &[Range<u32>]) -> Result<[u8; 32], ReadError> {
        if let Place::Archive(archive) = &self.place {
            return archive.state();
        }
        let mut hash = blake3::Hasher::new();
        for file in files.iter().cloned().flatten() {
            match self.files.borrow().check(file)? {
                Some(stamp) => hash_stamp(&stamp, &mut hash),
                None => drop(hash.update(b"absent")),
            }
        }
        Ok(*hash.finalize().as_bytes())
    }

    fn read_at(&self, file: u32, offset: u64, buf: &mut [u8]) -> Result<(), ReadError> {
        if let Place::Archive(archive) = &self.place {
            return archive.read_at(offset, buf);
        }
        let (len, path) = (buf.len(), || self.files.borrow().path(file));
        let failed = |e: io::Error| ReadError::Io { file: path(), offset, len, reason: e.to_string() };
        let mut last = self.last.borrow_mut();
        if last.as_ref().is_none_or(|(open, _)| *open != file) {
            *last = Some((file, self.files.borrow().open(file).map_err(failed)?));
        }
        let Some((_, open)) = last.as_ref() else { return Ok(()) };
        open.read_exact_at(buf, offset).map_err(failed)
    }
}

fn whole_file(stamp: Stamp) -> StoredChunk {
    StoredChunk { address: 0, len: stamp.size, deflated: false }
}

/// Keys of all places of the grid, row by row, relative to the store.
fn all_keys(array: &str, keys: Keys, grid: [u64; 2]) -> impl Iterator<Item = String> + '_ {
    (0..grid[0]).flat_map(move |i| (0..grid[1]).map(move |j| (i, j))).map(move |(i, j)| {
        let key = keys.of(i, j);
        if array.is_empty() { key } else { format!("{array}/{key}") }
    })
}

/// Asks for the stamps of many files, most of which lie in the same folder as the one before.
struct Finder<'a> {
    store: &'a ZarrStore,
    root: &'a OwnedFd,
    /// The folder that was asked last, `None` inside if there is none.
    folder: Option<(String, Option<OwnedFd>)>,
}

impl Finder<'_> {
    /// The stamp of the file `key`; `None` if there is none.
    fn stamp(&mut self, key: &str) -> Result<Option<Stamp>, OpenError> {
        let (folder, name) = key.rsplit_once('/').unwrap_or((".", key));
        if self.folder.as_ref().is_none_or(|(open, _)| open != folder) {
            let opened = match beneath::subfolder(self.root.as_fd(), Path::new(folder)) {
                Ok(opened) => Some(opened),
                Err(error) if beneath::is_absent(&error) => None,
                Err(error) => return Err(self.store.fault(key, error)),
            };
            self.folder = Some((folder.to_owned(), opened));
        }
        let Some((_, Some(opened))) = &self.folder else { return Ok(None) };
        match fstatat(opened, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(found) if found.st_mode & libc::S_IFMT == libc::S_IFREG => Ok(Some(stamp_of(&found))),
            // A link may lead anywhere; opening it tells.
            Ok(found) if found.st_mode & libc::S_IFMT == libc::S_IFLNK => {
                Ok(self.store.open_chunk(self.root, key)?.map(|(_, stamp)| stamp))
            }
            Ok(_) => Err(self.store.not_a_file(key)),
            Err(error) if beneath::is_absent(&error.into()) => Ok(None),
            Err(error) => Err(self.store.fault(key, error.into())),
        }
    }
}

fn stamp_of(found: &FileStat) -> Stamp {
    let size = u64::try_from(found.st_size).unwrap_or(0);
    Stamp { device: found.st_dev, inode: found.st_ino, size, mtime: (found.st_mtime, found.st_mtime_nsec) }
}

/// Names of the folders in `folder`. A link counts as one: what it leads to shows when it is opened.
fn list_folders(folder: OwnedFd) -> io::Result<Vec<String>> {
    let mut names = BTreeSet::new();
    for entry in Dir::from_fd(folder)?.iter() {
        let entry = entry?;
        if matches!(entry.file_type(), Some(Type::Directory | Type::Symlink) | None)
            && let Ok(name) = entry.file_name().to_str()
            && !matches!(name, "." | "..")
        {
            names.insert(name.to_owned());
        }
        if names.len() > MAX_LISTED {
            return Err(io::Error::other("too many entries"));
        }
    }
    Ok(names.into_iter().collect())
}

/// The extent of a member whose data begin at `address`.
pub fn member_chunk(member: &Member, address: u64) -> StoredChunk {
    StoredChunk { address, len: member.stored, deflated: member.deflated }
}

/// Sum of the stored sizes.
pub fn stored_bytes(chunks: &[Option<StoredChunk>]) -> u64 {
    chunks.iter().flatten().fold(0, |sum: u64, chunk| sum.saturating_add(chunk.len))
}
