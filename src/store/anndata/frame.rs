//! Data frames: `obs`, `var` and `raw/var` in all their encodings.
//!
//! Since anndata 0.7 a frame is a group: the attribute `_index` names the member that holds the row names, `column-order` the
//! other members. Before that it was one array of records whose first field (`index`) held the names. What is missing is
//! replaced by the rules of the format's history: `_index`, then `index`, else row numbers; all members but the index and
//! `__categories`, sorted.

use std::cell::OnceCell;
use std::collections::HashSet;

use super::columns::{ColumnSource, Fault};
use super::node::{ArrayInfo, Attr, ElemType, Field, Node, NodeRef};
use super::values;
use crate::num::to_usize;
use crate::store::column::Strings;
use crate::store::error::OpenError;

/// An opened data frame.
pub struct Frame {
    node: NodeRef,
    /// Where the labels of categoricals lie: `__categories` of a group, `uns` for records.
    labels: Option<NodeRef>,
    layout: Layout,
    n_rows: u64,
    columns: Vec<String>,
    /// Names of `column-order` that are not members.
    missing: Vec<String>,
}

enum Layout {
    Group { index: Option<String> },
    Records { info: ArrayInfo, fields: Vec<Field>, index: Option<usize>, bytes: OnceCell<Vec<u8>> },
}

impl Frame {
    /// Opens the frame at `node`. `root` is the AnnData object: its `uns` holds the labels of categoricals in frames of records.
    ///
    /// # Errors
    /// [`OpenError`] if it is not a data frame or damaged.
    pub fn open(node: NodeRef, root: &NodeRef) -> Result<Self, OpenError> {
        if node.is_group() {
            return Self::open_group(node);
        }
        // Nobody else needs `uns`, which may hold what cannot be read.
        let uns = root.child("uns")?.filter(|uns| uns.is_group());
        Self::open_records(node, uns)
    }

    fn open_group(node: NodeRef) -> Result<Self, OpenError> {
        let members = node.children()?;
        let is_member = |name: &str| members.iter().any(|m| m == name);
        let index = node
            .attr_text("_index")?
            .filter(|name| is_member(name))
            .or_else(|| ["_index", "index"].iter().find(|&&name| is_member(name)).map(|&name| name.to_owned()));
        let (columns, missing) = match node.attr("column-order")? {
            Some(Attr::Text(names)) => names.into_iter().partition(|name| is_member(name)),
            Some(_) => (Vec::new(), Vec::new()), // an empty list of no particular type
            None => {
                let all = members.iter().filter(|name| *name != "__categories" && Some(*name) != index.as_ref());
                (all.cloned().collect(), Vec::new())
            }
        };
        let mut seen = HashSet::new();
        let is_first = |name: &String| Some(name) != index.as_ref() && seen.insert(name.clone());
        let columns: Vec<String> = columns.into_iter().filter(is_first).collect();
        let n_rows = match index.as_ref().or(columns.first()) {
            Some(name) => member_len(node.required(name)?.as_ref())?,
            None => return Err(node.refused("has neither an index nor a column", "write it again")),
        };
        let labels = node.child("__categories")?.filter(|labels| labels.is_group());
        Ok(Self { node, labels, layout: Layout::Group { index }, n_rows, columns, missing })
    }

    fn open_records(node: NodeRef, uns: Option<NodeRef>) -> Result<Self, OpenError> {
        let info = node.info()?;
        let ElemType::Record(fields) = info.elem.clone() else {
            return Err(node.refused(&format!("is not a data frame but {}", info.elem.describe()), "write it again"));
        };
        let Some(n_rows) = info.len_1d() else { return Err(node.refused("is not one-dimensional", "write it again")) };
        let index = fields.iter().position(|f| f.name == "index").or(if fields.is_empty() { None } else { Some(0) });
        let is_column = |&(i, _): &(usize, &Field)| Some(i) != index;
        let columns = fields.iter().enumerate().filter(is_column).map(|(_, f)| f.name.clone()).collect();
        let layout = Layout::Records { info, fields, index, bytes: OnceCell::new() };
        Ok(Self { node, labels: uns, layout, n_rows, columns, missing: Vec::new() })
    }

    /// Number of rows.
    #[must_use]
    pub fn n_rows(&self) -> u64 {
        self.n_rows
    }

    /// Names of the columns, in column order.
    #[must_use]
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Names of `column-order` that are not members of the frame, and so are never looked for.
    #[must_use]
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// The frame's node.
    #[must_use]
    pub fn node(&self) -> &dyn Node {
        self.node.as_ref()
    }

    /// True if the frame holds names for its rows.
    #[must_use]
    pub fn has_names(&self) -> bool {
        match &self.layout {
            Layout::Group { index } => index.is_some(),
            Layout::Records { index, .. } => index.is_some(),
        }
    }

    /// Names of the rows; row numbers if the frame holds none. Numbers become text; a missing name is empty.
    ///
    /// # Errors
    /// [`OpenError`] if they are damaged, too long or not UTF-8.
    pub fn names(&self) -> Result<Strings, OpenError> {
        let name = format!("names of {}", self.node.path());
        self.node.source().cache().rows(&name, self.n_rows, || self.read_names())
    }

    fn read_names(&self) -> Result<Strings, OpenError> {
        let source = match &self.layout {
            Layout::Group { index: Some(index) } => {
                ColumnSource::Member { node: self.node.required(index)?, labels: None }
            }
            Layout::Records { index: Some(index), .. } => self.record_column(*index)?,
            _ => return Ok((0..self.n_rows).map(|i| i.to_string()).collect()),
        };
        let names = source.read_names(self.node()).map_err(|fault| match fault {
            Fault::Open(error) => error,
            Fault::Unsupported(reason) => {
                source.node(self.node()).refused(&format!("the index {reason}"), "write it again with text names")
            }
        })?;
        let n = crate::num::to_u64(names.len());
        if n != self.n_rows {
            return Err(self.node.refused(&format!("has {} rows but {n} names", self.n_rows), "write it again"));
        }
        Ok(names)
    }

    /// The column `name`, not read yet; `None` if there is none.
    ///
    /// # Errors
    /// [`OpenError`] if it is damaged.
    pub fn column(&self, name: &str) -> Result<Option<ColumnSource<'_>>, OpenError> {
        if !self.columns.iter().any(|c| c == name) {
            return Ok(None);
        }
        match &self.layout {
            Layout::Group { .. } => self.member_column(name),
            Layout::Records { fields, .. } => match fields.iter().position(|f| f.name == name) {
                Some(i) => self.record_column(i).map(Some),
                None => Ok(None),
            },
        }
    }

    fn member_column(&self, name: &str) -> Result<Option<ColumnSource<'_>>, OpenError> {
        let Some(node) = self.node.child(name)? else { return Ok(None) };
        let mut labels = None;
        if !node.is_group() {
            labels = node.referenced("categories")?;
            if let (None, Some(all)) = (&labels, &self.labels) {
                labels = all.child(name)?;
            }
        }
        Ok(Some(ColumnSource::Member { node, labels }))
    }

    fn record_column(&self, i: usize) -> Result<ColumnSource<'_>, OpenError> {
        let Layout::Records { info, fields, .. } = &self.layout else {
            return Err(self.node.refused("is not made of records", "write it again"));
        };
        let Some(field) = fields.get(i) else { return Err(self.node.refused("lacks a field", "write it again")) };
        let labels = match &self.labels {
            Some(uns) => uns.child(&format!("{}_categories", field.name))?,
            None => None,
        };
        Ok(ColumnSource::Field { frame: self, field, stride: info.elem_size, labels })
    }

    /// The records as stored, read once.
    pub(super) fn record_bytes(&self) -> Result<&[u8], OpenError> {
        match &self.layout {
            Layout::Records { bytes, .. } => {
                if bytes.get().is_none() {
                    let read = self.node.bytes()?;
                    let _ = bytes.set(read);
                }
                Ok(bytes.get().map_or(&[], Vec::as_slice))
            }
            Layout::Group { .. } => Ok(&[]),
        }
    }

    /// The values of one numeric field.
    pub(super) fn field_bytes(&self, field: &Field, stride: usize, size: usize) -> Result<Vec<u8>, OpenError> {
        self.node.source().charge(self.node.path(), self.n_rows.saturating_mul(crate::num::to_u64(size)))?;
        let records = self.record_bytes()?;
        debug_assert_eq!(records.len(), to_usize(self.n_rows) * stride);
        Ok(values::field(records, stride, field.offset, size))
    }
}

/// Number of rows of a member of a frame: an array, or a group of `codes`, or of `values` and `mask`.
fn member_len(member: &dyn Node) -> Result<u64, OpenError> {
    if member.is_group() {
        for name in ["values", "codes"] {
            if let Some(array) = member.child(name)? {
                return member_len(array.as_ref());
            }
        }
        return Err(member.refused("is neither an array nor a nullable array", "write it again"));
    }
    match member.info()?.dims.as_slice() {
        [n, ..] => Ok(*n),
        [] => Err(member.refused("has no rows", "write it again")),
    }
}
