//! Decoded chunks that are kept from window to window and epoch to epoch.
//!
//! A dataset whose decoded chunks fit half of the memory is decoded once: the first epoch keeps what it decodes, and later ones copy rows
//! from there. Images are not kept instead, since every epoch has other ones. Only chunks with filters are kept; others
//! cost no more in the page cache.

use std::ops::Range;
use std::sync::OnceLock;

use crate::store::Store;

/// Where a chunk is kept.
type Slot = OnceLock<Box<[u8]>>;

/// Decoded chunks, by part and chunk. A chunk is put once and stays.
pub struct KeptChunks {
    /// By part, empty for those without filters.
    parts: Vec<Box<[Slot]>>,
}

impl KeptChunks {
    /// Bytes that the decoded chunks of `store` would take, `None` if no part has filters or the number overflows.
    #[must_use]
    pub fn needed_bytes(store: &dyn Store) -> Option<u64> {
        let parts = 0..store.schema().parts.len();
        let bytes = parts.filter(|&part| store.filtered_bytes(part) > 0).try_fold(0_u64, |sum, part| {
            let slots = store.n_chunks(part).checked_mul(size_of::<Slot>() as u64)?;
            sum.checked_add(store.filtered_bytes(part).checked_add(slots)?)
        })?;
        (bytes > 0).then_some(bytes)
    }

    /// Room for the chunks of `store`; none is there yet.
    #[must_use]
    pub fn new(store: &dyn Store) -> Self {
        let part = |part: usize| {
            let n = if store.filtered_bytes(part) > 0 { crate::num::to_usize(store.n_chunks(part)) } else { 0 };
            (0..n).map(|_| OnceLock::new()).collect()
        };
        Self { parts: (0..store.schema().parts.len()).map(part).collect() }
    }

    /// The elements that are to be decoded where `need` are needed: all of the chunk, if it is going to be kept.
    #[must_use]
    pub fn to_decode(&self, store: &dyn Store, part: usize, chunk: u32, need: Range<u32>) -> Range<u32> {
        if self.slot(part, chunk).is_none() || store.is_plain(part, chunk) {
            return need;
        }
        let form = store.chunk_form(part, chunk);
        0..u32::try_from(form.bytes / form.stored.dtype.size_bytes()).unwrap_or(u32::MAX)
    }

    /// The decoded chunk, if it is there.
    #[must_use]
    pub fn get(&self, part: usize, chunk: u32) -> Option<&[u8]> {
        self.slot(part, chunk)?.get().map(|bytes| &**bytes)
    }

    /// Keeps a chunk that was decoded as a whole.
    pub fn put(&self, part: usize, chunk: u32, decoded: &[u8]) {
        if let Some(slot) = self.slot(part, chunk) {
            // Another thread may have been faster, with the same bytes.
            let _ = slot.set(decoded.into());
        }
    }

    fn slot(&self, part: usize, chunk: u32) -> Option<&Slot> {
        self.parts.get(part)?.get(chunk as usize)
    }
}
