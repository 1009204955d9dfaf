//! Arrays that never change: on the heap, or in a mapped file of the cache folder.
//!
//! What a store keeps per row (lengths, codes, numbers, text) may be much larger than what a mount should hold in memory. An
//! [`Array`] reads like a slice wherever it lies, and a clone is a reference to the same bytes. Only our own cache files are
//! ever mapped, see [`super::cache`]; sources are not.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::sync::Arc;

use memmap2::Mmap;

use super::chunk_map::ChunkEntry;
use crate::num::to_u64;

/// Plain numbers, or records of them without gaps: any bytes of the right size are a value.
///
/// # Safety
/// The type has no padding, no invalid bit patterns, no pointers and no drop.
#[allow(unsafe_code)]
pub unsafe trait Item: Copy + Send + Sync + fmt::Debug + 'static {}

macro_rules! items {
    ($($item:ty),*) => { $(
        // SAFETY: an integer.
        #[allow(unsafe_code)]
        unsafe impl Item for $item {}
    )* };
}
items!(u8, i8, u16, i16, u32, i32, u64);

// SAFETY: `repr(C)` of a u64 and two u32: 16 bytes, of which none is padding.
#[allow(unsafe_code)]
unsafe impl Item for ChunkEntry {}

/// An array that never changes; cloning it copies nothing.
#[derive(Clone)]
pub struct Array<T: Item>(Place<T>);

#[derive(Clone)]
enum Place<T> {
    Heap(Arc<Vec<T>>),
    Mapped { map: Arc<Mmap>, bytes: Range<usize>, items: PhantomData<T> },
}

impl<T: Item> Array<T> {
    /// The items in the bytes `bytes` of a file of the cache folder. `None` if they are outside it, or do not hold whole items at
    /// places where items can be.
    #[must_use]
    pub fn mapped(map: &Arc<Mmap>, bytes: Range<usize>) -> Option<Self> {
        let inside = map.get(bytes.clone())?;
        if !inside.len().is_multiple_of(size_of::<T>()) || !inside.as_ptr().cast::<T>().is_aligned() {
            return None;
        }
        Some(Self(Place::Mapped { map: Arc::clone(map), bytes, items: PhantomData }))
    }

    /// The items, to be changed: copied first if somebody else holds them too, or if they are in a file.
    pub fn to_mut(&mut self) -> &mut Vec<T> {
        if let Place::Mapped { .. } = self.0 {
            self.0 = Place::Heap(Arc::new(self.to_vec()));
        }
        match &mut self.0 {
            Place::Heap(items) => Arc::make_mut(items),
            Place::Mapped { .. } => unreachable!("was copied"),
        }
    }

    /// The items as they lie in memory.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        let items: &[T] = self;
        // SAFETY: items have no padding, so that all their bytes are initialised.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts(items.as_ptr().cast(), size_of_val(items))
        }
    }

    /// Bytes of memory held; those of a mapped file belong to the page cache.
    #[must_use]
    pub fn heap_bytes(&self) -> u64 {
        match &self.0 {
            Place::Heap(items) => to_u64(size_of_val(items.as_slice())),
            Place::Mapped { .. } => 0,
        }
    }
}

impl<T: Item> Deref for Array<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match &self.0 {
            Place::Heap(items) => items,
            Place::Mapped { map, bytes, .. } => {
                let start = map.as_ptr().wrapping_add(bytes.start);
                // SAFETY: `mapped` checked bounds and alignment, every bit pattern is an item, and the mapping lives as long as
                // `map`, of which this is a part. The file is ours alone and never modified, only replaced or removed.
                #[allow(unsafe_code)]
                unsafe {
                    std::slice::from_raw_parts(start.cast(), (bytes.end - bytes.start) / size_of::<T>())
                }
            }
        }
    }
}

impl<T: Item> Default for Array<T> {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl<T: Item> From<Vec<T>> for Array<T> {
    fn from(items: Vec<T>) -> Self {
        Self(Place::Heap(Arc::new(items)))
    }
}

impl<T: Item> FromIterator<T> for Array<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        items.into_iter().collect::<Vec<T>>().into()
    }
}

impl<T: Item + PartialEq> PartialEq for Array<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Item> fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if let Place::Heap(_) = self.0 { "heap" } else { "mapped" };
        write!(f, "Array({} items, {place})", self.len())
    }
}
