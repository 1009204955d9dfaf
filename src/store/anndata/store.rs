//! The [`Store`] over opened AnnData sources.
//!
//! Each part keeps one chunk map per source. Chunks are numbered through: those of the first source, then those of the
//! next. Rows are numbered through in the same way, and so are files. Finding the source of a row or of
//! a chunk is a binary search over as many entries as there are sources.

use std::ops::Range;
use std::sync::Arc;

use super::Opened;
use super::collector::{Collector, Joining};
use crate::codec::{CodecError, Scratch};
use crate::dtype::DType;
use crate::num::{to_u64, to_usize};
use crate::store::chunk_map::{ChunkMap, Storage};
use crate::store::error::{OpenError, ReadError};
use crate::store::files::{Files, OpenFiles};
use crate::store::rows::GROUP;
use crate::store::{
    ChunkForm, ElementId, Extent, GeneMap, PartId, PartRole, Piece, RowLengths, Schema, ServedGenes, SourceBorders,
    Store,
};

/// An AnnData dataset.
pub struct AnnDataStore {
    pub(super) schema: Schema,
    files: OpenFiles,
    pub(super) parts: Vec<StoredPart>,
    /// Row lengths by element and source, `None` where a source is dense; nothing for elements that are dense everywhere.
    pub(super) lengths: Vec<Vec<Option<Arc<RowLengths>>>>,
}

/// One part in all sources.
pub(super) struct StoredPart {
    pub(super) element: ElementId,
    pub(super) role: PartRole,
    /// The sources that have such an array: not those that are dense, for a part of sparse rows, and the other way round.
    pub(super) sources: Vec<SourcePart>,
    /// Of the largest chunk.
    pub(super) chunk_bytes: usize,
    pub(super) n_chunks: u64,
}

/// One part in one source.
pub(super) struct SourcePart {
    pub(super) source: usize,
    pub(super) first_chunk: u32,
    pub(super) map: ChunkMap,
    /// Path of the element inside the source.
    pub(super) path: Arc<str>,
}

impl AnnDataStore {
    /// Puts sources together, with the genes that all have.
    ///
    /// # Errors
    /// [`OpenError::Refused`] if they do not go together, or have more than 2^32 chunks.
    pub fn new(sources: Vec<Opened>) -> Result<Self, OpenError> {
        let mut collector = Collector::new(Joining::default());
        sources.into_iter().try_for_each(|source| collector.add(source))?;
        collector.finish().map(|collected| collected.store)
    }

    /// A store of these rows without elements.
    pub(super) fn empty(schema: Schema, files: Files) -> Self {
        Self { schema, files: OpenFiles::new(files), parts: Vec::new(), lengths: Vec::new() }
    }

    /// Serves some of the joined genes only, or in another order, or with others that are zero.
    pub fn choose_genes(&mut self, choice: &GeneMap) {
        let nothing_moves = || {
            let lists = vec![0; self.schema.sources.len()].into();
            ServedGenes::new(vec![None], lists, u32::try_from(self.schema.n_vars).unwrap_or(u32::MAX), false)
        };
        let joined = self.schema.genes.as_deref().map_or_else(nothing_moves, Clone::clone);
        self.schema.genes = Some(Arc::new(joined.then(choice)));
    }

    fn has_x(&self) -> bool {
        self.schema.elements.first().is_some_and(|element| element.name == "X")
    }

    /// Serves the values of X, and the column indices of all sparse elements, in other types. A value that is not exact in its new type
    /// fails the batch that holds it.
    ///
    /// # Errors
    /// [`OpenError::Refused`] if a type cannot number the columns of an element.
    pub fn serve_as(&mut self, x_dtype: Option<DType>, index_dtype: Option<DType>) -> Result<(), OpenError> {
        if let (Some(dtype), true) = (x_dtype, self.has_x()) {
            self.schema.elements[0].dtype = dtype;
        }
        let Some(dtype) = index_dtype else { return Ok(()) };
        for element in &mut self.schema.elements {
            if element.kind.sparse().is_some() {
                // Numbers of the source are written first, and those of the batch over them.
                let n_cols = element.n_cols.max(element.stored_cols);
                if n_cols > dtype.n_indices() {
                    let path = self.schema.sources.first().map_or_else(Default::default, |s| s.path.clone());
                    let reason = format!("{n_cols} columns, {dtype} numbers {} at most", dtype.n_indices());
                    return Err(OpenError::refused(&path, &element.name, reason, "use a wider --index-dtype"));
                }
                element.index_dtype = dtype;
            }
        }
        Ok(())
    }

    /// The source of `row`, and its number there.
    fn locate(&self, row: u64) -> (usize, usize) {
        let source = self.schema.source_of(row);
        (source, to_usize(row - self.schema.sources[source].rows.start))
    }
}

impl StoredPart {
    /// The source part that `chunk` belongs to, and the chunk's number there.
    fn locate(&self, chunk: u32) -> (&SourcePart, u32) {
        // Sources without chunks begin where the next one does; the last of those that begin here has the chunk.
        let place = self.sources.partition_point(|source| source.first_chunk <= chunk).saturating_sub(1);
        let part = &self.sources[place];
        (part, chunk - part.first_chunk)
    }

    /// The arrays of a source, if it has any.
    fn of_source(&self, source: usize) -> Option<&SourcePart> {
        match self.sources.get(source) {
            Some(part) if part.source == source => Some(part),
            _ => {
                let place = self.sources.binary_search_by_key(&source, |part| part.source).ok()?;
                self.sources.get(place)
            }
        }
    }

    fn maps(&self) -> impl Iterator<Item = &ChunkMap> {
        self.sources.iter().map(|source| &source.map)
    }

    /// Where the array lies in its source, for messages.
    fn path(&self, source: &SourcePart, is_sparse: bool) -> String {
        match (self.role, is_sparse) {
            (PartRole::Indices, _) => format!("{}/indices", source.path),
            (PartRole::Values, true) => format!("{}/data", source.path),
            (PartRole::Values, false) => source.path.to_string(),
        }
    }
}

impl Store for AnnDataStore {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn row_len(&self, element: ElementId, row: u64) -> u32 {
        let (source, row) = self.locate(row);
        self.lengths[element][source].as_ref().map_or(0, |lengths| lengths.len(row))
    }

    fn max_row_len(&self, element: ElementId) -> u32 {
        self.lengths[element].iter().flatten().map(|lengths| lengths.max()).max().unwrap_or(0)
    }

    fn row_lengths_digest(&self, element: ElementId, source: usize) -> [u8; 32] {
        self.lengths[element][source].as_ref().map_or([0; 32], |lengths| lengths.digest())
    }

    fn n_values(&self, element: ElementId) -> u64 {
        self.lengths[element].iter().flatten().map(|lengths| lengths.total()).sum()
    }

    fn pieces(&self, part: PartId, row: u64, emit: &mut dyn FnMut(Piece)) {
        let (source, row) = self.locate(row);
        let part = &self.parts[part];
        let Some(SourcePart { first_chunk, map, .. }) = part.of_source(source) else { return };
        let mut shifted = |piece: Piece| emit(Piece { chunk: piece.chunk + first_chunk, ..piece });
        match self.lengths[part.element].get(source) {
            Some(Some(lengths)) => map.pieces_of_range(lengths.range(row), &mut shifted),
            _ => map.pieces_of_row(to_u64(row), &mut shifted),
        }
    }

    fn extent(&self, part: PartId, chunk: u32, need: Range<u32>, whole: bool) -> Extent {
        let (part, chunk) = self.parts[part].locate(chunk);
        part.map.extent(chunk, need, whole)
    }

    fn is_plain(&self, part: PartId, chunk: u32) -> bool {
        !self.parts[part].locate(chunk).0.map.is_filtered()
    }

    fn n_chunks(&self, part: PartId) -> u64 {
        self.parts[part].n_chunks
    }

    fn chunk_bytes(&self, part: PartId) -> usize {
        self.parts[part].chunk_bytes
    }

    fn chunk_form(&self, part: PartId, chunk: u32) -> ChunkForm {
        let (SourcePart { source, map, .. }, _) = self.parts[part].locate(chunk);
        ChunkForm { source: *source, stored: map.stored, bytes: map.pipeline.chunk_bytes }
    }

    fn filtered_bytes(&self, part: PartId) -> u64 {
        let filtered = self.parts[part].maps().filter(|map| map.is_filtered());
        let sizes = filtered.map(|map| map.n_chunks().saturating_mul(to_u64(map.pipeline.chunk_bytes)));
        sizes.fold(0, u64::saturating_add)
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
        let part = &self.parts[part];
        let (source_part @ SourcePart { map, .. }, local) = part.locate(chunk);
        let size = map.stored.dtype.size_bytes();
        let bytes = to_usize(u64::from(need.start)) * size..to_usize(u64::from(need.end)) * size;
        let corrupt = |reason: String| {
            let element = part.path(source_part, !self.schema.is_dense(part.element, source_part.source));
            let file = self.files.files().path(map.file_of(local));
            ReadError::Corrupt { file, element, chunk: local, reason }
        };
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
        self.files.read_at(file, offset, buf)
    }

    fn will_need(&self, file: u32, offset: u64, len: u64) {
        self.files.will_need(file, offset, len);
    }

    fn check_unchanged(&self, file: u32) -> Result<(), ReadError> {
        self.files.check_unchanged(file)
    }

    fn bad_row(&self, part: PartId, row: u64, reason: String) -> ReadError {
        let (source, _) = self.locate(row);
        let part = &self.parts[part];
        let is_sparse = !self.schema.is_dense(part.element, source);
        let element = part.of_source(source).map_or_else(String::new, |source| part.path(source, is_sparse));
        ReadError::BadRow { file: self.schema.sources[source].path.clone(), element, row, reason }
    }

    fn max_stored_bytes(&self) -> usize {
        self.parts.iter().flat_map(StoredPart::maps).map(ChunkMap::max_stored_bytes).max().unwrap_or(0)
    }

    fn resident_bytes(&self) -> u64 {
        let Schema { var_names, obs_names, columns, genes, .. } = &self.schema;
        let maps = self.parts.iter().flat_map(StoredPart::maps).map(ChunkMap::resident_bytes);
        let tables = self.parts.iter().map(|part| to_u64(part.sources.len() * size_of::<SourcePart>()));
        let lengths = self.lengths.iter().flatten().flatten().map(|lengths| lengths.resident_bytes());
        let columns = columns.iter().map(super::Column::resident_bytes);
        let names = obs_names.iter().chain([var_names]).map(super::Strings::resident_bytes);
        let genes = genes.iter().map(|genes| genes.resident_bytes());
        let files = [self.files.files().resident_bytes()];
        maps.chain(tables).chain(lengths).chain(columns).chain(names).chain(genes).chain(files).sum()
    }
}

impl AnnDataStore {
    /// Where X is cut in one source: by the array with the longer chunks.
    fn source_borders(&self, source: usize) -> SourceBorders {
        let rows = self.schema.sources[source].rows.clone();
        let element = self.schema.elements.first().filter(|_| self.has_x());
        let map = |part: PartId| self.parts[part].of_source(source).map(|source| &source.map);
        let dense = element.and_then(|element| element.kind.dense()).and_then(map);
        let sparse = element.and_then(|element| element.kind.sparse());
        let sparse = sparse.and_then(|(data, indices)| map(data).zip(map(indices)));
        let (first_rows, x_bytes) = match (sparse, dense) {
            (None, None) => (None, 0),
            (None, Some(values)) => {
                (values.cut_extent().map(|extent| dense_borders(&rows, extent)), values.source_bytes())
            }
            (Some((data, indices)), _) => {
                let cut = match (data.cut_extent(), indices.cut_extent()) {
                    (Some(d), Some(i)) if i > d => Some(indices),
                    (None, Some(_)) => Some(indices),
                    (Some(_), _) => Some(data),
                    (None, None) => None,
                };
                let lengths = self.lengths[0].get(source).and_then(Option::as_ref);
                let first_rows = cut.zip(lengths).map(|(map, lengths)| sparse_borders(&rows, lengths, map.chunk[0]));
                (first_rows, data.source_bytes().saturating_add(indices.source_bytes()))
            }
        };
        SourceBorders { rows, first_rows, x_bytes }
    }
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
