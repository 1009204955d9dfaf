//! Open, read, release.
//!
//! An open takes a place in the table of open files first, so that nothing is assembled for a reader that cannot be
//! served. For a batch the place travels with the engine's answer; if the engine loses the answer (it dropped the closure, or
//! panicked while it held it), the closure's guard answers with an error, so that no reader waits for ever.

use std::sync::{Arc, mpsc};

use super::errno::ViewError;
use super::handles::{Content, Handles, Slice, Slot};
use super::node::{Fixed, Ino, Node, ShareNode, unpack};
use super::{Tree, is_volatile};
use crate::num::to_u64;
use crate::window::{BatchId, Image};

/// A file that was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// What [`Tree::file`] and [`Tree::release`] take.
    pub handle: u64,
    /// How it is best served.
    pub serving: Serving,
}

/// How the bytes of an open file behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    /// A batch: immutable, in memory, usually read once.
    Batch {
        /// Size in bytes.
        size_bytes: u64,
    },
    /// Immutable, small or computed: worth caching.
    Constant,
    /// Rendered by this open: must not be cached.
    Volatile,
}

/// What answers an open: called once, from any thread.
pub type OpenDone = Box<dyn FnOnce(Result<Opened, ViewError>) + Send>;

/// An open file, for reading.
pub struct OpenFile<'a> {
    tree: &'a Tree,
    content: Content,
}

impl OpenFile<'_> {
    /// True if a read has to compute for a while: not for a thread that serves others.
    #[must_use]
    pub fn computes(&self) -> bool {
        matches!(self.content, Content::RowsNpy(..))
    }

    /// `len` bytes at `offset`, fewer only at the end of the file. Bytes that are in memory are not copied.
    #[must_use]
    pub fn read(&self, offset: u64, len: u32) -> Slice {
        let tree = self.tree;
        match &self.content {
            Content::Elsewhere => Vec::new().into(),
            Content::Image(image) => Slice::of_image(image.clone(), offset, len),
            Content::Bytes(bytes) => Slice::of_bytes(Arc::clone(bytes), offset, len),
            Content::BatchesTxt(pass, share) => tree.share(*pass, *share).read_batches_txt(offset, len).into(),
            Content::RowsNpy(pass, share) => {
                tree.share(*pass, *share).read_rows_npy(&tree.window_rows, offset, len).into()
            }
        }
    }
}

impl Tree {
    /// Opens a file and calls `done` with the result: before this returns for all files but batches, from a thread of the
    /// engine for those. Never waits. `done` is called exactly once, with an error if the engine panics.
    ///
    /// Errors are [`ViewError::NoEntry`], [`ViewError::IsDirectory`], [`ViewError::TooManyOpen`], and those of the batch.
    pub fn open(&self, ino: Ino, done: OpenDone) {
        let node = match unpack(ino).filter(|node| self.exists(*node)) {
            Some(node) => node,
            None => return done(Err(ViewError::NoEntry)),
        };
        let slot = match self.handles.reserve() {
            Ok(slot) => slot,
            Err(error) => return done(Err(error)),
        };
        let (content, serving) = match node {
            Node::Batch(id) => return self.open_batch(id, slot, done),
            Node::Fixed(Fixed::Root | Fixed::Control) | Node::Share(_, _, ShareNode::Dir) => {
                return done(Err(ViewError::IsDirectory));
            }
            Node::Fixed(fixed) => {
                let serving = if is_volatile(fixed) { Serving::Volatile } else { Serving::Constant };
                (Content::Bytes(self.fixed_bytes(fixed)), serving)
            }
            Node::Share(pass, share, ShareNode::BatchesTxt) => (Content::BatchesTxt(pass, share), Serving::Constant),
            Node::Share(pass, share, ShareNode::RowsNpy) => (Content::RowsNpy(pass, share), Serving::Constant),
        };
        done(Ok(Opened { handle: self.handles.insert(slot, content), serving }));
    }

    fn open_batch(&self, id: BatchId, slot: Slot, done: OpenDone) {
        let pending = Pending {
            done: Some(done),
            path: self.batch_path(id),
            size_bytes: self.config.batches.size_bytes(id),
            handles: Arc::clone(&self.handles),
            slot: Some(slot),
        };
        let answer = Box::new(move |result: Result<Image, crate::window::BatchError>| {
            let mut pending = pending;
            match result {
                Ok(image) => pending.succeed(image),
                Err(source) => pending.fail(|path| ViewError::Batch { path, source }),
            }
        });
        self.config.batches.open(id, answer);
    }

    /// Opens a file and waits for it: for callers that have no one else to serve.
    ///
    /// # Errors
    /// As [`Tree::open`].
    pub fn open_and_wait(&self, ino: Ino) -> Result<Opened, ViewError> {
        let (to, from) = mpsc::sync_channel(1);
        self.open(
            ino,
            Box::new(move |result| {
                // The receiver waits below.
                let _ = to.send(result);
            }),
        );
        from.recv().unwrap_or_else(|_| Err(ViewError::Dropped { path: String::new() }))
    }

    /// Opens a batch whose bytes the reader gets elsewhere: the engine is not asked, and a read is [`ViewError::BadHandle`].
    ///
    /// # Errors
    /// [`ViewError::NoEntry`] for anything but a batch, [`ViewError::TooManyOpen`].
    pub fn open_elsewhere(&self, ino: Ino) -> Result<u64, ViewError> {
        self.batch_size_bytes(ino).ok_or(ViewError::NoEntry)?;
        Ok(self.handles.insert(self.handles.reserve()?, Content::Elsewhere))
    }

    /// Gives the bytes of an open file back to the engine: its reader gets them elsewhere from now on.
    pub fn hand_over(&self, handle: u64) {
        self.handles.empty(handle);
    }

    /// The open file with this handle.
    ///
    /// # Errors
    /// [`ViewError::BadHandle`], also if its bytes are elsewhere.
    pub fn file(&self, handle: u64) -> Result<OpenFile<'_>, ViewError> {
        match self.handles.get(handle)? {
            Content::Elsewhere => Err(ViewError::BadHandle),
            content => Ok(OpenFile { tree: self, content }),
        }
    }

    /// Reads `len` bytes at `offset` of an open file, fewer only at its end.
    ///
    /// # Errors
    /// [`ViewError::BadHandle`].
    pub fn read(&self, handle: u64, offset: u64, len: u32) -> Result<Slice, ViewError> {
        Ok(self.file(handle)?.read(offset, len))
    }

    /// Forgets an open file; the memory of its batch goes back to the engine.
    ///
    /// # Errors
    /// [`ViewError::BadHandle`].
    pub fn release(&self, handle: u64) -> Result<(), ViewError> {
        self.handles.release(handle)
    }

    /// Files that are open or being opened.
    #[must_use]
    pub fn n_open(&self) -> usize {
        self.handles.n_open()
    }

    /// True if opening this file takes no computation and no lock of the engine's state: a batch (whose work happens
    /// elsewhere) or a file that is there already.
    #[must_use]
    pub fn opens_at_once(&self, ino: Ino) -> bool {
        match unpack(ino) {
            Some(Node::Fixed(fixed)) => !is_volatile(fixed) && fixed != Fixed::BlocksNpy,
            _ => true,
        }
    }
}

/// The open of a batch that the engine has not answered yet.
struct Pending {
    done: Option<OpenDone>,
    path: String,
    size_bytes: u64,
    handles: Arc<Handles>,
    slot: Option<Slot>,
}

impl Pending {
    fn succeed(&mut self, image: Image) {
        let (found, expected) = (to_u64(image.bytes().len()), self.size_bytes);
        if found != expected {
            return self.fail(|path| ViewError::WrongSize { path, expected, found });
        }
        if let (Some(done), Some(slot)) = (self.done.take(), self.slot.take()) {
            let handle = self.handles.insert(slot, Content::Image(image));
            done(Ok(Opened { handle, serving: Serving::Batch { size_bytes: expected } }));
        }
    }

    fn fail(&mut self, error: impl FnOnce(String) -> ViewError) {
        // The place is free before the reader learns of it.
        self.slot = None;
        if let Some(done) = self.done.take() {
            done(Err(error(std::mem::take(&mut self.path))));
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.fail(|path| ViewError::Dropped { path });
    }
}
