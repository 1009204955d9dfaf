//! The folder of entries: where they lie, how one gets there, and how much room they take.
//!
//! All entries together stay below a limit (20 GiB) and below a tenth of the free space (what they take counted as free). To make room,
//! those that were not used for longest are removed; a process that has one mapped keeps it. Several processes may use the
//! folder at once: what appears under the name of an entry is always complete, and of two that are written at the same time
//! the last one stays.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use super::Cacheable;
use super::entry::{self, Identity};

/// Extension of entries.
pub const EXTENSION: &str = "idx";
/// Extension of what is being written.
const UNFINISHED: &str = "tmp";
/// This part of the free space is used at most.
const FREE_SHARE: u64 = 10;
/// What is unfinished for so long was left behind by a process that died.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);

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
        self.path.join(&identity.file_name)
    }

    /// Writes the entry of `piece` to `path`, of [`Folder::entry_path`], and makes the folder and room for it.
    ///
    /// # Errors
    /// What went wrong, naming the folder.
    pub fn keep<T: Cacheable>(&self, path: &Path, identity: &Identity, label: &str, piece: &T) -> Result<(), String> {
        let failed = |what: &str, error: &io::Error| format!("{}: cannot {what} ({error})", self.path.display());
        let mut arrays = Vec::new();
        let facts = piece.to_entry(&mut arrays);
        // 0700: names and labels of data that others may not be allowed to see.
        DirBuilder::new().recursive(true).mode(0o700).create(self.path).map_err(|e| failed("be made", &e))?;
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

/// Bytes that this user may still write where `path` lies.
fn free_bytes(path: &Path) -> Option<u64> {
    let found = nix::sys::statvfs::statvfs(path).ok()?;
    Some(found.blocks_available().saturating_mul(found.fragment_size()))
}
