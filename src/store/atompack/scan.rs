//! Passes over all records of a file, for what neither its index nor its schema tells: the lengths of texts and tensors, and, in files of the
//! first releases, the schema itself.
//!
//! A record that cannot be read counts as one without fields: it fails the batches that need it, as it would have without a
//! pass, and no others.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::file::AtpFile;
use super::record::{RawSection, Record, RecordError, Tensor};
use super::schema::{FileSchema, Payload, Section, Tag};
use crate::codec::Scratch;
use crate::dtype::DType;
use crate::num::{to_u64, to_usize};
use crate::store::cache::{Cacheable, Sections, SourceCache};
use crate::store::error::{OpenError, ReadError};
use crate::store::rows::{Facts as LengthFacts, RowLengths, RowLengthsBuilder};

/// Bytes read at a time.
const RUN_BYTES: u64 = 4 << 20;
/// Bytes between two records that are read along.
const MAX_GAP_BYTES: u64 = 64 << 10;
/// Sections of which a schema may consist.
const MAX_SECTIONS: usize = 1 << 16;

/// Hears how far a pass is.
pub trait Progress {
    /// A pass over `bytes` bytes of a file begins, because of `why`.
    fn begin(&mut self, file: &std::path::Path, why: &str, bytes: u64);
    /// So many more bytes were read.
    fn advance(&mut self, bytes: u64);
    /// The pass is done.
    fn end(&mut self);
}

/// Nobody listens.
impl Progress for () {
    fn begin(&mut self, _: &std::path::Path, _: &str, _: u64) {}
    fn advance(&mut self, _: u64) {}
    fn end(&mut self) {}
}

/// A record that cannot be used.
struct BadRecord;

impl From<RecordError> for BadRecord {
    fn from(_: RecordError) -> Self {
        Self
    }
}

/// Calls `each` with every record, by ascending row. Returns how many could not be read.
fn each_record(
    file: &AtpFile,
    why: &str,
    progress: &mut dyn Progress,
    mut each: impl FnMut(usize, Option<Record<'_>>),
) -> Result<u64, ReadError> {
    progress.begin(file.file.path(), why, file.index.stored.total());
    let n_rows = file.index.atoms.n_rows();
    let (mut run, mut decoded, mut scratch) = (Vec::new(), Vec::new(), Scratch::default());
    let (mut row, mut n_bad) = (0, 0);
    while row < n_rows {
        let first = file.index.place(row);
        let mut end = first.end;
        let mut last = row + 1;
        while last < n_rows {
            let next = file.index.place(last);
            if next.start < first.start || next.start > end + MAX_GAP_BYTES || next.end > first.start + RUN_BYTES {
                break;
            }
            end = end.max(next.end);
            last += 1;
        }
        run.resize(to_usize(end - first.start), 0);
        file.file.read_at(first.start, &mut run)?;
        for row in row..last {
            let place = file.index.place(row);
            let stored = run.get(to_usize(place.start - first.start)..to_usize(place.end - first.start));
            let bytes = file.decode(row, stored.unwrap_or_default(), &mut scratch, &mut decoded);
            let record = bytes.and_then(|(bytes, _)| file.parse(row, bytes)).ok();
            n_bad += u64::from(record.is_none());
            each(row, record);
        }
        progress.advance(end - first.start);
        row = last;
    }
    progress.end();
    Ok(n_bad)
}

/// What a pass found, in words, if it met records that cannot be read.
fn bad_records(file: &AtpFile, n_bad: u64) -> Option<String> {
    let path = file.file.path().display();
    (n_bad > 0).then(|| format!("{path}: {n_bad} records cannot be read; batches that hold one will fail"))
}

fn failed(file: &AtpFile, error: &ReadError) -> OpenError {
    OpenError::refused(file.file.path(), "records", error.to_string(), "check the file")
}

/// The schema of a file without one, from its records.
///
/// # Errors
/// If the file cannot be read. A record that contradicts those before it counts as one that cannot be read.
pub fn collect_schema(
    file: &mut AtpFile,
    cache: &SourceCache,
    progress: &mut dyn Progress,
) -> Result<FileSchema, OpenError> {
    let why = "the file has no schema (it is of an early release)";
    let collected = cache.rows("atompack schema", file.n_rows(), || -> Result<CollectedSchema, OpenError> {
        let mut sections: HashMap<(u8, Vec<u8>), Section> = HashMap::new();
        let mut n_odd = 0;
        let n_bad = each_record(file, why, progress, |_, record| {
            let Some(record) = record else { return };
            // First whether it is whole: a damaged record adds no fields.
            let whole = record.sections::<BadRecord>(|_, _| Ok(()));
            let result = whole.and_then(|()| record.sections(|_, raw| collect(&mut sections, raw)));
            n_odd += u64::from(result.is_err());
        });
        let n_bad = n_odd + n_bad.map_err(|error| failed(file, &error))?;
        let mut sections: Vec<Section> = sections.into_values().collect();
        sections.sort_by(|a, b| a.record_order().cmp(&b.record_order()));
        let schema = FileSchema { positions: Some(file.positions), sections };
        Ok(CollectedSchema { schema: schema.encode(), n_bad })
    })?;
    file.warnings.extend(bad_records(file, collected.n_bad));
    FileSchema::parse(&collected.schema).map_err(|why| {
        let remedy = "remove the cache folder";
        OpenError::refused(file.file.path(), "schema", why, remedy)
    })
}

fn collect(sections: &mut HashMap<(u8, Vec<u8>), Section>, raw: RawSection<'_>) -> Result<(), BadRecord> {
    let Some(scope) = raw.scope else { return Ok(()) };
    let payload_bytes = u32::try_from(raw.payload.len()).unwrap_or(u32::MAX);
    let key = std::str::from_utf8(raw.key).map_err(|_| BadRecord)?;
    let tag = Tag::new(raw.tag).ok_or(BadRecord)?;
    let section = Section::new(scope, key, tag, payload_bytes).map_err(|_| BadRecord)?;
    let place = (scope as u8, raw.key.to_vec());
    match sections.get(&place) {
        Some(found) if *found != section => Err(BadRecord),
        None if sections.len() >= MAX_SECTIONS => Err(BadRecord),
        None if !section.is_unknown() => {
            sections.insert(place, section);
            Ok(())
        }
        Some(_) | None => Ok(()),
    }
}

/// A collected schema, for the cache folder.
struct CollectedSchema {
    schema: Vec<u8>,
    n_bad: u64,
}

impl Cacheable for CollectedSchema {
    type Facts = (Vec<u8>, u64);

    fn to_entry<'a>(&'a self, _: &mut Vec<&'a [u8]>) -> Self::Facts {
        (self.schema.clone(), self.n_bad)
    }

    fn from_entry((schema, n_bad): Self::Facts, _: &mut Sections<'_>) -> Option<Self> {
        Some(Self { schema, n_bad })
    }
}

/// What a pass found out about one text or tensor.
#[derive(Debug, Clone)]
pub struct VaryingField {
    /// Bytes of the text, or values of the tensor, of each row; 0 where it is missing.
    pub lengths: RowLengths,
    /// What is known of all rows.
    pub dims: Dims,
}

/// Dimensions of a tensor in all rows that have it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dims {
    /// The dimensions (of one atom, if the tensor belongs to atoms), while all rows agree.
    pub uniform: Option<Vec<u64>>,
    /// True if rows do not agree.
    pub differ: bool,
    /// The largest number of dimensions.
    pub max_dims: u64,
}

impl Dims {
    fn see(&mut self, tensor: &Tensor<'_>, atoms: Option<u32>) {
        let mut dims = tensor.dims();
        self.max_dims = self.max_dims.max(to_u64(dims.len()));
        // A tensor of atoms whose first dimension is another one is of no uniform shape.
        let leads = atoms.is_none_or(|n| dims.next() == Some(n));
        if self.differ {
            return;
        }
        match &self.uniform {
            _ if !leads => self.differ = true,
            None => self.uniform = Some(dims.map(u64::from).collect()),
            Some(found) => self.differ = !dims.map(u64::from).eq(found.iter().copied()),
        }
    }

    /// The dimensions of both together.
    #[must_use]
    pub fn join(&self, other: &Self) -> Self {
        let contradict = matches!((&self.uniform, &other.uniform), (Some(a), Some(b)) if a != b);
        Self {
            uniform: self.uniform.clone().or_else(|| other.uniform.clone()),
            differ: self.differ || other.differ || contradict,
            max_dims: self.max_dims.max(other.max_dims),
        }
    }
}

/// The texts and tensors of a file, by the number of their section in its schema; `None` for sections of fixed size.
#[derive(Debug, Clone)]
pub struct VaryingFields {
    /// One entry per section.
    pub fields: Vec<Option<VaryingField>>,
    n_bad: u64,
}

/// Finds out how long the texts and tensors of a file are.
///
/// # Errors
/// If the file cannot be read.
pub fn measure(
    file: &mut AtpFile,
    cache: &SourceCache,
    progress: &mut dyn Progress,
) -> Result<VaryingFields, OpenError> {
    let why = "the lengths of texts and tensors are only in the records";
    let measured = cache.rows("atompack lengths", file.n_rows(), || -> Result<VaryingFields, OpenError> {
        let sections = &file.schema.sections;
        let mut builders: Vec<_> = sections
            .iter()
            .map(|s| s.tag.is_varying().then(|| (RowLengthsBuilder::default(), Dims::default())))
            .collect();
        let mut lens: Vec<u32> = vec![0; sections.len()];
        let n_bad = each_record(file, why, progress, |_, record| {
            lens.fill(0);
            if let Some(record) = record {
                // What is wrong with the sections of a record is told when the record is served.
                let _ = record.sections::<RecordError>(|_, raw| {
                    see(sections, &mut builders, &mut lens, &record, raw);
                    Ok(())
                });
            }
            for (builder, &len) in builders.iter_mut().zip(&lens) {
                if let Some((builder, _)) = builder {
                    // At most 2^32 lengths below 2^32.
                    let _ = builder.push(len);
                }
            }
        });
        let n_bad = n_bad.map_err(|error| failed(file, &error))?;
        let finish = |(lengths, dims): (RowLengthsBuilder, Dims)| VaryingField { lengths: lengths.finish(), dims };
        Ok(VaryingFields { fields: builders.into_iter().map(|builder| builder.map(finish)).collect(), n_bad })
    })?;
    let warning = bad_records(file, measured.n_bad);
    file.warnings.extend(warning);
    Ok(measured)
}

fn see(
    sections: &[Section],
    builders: &mut [Option<(RowLengthsBuilder, Dims)>],
    lens: &mut [u32],
    record: &Record<'_>,
    raw: RawSection<'_>,
) {
    let is_it = |s: &Section| Some(s.scope) == raw.scope && s.key.as_bytes() == raw.key && s.tag.number() == raw.tag;
    let Some(i) = sections.iter().position(is_it) else { return };
    let (Some(section), Some(Some((_, dims))), Some(len)) = (sections.get(i), builders.get_mut(i), lens.get_mut(i))
    else {
        return;
    };
    if let Payload::Tensor { dtype } = section.tag.payload() {
        let Some(tensor) = Tensor::parse(raw.payload, section.tag) else { return };
        *len = u32::try_from(tensor.values.len() / dtype.size_bytes()).unwrap_or(0);
        dims.see(&tensor, section.belongs_to_atoms().then_some(record.n_atoms));
    } else {
        *len = u32::try_from(raw.payload.len()).unwrap_or(0);
    }
}

impl Cacheable for VaryingFields {
    type Facts = (Vec<Option<(LengthFacts, Dims)>>, u64);

    fn to_entry<'a>(&'a self, sections: &mut Vec<&'a [u8]>) -> Self::Facts {
        let mut facts = |field: &'a VaryingField| (field.lengths.to_entry(sections), field.dims.clone());
        (self.fields.iter().map(|field| field.as_ref().map(&mut facts)).collect(), self.n_bad)
    }

    fn from_entry((facts, n_bad): Self::Facts, sections: &mut Sections<'_>) -> Option<Self> {
        let mut fields = Vec::with_capacity(facts.len());
        for fact in facts {
            fields.push(match fact {
                None => None,
                Some((lengths, dims)) => {
                    Some(VaryingField { lengths: RowLengths::from_entry(lengths, sections)?, dims })
                }
            });
        }
        Some(Self { fields, n_bad })
    }
}

/// The type of the values of a text or tensor.
#[must_use]
pub fn value_dtype(tag: Tag) -> DType {
    match tag.payload() {
        Payload::Tensor { dtype } | Payload::Elements { dtype, .. } => dtype,
        Payload::Text | Payload::Null => DType::U8,
    }
}
