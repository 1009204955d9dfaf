//! The [`Store`] over opened Atompack files.
//!
//! It has one part, whose chunks are the records, and serves the columns that records are taken apart into. Row lengths are those of its
//! elements: atoms first, then each text and each tensor whose shape differs, or, where records are passed on as they are, their sizes.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::fields::{self, ATOMS, Columns, Field, FieldsChoice, NUMBERS, POSITIONS};
use super::file::AtpFile;
use super::files_of;
use super::header::RecordCodec;
use super::scan::{self, Progress, VaryingFields};
use super::scatter::{self, AtomColumns, BadField, FilePlan};
use super::schema::{FileSchema, Payload};
use crate::codec::Scratch;
use crate::dtype::{DType, Stored};
use crate::num::to_usize;
use crate::store::cache::{CacheConfig, SourceCache};
use crate::store::error::{OpenError, ReadError};
use crate::store::records::{ColumnRole, NextRecord, RecordBuffers, RecordSchema, RecordSink, RowKind};
use crate::store::{
    ElementId, Extent, Part, PartId, PartRole, Piece, RowLengths, Schema, SourceBorders, SourceInfo, Store,
    StoredRecord,
};

/// What is served of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Serve {
    /// Columns of these fields.
    Fields(FieldsChoice),
    /// The records themselves: as they are stored, or decoded where files are compressed in different ways.
    Records,
}

/// An Atompack dataset.
pub struct AtompackStore {
    schema: Schema,
    files: Vec<AtpFile>,
    /// Global id of the first row of each file.
    first_rows: Vec<u64>,
    plans: Vec<FilePlan>,
    fields: Vec<Field>,
    positions: DType,
    /// Lengths of texts and tensors, per file.
    measured: Vec<Option<VaryingFields>>,
    /// Where the row lengths of each element are, in each file.
    lengths: Vec<Vec<LengthsAt>>,
    /// Served instead of fields: stored or decoded records.
    records: Option<RecordForm>,
}

/// What a record is passed on as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordForm {
    Stored,
    Decoded,
}

/// Where the row lengths of an element are.
#[derive(Debug, Clone, Copy)]
enum LengthsAt {
    Atoms,
    Stored,
    Raw,
    /// Those of a section, by its number in the schema of the file.
    Section(usize),
    /// All 0: the file does not have the field.
    Absent,
}

impl AtompackStore {
    /// Opens `sources`, each a file or a directory. `progress` hears of passes over records.
    ///
    /// # Errors
    /// [`OpenError`] naming the file, the field, and what is wrong.
    pub fn open(
        sources: &[PathBuf],
        serve: &Serve,
        cache: &CacheConfig,
        progress: &mut dyn Progress,
    ) -> Result<Self, OpenError> {
        let mut store = Self::empty();
        let mut caches = Vec::new();
        for source in sources {
            store.add_source(source, cache, progress, &mut caches)?;
        }
        store.positions = fields::positions(&store.files)?;
        store.fields = fields::union(&store.files)?;
        let columns = Columns::default();
        match serve {
            Serve::Fields(choice) => store.serve_fields(choice, columns, &caches, progress)?,
            Serve::Records => store.serve_records(columns),
        }
        for (file, cache) in store.files.iter_mut().zip(&caches) {
            file.warnings.extend(cache.trouble());
        }
        let (role, stored) = (PartRole::Records, Stored::little(DType::U8));
        store.schema.parts.push(Part { element: ATOMS, role, stored, path: "records".to_owned() });
        Ok(store)
    }

    fn empty() -> Self {
        let schema = Schema {
            n_rows: 0,
            n_vars: 0,
            var_names: crate::store::Strings::default(),
            elements: Vec::new(),
            parts: Vec::new(),
            columns: Vec::new(),
            obs_names: None,
            sources: Vec::new(),
            records: None,
            genes: None,
        };
        Self {
            schema,
            files: Vec::new(),
            first_rows: Vec::new(),
            plans: Vec::new(),
            fields: Vec::new(),
            positions: DType::F32,
            measured: Vec::new(),
            lengths: Vec::new(),
            records: None,
        }
    }

    fn add_source(
        &mut self,
        source: &Path,
        cache: &CacheConfig,
        progress: &mut dyn Progress,
        caches: &mut Vec<SourceCache>,
    ) -> Result<(), OpenError> {
        let first_row = self.schema.n_rows;
        let paths = files_of(source)?;
        if paths.is_empty() {
            let remedy = "give a directory of .atp files";
            return Err(OpenError::refused(source, "directory", "holds no .atp file", remedy));
        }
        let n_files = paths.len();
        let mut codecs: Vec<&str> = Vec::new();
        for path in paths {
            let (file, cache) = AtpFile::open(&path, cache, progress)?;
            caches.push(cache);
            self.first_rows.push(self.schema.n_rows);
            self.schema.n_rows += file.n_rows();
            if u32::try_from(self.schema.n_rows).is_err() {
                let reason = format!("{} molecules so far, at most 2^32 are served", self.schema.n_rows);
                return Err(OpenError::refused(&path, "file", reason, "mount fewer files together"));
            }
            if !codecs.contains(&file.slot.codec.name()) {
                codecs.push(file.slot.codec.name());
            }
            self.files.push(file);
        }
        let files = if n_files == 1 { String::new() } else { format!(", {n_files} files") };
        let kind = format!("atp, {}{files}", codecs.join(" and "));
        let path = std::path::absolute(source).unwrap_or_else(|_| source.to_owned());
        self.schema.sources.push(SourceInfo { path, kind, rows: first_row..self.schema.n_rows, n_vars: 0 });
        Ok(())
    }

    fn serve_fields(
        &mut self,
        choice: &FieldsChoice,
        mut columns: Columns,
        caches: &[SourceCache],
        progress: &mut dyn Progress,
    ) -> Result<(), OpenError> {
        self.check_choice(choice)?;
        columns.add_element("atoms", DType::U8);
        let mut lengths = vec![vec![LengthsAt::Atoms; self.files.len()]];
        let atoms = RowKind::Along(ATOMS);
        let mut add =
            |name, dtype, shape| choice.has(name).then(|| columns.add(name, ColumnRole::Values, dtype, shape, atoms));
        let atom_columns = AtomColumns {
            positions: add(POSITIONS, self.positions, vec![3]),
            numbers: add(NUMBERS, DType::U8, vec![]),
        };
        let needs_lengths = self.fields.iter().any(|f| f.section.tag.is_varying() && choice.has(&f.name));
        for (file, cache) in self.files.iter_mut().zip(caches) {
            let measured = needs_lengths && file.has_varying();
            let measured = measured.then(|| scan::measure(file, cache, progress)).transpose()?;
            self.measured.push(measured);
        }
        for field in self.fields.iter_mut().filter(|field| choice.has(&field.name)) {
            let dims = fields::joined_dims(&field.section, &self.files, &self.measured);
            let added = columns.add_field(&field.section, &field.name, &dims);
            if added.element.is_some() {
                let place = |file: &AtpFile| file.schema.sections.iter().position(|s| *s == field.section);
                lengths
                    .push(self.files.iter().map(|f| place(f).map_or(LengthsAt::Absent, LengthsAt::Section)).collect());
            }
            field.columns = Some(added);
        }
        self.set_columns(columns, lengths, atom_columns);
        Ok(())
    }

    fn serve_records(&mut self, mut columns: Columns) {
        let first = self.files.first().map(|file| file.slot.codec);
        let is_mixed = self.files.iter().any(|file| Some(file.slot.codec) != first);
        columns.add_element("atoms", DType::U8);
        let record = columns.add_element("record", DType::U8);
        columns.add("record", ColumnRole::Record, DType::U8, Vec::new(), RowKind::Along(record));
        let at = |at| vec![at; self.files.len()];
        let mut lengths = vec![at(LengthsAt::Atoms)];
        if is_mixed || first == Some(RecordCodec::None) {
            self.records = Some(RecordForm::Decoded);
            lengths.push(at(LengthsAt::Raw));
        } else {
            // The index of a batch has decoded sizes, too.
            columns.add_element("decoded record", DType::U8);
            self.records = Some(RecordForm::Stored);
            lengths.extend([at(LengthsAt::Stored), at(LengthsAt::Raw)]);
        }
        self.set_columns(columns, lengths, AtomColumns::default());
    }

    fn set_columns(&mut self, columns: Columns, lengths: Vec<Vec<LengthsAt>>, atoms: AtomColumns) {
        self.schema.elements = columns.elements;
        self.schema.records = Some(RecordSchema { columns: columns.columns });
        self.lengths = lengths;
        self.plans = self.files.iter().map(|file| FilePlan::new(&file.schema, &self.fields, atoms)).collect();
    }

    fn check_choice(&self, choice: &FieldsChoice) -> Result<(), OpenError> {
        let FieldsChoice::Named(names) = choice else { return Ok(()) };
        let known = || [POSITIONS, NUMBERS].into_iter().chain(self.fields.iter().map(|field| field.name.as_str()));
        match names.iter().find(|name| !known().any(|known| known == name.as_str())) {
            None => Ok(()),
            Some(unknown) => {
                let path = self.files.first().map_or(Path::new(""), |file| file.file.path());
                let reason = format!("there is no field {unknown:?}");
                let remedy = format!("--fields can name {}", known().collect::<Vec<_>>().join(", "));
                Err(OpenError::refused(path, "fields", reason, remedy))
            }
        }
    }

    /// The files, in the order of their rows.
    #[must_use]
    pub fn files(&self) -> &[AtpFile] {
        &self.files
    }

    /// The fields of all files together, without positions and atomic numbers.
    #[must_use]
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Type of the positions.
    #[must_use]
    pub fn positions(&self) -> DType {
        self.positions
    }

    /// The schema of all files together.
    #[must_use]
    pub fn union_schema(&self) -> FileSchema {
        let sections = self.fields.iter().map(|field| field.section.clone()).collect();
        FileSchema { positions: Some(self.positions), sections }
    }

    /// The codec of the records that are served as they are.
    #[must_use]
    pub fn record_codec(&self) -> (RecordCodec, i32) {
        match (self.records, self.files.first()) {
            (Some(RecordForm::Stored), Some(file)) => (file.slot.codec, file.slot.level),
            _ => (RecordCodec::None, 0),
        }
    }

    /// The file of `row`, and the row's number there.
    #[inline]
    fn locate(&self, row: u64) -> (usize, usize) {
        let file = self.first_rows.partition_point(|&first| first <= row).saturating_sub(1);
        (file, to_usize(row - self.first_rows[file]))
    }

    #[inline]
    fn lengths(&self, element: ElementId, file: usize) -> Option<&RowLengths> {
        let index = &self.files[file].index;
        match self.lengths[element][file] {
            LengthsAt::Atoms => Some(&index.atoms),
            LengthsAt::Stored => Some(&index.stored),
            LengthsAt::Raw => Some(index.raw()),
            LengthsAt::Section(section) => {
                let measured = self.measured[file].as_ref()?;
                Some(&measured.fields.get(section)?.as_ref()?.lengths)
            }
            LengthsAt::Absent => None,
        }
    }

    fn all_lengths(&self, element: ElementId) -> impl Iterator<Item = &RowLengths> {
        (0..self.files.len()).filter_map(move |file| self.lengths(element, file))
    }

    /// The decoded bytes of `record`, which is that of row `local` of file `number`, and how many went through a decompressor. Where two at
    /// once are quicker, `next` is kept in `after`.
    fn decoded<'a>(
        &self,
        (number, local): (usize, usize),
        record: StoredRecord<'a>,
        next: Option<StoredRecord<'_>>,
        scratch: &mut Scratch,
        into: &'a mut Vec<u8>,
        after: &'a mut NextRecord,
    ) -> Result<(&'a [u8], u64), String> {
        let file = &self.files[number];
        let len = file.index.raw_size(local);
        let of_len = |bytes: &'a [u8]| (bytes.get(..len as usize).unwrap_or_default(), u64::from(len));
        let is_there = after.row() == Some(record.row);
        after.forget();
        if is_there {
            return Ok(of_len(after.bytes()));
        }
        if file.slot.codec == RecordCodec::Zstd
            && let Some(next) = next
            && let (next_number, next_local) = self.locate(next.row)
            && next_number == number
            && file.decode_two([local, next_local], [record.bytes, next.bytes], scratch, [&mut *into, after.room()])
        {
            after.keep(next.row);
            return Ok(of_len(into));
        }
        file.decode(local, record.bytes, scratch, into)
    }

    fn bad_record(&self, file: usize, row: u64, element: &str, reason: String) -> ReadError {
        let path = self.files.get(file).map_or_else(PathBuf::new, |file| file.file.path().to_owned());
        ReadError::BadRow { file: path, element: element.to_owned(), row, reason }
    }
}

impl Store for AtompackStore {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn row_len(&self, element: ElementId, row: u64) -> u32 {
        let (file, row) = self.locate(row);
        self.lengths(element, file).map_or(0, |lengths| lengths.len(row))
    }

    fn max_row_len(&self, element: ElementId) -> u32 {
        self.all_lengths(element).map(RowLengths::max).max().unwrap_or(0)
    }

    fn row_lengths_digest(&self, element: ElementId, source: usize) -> [u8; 32] {
        let rows = &self.schema.sources[source].rows;
        let mut hash = blake3::Hasher::new();
        for (file, first_row) in self.first_rows.iter().enumerate().filter(|(_, first)| rows.contains(first)) {
            hash.update(&first_row.to_le_bytes());
            hash.update(&self.lengths(element, file).map_or([0; 32], RowLengths::digest));
        }
        *hash.finalize().as_bytes()
    }

    fn n_values(&self, element: ElementId) -> u64 {
        self.all_lengths(element).map(RowLengths::total).sum()
    }

    fn pieces(&self, _: PartId, row: u64, emit: &mut dyn FnMut(Piece)) {
        let (file, local) = self.locate(row);
        let len = self.files[file].index.raw_size(local);
        // Rows are fewer than 2^32, as was checked when files were added.
        let chunk = u32::try_from(row).unwrap_or(u32::MAX);
        emit(Piece { chunk, from: 0, to: 0, len });
    }

    #[inline]
    fn extent(&self, _: PartId, chunk: u32, _: Range<u32>, _: bool) -> Extent {
        let (file, row) = self.locate(u64::from(chunk));
        let place = self.files[file].index.place(row);
        // Files are fewer than their rows, and stored sizes are of 32 bits.
        let (id, len) = (u32::try_from(file).unwrap_or(u32::MAX), self.files[file].index.stored.len(row));
        Extent::File { file: id, address: place.start, len, is_prefix: false }
    }

    fn is_plain(&self, _: PartId, chunk: u32) -> bool {
        let (file, _) = self.locate(u64::from(chunk));
        self.files[file].slot.codec == RecordCodec::None
    }

    fn n_chunks(&self, _: PartId) -> u64 {
        self.schema.n_rows
    }

    fn filtered_bytes(&self, _: PartId) -> u64 {
        // Records are not kept: there are as many as rows, and none is decoded for two of them.
        0
    }

    fn chunk_bytes(&self, _: PartId) -> usize {
        let compressed = self.files.iter().filter(|file| file.slot.codec != RecordCodec::None);
        compressed.map(|file| file.index.raw().max() as usize).max().unwrap_or(0)
    }

    fn decode(
        &self,
        _: PartId,
        chunk: u32,
        _: Range<u32>,
        _: &[u8],
        _: bool,
        _: &mut Scratch,
        _: &mut [u8],
    ) -> Result<u64, ReadError> {
        let reason = "records are not decoded without being taken apart".to_owned();
        Err(self.bad_row(0, u64::from(chunk), reason))
    }

    fn record(
        &self,
        record: StoredRecord<'_>,
        next: Option<StoredRecord<'_>>,
        buffers: &mut RecordBuffers,
        sink: &mut dyn RecordSink,
    ) -> Result<u64, ReadError> {
        let StoredRecord { row, bytes: stored } = record;
        let (number, local) = self.locate(row);
        let (file, plan) = (&self.files[number], &self.plans[number]);
        let bad = |reason| self.bad_record(number, row, "record", reason);
        let RecordBuffers { scratch, decoded, next: after, seen } = buffers;
        let (bytes, n_decoded) = self.decoded((number, local), record, next, scratch, decoded, after).map_err(bad)?;
        let record = file.parse(local, bytes).map_err(bad)?;
        let scattered = match self.records {
            None => plan.scatter(&record, seen, sink),
            Some(form) => scatter::check(plan, &record, seen)
                .and_then(|()| scatter::copy_record(sink, 0, if form == RecordForm::Stored { stored } else { bytes })),
        };
        scattered.map_err(|error| match error {
            BadField::Record(error) => bad(error.to_string()),
            BadField::Field(field, reason) => self.bad_record(number, row, &field, reason.to_owned()),
        })?;
        Ok(n_decoded)
    }

    fn chunk_borders(&self) -> Vec<SourceBorders> {
        let sources = self.schema.sources.iter();
        sources
            .map(|source| {
                let files = self.files.iter().zip(&self.first_rows).filter(|(_, first)| source.rows.contains(first));
                let x_bytes = files.map(|(file, _)| file.index.raw().total()).sum();
                SourceBorders { rows: source.rows.clone(), first_rows: None, x_bytes }
            })
            .collect()
    }

    fn read_at(&self, file: u32, offset: u64, buf: &mut [u8]) -> Result<(), ReadError> {
        self.files[to_usize(u64::from(file))].file.read_at(offset, buf)
    }

    fn check_unchanged(&self, file: u32) -> Result<(), ReadError> {
        self.files[to_usize(u64::from(file))].file.check_unchanged()
    }

    fn bad_row(&self, _: PartId, row: u64, reason: String) -> ReadError {
        let (file, _) = self.locate(row);
        self.bad_record(file, row, "record", reason)
    }

    fn max_stored_bytes(&self) -> usize {
        self.files.iter().map(|file| file.index.stored.max() as usize).max().unwrap_or(0)
    }

    fn resident_bytes(&self) -> u64 {
        let index: u64 = self.files.iter().map(|file| file.index.resident_bytes()).sum();
        let measured = self.measured.iter().flatten().flat_map(|measured| measured.fields.iter().flatten());
        index + measured.map(|field| field.lengths.resident_bytes()).sum::<u64>()
    }
}

/// True if a field has no array of its own in a batch.
#[must_use]
pub fn is_null(field: &Field) -> bool {
    field.section.tag.payload() == Payload::Null
}
