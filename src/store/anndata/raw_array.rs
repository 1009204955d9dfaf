//! Arrays as stored, of any element type, and how they are read when a source is opened.
//!
//! A [`RawArray`] is a [`ChunkMap`] whose elements are only known by their size: numbers, fixed-length text, records, or the
//! references that stand for variable-length text. What has to be resident (columns, names, `indptr`) is read through it
//! with the same bounded decoders as the rows later: a chunk fills its buffer exactly, or the array is refused.

use std::ops::Range;

use super::node::Source;
use crate::codec::{Pipeline, Scratch};
use crate::dtype::Stored;
use crate::num::{to_u64, to_usize};
use crate::store::chunk_map::{ChunkEntry, ChunkFiles, ChunkMap, Storage, UNALLOCATED};
use crate::store::error::OpenError;

/// Bytes per read of contiguous arrays.
const RUN_BYTES: u64 = 1 << 20;

/// Takes the first row of a run and its bytes.
type EachPiece<'a> = dyn FnMut(u64, &[u8]) -> Result<(), OpenError> + 'a;

/// A stored array of rank 1 or 2 (a scalar is an array of one element).
#[derive(Debug, Clone)]
pub struct RawArray {
    /// The files, as the source numbers them.
    pub files: ChunkFiles,
    /// Elements along both axes; the second one is 1 for rank 1.
    pub dims: [u64; 2],
    /// Size of an element in bytes, at least 1.
    pub elem_size: usize,
    /// Chunk extent along both axes, in elements, at least 1; virtual for unchunked arrays.
    pub chunk: [u64; 2],
    /// How chunks decode.
    pub pipeline: Pipeline,
    /// The fill value, `elem_size` bytes.
    pub fill: Vec<u8>,
    /// The arrangement.
    pub storage: Storage,
}

impl RawArray {
    /// The chunk map of an array of numbers. Their size is at most 8 bytes, as that of every [`Stored`].
    #[must_use]
    pub fn into_map(self, stored: Stored) -> ChunkMap {
        let mut fill = [0; 8];
        for (to, from) in fill.iter_mut().zip(&self.fill) {
            *to = *from;
        }
        ChunkMap {
            files: self.files,
            n_rows: self.dims[0],
            n_cols: self.dims[1],
            chunk: self.chunk,
            stored,
            pipeline: self.pipeline,
            fill,
            storage: self.storage,
            origin: None,
        }
    }

    /// Size of all elements in bytes, before compression.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.dims[0].saturating_mul(self.dims[1]).saturating_mul(to_u64(self.elem_size))
    }

    /// True if chunks cut rows, so that a run of rows is not one run of bytes of one chunk.
    #[must_use]
    pub fn cuts_rows(&self) -> bool {
        matches!(self.storage, Storage::Chunked(_)) && self.chunk[1] < self.dims[1]
    }

    /// All bytes in row-major order, charged to the source.
    ///
    /// # Errors
    /// [`OpenError`] if the bytes are damaged, cannot be read, or are too many.
    pub fn read_all(&self, source: &Source, path: &str) -> Result<Vec<u8>, OpenError> {
        let total = self.total_bytes();
        source.charge(path, total)?;
        let mut out = vec![0_u8; to_usize(total)];
        if self.cuts_rows() {
            self.read_cut_rows(source, path, &mut out)?;
        } else {
            let mut at = 0;
            self.visit_runs(source, path, &mut |_, bytes| {
                if let Some(to) = out.get_mut(at..at + bytes.len()) {
                    to.copy_from_slice(bytes);
                }
                at += bytes.len();
                Ok(())
            })?;
        }
        Ok(out)
    }

    /// Calls `each` with consecutive runs of whole rows, in order: the first row, and the bytes. At most one chunk (or 1 MiB)
    /// is held at a time. Only for arrays whose rows are not cut.
    ///
    /// # Errors
    /// [`OpenError`] if the bytes are damaged or cannot be read; what `each` returns.
    pub fn visit_runs(&self, source: &Source, path: &str, each: &mut EachPiece<'_>) -> Result<(), OpenError> {
        let mut runs = Runs::new(self, source, path)?;
        while runs.advance()? {
            let (first, bytes) = runs.run();
            each(first, bytes)?;
        }
        Ok(())
    }

    /// Number of its files.
    #[must_use]
    pub fn n_files(&self) -> u32 {
        let Some(per_file) = self.files.per_file else { return 1 };
        let along = |axis: usize| self.dims[axis].div_ceil(self.chunk[axis]).div_ceil(per_file[axis]);
        // Files are numbered by u32.
        u32::try_from(along(0).saturating_mul(along(1).max(1))).unwrap_or(u32::MAX)
    }

    /// Bytes that the array takes in its files.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        match &self.storage {
            Storage::Chunked(entries) => {
                entries.iter().filter(|e| e.address != UNALLOCATED).map(|e| u64::from(e.stored_len)).sum()
            }
            Storage::Contiguous(_) | Storage::Resident(_) => self.total_bytes(),
            Storage::Unallocated => 0,
        }
    }

    /// Chunks that cut rows, put together.
    fn read_cut_rows(&self, source: &Source, path: &str, out: &mut [u8]) -> Result<(), OpenError> {
        let [n_rows, n_cols] = self.dims;
        let [chunk_rows, chunk_cols] = self.chunk;
        let size = to_u64(self.elem_size);
        let grid_cols = n_cols.div_ceil(chunk_cols);
        let mut reader = ChunkReader::new(self, source, path)?;
        for i in 0..n_rows.div_ceil(chunk_rows) {
            for j in 0..grid_cols {
                let chunk = reader.chunk(i * grid_cols + j)?;
                let (row, col) = (i * chunk_rows, j * chunk_cols);
                let len = to_usize(chunk_cols.min(n_cols - col) * size);
                for r in 0..chunk_rows.min(n_rows - row) {
                    let (from, to) = (to_usize(r * chunk_cols * size), to_usize(((row + r) * n_cols + col) * size));
                    if let (Some(to), Some(from)) = (out.get_mut(to..to + len), chunk.get(from..from + len)) {
                        to.copy_from_slice(from);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Consecutive runs of whole rows of an array whose rows are not cut, one at a time: at most one chunk (or 1 MiB) is held.
pub struct Runs<'a> {
    array: &'a RawArray,
    source: &'a Source,
    path: &'a str,
    row_bytes: u64,
    /// Reads chunks, if there are any.
    reader: Option<ChunkReader<'a>>,
    /// Holds the run of an array without chunks.
    buffer: Vec<u8>,
    /// Rows of the current run.
    rows: Range<u64>,
}

impl<'a> Runs<'a> {
    /// All runs of `array`.
    ///
    /// # Errors
    /// [`OpenError`] if a chunk is larger than the source justifies.
    pub fn new(array: &'a RawArray, source: &'a Source, path: &'a str) -> Result<Self, OpenError> {
        let row_bytes = array.dims[1].saturating_mul(to_u64(array.elem_size)).max(1);
        let reader = match &array.storage {
            Storage::Chunked(_) => Some(ChunkReader::new(array, source, path)?),
            _ => None,
        };
        Ok(Self { array, source, path, row_bytes, reader, buffer: Vec::new(), rows: 0..0 })
    }

    /// Lets the next run be the one that holds `row`.
    pub fn seek(&mut self, row: u64) {
        let start = match &self.array.storage {
            Storage::Chunked(_) => row - row % self.array.chunk[0],
            Storage::Resident(_) => 0,
            Storage::Contiguous(_) | Storage::Unallocated => row,
        };
        self.rows = start..start;
    }

    /// Reads the next run; false at the end.
    ///
    /// # Errors
    /// [`OpenError`] if the bytes are damaged or cannot be read.
    pub fn advance(&mut self) -> Result<bool, OpenError> {
        let (n_rows, first) = (self.array.dims[0], self.rows.end);
        if first >= n_rows {
            return Ok(false);
        }
        let mut end = n_rows.min(first + (RUN_BYTES / self.row_bytes).max(1));
        match &self.array.storage {
            Storage::Resident(_) => end = n_rows,
            Storage::Chunked(_) => {
                end = n_rows.min(first + self.array.chunk[0]);
                if let Some(reader) = &mut self.reader {
                    reader.chunk(first / self.array.chunk[0])?;
                }
            }
            Storage::Contiguous(address) => {
                self.buffer.resize(to_usize((end - first) * self.row_bytes), 0);
                let at = address + first * self.row_bytes;
                let read = self.source.read_at(self.array.files.first, at, &mut self.buffer);
                read.map_err(|e| unreadable(self.source, self.path, &e.to_string()))?;
            }
            Storage::Unallocated => {
                let len = to_usize((end - first) * self.row_bytes);
                if self.buffer.len() != len {
                    self.buffer = self.array.fill.repeat(len / self.array.elem_size);
                }
            }
        }
        self.rows = first..end;
        Ok(true)
    }

    /// First row and bytes of the current run.
    #[must_use]
    pub fn run(&self) -> (u64, &[u8]) {
        let len = to_usize((self.rows.end - self.rows.start) * self.row_bytes);
        let bytes = match (&self.array.storage, &self.reader) {
            (Storage::Resident(bytes), _) => bytes,
            (_, Some(reader)) => &*reader.decoded,
            _ => &*self.buffer,
        };
        (self.rows.start, bytes.get(..len).unwrap_or_default())
    }
}

/// Reads whole chunks of one array into a buffer that it keeps.
pub struct ChunkReader<'a> {
    array: &'a RawArray,
    source: &'a Source,
    path: &'a str,
    scratch: Scratch,
    stored: Vec<u8>,
    decoded: Vec<u8>,
}

impl<'a> ChunkReader<'a> {
    /// A reader that has read nothing yet.
    ///
    /// # Errors
    /// [`OpenError`] if a chunk is larger than the source justifies.
    pub fn new(array: &'a RawArray, source: &'a Source, path: &'a str) -> Result<Self, OpenError> {
        let chunk_bytes = array.pipeline.chunk_bytes;
        // A chunk larger than its array exists where arrays can grow: it must not take more than the file justifies.
        if !source.allows(to_u64(chunk_bytes)) {
            let reason = format!("chunk of {chunk_bytes} bytes in a source of {}", source.seen_bytes());
            return Err(OpenError::refused(source.path(), path, reason, "write it again with smaller chunks"));
        }
        Ok(Self { array, source, path, scratch: Scratch::default(), stored: Vec::new(), decoded: vec![0; chunk_bytes] })
    }

    /// Chunk `number`, decoded.
    ///
    /// # Errors
    /// [`OpenError`] if it is damaged or cannot be read.
    pub fn chunk(&mut self, number: u64) -> Result<&[u8], OpenError> {
        let entry = match &self.array.storage {
            Storage::Chunked(entries) => entries.get(to_usize(number)).copied(),
            _ => None,
        };
        let Some(ChunkEntry { address, stored_len, mask }) = entry.filter(|e| e.address != UNALLOCATED) else {
            let fill = self.array.fill.as_slice();
            for element in self.decoded.chunks_mut(self.array.elem_size) {
                element.copy_from_slice(fill.get(..element.len()).unwrap_or_default());
            }
            return Ok(&self.decoded);
        };
        let stored_len = to_usize(u64::from(stored_len));
        let grid_cols = self.array.dims[1].div_ceil(self.array.chunk[1]).max(1);
        let file = self.array.files.of(number, grid_cols);
        if self.array.pipeline.is_plain() {
            // Its length was checked when the map was built.
            self.source
                .read_at(file, address, &mut self.decoded)
                .map_err(|e| unreadable(self.source, self.path, &e.to_string()))?;
            return Ok(&self.decoded);
        }
        self.stored.resize(stored_len, 0);
        self.source
            .read_at(file, address, &mut self.stored)
            .map_err(|e| unreadable(self.source, self.path, &e.to_string()))?;
        let need = 0..self.decoded.len();
        self.array
            .pipeline
            .decode(&self.stored, false, mask, need, &mut self.scratch, &mut self.decoded)
            .map_err(|e| unreadable(self.source, self.path, &format!("chunk {number}: {e}")))?;
        Ok(&self.decoded)
    }
}

fn unreadable(source: &Source, path: &str, reason: &str) -> OpenError {
    OpenError::refused(source.path(), path, reason, "the file is damaged: copy or download it again")
}
