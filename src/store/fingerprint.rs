//! A short name for the content that decides the order and the layout of batches.

use super::{ElementKind, Store};

/// Hash of schema, gene names, row counts and row lengths, as 32 hexadecimal digits (BLAKE3, cut to 128 bits). Two datasets with the
/// same fingerprint have batches of the same names, sizes and rows; values are not part of it.
#[must_use]
pub fn fingerprint(store: &dyn Store) -> String {
    let schema = store.schema();
    let mut hash = blake3::Hasher::new();
    // Every field is preceded by its length, so that no two datasets write the same bytes.
    let mut text = |label: &str, value: &str| {
        for part in [label, value] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
    };
    text("rows", &schema.n_rows.to_string());
    for source in &schema.sources {
        text("source", &format!("{}..{}", source.rows.start, source.rows.end));
    }
    for name in schema.var_names.iter() {
        text("gene", name);
    }
    for element in &schema.elements {
        text("element", &format!("{} {} {} {}", element.name, element.n_cols, element.dtype, element.gene_axis));
    }
    for column in &schema.columns {
        text("column", &column.name);
    }
    for (e, element) in schema.elements.iter().enumerate() {
        if matches!(element.kind, ElementKind::Sparse { .. }) {
            // A digest per source, which is kept with the lengths, so that nobody has to walk over all rows for it again.
            for source in 0..schema.sources.len() {
                hash.update(&store.row_lengths_digest(e, source));
            }
        }
    }
    hash.finalize().to_hex()[..32].to_owned()
}
