//! The translation between the kernel's requests and the tree.
//!
//! Every operation runs behind [`guarded`], with its reply outside: a panic becomes `EIO` and a log line, and the loop
//! thread lives on. Loop threads never wait and never compute for long: the open of a batch carries its reply to the thread of the
//! engine that finishes the batch, and what has to be rendered or computed goes to one helper thread. Where batches are served by
//! [`passthrough`], that module answers their opens. Which CPU they answer on is [`follow`](super::follow)'s.
//!
//! The operations that change something are not here: the mount is read-only, so the kernel answers `EROFS` itself. `flush`,
//! `fsync`, `access`, `getxattr`, `lseek` and `poll` answer `ENOSYS`, after which the kernel never asks again and does the
//! right thing by itself.

use std::ffi::OsStr;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use fuser::{
    AccessFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, PollEvents, PollFlags, PollNotifier, ReplyAttr,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyPoll, ReplyStatfs, ReplyXattr, Request,
};

use super::IoMode;
use super::follow::Follow;
use super::io_mode::{IoState, Settled};
use super::passthrough::{self, Passthrough};
use super::pool::{Job, Pool};
use crate::view::errno::panic_text;
use crate::view::{Attr, Ino, Opened, Reporter, Serving, Tree, ViewError};

/// Names and attributes of immutable nodes never expire.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Direct reads cost one more request, at the end of the file; below this size the page cache is cheaper.
const MIN_DIRECT_BYTES: u64 = 128 << 10;
/// Block size in the attributes.
const BLOCK_BYTES: u32 = 4096;

/// The file system as `fuser` sees it.
pub(super) struct Adapter {
    shared: Arc<Shared>,
    helper: Pool,
    ended: Option<Box<dyn FnOnce() + Send + Sync>>,
}

/// What replies need, wherever they are sent from.
pub(super) struct Shared {
    pub tree: Arc<Tree>,
    reporter: Reporter,
    io: Arc<IoState>,
    /// There if it was asked for.
    passthrough: Option<Arc<Passthrough>>,
    follow: Follow,
}

impl Adapter {
    /// `ended` is called when the session is over.
    pub fn new(
        tree: Arc<Tree>,
        io: Arc<IoState>,
        passthrough: Option<Arc<Passthrough>>,
        ended: impl FnOnce() + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let shared = Shared { tree, reporter: Reporter::default(), io, passthrough, follow: Follow::new() };
        Ok(Self { shared: Arc::new(shared), helper: Pool::start("render", 1)?, ended: Some(Box::new(ended)) })
    }

    /// Runs an operation that is no read, see [`guarded`], on whichever CPU is free for it.
    fn other<T>(
        &self,
        req: &Request,
        op: &'static str,
        f: impl FnOnce() -> Result<T, ViewError>,
    ) -> Result<T, ViewError> {
        self.shared.follow.answer_other(req.pid());
        guarded(op, f)
    }

    /// Runs a job on the helper thread.
    fn help(&self, job: Job) {
        self.helper.run(job);
    }
}

impl Shared {
    /// Logs a failed operation.
    pub fn fail(&self, op: &'static str, error: &ViewError) -> Errno {
        Errno::from_i32(self.reporter.report(op, error))
    }

    fn file_attr(&self, attr: &Attr) -> FileAttr {
        let mtime = self.tree.mtime();
        let (uid, gid) = self.tree.owner();
        FileAttr {
            ino: INodeNo(attr.ino.0),
            size: attr.size_bytes,
            blocks: attr.n_blocks(),
            atime: mtime,
            mtime,
            ctime: mtime,
            crtime: mtime,
            kind: file_type(attr.is_dir),
            perm: attr.mode(),
            nlink: attr.n_links,
            uid,
            gid,
            rdev: 0,
            blksize: BLOCK_BYTES,
            flags: 0,
        }
    }

    fn open_flags(&self, serving: Serving) -> FopenFlags {
        // Nothing is ever written, so a close has nothing to flush and does not have to ask; it then succeeds even if the
        // daemon is gone.
        FopenFlags::FOPEN_NOFLUSH
            | match serving {
                Serving::Volatile => FopenFlags::FOPEN_DIRECT_IO,
                Serving::Batch { size_bytes }
                    if self.io.settled() == Settled::Direct && size_bytes >= MIN_DIRECT_BYTES =>
                {
                    FopenFlags::FOPEN_DIRECT_IO
                }
                // An inode never changes its content, so what was cached by an earlier open is right.
                Serving::Batch { .. } | Serving::Constant => FopenFlags::FOPEN_KEEP_CACHE,
            }
    }

    fn open(self: &Arc<Self>, ino: Ino, reply: ReplyOpen) {
        // In this mode no batch is ever opened through the page cache: an inode must not mix the two.
        if let Some(passthrough) = &self.passthrough
            && let Some(size_bytes) = self.tree.batch_size_bytes(ino)
        {
            return passthrough::open(self, passthrough, ino, size_bytes, reply);
        }
        let shared = Arc::clone(self);
        let done = Box::new(move |result: Result<Opened, ViewError>| match result {
            Ok(opened) => reply.opened(FileHandle(opened.handle), shared.open_flags(opened.serving)),
            Err(error) => reply.error(shared.fail("open", &error)),
        });
        // The closure answers even if the engine panics in here.
        if let Err(error) = guarded("open", || {
            self.tree.open(ino, done);
            Ok(())
        }) {
            self.fail("open", &error);
        }
    }

    fn read(&self, handle: u64, offset: u64, len: u32, reply: ReplyData) {
        match guarded("read", || self.tree.read(handle, offset, len)) {
            Ok(bytes) => {
                self.io.count_read(bytes.len());
                reply.data(&bytes);
            }
            Err(error) => reply.error(self.fail("read", &error)),
        }
    }
}

/// Runs an operation; a panic in it is an error like others.
pub(super) fn guarded<T>(op: &'static str, f: impl FnOnce() -> Result<T, ViewError>) -> Result<T, ViewError> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| {
        let what = format!("{op}: {}", panic_text(&*payload));
        Err(ViewError::Panicked { what })
    })
}

fn file_type(is_dir: bool) -> FileType {
    if is_dir { FileType::Directory } else { FileType::RegularFile }
}

fn ttl(attr: &Attr) -> Duration {
    if attr.is_constant { FOR_EVER } else { Duration::ZERO }
}

impl Filesystem for Adapter {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without this, a shared mapping of a file opened for direct I/O is ENODEV: then direct is not offered.
        let can_map = config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_ok();
        let io = &self.shared.io;
        // A depth of 0 switches passthrough off without a word.
        let can_pass = io.wanted() == IoMode::Passthrough
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(1).is_ok();
        if io.settle(can_map, can_pass).is_none() {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        // Older kernels lack some of these; each is asked for by itself.
        for capability in
            [InitFlags::FUSE_DO_READDIRPLUS | InitFlags::FUSE_READDIRPLUS_AUTO, InitFlags::FUSE_PARALLEL_DIROPS]
        {
            if let Err(missing) = config.add_capabilities(capability) {
                tracing::debug!("the kernel does not offer {missing:?}");
            }
        }
        Ok(())
    }

    fn destroy(&mut self) {
        if let Some(ended) = self.ended.take() {
            ended();
        }
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.other(req, "lookup", || self.shared.tree.lookup(Ino(parent.0), name)) {
            Ok(attr) => {
                reply.entry_with_ttls(&ttl(&attr), &FOR_EVER, &self.shared.file_attr(&attr), Generation(0));
            }
            Err(error) => reply.error(self.shared.fail("lookup", &error)),
        }
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.other(req, "getattr", || self.shared.tree.attr(Ino(ino.0))) {
            Ok(attr) => reply.attr(&ttl(&attr), &self.shared.file_attr(&attr)),
            Err(error) => reply.error(self.shared.fail("getattr", &error)),
        }
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.shared.follow.answer_other(req.pid());
        if flags.acc_mode() != OpenAccMode::O_RDONLY || flags.0 & libc::O_TRUNC != 0 {
            return reply.error(self.shared.fail("open", &ViewError::ReadOnly));
        }
        let ino = Ino(ino.0);
        if self.shared.tree.opens_at_once(ino) {
            return self.shared.open(ino, reply);
        }
        let shared = Arc::clone(&self.shared);
        self.help(Box::new(move || shared.open(ino, reply)));
    }

    fn read(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let computes = self.shared.tree.file(fh.0).is_ok_and(|file| file.computes());
        if !computes {
            // Only read(2) names a lock owner: the thread waits, then. Pages for a mapping are read ahead while it goes on.
            self.shared.follow.answer(lock_owner.map(|_| req.pid()));
            return self.shared.read(fh.0, offset, size, reply);
        }
        let shared = Arc::clone(&self.shared);
        self.help(Box::new(move || shared.read(fh.0, offset, size, reply)));
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let released = guarded("release", || self.shared.tree.release(fh.0));
        if let (Ok(()), Some(passthrough)) = (&released, &self.shared.passthrough) {
            passthrough.released(Ino(ino.0));
        }
        match released {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.shared.fail("release", &error)),
        }
    }

    fn readdir(&self, req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.other(req, "readdir", || {
            self.shared.tree.list(Ino(ino.0), offset, &mut |entry| {
                reply.add(INodeNo(entry.ino.0), entry.next_offset, file_type(entry.is_dir), entry.name)
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.shared.fail("readdir", &error)),
        }
    }

    fn readdirplus(&self, req: &Request, ino: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let listed = self.other(req, "readdirplus", || {
            let mut failure = None;
            self.shared.tree.list(Ino(ino.0), offset, &mut |entry| match self.shared.tree.attr(entry.ino) {
                Ok(attr) => {
                    let file_attr = self.shared.file_attr(&attr);
                    reply.add(file_attr.ino, entry.next_offset, entry.name, &ttl(&attr), &file_attr, Generation(0))
                }
                Err(error) => {
                    failure = Some(error);
                    true
                }
            })?;
            failure.map_or(Ok(()), Err)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.shared.fail("readdirplus", &error)),
        }
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        // Zeros read as "no space" to some tools. Nothing is free, and the totals only have to be plausible.
        reply.statfs(1 << 30, 0, 0, 1 << 30, 0, BLOCK_BYTES, 255, BLOCK_BYTES);
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsyncdir(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn getxattr(&self, _req: &Request, _ino: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _req: &Request, _ino: INodeNo, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
    }

    fn lseek(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _offset: i64, _whence: i32, reply: ReplyLseek) {
        reply.error(Errno::ENOSYS);
    }

    fn poll(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _ph: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }
}
