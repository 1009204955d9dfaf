//! Taking a record apart: every section is checked against the schema and copied to its place in a batch.
//!
//! Sections of a record stand in the order of the schema, some left out, so the section that a record has next is looked for from behind
//! the last one: one comparison each as a rule. What is not found is an error, what is not there is filled with NaN or 0 and marked (marks say
//! "present" until then).

use super::fields::{Field, FieldColumns};
use super::record::{RawSection, Record, RecordError, Tensor};
use super::schema::{FileSchema, Payload, Section};
use crate::codec::stream_copy::copy_under_fence;
use crate::dtype::DType;
use crate::num::to_u64;
use crate::store::records::RecordSink;

/// Columns of positions and atomic numbers, if they are served.
#[derive(Debug, Clone, Copy, Default)]
pub struct AtomColumns {
    /// Positions.
    pub positions: Option<usize>,
    /// Atomic numbers.
    pub numbers: Option<usize>,
}

/// What becomes of the records of one file.
#[derive(Debug)]
pub struct FilePlan {
    atoms: AtomColumns,
    sections: Vec<SectionPlan>,
    /// Fields that the file does not have.
    absent: Vec<(Fill, FieldColumns)>,
}

#[derive(Debug)]
struct SectionPlan {
    section: Section,
    expected: Expected,
    fill: Fill,
    columns: Option<FieldColumns>,
}

/// What a payload must be, as it is asked for every section.
#[derive(Debug, Clone, Copy)]
enum Expected {
    /// So many bytes per atom.
    PerAtom(u64),
    /// So many bytes.
    Bytes(u64),
    /// Bytes that are 0 or 1.
    Bools(u64),
    Text,
    Tensor,
}

impl Expected {
    fn of(section: &Section) -> Self {
        match section.tag.payload() {
            Payload::Elements { .. } if section.per_atom => Self::PerAtom(u64::from(section.tag.elem_bytes())),
            Payload::Elements { dtype: DType::Bool, .. } => Self::Bools(u64::from(section.molecule_bytes)),
            Payload::Elements { .. } => Self::Bytes(u64::from(section.molecule_bytes)),
            Payload::Text => Self::Text,
            Payload::Null => Self::Bytes(0),
            Payload::Tensor { .. } => Self::Tensor,
        }
    }
}

/// What stands for a missing value.
#[derive(Debug, Clone, Copy)]
enum Fill {
    Zero,
    Nan32,
    Nan64,
}

impl Fill {
    fn of(section: &Section) -> Self {
        match section.tag.payload() {
            Payload::Elements { dtype, .. } | Payload::Tensor { dtype } => match dtype {
                DType::F32 => Self::Nan32,
                DType::F64 => Self::Nan64,
                _ => Self::Zero,
            },
            Payload::Text | Payload::Null => Self::Zero,
        }
    }

    fn fill(self, out: &mut [u8]) {
        match self {
            Self::Zero => out.fill(0),
            Self::Nan32 => out.chunks_exact_mut(4).for_each(|v| v.copy_from_slice(&f32::NAN.to_le_bytes())),
            Self::Nan64 => out.chunks_exact_mut(8).for_each(|v| v.copy_from_slice(&f64::NAN.to_le_bytes())),
        }
    }
}

/// What is wrong with a record.
#[derive(Debug)]
pub enum BadField {
    /// With the record as a whole.
    Record(RecordError),
    /// With one field: its name, and the reason.
    Field(String, &'static str),
}

impl From<RecordError> for BadField {
    fn from(error: RecordError) -> Self {
        Self::Record(error)
    }
}

impl FilePlan {
    /// For the records of a file with this schema, in a dataset with these `fields`.
    #[must_use]
    pub fn new(schema: &FileSchema, fields: &[Field], atoms: AtomColumns) -> Self {
        let same = |a: &Section, b: &Section| a.scope == b.scope && a.key == b.key;
        let columns = |section: &Section| fields.iter().find(|f| same(&f.section, section)).and_then(|f| f.columns);
        let sections = schema.sections.iter().map(|section| SectionPlan {
            section: section.clone(),
            expected: Expected::of(section),
            fill: Fill::of(section),
            columns: columns(section),
        });
        let is_absent = |field: &&Field| !schema.sections.iter().any(|section| same(&field.section, section));
        let absent = fields.iter().filter(is_absent);
        let absent = absent.filter_map(|field| Some((Fill::of(&field.section), field.columns?))).collect();
        Self { atoms, sections: sections.collect(), absent }
    }

    /// Copies the values of a record to their places.
    ///
    /// # Errors
    /// [`BadField`] at the first thing that is not as the schema says.
    pub fn scatter(&self, record: &Record<'_>, seen: &mut Vec<u64>, sink: &mut dyn RecordSink) -> Result<(), BadField> {
        copy(sink, self.atoms.positions, record.positions, "positions")?;
        copy(sink, self.atoms.numbers, record.numbers, "atomic_numbers")?;
        seen.clear();
        seen.resize(self.sections.len().div_ceil(64), 0);
        let mut next = 0;
        let mut n_seen = 0;
        record.sections(|_, raw| {
            let Some(i) = self.find(&raw, next)? else { return Ok(()) };
            next = i + 1;
            n_seen += 1;
            let Some(plan) = self.sections.get(i) else { return Ok(()) };
            if let Some(word) = seen.get_mut(i / 64) {
                if *word & 1 << (i % 64) != 0 {
                    return Err(plan.section.bad("is there twice"));
                }
                *word |= 1 << (i % 64);
            }
            plan.copy(record.n_atoms, &raw, sink)
        })?;
        if n_seen < self.sections.len() {
            for (i, plan) in self.sections.iter().enumerate() {
                let is_seen = seen.get(i / 64).is_some_and(|word| word & 1 << (i % 64) != 0);
                if let (false, Some(columns)) = (is_seen, plan.columns) {
                    missing(columns, plan.fill, sink);
                }
            }
        }
        for &(fill, columns) in &self.absent {
            missing(columns, fill, sink);
        }
        Ok(())
    }

    /// The number of a section, looked for from `next` on; `None` if it is of a later version.
    #[inline]
    fn find(&self, raw: &RawSection<'_>, next: usize) -> Result<Option<usize>, BadField> {
        let is_it =
            |plan: &&SectionPlan| Some(plan.section.scope) == raw.scope && plan.section.key.as_bytes() == raw.key;
        if self.sections.get(next).as_ref().is_some_and(is_it) {
            return Ok(Some(next));
        }
        if let Some(i) = self.sections.iter().position(|plan| is_it(&plan)) {
            return Ok(Some(i));
        }
        match raw.scope {
            Some(super::schema::Scope::Atom | super::schema::Scope::Molecule) => {
                let key = String::from_utf8_lossy(raw.key).into_owned();
                Err(BadField::Field(key, "is not in the schema"))
            }
            Some(super::schema::Scope::BuiltIn) | None => Ok(None),
        }
    }
}

impl Section {
    fn bad(&self, reason: &'static str) -> BadField {
        BadField::Field(self.field_name(), reason)
    }
}

impl SectionPlan {
    /// Checks a section and copies it.
    #[inline]
    fn copy(&self, n_atoms: u32, raw: &RawSection<'_>, sink: &mut dyn RecordSink) -> Result<(), BadField> {
        let Self { section, columns, .. } = self;
        if raw.tag != section.tag.number() {
            return Err(section.bad("is of another type than the schema says"));
        }
        let payload = raw.payload;
        let len = to_u64(payload.len());
        let (mut values, mut tensor) = (payload, None);
        let size_is_right = match self.expected {
            Expected::PerAtom(bytes) => len == bytes * u64::from(n_atoms),
            Expected::Bytes(bytes) | Expected::Bools(bytes) => len == bytes,
            Expected::Text | Expected::Tensor => true,
        };
        if !size_is_right {
            return Err(section.bad("is of another size than the schema says"));
        }
        match self.expected {
            Expected::Text if std::str::from_utf8(payload).is_err() => return Err(section.bad("is no UTF-8")),
            Expected::Tensor => {
                let found = Tensor::parse(payload, section.tag);
                let found = found.ok_or_else(|| section.bad("has dimensions that do not make up its size"))?;
                (values, tensor) = (found.values, Some(found));
            }
            _ => {}
        }
        let Some(columns) = columns else { return Ok(()) };
        if let Some(out) = columns.values.and_then(|column| sink.place(column)) {
            if out.len() != values.len() {
                return Err(section.bad("is of another size than when the file was opened"));
            }
            copy_under_fence(values, out);
            if let Expected::Bools(_) = self.expected {
                // Readers of BOOL may assume 0 or 1.
                out.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
            }
        }
        if let (Some(out), Some(tensor)) = (columns.dims.and_then(|column| sink.place(column)), tensor) {
            out.fill(0xff);
            for (out, dim) in out.chunks_exact_mut(8).zip(tensor.dims()) {
                out.copy_from_slice(&u64::from(dim).to_le_bytes());
            }
        }
        Ok(())
    }
}

fn copy(sink: &mut dyn RecordSink, column: Option<usize>, values: &[u8], name: &'static str) -> Result<(), BadField> {
    if let Some(out) = column.and_then(|column| sink.place(column)) {
        if out.len() != values.len() {
            return Err(BadField::Field(name.to_owned(), "is of another size than the index says"));
        }
        copy_under_fence(values, out);
    }
    Ok(())
}

/// Marks a field as missing in the row.
fn missing(columns: FieldColumns, fill: Fill, sink: &mut dyn RecordSink) {
    if let Some(out) = columns.values.and_then(|column| sink.place(column)) {
        fill.fill(out);
    }
    if let Some(out) = columns.dims.and_then(|column| sink.place(column)) {
        out.fill(0xff);
    }
    if let Some(out) = sink.place(columns.present) {
        out.fill(0);
    }
}

/// Checks a record without copying anything.
///
/// # Errors
/// As [`FilePlan::scatter`].
pub fn check(plan: &FilePlan, record: &Record<'_>, seen: &mut Vec<u64>) -> Result<(), BadField> {
    struct Nowhere;
    impl RecordSink for Nowhere {
        fn place(&mut self, _: usize) -> Option<&mut [u8]> {
            None
        }
    }
    plan.scatter(record, seen, &mut Nowhere)
}

/// Bytes as they are, for a column of whole records.
///
/// # Errors
/// If their place has another size.
pub fn copy_record(sink: &mut dyn RecordSink, column: usize, bytes: &[u8]) -> Result<(), BadField> {
    copy(sink, Some(column), bytes, "record")
}
