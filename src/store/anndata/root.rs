//! The top of an AnnData container: is it one at all, and where its parts are.
//!
//! The generations differ here as well: `raw/X` and `raw/var` were `raw.X` and `raw.var` at the root before 0.7.

use std::rc::Rc;

use super::frame::Frame;
use super::matrix::{self, Expected};
use super::node::{ElemType, Node, NodeRef};
use crate::store::error::OpenError;

/// Most members of a group that a message lists.
const SHOWN: usize = 12;

/// An AnnData object, its data frames opened.
pub struct Root {
    /// The root group.
    pub node: NodeRef,
    /// `obs`.
    pub obs: Frame,
    /// `var`.
    pub var: Frame,
    /// `raw/X` and `raw/var`, or `raw.X` and `raw.var`.
    pub raw: Option<(NodeRef, NodeRef)>,
}

impl Root {
    /// Checks that `node` is an AnnData object and opens its frames.
    ///
    /// # Errors
    /// [`OpenError::Refused`] saying what it is instead.
    pub fn open(node: NodeRef) -> Result<Self, OpenError> {
        check_container(node.as_ref())?;
        let frame = |name: &str| match node.child(name)? {
            Some(frame) => Frame::open(frame, &node),
            None => Err(not_anndata(node.as_ref())),
        };
        let (obs, var) = (frame("obs")?, frame("var")?);
        let raw = match node.child("raw")?.filter(|raw| raw.is_group()) {
            Some(raw) => raw.child("X")?.zip(raw.child("var")?),
            None => node.child("raw.X")?.zip(node.child("raw.var")?),
        };
        Ok(Self { node, obs, var, raw })
    }

    /// Members of the group `name`, or fields if it is an array of records.
    ///
    /// # Errors
    /// [`OpenError`] if it is damaged.
    pub fn keys(&self, name: &str) -> Result<Vec<String>, OpenError> {
        let Some(node) = self.node.child(name)? else { return Ok(Vec::new()) };
        if node.is_group() {
            return node.children();
        }
        Ok(match node.info()?.elem {
            ElemType::Record(fields) => fields.into_iter().map(|f| f.name).collect(),
            _ => Vec::new(),
        })
    }

    /// What a matrix with one row per cell and the genes of `var` looks like.
    #[must_use]
    pub fn expected(&self) -> Expected<'static> {
        Expected { n_rows: self.obs.n_rows(), cols: Some((self.var.n_rows(), "var")) }
    }

    /// Values of `--x` that exist here, best first.
    ///
    /// # Errors
    /// [`OpenError`] if a group is damaged.
    pub fn choices(&self) -> Result<Vec<String>, OpenError> {
        let mut found = Vec::new();
        if let Some(x) = self.node.child("X")?
            && servable(x.as_ref(), self.expected())
        {
            found.push("X".to_owned());
        }
        if let Some((x, _)) = &self.raw
            && servable(x.as_ref(), Expected { n_rows: self.obs.n_rows(), cols: None })
        {
            found.push("raw/X".to_owned());
        }
        if let Some(layers) = self.node.child("layers")?.filter(|layers| layers.is_group()) {
            for name in layers.children()? {
                if let Ok(Some(layer)) = layers.child(&name)
                    && servable(layer.as_ref(), self.expected())
                {
                    found.push(format!("layers/{name}"));
                }
            }
        }
        found.push("none".to_owned());
        Ok(found)
    }
}

/// True if a matrix is of a kind that is served.
fn servable(node: &dyn Node, expected: Expected<'_>) -> bool {
    matrix::classify(node, expected).is_ok_and(|(kind, _)| matrix::refusal_reason(&kind).is_none())
}

/// Refuses what is HDF5 or zarr but another format, by name.
fn check_container(node: &dyn Node) -> Result<(), OpenError> {
    let encoding = node.attr_text("encoding-type")?;
    if encoding.as_deref() == Some("anndata") {
        return Ok(());
    }
    if let Some(modalities) = node.child("mod")?.filter(|m| m.is_group()) {
        return Err(name_one(node, "MuData", "mod", modalities.as_ref())?);
    }
    if let (None, Some(tables)) = (node.child("obs")?, node.child("tables")?.filter(|tables| tables.is_group())) {
        return Err(name_one(node, "SpatialData", "tables", tables.as_ref())?);
    }
    match encoding.as_deref() {
        None | Some("") => Ok(()),
        Some(other) => Err(node.refused(&format!("is {other}, not AnnData"), "give an .h5ad file")),
    }
}

/// A refusal of a container of several AnnData objects, which lists them.
fn name_one(node: &dyn Node, what: &str, group: &str, members: &dyn Node) -> Result<OpenError, OpenError> {
    let names: Vec<String> = members.children()?.iter().map(|name| format!("{group}/{name}")).collect();
    let reason = format!("is {what} with {}", listing(&names));
    let first = names.first().map_or_else(|| format!("{group}/NAME"), ToOwned::to_owned);
    Ok(node.refused(&reason, &format!("name one: {}::{first}", node.source().path().display())))
}

fn not_anndata(node: &dyn Node) -> OpenError {
    let members = match node.children() {
        Ok(members) => members,
        Err(error) => return error,
    };
    let has = |name: &str| members.iter().any(|m| m == name);
    if has("row_attrs") && has("col_attrs") {
        return node.refused("is a loom file, not AnnData", "convert it: anndata.io.read_loom(...).write_h5ad(...)");
    }
    let missing = if has("obs") { "var" } else { "obs" };
    let reason = format!("is not AnnData: has no {missing}; members are {}", listing(&members));
    node.refused(&reason, "give an .h5ad file")
}

/// Names for a message.
#[must_use]
pub fn listing(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN { format!("{shown}, ... ({} in all)", names.len()) } else { shown }
}

/// The frame of genes that belongs to `raw`.
///
/// # Errors
/// [`OpenError`] if it is damaged.
pub fn raw_frame(root: &Root, var: &NodeRef) -> Result<Frame, OpenError> {
    Frame::open(Rc::clone(var), &root.node)
}
