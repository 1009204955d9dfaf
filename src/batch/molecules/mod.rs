//! Batches of molecules: what they consist of, the same for every format with arrays, and one encoder per format.
//!
//! Values per atom stand one behind the other, molecule by molecule; `ptr` says where each molecule begins. Names are those of Atompack's flat
//! batches. Every field that can be missing has `<field>.present`; texts and tensors whose shape differs have `<field>.offsets`.

pub mod atp;
pub mod extxyz;
pub mod flat;
mod frame;
mod symbols;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::{BatchContext, BatchShape, NameClash, render};
use crate::dtype::DType;
use crate::store::records::{ColumnRole, RecordColumn, RowKind};
use crate::store::{ElementId, Schema};

/// The element that counts atoms.
const ATOMS: ElementId = 0;

/// What batches of molecules contain.
#[derive(Debug, Clone)]
pub struct MoleculeSpec {
    /// The dataset.
    pub schema: Arc<Schema>,
    /// Seed of the order, for the metadata.
    pub seed: u64,
    /// What identifies the dataset, for the metadata.
    pub fingerprint: String,
}

/// One array of a batch file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoleculeField {
    /// Name in the file, such as `forces` or `energy.present`.
    pub name: String,
    /// Type of its elements.
    pub dtype: DType,
    /// What it holds.
    pub content: MoleculeContent,
    /// Its first dimension.
    pub entries: Entries,
    /// Its other dimensions.
    pub shape: Vec<u64>,
}

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoleculeContent {
    /// A column of records, by its number.
    Column(usize),
    /// Atoms of each molecule.
    NAtoms,
    /// Where each row begins in an element with row lengths.
    Starts(ElementId),
    /// Global row ids.
    Row,
    /// Which source each row is from.
    Source,
}

/// The first dimension of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entries {
    /// One per row.
    Rows,
    /// One per row, and one more.
    RowsPlusOne,
    /// All row lengths of an element together.
    Along(ElementId),
}

impl MoleculeField {
    /// The dimensions in a batch of this shape.
    fn dims(&self, shape: BatchShape<'_>) -> Vec<u64> {
        let first = match self.entries {
            Entries::Rows => u64::from(shape.n_rows),
            Entries::RowsPlusOne => u64::from(shape.n_rows) + 1,
            Entries::Along(element) => shape.n_values.get(element).copied().unwrap_or(0),
        };
        std::iter::once(first).chain(self.shape.iter().copied()).collect()
    }

    /// Bytes in a batch of this shape. Saturates instead of overflowing: nothing that large fits a budget.
    fn n_bytes(&self, shape: BatchShape<'_>) -> u64 {
        self.dims(shape).into_iter().fold(self.dtype.size_bytes() as u64, u64::saturating_mul)
    }

    /// Fills a field that records do not fill.
    fn fill(&self, spec: &MoleculeSpec, batch: BatchContext<'_>, out: &mut [u8]) {
        match self.content {
            MoleculeContent::Column(_) => {}
            MoleculeContent::Row => render::fill_each(batch.rows, out, |row| row.to_le_bytes()),
            MoleculeContent::Source => render::fill_sources(&spec.schema.sources, batch.rows, out),
            MoleculeContent::Starts(e) => {
                render::fill_each(&batch.row_starts[e], out, |&start| i64::from(start).to_le_bytes());
            }
            MoleculeContent::NAtoms => {
                for (out, bounds) in out.chunks_exact_mut(4).zip(batch.row_starts[ATOMS].windows(2)) {
                    out.copy_from_slice(&(bounds[1] - bounds[0]).to_le_bytes());
                }
            }
        }
    }
}

impl MoleculeSpec {
    /// The columns of records.
    fn columns(&self) -> &[RecordColumn] {
        self.schema.records.as_ref().map_or(&[], |records| &records.columns)
    }

    /// Where marks lie, in a batch with these columns.
    fn marks(&self, column_offsets: &[u64], shape: BatchShape<'_>) -> Vec<Range<u64>> {
        let columns = self.columns().iter().zip(column_offsets);
        let marks = columns.filter(|(column, offset)| column.role == ColumnRole::Present && **offset != u64::MAX);
        marks.map(|(_, &offset)| offset..offset.saturating_add(u64::from(shape.n_rows))).collect()
    }

    /// The arrays of a batch, in file order: what has one entry per atom, then what has one per molecule by falling item size, then text.
    ///
    /// # Errors
    /// [`NameClash`] if two would have the same name.
    pub fn fields(&self) -> Result<Vec<MoleculeField>, NameClash> {
        let mut fields: Vec<MoleculeField> = Vec::new();
        let rows = |name: &str, dtype, content| MoleculeField {
            name: name.to_owned(),
            dtype,
            content,
            entries: Entries::Rows,
            shape: Vec::new(),
        };
        fields.push(rows("row", DType::I64, MoleculeContent::Row));
        if self.schema.sources.len() > 1 {
            fields.push(rows("source", DType::I32, MoleculeContent::Source));
        }
        fields.push(rows("n_atoms", DType::U32, MoleculeContent::NAtoms));
        let starts = |name: String, element| MoleculeField {
            name,
            dtype: DType::I64,
            content: MoleculeContent::Starts(element),
            entries: Entries::RowsPlusOne,
            shape: Vec::new(),
        };
        fields.push(starts("ptr".to_owned(), ATOMS));
        for (i, column) in self.columns().iter().enumerate() {
            let entries = match column.rows {
                RowKind::One => Entries::Rows,
                RowKind::Along(element) => Entries::Along(element),
            };
            if let Entries::Along(element) = entries
                && element != ATOMS
            {
                fields.push(starts(format!("{}.offsets", column.name), element));
            }
            let own = matches!(entries, Entries::Along(element) if element != ATOMS);
            let name = match column.role {
                ColumnRole::Text => format!("{}.bytes", column.name),
                ColumnRole::Values if own => format!("{}.values", column.name),
                ColumnRole::Values | ColumnRole::Record => column.name.clone(),
                ColumnRole::Present => format!("{}.present", column.name),
                ColumnRole::Dims => format!("{}.dims", column.name),
            };
            let (dtype, shape) = (column.dtype, column.shape.clone());
            fields.push(MoleculeField { name, dtype, content: MoleculeContent::Column(i), entries, shape });
        }
        fields.sort_by_key(|field| {
            let rank = match field.entries {
                Entries::Along(ATOMS) => 0,
                Entries::Along(_) => 2,
                Entries::Rows | Entries::RowsPlusOne => 1,
            };
            (rank, std::cmp::Reverse(field.dtype.size_bytes()))
        });
        refuse_clashes(&fields)?;
        Ok(fields)
    }
}

fn refuse_clashes(fields: &[MoleculeField]) -> Result<(), NameClash> {
    let mut seen = HashMap::new();
    for (i, field) in fields.iter().enumerate() {
        if let Some(first) = seen.insert(field.name.as_str(), i) {
            let what = |i: usize| format!("an array of {} ({:?})", fields[i].dtype, fields[i].content);
            return Err(NameClash { name: field.name.clone(), first: what(first), second: what(i) });
        }
    }
    Ok(())
}
