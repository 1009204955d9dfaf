//! Decoded chunks that are kept from window to window and epoch to epoch.
//!
//! A dataset whose decoded chunks fit half of the memory is decoded once: the first epoch keeps what it decodes, and later ones copy rows
//! from there. Images are not kept instead, since every epoch has other ones. Only chunks with filters are kept; others
//! cost no more in the page cache.

use std::ops::Range;
use std::sync::OnceLock;

use crate::store::{PartRole, Store};

/// Decoded chunks, by part and chunk. A chunk is put once and stays.
pub struct KeptChunks {
    parts: Vec<Part>,
}

struct Part {
    /// Elements of a chunk.
    chunk_elems: u32,
    /// Empty for parts that are not kept.
    chunks: Box<[OnceLock<Box<[u8]>>]>,
}

impl KeptChunks {
    /// Bytes that the decoded chunks of `store` would take, `None` if no part has filters or the number overflows.
    #[must_use]
    pub fn needed_bytes(store: &dyn Store) -> Option<u64> {
        let parts = 0..store.schema().parts.len();
        let bytes = parts.filter(|&part| is_kept(store, part)).try_fold(0_u64, |sum, part| {
            let each = store.chunk_bytes(part) as u64 + size_of::<OnceLock<Box<[u8]>>>() as u64;
            sum.checked_add(store.n_chunks(part).checked_mul(each)?)
        })?;
        (bytes > 0).then_some(bytes)
    }

    /// Room for the chunks of `store`; none is there yet.
    #[must_use]
    pub fn new(store: &dyn Store) -> Self {
        let part = |part: usize| {
            let item = store.schema().parts[part].stored.dtype.size_bytes();
            let n = if is_kept(store, part) { crate::num::to_usize(store.n_chunks(part)) } else { 0 };
            Part {
                chunk_elems: u32::try_from(store.chunk_bytes(part) / item).unwrap_or(u32::MAX),
                chunks: (0..n).map(|_| OnceLock::new()).collect(),
            }
        };
        Self { parts: (0..store.schema().parts.len()).map(part).collect() }
    }

    /// The elements that are to be decoded where `need` are needed: all of the chunk, if it is going to be kept.
    #[must_use]
    pub fn to_decode(&self, part: usize, chunk: u32, need: Range<u32>) -> Range<u32> {
        match self.slot(part, chunk) {
            Some(_) => 0..self.parts[part].chunk_elems,
            None => need,
        }
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

    fn slot(&self, part: usize, chunk: u32) -> Option<&OnceLock<Box<[u8]>>> {
        self.parts.get(part)?.chunks.get(chunk as usize)
    }
}

/// Parts all of whose chunks are without filters are not kept, nor are records: there are as many as rows.
fn is_kept(store: &dyn Store, part: usize) -> bool {
    let is_records = store.schema().parts[part].role == PartRole::Records;
    !is_records && store.n_chunks(part) > 0 && !store.is_plain(part, 0)
}
