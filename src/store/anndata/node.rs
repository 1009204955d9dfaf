//! What the AnnData logic needs from a container: a tree of groups and arrays with attributes.
//!
//! Everything that AnnData defines (encodings, data frames, sparse matrices, categoricals) is written once over [`Node`];
//! a container only says how its groups are listed, where the bytes of its arrays lie and how its text is stored. Names
//! that come from attributes are looked up among the children of a group and never joined to a path, so that no name
//! leads out of the group it was given for.

use std::cell::Cell;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::raw_array::RawArray;
use crate::dtype::Stored;
use crate::store::cache::{SourceCache, content_stamp};
use crate::store::chunk_map::ChunkMap;
use crate::store::column::Strings;
use crate::store::error::OpenError;
use crate::store::error::ReadError;
use crate::store::file::SourceFile;

/// Most dimensions of an array.
pub const MAX_RANK: usize = 4;
/// Longest dimension of an array.
pub const MAX_DIM: u64 = 1 << 40;
/// Most values of an array.
pub const MAX_VALUES: u64 = 1 << 48;
/// Most bytes of an attribute.
pub const MAX_ATTR_BYTES: u64 = 64 << 20;
/// Longest text, in bytes.
pub const MAX_TEXT_BYTES: usize = 1 << 20;
/// Largest decoded chunk, in bytes.
pub const MAX_CHUNK_BYTES: u64 = 1 << 30;

/// Value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Attr {
    /// One or more texts.
    Text(Vec<String>),
    /// One or more integers or booleans.
    Integers(Vec<i64>),
    /// A reference to another object, see [`Node::referenced`].
    Reference,
    /// No value, or a list without entries.
    Empty,
    /// Anything else.
    Other,
}

impl Attr {
    /// The text of a scalar, or of a list of one.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(texts) => match texts.as_slice() {
                [one] => Some(one),
                _ => None,
            },
            _ => None,
        }
    }

    /// The number of a scalar, or of a list of one.
    #[must_use]
    pub fn integer(&self) -> Option<i64> {
        match self {
            Self::Integers(values) => match values.as_slice() {
                [one] => Some(*one),
                _ => None,
            },
            _ => None,
        }
    }
}

/// How the text elements of an array are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextType {
    /// In place, `len` bytes, filled up with NULs or spaces.
    Fixed {
        /// Bytes of an element.
        len: usize,
        /// True if filled up with spaces.
        space_padded: bool,
    },
    /// In place, `len` code points of four bytes each, filled up with zeros.
    Utf32 {
        /// Code points of an element.
        len: usize,
        /// Their byte order.
        big_endian: bool,
    },
    /// Elsewhere, as the container does it.
    Variable,
}

/// What the elements of an array are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElemType {
    /// Numbers and booleans.
    Number(Stored),
    /// Text.
    Text(TextType),
    /// Records, with these fields.
    Record(Vec<Field>),
    /// What is not served, in words.
    Other(String),
}

/// A field of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// First byte within the record.
    pub offset: usize,
    /// Its elements.
    pub elem: ElemType,
    /// Its own extent; empty for one element.
    pub dims: Vec<u64>,
}

/// What an array looks like, known without reading it.
#[derive(Debug, Clone)]
pub struct ArrayInfo {
    /// True if the array holds no value at all (the `null` encoding).
    pub is_null: bool,
    /// Dimensions; none for a scalar.
    pub dims: Vec<u64>,
    /// The elements.
    pub elem: ElemType,
    /// Size of an element in bytes.
    pub elem_size: usize,
}

impl ArrayInfo {
    /// Length of an array of rank 1; a scalar counts as one element.
    #[must_use]
    pub fn len_1d(&self) -> Option<u64> {
        match self.dims.as_slice() {
            _ if self.is_null => None,
            [] => Some(1),
            [n] => Some(*n),
            _ => None,
        }
    }
}

/// How an array is stored, for `inspect`.
#[derive(Debug, Clone, Default)]
pub struct StorageInfo {
    /// Chunk extent in elements; empty if contiguous or compact.
    pub chunk: Vec<u64>,
    /// Extent of a shard in elements; empty if chunks do not lie in shards.
    pub shard: Vec<u64>,
    /// Filters in encode order.
    pub filters: Vec<String>,
    /// Bytes on disk.
    pub stored_bytes: u64,
    /// Why the array cannot be read, if it cannot.
    pub refused: Option<String>,
}

/// A node, shared by what was found below it.
pub type NodeRef = Rc<dyn Node>;

/// A group or an array of a container.
pub trait Node {
    /// Path inside the container, such as `obs/cell_type`; empty for the root.
    fn path(&self) -> &str;

    /// The source and what was charged for it.
    fn source(&self) -> &Source;

    /// True for groups.
    fn is_group(&self) -> bool;

    /// Names of the children of a group, sorted.
    ///
    /// # Errors
    /// [`OpenError`] if the group is damaged.
    fn children(&self) -> Result<Vec<String>, OpenError>;

    /// The child `name` of a group; `None` if there is none, or this is an array, or `name` is a path.
    ///
    /// # Errors
    /// [`OpenError`] if the child points outside the container or is damaged.
    fn child(&self, name: &str) -> Result<Option<NodeRef>, OpenError>;

    /// The attribute `name`.
    ///
    /// # Errors
    /// [`OpenError`] if it is damaged or too large.
    fn attr(&self, name: &str) -> Result<Option<Attr>, OpenError>;

    /// What the reference in the attribute `name` points to.
    ///
    /// # Errors
    /// [`OpenError`] if it points nowhere.
    fn referenced(&self, name: &str) -> Result<Option<NodeRef>, OpenError>;

    /// What an array looks like, its limits checked.
    ///
    /// # Errors
    /// [`OpenError`] if a limit is exceeded or the node is not an array.
    fn info(&self) -> Result<ArrayInfo, OpenError>;

    /// How an array is stored.
    ///
    /// # Errors
    /// [`OpenError`] if the node is damaged.
    fn storage(&self) -> Result<StorageInfo, OpenError>;

    /// Where the bytes of an array of rank 0 to 2 lie.
    ///
    /// # Errors
    /// [`OpenError`] if they lie outside the file or are stored in a way that is not supported.
    fn raw(&self) -> Result<RawArray, OpenError>;

    /// Text elements out of `bytes` as stored, one every `stride` bytes from `offset` on. `Err(reason)` inside if some text
    /// is not UTF-8 or too long.
    ///
    /// # Errors
    /// [`OpenError`] if the container is damaged.
    fn texts(
        &self,
        bytes: &[u8],
        stride: usize,
        offset: usize,
        text: TextType,
    ) -> Result<Result<Strings, String>, OpenError>;

    /// A refusal that names this node.
    fn refused(&self, reason: &str, remedy: &str) -> OpenError {
        let element = if self.path().is_empty() { "file" } else { self.path() };
        OpenError::refused(self.source().path(), element, reason, remedy)
    }

    /// The child `name`, which must exist.
    ///
    /// # Errors
    /// As [`Node::child`], and if there is none.
    fn required(&self, name: &str) -> Result<NodeRef, OpenError> {
        match self.child(name)? {
            Some(node) => Ok(node),
            None => Err(self.refused(&format!("has no member {name}"), "write it again")),
        }
    }

    /// The text of the attribute `name`.
    ///
    /// # Errors
    /// As [`Node::attr`].
    fn attr_text(&self, name: &str) -> Result<Option<String>, OpenError> {
        Ok(self.attr(name)?.and_then(|a| a.text().map(ToOwned::to_owned)))
    }

    /// The integers of the attribute `name`.
    ///
    /// # Errors
    /// As [`Node::attr`].
    fn attr_integers(&self, name: &str) -> Result<Option<Vec<i64>>, OpenError> {
        Ok(match self.attr(name)? {
            Some(Attr::Integers(values)) => Some(values),
            _ => None,
        })
    }

    /// All bytes of an array as stored, charged to the source.
    ///
    /// # Errors
    /// [`OpenError`] if it cannot be read or is too large to be held.
    fn bytes(&self) -> Result<Vec<u8>, OpenError> {
        let raw = self.raw()?;
        raw.read_all(self.source(), self.path())
    }

    /// All text elements of an array.
    ///
    /// # Errors
    /// As [`Node::texts`]; also if the elements are not text.
    fn strings(&self) -> Result<Result<Strings, String>, OpenError> {
        let info = self.info()?;
        let ElemType::Text(text) = info.elem else { return Ok(Err("is not text".to_owned())) };
        self.texts(&self.bytes()?, info.elem_size, 0, text)
    }

    /// The chunk map of a numeric array.
    ///
    /// # Errors
    /// [`OpenError`] if the elements are not numbers, or as [`Node::raw`].
    fn chunk_map(&self) -> Result<ChunkMap, OpenError> {
        match self.info()?.elem {
            ElemType::Number(stored) => Ok(self.raw()?.into_map(stored)),
            other => Err(self.refused(&format!("holds {}, not numbers", other.describe()), "convert it to float32")),
        }
    }
}

impl ElemType {
    /// The type in words.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Number(stored) => stored.dtype.numpy_name().to_owned(),
            Self::Text(_) => "text".to_owned(),
            Self::Record(_) => "records".to_owned(),
            Self::Other(what) => what.clone(),
        }
    }
}

/// The files of a source while it is opened.
pub trait SourceFiles {
    /// Fills `buf` from the file `file` at `offset`.
    ///
    /// # Errors
    /// [`ReadError`].
    fn read_at(&self, file: u32, offset: u64, buf: &mut [u8]) -> Result<(), ReadError>;

    /// Bytes of all files of the source, whether they were looked at or not; may take a while.
    fn total_bytes(&self) -> u64;

    /// Hash of what identifies the content of `files`, which are numbered as for reading. A source of one file need not look at the numbers.
    ///
    /// # Errors
    /// [`ReadError::Stale`] if one is not what it was when the source was opened.
    fn state(&self, files: &[Range<u32>]) -> Result<[u8; 32], ReadError>;
}

impl SourceFiles for SourceFile {
    fn total_bytes(&self) -> u64 {
        self.stamp().size
    }

    fn state(&self, _: &[Range<u32>]) -> Result<[u8; 32], ReadError> {
        self.check_unchanged()?;
        content_stamp(self).ok_or_else(|| ReadError::Stale { file: self.path().to_owned() })
    }

    fn read_at(&self, _: u32, offset: u64, buf: &mut [u8]) -> Result<(), ReadError> {
        Self::read_at(self, offset, buf)
    }
}

/// The files of a container, and how much memory its content was allowed to take so far.
///
/// A file of a few kilobytes can declare arrays of terabytes. What becomes resident is therefore limited by the size of
/// the files: 64 times (names and labels compress, but not more than that), and at least 48 MiB.
pub struct Source {
    path: PathBuf,
    files: Rc<dyn SourceFiles>,
    seen_bytes: Cell<u64>,
    saw_all: Cell<bool>,
    charged_bytes: Cell<u64>,
    cache: SourceCache,
}

impl Source {
    /// A source at `path` that nothing was charged to.
    #[must_use]
    pub fn new(path: &Path, files: Rc<dyn SourceFiles>, cache: SourceCache) -> Self {
        let path = path.to_owned();
        Self { path, files, seen_bytes: Cell::new(0), saw_all: Cell::new(false), charged_bytes: Cell::new(0), cache }
    }

    /// Notes that files of `bytes` bytes belong to the source.
    pub fn saw(&self, bytes: u64) {
        if self.saw_all.get() {
            return;
        }
        self.seen_bytes.set(self.seen_bytes.get().saturating_add(bytes));
    }

    /// Bytes of the files that belong to the source, as far as they were looked at.
    #[must_use]
    pub fn seen_bytes(&self) -> u64 {
        self.seen_bytes.get()
    }

    /// Fills `buf` from the file `file` at `offset`.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn read_at(&self, file: u32, offset: u64, buf: &mut [u8]) -> Result<(), ReadError> {
        self.files.read_at(file, offset, buf)
    }

    /// See [`SourceFiles::state`].
    ///
    /// # Errors
    /// As there.
    pub fn state(&self, files: &[Range<u32>]) -> Result<[u8; 32], ReadError> {
        self.files.state(files)
    }

    /// What is kept of the source in the cache folder.
    #[must_use]
    pub fn cache(&self) -> &SourceCache {
        &self.cache
    }

    /// Path of the source.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Most bytes that may be charged, as far as the files that were looked at tell.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.seen_bytes().saturating_mul(64).max(48 << 20)
    }

    /// True if the files of the source justify that its content takes `bytes`. All of them count, but they are only asked for where those
    /// that were looked at do not do.
    #[must_use]
    pub fn allows(&self, bytes: u64) -> bool {
        if bytes > self.limit_bytes() && !self.saw_all.replace(true) {
            self.seen_bytes.set(self.seen_bytes().max(self.files.total_bytes()));
        }
        bytes <= self.limit_bytes()
    }

    /// Charges `bytes` before they are allocated.
    ///
    /// # Errors
    /// [`OpenError::Refused`] if the limit would be exceeded.
    pub fn charge(&self, element: &str, bytes: u64) -> Result<(), OpenError> {
        let sum = self.charged_bytes.get().saturating_add(bytes);
        if !self.allows(sum) {
            let reason = format!("would take {bytes} bytes of memory, from a source of {}", self.seen_bytes());
            return Err(OpenError::refused(self.path(), element, reason, "leave it out"));
        }
        self.charged_bytes.set(sum);
        Ok(())
    }
}
