//! Open files. Their number is bounded, opens that still wait for their batch included.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;

use super::errno::ViewError;
use crate::num::{to_u64, to_usize};
use crate::order::{Pass, Share};
use crate::window::Image;

/// What an open file reads from.
#[derive(Clone)]
pub(super) enum Content {
    /// A finished batch: pinned until the release.
    Image(Image),
    /// Bytes that were there before, or were rendered by the open.
    Bytes(Arc<[u8]>),
    /// The names of a share's batches, computed at each read.
    BatchesTxt(Pass, Share),
    /// The row ids of a share, computed at each read.
    RowsNpy(Pass, Share),
    /// Nothing of this process: the reader gets the bytes elsewhere.
    Elsewhere,
}

/// Bytes that a read returns: a part of what is in memory, or computed ones.
pub struct Slice(Repr);

enum Repr {
    Image(Image, Range<usize>),
    Bytes(Arc<[u8]>, Range<usize>),
    Owned(Vec<u8>),
}

impl Slice {
    /// `len` bytes of `image` at `offset`, fewer at its end.
    pub(super) fn of_image(image: Image, offset: u64, len: u32) -> Self {
        let range = clip(image.bytes().len(), offset, len);
        Self(Repr::Image(image, range))
    }

    /// The same for bytes.
    pub(super) fn of_bytes(bytes: Arc<[u8]>, offset: u64, len: u32) -> Self {
        let range = clip(bytes.len(), offset, len);
        Self(Repr::Bytes(bytes, range))
    }
}

impl From<Vec<u8>> for Slice {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Repr::Owned(bytes))
    }
}

impl std::ops::Deref for Slice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // The ranges were clipped to the bytes they are of.
        match &self.0 {
            Repr::Image(image, range) => image.bytes().get(range.clone()).unwrap_or_default(),
            Repr::Bytes(bytes, range) => bytes.get(range.clone()).unwrap_or_default(),
            Repr::Owned(bytes) => bytes,
        }
    }
}

/// The part of `[offset, offset + len)` that lies inside `size` bytes.
fn clip(size: usize, offset: u64, len: u32) -> Range<usize> {
    let start = offset.min(to_u64(size));
    let end = offset.saturating_add(u64::from(len)).min(to_u64(size));
    to_usize(start)..to_usize(end)
}

/// The table of open files.
pub(super) struct Handles {
    table: RwLock<HashMap<u64, (Content, Slot)>>,
    next: AtomicU64,
    n_open: Arc<AtomicUsize>,
    limit: usize,
}

/// A place in the table, taken before the work starts and given back when the file is released or the open fails.
pub(super) struct Slot(Arc<AtomicUsize>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Handles {
    pub(super) fn new(limit: usize) -> Self {
        Self { table: RwLock::default(), next: AtomicU64::new(1), n_open: Arc::default(), limit }
    }

    /// Files open or being opened.
    pub(super) fn n_open(&self) -> usize {
        self.n_open.load(Ordering::Acquire)
    }

    pub(super) fn reserve(&self) -> Result<Slot, ViewError> {
        let room = |n: usize| (n < self.limit).then_some(n + 1);
        match self.n_open.fetch_update(Ordering::AcqRel, Ordering::Acquire, room) {
            Ok(_) => Ok(Slot(Arc::clone(&self.n_open))),
            Err(_) => Err(ViewError::TooManyOpen { limit: self.limit }),
        }
    }

    pub(super) fn insert(&self, slot: Slot, content: Content) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.table.write().insert(handle, (content, slot));
        handle
    }

    pub(super) fn get(&self, handle: u64) -> Result<Content, ViewError> {
        self.table.read().get(&handle).map(|(content, _)| content.clone()).ok_or(ViewError::BadHandle)
    }

    /// Drops what an open file reads from, and keeps the file open.
    pub(super) fn empty(&self, handle: u64) {
        let mut table = self.table.write();
        let content = table.get_mut(&handle).map(|(content, _)| std::mem::replace(content, Content::Elsewhere));
        // Memory goes back to the engine outside the lock.
        drop(table);
        drop(content);
    }

    pub(super) fn release(&self, handle: u64) -> Result<(), ViewError> {
        // The image may be the last one of its slab: it is dropped outside the lock.
        let removed = self.table.write().remove(&handle);
        removed.map(drop).ok_or(ViewError::BadHandle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_clipped_to_the_file() {
        let bytes: Arc<[u8]> = Arc::from((0..100_u8).collect::<Vec<_>>());
        let image = Image::new(Arc::new((0..100_u8).collect::<Vec<_>>()));
        for (offset, len) in
            [(0, 100), (0, 0), (99, 1), (99, 5), (100, 1), (u64::MAX, u32::MAX), (40, 20), (0, u32::MAX)]
        {
            let start = to_usize(offset.min(100));
            let expected = &bytes[start..(start + to_usize(u64::from(len))).min(100)];
            assert_eq!(&*Slice::of_bytes(Arc::clone(&bytes), offset, len), expected);
            assert_eq!(&*Slice::of_image(image.clone(), offset, len), expected);
        }
    }

    #[test]
    fn places_come_back() {
        let handles = Handles::new(2);
        let (a, b) = (handles.reserve().unwrap(), handles.reserve().unwrap());
        assert!(matches!(handles.reserve(), Err(ViewError::TooManyOpen { limit: 2 })));
        drop(a);
        let open = handles.insert(b, Content::Bytes(Arc::from(*b"x")));
        assert_eq!(handles.n_open(), 1);
        handles.release(open).unwrap();
        assert!(matches!(handles.release(open), Err(ViewError::BadHandle)));
        assert!(matches!(handles.get(open), Err(ViewError::BadHandle)));
        assert_eq!(handles.n_open(), 0);
    }
}
