//! The files of a store, numbered, and few of them open.
//!
//! A dataset may be one file, ten thousand, or arrays of a hundred thousand chunk files each. A file is therefore a number: what is
//! kept of it is eight bytes, the hash of its [`Stamp`], and its name follows from its place in its *run*: the files of one source
//! that are named by one rule ([`Names`]), such as the chunks of a zarr array. A run of one file is the common case.
//!
//! [`OpenFiles`] opens them when they are read and keeps the descriptors that were used last, at most half of what the process may
//! have. A file that is opened again must still be the one that was opened first: another stamp, or none, is
//! [`ReadError::Stale`].

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use lru::LruCache;
use nix::fcntl::PosixFadviseAdvice;
use parking_lot::Mutex;

use super::chunk_map::ChunkFiles;
use super::error::ReadError;
use super::file::{SourceFile, Stamp};
use crate::num::{to_u64, to_usize};

/// Most descriptors that are kept open.
const MAX_OPEN: u64 = 512;
/// Files of a source that are looked at before something that was made of them is served.
const ORIGINS_AT_ONCE: u32 = 4;

/// How the files of a run are named.
pub trait Names: fmt::Debug + Send + Sync {
    /// True if the files are open for good, so that nothing is lost when their names go.
    fn is_pinned(&self) -> bool {
        false
    }

    /// Path of the file `number` of the run, for messages.
    fn path(&self, number: u32) -> PathBuf;

    /// Opens the file `number` of the run for reading.
    ///
    /// # Errors
    /// What the operating system says.
    fn open(&self, number: u32) -> io::Result<File>;

    /// Bytes of memory that the names take.
    fn resident_bytes(&self) -> u64;
}

/// A run of one file.
#[derive(Debug)]
struct OneFile(Box<Path>);

impl Names for OneFile {
    fn path(&self, _: u32) -> PathBuf {
        self.0.to_path_buf()
    }

    fn open(&self, _: u32) -> io::Result<File> {
        File::open(&self.0)
    }

    fn resident_bytes(&self) -> u64 {
        to_u64(self.0.as_os_str().len())
    }
}

/// A run of one file of the cache folder, which anybody may remove from there; `None` if it is not made yet.
#[derive(Debug)]
struct Pinned(Box<Path>, Option<File>);

impl Names for Pinned {
    fn is_pinned(&self) -> bool {
        true
    }

    fn path(&self, _: u32) -> PathBuf {
        self.0.to_path_buf()
    }

    fn open(&self, _: u32) -> io::Result<File> {
        self.1.as_ref().map_or_else(|| Err(io::Error::from_raw_os_error(libc::ENOENT)), File::try_clone)
    }

    fn resident_bytes(&self) -> u64 {
        to_u64(self.0.as_os_str().len())
    }
}

/// The state of a file when its source was opened, in eight bytes; `None` if the file was not there.
pub type StampHash = Option<NonZeroU64>;

/// Hash of a stamp.
#[must_use]
pub fn stamp_hash(stamp: &Stamp) -> StampHash {
    let mut hasher = DefaultHasher::new();
    stamp.hash(&mut hasher);
    Some(NonZeroU64::new(hasher.finish()).unwrap_or(NonZeroU64::MIN))
}

/// Files of one source that are named by one rule.
#[derive(Debug)]
struct Run {
    /// Number of the first one.
    first: u32,
    names: Arc<dyn Names>,
    stamps: Box<[StampHash]>,
    /// Files that these were made of: they are changed when one of those is.
    made_of: Box<[Range<u32>]>,
}

/// The files of one source, or of all of them.
#[derive(Debug, Default)]
pub struct Files {
    runs: Vec<Run>,
    n_files: u32,
}

impl Files {
    /// The files of a source that is one file.
    #[must_use]
    pub fn one(file: &SourceFile) -> Self {
        let mut files = Self::default();
        // One number is always free in an empty table.
        let _ = files.add(file);
        files
    }

    /// Number of files.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.n_files
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.n_files == 0
    }

    /// Adds one file; its number. `None` if there are 2^32 files.
    pub fn add(&mut self, file: &SourceFile) -> Option<u32> {
        // It is opened again later, when the working directory may be another one.
        let path = std::path::absolute(file.path()).unwrap_or_else(|_| file.path().to_owned());
        self.add_run(Arc::new(OneFile(path.into())), Box::new([stamp_hash(&file.stamp())]))
    }

    /// Adds a run with the stamps of its files; the number of its first one. `None` if there are 2^32 files.
    pub fn add_run(&mut self, names: Arc<dyn Names>, stamps: Box<[StampHash]>) -> Option<u32> {
        let first = self.n_files;
        self.n_files = first.checked_add(u32::try_from(stamps.len()).ok()?)?;
        self.runs.push(Run { first, names, stamps, made_of: Box::default() });
        Some(first)
    }

    /// Adds a file of the cache folder, which was made of the files `made_of` and stays open; `None` in place of a file that is not made
    /// yet, of which nothing can be read. Its number; `None` if there are 2^32 files.
    pub fn add_made(&mut self, path: &Path, file: Option<File>, made_of: Box<[Range<u32>]>) -> Option<u32> {
        let stamp = file.as_ref().and_then(|file| stamp_hash(&Stamp::of(file).ok()?));
        let first = self.add_run(Arc::new(Pinned(path.into(), file)), Box::new([stamp]))?;
        if let Some(run) = self.runs.last_mut() {
            run.made_of = made_of;
        }
        Some(first)
    }

    /// Adds the files of another source behind these; the number that its file 0 got. `None` if there are 2^32 files.
    pub fn append(&mut self, other: Self) -> Option<u32> {
        let first = self.n_files;
        self.n_files = first.checked_add(other.n_files)?;
        self.runs.extend(other.runs.into_iter().map(|mut run| {
            run.first += first;
            run.made_of.iter_mut().for_each(|files| *files = files.start + first..files.end + first);
            run
        }));
        Some(first)
    }

    /// The run of `file`, and its number there.
    fn locate(&self, file: u32) -> Option<(&Run, u32)> {
        let run = self.runs.get(self.runs.partition_point(|run| run.first <= file).checked_sub(1)?)?;
        let number = file - run.first;
        (to_usize(u64::from(number)) < run.stamps.len()).then_some((run, number))
    }

    /// Path of `file`, for messages; empty if there is no such file.
    #[must_use]
    pub fn path(&self, file: u32) -> PathBuf {
        self.locate(file).map_or_else(PathBuf::new, |(run, number)| run.names.path(number))
    }

    /// The files that `file` was made of.
    fn made_of(&self, file: u32) -> &[Range<u32>] {
        self.locate(file).map_or(&[], |(run, _)| &run.made_of)
    }

    /// The stamp of `file` now; `None` if it is not there, and never was.
    ///
    /// # Errors
    /// [`ReadError::Stale`] if it is not what it was.
    pub fn check(&self, file: u32) -> Result<Option<Stamp>, ReadError> {
        let now = match self.open(file).and_then(|file| Stamp::of(&file)) {
            Ok(stamp) => Some(stamp),
            Err(error) if is_gone(&error) => None,
            Err(error) => {
                return Err(ReadError::Io { file: self.path(file), offset: 0, len: 0, reason: error.to_string() });
            }
        };
        let is_same = now.as_ref().and_then(stamp_hash) == self.stamp(file);
        if is_same { Ok(now) } else { Err(ReadError::Stale { file: self.path(file) }) }
    }

    /// The state of `file` when its source was opened.
    fn stamp(&self, file: u32) -> StampHash {
        let (run, number) = self.locate(file)?;
        run.stamps.get(to_usize(u64::from(number))).copied().flatten()
    }

    /// True if `file` needs no name any more.
    fn is_pinned(&self, file: u32) -> bool {
        self.locate(file).is_some_and(|(run, _)| run.names.is_pinned())
    }

    /// Opens `file`.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn open(&self, file: u32) -> io::Result<File> {
        match self.locate(file) {
            Some((run, number)) => run.names.open(number),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Keeps only the runs that the maps of `used` name, and numbers those anew: where a source was opened, most files were read once and
    /// are not needed again.
    pub fn keep<'a>(&mut self, used: impl Iterator<Item = &'a mut ChunkFiles>) {
        let mut runs = std::mem::take(&mut self.runs);
        self.n_files = 0;
        let mut moved: HashMap<u32, u32> = HashMap::new();
        let used: Vec<&mut ChunkFiles> = used.collect();
        runs.retain(|run| used.iter().any(|files| files.first == run.first));
        for run in runs {
            moved.insert(run.first, self.n_files);
            let first = self.n_files;
            self.n_files += u32::try_from(run.stamps.len()).unwrap_or(0);
            self.runs.push(Run { first, ..run });
        }
        for files in used {
            files.first = moved.get(&files.first).copied().unwrap_or(0);
        }
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let of_run = |run: &Run| to_u64(size_of::<Run>() + size_of_val(&*run.stamps)) + run.names.resident_bytes();
        self.runs.iter().map(of_run).sum()
    }
}

/// An open file.
#[derive(Debug)]
struct Descriptor {
    file: File,
    /// False on file systems that count no links, where a removed file cannot be told by that, and where it does not matter.
    counts_links: bool,
}

impl Descriptor {
    /// True if the file is still what `stamp` says, and still has a name.
    fn is(&self, stamp: StampHash) -> bool {
        let Ok(now) = self.file.metadata() else { return false };
        stamp_hash(&Stamp::of_metadata(&now)) == stamp && (now.nlink() > 0 || !self.counts_links)
    }
}

/// The files of a store, of which some are open.
#[derive(Debug)]
pub struct OpenFiles {
    files: Files,
    open: Mutex<LruCache<u32, Arc<Descriptor>>>,
    /// Which of many files are looked at next.
    turn: AtomicU32,
    /// Of what was made of many files: that one of them was found changed, which the next look might miss.
    stale: Mutex<HashMap<u32, ReadError>>,
}

impl OpenFiles {
    /// All of `files`, none of them open.
    #[must_use]
    pub fn new(files: Files) -> Self {
        let limit = NonZeroUsize::new(max_open()).unwrap_or(NonZeroUsize::MIN);
        Self { files, open: Mutex::new(LruCache::new(limit)), turn: AtomicU32::new(0), stale: Mutex::default() }
    }

    /// The files.
    #[must_use]
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Number of files that are open.
    #[must_use]
    pub fn n_open(&self) -> usize {
        self.open.lock().len()
    }

    fn stale(&self, file: u32) -> ReadError {
        ReadError::Stale { file: self.files.path(file) }
    }

    fn failed(&self, file: u32, offset: u64, len: usize, error: &io::Error) -> ReadError {
        ReadError::Io { file: self.files.path(file), offset, len, reason: error.to_string() }
    }

    /// The descriptor of `file`, which is opened if it is not.
    fn descriptor(&self, file: u32) -> Result<Arc<Descriptor>, ReadError> {
        if let Some(open) = self.open.lock().get(&file) {
            return Ok(Arc::clone(open));
        }
        let opened = match self.files.open(file) {
            Ok(opened) => opened,
            // Too many are open, by whomever: ours can be closed.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
                self.open.lock().clear();
                self.files.open(file).map_err(|e| self.failed(file, 0, 0, &e))?
            }
            Err(error) if is_gone(&error) => return Err(self.stale(file)),
            Err(error) => return Err(self.failed(file, 0, 0, &error)),
        };
        let metadata = opened.metadata().map_err(|e| self.failed(file, 0, 0, &e))?;
        let counts_links = metadata.nlink() > 0 && !self.files.is_pinned(file);
        let descriptor = Arc::new(Descriptor { file: opened, counts_links });
        if stamp_hash(&Stamp::of_metadata(&metadata)) != self.files.stamp(file) {
            return Err(self.stale(file));
        }
        // What falls out is closed when its last reader is done, and not under the lock.
        let _out = self.open.lock().push(file, Arc::clone(&descriptor));
        Ok(descriptor)
    }

    /// Fills `buf` from `file` at `offset`.
    ///
    /// # Errors
    /// [`ReadError::Stale`] if the file is not the one it was, [`ReadError::Io`] for every other failure.
    pub fn read_at(&self, file: u32, offset: u64, buf: &mut [u8]) -> Result<(), ReadError> {
        let descriptor = self.descriptor(file)?;
        descriptor.file.read_exact_at(buf, offset).map_err(|error| match descriptor.is(self.files.stamp(file)) {
            true => self.failed(file, offset, buf.len(), &error),
            false => self.stale(file),
        })
    }

    /// Compares the files that `file` was made of with what they were: a few of them, others each time, since they may be many.
    fn check_origins(&self, file: u32, made_of: &[Range<u32>]) -> Result<(), ReadError> {
        let n: u32 = made_of.iter().map(|files| files.end - files.start).sum();
        if n <= ORIGINS_AT_ONCE {
            return made_of.iter().cloned().flatten().try_for_each(|origin| self.check_origin(origin));
        }
        if let Some(error) = self.stale.lock().get(&file) {
            return Err(error.clone());
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        for i in 0..n.min(ORIGINS_AT_ONCE) {
            let mut number = turn.wrapping_mul(ORIGINS_AT_ONCE).wrapping_add(i) % n;
            for files in made_of {
                if number < files.end - files.start {
                    if let Err(error) = self.check_origin(files.start + number) {
                        self.stale.lock().insert(file, error.clone());
                        return Err(error);
                    }
                    break;
                }
                number -= files.end - files.start;
            }
        }
        Ok(())
    }

    /// As [`OpenFiles::check_unchanged`]; a file that was never there is still not there.
    fn check_origin(&self, file: u32) -> Result<(), ReadError> {
        if self.files.stamp(file).is_some() { self.check_unchanged(file) } else { self.files.check(file).map(drop) }
    }

    /// Tells the kernel that these bytes of `file` are going to be read soon.
    pub fn will_need(&self, file: u32, offset: u64, len: u64) {
        let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else { return };
        // Who reads will hear of whatever is wrong, and a file system that cannot do it loses nothing.
        if let Ok(descriptor) = self.descriptor(file) {
            let advice = PosixFadviseAdvice::POSIX_FADV_WILLNEED;
            let _ = nix::fcntl::posix_fadvise(&descriptor.file, offset, len, advice);
        }
    }

    /// Compares the file, and those that it was made of, with what they were when their source was opened.
    ///
    /// # Errors
    /// [`ReadError::Stale`] if it changed or is gone, [`ReadError::Io`] if it cannot be asked.
    pub fn check_unchanged(&self, file: u32) -> Result<(), ReadError> {
        if !self.descriptor(file)?.is(self.files.stamp(file)) {
            return Err(self.stale(file));
        }
        self.check_origins(file, self.files.made_of(file))
    }
}

/// True if a path that was there leads nowhere now, or out of the store.
fn is_gone(error: &io::Error) -> bool {
    let gone = [libc::ENOENT, libc::ENOTDIR, libc::ESTALE, libc::EXDEV, libc::ELOOP];
    error.raw_os_error().is_some_and(|code| gone.contains(&code))
}

/// Half of the descriptors that the process may have, and 512 at most.
fn max_open() -> usize {
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE);
    to_usize(limit.map_or(MAX_OPEN, |(soft, _)| soft / 2).clamp(1, MAX_OPEN))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Files `0`, `1`, ... of a folder.
    #[derive(Debug)]
    struct Numbered(PathBuf);

    impl Names for Numbered {
        fn path(&self, number: u32) -> PathBuf {
            self.0.join(number.to_string())
        }

        fn open(&self, number: u32) -> io::Result<File> {
            File::open(self.path(number))
        }

        fn resident_bytes(&self) -> u64 {
            0
        }
    }

    /// A run of `n` files, each of which holds its number, and a file of its own before and behind it.
    fn files(n: u32) -> (tempfile::TempDir, OpenFiles) {
        let dir = tempfile::tempdir().unwrap();
        let names = Numbered(dir.path().to_owned());
        let mut stamps = Vec::new();
        for i in 0..n {
            fs::write(names.path(i), i.to_le_bytes()).unwrap();
            stamps.push(stamp_hash(&Stamp::of(&names.open(i).unwrap()).unwrap()));
        }
        let alone = |name: &str| {
            fs::write(dir.path().join(name), name).unwrap();
            Files::one(&SourceFile::open(&dir.path().join(name)).unwrap())
        };
        let mut all = alone("head");
        let mut run = Files::default();
        assert_eq!(run.add_run(Arc::new(names), stamps.into()), Some(0));
        assert_eq!(all.append(run), Some(1));
        assert_eq!(all.append(alone("tail")), Some(1 + n));
        (dir, OpenFiles::new(all))
    }

    fn read(files: &OpenFiles, file: u32) -> Result<u32, ReadError> {
        let mut bytes = [0; 4];
        files.read_at(file, 0, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    #[test]
    fn more_files_than_descriptors() {
        let n = u32::try_from(max_open()).unwrap() * 2;
        let (_keep, files) = files(n);
        for round in 0..2 {
            for i in 0..n {
                assert_eq!(read(&files, 1 + i).unwrap(), i, "round {round}");
                files.check_unchanged(1 + i).unwrap();
            }
        }
        assert_eq!(files.n_open(), max_open());
        let mut tail = [0; 4];
        files.read_at(1 + n, 0, &mut tail).unwrap();
        assert_eq!(&tail, b"tail");
        assert!(files.files().path(1 + n).ends_with("tail") && files.files().path(3).ends_with("2"));
        assert_eq!(files.files().path(n + 2), PathBuf::new());
        assert!(read(&files, n + 2).is_err());
    }

    #[test]
    fn what_changed_is_stale_whether_it_is_open_or_not() {
        let (dir, files) = files(6);
        for open in [false, true] {
            for (i, change) in [0, 1, 2].into_iter().enumerate() {
                let number = u32::try_from(i).unwrap() + if open { 3 } else { 0 };
                if open {
                    read(&files, 1 + number).unwrap();
                }
                let path = dir.path().join(number.to_string());
                match change {
                    0 => fs::remove_file(&path).unwrap(),
                    1 => fs::write(&path, [0; 9]).unwrap(),
                    _ => {
                        fs::write(dir.path().join("new"), number.to_le_bytes()).unwrap();
                        fs::rename(dir.path().join("new"), &path).unwrap();
                    }
                }
                let checked = files.check_unchanged(1 + number);
                assert!(matches!(checked, Err(ReadError::Stale { file }) if file == path), "{open} {change}");
                assert!(open || matches!(read(&files, 1 + number), Err(ReadError::Stale { .. })));
            }
        }
    }

    #[test]
    fn what_was_made_of_files_changes_with_them_and_needs_no_name() {
        let (dir, source) = files(2);
        let path = dir.path().join("made");
        fs::write(&path, 7_u32.to_le_bytes()).unwrap();
        let mut all = Files::default();
        all.append(Files::one(&SourceFile::open(&path).unwrap()));
        let mut with_made = source.files;
        let made = with_made.add_made(&path, Some(File::open(&path).unwrap()), Box::new([0..1, 2..3])).unwrap();
        let planned = with_made.add_made(Path::new("later"), None, Box::default()).unwrap();
        assert_eq!((all.append(with_made), made, planned), (Some(1), 4, 5));
        let files = OpenFiles::new(all);
        fs::remove_file(&path).unwrap();
        assert_eq!(read(&files, 1 + made).unwrap(), 7);
        files.check_unchanged(1 + made).unwrap();
        assert!(matches!(read(&files, 1 + planned), Err(ReadError::Stale { file }) if file.ends_with("later")));
        fs::write(dir.path().join("1"), "changed").unwrap();
        assert!(matches!(files.check_unchanged(1 + made), Err(ReadError::Stale { file }) if file.ends_with("1")));
    }

    #[test]
    fn runs_that_nobody_needs_are_dropped() {
        let (_keep, files) = files(3);
        let mut all = files.files;
        let (mut run, mut tail) = (ChunkFiles { first: 1, per_file: Some([1, 1]) }, ChunkFiles::one(4));
        all.keep([&mut tail, &mut run].into_iter());
        assert_eq!((all.len(), run.first, tail.first), (4, 0, 3));
        assert!(all.path(2).ends_with("2") && all.path(3).ends_with("tail"));
        all.keep([&mut tail].into_iter());
        assert_eq!((all.len(), tail.first), (1, 0));
        assert!(OpenFiles::new(all).check_unchanged(0).is_ok());
    }

    #[test]
    fn a_short_file_is_an_error_and_not_stale() {
        let (_keep, files) = files(1);
        assert!(matches!(files.read_at(1, 1, &mut [0; 4]), Err(ReadError::Io { offset: 1, len: 4, .. })));
    }
}
