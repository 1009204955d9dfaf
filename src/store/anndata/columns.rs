//! Columns of data frames: what one is, known without reading it, and its values.
//!
//! A column is a numeric or text array; a group `codes` + `categories` (categorical 0.2.0); an integer array whose attribute
//! `categories` points to its labels (0.7); an integer field of records whose labels are `uns/<name>_categories` (before 0.7); or
//! a group `values` + `mask` (nullable). Codes are checked against the number of categories before anything is served.

use super::frame::Frame;
use super::node::{ArrayInfo, ElemType, Field, Node, NodeRef};
use super::values;
use crate::dtype::{DType, Stored};
use crate::num::to_u64;
use crate::store::array::Array;
use crate::store::cache::{Cacheable, Sections};
use crate::store::column::{Categories, CodeValues, Codes, Column, ColumnData, Strings};
use crate::store::error::OpenError;

/// Why a column was not read.
pub enum Fault {
    /// It is of a kind that is not served: fatal only if it was asked for by name.
    Unsupported(String),
    /// It is damaged, or reading failed.
    Open(OpenError),
}

impl From<OpenError> for Fault {
    fn from(error: OpenError) -> Self {
        Self::Open(error)
    }
}

/// Where a column comes from.
pub enum ColumnSource<'a> {
    /// A member of a group.
    Member {
        /// The member.
        node: NodeRef,
        /// Its labels, if it is a categorical of anndata 0.7.
        labels: Option<NodeRef>,
    },
    /// A field of an array of records.
    Field {
        /// The frame.
        frame: &'a Frame,
        /// The field.
        field: &'a Field,
        /// Bytes of a record.
        stride: usize,
        /// `uns/<name>_categories`.
        labels: Option<NodeRef>,
    },
}

/// What a column is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ColumnKind {
    /// Numbers or booleans.
    Number(DType),
    /// Numbers or booleans with a mask.
    Nullable(DType),
    /// Codes into a table of this many categories.
    Categorical(u64),
    /// Text, possibly with a mask.
    Text,
}

impl ColumnKind {
    /// The kind in a word or two, as in the catalog.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Number(dtype) => dtype.numpy_name().to_owned(),
            Self::Nullable(dtype) => format!("nullable {}", dtype.numpy_name()),
            Self::Categorical(_) => "categorical".to_owned(),
            Self::Text => "string".to_owned(),
        }
    }
}

/// A column and what is odd about it.
pub struct ReadColumn {
    /// The values.
    pub column: Column,
    /// Oddities, one line each.
    pub warnings: Vec<String>,
}

impl Cacheable for ReadColumn {
    type Facts = (<Column as Cacheable>::Facts, Vec<String>);

    fn to_entry<'a>(&'a self, sections: &mut Vec<&'a [u8]>) -> Self::Facts {
        (self.column.to_entry(sections), self.warnings.clone())
    }

    fn from_entry((column, warnings): Self::Facts, sections: &mut Sections<'_>) -> Option<Self> {
        Some(Self { column: Column::from_entry(column, sections)?, warnings })
    }
}

impl ColumnSource<'_> {
    /// The node to name in messages.
    #[must_use]
    pub fn node<'b>(&'b self, frame: &'b dyn Node) -> &'b dyn Node {
        match self {
            Self::Member { node, .. } => node.as_ref(),
            Self::Field { .. } => frame,
        }
    }

    /// What the column is, without reading its values.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn kind(&self) -> Result<ColumnKind, Fault> {
        match self {
            Self::Member { node, .. } if node.is_group() => group_kind(node.as_ref()),
            Self::Member { node, labels } => match (array_elem(&node.info()?)?, labels) {
                (ElemType::Number(s), Some(labels)) if is_integer(s) => {
                    Ok(ColumnKind::Categorical(table_len(labels.as_ref())?))
                }
                (ElemType::Number(stored), _) => Ok(ColumnKind::Number(stored.dtype)),
                (ElemType::Text(_), _) => Ok(ColumnKind::Text),
                (other, _) => Err(Fault::Unsupported(format!("holds {}", other.describe()))),
            },
            Self::Field { field, labels, .. } => match (&field.elem, labels) {
                _ if !field.dims.is_empty() => Err(Fault::Unsupported("holds arrays".to_owned())),
                (ElemType::Number(s), Some(labels)) if is_integer(*s) => {
                    Ok(ColumnKind::Categorical(table_len(labels.as_ref())?))
                }
                (ElemType::Number(stored), _) => Ok(ColumnKind::Number(stored.dtype)),
                (ElemType::Text(_), _) => Ok(ColumnKind::Text),
                (other, _) => Err(Fault::Unsupported(format!("holds {}", other.describe()))),
            },
        }
    }

    /// Reads the column `name` of a frame of `n_rows` rows.
    ///
    /// # Errors
    /// [`Fault`]; damaged if its length is not `n_rows` or a code has no category.
    pub fn read(&self, frame: &dyn Node, name: &str, n_rows: u64) -> Result<ReadColumn, Fault> {
        let piece = format!("column {} of {}", name, frame.path());
        frame.source().cache().rows(&piece, n_rows, || self.read_values(frame, name, n_rows))
    }

    fn read_values(&self, frame: &dyn Node, name: &str, n_rows: u64) -> Result<ReadColumn, Fault> {
        let node = self.node(frame);
        let mut read = Reader { node, name, n_rows, warnings: Vec::new() };
        let (data, present) = match self {
            Self::Member { node, .. } if node.is_group() => read.group(node.as_ref())?,
            Self::Member { node, labels: Some(labels) } => read.linked(node.as_ref(), labels.as_ref())?,
            Self::Member { node, labels: None } => (read.array(node.as_ref())?, None),
            Self::Field { frame, field, stride, labels } => {
                (read.field(frame, field, *stride, labels.as_deref())?, None)
            }
        };
        let Reader { warnings, .. } = read;
        let present = present.map(Array::from);
        Ok(ReadColumn { column: Column { name: name.to_owned(), data, present }, warnings })
    }

    /// Reads the column as row names.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn read_names(&self, frame: &dyn Node) -> Result<Strings, Fault> {
        let (bytes, stored) = match self {
            Self::Member { node, .. } if node.is_group() => return Ok(masked_text(node.as_ref())?.0),
            Self::Member { node, .. } => match array_elem(&node.info()?)? {
                ElemType::Number(stored) => (node.bytes()?, stored),
                _ => return node.strings()?.map_err(Fault::Unsupported),
            },
            Self::Field { frame: records, field, stride, .. } => match &field.elem {
                ElemType::Text(text) if field.dims.is_empty() => {
                    let texts = frame.texts(records.record_bytes()?, *stride, field.offset, *text)?;
                    return texts.map_err(Fault::Unsupported);
                }
                ElemType::Number(stored) => (records.field_bytes(field, *stride, stored.dtype.size_bytes())?, *stored),
                other => return Err(Fault::Unsupported(format!("holds {}", other.describe()))),
            },
        };
        let Some(numbers) = values::integers(&bytes, stored) else {
            return Err(Fault::Unsupported(format!("holds {}", stored.dtype)));
        };
        Ok(numbers.map(|n| n.map_or_else(String::new, |n| n.to_string())).collect())
    }
}

/// The elements of an array of rank 1, which is what a column must be.
fn array_elem(info: &ArrayInfo) -> Result<ElemType, Fault> {
    if info.is_null || info.dims.len() != 1 {
        return Err(Fault::Unsupported(format!("has {} dimensions", info.dims.len())));
    }
    Ok(info.elem.clone())
}

fn is_integer(stored: Stored) -> bool {
    !stored.dtype.is_float() && stored.dtype != DType::Bool
}

/// What a group is, by `encoding-type` or by its members.
enum GroupKind {
    Categorical,
    Masked,
}

fn group_encoding(node: &dyn Node) -> Result<GroupKind, Fault> {
    let encoding = node.attr_text("encoding-type")?;
    match encoding.as_deref() {
        Some("categorical") => Ok(GroupKind::Categorical),
        Some("nullable-integer" | "nullable-boolean" | "nullable-string-array") => Ok(GroupKind::Masked),
        Some(other) => Err(Fault::Unsupported(format!("has the encoding {other}"))),
        None => {
            let members = node.children()?;
            let has = |name: &str| members.iter().any(|m| m == name);
            match (has("codes") && has("categories"), has("values") && has("mask")) {
                (true, _) => Ok(GroupKind::Categorical),
                (_, true) => Ok(GroupKind::Masked),
                _ => Err(Fault::Unsupported("is a group of no known kind".to_owned())),
            }
        }
    }
}

fn group_kind(node: &dyn Node) -> Result<ColumnKind, Fault> {
    match group_encoding(node)? {
        GroupKind::Categorical => Ok(ColumnKind::Categorical(table_len(node.required("categories")?.as_ref())?)),
        GroupKind::Masked => match array_elem(&node.required("values")?.info()?)? {
            ElemType::Number(stored) => Ok(ColumnKind::Nullable(stored.dtype)),
            ElemType::Text(_) => Ok(ColumnKind::Text),
            other => Err(Fault::Unsupported(format!("holds {}", other.describe()))),
        },
    }
}

/// Number of categories.
fn table_len(labels: &dyn Node) -> Result<u64, Fault> {
    let info = if labels.is_group() { labels.required("values")?.info()? } else { labels.info()? };
    info.len_1d().ok_or_else(|| Fault::Unsupported("has a table of categories of a strange extent".to_owned()))
}

/// Text with a mask: the text (empty where missing) and one byte per row, 1 where present.
fn masked_text(node: &dyn Node) -> Result<(Strings, Vec<u8>), Fault> {
    let strings = node.required("values")?.strings()?.map_err(Fault::Unsupported)?;
    let mask = node.required("mask")?;
    let missing = read_mask(mask.as_ref(), to_u64(strings.len()))?;
    if missing.iter().all(|&m| m == 0) {
        return Ok((strings, vec![1; missing.len()]));
    }
    let mut kept = Strings::with_capacity(strings.len());
    for (i, &m) in missing.iter().enumerate() {
        kept.push(if m == 0 { strings.get(i) } else { "" });
    }
    Ok((kept, missing.iter().map(|&m| u8::from(m == 0)).collect()))
}

fn read_mask(mask: &dyn Node, n_rows: u64) -> Result<Vec<u8>, Fault> {
    let info = mask.info()?;
    if info.len_1d() != Some(n_rows) {
        return Err(mask.refused(&format!("has extent {:?}, not {n_rows}", info.dims), "write it again").into());
    }
    match info.elem {
        ElemType::Number(stored) if stored.dtype.size_bytes() == 1 => {
            Ok(values::to_little(mask.bytes()?, Stored::little(DType::Bool)))
        }
        other => Err(Fault::Unsupported(format!("has a mask of {}", other.describe()))),
    }
}

type Values = (ColumnData, Option<Vec<u8>>);

/// Reads one column.
struct Reader<'a> {
    node: &'a dyn Node,
    name: &'a str,
    n_rows: u64,
    warnings: Vec<String>,
}

impl Reader<'_> {
    fn expect_rows(&self, node: &dyn Node, dims: &[u64]) -> Result<(), Fault> {
        match dims {
            [n] if *n == self.n_rows => Ok(()),
            [n] => Err(node.refused(&format!("has {n} values for {} rows", self.n_rows), "write it again").into()),
            _ => Err(Fault::Unsupported(format!("has {} dimensions", dims.len()))),
        }
    }

    fn array(&self, node: &dyn Node) -> Result<ColumnData, Fault> {
        let info = node.info()?;
        match array_elem(&info)? {
            ElemType::Number(stored) => {
                self.expect_rows(node, &info.dims)?;
                Ok(ColumnData::Numeric { dtype: stored.dtype, bytes: values::to_little(node.bytes()?, stored).into() })
            }
            ElemType::Text(_) => {
                self.expect_rows(node, &info.dims)?;
                Ok(ColumnData::Strings(node.strings()?.map_err(Fault::Unsupported)?))
            }
            other => Err(Fault::Unsupported(format!("holds {}", other.describe()))),
        }
    }

    fn group(&mut self, node: &dyn Node) -> Result<Values, Fault> {
        match group_encoding(node)? {
            GroupKind::Categorical => {
                let codes = node.required("codes")?;
                let categories = read_categories(node.required("categories")?.as_ref())?;
                let ordered = match node.attr("ordered")? {
                    Some(value) => value.integer() == Some(1),
                    None => false, // R leaves it out
                };
                let info = codes.info()?;
                let ElemType::Number(stored) = array_elem(&info)? else {
                    return Err(Fault::Unsupported("has codes that are not numbers".to_owned()));
                };
                self.expect_rows(codes.as_ref(), &info.dims)?;
                let codes = self.codes(&codes.bytes()?, stored, categories.len())?;
                Ok((ColumnData::Categorical { codes, categories, ordered }, None))
            }
            GroupKind::Masked => {
                let inner = node.required("values")?;
                let info = inner.info()?;
                self.expect_rows(inner.as_ref(), &info.dims)?;
                match array_elem(&info)? {
                    ElemType::Number(stored) => self.masked_numbers(node, inner.as_ref(), stored),
                    ElemType::Text(_) => {
                        let (strings, present) = masked_text(node)?;
                        Ok((ColumnData::Strings(strings), Some(present)))
                    }
                    other => Err(Fault::Unsupported(format!("holds {}", other.describe()))),
                }
            }
        }
    }

    fn masked_numbers(&self, node: &dyn Node, inner: &dyn Node, stored: Stored) -> Result<Values, Fault> {
        let missing = read_mask(node.required("mask")?.as_ref(), self.n_rows)?;
        let mut bytes = values::to_little(inner.bytes()?, stored);
        let nothing: &[u8] = match stored.dtype {
            DType::F16 => &0x7e00_u16.to_le_bytes(),
            DType::F32 => &f32::NAN.to_le_bytes(),
            DType::F64 => &f64::NAN.to_le_bytes(),
            _ => &[0; 8],
        };
        let size = stored.dtype.size_bytes();
        for (value, _) in bytes.chunks_exact_mut(size).zip(&missing).filter(|(_, m)| **m != 0) {
            value.copy_from_slice(nothing.get(..size).unwrap_or_default());
        }
        let present = missing.iter().map(|&m| u8::from(m == 0)).collect();
        Ok((ColumnData::Numeric { dtype: stored.dtype, bytes: bytes.into() }, Some(present)))
    }

    /// A categorical of anndata 0.7.
    fn linked(&mut self, node: &dyn Node, labels: &dyn Node) -> Result<Values, Fault> {
        let info = node.info()?;
        self.expect_rows(node, &info.dims)?;
        match array_elem(&info)? {
            ElemType::Number(stored) if is_integer(stored) => {
                let categories = read_categories(labels)?;
                let ordered = labels.attr("ordered")?.is_some_and(|value| value.integer() == Some(1));
                let codes = self.codes(&node.bytes()?, stored, categories.len())?;
                Ok((ColumnData::Categorical { codes, categories, ordered }, None))
            }
            _ => Ok((self.array(node)?, None)),
        }
    }

    /// A field of records. Labels in `uns` count only if every code has one: `obs` and `var` may share a column name.
    fn field(
        &mut self,
        frame: &Frame,
        field: &Field,
        stride: usize,
        labels: Option<&dyn Node>,
    ) -> Result<ColumnData, Fault> {
        match &field.elem {
            _ if !field.dims.is_empty() => Err(Fault::Unsupported("holds arrays".to_owned())),
            ElemType::Text(text) => {
                let texts = frame.node().texts(frame.record_bytes()?, stride, field.offset, *text)?;
                Ok(ColumnData::Strings(texts.map_err(Fault::Unsupported)?))
            }
            ElemType::Number(stored) => {
                let bytes = frame.field_bytes(field, stride, stored.dtype.size_bytes())?;
                if let Some(labels) = labels.filter(|_| is_integer(*stored)) {
                    let categories = read_categories(labels)?;
                    let n = i64::try_from(categories.len()).unwrap_or(i64::MAX);
                    let fits = values::integers(&bytes, *stored)
                        .is_some_and(|mut codes| codes.all(|c| c.is_some_and(|c| c < n)));
                    if fits {
                        let codes = self.codes(&bytes, *stored, categories.len())?;
                        return Ok(ColumnData::Categorical { codes, categories, ordered: false });
                    }
                    let path = labels.path();
                    self.warnings.push(format!("{path} does not fit obs/{}, which is taken as numbers", self.name));
                }
                Ok(ColumnData::Numeric { dtype: stored.dtype, bytes: values::to_little(bytes, *stored).into() })
            }
            other => Err(Fault::Unsupported(format!("holds {}", other.describe()))),
        }
    }

    /// Checked codes in the smallest type that holds them.
    fn codes(&mut self, bytes: &[u8], stored: Stored, n_categories: usize) -> Result<Codes, Fault> {
        let n = i32::try_from(n_categories).map_err(|_| Fault::Unsupported(format!("{n_categories} categories")))?;
        let Some(codes) = values::integers(bytes, stored) else {
            return Err(Fault::Unsupported(format!("has codes of type {}", stored.dtype)));
        };
        let all_ones = match stored.dtype {
            DType::U8 => Some(i64::from(u8::MAX)),
            DType::U16 => Some(i64::from(u16::MAX)),
            DType::U32 => Some(i64::from(u32::MAX)),
            _ => None,
        };
        let mut wrapped = 0_u64;
        let mut bad = None;
        let mut checked = |(row, code): (usize, Option<i64>)| match code {
            Some(c) if c < 0 => -1,
            Some(c) if c < i64::from(n) => i32::try_from(c).unwrap_or(-1),
            None if bytes.get(row * 8..row * 8 + 8).is_some_and(|code| code.iter().all(|&b| b == 0xff)) => {
                wrapped += 1;
                -1
            }
            _ if code == all_ones => {
                wrapped += 1;
                -1
            }
            _ => {
                bad = bad.or(Some((row, code.unwrap_or(i64::MAX))));
                -1
            }
        };
        let codes = codes.enumerate();
        // Every value is -1 or below `n`, which chose the type.
        let values = if n <= i32::from(i8::MAX) {
            CodeValues::I8(codes.map(|c| i8::try_from(checked(c)).unwrap_or(-1)).collect())
        } else if n <= i32::from(i16::MAX) {
            CodeValues::I16(codes.map(|c| i16::try_from(checked(c)).unwrap_or(-1)).collect())
        } else {
            CodeValues::I32(codes.map(checked).collect())
        };
        if let Some((row, code)) = bad {
            let reason = format!("code {code} but {n} categories, first at row {row}");
            return Err(self.node.refused(&reason, "write the column again").into());
        }
        if wrapped > 0 {
            self.warnings.push(format!("{}: {wrapped} codes of all ones are taken as missing", self.node.path()));
        }
        Ok(Codes::new(values, n_categories))
    }
}

fn read_categories(labels: &dyn Node) -> Result<Categories, Fault> {
    if labels.is_group() {
        return Ok(Categories::Text(masked_text(labels)?.0));
    }
    let info = labels.info()?;
    if info.len_1d().is_none() {
        return Err(Fault::Unsupported("has a table of categories of a strange extent".to_owned()));
    }
    match info.elem {
        ElemType::Text(_) => Ok(Categories::Text(labels.strings()?.map_err(Fault::Unsupported)?)),
        ElemType::Number(stored) => {
            Ok(Categories::Numeric { dtype: stored.dtype, bytes: values::to_little(labels.bytes()?, stored).into() })
        }
        other => Err(Fault::Unsupported(format!("has categories of {}", other.describe()))),
    }
}
