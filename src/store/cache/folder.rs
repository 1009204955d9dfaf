//! The folder of entries: where they lie, how one gets there, and how much room they take.
//!
//! All small entries together stay below a limit (20 GiB) and below a tenth of the free space (what they take counted as free). Large ones
//! (rewritten matrices, see [`super::large`]) have a limit of their own, a fifth of the free space, unless the user named the folder. To
//! make room, those that were not used for longest are removed; a process that has one mapped keeps it, and a large one that a mount
//! reads is locked and stays. Several processes may use the folder at once: what appears under the name of an entry is always
//! complete, and of two that are written at the same time the last one stays.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use super::Cacheable;
use super::entry::{self, Identity};

/// Extension of entries.
const EXTENSION: &str = "idx";
/// Extension of large entries.
pub const LARGE: &str = "rows";
/// Extension of large entries that are not finished.
pub const DRAFT: &str = "part";
/// Extension of what tells how far a draft is.
pub const JOURNAL: &str = "journal";
/// Extension of the file that is locked while a large entry is made.
pub const LOCK: &str = "lock";
/// Extension of what tells that a large entry was checked; its age is that of the last use.
pub const MARK: &str = "used";
/// Extension of what is being written.
const UNFINISHED: &str = "tmp";
/// This part of the free space is used at most.
const FREE_SHARE: u64 = 10;
/// At most this part of the free space is used for large entries, unless the user named the folder.
pub const LARGE_FREE_SHARE: u64 = 5;
/// What is unfinished for so long was left behind by a process that died.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);
/// A draft can be finished by the next mount; after so long nobody seems to want it.
const DRAFT_ABANDONED: Duration = Duration::from_secs(7 * 24 * 3600);

/// A folder of entries; it need not exist.
pub struct Folder<'a> {
    path: &'a Path,
    max_bytes: u64,
}

impl<'a> Folder<'a> {
    /// The folder at `path`, for at most so many bytes.
    pub fn new(path: &'a Path, max_bytes: u64) -> Self {
        Self { path, max_bytes }
    }

    /// Where the entry of a piece lies.
    pub fn entry_path(&self, identity: &Identity) -> PathBuf {
        self.large_path(identity, EXTENSION)
    }

    /// Where a file of a large entry lies.
    pub fn large_path(&self, identity: &Identity, extension: &str) -> PathBuf {
        self.path.join(&identity.file_stem).with_extension(extension)
    }

    /// The folder.
    pub fn path(&self) -> &'a Path {
        self.path
    }

    /// Makes the folder if it is missing. 0700: names and labels of data that others may not be allowed to see.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn make(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(self.path)
    }

    /// Writes the entry of `piece` to `path`, of [`Folder::entry_path`], and makes the folder and room for it.
    ///
    /// # Errors
    /// What went wrong, naming the folder.
    pub fn keep<T: Cacheable>(&self, path: &Path, identity: &Identity, label: &str, piece: &T) -> Result<(), String> {
        let failed = |what: &str, error: &io::Error| format!("{}: cannot {what} ({error})", self.path.display());
        let mut arrays = Vec::new();
        let facts = piece.to_entry(&mut arrays);
        self.make().map_err(|e| failed("be made", &e))?;
        self.make_room(entry::size_bytes(&arrays))?;
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let unfinished = path.with_extension(format!("{}-{number}.{UNFINISHED}", std::process::id()));
        let written = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&unfinished)
            .and_then(|mut file| entry::write(&mut file, identity, label, facts, &arrays))
            .and_then(|()| fs::rename(&unfinished, path));
        written.map_err(|error| {
            // Where it was never made there is nothing to remove.
            let _ = fs::remove_file(&unfinished);
            failed("be written", &error)
        })
    }

    /// Removes old entries until `wanted` more bytes are within the limit.
    fn make_room(&self, wanted: u64) -> Result<(), String> {
        let (mut entries, mut taken) = (Vec::new(), 0_u64);
        let now = SystemTime::now();
        for file in fs::read_dir(self.path).into_iter().flatten().flatten() {
            // What vanishes meanwhile was removed by another process.
            let Ok(metadata) = file.metadata() else { continue };
            let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let path = file.path();
            let has = |extension: &str| path.extension().is_some_and(|e| e == extension);
            if has(UNFINISHED) && now.duration_since(used).is_ok_and(|age| age > ABANDONED) {
                let _ = fs::remove_file(&path);
            } else if has(EXTENSION) && metadata.is_file() {
                taken += metadata.len();
                entries.push((used, metadata.len(), path));
            }
        }
        let free = free_bytes(self.path).unwrap_or(u64::MAX);
        let limit = self.max_bytes.min(free.saturating_add(taken) / FREE_SHARE);
        if wanted > limit {
            return Err(format!(
                "{}: an entry of {} MiB is more than may be used there ({} MiB)",
                self.path.display(),
                wanted >> 20,
                limit >> 20
            ));
        }
        entries.sort();
        let mut oldest = entries.into_iter();
        while taken.saturating_add(wanted) > limit {
            let Some((_, len_bytes, path)) = oldest.next() else { break };
            tracing::debug!("cache: {} is removed to make room", path.display());
            if fs::remove_file(&path).is_ok() {
                taken = taken.saturating_sub(len_bytes);
            }
        }
        Ok(())
    }
}

/// The large entries of a folder.
pub struct LargeEntries {
    /// Time of the last use, bytes on disk, path; the one that was not used for longest first.
    entries: Vec<(SystemTime, u64, PathBuf)>,
    /// Bytes that can still be written in the folder.
    pub free: u64,
}

impl LargeEntries {
    /// Lists the large entries; drafts that were left behind long ago are removed on the way.
    pub fn list(folder: &Folder<'_>) -> Self {
        let now = SystemTime::now();
        let mut entries = Vec::new();
        for file in fs::read_dir(folder.path).into_iter().flatten().flatten() {
            let path = file.path();
            let (Ok(metadata), Some(extension)) = (file.metadata(), path.extension()) else { continue };
            let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            if extension == LARGE && metadata.is_file() {
                let mark = fs::metadata(path.with_extension(MARK)).and_then(|mark| mark.modified());
                entries.push((mark.unwrap_or(modified), allocated(&metadata), path));
            } else if extension == DRAFT && now.duration_since(modified).is_ok_and(|age| age > DRAFT_ABANDONED) {
                remove_unlocked(&path.with_extension(LOCK), &[&path, &path.with_extension(JOURNAL)]);
            }
        }
        entries.sort();
        Self { entries, free: free_bytes(folder.path).unwrap_or(u64::MAX) }
    }

    /// Bytes that all of them take.
    pub fn taken(&self) -> u64 {
        self.entries.iter().map(|(_, bytes, _)| bytes).sum()
    }

    /// Removes the one that was not used for longest and is not in use. False if there is none.
    pub fn remove_oldest(&mut self) -> bool {
        while !self.entries.is_empty() {
            let (_, bytes, path) = self.entries.remove(0);
            if remove_unlocked(&path, &[&path, &path.with_extension(MARK)]) {
                tracing::info!("cache: {} is removed to make room", path.display());
                self.free = self.free.saturating_add(bytes);
                return true;
            }
        }
        false
    }
}

/// Removes files unless somebody holds a lock on `lock`.
fn remove_unlocked(lock: &Path, files: &[&Path]) -> bool {
    let held = File::open(lock);
    if matches!(held.as_ref().map(File::try_lock), Ok(Err(fs::TryLockError::WouldBlock))) {
        return false;
    }
    // What is gone already was removed by somebody else.
    files.iter().map(|file| fs::remove_file(file).is_ok()).fold(false, |any, removed| any | removed)
}

/// Bytes that a file takes on disk.
pub fn allocated(metadata: &fs::Metadata) -> u64 {
    metadata.blocks().saturating_mul(512)
}

/// Bytes that this user may still write where `path` lies, or will lie; `None` if the system does not tell.
#[must_use]
pub fn free_bytes(path: &Path) -> Option<u64> {
    let found = path.ancestors().find_map(|path| nix::sys::statvfs::statvfs(path).ok())?;
    Some(found.blocks_available().saturating_mul(found.fragment_size()))
}
