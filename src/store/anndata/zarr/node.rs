//! Groups and arrays of a zarr store as [`Node`]s.
//!
//! Stepping down reads the metadata of the child and nothing else. A child is a name below a group, never a path; where an attribute holds
//! a path (anndata 0.7 points to categories so), it is walked name by name from the group that holds the array.

use std::cell::OnceCell;
use std::rc::Rc;

use serde_json::Value;

use super::layout;
use super::metadata::{self, ArrayMeta, Attributes, Kind};
use super::store::ZarrStore;
use super::text;
use crate::num::to_usize;
use crate::store::anndata::node::{
    ArrayInfo, Attr, ElemType, MAX_DIM, MAX_RANK, MAX_VALUES, Node, NodeRef, Source, StorageInfo, TextType,
};
use crate::store::anndata::raw_array::RawArray;
use crate::store::anndata::texts;
use crate::store::column::Strings;
use crate::store::error::OpenError;

/// Longest path that an attribute may hold, in names.
const MAX_PATH: usize = 32;

/// What the nodes of a store share.
pub struct Shared {
    /// The store.
    pub store: Rc<ZarrStore>,
    /// What was charged for it.
    pub source: Source,
    /// 2 or 3.
    pub format: u8,
}

/// A group or an array.
pub struct ZarrNode {
    shared: Rc<Shared>,
    path: String,
    kind: Kind,
    attributes: OnceCell<Attributes>,
}

impl ZarrNode {
    /// The node at `path`; `None` if there is none.
    ///
    /// # Errors
    /// [`OpenError`] if its metadata are damaged or lead out of the store.
    pub fn open(shared: &Rc<Shared>, path: String) -> Result<Option<Self>, OpenError> {
        let key = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
        let document = |name: &str| shared.store.document(&key(name));
        let attributes = OnceCell::new();
        let parsed = if shared.format == 3 {
            document("zarr.json")?.map(|doc| {
                metadata::parse_v3(&doc).map(|(kind, found)| {
                    let _ = attributes.set(found);
                    kind
                })
            })
        } else if let Some(doc) = document(".zarray")? {
            Some(metadata::parse_v2_array(&doc))
        } else {
            document(".zgroup")?.map(|doc| metadata::parse_v2_group(&doc))
        };
        match parsed {
            None => Ok(None),
            Some(Ok(kind)) => Ok(Some(Self { shared: Rc::clone(shared), path, kind, attributes })),
            Some(Err(reason)) => {
                let element = if path.is_empty() { "store" } else { &path };
                Err(OpenError::refused(shared.store.path(), element, reason, "write the store again"))
            }
        }
    }

    /// The store.
    pub fn store(&self) -> &ZarrStore {
        &self.shared.store
    }

    fn attributes(&self) -> Result<&Attributes, OpenError> {
        if self.attributes.get().is_none() {
            let key = if self.path.is_empty() { ".zattrs".to_owned() } else { format!("{}/.zattrs", self.path) };
            let found = match self.shared.store.document(&key)? {
                None => Attributes::new(),
                Some(doc) => metadata::parse_v2_attributes(&doc)
                    .map_err(|reason| self.refused(&format!("attributes: {reason}"), "write the store again"))?,
            };
            let _ = self.attributes.set(found);
        }
        Ok(self.attributes.get_or_init(Attributes::new))
    }

    fn array(&self) -> Result<&ArrayMeta, OpenError> {
        match &self.kind {
            Kind::Array(meta) => Ok(meta),
            Kind::Group => Err(self.refused("is not an array", "write it again")),
        }
    }
}

impl Node for ZarrNode {
    fn path(&self) -> &str {
        &self.path
    }

    fn source(&self) -> &Source {
        &self.shared.source
    }

    fn is_group(&self) -> bool {
        matches!(self.kind, Kind::Group)
    }

    fn children(&self) -> Result<Vec<String>, OpenError> {
        match self.kind {
            Kind::Group => self.shared.store.folders(&self.path),
            Kind::Array(_) => Ok(Vec::new()),
        }
    }

    fn child(&self, name: &str) -> Result<Option<NodeRef>, OpenError> {
        if !self.is_group() || name.is_empty() || name.starts_with('.') || name.contains(['/', '\\', '\0']) {
            return Ok(None);
        }
        let path = if self.path.is_empty() { name.to_owned() } else { format!("{}/{name}", self.path) };
        Ok(Self::open(&self.shared, path)?.map(|node| Rc::new(node) as NodeRef))
    }

    fn attr(&self, name: &str) -> Result<Option<Attr>, OpenError> {
        Ok(self.attributes()?.get(name).map(attr_of))
    }

    fn referenced(&self, name: &str) -> Result<Option<NodeRef>, OpenError> {
        let Some(Value::String(target)) = self.attributes()?.get(name) else { return Ok(None) };
        let parent = self.path.rsplit_once('/').map_or("", |(parent, _)| parent);
        let Some(parent) = Self::open(&self.shared, parent.to_owned())? else { return Ok(None) };
        let mut at: NodeRef = Rc::new(parent);
        for (depth, part) in target.split('/').enumerate() {
            match at.child(part)? {
                Some(next) if depth < MAX_PATH => at = next,
                _ => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    fn info(&self) -> Result<ArrayInfo, OpenError> {
        let meta = self.array()?;
        let dims = &meta.shape;
        let n = dims.iter().try_fold(1_u64, |n, &d| n.checked_mul(d));
        if dims.len() > MAX_RANK || dims.iter().any(|&d| d > MAX_DIM) || n.is_none_or(|n| n > MAX_VALUES) {
            return Err(self.refused(&format!("extent {dims:?} is beyond the limits"), "leave it out"));
        }
        let elem = meta.described.elem.clone();
        Ok(ArrayInfo { is_null: false, dims: dims.clone(), elem, elem_size: meta.described.size })
    }

    fn storage(&self) -> Result<StorageInfo, OpenError> {
        self.info()?;
        Ok(layout::storage_info(self, self.array()?))
    }

    fn raw(&self) -> Result<RawArray, OpenError> {
        let info = self.info()?;
        if let ElemType::Text(TextType::Variable) | ElemType::Other(_) = info.elem {
            return Err(self.refused(&format!("holds {}, not numbers", info.elem.describe()), "leave it out"));
        }
        layout::raw_array(self, self.array()?)
    }

    fn texts(
        &self,
        bytes: &[u8],
        stride: usize,
        offset: usize,
        text: TextType,
    ) -> Result<Result<Strings, String>, OpenError> {
        texts::in_place(self, bytes, stride, offset, text)
    }

    fn strings(&self) -> Result<Result<Strings, String>, OpenError> {
        let info = self.info()?;
        match info.elem {
            ElemType::Text(TextType::Variable) => match info.len_1d() {
                Some(n) => text::variable(self, self.array()?, to_usize(n)),
                None => Ok(Err("is not one-dimensional".to_owned())),
            },
            ElemType::Text(text) => self.texts(&self.bytes()?, info.elem_size, 0, text),
            _ => Ok(Err("is not text".to_owned())),
        }
    }
}

/// A JSON value as an attribute.
fn attr_of(value: &Value) -> Attr {
    match value {
        Value::Null => Attr::Empty,
        Value::String(text) => Attr::Text(vec![text.clone()]),
        Value::Bool(flag) => Attr::Integers(vec![i64::from(*flag)]),
        Value::Number(_) => integer(value).map_or(Attr::Other, |n| Attr::Integers(vec![n])),
        Value::Array(values) if values.is_empty() => Attr::Empty,
        Value::Array(values) => {
            let texts: Option<Vec<String>> = values.iter().map(|v| v.as_str().map(ToOwned::to_owned)).collect();
            let integers = || values.iter().map(integer).collect::<Option<Vec<i64>>>();
            match texts {
                Some(texts) => Attr::Text(texts),
                None => integers().map_or(Attr::Other, Attr::Integers),
            }
        }
        Value::Object(_) => Attr::Other,
    }
}

/// A whole number; some writers give 3.0.
#[allow(clippy::cast_possible_truncation)] // whole and below 2^53
fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Bool(flag) => Some(i64::from(*flag)),
        _ => value.as_i64().or_else(|| {
            value.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < 9_007_199_254_740_992.0).map(|n| n as i64)
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_become_attributes() {
        assert_eq!(attr_of(&json!("a")), Attr::Text(vec!["a".to_owned()]));
        assert_eq!(attr_of(&json!(["a", "b"])), Attr::Text(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(attr_of(&json!([3, 4.0])), Attr::Integers(vec![3, 4]));
        assert_eq!(attr_of(&json!(true)), Attr::Integers(vec![1]));
        assert_eq!(attr_of(&json!([])), Attr::Empty);
        assert_eq!(attr_of(&json!(null)), Attr::Empty);
        for other in [json!(1.5), json!({"a": 1}), json!(["a", 1]), json!(u64::MAX), json!([1e300])] {
            assert_eq!(attr_of(&other), Attr::Other, "{other}");
        }
    }
}
