//! Flat batches of molecules in a format with arrays: safetensors or npz.

use super::{MoleculeContent, MoleculeField, MoleculeSpec};
use crate::batch::npz::Members;
use crate::batch::safetensors::header;
use crate::batch::{BatchContext, BatchShape, Encoder, Entry, Layout, NameClash, identity_json};
use crate::num::{align_up, to_usize};
use crate::store::records::ColumnRole;

/// Encoder of flat batches.
pub struct Flat {
    spec: MoleculeSpec,
    fields: Vec<MoleculeField>,
    container: Container,
}

/// What arrays are put into.
enum Container {
    Safetensors {
        /// `__metadata__` up to what varies, as JSON text.
        constant_metadata: String,
        /// Where the first tensor starts.
        data_start: u64,
    },
    Npz(Members),
}

impl Flat {
    /// An encoder of safetensors batches.
    ///
    /// # Errors
    /// [`NameClash`] if two tensors would have the same name.
    pub fn safetensors(spec: MoleculeSpec) -> Result<Self, NameClash> {
        let fields = spec.fields()?;
        let texts = spec.columns().iter().filter(|column| column.role == ColumnRole::Text);
        let constant_metadata: String =
            texts.map(|column| format!("{}:\"utf8\",", header::json(&format!("{}.encoding", column.name)))).collect();
        let metadata_bytes = constant_metadata.len() + spec.fingerprint.len();
        let data_start = header::data_start(fields.iter().map(|field| field.name.as_str()), metadata_bytes);
        Ok(Self { spec, fields, container: Container::Safetensors { constant_metadata, data_start } })
    }

    /// An encoder of npz batches.
    ///
    /// # Errors
    /// [`NameClash`] if two arrays would have the same name.
    pub fn npz(spec: MoleculeSpec) -> Result<Self, NameClash> {
        let fields = spec.fields()?;
        let arrays = fields.iter().map(|field| (field.name.as_str(), field.dtype, 1 + field.shape.len()));
        let container = Container::Npz(Members::new(arrays));
        Ok(Self { spec, fields, container })
    }

    /// Arrays of a batch, the member for its identity included.
    #[must_use]
    pub fn n_arrays(&self) -> usize {
        self.fields.len() + 1
    }
}

impl Encoder for Flat {
    fn extension(&self) -> &'static str {
        match self.container {
            Container::Safetensors { .. } => "safetensors",
            Container::Npz(_) => "npz",
        }
    }

    fn layout(&self, shape: BatchShape<'_>) -> Layout {
        let n_bytes: Vec<u64> = self.fields.iter().map(|field| field.n_bytes(shape)).collect();
        let (starts, size_bytes) = match &self.container {
            Container::Npz(members) => members.place(&n_bytes),
            Container::Safetensors { data_start, .. } => {
                let mut at = *data_start;
                let place = |n: &u64| {
                    let start = align_up(at, header::TENSOR_ALIGN).unwrap_or(u64::MAX);
                    at = start.saturating_add(*n);
                    start
                };
                (n_bytes.iter().map(place).collect(), at)
            }
        };
        let mut column_offsets = vec![u64::MAX; self.spec.columns().len()];
        for (field, &start) in self.fields.iter().zip(&starts) {
            if let MoleculeContent::Column(column) = field.content {
                column_offsets[column] = start;
            }
        }
        let fields: Vec<_> = starts.iter().zip(&n_bytes).map(|(&start, &n)| start..start.saturating_add(n)).collect();
        let part_offsets = vec![0; self.spec.schema.parts.len()];
        let ones = self.spec.marks(&column_offsets, shape);
        Layout { size_bytes, buffer_bytes: size_bytes, part_offsets, column_offsets, ones, fields }
    }

    fn finish(&self, layout: &Layout, batch: BatchContext<'_>, buffer: &mut [u8]) {
        for (field, range) in self.fields.iter().zip(&layout.fields) {
            field.fill(&self.spec, batch, &mut buffer[to_usize(range.start)..to_usize(range.end)]);
        }
        let n_values: Vec<u64> =
            batch.row_starts.iter().map(|starts| starts.last().copied().map_or(0, u64::from)).collect();
        // Rows of a batch are counted in 32 bits.
        let n_rows = u32::try_from(batch.rows.len()).unwrap_or(u32::MAX);
        let shape = BatchShape { n_rows, n_values: &n_values };
        let dims: Vec<Vec<u64>> = self.fields.iter().map(|field| field.dims(shape)).collect();
        let fields = self.fields.iter().zip(&layout.fields).zip(&dims);
        let entries: Vec<Entry<'_>> = fields
            .map(|((field, range), dims)| Entry { name: &field.name, dtype: field.dtype, dims, start: range.start })
            .collect();
        let identity = identity_json(self.spec.seed, &self.spec.fingerprint, batch);
        match &self.container {
            Container::Npz(members) => members.write(&entries, &identity, buffer),
            Container::Safetensors { constant_metadata, data_start } => {
                let metadata = format!("{constant_metadata}\"shufflefs\":{}", header::json(&identity));
                header::write(*data_start, layout.size_bytes, &entries, &metadata, buffer);
            }
        }
    }
}
