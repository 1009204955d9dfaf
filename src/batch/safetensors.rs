//! The safetensors format (<https://github.com/huggingface/safetensors>, "Format").
//!
//! ```text
//! u64 le  N                      header length; 8 + N is a multiple of 4096
//! N bytes JSON                   padded with spaces at the end
//! buffer                         tensors back to back in offset order
//! ```
//!
//! The format allows no holes, so the gap before a tensor that is to start at a multiple of 64 is a tensor of its own, `__pad0`,
//! `__pad1`, ... The same covers what gene selection leaves unused behind a compacted tensor. The header is sized once, for
//! the largest numbers that any batch can need, so every batch has its data at the same offset.

use std::fmt::Write as _;
use std::ops::Range;

use super::fields::{BatchSpec, Content, Field, NameClash, Render};
use super::{BatchContext, BatchShape, Encoder, Layout, compact, render};
use crate::dtype::DType;
use crate::num::to_usize;
use crate::order::{self, Pass};

/// Tensors start at multiples of this, so that any reader can view them in place.
const TENSOR_ALIGN: u64 = 64;

/// The buffer starts at a multiple of this: a page, so that a mapping of it is aligned too.
const DATA_ALIGN: u64 = 4096;

/// Room in the header for what varies from batch to batch: 20 digits for each of up to four numbers, and the JSON around
/// them. A test holds the header of the largest numbers against it.
const ENTRY_BYTES: usize = 160;

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
        let names: usize = fields.iter().map(|f| json(&f.name).len()).sum();
        // One gap before and one behind every tensor, and the varying metadata: shapes and identity.
        let entries = 3 * fields.len() + spec.schema.elements.len() + 8;
        let element_names: usize = spec.schema.elements.iter().map(|e| json(&e.name).len()).sum();
        let header = constant_metadata.len() + names + element_names + entries * ENTRY_BYTES + spec.fingerprint.len();
        let data_start = crate::num::align_up(8 + header as u64, DATA_ALIGN).unwrap_or(u64::MAX);
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

    /// The header: one entry per tensor and per gap, in file order, then `__metadata__`. Gaps are zeroed on the way.
    fn write_header(&self, layout: &Layout, batch: BatchContext<'_>, n_values: &[u64], buffer: &mut [u8]) {
        let mut text = String::with_capacity(to_usize(self.data_start));
        text.push('{');
        let (mut at, mut n_pads) = (self.data_start, 0);
        let mut pad_to = |at: u64, start: u64, text: &mut String, buffer: &mut [u8]| {
            if at < start {
                buffer[to_usize(at)..to_usize(start)].fill(0);
                let (from, to) = (at - self.data_start, start - self.data_start);
                let _ = write!(
                    text,
                    "\"__pad{n_pads}\":{{\"dtype\":\"U8\",\"shape\":[{}],\"data_offsets\":[{from},{to}]}},",
                    to - from
                );
                n_pads += 1;
            }
        };
        for (field, range) in self.fields.iter().zip(&layout.fields) {
            pad_to(at, range.start, &mut text, buffer);
            let dims = self.dims(field, batch, n_values);
            let len = dims.iter().product::<u64>() * field.dtype.size_bytes() as u64;
            let from = range.start - self.data_start;
            let dtype = dtype_name(field.dtype);
            let _ = write!(
                text,
                "{}:{{\"dtype\":\"{dtype}\",\"shape\":{dims:?},\"data_offsets\":[{from},{}]}},",
                json(&field.name),
                from + len
            );
            at = range.start + len;
        }
        pad_to(at, layout.size_bytes, &mut text, buffer);
        self.write_metadata(batch, &mut text);
        text.push('}');
        let header = &mut buffer[..to_usize(self.data_start)];
        header[..8].copy_from_slice(&(self.data_start - 8).to_le_bytes());
        let (json, spaces) = header[8..].split_at_mut(text.len());
        json.copy_from_slice(text.as_bytes());
        spaces.fill(b' ');
    }

    fn write_metadata(&self, batch: BatchContext<'_>, text: &mut String) {
        let spec = &self.spec;
        let _ = write!(text, "\"__metadata__\":{{{}", self.constant_metadata);
        for (e, element) in spec.schema.elements.iter().enumerate() {
            let shape = format!("[{},{}]", batch.rows.len(), spec.n_cols_out(e));
            let _ = write!(text, "{}:{},", json(&format!("{}.shape", element.name)), json(&shape));
        }
        let epoch = match batch.pass {
            Pass::Epoch(epoch) => epoch.to_string(),
            Pass::InOrder => json("inorder"),
        };
        let identity = format!(
            "{{\"order\":{},\"seed\":{},\"epoch\":{epoch},\"batch\":{},\"fingerprint\":{},\"pad_rows\":{}}}",
            json(order::VERSION),
            spec.seed,
            batch.batch,
            json(&spec.fingerprint),
            batch.pad_rows
        );
        let _ = write!(text, "\"shufflefs\":{}}}", json(&identity));
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
        Layout { size_bytes, buffer_bytes: at, part_offsets, fields }
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

/// `text` as a JSON string, quotes included.
fn json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The format's name of a type.
fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "BOOL",
        DType::U8 => "U8",
        DType::I8 => "I8",
        DType::U16 => "U16",
        DType::I16 => "I16",
        DType::F16 => "F16",
        DType::U32 => "U32",
        DType::I32 => "I32",
        DType::F32 => "F32",
        DType::U64 => "U64",
        DType::I64 => "I64",
        DType::F64 => "F64",
    }
}

#[cfg(test)]
mod tests;
