//! Resident columns of `obs`, and string arenas.

use serde::{Deserialize, Serialize};

use super::array::Array;
use super::cache::{Cacheable, Sections};
use crate::dtype::DType;
use crate::num::{to_u64, to_usize};

/// Strings in one arena: `bytes[offsets[i]..offsets[i + 1]]` is string i, valid UTF-8.
#[derive(Debug, Clone, Default)]
pub struct Strings {
    bytes: Array<u8>,
    ends: Array<u64>,
    max_len: usize,
}

impl Strings {
    /// An empty list with room for `n` strings.
    #[must_use]
    pub fn with_capacity(n: usize) -> Self {
        Self { bytes: Array::default(), ends: Vec::with_capacity(n).into(), max_len: 0 }
    }

    /// Appends a string.
    pub fn push(&mut self, text: &str) {
        let bytes = self.bytes.to_mut();
        bytes.extend_from_slice(text.as_bytes());
        self.ends.to_mut().push(to_u64(bytes.len()));
        self.max_len = self.max_len.max(text.len());
    }

    /// Number of strings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if there is no string.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// String `i`, as UTF-8 bytes.
    ///
    /// # Panics
    /// If `i` is not below [`Self::len`].
    #[must_use]
    pub fn bytes(&self, i: usize) -> &[u8] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        // Only ends out of an entry that we did not write could be out of order.
        self.bytes.get(to_usize(start)..to_usize(self.ends[i])).unwrap_or_default()
    }

    /// String `i`.
    #[must_use]
    pub fn get(&self, i: usize) -> &str {
        // Only `push` adds bytes, so the fallback is never taken.
        std::str::from_utf8(self.bytes(i)).unwrap_or_default()
    }

    /// All strings in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).map(|i| self.get(i))
    }

    /// BLAKE3 of the strings and where they end: lists with equal digests are equal.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut hash = blake3::Hasher::new();
        hash.update(self.ends.as_bytes()).update(&self.bytes);
        *hash.finalize().as_bytes()
    }

    /// Byte length of the longest string.
    #[must_use]
    pub fn max_len(&self) -> usize {
        self.max_len
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.bytes.heap_bytes() + self.ends.heap_bytes()
    }
}

impl PartialEq for Strings {
    fn eq(&self, other: &Self) -> bool {
        self.ends == other.ends && self.bytes == other.bytes
    }
}

impl<T: AsRef<str>> FromIterator<T> for Strings {
    fn from_iter<I: IntoIterator<Item = T>>(iter: I) -> Self {
        let mut strings = Self::default();
        for text in iter {
            strings.push(text.as_ref());
        }
        strings
    }
}

/// One column of `obs`, one value per row.
#[derive(Debug, Clone)]
pub struct Column {
    /// Name as in the source, without `obs.`.
    pub name: String,
    /// The values.
    pub data: ColumnData,
    /// For nullable columns: one byte per row, 1 where there is a value, 0 where it is missing.
    pub present: Option<Array<u8>>,
}

/// Values of a column.
#[derive(Debug, Clone)]
pub enum ColumnData {
    /// Numbers and booleans: little-endian values, `n_rows * dtype.size_bytes()` bytes. Missing values of nullable columns are 0
    /// (NaN for floats).
    Numeric {
        /// Type of the values.
        dtype: DType,
        /// The values.
        bytes: Array<u8>,
    },
    /// Codes into a table of categories; -1 = missing.
    Categorical {
        /// One code per row.
        codes: Codes,
        /// What the codes mean.
        categories: Categories,
        /// True if the categories have an order.
        ordered: bool,
    },
    /// One string per row; a missing one is empty.
    Strings(Strings),
}

/// Category codes in the smallest type that holds them, and how often each occurs.
#[derive(Debug, Clone)]
pub struct Codes {
    values: CodeValues,
    counts: Array<u64>,
}

/// The codes of all rows.
#[derive(Debug, Clone)]
pub enum CodeValues {
    /// Up to 127 categories.
    I8(Array<i8>),
    /// Up to 32,767 categories.
    I16(Array<i16>),
    /// More.
    I32(Array<i32>),
}

impl CodeValues {
    fn get(&self, row: usize) -> i32 {
        match self {
            Self::I8(v) => i32::from(v[row]),
            Self::I16(v) => i32::from(v[row]),
            Self::I32(v) => v[row],
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::I8(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::I32(v) => v.len(),
        }
    }
}

impl Codes {
    /// Codes below `n_categories`; every other one is missing.
    #[must_use]
    pub fn new(values: CodeValues, n_categories: usize) -> Self {
        let mut counts = vec![0_u64; n_categories];
        for row in 0..values.len() {
            if let Some(count) = usize::try_from(values.get(row)).ok().and_then(|code| counts.get_mut(code)) {
                *count += 1;
            }
        }
        Self { values, counts: counts.into() }
    }

    /// Code of `row`; -1 = missing.
    #[must_use]
    pub fn get(&self, row: usize) -> i32 {
        self.values.get(row)
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// True if there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rows of each category.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Rows without a category.
    #[must_use]
    pub fn n_missing(&self) -> u64 {
        to_u64(self.len()).saturating_sub(self.counts.iter().sum())
    }

    fn resident_bytes(&self) -> u64 {
        let values = match &self.values {
            CodeValues::I8(v) => v.heap_bytes(),
            CodeValues::I16(v) => v.heap_bytes(),
            CodeValues::I32(v) => v.heap_bytes(),
        };
        values + self.counts.heap_bytes()
    }
}

/// The table of a categorical column.
#[derive(Debug, Clone, PartialEq)]
pub enum Categories {
    /// Text labels.
    Text(Strings),
    /// Numbers or booleans, little-endian.
    Numeric {
        /// Type of the values.
        dtype: DType,
        /// The values.
        bytes: Array<u8>,
    },
}

impl Categories {
    /// Number of categories.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Text(s) => s.len(),
            Self::Numeric { dtype, bytes } => bytes.len() / dtype.size_bytes(),
        }
    }

    /// True if there is no category.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Column {
    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.data {
            ColumnData::Numeric { dtype, bytes } => bytes.len() / dtype.size_bytes(),
            ColumnData::Categorical { codes, .. } => codes.len(),
            ColumnData::Strings(s) => s.len(),
        }
    }

    /// True if there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let values = match &self.data {
            ColumnData::Numeric { bytes, .. } => bytes.heap_bytes(),
            ColumnData::Categorical { codes, categories, .. } => {
                let table = match categories {
                    Categories::Text(s) => s.resident_bytes(),
                    Categories::Numeric { bytes, .. } => bytes.heap_bytes(),
                };
                codes.resident_bytes() + table
            }
            ColumnData::Strings(s) => s.resident_bytes(),
        };
        values + self.present.as_ref().map_or(0, Array::heap_bytes)
    }
}

impl Cacheable for Strings {
    type Facts = (u64, usize);

    fn to_entry<'a>(&'a self, sections: &mut Vec<&'a [u8]>) -> Self::Facts {
        sections.extend([self.bytes.as_bytes(), self.ends.as_bytes()]);
        (to_u64(self.len()), self.max_len)
    }

    fn from_entry((len, max_len): Self::Facts, sections: &mut Sections<'_>) -> Option<Self> {
        let (bytes, ends) = (sections.any()?, sections.array::<u64>(to_usize(len))?);
        let found = Self { bytes, ends, max_len };
        (found.ends.last().copied().unwrap_or(0) == to_u64(found.bytes.len())).then_some(found)
    }
}

/// A [`Column`] without its arrays.
#[doc(hidden)]
#[derive(Debug, Serialize, Deserialize)]
pub struct ColumnFacts {
    name: String,
    n_rows: usize,
    data: DataFacts,
    nullable: bool,
}

#[derive(Debug, Serialize, Deserialize)]
enum DataFacts {
    Numeric(String),
    Codes { item_bytes: u8, ordered: bool, categories: CategoriesFacts },
    Strings((u64, usize)),
}

#[derive(Debug, Serialize, Deserialize)]
enum CategoriesFacts {
    Text((u64, usize)),
    Numeric { dtype: String, len: usize },
}

impl Cacheable for Column {
    type Facts = ColumnFacts;

    fn to_entry<'a>(&'a self, sections: &mut Vec<&'a [u8]>) -> ColumnFacts {
        let data = match &self.data {
            ColumnData::Numeric { dtype, bytes } => {
                sections.push(bytes);
                DataFacts::Numeric(dtype.numpy_name().to_owned())
            }
            ColumnData::Strings(strings) => DataFacts::Strings(strings.to_entry(sections)),
            ColumnData::Categorical { codes, categories, ordered } => {
                let (item_bytes, values) = match &codes.values {
                    CodeValues::I8(v) => (1, v.as_bytes()),
                    CodeValues::I16(v) => (2, v.as_bytes()),
                    CodeValues::I32(v) => (4, v.as_bytes()),
                };
                sections.extend([values, codes.counts.as_bytes()]);
                let categories = match categories {
                    Categories::Text(strings) => CategoriesFacts::Text(strings.to_entry(sections)),
                    Categories::Numeric { dtype, bytes } => {
                        sections.push(bytes);
                        CategoriesFacts::Numeric { dtype: dtype.numpy_name().to_owned(), len: categories.len() }
                    }
                };
                DataFacts::Codes { item_bytes, ordered: *ordered, categories }
            }
        };
        sections.extend(self.present.as_deref());
        ColumnFacts { name: self.name.clone(), n_rows: self.len(), data, nullable: self.present.is_some() }
    }

    fn from_entry(facts: ColumnFacts, sections: &mut Sections<'_>) -> Option<Self> {
        let n_rows = facts.n_rows;
        let numbers = |sections: &mut Sections<'_>, dtype: &str, len: usize| {
            let dtype = DType::from_numpy_name(dtype)?;
            Some((dtype, sections.array(len.checked_mul(dtype.size_bytes())?)?))
        };
        let data = match facts.data {
            DataFacts::Numeric(dtype) => {
                let (dtype, bytes) = numbers(sections, &dtype, n_rows)?;
                ColumnData::Numeric { dtype, bytes }
            }
            DataFacts::Strings(strings) => ColumnData::Strings(Strings::from_entry(strings, sections)?),
            DataFacts::Codes { item_bytes, ordered, categories } => {
                let values = match item_bytes {
                    1 => CodeValues::I8(sections.array(n_rows)?),
                    2 => CodeValues::I16(sections.array(n_rows)?),
                    4 => CodeValues::I32(sections.array(n_rows)?),
                    _ => return None,
                };
                let counts = sections.any()?;
                let categories = match categories {
                    CategoriesFacts::Text(strings) => Categories::Text(Strings::from_entry(strings, sections)?),
                    CategoriesFacts::Numeric { dtype, len } => {
                        let (dtype, bytes) = numbers(sections, &dtype, len)?;
                        Categories::Numeric { dtype, bytes }
                    }
                };
                let codes = Codes { values, counts };
                ColumnData::Categorical { codes, categories, ordered }
            }
        };
        let present = if facts.nullable { Some(sections.array(n_rows)?) } else { None };
        let column = Self { name: facts.name, data, present };
        (column.len() == n_rows).then_some(column)
    }
}
