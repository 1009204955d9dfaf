//! The fields of a dataset: the union over its files, and the columns that become of them.
//!
//! Files may have different fields: a molecule of a file without a field simply lacks it. What two files both have must be of the same type
//! and size. Every field that comes from a section can be missing in any molecule, so each has a column of marks.

use std::path::PathBuf;
use std::sync::Arc;

use super::file::AtpFile;
use super::scan::{Dims, VaryingFields, value_dtype};
use super::schema::{Payload, Section};
use crate::dtype::DType;
use crate::store::error::OpenError;
use crate::store::records::{ColumnRole, RecordColumn, RowKind};
use crate::store::{Element, ElementId, ElementKind};

/// Name of the positions.
pub const POSITIONS: &str = "positions";
/// Name of the atomic numbers.
pub const NUMBERS: &str = "atomic_numbers";
/// The element that counts atoms.
pub const ATOMS: ElementId = 0;

/// Which fields are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldsChoice {
    /// All of them.
    All,
    /// Those of these names.
    Named(Vec<String>),
}

impl FieldsChoice {
    /// True if the field of this name is served.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.iter().any(|n| n == name),
        }
    }
}

/// One field of a dataset.
#[derive(Debug, Clone)]
pub struct Field {
    /// Its section, the same in every file that has it.
    pub section: Section,
    /// Name in a batch.
    pub name: String,
    /// The first file that has it.
    pub file: PathBuf,
    /// Its columns, if it is served.
    pub columns: Option<FieldColumns>,
}

/// The columns of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldColumns {
    /// Values or text; `None` for fields without a payload.
    pub values: Option<usize>,
    /// Dimensions of a tensor whose shape differs.
    pub dims: Option<usize>,
    /// Marks.
    pub present: usize,
    /// The element whose row lengths are those of the field alone.
    pub element: Option<ElementId>,
}

/// The fields of all files together, in the order of records.
///
/// # Errors
/// If two files contradict each other, naming both.
pub fn union(files: &[AtpFile]) -> Result<Vec<Field>, OpenError> {
    let mut fields: Vec<Field> = Vec::new();
    let mut by_key = std::collections::HashMap::new();
    for file in files.iter().filter(|file| file.n_rows() > 0) {
        for section in &file.schema.sections {
            let i = *by_key.entry((section.scope, section.key.clone())).or_insert_with(|| {
                let (name, path) = (section.field_name(), file.file.path().to_owned());
                fields.push(Field { section: section.clone(), name, file: path, columns: None });
                fields.len() - 1
            });
            let Some(found) = fields.get(i).filter(|found| found.section != *section) else { continue };
            let what = |s: &Section| match s.molecule_bytes {
                0 => s.tag.describe(),
                bytes => format!("{} in {bytes} bytes", s.tag.describe()),
            };
            let reason = format!("is {}, but {} in {}", what(section), what(&found.section), found.file.display());
            let remedy = "leave one file out, or write it again with the other's types";
            return Err(OpenError::refused(file.file.path(), found.name.clone(), reason, remedy));
        }
    }
    fields.sort_by(|a, b| a.section.record_order().cmp(&b.section.record_order()));
    Ok(fields)
}

/// The type of the positions, the same in all files.
///
/// # Errors
/// If two files contradict each other, naming both.
pub fn positions(files: &[AtpFile]) -> Result<DType, OpenError> {
    let mut files = files.iter().filter(|file| file.n_rows() > 0);
    let Some(first) = files.next() else { return Ok(DType::F32) };
    match files.find(|file| file.positions != first.positions) {
        None => Ok(first.positions),
        Some(other) => {
            let (a, b) = (first.positions, other.positions);
            let reason = format!("are {b}, but {a} in {}", first.file.path().display());
            let remedy = "mount files of one type together";
            Err(OpenError::refused(other.file.path(), POSITIONS, reason, remedy))
        }
    }
}

/// Elements and columns, as they grow.
#[derive(Debug, Default)]
pub struct Columns {
    /// What has row lengths: atoms, then each text and tensor.
    pub elements: Vec<Element>,
    /// The columns.
    pub columns: Vec<RecordColumn>,
}

impl Columns {
    /// An element that only has row lengths, of values of `dtype`.
    pub fn add_element(&mut self, name: &str, dtype: DType) -> ElementId {
        self.elements.push(Element {
            name: name.to_owned(),
            kind: ElementKind::Lengths,
            n_cols: 1,
            dtype,
            index_dtype: DType::I32,
            gene_axis: false,
            stored_cols: 1,
            dense_sources: Arc::new([]),
        });
        self.elements.len() - 1
    }

    /// A column.
    pub fn add(&mut self, name: &str, role: ColumnRole, dtype: DType, shape: Vec<u64>, rows: RowKind) -> usize {
        self.columns.push(RecordColumn { name: name.to_owned(), role, dtype, shape, rows });
        self.columns.len() - 1
    }

    /// The columns of a field. `dims` are those of all files, of a tensor.
    pub fn add_field(&mut self, section: &Section, name: &str, dims: &Dims) -> FieldColumns {
        let atoms = RowKind::Along(ATOMS);
        let dtype = value_dtype(section.tag);
        let (mut element, mut dims_column) = (None, None);
        let values = match section.tag.payload() {
            Payload::Null => None,
            Payload::Elements { .. } => {
                let rows = if section.per_atom { atoms } else { RowKind::One };
                Some(self.add(name, ColumnRole::Values, dtype, section.shape(), rows))
            }
            Payload::Tensor { .. } if let (Some(shape), false) = (&dims.uniform, dims.differ) => {
                let rows = if section.belongs_to_atoms() { atoms } else { RowKind::One };
                Some(self.add(name, ColumnRole::Values, dtype, shape.clone(), rows))
            }
            payload @ (Payload::Text | Payload::Tensor { .. }) => {
                let own = self.add_element(name, dtype);
                element = Some(own);
                let is_text = payload == Payload::Text;
                let role = if is_text { ColumnRole::Text } else { ColumnRole::Values };
                let values = self.add(name, role, dtype, Vec::new(), RowKind::Along(own));
                if !is_text {
                    let shape = vec![dims.max_dims];
                    dims_column = Some(self.add(name, ColumnRole::Dims, DType::I64, shape, RowKind::One));
                }
                Some(values)
            }
        };
        let present = self.add(name, ColumnRole::Present, DType::Bool, Vec::new(), RowKind::One);
        FieldColumns { values, dims: dims_column, present, element }
    }
}

/// Dimensions of a field over all files that were measured.
#[must_use]
pub fn joined_dims(section: &Section, files: &[AtpFile], measured: &[Option<VaryingFields>]) -> Dims {
    let mut dims = Dims::default();
    for (file, measured) in files.iter().zip(measured) {
        let place = file.schema.sections.iter().position(|s| s == section);
        let field = place.zip(measured.as_ref()).and_then(|(i, measured)| measured.fields.get(i)?.as_ref());
        dims = field.map_or(dims.clone(), |field| dims.join(&field.dims));
    }
    dims
}
