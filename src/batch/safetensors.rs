//! safetensors batches of cells: where every field lies, and what the rows become once they are scattered. [`header`] is the format itself.

pub(super) mod header;

use std::fmt::Write as _;
use std::ops::Range;

use super::fields::{BatchSpec, Content, Field, NameClash, Render};
use super::{BatchContext, BatchShape, Encoder, Entry, Layout, compact, identity_json, render};
use crate::num::to_usize;
use header::{TENSOR_ALIGN, json};

/// Encoder of safetensors batches.
pub struct Safetensors {
    spec: BatchSpec,
    fields: Vec<Field>,
    /// `__metadata__` up to what varies, as JSON text.
    constant_metadata: String,
    /// 8 + N: where the first tensor starts.
    data_start: u64,
}

impl Safetensors {
    /// An encoder for batches as `spec` describes them.
    ///
    /// # Errors
    /// [`NameClash`] if two tensors would have the same name.
    pub fn new(spec: BatchSpec) -> Result<Self, NameClash> {
        let fields = spec.fields()?;
        let mut constant_metadata = String::new();
        for (key, text) in spec.constant_metadata() {
            let _ = write!(constant_metadata, "{}:{},", json(&key), json(&text));
        }
        let element_names: usize = spec.schema.elements.iter().map(|e| json(&e.name).len()).sum();
        let shapes = element_names + spec.schema.elements.len() * header::ENTRY_BYTES;
        let metadata = constant_metadata.len() + shapes + spec.fingerprint.len();
        let data_start = header::data_start(fields.iter().map(|field| field.name.as_str()), metadata);
        Ok(Self { spec, fields, constant_metadata, data_start })
    }

    /// Elements of `field`, in a batch of the final row pointers `n_values`.
    fn dims(&self, field: &Field, batch: BatchContext<'_>, n_values: &[u64]) -> Vec<u64> {
        use super::fields::FieldExtent::{Rows, RowsBy, RowsPlusOne, Two, Values};
        let rows = batch.rows.len() as u64;
        match field.extent {
            Rows => vec![rows],
            RowsBy(n) => vec![rows, n],
            Values(e) => vec![n_values[e]],
            RowsPlusOne => vec![rows + 1],
            Two => vec![2],
        }
    }

    /// The header, with the final shapes.
    fn write_header(&self, layout: &Layout, batch: BatchContext<'_>, n_values: &[u64], buffer: &mut [u8]) {
        let dims: Vec<Vec<u64>> = self.fields.iter().map(|field| self.dims(field, batch, n_values)).collect();
        let fields = self.fields.iter().zip(&layout.fields).zip(&dims);
        let entries: Vec<Entry<'_>> = fields
            .map(|((field, range), dims)| Entry { name: &field.name, dtype: field.dtype, dims, start: range.start })
            .collect();
        header::write(self.data_start, layout.size_bytes, &entries, &self.metadata(batch), buffer);
    }

    /// What stands between the braces of `__metadata__`.
    fn metadata(&self, batch: BatchContext<'_>) -> String {
        let mut metadata = self.constant_metadata.clone();
        for (e, element) in self.spec.schema.elements.iter().enumerate() {
            let shape = format!("[{},{}]", batch.rows.len(), self.spec.n_cols_out(e));
            let _ = write!(metadata, "{}:{},", json(&format!("{}.shape", element.name)), json(&shape));
        }
        let identity = identity_json(self.spec.seed, &self.spec.fingerprint, batch);
        let _ = write!(metadata, "\"shufflefs\":{}", json(&identity));
        metadata
    }

    /// Turns the scattered rows of the elements into their final arrays. Returns the final number of values per element.
    fn render_elements(&self, layout: &Layout, batch: BatchContext<'_>, buffer: &mut [u8]) -> Vec<u64> {
        let mut n_values = Vec::with_capacity(self.spec.schema.elements.len());
        for e in 0..self.spec.schema.elements.len() {
            self.write_totals(e, layout, batch, buffer);
            let starts = &batch.row_starts[e];
            let mut n = starts.last().copied().map_or(0, u64::from);
            match self.spec.render(e) {
                Render::Csr => self.write_indptr(e, layout, starts, buffer),
                Render::CsrGenes => {
                    let starts = self.compact(e, layout, batch, buffer);
                    n = starts.last().copied().map_or(0, u64::from);
                    self.write_indptr(e, layout, &starts, buffer);
                }
                Render::Densify | Render::DenseGenes | Render::Mixed | Render::MixedGenes => {
                    self.unstage(e, layout, batch, buffer);
                }
                Render::Dense => {}
            }
            n_values.push(n);
        }
        n_values
    }

    fn field_range(&self, layout: &Layout, content: Content) -> Option<Range<u64>> {
        let i = self.fields.iter().position(|f| f.content == content)?;
        layout.fields.get(i).cloned()
    }

    fn write_indptr(&self, e: usize, layout: &Layout, starts: &[u32], buffer: &mut [u8]) {
        if let Some(range) = self.field_range(layout, Content::IndPtr(e)) {
            let out = &mut buffer[to_usize(range.start)..to_usize(range.end)];
            // Below 2^31, so the same bits as int32.
            render::fill_each(starts, out, |start| start.to_le_bytes());
        }
    }

    fn compact(&self, e: usize, layout: &Layout, batch: BatchContext<'_>, buffer: &mut [u8]) -> Vec<u32> {
        let starts = &batch.row_starts[e];
        let ranges = (self.field_range(layout, Content::Data(e)), self.field_range(layout, Content::Indices(e)));
        let (Some(genes), (Some(data), Some(indices))) = (self.spec.schema.genes_of(e), ranges) else {
            return starts.clone();
        };
        let element = &self.spec.schema.elements[e];
        let items = (element.dtype.size_bytes(), element.index_dtype.size_bytes());
        let (data, indices) = render::two_ranges(buffer, data, indices);
        let maps = batch.rows.iter().map(|&row| genes.unsettled(self.spec.schema.source_of(row)));
        compact::compact_genes(maps, starts, items, data, indices)
    }

    /// Where the scattered rows of a part lie in the buffer.
    fn part_range(&self, layout: &Layout, part: usize, batch: BatchContext<'_>) -> Range<u64> {
        let start = layout.part_offsets[part];
        let p = &self.spec.schema.parts[part];
        let element = &self.spec.schema.elements[p.element];
        let n = if element.kind.dense() == Some(part) {
            batch.rows.len() as u64 * element.stored_cols
        } else {
            batch.row_starts[p.element].last().copied().map_or(0, u64::from)
        };
        start..start + n * element.served(p.role).size_bytes() as u64
    }

    /// Staged rows to the matrix in the file.
    fn unstage(&self, e: usize, layout: &Layout, batch: BatchContext<'_>, buffer: &mut [u8]) {
        let Some(matrix) = self.field_range(layout, Content::Matrix(e)) else { return };
        let schema = &self.spec.schema;
        let element = &schema.elements[e];
        let (file, staging) = buffer.split_at_mut(to_usize(layout.size_bytes));
        // What was scattered to its final place is not staged.
        let staged = |part: usize| {
            let range = self.part_range(layout, part, batch);
            let place = |at: u64| at.checked_sub(layout.size_bytes).map(to_usize);
            place(range.start).zip(place(range.end)).and_then(|(from, to)| staging.get(from..to))
        };
        let sparse = element.kind.sparse().and_then(|(data, indices)| staged(data).zip(staged(indices)));
        let dense = element.kind.dense().and_then(staged);
        let out = &mut file[to_usize(matrix.start)..to_usize(matrix.end)];
        let (item, index_item) = (element.dtype.size_bytes(), element.index_dtype.size_bytes());
        let (row_bytes, staged_bytes) =
            (to_usize(self.spec.n_cols_out(e)) * item, to_usize(element.stored_cols) * item);
        if row_bytes == 0 {
            return;
        }
        let genes = schema.genes_of(e);
        for ((slot, &row), out) in batch.rows.iter().enumerate().zip(out.chunks_exact_mut(row_bytes)) {
            let source = schema.source_of(row);
            if !schema.is_dense(e, source) {
                let (Some(rows), [from, to]) = (sparse, &batch.row_starts[e][slot..slot + 2]) else { continue };
                let map = genes.and_then(|genes| genes.unsettled(source));
                render::densify(map, *from as usize..*to as usize, (element.dtype, index_item), rows, out);
            } else if let Some(rows) = dense {
                let row = &rows[slot * staged_bytes..][..to_usize(schema.source_cols(e, source)) * item];
                render::move_genes(genes.and_then(|genes| genes.of(source)), item, row, out);
            }
        }
    }

    fn write_totals(&self, e: usize, layout: &Layout, batch: BatchContext<'_>, buffer: &mut [u8]) {
        let Some(total) = self.field_range(layout, Content::Total(e)) else { return };
        let schema = &self.spec.schema;
        let element = &schema.elements[e];
        if let Some((data, _)) = element.kind.sparse() {
            let (data, out) = render::two_ranges(buffer, self.part_range(layout, data, batch), total.clone());
            let rows = batch.row_starts[e].windows(2).map(|w| w[0] as usize..w[1] as usize);
            render::row_totals(element.dtype, rows, data, out);
        }
        if let Some(values) = element.kind.dense() {
            let stride = to_usize(element.stored_cols);
            let (values, out) = render::two_ranges(buffer, self.part_range(layout, values, batch), total);
            for ((slot, &row), out) in batch.rows.iter().enumerate().zip(out.chunks_exact_mut(8)) {
                let source = schema.source_of(row);
                if schema.is_dense(e, source) {
                    let len = to_usize(schema.source_cols(e, source));
                    let row = std::iter::once(slot * stride..slot * stride + len);
                    render::row_totals(element.dtype, row, values, out);
                }
            }
        }
    }
}

impl Encoder for Safetensors {
    fn extension(&self) -> &'static str {
        "safetensors"
    }

    fn layout(&self, shape: BatchShape<'_>) -> Layout {
        let align = |at: u64| crate::num::align_up(at, TENSOR_ALIGN).unwrap_or(u64::MAX);
        let mut at = self.data_start;
        let mut fields = Vec::with_capacity(self.fields.len());
        let parts = &self.spec.schema.parts;
        let mut part_offsets = vec![u64::MAX; parts.len()];
        for field in &self.fields {
            let start = align(at);
            at = start.saturating_add(field.extent.n_elems(shape).saturating_mul(field.dtype.size_bytes() as u64));
            fields.push(start..at);
            let part = match field.content {
                Content::Data(e) => self.spec.schema.elements[e].kind.sparse().map(|(data, _)| data),
                Content::Indices(e) => self.spec.schema.elements[e].kind.sparse().map(|(_, indices)| indices),
                Content::Matrix(e) if matches!(self.spec.render(e), Render::Dense | Render::Mixed) => {
                    self.spec.schema.elements[e].kind.dense()
                }
                _ => None,
            };
            if let Some(part) = part {
                part_offsets[part] = start;
            }
        }
        let size_bytes = at;
        for (i, (part, offset)) in parts.iter().zip(&mut part_offsets).enumerate() {
            if *offset == u64::MAX {
                let element = &self.spec.schema.elements[part.element];
                let n = if element.kind.dense() == Some(i) {
                    u64::from(shape.n_rows).saturating_mul(element.stored_cols)
                } else {
                    shape.n_values[part.element]
                };
                *offset = align(at);
                at = offset.saturating_add(n.saturating_mul(element.served(part.role).size_bytes() as u64));
            }
        }
        Layout { size_bytes, buffer_bytes: at, part_offsets, fields, ..Layout::default() }
    }

    fn finish(&self, layout: &Layout, batch: BatchContext<'_>, buffer: &mut [u8]) {
        let n_values = self.render_elements(layout, batch, buffer);
        for (field, range) in self.fields.iter().zip(&layout.fields) {
            render::fill_resident(
                &self.spec,
                field.content,
                batch,
                &mut buffer[to_usize(range.start)..to_usize(range.end)],
            );
        }
        self.write_header(layout, batch, &n_values, buffer);
    }
}

#[cfg(test)]
mod tests;
