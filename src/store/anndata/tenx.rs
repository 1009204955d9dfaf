//! 10x Genomics HDF5: a matrix of genes x cells by columns, which is one of cells x genes by rows.
//!
//! Since Cell Ranger 3 it is the group `matrix`, with `features` as a group; before, one group per genome, with `genes` and `gene_names`
//! beside the matrix. There is nothing else in it: no columns of cells, no layers. Names of genes and barcodes may be missing.

use super::matrix::{self, Expected};
use super::node::{ElemType, Node, NodeRef};
use super::root::listing;
use super::select::{Selected, has_repeats, names_wanted};
use super::{ObsChoice, OpenedElement, Selection, values};
use crate::num::to_u64;
use crate::store::column::Strings;
use crate::store::error::OpenError;

/// Group of the matrix since Cell Ranger 3.
const MATRIX: &str = "matrix";
/// Largest dataset `shape`: two integers.
const MAX_SHAPE_LEN: u64 = 2;

/// A matrix of 10x, found.
pub struct TenX {
    node: NodeRef,
    /// Number of cells and genes.
    pub shape: [u64; 2],
}

impl TenX {
    /// The matrix at or below `node`; `None` if there is none.
    ///
    /// # Errors
    /// [`OpenError`] if there are several, or it is damaged.
    pub fn find(node: &NodeRef) -> Result<Option<Self>, OpenError> {
        if !node.is_group() {
            return Ok(None);
        }
        if is_matrix(node.as_ref())? {
            return Self::new(NodeRef::clone(node)).map(Some);
        }
        let mut found = Vec::new();
        for name in node.children()? {
            // What cannot be opened is no matrix of 10x, and whoever looks for something else will say why.
            let Ok(Some(child)) = node.child(&name) else { continue };
            if child.is_group() && is_matrix(child.as_ref())? {
                found.push((name, child));
            }
        }
        match found.len() {
            0 => Ok(None),
            1 => found.pop().map(|(_, child)| Self::new(child)).transpose(),
            _ => {
                let names: Vec<String> = found.into_iter().map(|(name, _)| name).collect();
                let reason = format!("is 10x Genomics HDF5 with the genomes {}", listing(&names));
                let path = node.source().path().display();
                let first = names.first().map_or("GENOME", String::as_str);
                Err(node.refused(&reason, &format!("name one: {path}::{first}")))
            }
        }
    }

    fn new(node: NodeRef) -> Result<Self, OpenError> {
        let shape = node.required("shape")?;
        let info = shape.info()?;
        let numbers = match info.elem {
            ElemType::Number(stored) if info.len_1d().is_some_and(|n| n == MAX_SHAPE_LEN) => {
                let bytes = shape.bytes()?;
                values::integers(&bytes, stored).map(Iterator::collect::<Option<Vec<i64>>>)
            }
            _ => None,
        };
        match numbers.flatten().as_deref() {
            Some([genes, cells]) => match (u64::try_from(*genes), u64::try_from(*cells)) {
                (Ok(genes), Ok(cells)) => Ok(Self { node, shape: [cells, genes] }),
                _ => Err(shape.refused("is negative", "write it again")),
            },
            _ => Err(shape.refused("is not two integers", "write it again")),
        }
    }

    /// Version of the format.
    #[must_use]
    pub fn version(&self) -> &'static str {
        if self.node.path().rsplit('/').next() == Some(MATRIX) { "v3" } else { "v2" }
    }

    /// The group of the matrix.
    #[must_use]
    pub fn node(&self) -> &dyn Node {
        self.node.as_ref()
    }

    fn expected(&self) -> Expected<'static> {
        Expected { n_rows: self.shape[0], cols: Some((self.shape[1], "shape")) }
    }

    /// Opens what `selection` names.
    ///
    /// # Errors
    /// [`OpenError`] if it names what the format does not have, or something is damaged.
    pub fn open(&self, selection: &Selection) -> Result<Selected, OpenError> {
        let refused =
            |what: &str| Err(self.node.refused(&format!("is 10x Genomics HDF5, which has no {what}"), "leave it out"));
        match (&selection.obs, &selection.genes_column) {
            (ObsChoice::Columns(names), _) if !names.is_empty() && !selection.one_of_many => {
                return refused(&format!("obs/{}", listing(names)));
            }
            (_, Some(column)) => return refused(&format!("boolean column {column} of genes")),
            _ => {}
        }
        if let Some(layer) = selection.layers.first() {
            return refused(&format!("layers/{layer}"));
        }
        if let Some(key) = selection.obsm.first() {
            return refused(&format!("obsm/{key}"));
        }
        let [n_obs, n_vars] = self.shape;
        let elements = match selection.x.as_deref() {
            None => Vec::new(),
            Some("X") => {
                let layout = matrix::open_csr(self.node(), self.expected(), self.shape)?;
                let (name, path) = ("X".to_owned(), self.node.path().to_owned());
                vec![OpenedElement { name, n_cols: n_vars, gene_axis: true, layout, rewritten: None, path }]
            }
            Some(other) => return refused(other),
        };
        let (mut left_out, mut warnings) = (Vec::new(), Vec::new());
        let mut obs_names = None;
        if names_wanted(selection.names, n_obs, &mut left_out) {
            let names = self.barcodes(&mut warnings)?;
            if has_repeats(&names) {
                warnings.push("barcodes occur more than once; rows are told apart by their numbers".to_owned());
            }
            obs_names = Some(names);
        }
        Ok(Selected {
            x_kind: if elements.is_empty() { "no X" } else { "csr" },
            n_obs,
            n_vars,
            var_names: self.gene_names(&mut warnings)?,
            obs_names,
            elements,
            columns: Vec::new(),
            gene_mask: None,
            left_out,
            warnings,
        })
    }

    fn barcodes(&self, warnings: &mut Vec<String>) -> Result<Strings, OpenError> {
        let name = format!("names of {}", self.node.path());
        let n = self.shape[0];
        match self.node.child("barcodes")? {
            Some(barcodes) => self.node.source().cache().rows(&name, n, || texts(barcodes.as_ref(), n)),
            None => Ok(numbered(n, "barcodes", warnings)),
        }
    }

    /// Names of genes, else their ids, else numbers.
    fn gene_names(&self, warnings: &mut Vec<String>) -> Result<Strings, OpenError> {
        let n = self.shape[1];
        let (table, names) = match self.node.child("features")?.filter(|features| features.is_group()) {
            Some(features) => (features, ["name", "id"]),
            None => (NodeRef::clone(&self.node), ["gene_names", "genes"]),
        };
        for name in names {
            if let Some(column) = table.child(name)? {
                return texts(column.as_ref(), n);
            }
        }
        Ok(numbered(n, "gene names", warnings))
    }
}

/// True for a group that holds a matrix of 10x; AnnData keeps the shape of a sparse matrix in an attribute.
fn is_matrix(group: &dyn Node) -> Result<bool, OpenError> {
    let members = group.children()?;
    Ok(["data", "indices", "indptr", "shape"].iter().all(|name| members.iter().any(|m| m == name)))
}

fn texts(node: &dyn Node, n: u64) -> Result<Strings, OpenError> {
    match node.strings()? {
        Ok(texts) if to_u64(texts.len()) == n => Ok(texts),
        Ok(texts) => Err(node.refused(&format!("has {} texts, not {n}", texts.len()), "write it again")),
        Err(reason) => Err(node.refused(&reason, "write it again")),
    }
}

fn numbered(n: u64, what: &str, warnings: &mut Vec<String>) -> Strings {
    warnings.push(format!("has no {what}, numbers are taken"));
    (0..n).map(|i| i.to_string()).collect()
}
