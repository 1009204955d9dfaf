//! The [`Store`] over opened AnnData sources.
//!
//! Each part keeps one chunk map per source. Chunks are numbered through: those of the first source, then those of the
//! next. Rows are numbered through in the same way, and file numbers are source numbers. Finding the source of a row or of
//! a chunk is a binary search over as many entries as there are sources.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::{Opened, OpenedElement, OpenedLayout};
use crate::codec::{CodecError, Scratch};
use crate::dtype::DType;
use crate::num::{to_u64, to_usize};
use crate::store::chunk_map::{ChunkMap, Storage};
use crate::store::error::{OpenError, ReadError};
use crate::store::file::SourceFile;
use crate::store::rows::GROUP;
use crate::store::{
    Element, ElementId, ElementKind, Extent, Part, PartId, PartRole, Piece, RowLengths, Schema, SourceBorders,
    SourceInfo, Store,
};

/// An AnnData dataset.
pub struct AnnDataStore {
    schema: Schema,
    files: Vec<SourceFile>,
    parts: Vec<StoredPart>,
    /// Row lengths by element and source; empty for dense elements.
    lengths: Vec<Vec<Arc<RowLengths>>>,
    /// True if element 0 is X.
    has_x: bool,
}

/// One part in all sources.
struct StoredPart {
    element: ElementId,
    sources: Vec<SourcePart>,
    chunk_bytes: usize,
}

/// One part in one source.
struct SourcePart {
    first_chunk: u32,
    map: ChunkMap,
}

impl AnnDataStore {
    /// Puts sources together. For now there must be exactly one.
    ///
    /// # Errors
    /// [`OpenError::Refused`] if there are several, or more than 2^32 chunks.
    pub fn new(sources: Vec<Opened>) -> Result<Self, OpenError> {
        if let [_, second, ..] = sources.as_slice() {
            let reason = "several AnnData sources in one mount are not supported";
            return Err(OpenError::refused(second.file.path(), "file", reason, "mount them one by one"));
        }
        let mut store = Self {
            schema: Schema {
                n_rows: 0,
                n_vars: 0,
                var_names: super::Strings::default(),
                elements: Vec::new(),
                parts: Vec::new(),
                columns: Vec::new(),
                obs_names: None,
                sources: Vec::new(),
                records: None,
            },
            files: Vec::new(),
            parts: Vec::new(),
            lengths: Vec::new(),
            has_x: false,
        };
        for source in sources {
            store.add(source)?;
        }
        Ok(store)
    }

    /// Adds a source whose elements and columns are those of the sources before it.
    fn add(&mut self, source: Opened) -> Result<(), OpenError> {
        let file_id = u32::try_from(self.files.len()).unwrap_or(u32::MAX);
        let path = source.file.path();
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let first_row = self.schema.n_rows;
        self.schema.n_rows += source.n_obs;
        self.schema.sources.push(SourceInfo { path: absolute, kind: source.kind, rows: first_row..self.schema.n_rows });
        self.schema.n_vars = source.n_vars;
        self.schema.var_names = source.var_names;
        self.schema.obs_names = source.obs_names;
        self.schema.columns = source.columns;
        for (element, opened) in source.elements.into_iter().enumerate() {
            self.add_element(element, opened, file_id, source.file.path())?;
        }
        self.has_x = self.schema.elements.first().is_some_and(|element| element.name == "X");
        self.files.push(source.file);
        Ok(())
    }

    fn add_element(
        &mut self,
        element: ElementId,
        opened: OpenedElement,
        file_id: u32,
        path: &Path,
    ) -> Result<(), OpenError> {
        let OpenedElement { name, n_cols, gene_axis, layout, path: inner } = opened;
        let (kind, dtype, lengths) = match layout {
            OpenedLayout::Sparse { lengths, data, indices } => {
                let dtype = data.stored.dtype;
                let data = self.add_part(element, PartRole::Values, data, &format!("{inner}/data"), file_id, path)?;
                let role = PartRole::Indices;
                let indices = self.add_part(element, role, indices, &format!("{inner}/indices"), file_id, path)?;
                (ElementKind::Sparse { data, indices }, dtype, vec![lengths])
            }
            OpenedLayout::Dense { values } => {
                let dtype = values.stored.dtype;
                let values = self.add_part(element, PartRole::Values, values, &inner, file_id, path)?;
                (ElementKind::Dense { values }, dtype, Vec::new())
            }
        };
        self.lengths.push(lengths);
        self.schema.elements.push(Element { name, kind, n_cols, dtype, index_dtype: DType::I32, gene_axis });
        Ok(())
    }

    fn add_part(
        &mut self,
        element: ElementId,
        role: PartRole,
        mut map: ChunkMap,
        inner: &str,
        file_id: u32,
        path: &Path,
    ) -> Result<PartId, OpenError> {
        if u32::try_from(map.n_chunks()).is_err() {
            let reason = format!("{} chunks", map.n_chunks());
            return Err(OpenError::refused(path, inner, reason, "write it again with larger chunks"));
        }
        map.file = file_id;
        let id = self.parts.len();
        self.schema.parts.push(Part { element, role, stored: map.stored, path: inner.to_owned() });
        let chunk_bytes = map.pipeline.chunk_bytes;
        self.parts.push(StoredPart { element, sources: vec![SourcePart { first_chunk: 0, map }], chunk_bytes });
        Ok(id)
    }

    /// Serves the values of X, and the column indices of all sparse elements, in other types. A value that is not exact in its new type
    /// fails the batch that holds it.
    ///
    /// # Errors
    /// [`OpenError::Refused`] if a type cannot number the columns of an element.
    pub fn serve_as(&mut self, x_dtype: Option<DType>, index_dtype: Option<DType>) -> Result<(), OpenError> {
        if let (Some(dtype), true) = (x_dtype, self.has_x) {
            self.schema.elements[0].dtype = dtype;
        }
        let Some(dtype) = index_dtype else { return Ok(()) };
        for element in &mut self.schema.elements {
            if let ElementKind::Sparse { .. } = element.kind {
                if element.n_cols > dtype.n_indices() {
                    let path = self.files.first().map_or_else(Default::default, |f| f.path().to_owned());
                    let reason = format!("{} columns, {dtype} numbers {} at most", element.n_cols, dtype.n_indices());
                    return Err(OpenError::refused(&path, &element.name, reason, "use a wider --index-dtype"));
                }
                element.index_dtype = dtype;
            }
        }
        Ok(())
    }

    /// The source of `row`, and its number there.
    fn locate(&self, row: u64) -> (usize, usize) {
        let source = self.schema.sources.partition_point(|source| source.rows.end <= row);
        (source, to_usize(row - self.schema.sources[source].rows.start))
    }

    fn corrupt(&self, part: PartId, chunk: u32, file: u32, reason: String) -> ReadError {
        let file = self.files.get(to_usize(u64::from(file))).map_or_else(Default::default, |f| f.path().to_owned());
        ReadError::Corrupt { file, element: self.schema.parts[part].path.clone(), chunk, reason }
    }
}

impl StoredPart {
    /// The source part that `chunk` belongs to, and the chunk's number there.
    fn locate(&self, chunk: u32) -> (&SourcePart, u32) {
        let source = self.sources.partition_point(|source| source.first_chunk <= chunk).saturating_sub(1);
        let source = &self.sources[source];
        (source, chunk - source.first_chunk)
    }
}

impl Store for AnnDataStore {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn row_len(&self, element: ElementId, row: u64) -> u32 {
        let (source, row) = self.locate(row);
        self.lengths[element][source].len(row)
    }

    fn max_row_len(&self, element: ElementId) -> u32 {
        self.lengths[element].iter().map(|lengths| lengths.max()).max().unwrap_or(0)
    }

    fn row_lengths_digest(&self, element: ElementId, source: usize) -> [u8; 32] {
        self.lengths[element][source].digest()
    }

    fn n_values(&self, element: ElementId) -> u64 {
        self.lengths[element].iter().map(|lengths| lengths.total()).sum()
    }

    fn pieces(&self, part: PartId, row: u64, emit: &mut dyn FnMut(Piece)) {
        let (source, row) = self.locate(row);
        let part = &self.parts[part];
        let SourcePart { first_chunk, map } = &part.sources[source];
        let mut shifted = |piece: Piece| emit(Piece { chunk: piece.chunk + first_chunk, ..piece });
        match self.lengths[part.element].get(source) {
            Some(lengths) => map.pieces_of_range(lengths.range(row), &mut shifted),
            None => map.pieces_of_row(to_u64(row), &mut shifted),
        }
    }

    fn extent(&self, part: PartId, chunk: u32, need: Range<u32>, whole: bool) -> Extent {
        let (source, chunk) = self.parts[part].locate(chunk);
        source.map.extent(chunk, need, whole)
    }

    fn is_plain(&self, part: PartId, chunk: u32) -> bool {
        !self.parts[part].locate(chunk).0.map.is_filtered()
    }

    fn n_chunks(&self, part: PartId) -> u64 {
        self.parts[part].sources.iter().map(|source| source.map.n_chunks()).sum()
    }

    fn chunk_bytes(&self, part: PartId) -> usize {
        self.parts[part].chunk_bytes
    }

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
        let (SourcePart { map, .. }, local) = self.parts[part].locate(chunk);
        let size = map.stored.dtype.size_bytes();
        let bytes = to_usize(u64::from(need.start)) * size..to_usize(u64::from(need.end)) * size;
        let corrupt = |reason: String| self.corrupt(part, local, map.file, reason);
        let chunk_bytes = map.pipeline.chunk_bytes;
        let Some(out) = out.get_mut(..chunk_bytes).filter(|_| bytes.end <= chunk_bytes) else {
            return Err(corrupt(format!("elements {need:?} are outside the chunk")));
        };
        let entry = match &map.storage {
            Storage::Chunked(entries) if map.is_filtered() => entries.get(to_usize(u64::from(local))),
            _ => None,
        };
        if map.extent(local, need, whole) == Extent::Resident {
            map.fill_resident(local, bytes, out);
            return Ok(0);
        }
        let Some(entry) = entry else {
            if stored.len() != bytes.len() {
                return Err(corrupt(format!("{} stored bytes instead of {}", stored.len(), bytes.len())));
            }
            out[bytes].copy_from_slice(stored);
            return Ok(0);
        };
        // How long a prefix should be may have become known only after these bytes were read.
        let is_prefix = to_u64(stored.len()) < u64::from(entry.stored_len);
        match map.pipeline.decode(stored, is_prefix, entry.mask, bytes, scratch, out) {
            Ok(decoded) => Ok(decoded.decoded_bytes),
            Err(CodecError::Truncated { .. }) if is_prefix => Err(ReadError::Short),
            Err(error) => Err(corrupt(error.to_string())),
        }
    }

    fn chunk_borders(&self) -> Vec<SourceBorders> {
        (0..self.schema.sources.len()).map(|source| self.source_borders(source)).collect()
    }

    fn read_at(&self, file: u32, offset: u64, buf: &mut [u8]) -> Result<(), ReadError> {
        self.files[to_usize(u64::from(file))].read_at(offset, buf)
    }

    fn check_unchanged(&self, file: u32) -> Result<(), ReadError> {
        self.files[to_usize(u64::from(file))].check_unchanged()
    }

    fn bad_row(&self, part: PartId, row: u64, reason: String) -> ReadError {
        let (source, _) = self.locate(row);
        let file = self.files.get(source).map_or_else(Default::default, |f| f.path().to_owned());
        ReadError::BadRow { file, element: self.schema.parts[part].path.clone(), row, reason }
    }

    fn max_stored_bytes(&self) -> usize {
        let maps = self.parts.iter().flat_map(|part| &part.sources).map(|source| &source.map);
        maps.map(ChunkMap::max_stored_bytes).max().unwrap_or(0)
    }

    fn resident_bytes(&self) -> u64 {
        let Schema { var_names, obs_names, columns, .. } = &self.schema;
        let maps = self.parts.iter().flat_map(|part| &part.sources).map(|source| source.map.resident_bytes());
        let lengths = self.lengths.iter().flatten().map(|lengths| lengths.resident_bytes());
        let columns = columns.iter().map(super::Column::resident_bytes);
        let names = obs_names.iter().chain([var_names]).map(super::Strings::resident_bytes);
        maps.chain(lengths).chain(columns).chain(names).sum()
    }
}

impl AnnDataStore {
    /// Where X is cut in one source: by the array with the longer chunks.
    fn source_borders(&self, source: usize) -> SourceBorders {
        let rows = self.schema.sources[source].rows.clone();
        let element = self.schema.elements.first().filter(|_| self.has_x);
        let map = |part: PartId| &self.parts[part].sources[source].map;
        let (first_rows, x_bytes) = match element.map(|element| element.kind) {
            None | Some(ElementKind::Lengths) => (None, 0),
            Some(ElementKind::Dense { values }) => {
                let values = map(values);
                (chunk_extent(values).map(|extent| dense_borders(&rows, extent)), values.total_bytes())
            }
            Some(ElementKind::Sparse { data, indices }) => {
                let (data, indices) = (map(data), map(indices));
                let cut = match (chunk_extent(data), chunk_extent(indices)) {
                    (Some(d), Some(i)) if i > d => Some(indices),
                    (None, Some(_)) => Some(indices),
                    (Some(_), _) => Some(data),
                    (None, None) => None,
                };
                let lengths = &self.lengths[0][source];
                let first_rows = cut.map(|map| sparse_borders(&rows, lengths, map.chunk[0]));
                (first_rows, data.total_bytes().saturating_add(indices.total_bytes()))
            }
        };
        SourceBorders { rows, first_rows, x_bytes }
    }
}

/// Chunk extent along the rows, if there are chunks.
fn chunk_extent(map: &ChunkMap) -> Option<u64> {
    matches!(map.storage, Storage::Chunked(_)).then(|| map.chunk[0])
}

/// Every `extent`-th row.
fn dense_borders(rows: &Range<u64>, extent: u64) -> Vec<u64> {
    rows.clone().step_by(to_usize(extent)).collect()
}

/// The rows with which a chunk of `chunk_len` values begins. A row without values begins where the next value lies, or in
/// the last chunk.
fn sparse_borders(rows: &Range<u64>, lengths: &RowLengths, chunk_len: u64) -> Vec<u64> {
    let last_chunk = lengths.total().div_ceil(chunk_len).saturating_sub(1);
    let chunk_at = |start: u64| (start / chunk_len).min(last_chunk);
    let mut first_rows = Vec::new();
    let mut previous = None;
    let mut group_rows = rows.clone();
    for (group, &group_start) in lengths.group_starts().iter().enumerate() {
        let first = group_rows.start;
        group_rows.start = (first + to_u64(GROUP)).min(rows.end);
        // Most groups lie in one chunk, and their lengths need not be looked at.
        let end = lengths.group_starts().get(group + 1).copied().unwrap_or(lengths.total());
        if previous == Some(chunk_at(end)) {
            continue;
        }
        let mut start = group_start;
        for row in first..group_rows.start {
            let chunk = chunk_at(start);
            if previous != Some(chunk) {
                first_rows.push(row);
                previous = Some(chunk);
            }
            start += u64::from(lengths.len(to_usize(row - rows.start)));
        }
    }
    first_rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_are_the_rows_that_open_a_chunk() {
        // Starts 0 3 3 5 20 20; chunks of 4 values: 0 0 0 1 4(last of 5) 4.
        let lengths = RowLengths::new(vec![3, 0, 2, 15, 0, 0]).unwrap();
        assert_eq!(sparse_borders(&(10..16), &lengths, 4), [10, 13, 14]);
        assert_eq!(sparse_borders(&(0..6), &lengths, 100), [0]);
        assert_eq!(dense_borders(&(5..12), 3), [5, 8, 11]);
        // Several groups of running sums, rows of all kinds.
        let lens: Vec<u32> = (0..1000_u32).map(|i| if i % 97 < 30 { 0 } else { i * 7919 % 50 }).collect();
        let lengths = RowLengths::new(lens.clone()).unwrap();
        for chunk_len in [1, 7, 64, 1000, 5000, 1 << 40] {
            let last_chunk = lengths.total().div_ceil(chunk_len) - 1;
            let starts = lens.iter().scan(0_u64, |at, &len| Some(std::mem::replace(at, *at + u64::from(len))));
            let chunks: Vec<u64> = starts.map(|start| (start / chunk_len).min(last_chunk)).collect();
            let opens = |&i: &usize| i == 0 || chunks[i] != chunks[i - 1];
            let expected: Vec<u64> = (0..1000).filter(opens).map(|i| 5 + to_u64(i)).collect();
            assert_eq!(sparse_borders(&(5..1005), &lengths, chunk_len), expected, "{chunk_len}");
        }
        // Nothing stored at all: one block.
        let empty = RowLengths::new(vec![0, 0]).unwrap();
        assert_eq!(sparse_borders(&(0..2), &empty, 4), [0]);
    }
}
