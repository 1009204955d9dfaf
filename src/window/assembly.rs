//! A batch while it is assembled: its region of the arena, written by many threads at disjoint places, and the number of
//! pieces it still misses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use super::arena::Region;
use super::{BatchError, BatchId, Image};
use crate::batch::{BatchContext, Encoder, Layout};
use crate::num::to_usize;

/// One batch under assembly.
pub struct Assembly {
    /// Which batch.
    pub id: BatchId,
    /// Its rows, padding included.
    pub rows: Vec<u64>,
    /// How many of the last rows are padding.
    pub pad_rows: u32,
    /// Per element: where each row starts in the element's values (sparse), or nothing (dense).
    pub row_starts: Vec<Vec<u32>>,
    /// Its byte map.
    pub layout: Layout,
    /// The region, until the batch is finished.
    region: Mutex<Option<Region>>,
    /// First byte of the region. Valid while `missing` is not 0.
    base: BasePtr,
    /// Pieces not scattered yet, plus one that the planner holds until all pieces are counted.
    missing: OwnLine,
    /// The first failure.
    failure: Mutex<Option<BatchError>>,
}

/// A counter that shares its cache lines with nothing: every thread changes it for every piece, and what is beside it is only read.
#[repr(align(128))]
struct OwnLine(AtomicU32);

/// Address of the region's first byte.
struct BasePtr(*mut u8);

// SAFETY: the pointer is used only by `Assembly::write`, under its contract.
#[allow(unsafe_code)]
unsafe impl Send for BasePtr {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for BasePtr {}

impl Assembly {
    /// A batch whose pieces are about to be counted.
    #[must_use]
    pub fn new(
        id: BatchId,
        rows: Vec<u64>,
        pad_rows: u32,
        row_starts: Vec<Vec<u32>>,
        layout: Layout,
        mut region: Region,
    ) -> Self {
        for ones in &layout.ones {
            region.bytes_mut()[to_usize(ones.start)..to_usize(ones.end)].fill(1);
        }
        let base = BasePtr(region.as_ptr());
        debug_assert!(region.len_bytes() >= layout.buffer_bytes);
        let region = Mutex::new(Some(region));
        Self {
            id,
            rows,
            pad_rows,
            row_starts,
            layout,
            region,
            base,
            missing: OwnLine(AtomicU32::new(1)),
            failure: Mutex::new(None),
        }
    }

    /// Counts one more piece. Only the planner calls it, before it drops its own share with [`Assembly::arrived`].
    pub fn expect_piece(&self) {
        self.expect_pieces(1);
    }

    /// Counts `n` more pieces, as [`Assembly::expect_piece`].
    pub fn expect_pieces(&self, n: u32) {
        self.missing.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Notes that a piece arrived, or failed; true if it was the last one. The caller of the last one finishes the batch.
    #[must_use]
    pub fn arrived(&self) -> bool {
        // Release: what this thread wrote is there for the thread that finishes. Acquire: that thread sees all of it.
        self.missing.0.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Marks the batch as failed; the first reason stays.
    pub fn fail(&self, error: BatchError) {
        self.failure.lock().get_or_insert(error);
    }

    /// The first failure so far.
    #[must_use]
    pub fn failure(&self) -> Option<BatchError> {
        self.failure.lock().clone()
    }

    /// Lends `len` bytes at `offset` of the buffer to a piece that has not arrived.
    ///
    /// # Panics
    /// If the bytes are outside the buffer: a defect of the planner.
    #[allow(clippy::mut_from_ref)] // many threads write, see SAFETY
    pub fn piece_bytes(&self, offset: u64, len: usize) -> &mut [u8] {
        let end = offset.checked_add(len as u64);
        assert!(end.is_some_and(|end| end <= self.layout.buffer_bytes), "a piece lies inside its batch");
        // SAFETY: inside the region, which lives until the last piece has arrived. The planner gives each piece bytes of its own:
        // rows of a part follow each other without overlap, and pieces of a row likewise.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts_mut(self.base.0.add(to_usize(offset)), len)
        }
    }

    /// Completes the batch after its last piece.
    ///
    /// # Errors
    /// The first failure of a piece, or [`BatchError::Internal`] if the batch was finished before.
    pub fn finish(&self, encoder: &dyn Encoder) -> Result<Image, BatchError> {
        let region = self.region.lock().take();
        if let Some(error) = self.failure.lock().take() {
            return Err(error);
        }
        let mut region = region.ok_or_else(|| BatchError::Internal { what: "batch finished twice".into() })?;
        let context = BatchContext {
            pass: self.id.pass,
            batch: self.id.batch,
            rows: &self.rows,
            pad_rows: self.pad_rows,
            row_starts: &self.row_starts,
        };
        encoder.finish(&self.layout, context, &mut region.bytes_mut()[..to_usize(self.layout.buffer_bytes)]);
        region.truncate(self.layout.size_bytes);
        Ok(Image::new(Arc::new(FileBytes { region, len: to_usize(self.layout.size_bytes) })))
    }
}

/// A finished file in its region.
struct FileBytes {
    region: Region,
    len: usize,
}

impl AsRef<[u8]> for FileBytes {
    fn as_ref(&self) -> &[u8] {
        &self.region.bytes()[..self.len]
    }
}
