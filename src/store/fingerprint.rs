//! A short name for what is served: the content that decides the order and the layout of batches, and which arrays and genes
//! they hold.

use super::{Store, Strings};

/// Hash of schema, paths of the arrays, names of the genes that are served (in the order of their columns), row counts and row lengths, as 32
/// hexadecimal digits (BLAKE3, cut to 128 bits). Two datasets with the same fingerprint have batches of the same names, sizes and rows; values
/// are not part of it. `dense` says that sparse rows are served dense.
#[must_use]
pub fn fingerprint(store: &dyn Store, genes: &Strings, dense: bool) -> String {
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
    for name in genes.iter() {
        text("served gene", name);
    }
    text("dense", &dense.to_string());
    for element in &schema.elements {
        let types = format!("{} {}", element.dtype, element.index_dtype);
        text("element", &format!("{} {} {types} {}", element.name, element.n_cols, element.gene_axis));
    }
    for part in &schema.parts {
        text("array", &part.path);
    }
    for column in &schema.columns {
        text("column", &column.name);
    }
    for (e, element) in schema.elements.iter().enumerate() {
        if element.kind.sparse().is_some() {
            // A digest per source, which is kept with the lengths, so that nobody has to walk over all rows for it again.
            for source in 0..schema.sources.len() {
                hash.update(&store.row_lengths_digest(e, source));
            }
        }
    }
    hash.finalize().to_hex()[..32].to_owned()
}
