//! Lists what a container holds, without reading any of it.

use super::by_rows::rewritten_bytes;
use super::columns::Fault;
use super::matrix::{self, Expected, MatrixKind};
use super::node::{ElemType, Node};
use super::root::Root;
use super::select::in_auto;
use super::tenx::TenX;
use super::{Catalog, CatalogColumn, CatalogMatrix};
use crate::store::error::OpenError;

/// Lists the AnnData object `root`.
///
/// # Errors
/// [`OpenError`] if its top level is damaged; what is wrong deeper down becomes the `refused` of an entry.
pub fn list(root: &Root) -> Result<Catalog, OpenError> {
    let node = root.node.as_ref();
    let version = match (node.attr_text("encoding-version")?, root.obs.node().is_group()) {
        (Some(version), _) => version,
        (None, true) => "0.7".to_owned(),
        (None, false) => "before 0.7".to_owned(),
    };
    let mut matrices = Vec::new();
    if let Some(x) = node.child("X")? {
        matrices.push(entry(x.as_ref(), "X".to_owned(), root.expected()));
    }
    let any_cols = Expected { n_rows: root.obs.n_rows(), cols: None };
    if let Some((x, _)) = root.raw()? {
        matrices.push(entry(x.as_ref(), "raw/X".to_owned(), any_cols));
    }
    for (group, expected) in [("layers", root.expected()), ("obsm", any_cols)] {
        let Some(members) = node.child(group)? else { continue };
        for name in root.keys(group)? {
            let path = format!("{group}/{name}");
            match members.child(&name) {
                Ok(Some(member)) => matrices.push(entry(member.as_ref(), path, expected)),
                Ok(None) => matrices.push(record_entry(members.as_ref(), &name, path)),
                Err(error) => matrices.push(CatalogMatrix { refused: Some(reason(error)), ..empty(path) }),
            }
        }
    }
    let skipped = node.children()?.into_iter().filter(|name| !is_served(name)).collect();
    Ok(Catalog {
        container: format!("AnnData {version}"),
        n_obs: root.obs.n_rows(),
        n_vars: root.var.n_rows(),
        matrices,
        columns: columns(root)?,
        skipped,
    })
}

fn is_served(name: &str) -> bool {
    matches!(name, "X" | "obs" | "var" | "raw" | "raw.X" | "raw.var" | "layers" | "obsm")
}

fn columns(root: &Root) -> Result<Vec<CatalogColumn>, OpenError> {
    let mut columns = Vec::new();
    for name in root.obs.columns() {
        let Some(source) = root.obs.column(name)? else { continue };
        columns.push(match source.kind() {
            Ok(kind) => CatalogColumn {
                name: name.clone(),
                kind: kind.describe(),
                n_categories: match kind {
                    super::columns::ColumnKind::Categorical(n) => Some(n),
                    _ => None,
                },
                auto: in_auto(&kind),
            },
            Err(fault) => {
                let kind = match fault {
                    Fault::Unsupported(why) => why,
                    Fault::Open(error) => reason(error),
                };
                CatalogColumn {
                    name: name.clone(),
                    kind: format!("not served: {kind}"),
                    n_categories: None,
                    auto: false,
                }
            }
        });
    }
    Ok(columns)
}

fn empty(path: String) -> CatalogMatrix {
    CatalogMatrix {
        path,
        encoding: String::new(),
        shape: [0, 0],
        dtype: String::new(),
        n_values: 0,
        chunk: Vec::new(),
        shard: Vec::new(),
        filters: Vec::new(),
        stored_bytes: 0,
        rows_per_chunk: None,
        rewritten_bytes: None,
        refused: None,
    }
}

/// The reason of a refusal, without the file and the remedy.
fn reason(error: OpenError) -> String {
    match error {
        OpenError::Refused { element, reason, .. } => format!("{element}: {reason}"),
        OpenError::Io { source, .. } => source.to_string(),
    }
}

fn entry(node: &dyn Node, path: String, expected: Expected<'_>) -> CatalogMatrix {
    describe(node, path.clone(), expected)
        .unwrap_or_else(|error| CatalogMatrix { refused: Some(reason(error)), ..empty(path) })
}

fn describe(node: &dyn Node, path: String, expected: Expected<'_>) -> Result<CatalogMatrix, OpenError> {
    let (kind, shape) = matrix::classify(node, expected)?;
    let encoding = match &kind {
        MatrixKind::Csr => "csr".to_owned(),
        MatrixKind::Csc => "csc".to_owned(),
        MatrixKind::Dense => "dense".to_owned(),
        MatrixKind::Null => "null".to_owned(),
        MatrixKind::Other(what) => what.clone(),
    };
    let refused = matrix::refusal_reason(&kind).map(|(why, _)| why);
    let mut found = CatalogMatrix { encoding, shape, refused, ..empty(path) };
    match kind {
        MatrixKind::Csr | MatrixKind::Csc => add_sparse(node, &mut found, kind == MatrixKind::Csr)?,
        MatrixKind::Dense => {
            let storage = node.storage()?;
            let info = node.info()?;
            found.dtype = info.elem.describe();
            found.n_values = shape[0].saturating_mul(shape[1]);
            found.rows_per_chunk = storage.chunk.first().map(|&rows| ratio(rows, 1));
            found.stored_bytes = storage.stored_bytes;
            found.refused = found.refused.or(storage.refused);
            (found.chunk, found.shard, found.filters) = (storage.chunk, storage.shard, storage.filters);
            if let ([rows, cols], ElemType::Number(stored)) = (found.chunk.as_slice(), &info.elem)
                && !found.filters.is_empty()
                && !(found.path.starts_with("obsm/") && matrix::is_resident(shape, info.elem_size))
                && matrix::slow_chunks([*rows, *cols], shape, info.elem_size).is_some()
            {
                found.rewritten_bytes = Some(rewritten_bytes(found.n_values, stored.dtype, false));
            }
        }
        MatrixKind::Null | MatrixKind::Other(_) => {}
    }
    Ok(found)
}

/// Adds what the arrays of a sparse matrix look like.
fn add_sparse(node: &dyn Node, found: &mut CatalogMatrix, by_rows: bool) -> Result<(), OpenError> {
    let info = node.required("data")?.info()?;
    found.dtype = info.elem.describe();
    found.n_values = info.len_1d().unwrap_or(0);
    for name in ["data", "indices", "indptr"] {
        let storage = node.required(name)?.storage()?;
        found.stored_bytes = found.stored_bytes.saturating_add(storage.stored_bytes);
        if let (None, Some(why)) = (&found.refused, storage.refused) {
            found.refused = Some(format!("{name}: {why}"));
        }
        if name == "data" {
            (found.chunk, found.shard, found.filters) = (storage.chunk, storage.shard, storage.filters);
        }
    }
    if let (ElemType::Number(stored), false) = (&info.elem, by_rows) {
        found.rewritten_bytes = Some(rewritten_bytes(found.n_values, stored.dtype, true));
    }
    if let ([len], true) = (found.chunk.as_slice(), by_rows) {
        found.rows_per_chunk = Some(ratio(len.saturating_mul(found.shape[0]), found.n_values));
    }
    Ok(())
}

/// Lists a matrix of 10x.
///
/// # Errors
/// [`OpenError`] if it is damaged.
pub fn list_tenx(tenx: &TenX) -> Result<Catalog, OpenError> {
    let mut x = CatalogMatrix { encoding: "csr".to_owned(), shape: tenx.shape, ..empty("X".to_owned()) };
    add_sparse(tenx.node(), &mut x, true)?;
    Ok(Catalog {
        container: format!("10x Genomics {}", tenx.version()),
        n_obs: tenx.shape[0],
        n_vars: tenx.shape[1],
        matrices: vec![x],
        columns: Vec::new(),
        skipped: Vec::new(),
    })
}

/// A field of an `obsm` of records.
fn record_entry(node: &dyn Node, name: &str, path: String) -> CatalogMatrix {
    let mut found = CatalogMatrix { encoding: "dense".to_owned(), ..empty(path) };
    let Ok(info) = node.info() else { return found };
    if let ElemType::Record(fields) = &info.elem
        && let Some(field) = fields.iter().find(|f| f.name == name)
    {
        let n_cols = field.dims.iter().fold(1_u64, |n, &d| n.saturating_mul(d));
        found.shape = [info.len_1d().unwrap_or(0), n_cols];
        found.n_values = found.shape[0].saturating_mul(n_cols);
        found.dtype = field.elem.describe();
    }
    found
}

#[allow(clippy::cast_precision_loss)] // shown to people
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}
