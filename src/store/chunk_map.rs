//! Chunk maps: the one structure that describes all stored arrays.
//!
//! HDF5 chunks, zarr chunk files and the inner chunks of zarr shards all become a [`ChunkMap`], so there is one read path,
//! one place for decoding, one for faults. Contiguous arrays are cut into *virtual* chunks of [`VIRTUAL_CHUNK_BYTES`], of which
//! only the wanted bytes are read; compact ones are resident.

use std::ops::Range;
use std::sync::Arc;

use super::array::Array;
use super::cache::{Cacheable, Sections};
use super::{Extent, Piece};
use crate::codec::Pipeline;
use crate::dtype::Stored;
use crate::num::{to_u64, to_usize};

/// Size of the virtual chunks of contiguous arrays: large enough that a block of rows is one or two reads, small enough
/// that two distant blocks rarely share one (what lies between them would be read too).
pub const VIRTUAL_CHUNK_BYTES: u64 = 256 * 1024;

/// Address of a chunk that was never written.
pub const UNALLOCATED: u64 = u64::MAX;

/// Where one chunk lies: 16 bytes.
#[repr(C)] // as it lies in entries of the cache folder
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkEntry {
    /// Absolute file address; [`UNALLOCATED`] if the chunk was never written and reads as the fill value.
    pub address: u64,
    /// Stored size in bytes.
    pub stored_len: u32,
    /// Bit i set: filter i was skipped.
    pub mask: u32,
}

/// How the bytes of an array are arranged.
#[derive(Debug, Clone)]
pub enum Storage {
    /// In chunks, row-major over the grid of chunks.
    Chunked(Array<ChunkEntry>),
    /// In one run, unfiltered, starting at this file address.
    Contiguous(u64),
    /// In memory, unfiltered (compact layout): the whole array.
    Resident(Arc<[u8]>),
    /// Never written: every element is the fill value.
    Unallocated,
}

/// Which files hold the chunks of an array. It follows from the chunk's place in the grid, so that no entry has to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkFiles {
    /// The first file, an index of the store's file table.
    pub first: u32,
    /// Chunks per file along both axes, where every box of chunks has a file of its own, in the order of the grid of boxes. `None`:
    /// everything lies in the first file.
    pub per_file: Option<[u64; 2]>,
}

impl ChunkFiles {
    /// Everything lies in `file`.
    #[must_use]
    pub const fn one(file: u32) -> Self {
        Self { first: file, per_file: None }
    }

    /// The file of `chunk`, in a grid of `grid_cols` chunks along the second axis.
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // files are numbered by u32 when the map is built
    pub fn of(&self, chunk: u64, grid_cols: u64) -> u32 {
        let Some([rows, cols]) = self.per_file else { return self.first };
        let (i, j) = (chunk / grid_cols / rows, chunk % grid_cols / cols);
        self.first + (i * grid_cols.div_ceil(cols) + j) as u32
    }

    /// The same where the source's file 0 is `file`.
    #[must_use]
    pub const fn behind(self, file: u32) -> Self {
        Self { first: self.first + file, ..self }
    }
}

/// What an array was before it was rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// Chunk extent along the rows of the matrix, if rows can be cut along chunks.
    pub cut: Option<u64>,
    /// Size of all elements in bytes, before compression.
    pub total_bytes: u64,
}

/// A stored array of rank 1 or 2.
#[derive(Debug, Clone)]
pub struct ChunkMap {
    /// The files.
    pub files: ChunkFiles,
    /// Elements along the first axis.
    pub n_rows: u64,
    /// Elements along the second axis; 1 for arrays of rank 1.
    pub n_cols: u64,
    /// Chunk extent along both axes, in elements. For unchunked arrays a virtual one, see [`ChunkMap::virtual_chunk`].
    pub chunk: [u64; 2],
    /// Type and byte order of the elements.
    pub stored: Stored,
    /// How chunks decode; its `chunk_bytes` is `chunk[0] * chunk[1] * element size`.
    pub pipeline: Pipeline,
    /// The fill value as stored; `stored.dtype.size_bytes()` bytes are used.
    pub fill: [u8; 8],
    /// The arrangement.
    pub storage: Storage,
    /// What it was before it was rewritten, if it was: the order goes by that.
    pub origin: Option<Origin>,
}

impl ChunkMap {
    /// A row-major array in one run of a file, numbered 0 for now.
    #[must_use]
    pub fn contiguous(address: u64, [n_rows, n_cols]: [u64; 2], stored: Stored) -> Self {
        let elem_size = stored.dtype.size_bytes();
        let chunk = Self::virtual_chunk(n_rows, n_cols, to_u64(elem_size));
        let pipeline = Pipeline::new([], to_usize(chunk[0] * chunk[1]) * elem_size);
        let (files, storage) = (ChunkFiles::one(0), Storage::Contiguous(address));
        Self { files, n_rows, n_cols, chunk, stored, pipeline, fill: [0; 8], storage, origin: None }
    }

    /// Chunk extent along the rows where the order may cut, if there are chunks.
    #[must_use]
    pub fn cut_extent(&self) -> Option<u64> {
        match self.origin {
            Some(origin) => origin.cut,
            None => matches!(self.storage, Storage::Chunked(_)).then(|| self.chunk[0]),
        }
    }

    /// Size of all elements in bytes as the source holds them, before compression.
    #[must_use]
    pub fn source_bytes(&self) -> u64 {
        self.origin.map_or_else(|| self.total_bytes(), |origin| origin.total_bytes)
    }

    /// The virtual chunk of an unchunked array: whole rows where a row is small, else a part of one row. The product of both
    /// extents times `elem_size` is about [`VIRTUAL_CHUNK_BYTES`].
    #[must_use]
    pub fn virtual_chunk(n_rows: u64, n_cols: u64, elem_size: u64) -> [u64; 2] {
        let elems = (VIRTUAL_CHUNK_BYTES / elem_size).max(1);
        if n_cols >= elems { [1, elems] } else { [(elems / n_cols.max(1)).clamp(1, n_rows.max(1)), n_cols.max(1)] }
    }

    /// Chunks along the second axis.
    fn grid_cols(&self) -> u64 {
        self.n_cols.div_ceil(self.chunk[1]).max(1)
    }

    /// The file that holds `chunk`.
    #[must_use]
    pub fn file_of(&self, chunk: u32) -> u32 {
        self.files.of(u64::from(chunk), self.grid_cols())
    }

    /// Number of chunks of the grid.
    #[must_use]
    pub fn n_chunks(&self) -> u64 {
        self.n_rows.div_ceil(self.chunk[0]) * self.grid_cols()
    }

    /// True if chunks hold more than their bytes need: they are decoded as a whole or by prefix.
    #[must_use]
    pub fn is_filtered(&self) -> bool {
        !self.pipeline.is_plain()
    }

    /// The pieces of the elements `range` of an array of rank 1.
    #[allow(clippy::cast_possible_truncation)] // chunk numbers and chunk extents are limited to 2^31 when the map is built
    pub fn pieces_of_range(&self, range: Range<u64>, emit: &mut dyn FnMut(Piece)) {
        let chunk_len = self.chunk[0];
        let mut at = range.start;
        while at < range.end {
            let chunk = at / chunk_len;
            let stop = ((chunk + 1) * chunk_len).min(range.end);
            emit(Piece {
                chunk: chunk as u32,
                from: (at - chunk * chunk_len) as u32,
                to: (at - range.start) as u32,
                len: (stop - at) as u32,
            });
            at = stop;
        }
    }

    /// The pieces of `row` of an array of rank 2.
    #[allow(clippy::cast_possible_truncation)] // as above
    pub fn pieces_of_row(&self, row: u64, emit: &mut dyn FnMut(Piece)) {
        let [chunk_rows, chunk_cols] = self.chunk;
        let first = row / chunk_rows * self.grid_cols();
        let within = row % chunk_rows * chunk_cols;
        let mut col = 0;
        while col < self.n_cols {
            let len = chunk_cols.min(self.n_cols - col);
            emit(Piece {
                chunk: (first + col / chunk_cols) as u32,
                from: within as u32,
                to: col as u32,
                len: len as u32,
            });
            col += len;
        }
    }

    /// Where the elements `need` of `chunk` lie, see [`super::Store::extent`].
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // stored sizes are u32, virtual chunks are small
    pub fn extent(&self, chunk: u32, need: Range<u32>, whole: bool) -> Extent {
        let size = self.stored.dtype.size_bytes() as u64;
        let (first, last) = (u64::from(need.start) * size, u64::from(need.end) * size);
        match &self.storage {
            Storage::Resident(_) | Storage::Unallocated => Extent::Resident,
            Storage::Contiguous(start) => {
                let address = start + self.first_element(chunk) * size + first;
                Extent::File { file: self.files.first, address, len: (last - first) as u32, is_prefix: false }
            }
            Storage::Chunked(entries) => match entries.get(chunk as usize) {
                None => Extent::Resident,
                Some(e) if e.address == UNALLOCATED => Extent::Resident,
                Some(e) if !self.is_filtered() => Extent::File {
                    file: self.file_of(chunk),
                    address: e.address + first,
                    len: (last - first) as u32,
                    is_prefix: false,
                },
                Some(e) => {
                    let stored_len = e.stored_len as usize;
                    let len =
                        if whole { stored_len } else { self.pipeline.stored_prefix(stored_len, e.mask, last as usize) };
                    let len = len.min(stored_len);
                    Extent::File {
                        file: self.file_of(chunk),
                        address: e.address,
                        len: len as u32,
                        is_prefix: len < stored_len,
                    }
                }
            },
        }
    }

    /// Row-major number of the first element of a virtual chunk of an unchunked array.
    #[must_use]
    pub fn first_element(&self, chunk: u32) -> u64 {
        let (i, j) = (u64::from(chunk) / self.grid_cols(), u64::from(chunk) % self.grid_cols());
        i * self.chunk[0] * self.n_cols + j * self.chunk[1]
    }

    /// Writes the bytes `bytes` of a chunk that needs no reading to their places in `out`, a buffer of a whole chunk: from
    /// memory, or the fill value.
    pub fn fill_resident(&self, chunk: u32, bytes: Range<usize>, out: &mut [u8]) {
        let size = self.stored.dtype.size_bytes();
        let Some(out) = out.get_mut(bytes.clone()) else { return };
        if let Storage::Resident(all) = &self.storage {
            let start = to_usize(self.first_element(chunk)) * size + bytes.start;
            if let Some(from) = all.get(start..start + out.len()) {
                out.copy_from_slice(from);
            }
            return;
        }
        for element in out.chunks_exact_mut(size) {
            element.copy_from_slice(&self.fill[..size]);
        }
    }

    /// Size of all elements in bytes, before compression.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.n_rows.saturating_mul(self.n_cols).saturating_mul(to_u64(self.stored.dtype.size_bytes()))
    }

    /// The largest number of bytes that one read of a chunk takes.
    #[must_use]
    pub fn max_stored_bytes(&self) -> usize {
        match &self.storage {
            Storage::Chunked(entries) if self.is_filtered() => {
                to_usize(entries.iter().map(|e| u64::from(e.stored_len)).max().unwrap_or(0))
            }
            Storage::Chunked(_) | Storage::Contiguous(_) => self.pipeline.chunk_bytes,
            Storage::Resident(_) | Storage::Unallocated => 0,
        }
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        match &self.storage {
            Storage::Chunked(entries) => entries.heap_bytes(),
            Storage::Resident(bytes) => bytes.len() as u64,
            Storage::Contiguous(_) | Storage::Unallocated => 0,
        }
    }
}

/// A table of chunks.
impl Cacheable for Array<ChunkEntry> {
    type Facts = usize;

    fn to_entry<'a>(&'a self, sections: &mut Vec<&'a [u8]>) -> usize {
        sections.push(self.as_bytes());
        self.len()
    }

    fn from_entry(len: usize, sections: &mut Sections<'_>) -> Option<Self> {
        sections.array(len)
    }
}
