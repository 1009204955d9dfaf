//! Matrices: what one is, and its arrays checked and mapped.
//!
//! Nothing of a matrix is read when it is opened but the `indptr` of a sparse one, run by run: it becomes row lengths, and
//! what it promises (it starts at 0, never falls, ends at the length of `data` and `indices`) is checked on the way. A matrix
//! whose rows are spread over all of it is rewritten first, see [`by_rows`].

use std::sync::Arc;

use super::by_rows::{self, Csc, Rewritten};
use super::node::{ElemType, Field, Node, NodeRef};
use super::raw_array::RawArray;
use super::{OpenedElement, OpenedLayout, values};
use crate::codec::Pipeline;
use crate::dtype::{DType, Stored};
use crate::num::{to_u64, to_usize};
use crate::store::chunk_map::{ChunkFiles, ChunkMap, Storage};
use crate::store::error::OpenError;
use crate::store::rows::RowLengths;

/// An `obsm` matrix whose compressed chunks cut its rows is decoded once, when opened, up to this size.
const RESIDENT_BYTES: u64 = 256 << 20;

/// More decoded bytes than this per needed one, and rows are rewritten.
const MAX_AMPLIFICATION: u64 = 4;

/// The largest block of rows that the order makes by itself: 1/256 of 1 GiB.
const LARGEST_BLOCK_BYTES: u64 = (1 << 30) / 256;

/// What a matrix is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MatrixKind {
    /// Sparse, row by row.
    Csr,
    /// Sparse, column by column.
    Csc,
    /// Dense.
    Dense,
    /// Written as absent.
    Null,
    /// Something else, in words.
    Other(String),
}

/// What a matrix should look like.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// Its rows: those of `obs`.
    pub n_rows: u64,
    /// Its columns, with the name of the axis; `None` if any number is right.
    pub cols: Option<(u64, &'a str)>,
}

/// Finds out what the matrix at `node` is, and its shape.
///
/// # Errors
/// [`OpenError`] if it is damaged or does not say.
pub fn classify(node: &dyn Node, expected: Expected<'_>) -> Result<(MatrixKind, [u64; 2]), OpenError> {
    if node.is_group() { classify_group(node, expected) } else { classify_array(node) }
}

fn classify_array(node: &dyn Node) -> Result<(MatrixKind, [u64; 2]), OpenError> {
    let info = node.info()?;
    if info.is_null || node.attr_text("encoding-type")?.as_deref() == Some("null") {
        return Ok((MatrixKind::Null, [0, 0]));
    }
    Ok(match (info.dims.as_slice(), &info.elem) {
        ([n, m], ElemType::Number(_)) => (MatrixKind::Dense, [*n, *m]),
        ([n], ElemType::Number(_)) => (MatrixKind::Dense, [*n, 1]),
        (dims, ElemType::Number(_)) => (MatrixKind::Other(format!("an array of {} dimensions", dims.len())), [0, 0]),
        (_, other) => (MatrixKind::Other(format!("an array of {}", other.describe())), [0, 0]),
    })
}

fn classify_group(node: &dyn Node, expected: Expected<'_>) -> Result<(MatrixKind, [u64; 2]), OpenError> {
    let encoding = node.attr_text("encoding-type")?;
    let legacy = node.attr_text("h5sparse_format")?;
    let kind = match (encoding.as_deref(), legacy.as_deref()) {
        (Some("csr_matrix"), _) | (None, Some("csr")) => MatrixKind::Csr,
        (Some("csc_matrix"), _) | (None, Some("csc")) => MatrixKind::Csc,
        (Some(other), _) => return Ok((MatrixKind::Other(format!("encoded as {other}")), [0, 0])),
        (None, Some(other)) => return Ok((MatrixKind::Other(format!("h5sparse {other}")), [0, 0])),
        (None, None) => match node.child("indptr")? {
            Some(indptr) => guess_format(node, indptr.as_ref(), expected)?,
            None => return Ok((MatrixKind::Other("a group of no known kind".to_owned()), [0, 0])),
        },
    };
    for name in ["shape", "h5sparse_shape"] {
        if let Some(shape) = node.attr_integers(name)? {
            let dims: Option<Vec<u64>> = shape.iter().map(|&v| u64::try_from(v).ok()).collect();
            return match dims.as_deref() {
                Some([n, m]) => Ok((kind, [*n, *m])),
                _ => Err(node.refused(&format!("{name} is {shape:?}"), "write it again")),
            };
        }
    }
    match expected.cols {
        Some((n_cols, _)) => Ok((kind, [expected.n_rows, n_cols])),
        None => Err(node.refused("does not say its shape", "write it again with a current anndata")),
    }
}

/// CSR or CSC by the length of `indptr`, for groups that do not say.
fn guess_format(node: &dyn Node, indptr: &dyn Node, expected: Expected<'_>) -> Result<MatrixKind, OpenError> {
    let n_rows = expected.n_rows;
    let n_cols = expected.cols.map(|(n, _)| n);
    let n = indptr.info()?.len_1d().and_then(|n| n.checked_sub(1));
    match n {
        Some(n) if n == n_rows && n_cols != Some(n) => Ok(MatrixKind::Csr),
        Some(n) if n != n_rows && n_cols == Some(n) => Ok(MatrixKind::Csc),
        _ => {
            let reason = "does not say whether it is stored by rows or by columns";
            Err(node.refused(reason, "write it again with a current anndata"))
        }
    }
}

/// Opens the matrix at `node` for reading by rows.
///
/// # Errors
/// [`OpenError`] if it is not one that can be served, or is damaged.
pub fn open(
    node: &dyn Node,
    name: String,
    expected: Expected<'_>,
    gene_axis: bool,
    warnings: &mut Vec<String>,
) -> Result<OpenedElement, OpenError> {
    let (kind, shape) = classify(node, expected)?;
    let path = node.path().to_owned();
    let (layout, rewritten) = match kind {
        MatrixKind::Csr => (open_csr(node, expected, shape)?, None),
        MatrixKind::Csc => {
            check_shape(node, shape, expected)?;
            let (layout, rewritten) = by_rows::sparse(node, shape, &open_columns(node, shape)?, warnings)?;
            (layout, Some(rewritten))
        }
        MatrixKind::Dense => {
            check_shape(node, shape, expected)?;
            open_dense(node, !gene_axis, warnings)?
        }
        other => return Err(refusal(node, &other)),
    };
    Ok(OpenedElement { name, n_cols: shape[1], gene_axis, layout, rewritten, path })
}

/// Why a matrix of this kind is not served.
#[must_use]
pub fn refusal_reason(kind: &MatrixKind) -> Option<(String, &'static str)> {
    match kind {
        MatrixKind::Csr | MatrixKind::Csc | MatrixKind::Dense => None,
        MatrixKind::Null => Some(("is null".to_owned(), "choose another matrix, or --x none")),
        MatrixKind::Other(what) => Some((format!("is {what}, not a matrix of numbers"), "leave it out")),
    }
}

fn refusal(node: &dyn Node, kind: &MatrixKind) -> OpenError {
    let (reason, remedy) = refusal_reason(kind).unwrap_or_else(|| ("cannot be served".to_owned(), "leave it out"));
    node.refused(&reason, remedy)
}

fn check_shape(node: &dyn Node, shape: [u64; 2], expected: Expected<'_>) -> Result<(), OpenError> {
    let [n, m] = shape;
    if n != expected.n_rows {
        let reason = format!("shape {n}x{m} but obs has {} rows", expected.n_rows);
        return Err(node.refused(&reason, "write it again"));
    }
    match expected.cols {
        Some((n_cols, axis)) if m != n_cols => {
            Err(node.refused(&format!("shape {n}x{m} but {axis} has {n_cols} rows"), "write it again"))
        }
        _ if i32::try_from(m).is_err() => Err(node.refused(&format!("has {m} columns"), "leave it out")),
        _ => Ok(()),
    }
}

/// Opens the arrays of a matrix that is known to be stored by rows.
///
/// # Errors
/// [`OpenError`] if its shape is not as expected, or it is damaged.
pub fn open_csr(node: &dyn Node, expected: Expected<'_>, shape: [u64; 2]) -> Result<OpenedLayout, OpenError> {
    check_shape(node, shape, expected)?;
    open_sparse(node, shape)
}

/// The three arrays of a sparse matrix.
struct SparseArrays {
    data: NodeRef,
    indices: NodeRef,
    index_type: Stored,
    /// Values per row of a CSR matrix, per column of a CSC matrix.
    lengths: RowLengths,
}

/// The arrays of a sparse matrix with `n` rows (or columns), checked against each other; `n_across` is its other extent.
fn sparse_arrays(node: &dyn Node, n: u64, n_across: u64, axis: &'static str) -> Result<SparseArrays, OpenError> {
    let [data, indices, indptr] = [node.required("data")?, node.required("indices")?, node.required("indptr")?];
    let index_type = match indices.info()?.elem {
        ElemType::Number(stored) if !stored.dtype.is_float() && stored.dtype != DType::Bool => stored,
        other => {
            return Err(indices.refused(&format!("holds {}, not integers", other.describe()), "write it again"));
        }
    };
    let lengths = row_lengths(indptr.as_ref(), n, axis)?;
    for array in [&data, &indices] {
        let dims = array.info()?.dims;
        if dims != [lengths.total()] {
            let reason = format!("indptr ends at {}, {} has {dims:?}", lengths.total(), array.path());
            return Err(indptr.refused(&reason, "the file is damaged: write it again"));
        }
    }
    if lengths.total() > 0 && n_across == 0 {
        return Err(indptr.refused("holds values but the matrix is empty", "write it again"));
    }
    Ok(SparseArrays { data, indices, index_type, lengths })
}

fn open_sparse(node: &dyn Node, [n_rows, n_cols]: [u64; 2]) -> Result<OpenedLayout, OpenError> {
    let SparseArrays { data, indices, lengths, .. } = sparse_arrays(node, n_rows, n_cols, "row")?;
    let lengths = Arc::new(lengths);
    Ok(OpenedLayout::Sparse { lengths, data: data.chunk_map()?, indices: indices.chunk_map()? })
}

fn open_columns(node: &dyn Node, [n_rows, n_cols]: [u64; 2]) -> Result<Csc<'_>, OpenError> {
    let SparseArrays { data, indices, index_type, lengths } = sparse_arrays(node, n_cols, n_rows, "column")?;
    let ElemType::Number(data_type) = data.info()?.elem else {
        return Err(data.refused("does not hold numbers", "convert it to float32"));
    };
    if u32::try_from(n_rows).is_err() {
        return Err(
            node.refused(&format!("is stored by columns (csc) and has {n_rows} rows"), "write it again by rows")
        );
    }
    Ok(Csc { node, data: data.raw()?, data_type, indices: indices.raw()?, index_type, columns: lengths, n_rows })
}

/// Reads and checks `indptr`; `axis` is `row` or `column`.
fn row_lengths(indptr: &dyn Node, n_rows: u64, axis: &'static str) -> Result<RowLengths, OpenError> {
    let info = indptr.info()?;
    let stored = match info.elem {
        ElemType::Number(stored) if !stored.dtype.is_float() && stored.dtype != DType::Bool => stored,
        other => {
            return Err(indptr.refused(&format!("holds {}, not integers", other.describe()), "write it again"));
        }
    };
    if info.dims.as_slice() != [n_rows.saturating_add(1)] {
        let reason = format!("has extent {:?} for {n_rows} {axis}s", info.dims);
        return Err(indptr.refused(&reason, "write it again"));
    }
    let name = format!("row lengths of {}", indptr.path());
    indptr.source().cache().rows(&name, n_rows, || read_row_lengths(indptr, stored, n_rows, axis))
}

fn read_row_lengths(
    indptr: &dyn Node,
    stored: Stored,
    n_rows: u64,
    axis: &'static str,
) -> Result<RowLengths, OpenError> {
    indptr.source().charge(indptr.path(), n_rows.saturating_mul(5))?;
    let mut starts = Starts { indptr, axis, lens: Vec::with_capacity(to_usize(n_rows)), last: None, row: 0 };
    indptr.raw()?.visit_runs(indptr.source(), indptr.path(), &mut |_, bytes| starts.take(bytes, stored))?;
    let Starts { lens, .. } = starts;
    RowLengths::new(lens).ok_or_else(|| indptr.refused("counts more values than 2^64", "write it again"))
}

/// Turns row starts into row lengths, one run after the other.
struct Starts<'a> {
    indptr: &'a dyn Node,
    axis: &'static str,
    lens: Vec<u32>,
    last: Option<i64>,
    row: u64,
}

impl Starts<'_> {
    fn take(&mut self, bytes: &[u8], stored: Stored) -> Result<(), OpenError> {
        let refused = |reason: String| {
            let overflow = if stored.dtype == DType::I32 { " (writer's int32 overflowed?)" } else { "" };
            self.indptr.refused(&format!("{reason}{overflow}"), "write it again with int64 indptr")
        };
        for start in values::integers(bytes, stored).into_iter().flatten() {
            let (row, axis) = (self.row, self.axis);
            let start = match start {
                Some(start) if start >= 0 => start,
                other => {
                    let shown = other.map_or_else(|| "beyond 2^63".to_owned(), |v| format!("negative ({v})"));
                    return Err(refused(format!("indptr is {shown} at {axis} {row}")));
                }
            };
            match self.last {
                None if start != 0 => return Err(refused(format!("indptr starts at {start}, not at 0"))),
                None => {}
                Some(last) if start < last => {
                    let at = row.saturating_sub(1);
                    return Err(refused(format!("indptr decreases at {axis} {at}, from {last} to {start}")));
                }
                Some(last) => match u32::try_from(start - last) {
                    Ok(len) => self.lens.push(len),
                    Err(_) => return Err(refused(format!("{axis} {} has {} values", row - 1, start - last))),
                },
            }
            self.last = Some(start);
            self.row += 1;
        }
        Ok(())
    }
}

fn open_dense(
    node: &dyn Node,
    may_be_resident: bool,
    warnings: &mut Vec<String>,
) -> Result<(OpenedLayout, Option<Rewritten>), OpenError> {
    let ElemType::Number(stored) = node.info()?.elem else {
        return Err(node.refused("does not hold numbers", "convert it to float32"));
    };
    let mut raw = node.raw()?;
    if raw.cuts_rows() && !raw.pipeline.is_plain() {
        if may_be_resident && is_resident(raw.dims, raw.elem_size) {
            let bytes = raw.read_all(node.source(), node.path())?;
            raw = resident(raw.dims, raw.elem_size, bytes);
        } else if let Some(reason) = slow_chunks(raw.chunk, raw.dims, raw.elem_size) {
            let (layout, rewritten) = by_rows::dense(node, &raw, stored, reason, warnings)?;
            return Ok((layout, Some(rewritten)));
        }
    }
    Ok((OpenedLayout::Dense { values: raw.into_map(stored) }, None))
}

/// True for an `obsm` matrix that is kept in memory if its chunks cut its rows.
#[must_use]
pub fn is_resident([n_rows, n_cols]: [u64; 2], elem_size: usize) -> bool {
    n_rows.saturating_mul(n_cols).saturating_mul(to_u64(elem_size)) <= RESIDENT_BYTES
}

/// Why a matrix is rewritten whose compressed chunks cut rows, if they cost much: a block of rows decodes all chunks that it touches,
/// which is `chunk rows * row bytes`, and holds at most [`LARGEST_BLOCK_BYTES`].
#[must_use]
pub fn slow_chunks([rows, cols]: [u64; 2], dims: [u64; 2], elem_size: usize) -> Option<String> {
    let decoded = rows.min(dims[0]).saturating_mul(dims[1]).saturating_mul(to_u64(elem_size));
    let amplification = decoded / LARGEST_BLOCK_BYTES;
    (cols < dims[1] && amplification > MAX_AMPLIFICATION).then(|| {
        format!(
            "is compressed in chunks of {rows}x{cols}, so that every block of rows decodes {amplification} times its size"
        )
    })
}

/// An array that is in memory.
fn resident(dims: [u64; 2], elem_size: usize, bytes: Vec<u8>) -> RawArray {
    let chunk = ChunkMap::virtual_chunk(dims[0], dims[1], to_u64(elem_size));
    let pipeline = Pipeline::new([], to_usize(chunk[0] * chunk[1]) * elem_size);
    RawArray {
        files: ChunkFiles::one(0),
        dims,
        elem_size,
        chunk,
        pipeline,
        fill: vec![0; elem_size],
        storage: Storage::Resident(bytes.into()),
    }
}

/// Opens one field of an `obsm` of records (before anndata 0.7) as a dense matrix in memory.
///
/// # Errors
/// [`OpenError`] if the field does not hold numbers, or the records cannot be read.
pub fn open_record_field(
    node: &dyn Node,
    field: &Field,
    name: String,
    expected: Expected<'_>,
) -> Result<OpenedElement, OpenError> {
    let info = node.info()?;
    let path = format!("{}/{}", node.path(), field.name);
    let refused = |reason: String| OpenError::refused(node.source().path(), &*path, reason, "leave it out");
    let (stored, n_cols) = match (&field.elem, field.dims.as_slice()) {
        (ElemType::Number(stored), []) => (*stored, 1),
        (ElemType::Number(stored), [n]) => (*stored, *n),
        (other, _) => return Err(refused(format!("is an array of {}", other.describe()))),
    };
    let Some(n_rows) = info.len_1d() else { return Err(refused("is not one-dimensional".to_owned())) };
    check_shape(node, [n_rows, n_cols], expected)?;
    let size = stored.dtype.size_bytes();
    let run = to_usize(n_cols).saturating_mul(size);
    if field.offset.saturating_add(run) > info.elem_size {
        return Err(refused("lies outside its record".to_owned()));
    }
    let records = node.bytes()?;
    node.source().charge(&path, n_rows.saturating_mul(to_u64(run)))?;
    let bytes = values::field(&records, info.elem_size, field.offset, run);
    let values = resident([n_rows, n_cols], size, bytes).into_map(stored);
    let layout = OpenedLayout::Dense { values };
    Ok(OpenedElement { name, n_cols, gene_axis: false, layout, rewritten: None, path })
}
