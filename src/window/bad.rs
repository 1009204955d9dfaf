//! Chunks that were found damaged. A chunk that failed once fails from then on, also where only a part of it is needed that could be
//! decoded: the same name does not fail now and open later, and no damaged chunk is decoded again and again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::store::ReadError;

/// Chunks that are remembered; a file with more damage than this has other problems.
const KEPT: usize = 100_000;

/// Damaged chunks, by part and chunk.
#[derive(Default)]
pub struct BadChunks {
    any: AtomicBool,
    chunks: Mutex<HashMap<(u32, u32), ReadError>>,
}

impl BadChunks {
    /// Why this chunk failed, if it did.
    #[must_use]
    pub fn get(&self, part: u32, chunk: u32) -> Option<ReadError> {
        // Most sources have none, and then no lock is taken.
        if self.any.load(Relaxed) { self.chunks.lock().get(&(part, chunk)).cloned() } else { None }
    }

    /// Remembers a chunk, if it is the chunk that is damaged: failed reads may succeed the next time.
    pub fn note(&self, part: u32, chunk: u32, error: &ReadError) {
        if let ReadError::Corrupt { .. } = error {
            let mut chunks = self.chunks.lock();
            if chunks.len() < KEPT {
                chunks.insert((part, chunk), error.clone());
            }
            self.any.store(true, Relaxed);
        }
    }
}
