//! Batches that are Atompack databases themselves: records as they are stored, between two equal headers and an index.
//!
//! ```text
//! header slot, the same again | records | schema | index
//! ```
//!
//! The schema is that of the whole dataset, in every batch, so that the size of a batch follows from the sizes of its records. Both
//! slots are the same: a copy that is cut off is then no database, instead of an empty one. Row ids have no place in the
//! format; `rows.npy` has them.

use super::{ATOMS, MoleculeSpec};
use crate::batch::{BatchContext, BatchShape, Encoder, Layout};
use crate::num::to_usize;
use crate::store::ElementId;
use crate::store::atompack::header::{
    FIRST_RECORD, INDEX_ENTRY_BYTES, INDEX_HEAD_BYTES, RecordCodec, SLOT_BYTES, Slot,
};
use crate::store::atompack::index::IndexEntry;

/// The element whose row lengths are the sizes of records.
const RECORD: ElementId = 1;
/// The element whose row lengths are the sizes of decoded records, where they differ.
const DECODED: ElementId = 2;

/// What all batches have in common.
#[derive(Debug, Clone)]
pub struct Database {
    /// How records are compressed.
    pub codec: RecordCodec,
    /// Level of the compression.
    pub level: i32,
    /// 2 or 3.
    pub record_format: u32,
    /// The schema, encoded; nothing for a dataset without any field.
    pub schema: Vec<u8>,
}

/// Encoder of Atompack batches.
pub struct Atp {
    spec: MoleculeSpec,
    database: Database,
}

impl Atp {
    /// An encoder of the records of `spec`, which must be served as they are.
    #[must_use]
    pub fn new(spec: MoleculeSpec, database: Database) -> Self {
        Self { spec, database }
    }
}

impl Encoder for Atp {
    fn extension(&self) -> &'static str {
        "atp"
    }

    fn layout(&self, shape: BatchShape<'_>) -> Layout {
        let records = shape.n_values.get(RECORD).copied().unwrap_or(0);
        let schema = FIRST_RECORD.saturating_add(records);
        let index = schema.saturating_add(self.database.schema.len() as u64);
        let size_bytes = index.saturating_add(INDEX_HEAD_BYTES + INDEX_ENTRY_BYTES * u64::from(shape.n_rows));
        Layout {
            size_bytes,
            buffer_bytes: size_bytes,
            part_offsets: vec![0; self.spec.schema.parts.len()],
            column_offsets: vec![FIRST_RECORD],
            ones: Vec::new(),
            fields: vec![schema..index, index..size_bytes],
        }
    }

    fn finish(&self, layout: &Layout, batch: BatchContext<'_>, buffer: &mut [u8]) {
        let [schema, index] = &layout.fields[..] else { return };
        let n_molecules = batch.rows.len() as u64;
        let slot = Slot {
            generation: 1,
            data_start: FIRST_RECORD,
            index_offset: index.start,
            index_len: index.end - index.start,
            n_molecules,
            codec: self.database.codec,
            level: self.database.level,
            record_format: self.database.record_format,
            schema_offset: schema.start,
            schema_len: schema.end - schema.start,
        };
        let bytes = slot.encode();
        buffer[..SLOT_BYTES].copy_from_slice(&bytes);
        buffer[SLOT_BYTES..2 * SLOT_BYTES].copy_from_slice(&bytes);
        buffer[to_usize(schema.start)..to_usize(schema.end)].copy_from_slice(&self.database.schema);
        let (head, entries) = buffer[to_usize(index.start)..to_usize(index.end)].split_at_mut(8);
        head.copy_from_slice(&n_molecules.to_le_bytes());
        let lens = |element: ElementId| batch.row_starts[element].windows(2).map(|w| w[1] - w[0]);
        let decoded = if batch.row_starts.len() > DECODED { DECODED } else { RECORD };
        let rows = batch.row_starts[RECORD].iter().zip(lens(RECORD)).zip(lens(decoded)).zip(lens(ATOMS));
        for (out, (((&start, stored_size), raw_size), n_atoms)) in entries.chunks_exact_mut(20).zip(rows) {
            let offset = FIRST_RECORD + u64::from(start);
            out.copy_from_slice(&IndexEntry { offset, stored_size, raw_size, n_atoms }.encode());
        }
    }
}
