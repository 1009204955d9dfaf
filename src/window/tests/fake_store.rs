//! A store in memory, whose values encode where they are from, and which fails, changes or takes its time as a test wants it.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use crate::codec::Scratch;
use crate::dtype::{DType, Stored};
use crate::store::{
    Element, ElementKind, Extent, Part, PartId, PartRole, Piece, ReadError, RowLengths, Schema, SourceBorders,
    SourceInfo, Store, Strings,
};

const N_COLS: u64 = 50;

/// CSR rows: value k of row r is r * 100 + k, in column k. Chunks of the "filtered" kind are stored with every byte inverted.
pub(super) struct FakeStore {
    pub(super) schema: Schema,
    pub(super) rows: RowLengths,
    chunk: u64,
    filtered: bool,
    /// The byte of the data array from which reads fail.
    pub(super) bad_byte: AtomicI64,
    /// A row whose first index is out of range.
    pub(super) bad_index_row: AtomicI64,
    pub(super) stale: AtomicBool,
    pub(super) delay: Duration,
    pub(super) panic_on_read: AtomicBool,
    /// Reads under way, and the most there ever were at one time.
    pub(super) reading: [AtomicU32; 2],
    /// What was named to the kernel: file, first byte, bytes.
    pub(super) hinted: Mutex<Vec<(u32, u64, u64)>>,
    files: [OnceLock<Vec<u8>>; 2],
}

impl FakeStore {
    pub(super) fn new(n_rows: u64, chunk: u64, filtered: bool) -> Self {
        let lens = (0..n_rows).map(|r| (r * 7 % 23) as u32 % 11).collect();
        let part = |role, dtype| Part { element: 0, role, stored: Stored::little(dtype), path: "X".into() };
        let schema = Schema {
            n_rows,
            n_vars: N_COLS,
            var_names: Strings::default(),
            genes: None,
            elements: vec![Element {
                name: "X".into(),
                kind: ElementKind::Sparse { data: 0, indices: 1 },
                n_cols: N_COLS,
                stored_cols: N_COLS,
                dtype: DType::U32,
                index_dtype: DType::I32,
                gene_axis: true,
                dense_sources: Arc::new([]),
            }],
            parts: vec![part(PartRole::Values, DType::U32), part(PartRole::Indices, DType::I32)],
            columns: Vec::new(),
            obs_names: None,
            sources: vec![SourceInfo {
                path: PathBuf::from("fake"),
                kind: String::new(),
                rows: 0..n_rows,
                n_vars: N_COLS,
            }],
            records: None,
        };
        Self {
            schema,
            rows: RowLengths::new(lens).unwrap(),
            chunk,
            filtered,
            bad_byte: (-1).into(),
            bad_index_row: (-1).into(),
            stale: false.into(),
            delay: Duration::ZERO,
            panic_on_read: false.into(),
            reading: [0.into(), 0.into()],
            hinted: Mutex::default(),
            files: [OnceLock::new(), OnceLock::new()],
        }
    }

    /// The bytes of the file that holds a part.
    fn file_bytes(&self, part: u32) -> Vec<u8> {
        let rows = 0..self.rows.n_rows();
        let bad = self.bad_index_row.load(Ordering::Relaxed);
        let elements = rows.flat_map(|r| (0..self.rows.len(r)).map(move |k| (r as u32, k)));
        let mut bytes: Vec<u8> = elements
            .flat_map(|(row, k)| {
                match part {
                    0 => row * 100 + k,
                    _ if k == 0 && bad == i64::from(row) => N_COLS as u32,
                    _ => k,
                }
                .to_le_bytes()
            })
            .collect();
        bytes.resize((self.rows.total().next_multiple_of(self.chunk) * 4) as usize, 0);
        if self.filtered {
            bytes.iter_mut().for_each(|byte| *byte = !*byte);
        }
        bytes
    }
}

impl Store for FakeStore {
    fn schema(&self) -> &Schema {
        &self.schema
    }
    fn row_len(&self, _: usize, row: u64) -> u32 {
        self.rows.len(row as usize)
    }
    fn max_row_len(&self, _: usize) -> u32 {
        self.rows.max()
    }
    fn n_values(&self, _: usize) -> u64 {
        self.rows.total()
    }
    fn pieces(&self, _: PartId, row: u64, emit: &mut dyn FnMut(Piece)) {
        let range = self.rows.range(row as usize);
        let mut at = range.start;
        while at < range.end {
            let chunk = at / self.chunk;
            let stop = ((chunk + 1) * self.chunk).min(range.end);
            let from = (at - chunk * self.chunk) as u32;
            emit(Piece { chunk: chunk as u32, from, to: (at - range.start) as u32, len: (stop - at) as u32 });
            at = stop;
        }
    }
    fn extent(&self, part: PartId, chunk: u32, need: Range<u32>, whole: bool) -> Extent {
        let start = u64::from(chunk) * self.chunk * 4;
        if !self.filtered {
            let address = start + u64::from(need.start) * 4;
            return Extent::File { file: part as u32, address, len: (need.end - need.start) * 4, is_prefix: false };
        }
        // An estimate that is sometimes too short, as estimates are.
        let full = self.chunk * 4;
        let len = if whole { full } else { (u64::from(need.end) * 4 - u64::from(chunk.is_multiple_of(3)) * 2).max(1) };
        Extent::File { file: part as u32, address: start, len: len as u32, is_prefix: len < full }
    }
    fn is_plain(&self, _: PartId, _: u32) -> bool {
        !self.filtered
    }
    fn n_chunks(&self, _: PartId) -> u64 {
        self.rows.total().div_ceil(self.chunk)
    }
    fn chunk_bytes(&self, _: PartId) -> usize {
        self.chunk as usize * 4
    }
    fn decode(
        &self,
        _: PartId,
        _: u32,
        need: Range<u32>,
        stored: &[u8],
        _: bool,
        _: &mut Scratch,
        out: &mut [u8],
    ) -> Result<u64, ReadError> {
        let end = need.end as usize * 4;
        let source = stored.get(..end).ok_or(ReadError::Short)?;
        out[..end].iter_mut().zip(source).for_each(|(o, s)| *o = !s);
        Ok(end as u64)
    }
    fn chunk_borders(&self) -> Vec<SourceBorders> {
        Vec::new()
    }
    fn read_at(&self, file: u32, offset: u64, buf: &mut [u8]) -> Result<(), ReadError> {
        assert!(!self.panic_on_read.load(Ordering::Relaxed), "a defect");
        let under_way = self.reading[0].fetch_add(1, Ordering::Relaxed) + 1;
        self.reading[1].fetch_max(under_way, Ordering::Relaxed);
        std::thread::sleep(self.delay);
        self.reading[0].fetch_sub(1, Ordering::Relaxed);
        let bad = self.bad_byte.load(Ordering::Relaxed);
        if file == 0 && bad >= offset as i64 && bad < offset as i64 + buf.len() as i64 {
            return Err(ReadError::Io { file: "fake".into(), offset, len: buf.len(), reason: "injected".into() });
        }
        let from = offset as usize;
        buf.copy_from_slice(&self.files[file as usize].get_or_init(|| self.file_bytes(file))[from..from + buf.len()]);
        Ok(())
    }
    fn will_need(&self, file: u32, offset: u64, len: u64) {
        self.hinted.lock().push((file, offset, len));
    }
    fn check_unchanged(&self, _: u32) -> Result<(), ReadError> {
        if self.stale.load(Ordering::Relaxed) { Err(ReadError::Stale { file: "fake".into() }) } else { Ok(()) }
    }
    fn bad_row(&self, _: PartId, row: u64, reason: String) -> ReadError {
        ReadError::BadRow { file: "fake".into(), element: "X/indices".into(), row, reason }
    }
    fn max_stored_bytes(&self) -> usize {
        self.chunk as usize * 4
    }
    fn resident_bytes(&self) -> u64 {
        0
    }
}
