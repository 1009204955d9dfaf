//! Serving batches by passthrough: the kernel reads and maps a file of a [tmpfs], and no read reaches this process.
//!
//! The first open of a batch takes a new file, copies the finished image into it by one write, gives the image back to the
//! engine, and tells the kernel the file, which answers with a number: the *backing id*. Our own descriptor is closed then; the kernel
//! holds the file as long as the id lives, and its pages as long as anybody maps them. A file is never written again. Opens of the
//! same batch, by whatever name, share the id; closed files are kept while there is room, so a second pass costs neither copy nor
//! assembly. The [table] says which open does what.
//!
//! Mappings outlive the close of a file, so handles do not tell when memory is free; the tmpfs does. Its size is the budget, and
//! where it is full, after the files that nobody holds were given up, an open is answered by direct I/O from the image.

mod table;
mod tmpfs;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use fuser::{BackingId, FileHandle, FopenFlags, ReplyOpen};
use parking_lot::Mutex;

use super::MountError;
use super::adapter::{Shared, guarded};
use super::pool::Pool;
use crate::view::{Ino, Tree, ViewError};
use table::{Begin, Table};
use tmpfs::Tmpfs;

/// `_IOW(229, 2, u32)`: gives an id back. `fuser` does it for ids that it manages, and has no call for others.
const BACKING_CLOSE: libc::Ioctl = 0x4004_e502_u32 as libc::Ioctl;

/// Flags of every passthrough open: nothing is written, so a close has nothing to flush, and succeeds even if the daemon is gone.
const BACKED: FopenFlags = FopenFlags::FOPEN_NOFLUSH;

/// Where files lie, which there are, and who fills them.
pub(super) struct Passthrough {
    tmpfs: Tmpfs,
    table: Mutex<Table<Arc<BackingId>, ReplyOpen>>,
    fillers: Pool,
    n_filled: AtomicU64,
    n_shared: AtomicU64,
    n_fallbacks: AtomicU64,
    warned: AtomicBool,
}

/// Says early, before a dataset is opened, whether passthrough can work at all.
///
/// # Errors
/// [`MountError::NoPassthrough`].
pub(super) fn check() -> Result<(), MountError> {
    Tmpfs::new(4096).map(drop).map_err(|error| refused(&error))
}

/// Why passthrough is refused, from what the kernel said.
pub(super) fn refused(error: &io::Error) -> MountError {
    let reason = match error.raw_os_error() {
        Some(libc::EPERM) => "needs root, outside of user namespaces (CAP_SYS_ADMIN)".to_owned(),
        Some(libc::ENOSYS | libc::ENOTTY | libc::EOPNOTSUPP) => {
            "this kernel does not offer it, Linux 6.9 does".to_owned()
        }
        _ => format!("no file for it: {error}"),
    };
    MountError::NoPassthrough { reason }
}

impl Passthrough {
    /// Room for `limit_bytes` of files, and threads that fill them.
    ///
    /// # Errors
    /// [`MountError::NoPassthrough`] without root.
    pub fn new(limit_bytes: u64, n_threads: usize) -> Result<Self, MountError> {
        let tmpfs = Tmpfs::new(limit_bytes).map_err(|error| refused(&error))?;
        let fillers = Pool::start("fill", n_threads).map_err(|error| refused(&error))?;
        Ok(Self {
            tmpfs,
            table: Mutex::default(),
            fillers,
            n_filled: AtomicU64::default(),
            n_shared: AtomicU64::default(),
            n_fallbacks: AtomicU64::default(),
            warned: AtomicBool::default(),
        })
    }

    /// Tries what every open will do, on the session's descriptor.
    ///
    /// # Errors
    /// [`MountError::NoPassthrough`].
    pub fn probe(&self, session: impl AsFd) -> Result<(), MountError> {
        let probe = || -> io::Result<()> {
            let file = self.tmpfs.file(1)?;
            let id = BackingId::create_raw(&session, &file)?;
            // SAFETY: the kernel reads the four bytes of `id` during the call; nothing has used the id.
            #[allow(unsafe_code)]
            let result = unsafe { libc::ioctl(session.as_fd().as_raw_fd(), BACKING_CLOSE, &raw const id) };
            if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        };
        probe().map_err(|error| refused(&error))
    }

    /// A release was processed.
    pub fn released(&self, ino: Ino) {
        self.table.lock().released(ino);
    }

    /// The state as a JSON object, for `status.json`.
    pub fn json(&self) -> serde_json::Value {
        let (n_files, n_kept, n_evicted) = self.table.lock().counts();
        serde_json::json!({
            "limit_bytes": self.tmpfs.limit_bytes(),
            "used_bytes": self.tmpfs.used_bytes(),
            "files": n_files,
            "files_open": n_files.saturating_sub(n_kept),
            "opens_filled": self.n_filled.load(Relaxed),
            "opens_shared": self.n_shared.load(Relaxed),
            "opens_direct": self.n_fallbacks.load(Relaxed),
            "evicted": n_evicted,
        })
    }

    /// A file with the bytes of an open batch, known to the kernel; `None` if there is no room.
    fn make(&self, tree: &Tree, handle: u64, size_bytes: u64, reply: &ReplyOpen) -> Option<Arc<BackingId>> {
        let file = self.room(size_bytes)?;
        let made = fill(&file, tree, handle, size_bytes).and_then(|()| reply.open_backing(&file));
        made.map(Arc::new).map_err(|error| self.warn_once(&error)).ok()
    }

    /// An empty file, if need be by giving up files that nobody holds.
    fn room(&self, size_bytes: u64) -> Option<File> {
        if size_bytes > self.tmpfs.limit_bytes() {
            return None;
        }
        loop {
            match self.tmpfs.file(size_bytes) {
                Ok(file) => return Some(file),
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::ENOMEM)) => {
                    let free_bytes = self.tmpfs.limit_bytes().saturating_sub(self.tmpfs.used_bytes());
                    let evicted = self.table.lock().evict(size_bytes.saturating_sub(free_bytes).max(1));
                    if evicted.is_empty() {
                        return None;
                    }
                    // The files go here, outside the lock.
                    drop(evicted);
                }
                Err(error) => {
                    self.warn_once(&error);
                    return None;
                }
            }
        }
    }

    fn warn_once(&self, error: &io::Error) {
        if !self.warned.swap(true, Relaxed) {
            tracing::warn!("a batch is served directly, since its file cannot be made: {error}");
        }
    }
}

/// Copies an open batch into `file`.
fn fill(file: &File, tree: &Tree, handle: u64, size_bytes: u64) -> io::Result<()> {
    let mut done_bytes = 0;
    while done_bytes < size_bytes {
        let len = u32::try_from(size_bytes - done_bytes).unwrap_or(1 << 30);
        let slice = tree.read(handle, done_bytes, len).map_err(io::Error::other)?;
        if slice.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.write_all_at(&slice, done_bytes)?;
        done_bytes += crate::num::to_u64(slice.len());
    }
    Ok(())
}

/// Answers the open of a batch, now or later.
pub(super) fn open(shared: &Arc<Shared>, passthrough: &Arc<Passthrough>, ino: Ino, size_bytes: u64, reply: ReplyOpen) {
    let begin = passthrough.table.lock().begin(ino, reply);
    match begin {
        Begin::Queued => {}
        Begin::Backed(reply, id) => answer(shared, passthrough, ino, &id, reply),
        Begin::Direct(reply) => open_direct(shared, passthrough, ino, reply),
        Begin::Fill(reply) => {
            let (shared, passthrough) = (Arc::clone(shared), Arc::clone(passthrough));
            Filling { shared, passthrough, ino, size_bytes, reply: Some(reply), handle: None }.start();
        }
    }
}

/// Answers a counted open with a file that is there.
fn answer(shared: &Shared, passthrough: &Passthrough, ino: Ino, id: &BackingId, reply: ReplyOpen) {
    match shared.tree.open_elsewhere(ino) {
        Ok(handle) => {
            passthrough.n_shared.fetch_add(1, Relaxed);
            reply.opened_passthrough(FileHandle(handle), BACKED, id);
        }
        Err(error) => {
            passthrough.released(ino);
            reply.error(shared.fail("open", &error));
        }
    }
}

/// Answers a counted open by direct I/O.
fn open_direct(shared: &Arc<Shared>, passthrough: &Arc<Passthrough>, ino: Ino, reply: ReplyOpen) {
    let (tree, shared, passthrough) = (Arc::clone(&shared.tree), Arc::clone(shared), Arc::clone(passthrough));
    tree.open(
        ino,
        Box::new(move |result| match result {
            Ok(opened) => {
                passthrough.n_fallbacks.fetch_add(1, Relaxed);
                reply.opened(FileHandle(opened.handle), BACKED | FopenFlags::FOPEN_DIRECT_IO);
            }
            Err(error) => {
                passthrough.released(ino);
                reply.error(shared.fail("open", &error));
            }
        }),
    );
}

/// The open that fills a file. Dropped before its end, it answers all who wait with an error.
struct Filling {
    shared: Arc<Shared>,
    passthrough: Arc<Passthrough>,
    ino: Ino,
    size_bytes: u64,
    reply: Option<ReplyOpen>,
    /// The open batch, once it is there.
    handle: Option<u64>,
}

impl Filling {
    fn start(mut self) {
        let (tree, ino, shared) = (Arc::clone(&self.shared.tree), self.ino, Arc::clone(&self.shared));
        let done = Box::new(move |result: Result<crate::view::Opened, ViewError>| match result {
            Ok(opened) => {
                self.handle = Some(opened.handle);
                let passthrough = Arc::clone(&self.passthrough);
                // Copying takes longer than loop threads and the engine's threads may spend here.
                passthrough.fillers.run(Box::new(move || self.finish()));
            }
            Err(error) => self.fail(&error),
        });
        let result = guarded("open", || {
            tree.open(ino, done);
            Ok(())
        });
        if let Err(error) = result {
            shared.fail("open", &error);
        }
    }

    fn finish(mut self) {
        let (Some(handle), Some(reply)) = (self.handle, self.reply.take()) else { return };
        let (shared, passthrough, ino) = (&self.shared, &self.passthrough, self.ino);
        if let Some(id) = passthrough.make(&shared.tree, handle, self.size_bytes, &reply) {
            // The image goes back to the engine before the reader runs.
            shared.tree.hand_over(handle);
            let (waiting, surplus) = {
                let mut table = passthrough.table.lock();
                (table.filled(ino, Arc::clone(&id), self.size_bytes), table.evict_surplus())
            };
            drop(surplus);
            passthrough.n_filled.fetch_add(1, Relaxed);
            reply.opened_passthrough(FileHandle(handle), BACKED, &id);
            for reply in waiting {
                answer(shared, passthrough, ino, &id, reply);
            }
        } else {
            let waiting = passthrough.table.lock().fell_back(ino);
            passthrough.n_fallbacks.fetch_add(1, Relaxed);
            reply.opened(FileHandle(handle), BACKED | FopenFlags::FOPEN_DIRECT_IO);
            for reply in waiting {
                open_direct(shared, passthrough, ino, reply);
            }
        }
        self.handle = None;
    }

    fn fail(&mut self, error: &ViewError) {
        let waiting = self.passthrough.table.lock().failed(self.ino);
        for reply in self.reply.take().into_iter().chain(waiting) {
            reply.error(self.shared.fail("open", error));
        }
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            // Not answered: the copy panicked.
            let _ = self.shared.tree.release(handle);
        } else if self.reply.is_none() {
            return;
        }
        self.fail(&ViewError::Panicked { what: "a batch was not handed over".to_owned() });
    }
}
