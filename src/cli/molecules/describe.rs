//! What a dataset of molecules says of itself: `dataset.json`, and its line in the summary.

use serde_json::{Value, json};

use super::{FieldFacts, Molecules};
use crate::cli::dataset::Dataset;
use crate::cli::describe::{order_json, sources_json};
use crate::cli::text::{count, plural};
use crate::store::records::{ColumnRole, RowKind};

/// `dataset.json`: fields, sources, files, options, order.
#[must_use]
pub fn dataset_json(d: &Dataset, m: &Molecules) -> Value {
    json!({
        "shufflefs": env!("CARGO_PKG_VERSION"),
        "fingerprint": d.spec.fingerprint,
        "kind": "molecules",
        "n_rows": d.schema().n_rows,
        "n_atoms": m.n_atoms,
        "max_atoms": m.max_atoms,
        "fields": m.fields.iter().map(field_json).collect::<Vec<_>>(),
        "arrays": arrays_json(d),
        "left_out": d.left_out.iter().map(|(name, why)| json!({"name": name, "reason": why})).collect::<Vec<_>>(),
        "sources": sources_json(d),
        "files": files_json(m),
        "order": order_json(d),
        "format": d.encoder.extension(),
    })
}

/// A field as JSON.
#[must_use]
pub fn field_json(field: &FieldFacts) -> Value {
    json!({
        "name": field.name,
        "type": field.kind,
        "dtype": field.shape.as_ref().map(|(dtype, _)| dtype.numpy_name()),
        "shape": field.shape.as_ref().map(|(_, shape)| shape),
        "per_atom": field.per_atom,
        "optional": field.optional,
        "null": field.is_null,
        "served": field.served,
    })
}

/// Files with what each holds.
#[must_use]
pub fn files_json(m: &Molecules) -> Value {
    let mut first = 0;
    let files = m.files.iter().map(|file| {
        let rows = [first, first + file.n_rows];
        first += file.n_rows;
        json!({
            "path": file.path.display().to_string(),
            "rows": rows,
            "codec": file.codec,
            "record_format": file.record_format,
            "generation": file.generation,
        })
    });
    files.collect()
}

/// The columns of records that batches hold.
fn arrays_json(d: &Dataset) -> Value {
    let columns = d.schema().records.iter().flat_map(|records| &records.columns);
    let arrays = columns.map(|column| {
        let rows = match column.rows {
            RowKind::One => "molecule",
            RowKind::Along(0) => "atom",
            RowKind::Along(_) => "own",
        };
        let role = match column.role {
            ColumnRole::Values => "values",
            ColumnRole::Text => "text",
            ColumnRole::Present => "present",
            ColumnRole::Dims => "dims",
            ColumnRole::Record => "record",
        };
        json!({
            "field": column.name, "role": role, "dtype": column.dtype.numpy_name(), "shape": column.shape, "entries_per": rows,
        })
    });
    arrays.collect()
}

/// The first line of the summary.
#[must_use]
pub fn rows_line(d: &Dataset, m: &Molecules) -> String {
    let n_rows = d.schema().n_rows;
    let mean = m.n_atoms as f64 / n_rows.max(1) as f64;
    let n_files = m.files.len() as u64;
    let served: Vec<&str> = m.fields.iter().filter(|f| f.served && !f.is_null).map(|f| f.name.as_str()).collect();
    let fields = if served.is_empty() { "records as stored".to_owned() } else { served.join(", ") };
    format!(
        "rows         {} molecules of {mean:.1} atoms (at most {}) in {} file{}; {fields}",
        count(n_rows),
        count(u64::from(m.max_atoms)),
        count(n_files),
        plural(n_files)
    )
}
