//! Decorators of a [`Store`]: reads that fail or take their time, for tests and for measuring; and a count of what was read.
//!
//! The n-th call of `read_at` is the seam: everything that can go wrong with a source shows there. Tests fail read 1, then read
//! 2, and so on until a run meets no fault any more, and compare what was served with a run without faults.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::{
    ChunkForm, ElementId, Extent, PartId, Piece, ReadError, RecordBuffers, RecordSink, Schema, SourceBorders, Store,
    StoredRecord,
};
use crate::codec::Scratch;
use crate::num::to_u64;

/// What a faulty read does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Fails with an I/O error.
    Fail,
    /// Fails with an I/O error if the read is over this byte of the first file.
    Damaged(u64),
    /// Fails as if the source had changed; from then on, `check_unchanged` fails as well.
    Stale,
    /// Takes this long, then succeeds.
    Delay(Duration),
    /// Succeeds with one bit of the last byte flipped.
    FlipBit,
}

/// A store whose reads fail or wait, as told.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    /// The reads with a fault, counted from 0.
    faulty: Range<u64>,
    fault: Fault,
    reads: AtomicU64,
    stale: AtomicBool,
}

impl FaultyStore {
    /// `fault` strikes the reads with the numbers `faulty`, counted from 0 over all threads.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>, faulty: Range<u64>, fault: Fault) -> Self {
        Self { inner, faulty, fault, reads: AtomicU64::new(0), stale: AtomicBool::new(false) }
    }

    /// Reads so far, faulty ones included.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// True if a read was struck.
    #[must_use]
    pub fn struck(&self) -> bool {
        self.reads() > self.faulty.start && !self.faulty.is_empty()
    }
}

/// Passes everything on but what the decorator is about.
macro_rules! delegate {
    () => {
        fn schema(&self) -> &Schema {
            self.inner.schema()
        }
        fn row_len(&self, element: ElementId, row: u64) -> u32 {
            self.inner.row_len(element, row)
        }
        fn max_row_len(&self, element: ElementId) -> u32 {
            self.inner.max_row_len(element)
        }
        fn n_values(&self, element: ElementId) -> u64 {
            self.inner.n_values(element)
        }
        fn is_plain(&self, part: PartId, chunk: u32) -> bool {
            self.inner.is_plain(part, chunk)
        }
        fn bad_row(&self, part: PartId, row: u64, reason: String) -> ReadError {
            self.inner.bad_row(part, row, reason)
        }
        fn pieces(&self, part: PartId, row: u64, emit: &mut dyn FnMut(Piece)) {
            self.inner.pieces(part, row, emit);
        }
        fn extent(&self, part: PartId, chunk: u32, need: Range<u32>, whole: bool) -> Extent {
            self.inner.extent(part, chunk, need, whole)
        }
        fn n_chunks(&self, part: PartId) -> u64 {
            self.inner.n_chunks(part)
        }
        fn chunk_bytes(&self, part: PartId) -> usize {
            self.inner.chunk_bytes(part)
        }
        fn chunk_form(&self, part: PartId, chunk: u32) -> ChunkForm {
            self.inner.chunk_form(part, chunk)
        }
        fn filtered_bytes(&self, part: PartId) -> u64 {
            self.inner.filtered_bytes(part)
        }
        fn record(
            &self,
            record: StoredRecord<'_>,
            next: Option<StoredRecord<'_>>,
            buffers: &mut RecordBuffers,
            sink: &mut dyn RecordSink,
        ) -> Result<u64, ReadError> {
            self.inner.record(record, next, buffers, sink)
        }
        fn chunk_borders(&self) -> Vec<SourceBorders> {
            self.inner.chunk_borders()
        }
        fn max_stored_bytes(&self) -> usize {
            self.inner.max_stored_bytes()
        }
        fn resident_bytes(&self) -> u64 {
            self.inner.resident_bytes()
        }
        fn will_need(&self, file: u32, offset: u64, len: u64) {
            self.inner.will_need(file, offset, len);
        }
    };
}

impl Store for FaultyStore {
    delegate!();

    fn decode(
        &self,
        part: PartId,
        chunk: u32,
        need: Range<u32>,
        stored: &[u8],
        whole: bool,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<u64, ReadError> {
        self.inner.decode(part, chunk, need, stored, whole, scratch, out)
    }

    fn read_at(&self, file: u32, offset: u64, buf: &mut [u8]) -> Result<(), ReadError> {
        let number = self.reads.fetch_add(1, Ordering::Relaxed);
        if !self.faulty.contains(&number) {
            return self.inner.read_at(file, offset, buf);
        }
        let path = format!("file {file}").into();
        match self.fault {
            Fault::Damaged(at) if file != 0 || !(offset..offset + to_u64(buf.len())).contains(&at) => {
                self.inner.read_at(file, offset, buf)
            }
            Fault::Fail | Fault::Damaged(_) => {
                Err(ReadError::Io { file: path, offset, len: buf.len(), reason: "injected fault".to_owned() })
            }
            Fault::Stale => {
                self.stale.store(true, Ordering::Relaxed);
                Err(ReadError::Stale { file: path })
            }
            Fault::Delay(time) => {
                std::thread::sleep(time);
                self.inner.read_at(file, offset, buf)
            }
            Fault::FlipBit => {
                self.inner.read_at(file, offset, buf)?;
                if let Some(last) = buf.last_mut() {
                    *last ^= 1;
                }
                Ok(())
            }
        }
    }

    fn check_unchanged(&self, file: u32) -> Result<(), ReadError> {
        if self.stale.load(Ordering::Relaxed) {
            return Err(ReadError::Stale { file: format!("file {file}").into() });
        }
        self.inner.check_unchanged(file)
    }
}

/// A store that counts what is read and decoded.
#[derive(Debug)]
pub struct CountingStore<S> {
    inner: S,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    decodes: AtomicU64,
    decoded_bytes: AtomicU64,
}

/// What a [`CountingStore`] counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Calls of `read_at`.
    pub reads: u64,
    /// Bytes they asked for.
    pub read_bytes: u64,
    /// Calls of `decode` that succeeded.
    pub decodes: u64,
    /// Bytes that went through a decompressor.
    pub decoded_bytes: u64,
}

impl<S: Store> CountingStore<S> {
    /// Counts from 0.
    #[must_use]
    pub fn new(inner: S) -> Self {
        let zero = || AtomicU64::new(0);
        Self { inner, reads: zero(), read_bytes: zero(), decodes: zero(), decoded_bytes: zero() }
    }

    /// What was counted so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            reads: get(&self.reads),
            read_bytes: get(&self.read_bytes),
            decodes: get(&self.decodes),
            decoded_bytes: get(&self.decoded_bytes),
        }
    }
}

impl<S: Store> Store for CountingStore<S> {
    delegate!();

    fn decode(
        &self,
        part: PartId,
        chunk: u32,
        need: Range<u32>,
        stored: &[u8],
        whole: bool,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<u64, ReadError> {
        let decoded = self.inner.decode(part, chunk, need, stored, whole, scratch, out)?;
        self.decodes.fetch_add(1, Ordering::Relaxed);
        self.decoded_bytes.fetch_add(decoded, Ordering::Relaxed);
        Ok(decoded)
    }

    fn read_at(&self, file: u32, offset: u64, buf: &mut [u8]) -> Result<(), ReadError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(to_u64(buf.len()), Ordering::Relaxed);
        self.inner.read_at(file, offset, buf)
    }

    fn check_unchanged(&self, file: u32) -> Result<(), ReadError> {
        self.inner.check_unchanged(file)
    }
}
