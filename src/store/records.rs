//! Rows that are stored as records: one run of bytes holds everything about a row.
//!
//! An array part gives each row a run of elements of one type. A record holds many fields, of which each may be missing, so it is taken apart
//! after it was read: [`super::Store::record`] hands the bytes of each *column* of the row to a [`RecordSink`], which knows
//! where they belong. A column is what becomes one array of a batch: the values of a field, the marks that say where it is present, the
//! dimensions of a tensor whose shape differs.

use super::ElementId;
use crate::codec::Scratch;
use crate::dtype::DType;

/// The columns that records are taken apart into.
#[derive(Debug, Clone, Default)]
pub struct RecordSchema {
    /// All columns; their numbers are what a [`RecordSink`] is asked for.
    pub columns: Vec<RecordColumn>,
}

/// One column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordColumn {
    /// Name of the field, such as `forces` or `properties.bandgap`.
    pub name: String,
    /// What of the field it holds.
    pub role: ColumnRole,
    /// Type of its elements.
    pub dtype: DType,
    /// Dimensions of one entry, row-major; empty for a single element.
    pub shape: Vec<u64>,
    /// How many entries a row has.
    pub rows: RowKind,
}

/// What a column holds of its field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnRole {
    /// The values. A row without the field has NaN or 0.
    Values,
    /// The bytes of a text. A row without the field has none.
    Text,
    /// 1 where the field is present. That is what it is before records are taken apart, so that only what is missing is written.
    Present,
    /// Dimensions of a tensor whose shape differs from row to row; -1 where a tensor has fewer, or is missing.
    Dims,
    /// The record itself, as it is stored.
    Record,
}

/// How many entries of a column a row has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowKind {
    /// One.
    One,
    /// As many as the row's length in this element.
    Along(ElementId),
}

impl RecordColumn {
    /// Elements of one entry.
    #[must_use]
    pub fn entry_elems(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Bytes of one entry.
    #[must_use]
    pub fn entry_bytes(&self) -> u64 {
        self.entry_elems() * self.dtype.size_bytes() as u64
    }
}

/// Where the columns of one row go.
pub trait RecordSink {
    /// The place of the row in a column, `None` if nobody wants the column. Its length follows from the row lengths of the store.
    fn place(&mut self, column: usize) -> Option<&mut [u8]>;
}

/// A record as it is stored.
#[derive(Debug, Clone, Copy)]
pub struct StoredRecord<'a> {
    /// Its row.
    pub row: u64,
    /// The bytes of [`super::Store::extent`].
    pub bytes: &'a [u8],
}

/// A record that was decoded together with the one before, until its turn comes.
#[derive(Debug, Default)]
pub struct NextRecord {
    row: Option<u64>,
    bytes: Vec<u8>,
}

impl NextRecord {
    /// The row whose record is here.
    #[must_use]
    pub fn row(&self) -> Option<u64> {
        self.row
    }

    /// Room for a record, which [`Self::keep`] says to be there.
    pub fn room(&mut self) -> &mut Vec<u8> {
        self.row = None;
        &mut self.bytes
    }

    /// From now on the room holds the record of `row`.
    pub fn keep(&mut self, row: u64) {
        self.row = Some(row);
    }

    /// What is in the room; a record may be shorter.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Holds none from now on: what comes is of another store, or was read again.
    pub fn forget(&mut self) {
        self.row = None;
    }
}

/// What one thread keeps from record to record.
#[derive(Debug, Default)]
pub struct RecordBuffers {
    /// State of the decompressors.
    pub scratch: Scratch,
    /// A decoded record.
    pub decoded: Vec<u8>,
    /// The record after it, if both were decoded at once.
    pub next: NextRecord,
    /// Which sections were seen, one bit each.
    pub seen: Vec<u64>,
}
