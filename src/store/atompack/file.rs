//! Opening one Atompack file: headers, schema, index. Everything that can be refused is refused here.

use std::path::Path;

use super::header::{self, Chosen, FIRST_RECORD, HeaderError, INDEX_HEAD_BYTES, RecordCodec, SLOT_BYTES, Slot};
use super::index::{IndexBuilder, RUN_ENTRIES, RecordIndex};
use super::record::Record;
use super::scan::{self, Progress};
use super::schema::{FileSchema, MAX_SCHEMA_BYTES, Payload};
use crate::codec::{self, Scratch};
use crate::dtype::DType;
use crate::num::{to_u64, to_usize};
use crate::store::cache::{CacheConfig, SourceCache};
use crate::store::error::{OpenError, ReadError};
use crate::store::file::SourceFile;

/// Rows are numbered in 32 bits within a part.
const MAX_ROWS: u64 = u32::MAX as u64;

/// An opened Atompack file.
pub struct AtpFile {
    /// The file.
    pub file: SourceFile,
    /// Its newest commit.
    pub slot: Slot,
    /// Type of the positions: f32 or f64.
    pub positions: DType,
    /// Its sections, in the order in which records have them.
    pub schema: FileSchema,
    /// Where its records lie.
    pub index: RecordIndex,
    /// What is odd about it, one line each.
    pub warnings: Vec<String>,
}

impl AtpFile {
    /// Opens `path`, also its entries in the cache folder. `progress` hears of records that have to be read for it.
    ///
    /// # Errors
    /// [`OpenError`] naming what is wrong.
    pub fn open(
        path: &Path,
        cache: &CacheConfig,
        progress: &mut dyn Progress,
    ) -> Result<(Self, SourceCache), OpenError> {
        let file = SourceFile::open(path)?;
        let chosen = choose_slot(&file)?;
        let slot = chosen.slot.clone();
        check_slot(path, &slot, file.stamp().size)?;
        let schema = read_schema(&file, &slot)?;
        let positions = match (slot.record_format, &schema) {
            (2, Some(FileSchema { positions: Some(DType::F64), .. })) => {
                return Err(refused(path, "schema", "has float64 positions in record format 2"));
            }
            (2, _) => DType::F32,
            (_, Some(FileSchema { positions: Some(dtype), .. })) => *dtype,
            (_, _) if slot.n_molecules == 0 => DType::F32,
            (_, _) => return Err(refused(path, "schema", "does not say of what type positions are")),
        };
        let cache = SourceCache::new(cache, &file);
        let index = cache.rows("atompack index", slot.n_molecules, || read_index(&file, &slot, positions))?;
        let warnings = warnings(&chosen, &file);
        let empty = FileSchema { positions: Some(positions), sections: Vec::new() };
        let mut opened = Self { file, slot, positions, schema: empty, index, warnings };
        opened.schema = match schema {
            Some(schema) => schema,
            None => scan::collect_schema(&mut opened, &cache, progress)?,
        };
        Ok((opened, cache))
    }

    /// Molecules.
    #[must_use]
    pub fn n_rows(&self) -> u64 {
        self.index.n_rows()
    }

    /// Bytes of a coordinate.
    #[must_use]
    pub fn item(&self) -> usize {
        self.positions.size_bytes()
    }

    /// Decodes the zstd records of two rows at once, of which `stored` are the bytes in the file. False if these cannot be decoded like that:
    /// [`Self::decode`] takes one of them at a time.
    pub fn decode_two(
        &self,
        rows: [usize; 2],
        stored: [&[u8]; 2],
        scratch: &mut Scratch,
        decoded: [&mut Vec<u8>; 2],
    ) -> bool {
        let lens = rows.map(|row| self.index.raw_size(row) as usize);
        if lens.iter().any(|&len| len > codec::ZSTD_PAIR_BYTES) {
            return false;
        }
        let [first, second] = decoded;
        codec::zstd_pair(stored, scratch, [codec::sized(first, lens[0]), codec::sized(second, lens[1])])
    }

    /// The decoded bytes of the record of `row`, of which `stored` are the bytes in the file, and how many went through a decompressor.
    ///
    /// # Errors
    /// What the decompressor says.
    pub fn decode<'a>(
        &self,
        row: usize,
        stored: &'a [u8],
        scratch: &mut Scratch,
        decoded: &'a mut Vec<u8>,
    ) -> Result<(&'a [u8], u64), String> {
        if self.slot.codec == RecordCodec::None {
            return Ok((stored, 0));
        }
        // At most the largest record, for which memory was reckoned when the file was opened.
        let out = codec::sized(decoded, self.index.raw_size(row) as usize);
        let len = out.len();
        let result = match self.slot.codec {
            RecordCodec::Lz4 => codec::lz4_block(stored, out),
            RecordCodec::Zstd | RecordCodec::None => codec::zstd_frame(stored, scratch, out),
        };
        result.map_err(|error| error.to_string())?;
        Ok((out, to_u64(len)))
    }

    /// The record of `row` in its decoded bytes: as many atoms as the index says.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse<'a>(&self, row: usize, bytes: &'a [u8]) -> Result<Record<'a>, String> {
        let record = Record::parse(bytes, self.item()).map_err(|error| error.to_string())?;
        let expected = self.index.atoms.len(row);
        if record.n_atoms != expected {
            return Err(format!("it has {} atoms, the index says {expected}", record.n_atoms));
        }
        Ok(record)
    }

    /// True if some section differs in size from record to record.
    #[must_use]
    pub fn has_varying(&self) -> bool {
        self.schema.sections.iter().any(|s| matches!(s.tag.payload(), Payload::Text | Payload::Tensor { .. }))
    }
}

fn refused(path: &Path, element: &str, reason: impl Into<String>) -> OpenError {
    OpenError::refused(path, element, reason, "write the file again")
}

fn from_read(path: &Path, element: &str, error: &ReadError) -> OpenError {
    OpenError::refused(path, element, error.to_string(), "check the file")
}

fn choose_slot(file: &SourceFile) -> Result<Chosen, OpenError> {
    let path = file.path();
    let file_bytes = file.stamp().size;
    let mut head = vec![0; to_usize(file_bytes.min(to_u64(2 * SLOT_BYTES)))];
    file.read_at(0, &mut head).map_err(|error| from_read(path, "header", &error))?;
    header::choose(&head, file_bytes).map_err(|error| match error {
        HeaderError::NotAtompack => {
            let remedy = "give an .atp file that Atompack wrote";
            OpenError::refused(path, "file", "is not an Atompack file (no valid header)", remedy)
        }
        HeaderError::Truncated { needed } => {
            let reason = format!("is truncated: the newest commit needs {needed} bytes, the file has {file_bytes}");
            OpenError::refused(path, "file", reason, "copy it again")
        }
        HeaderError::Inconsistent => refused(path, "header", "the newest commit contradicts itself"),
    })
}

fn check_slot(path: &Path, slot: &Slot, file_bytes: u64) -> Result<(), OpenError> {
    if !matches!(slot.record_format, 2 | 3) {
        let reason = format!("record format {}; 2 and 3 are known", slot.record_format);
        return Err(OpenError::refused(path, "header", reason, "use a newer shufflefs"));
    }
    if slot.index_offset == 0 && file_bytes > FIRST_RECORD {
        let reason = "has no committed molecules (its writer never flushed, or is still at work)";
        return Err(OpenError::refused(path, "file", reason, "call flush() when writing"));
    }
    if slot.n_molecules > MAX_ROWS {
        return Err(OpenError::refused(path, "index", format!("{} molecules", slot.n_molecules), "split the file"));
    }
    Ok(())
}

fn read_schema(file: &SourceFile, slot: &Slot) -> Result<Option<FileSchema>, OpenError> {
    if slot.schema_offset == 0 {
        return Ok(None);
    }
    let path = file.path();
    if slot.schema_len > MAX_SCHEMA_BYTES {
        let reason = format!("takes {} bytes, at most {MAX_SCHEMA_BYTES} are read", slot.schema_len);
        return Err(refused(path, "schema", reason));
    }
    let mut bytes = vec![0; to_usize(slot.schema_len)];
    file.read_at(slot.schema_offset, &mut bytes).map_err(|error| from_read(path, "schema", &error))?;
    FileSchema::parse(&bytes).map(Some).map_err(|why| refused(path, "schema", why))
}

fn read_index(file: &SourceFile, slot: &Slot, positions: DType) -> Result<RecordIndex, OpenError> {
    let path = file.path();
    let mut builder = IndexBuilder::new(slot, to_u64(positions.size_bytes()));
    if slot.index_offset != 0 {
        let mut head = [0; 8];
        file.read_at(slot.index_offset, &mut head).map_err(|error| from_read(path, "index", &error))?;
        let count = u64::from_le_bytes(head);
        if count != slot.n_molecules {
            return Err(refused(path, "index", format!("has {count} entries, the header says {}", slot.n_molecules)));
        }
        let entries = slot.index_entries();
        let run_bytes = RUN_ENTRIES * header::INDEX_ENTRY_BYTES;
        let mut run = vec![0; to_usize(run_bytes.min(slot.index_len - INDEX_HEAD_BYTES))];
        let mut at = entries.start;
        while at < entries.end {
            let len = run_bytes.min(entries.end - at);
            let run = run.get_mut(..to_usize(len)).unwrap_or_default();
            file.read_at(at, run).map_err(|error| from_read(path, "index", &error))?;
            builder.push(run).map_err(|why| refused(path, "index", why))?;
            at += len;
        }
    }
    Ok(builder.finish())
}

fn warnings(chosen: &Chosen, file: &SourceFile) -> Vec<String> {
    let (path, slot) = (file.path().display(), &chosen.slot);
    let mut warnings = Vec::new();
    if let Some(claimed) = &chosen.damaged {
        let claimed = claimed.map_or("cannot be read".to_owned(), |generation| format!("says generation {generation}"));
        let served = slot.generation;
        warnings
            .push(format!("{path}: one of its two headers is damaged (it {claimed}); generation {served} is served"));
    }
    if slot.n_molecules == 0 {
        warnings.push(format!("{path}: holds no molecule"));
    }
    let end = slot.index_offset.saturating_add(slot.index_len).max(slot.schema_offset.saturating_add(slot.schema_len));
    if end.max(FIRST_RECORD) < file.stamp().size {
        let tail = file.stamp().size - end.max(FIRST_RECORD);
        warnings.push(format!(
            "{path}: {tail} bytes behind the last commit are not served (a writer died, or is still at work)"
        ));
    }
    for warning in &warnings {
        tracing::warn!("{warning}");
    }
    warnings
}
