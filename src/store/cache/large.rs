//! Large entries: matrices that were rewritten by rows.
//!
//! What takes gigabytes cannot be held and then written like the other pieces. It grows in a *draft* beside its place, of full
//! size from the start, so that a full disk is found out before the work and not in the middle of it. After every step the draft
//! is synced to the disk and a *journal* replaced, which says how far it is; whoever finds a draft and a journal that belong
//! together goes on from there. A finished draft gets its checksum, is renamed to its name, and never changes again.
//!
//! One process makes an entry at a time, holding a lock; others wait for it and then find the entry. A mount holds a shared lock
//! on the entry it reads, which keeps others from removing it to make room; who removes it all the same (`rm`) takes nothing
//! from that mount, which keeps it open.
//!
//! Reading gigabytes at every mount to check them would take as long as making them. So a *mark* beside the entry says which state
//! of the file was checked (inode, size, times of modification and change): what was written to since is checked again.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Front, Identity, Sections, is_ours, seal};
use super::folder::{DRAFT, Folder, JOURNAL, LARGE, LARGE_FREE_SHARE, LOCK, LargeEntries, MARK, allocated};
use super::{SETTLED, SourceCache, Taken};
use crate::num::to_u64;

/// Most bytes of a journal: a number for each of some ten thousand buckets.
const MAX_JOURNAL_BYTES: u64 = 64 << 20;
/// Told how far long work is.
pub trait Progress: fmt::Debug + Send + Sync {
    /// Work of `total_bytes` bytes begins; `what` says on what.
    fn begin(&self, what: &str, total_bytes: u64);
    /// So much of it is done.
    fn at(&self, done_bytes: u64);
    /// It has ended, well or not.
    fn end(&self);
}

/// Tells nobody.
#[derive(Debug)]
struct Silent;

impl Progress for Silent {
    fn begin(&self, _: &str, _: u64) {}
    fn at(&self, _: u64) {}
    fn end(&self) {}
}

/// How matrices that row blocks cannot serve are rewritten.
#[derive(Debug, Clone)]
pub struct RewriteConfig {
    /// Nothing is rewritten: the store is as it would be, without the bytes.
    pub planned: bool,
    /// The user named the folder: what is rewritten may be of any size that fits.
    pub any_size: bool,
    /// Memory that rewriting may take, about.
    pub memory_bytes: u64,
    /// Who is told.
    pub progress: Arc<dyn Progress>,
}

impl RewriteConfig {
    /// Memory for rewriting, if nothing is said. More would hardly be faster: each value is written twice at most.
    pub const DEFAULT_MEMORY_BYTES: u64 = 512 << 20;
}

impl Default for RewriteConfig {
    fn default() -> Self {
        Self { planned: false, any_size: false, memory_bytes: Self::DEFAULT_MEMORY_BYTES, progress: Arc::new(Silent) }
    }
}

/// Why a large entry cannot be made, and what the user can do.
#[derive(Debug)]
pub struct Refusal {
    /// The reason.
    pub reason: String,
    /// The way out.
    pub remedy: String,
}

impl Refusal {
    fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { reason: reason.into(), remedy: remedy.into() }
    }
}

/// A finished large entry.
pub struct Large<P> {
    /// What was made of its facts and sections.
    pub content: P,
    /// Its path.
    pub path: PathBuf,
    /// The file, locked against removal as long as it is open.
    pub file: File,
}

/// The place of a large entry of one source.
pub struct LargeSlot<'a> {
    cache: &'a SourceCache,
    folder: Folder<'a>,
    identity: Identity,
}

impl SourceCache {
    /// The place of the large entry `name` of the source in the state `state`.
    ///
    /// # Errors
    /// If there is no cache folder.
    pub fn large(&self, name: &str, state: &[u8; 32]) -> Result<LargeSlot<'_>, Refusal> {
        let Some(folder) = self.config.folder.as_deref() else {
            let reason = "there is no cache folder (neither --cache-dir, $XDG_CACHE_HOME nor $HOME is given)";
            return Err(Refusal::new(reason, "name one: --cache-dir DIR"));
        };
        let identity = Identity::new(self.path.as_os_str().as_bytes(), state, name);
        Ok(LargeSlot { cache: self, folder: Folder::new(folder, self.config.max_bytes), identity })
    }

    /// How matrices are rewritten.
    #[must_use]
    pub fn rewrite(&self) -> &RewriteConfig {
        &self.config.rewrite
    }

    /// Returns when the source has been left alone for long enough to be identified by its stamp.
    pub fn wait_until_settled(&self) {
        if let Some(wait) = SETTLED.checked_sub(self.stamp().map_or(Duration::ZERO, Taken::age)) {
            std::thread::sleep(wait);
        }
    }
}

impl LargeSlot<'_> {
    fn path(&self, extension: &str) -> PathBuf {
        self.folder.large_path(&self.identity, extension)
    }

    /// Where the entry lies, or will lie.
    #[must_use]
    pub fn entry_path(&self) -> PathBuf {
        self.path(LARGE)
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Front and places of an entry with these facts.
    ///
    /// # Errors
    /// If the facts cannot be written as JSON.
    pub fn front<F: Serialize>(&self, label: &str, facts: F, lens: &[u64]) -> io::Result<Front> {
        Front::new(&self.identity, label, facts, lens)
    }

    /// The entry, if it is there and right.
    pub fn find<F: DeserializeOwned, P>(
        &self,
        make: impl FnOnce(F, &mut Sections<'_>) -> Option<P>,
    ) -> Option<Large<P>> {
        let path = self.entry_path();
        match self.open_entry(&path, make) {
            Ok(found) => found,
            Err(why) => {
                tracing::warn!("cache: {} is not used ({why}), it is made again", path.display());
                None
            }
        }
    }

    fn open_entry<F: DeserializeOwned, P>(
        &self,
        path: &Path,
        make: impl FnOnce(F, &mut Sections<'_>) -> Option<P>,
    ) -> Result<Option<Large<P>>, String> {
        let Some(entry) = Entry::find(path, &self.identity)? else { return Ok(None) };
        // Where there are no locks, it may be removed, which takes nothing from us.
        let _ = entry.file().try_lock_shared();
        let state = state_of(entry.metadata());
        let mark = self.path(MARK);
        if fs::read_to_string(&mark).ok().as_deref() != Some(&state) {
            let progress = &self.cache.rewrite().progress;
            progress.begin("checking the rewritten matrix", entry.metadata().len());
            let checked = entry.check_sum(&mut |done| progress.at(done));
            progress.end();
            checked?;
        }
        let content = entry.content(make)?;
        // Its age is that of the last use. Where it cannot be written, the entry is checked again, and removed earlier.
        let _ = write_private(&mark, &state);
        let file = entry.file().try_clone().map_err(|e| e.to_string())?;
        Ok(Some(Large { content, path: path.to_owned(), file }))
    }

    /// Checks that an entry of `needed` bytes may be made. With `clear`, also removes old entries to make room for it.
    ///
    /// # Errors
    /// If it may not: with the bytes needed, the bytes free, and the option that allows it.
    pub fn check_room(&self, needed: u64, clear: bool) -> Result<(), Refusal> {
        let folder = self.folder();
        let RewriteConfig { any_size, .. } = *self.cache.rewrite();
        let mut others = LargeEntries::list(&self.folder);
        let draft = fs::metadata(self.path(DRAFT)).map_or(0, |metadata| allocated(&metadata));
        let all = others.free.saturating_add(draft).saturating_add(others.taken());
        let limit = if any_size { all } else { all / LARGE_FREE_SHARE };
        if needed > limit {
            let (needed, all) = (amount(needed), amount(all));
            let at = folder.display();
            return Err(if any_size {
                let reason = format!("its rows take {needed} in {at}, where {all} are free");
                Refusal::new(reason, "make room there, or name another folder: --cache-dir DIR")
            } else {
                let reason = format!("its rows take {needed} in {at}, more than a fifth of what is free there ({all})");
                Refusal::new(reason, format!("allow it with --cache-dir {at}, or name a folder on another disk"))
            });
        }
        if !clear {
            return Ok(());
        }
        while others.taken().saturating_add(needed) > limit || others.free.saturating_add(draft) < needed {
            if !others.remove_oldest() {
                break;
            }
        }
        Ok(())
    }

    /// The lock that only one process holds, which makes this entry. Waits for it.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn lock(&self) -> Result<File, Refusal> {
        let open = || {
            self.folder.make()?;
            File::options().write(true).create(true).truncate(false).mode(0o600).open(self.path(LOCK))
        };
        let lock = open().map_err(|e| self.unwritable(&e))?;
        if matches!(lock.try_lock(), Err(fs::TryLockError::WouldBlock)) {
            tracing::info!("cache: another process makes {}, waiting for it", self.entry_path().display());
            let progress = &self.cache.rewrite().progress;
            progress.begin("waiting for another process that rewrites the matrix", 0);
            // Where there are no locks, both make it, and the last one stays.
            let _ = lock.lock();
            progress.end();
        }
        Ok(lock)
    }

    fn unwritable(&self, error: &io::Error) -> Refusal {
        let folder = self.folder().display();
        let remedy = match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => "make room there, or name another folder: --cache-dir DIR",
            _ => "name a folder that can be written: --cache-dir DIR",
        };
        Refusal::new(format!("its rows cannot be written to {folder} ({error})"), remedy)
    }

    /// Begins a draft: `front`, the arrays `head` in its first sections, and room for the others.
    ///
    /// # Errors
    /// If the disk is full or the folder cannot be written; nothing is left behind.
    pub fn begin(&self, front: Front, head: &[&[u8]]) -> Result<Draft, Refusal> {
        self.discard();
        let path = self.path(DRAFT);
        let make = || -> io::Result<Draft> {
            let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
            reserve(&file, front.file_bytes)?;
            file.write_all_at(&front.bytes, 0)?;
            let mut end = to_u64(front.bytes.len());
            for (&(start, _), array) in front.sections.iter().zip(head) {
                file.write_all_at(array, start)?;
                end = start + to_u64(array.len());
            }
            let head = digest_of(&file, end)?;
            Ok(self.draft(file, front.file_bytes, (end, head)))
        };
        make().map_err(|error| {
            self.discard();
            self.unwritable(&error)
        })
    }

    fn draft(&self, file: File, file_bytes: u64, head: (u64, String)) -> Draft {
        Draft {
            file,
            file_bytes,
            head,
            identity: self.identity.hex(),
            path: self.path(DRAFT),
            journal: self.path(JOURNAL),
            entry: self.path(LARGE),
            mark: self.path(MARK),
        }
    }

    /// The draft that another process left, what was made of its facts and sections, and the state in its journal. `None` if
    /// there is none that belongs to this source.
    pub fn resume<F: DeserializeOwned, P, S: DeserializeOwned>(
        &self,
        make: impl FnOnce(F, &mut Sections<'_>) -> Option<P>,
    ) -> Option<(Draft, P, S)> {
        let path = self.path(DRAFT);
        let entry = Entry::find(&path, &self.identity).ok().flatten()?;
        let journal = read_journal::<S>(&self.path(JOURNAL)).filter(|j| j.identity == self.identity.hex())?;
        let file = File::options().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(&path).ok()?;
        let head = digest_of(&file, journal.head.0).ok().filter(|digest| *digest == journal.head.1)?;
        let content = entry.content(make).ok()?;
        let file_bytes = entry.metadata().len();
        Some((self.draft(file, file_bytes, (journal.head.0, head)), content, journal.state))
    }

    /// Removes draft and journal.
    pub fn discard(&self) {
        for extension in [DRAFT, JOURNAL] {
            // What is not there needs no removal.
            let _ = fs::remove_file(self.path(extension));
        }
    }

    /// The refusal for a draft that could not be written. Where the disk is full, it is removed; otherwise the next mount goes on with it.
    pub fn failed(&self, error: &io::Error) -> Refusal {
        if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) {
            self.discard();
        }
        self.unwritable(error)
    }
}

/// What a journal says.
#[derive(Serialize, Deserialize)]
struct Journal<S> {
    identity: String,
    /// Size and hash of the first bytes of the draft, which do not change.
    head: (u64, String),
    state: S,
}

/// A large entry in the making.
pub struct Draft {
    file: File,
    file_bytes: u64,
    head: (u64, String),
    identity: String,
    path: PathBuf,
    journal: PathBuf,
    entry: PathBuf,
    mark: PathBuf,
}

impl Draft {
    /// The file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Size of the finished file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Makes sure that everything written so far is on the disk, and then that the next process knows it by `state`.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn checkpoint<S: Serialize>(&self, state: S) -> io::Result<()> {
        self.file.sync_data()?;
        let journal = Journal { identity: self.identity.clone(), head: self.head.clone(), state };
        let mut text = serde_json::to_string(&journal)?;
        let sum = blake3::hash(text.as_bytes()).to_hex();
        text.push('\n');
        text.push_str(&sum);
        let new = self.journal.with_extension("journal-new");
        write_private(&new, &text)?.sync_data()?;
        fs::rename(&new, &self.journal)
    }

    /// Writes zeros where nothing belongs any more, without taking room where the file system can do that.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn clear(&self, start: u64, len: u64) -> io::Result<()> {
        use nix::fcntl::{FallocateFlags, fallocate};
        let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        if len == 0 || fallocate(&self.file, punch, start.cast_signed(), len.cast_signed()).is_ok() {
            return Ok(());
        }
        let zeros = vec![0; 1 << 20];
        let mut at = 0;
        while at < len {
            let run = zeros.get(..crate::num::to_usize((len - at).min(1 << 20))).unwrap_or(&zeros);
            self.file.write_all_at(run, start + at)?;
            at += to_u64(run.len());
        }
        Ok(())
    }

    /// Gives the draft its checksum and its name.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn finish(self, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
        seal(&self.file, self.file_bytes, progress)?;
        self.file.sync_all()?;
        fs::rename(&self.path, &self.entry)?;
        // Renaming changes the file's times, so the mark comes last: it spares the first mount from reading everything again.
        let _ = write_private(&self.mark, &state_of(&self.file.metadata()?));
        // A journal without a draft is of no use to anybody.
        let _ = fs::remove_file(&self.journal);
        if let Some(folder) = self.entry.parent() {
            File::open(folder)?.sync_all()?;
        }
        Ok(())
    }
}

/// Writes a file that only this user can read.
fn write_private(path: &Path, text: &str) -> io::Result<File> {
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    Ok(file)
}

/// What changes whenever a file is written to.
fn state_of(m: &Metadata) -> String {
    format!("1 {} {} {}.{:09} {}.{:09}", m.ino(), m.len(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec())
}

fn read_journal<S: DeserializeOwned>(path: &Path) -> Option<Journal<S>> {
    let file = File::options().read(true).custom_flags(libc::O_NOFOLLOW).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !is_ours(&metadata) || metadata.len() > MAX_JOURNAL_BYTES {
        return None;
    }
    let text = io::read_to_string(file).ok()?;
    let (json, sum) = text.split_once('\n')?;
    if *blake3::hash(json.as_bytes()).to_hex() != *sum {
        return None;
    }
    serde_json::from_str(json).ok()
}

/// Hash of the first `end` bytes.
fn digest_of(file: &File, end: u64) -> io::Result<String> {
    let mut hash = blake3::Hasher::new();
    let mut buffer = vec![0; 256 << 10];
    let mut at = 0;
    while at < end {
        let len = crate::num::to_usize((end - at).min(to_u64(buffer.len())));
        let Some(run) = buffer.get_mut(..len) else { break };
        file.read_exact_at(run, at)?;
        hash.update(run);
        at += to_u64(len);
    }
    Ok(hash.finalize().to_hex().to_string())
}

/// Gives the file its full size, with room on the disk where the file system can promise that.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    use nix::fcntl::{FallocateFlags, fallocate};
    match fallocate(file, FallocateFlags::empty(), 0, bytes.cast_signed()) {
        Err(nix::Error::EOPNOTSUPP | nix::Error::ENOSYS) => file.set_len(bytes),
        other => Ok(other?),
    }
}

/// Bytes for people, exact and rounded.
#[must_use]
pub fn amount(bytes: u64) -> String {
    let (unit, name) = if bytes >= 1 << 30 { (1_u64 << 30, "GiB") } else { (1 << 20, "MiB") };
    let tenths = bytes.saturating_mul(10) / unit;
    format!("{}.{} {name} ({bytes} bytes)", tenths / 10, tenths % 10)
}
