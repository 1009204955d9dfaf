//! Groups and datasets of an HDF5 file as [`Node`]s.
//!
//! Every step down looks at the link first. Hard links are opened; soft links are followed here, name by name, at most
//! eight deep; links to other files are refused before the library could follow them. Object references (anndata 0.7 points
//! to categories with them) stay inside the file by nature.

use std::cell::RefCell;
use std::rc::Rc;

use super::heap::{Heap, REFERENCE_BYTES};
use super::library::{self as lib, Id, LibraryError, Link, ObjectKind, Shape, class};
use super::superblock::Superblock;
use super::types::Described;
use super::{layout, types};
use crate::dtype::{DType, Stored};
use crate::num::{to_u64, to_usize};
use crate::store::anndata::node::{
    ArrayInfo, Attr, ElemType, MAX_ATTR_BYTES, MAX_DIM, MAX_RANK, MAX_VALUES, Node, NodeRef, Source, StorageInfo,
    TextType,
};
use crate::store::anndata::raw_array::RawArray;
use crate::store::anndata::texts::{self, unpadded};
use crate::store::anndata::values;
use crate::store::cache::{CacheConfig, SourceCache};
use crate::store::column::Strings;
use crate::store::error::OpenError;
use crate::store::file::SourceFile;

/// Most soft links on one way.
const MAX_SOFT_LINKS: u32 = 8;

/// An HDF5 file, open in the library. Everything is closed when it is dropped.
pub struct H5File {
    handle: Id, // first, since it reads through the descriptor of `file`
    file: Rc<SourceFile>,
    source: Source,
    heap: RefCell<Heap>,
    sizes_are_8: bool,
}

impl H5File {
    /// Opens `file`, whose superblock was read before.
    ///
    /// # Errors
    /// [`OpenError::Refused`] if the library cannot open it.
    pub fn open(file: Rc<SourceFile>, cache: &CacheConfig, superblock: &Superblock) -> Result<Rc<Self>, OpenError> {
        let source = Source::new(file.path(), Rc::clone(&file) as Rc<_>, SourceCache::new(cache, &file));
        source.saw(file.stamp().size);
        let handle = lib::open_file(&file).map_err(|LibraryError(why)| {
            OpenError::refused(
                source.path(),
                "file",
                format!("HDF5 cannot open it ({why})"),
                "copy or download it again",
            )
        })?;
        let heap = RefCell::new(Heap::new(superblock.base));
        Ok(Rc::new(Self { handle, file, source, heap, sizes_are_8: superblock.sizes == (8, 8) }))
    }

    /// What went wrong with the cache folder.
    pub fn trouble(&self) -> Option<String> {
        self.source.cache().trouble()
    }

    /// Size of the file in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.file.stamp().size
    }

    /// The root group.
    ///
    /// # Errors
    /// [`OpenError::Refused`] if the file is damaged.
    pub fn root(self: &Rc<Self>) -> Result<H5Node, OpenError> {
        let id = lib::open_root(&self.handle).map_err(|LibraryError(why)| {
            OpenError::refused(self.source.path(), "file", format!("no root group ({why})"), "copy it again")
        })?;
        Ok(H5Node { file: Rc::clone(self), id, kind: ObjectKind::Group, path: String::new() })
    }
}

/// A group or a dataset.
pub struct H5Node {
    file: Rc<H5File>,
    id: Id,
    kind: ObjectKind,
    path: String,
}

impl H5Node {
    /// Size of the file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.file.size_bytes()
    }

    /// A refusal for what the library could not read here.
    pub fn fault(&self, LibraryError(why): &LibraryError) -> OpenError {
        self.refused(&format!("HDF5 cannot read it ({why})"), "the file is damaged: copy or download it again")
    }

    fn wrap(&self, id: Id, path: String) -> Self {
        let kind = lib::object_kind(&id);
        H5Node { file: Rc::clone(&self.file), id, kind, path }
    }

    fn child_path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}/{name}", self.path) }
    }

    /// The child `name`. Every soft link on the way is taken from `links`, so that links to links end.
    fn descend(&self, name: &str, links: &mut u32) -> Result<Option<H5Node>, OpenError> {
        if self.kind != ObjectKind::Group || name.is_empty() || name == "." || name.contains(['/', '\0']) {
            return Ok(None);
        }
        let path = self.child_path(name);
        let refused = |reason: &str, remedy: &str| OpenError::refused(self.file.source.path(), &*path, reason, remedy);
        match lib::link(&self.id, name).map_err(|e| self.fault(&e))? {
            None => Ok(None),
            Some(Link::Hard) => {
                let id = lib::open_object(&self.id, name).map_err(|LibraryError(why)| {
                    refused(&format!("HDF5 cannot open it ({why})"), "the file is damaged: copy or download it again")
                })?;
                Ok(Some(self.wrap(id, path)))
            }
            Some(Link::Soft(_)) if *links == 0 => Err(refused("is a link to a link to a link ...", "write it again")),
            Some(Link::Soft(target)) => {
                *links -= 1;
                match self.follow(&target, links)? {
                    Some(found) => Ok(Some(H5Node { path, ..found })),
                    None => Err(refused(&format!("is a link to {target}, which does not exist"), "write it again")),
                }
            }
            Some(Link::External) => {
                Err(refused("points outside the file (external link)", "copy the data into one file"))
            }
        }
    }

    /// What the path of a soft link in this group leads to.
    fn follow(&self, target: &str, links: &mut u32) -> Result<Option<H5Node>, OpenError> {
        let mut at = if target.starts_with('/') {
            self.file.root()?
        } else {
            let id = lib::reopen(&self.id).map_err(|e| self.fault(&e))?;
            self.wrap(id, self.path.clone())
        };
        for name in target.split('/').filter(|part| !part.is_empty() && *part != ".") {
            match at.descend(name, links)? {
                Some(next) => at = next,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    fn read_attr(&self, attribute: &Id, name: &str) -> Result<Attr, OpenError> {
        let fault = |e: LibraryError| self.fault(&e);
        let n = match lib::attribute_shape(attribute).map_err(fault)? {
            Shape::Null => return Ok(Attr::Empty),
            Shape::Dims(dims) => dims.iter().fold(1_u64, |n, &d| n.saturating_mul(d)),
        };
        if n == 0 {
            return Ok(Attr::Empty);
        }
        let datatype = lib::attribute_type(attribute).map_err(fault)?;
        let size = lib::size(&datatype).max(REFERENCE_BYTES);
        let limit = n.saturating_mul(to_u64(size));
        if limit > MAX_ATTR_BYTES {
            return Err(self.refused(&format!("attribute {name} of {limit} bytes"), "remove it"));
        }
        let len_bytes = to_usize(n) * lib::size(&datatype);
        if lib::type_class(&datatype) == class::REFERENCE {
            let usable = n == 1 && lib::is_object_reference(&datatype);
            return Ok(if usable { Attr::Reference } else { Attr::Other });
        }
        match types::describe(&datatype).map_err(fault)?.elem {
            ElemType::Text(TextType::Variable) => {
                let raw_type = lib::text_reference_type().map_err(fault)?;
                let len_bytes = to_usize(n) * REFERENCE_BYTES;
                let references = lib::read_attribute(attribute, &raw_type, len_bytes).map_err(fault)?;
                match self.heap_texts(&references, REFERENCE_BYTES, 0)? {
                    Ok(texts) => Ok(Attr::Text(texts.iter().map(ToOwned::to_owned).collect())),
                    Err(reason) => Err(self.refused(&format!("attribute {name}: {reason}"), "write it again")),
                }
            }
            ElemType::Text(TextType::Fixed { len, space_padded }) => {
                let bytes = lib::read_attribute(attribute, &datatype, len_bytes).map_err(fault)?;
                Ok(text_attr(bytes.chunks(len.max(1)).map(|b| unpadded(b, space_padded))))
            }
            ElemType::Number(stored) => {
                let bytes = lib::read_attribute(attribute, &datatype, len_bytes).map_err(fault)?;
                Ok(number_attr(&bytes, stored))
            }
            ElemType::Text(TextType::Utf32 { .. }) | ElemType::Record(_) | ElemType::Other(_) => Ok(Attr::Other),
        }
    }

    /// Elements in the global heap.
    fn heap_texts(&self, bytes: &[u8], stride: usize, offset: usize) -> Result<Result<Strings, String>, OpenError> {
        if !self.file.sizes_are_8 {
            return Ok(Err("text of a file with addresses of an unusual size".to_owned()));
        }
        let n = bytes.len() / stride.max(1);
        self.file.source.charge(&self.path, to_u64(n).saturating_mul(8))?;
        let mut strings = Strings::with_capacity(n);
        let mut heap = self.file.heap.borrow_mut();
        for (i, element) in bytes.chunks_exact(stride.max(1)).enumerate() {
            let reference = element.get(offset..offset + REFERENCE_BYTES).unwrap_or_default();
            let source = &self.file.source;
            let charged = heap.text(&self.file.file, reference, |text| {
                let text = unpadded(text, false);
                let Ok(text) = std::str::from_utf8(text) else { return Ok(Err(format!("text {i} is not UTF-8"))) };
                Ok(match source.charge(&self.path, to_u64(text.len())) {
                    Ok(()) => {
                        strings.push(text);
                        Ok(())
                    }
                    Err(e) => Err(e.to_string()),
                })
            });
            match charged {
                Ok(Ok(())) => {}
                Ok(Err(reason)) => return Ok(Err(reason)),
                Err(reason) => {
                    return Err(self.refused(&reason, "the file is damaged: copy or download it again"));
                }
            }
        }
        Ok(Ok(strings))
    }
}

impl Node for H5Node {
    fn path(&self) -> &str {
        &self.path
    }

    fn source(&self) -> &Source {
        &self.file.source
    }

    fn is_group(&self) -> bool {
        self.kind == ObjectKind::Group
    }

    fn children(&self) -> Result<Vec<String>, OpenError> {
        lib::children(&self.id).map_err(|e| self.fault(&e))
    }

    fn child(&self, name: &str) -> Result<Option<NodeRef>, OpenError> {
        let mut links = MAX_SOFT_LINKS;
        Ok(self.descend(name, &mut links)?.map(|node| Rc::new(node) as NodeRef))
    }

    fn attr(&self, name: &str) -> Result<Option<Attr>, OpenError> {
        match lib::attribute(&self.id, name).map_err(|e| self.fault(&e))? {
            None => Ok(None),
            Some(attribute) => self.read_attr(&attribute, name).map(Some),
        }
    }

    fn referenced(&self, name: &str) -> Result<Option<NodeRef>, OpenError> {
        let fault = |e: LibraryError| self.fault(&e);
        let Some(attribute) = lib::attribute(&self.id, name).map_err(fault)? else { return Ok(None) };
        if self.read_attr(&attribute, name)? != Attr::Reference {
            return Ok(None);
        }
        let datatype = lib::attribute_type(&attribute).map_err(fault)?;
        let bytes = lib::read_attribute(&attribute, &datatype, 8).map_err(fault)?;
        let Ok(reference) = <[u8; 8]>::try_from(bytes.as_slice()) else { return Ok(None) };
        let id = lib::dereference(&self.file.handle, reference).map_err(fault)?;
        Ok(Some(Rc::new(self.wrap(id, format!("{}@{name}", self.path)))))
    }

    fn info(&self) -> Result<ArrayInfo, OpenError> {
        if self.kind != ObjectKind::Dataset {
            return Err(self.refused("is not a dataset", "write it again"));
        }
        let fault = |e: LibraryError| self.fault(&e);
        let datatype = lib::dataset_type(&self.id).map_err(fault)?;
        let (is_null, dims) = match lib::dataset_shape(&self.id).map_err(fault)? {
            Shape::Null => (true, Vec::new()),
            Shape::Dims(dims) => (false, dims),
        };
        let n = dims.iter().try_fold(1_u64, |n, &d| n.checked_mul(d));
        if dims.len() > MAX_RANK || dims.iter().any(|&d| d > MAX_DIM) || n.is_none_or(|n| n > MAX_VALUES) {
            return Err(self.refused(&format!("extent {dims:?} is beyond the limits"), "leave it out"));
        }
        let Described { elem, size: elem_size } = types::describe(&datatype).map_err(fault)?;
        Ok(ArrayInfo { is_null, dims, elem, elem_size })
    }

    fn storage(&self) -> Result<StorageInfo, OpenError> {
        layout::storage_info(self, &self.id, &self.info()?)
    }

    fn raw(&self) -> Result<RawArray, OpenError> {
        layout::raw_array(self, &self.id, &self.info()?)
    }

    fn texts(
        &self,
        bytes: &[u8],
        stride: usize,
        offset: usize,
        text: TextType,
    ) -> Result<Result<Strings, String>, OpenError> {
        match text {
            TextType::Variable => self.heap_texts(bytes, stride, offset),
            in_place => texts::in_place(self, bytes, stride, offset, in_place),
        }
    }
}

fn text_attr<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Attr {
    Attr::Text(texts.map(|t| String::from_utf8_lossy(t).into_owned()).collect())
}

fn number_attr(bytes: &[u8], stored: Stored) -> Attr {
    if stored.dtype.is_float() {
        return Attr::Other;
    }
    let Some(reader) = values::integers(bytes, stored) else { return Attr::Other };
    match (stored.dtype, reader.collect::<Option<Vec<i64>>>()) {
        (DType::Bool, Some(values)) => Attr::Integers(values.iter().map(|&v| i64::from(v != 0)).collect()),
        (_, Some(values)) => Attr::Integers(values),
        (_, None) => Attr::Other,
    }
}
