//! What the sources hold, and where its bytes lie.
//!
//! A [`Store`] is a dataset after it was opened and checked: a [`Schema`], row lengths, block borders, and the *parts* of
//! its elements. An element is what users see (`X`, `layers.counts`, `obsm.X_pca`); a part is one stored array of it: the data or
//! the indices of a sparse element, the values of a dense one. Parts are cut into *chunks*, the units that are read and
//! decoded; a row occupies one or more [`Piece`]s of chunks. Columns of `obs` and the names are resident and are gathered
//! without reading.
//!
//! Molecules are stored the other way round: everything about a row stands in one record. Such a store has a single part whose chunks are the
//! records, one per row, and takes them apart into the columns of a [`RecordSchema`]; its elements are what has row lengths.
//!
//! The hot path asks a store four questions: which pieces a row has ([`Store::pieces`]), where a chunk lies
//! ([`Store::extent`]), what its stored bytes decode to ([`Store::decode`]), and whether its file is still the one that
//! was opened ([`Store::check_unchanged`]). It never enters the HDF5 library, whose global lock would serialise it.
//!
//! A store starts no thread, caches nothing, and knows nothing of batches.
#![deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

pub mod anndata;
pub mod array;
pub mod atompack;
pub mod cache;
pub mod chunk_map;
pub mod collection;
pub mod column;
pub mod error;
pub mod fault;
pub mod file;
pub mod files;
pub mod fingerprint;
pub mod genes;
pub mod records;
pub mod rows;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use crate::codec::Scratch;
use crate::dtype::{DType, Stored};

pub use array::Array;
pub use column::{Categories, Column, ColumnData, Strings};
pub use error::{OpenError, ReadError};
pub use genes::{GeneMap, ServedGenes};
pub use records::{NextRecord, RecordBuffers, RecordColumn, RecordSchema, RecordSink, StoredRecord};
pub use rows::RowLengths;

/// Index of an element in [`Schema::elements`].
pub type ElementId = usize;
/// Index of a part in [`Schema::parts`].
pub type PartId = usize;

/// What a dataset holds, as far as it was selected.
#[derive(Debug, Clone)]
pub struct Schema {
    /// Number of rows of all sources together.
    pub n_rows: u64,
    /// Number of genes that the sources have together, joined as chosen; 0 for molecules.
    pub n_vars: u64,
    /// Their names, in the order of the joined columns.
    pub var_names: Strings,
    /// Where the columns of the sources' genes go; `None` if all stay where they are.
    pub genes: Option<Arc<ServedGenes>>,
    /// Streamed elements: X first if there is one, then layers, then obsm, in the order of selection.
    pub elements: Vec<Element>,
    /// The stored arrays of the elements.
    pub parts: Vec<Part>,
    /// Resident columns of obs, in column order.
    pub columns: Vec<Column>,
    /// Names of the rows, if they are kept.
    pub obs_names: Option<Strings>,
    /// The sources, in the order given, with the rows that each contributes.
    pub sources: Vec<SourceInfo>,
    /// The columns of records, if rows are stored as records.
    pub records: Option<RecordSchema>,
}

/// One source of a dataset.
#[derive(Debug, Clone)]
pub struct SourceInfo {
    /// Path as the user gave it, made absolute.
    pub path: PathBuf,
    /// Container and encoding in a few words, such as `h5ad, csr`.
    pub kind: String,
    /// Global ids of its rows.
    pub rows: Range<u64>,
    /// Its genes: columns of its elements on the gene axis.
    pub n_vars: u64,
}

/// Where one source's X is cut by its chunks.
#[derive(Debug, Clone)]
pub struct SourceBorders {
    /// Global ids of the source's rows.
    pub rows: Range<u64>,
    /// Global ids of the rows with which a chunk begins, ascending, without repetition, the first one `rows.start`: a row
    /// begins in the chunk that holds its first value, and a chunk where no row begins has no entry. `None` if X has no
    /// chunks that cost anything to cut (contiguous), or there is no X.
    pub first_rows: Option<Vec<u64>>,
    /// Bytes of X's stored elements (data and indices, before compression) in all rows of the source; 0 without X.
    pub x_bytes: u64,
}

/// One matrix whose rows are streamed into batches.
#[derive(Debug, Clone)]
pub struct Element {
    /// Name as in batches: `X`, `layers.counts`, `obsm.X_pca`.
    pub name: String,
    /// Sparse or dense.
    pub kind: ElementKind,
    /// Columns of the matrix: joined genes, or components.
    pub n_cols: u64,
    /// Columns of the widest source: `n_cols` unless genes of sources differ.
    pub stored_cols: u64,
    /// Type of the values, as served.
    pub dtype: DType,
    /// Type of the column indices of a sparse element, as served: int32 unless another one was asked for.
    pub index_dtype: DType,
    /// True if the columns are the genes of `var`, so that a choice of genes applies.
    pub gene_axis: bool,
    /// For [`ElementKind::Mixed`]: which sources are dense. Else empty.
    pub dense_sources: Arc<[bool]>,
}

impl Element {
    /// Type of the elements of a part with this role, as served.
    #[must_use]
    pub fn served(&self, role: PartRole) -> DType {
        match role {
            PartRole::Values | PartRole::Records => self.dtype,
            PartRole::Indices => self.index_dtype,
        }
    }
}

/// How the rows of an element are stored. A part in which a source has no array has no chunk of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementKind {
    /// CSR: a row has a number of stored values of its own ([`Store::row_len`]), in two parallel arrays.
    Sparse {
        /// Part that holds the values.
        data: PartId,
        /// Part that holds the column indices.
        indices: PartId,
    },
    /// Every row has as many values as its source has columns.
    Dense {
        /// Part that holds the values.
        values: PartId,
    },
    /// Sparse in some sources, dense in others ([`Schema::is_dense`]); served dense. The rows of dense sources have no values in the sparse
    /// parts ([`Store::row_len`] is 0), those of sparse ones have none in the dense part.
    Mixed {
        /// Part that holds the values of sparse rows.
        data: PartId,
        /// Part that holds their column indices.
        indices: PartId,
        /// Part that holds dense rows.
        values: PartId,
    },
    /// No array of its own: row lengths that columns of records share, such as the number of atoms.
    Lengths,
}

impl ElementKind {
    /// True if rows have lengths of their own in the element ([`Store::row_len`]).
    #[must_use]
    pub const fn has_row_lengths(self) -> bool {
        !matches!(self, Self::Dense { .. })
    }

    /// The parts of values and column indices, if rows of any source are sparse.
    #[must_use]
    pub fn sparse(self) -> Option<(PartId, PartId)> {
        match self {
            Self::Sparse { data, indices } | Self::Mixed { data, indices, .. } => Some((data, indices)),
            Self::Dense { .. } | Self::Lengths => None,
        }
    }

    /// The part of dense rows, if rows of any source are dense.
    #[must_use]
    pub fn dense(self) -> Option<PartId> {
        match self {
            Self::Dense { values } | Self::Mixed { values, .. } => Some(values),
            Self::Sparse { .. } | Self::Lengths => None,
        }
    }
}

impl Schema {
    /// The source of `row`.
    ///
    /// # Panics
    /// If `row` is not below `n_rows`.
    #[must_use]
    pub fn source_of(&self, row: u64) -> usize {
        match self.sources.as_slice() {
            [_] => 0,
            sources => sources.partition_point(|source| source.rows.end <= row),
        }
    }

    /// Columns of `element` as `source` has them.
    #[must_use]
    pub fn source_cols(&self, element: ElementId, source: usize) -> u64 {
        let element = &self.elements[element];
        if element.gene_axis { self.sources.get(source).map_or(0, |source| source.n_vars) } else { element.n_cols }
    }

    /// Where the columns of `element` go, `None` if they stay where they are in all sources.
    #[must_use]
    pub fn genes_of(&self, element: ElementId) -> Option<&ServedGenes> {
        self.genes.as_deref().filter(|_| self.elements[element].gene_axis)
    }

    /// True if `element` is stored dense in `source`.
    #[must_use]
    pub fn is_dense(&self, element: ElementId, source: usize) -> bool {
        let element = &self.elements[element];
        match element.kind {
            ElementKind::Dense { .. } => true,
            ElementKind::Sparse { .. } | ElementKind::Lengths => false,
            ElementKind::Mixed { .. } => element.dense_sources.get(source).copied().unwrap_or(false),
        }
    }
}

/// One stored array.
#[derive(Debug, Clone)]
pub struct Part {
    /// The element it belongs to.
    pub element: ElementId,
    /// Values or column indices.
    pub role: PartRole,
    /// Type and byte order of the stored elements of the first source that has them. Others may differ: [`Store::chunk_form`].
    pub stored: Stored,
    /// Where it lies, for messages: `X/data`.
    pub path: String,
}

/// What the elements of a part are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartRole {
    /// Values, served as [`Element::dtype`].
    Values,
    /// Column indices, served as [`Element::index_dtype`] after a range check.
    Indices,
    /// Records: chunk i is the record of row i, see [`Store::record`].
    Records,
}

/// What a chunk's elements are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkForm {
    /// The source that the chunk belongs to.
    pub source: usize,
    /// Type and byte order of its elements.
    pub stored: Stored,
    /// Decoded size in bytes.
    pub bytes: usize,
}

/// A run of elements of one row in one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The chunk.
    pub chunk: u32,
    /// First element within the decoded chunk.
    pub from: u32,
    /// First element within the row.
    pub to: u32,
    /// Number of elements, at least 1.
    pub len: u32,
}

/// Where the stored bytes of a chunk lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Bytes of a file.
    File {
        /// The file, an index of the store's file table.
        file: u32,
        /// First byte.
        address: u64,
        /// Number of bytes to read.
        len: u32,
        /// True if these are not all the stored bytes of the chunk but a likely sufficient prefix.
        is_prefix: bool,
    },
    /// Nothing to read: the chunk was never written (fill value), or its bytes are resident.
    Resident,
}

/// An opened dataset. Implementations are immutable and shared by all threads.
pub trait Store: Send + Sync {
    /// What the dataset holds.
    fn schema(&self) -> &Schema;

    /// Stored values of `row` in an `element` with row lengths.
    ///
    /// # Panics
    /// If `row` is not below [`Schema::n_rows`] or `element` has no row lengths: row ids come from the order, never from a file.
    fn row_len(&self, element: ElementId, row: u64) -> u32;

    /// Stored values of the longest row of an `element` with row lengths.
    fn max_row_len(&self, element: ElementId) -> u32;

    /// BLAKE3 of the lengths of all rows of one source in an `element` with row lengths, as little-endian u32.
    ///
    /// # Panics
    /// As [`Store::row_len`]; also if there is no source of this number.
    fn row_lengths_digest(&self, element: ElementId, source: usize) -> [u8; 32] {
        let mut hash = blake3::Hasher::new();
        for row in self.schema().sources[source].rows.clone() {
            hash.update(&self.row_len(element, row).to_le_bytes());
        }
        *hash.finalize().as_bytes()
    }

    /// Stored values of all rows of an `element` with row lengths.
    fn n_values(&self, element: ElementId) -> u64;

    /// The pieces of `row` in `part`, by ascending position in the row.
    fn pieces(&self, part: PartId, row: u64, emit: &mut dyn FnMut(Piece));

    /// Where the bytes lie that hold the elements `need` of a chunk. For chunks without filters exactly those elements; for
    /// others the whole chunk or a prefix that is likely enough (`whole` asks for all of it).
    fn extent(&self, part: PartId, chunk: u32, need: Range<u32>, whole: bool) -> Extent;

    /// True if `chunk` is stored without filters: the bytes of [`Store::extent`] then are the elements `need` themselves, and
    /// [`Store::decode`] is only for chunks that are [`Extent::Resident`].
    fn is_plain(&self, part: PartId, chunk: u32) -> bool;

    /// Number of chunks of `part`.
    fn n_chunks(&self, part: PartId) -> u64;

    /// Decoded size of the largest chunk of `part`, in bytes.
    fn chunk_bytes(&self, part: PartId) -> usize;

    /// What the elements of a chunk are. By default, as is right for one source: what the schema says of the part.
    fn chunk_form(&self, part: PartId, _chunk: u32) -> ChunkForm {
        ChunkForm { source: 0, stored: self.schema().parts[part].stored, bytes: self.chunk_bytes(part) }
    }

    /// Decoded size of all chunks of `part` that have filters, in bytes; saturates.
    fn filtered_bytes(&self, part: PartId) -> u64 {
        let n = if self.n_chunks(part) > 0 && !self.is_plain(part, 0) { self.n_chunks(part) } else { 0 };
        n.saturating_mul(crate::num::to_u64(self.chunk_bytes(part)))
    }

    /// Decodes `stored`, the bytes of [`Store::extent`] for the same `need` and `whole`, into `out` of at least [`ChunkForm::bytes`]
    /// bytes, so that the elements `need` are valid at their places in the chunk. Returns the bytes that were decompressed.
    ///
    /// # Errors
    /// [`ReadError::Short`] if a prefix was not enough: read the whole chunk; other variants if the chunk is damaged.
    #[allow(clippy::too_many_arguments)] // what is decoded, from where, into what: none can be left out
    fn decode(
        &self,
        part: PartId,
        chunk: u32,
        need: Range<u32>,
        stored: &[u8],
        whole: bool,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<u64, ReadError>;

    /// Decodes `record` and hands the bytes of its columns to `sink`. Returns the bytes of it that were decompressed. Only for stores with
    /// [`Schema::records`]. Bytes may go past the caches: the caller ends a run of records with a [`Fence`](crate::codec::stream_copy::Fence).
    ///
    /// `next` is the record that this is likely to be called with next: a store that decodes two at once in less time than one after the other keeps it in
    /// [`RecordBuffers::next`], by its row. Who comes with records of another store, or with bytes that were read again, calls [`NextRecord::forget`] first.
    ///
    /// # Errors
    /// [`ReadError::BadRow`] if the record is damaged, or contradicts what was known when the store was opened; `sink` may have taken some columns.
    fn record(
        &self,
        record: StoredRecord<'_>,
        next: Option<StoredRecord<'_>>,
        buffers: &mut RecordBuffers,
        sink: &mut dyn RecordSink,
    ) -> Result<u64, ReadError> {
        let _ = (next, buffers, sink);
        Err(self.bad_row(0, record.row, "rows are not stored as records".to_owned()))
    }

    /// Where the array that decides the block borders (X, as chosen) is cut, one entry per source in order.
    fn chunk_borders(&self) -> Vec<SourceBorders>;

    /// Fills `buf` from `file` at `offset`.
    ///
    /// # Errors
    /// [`ReadError::Io`] if the read fails or the file ends before `buf` is full.
    fn read_at(&self, file: u32, offset: u64, buf: &mut [u8]) -> Result<(), ReadError>;

    /// Tells the kernel that these bytes of `file` are going to be read soon. Only a hint: by default nothing happens.
    fn will_need(&self, _file: u32, _offset: u64, _len: u64) {}

    /// Compares the file's stamp (device, inode, size, modification time) with the one taken when it was opened.
    ///
    /// # Errors
    /// [`ReadError::Stale`] if it changed.
    fn check_unchanged(&self, file: u32) -> Result<(), ReadError>;

    /// The error for an illegal value in `row` of `part`, naming the file that holds the row.
    fn bad_row(&self, part: PartId, row: u64, reason: String) -> ReadError;

    /// The largest stored size of a chunk, in bytes: what a read buffer must hold.
    fn max_stored_bytes(&self) -> usize;

    /// Bytes of memory that the store itself holds (chunk maps, row lengths, columns, names). What is mapped from the cache folder
    /// belongs to the page cache and does not count.
    fn resident_bytes(&self) -> u64;
}
