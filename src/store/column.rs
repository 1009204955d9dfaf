//! Resident columns of `obs`, and string arenas.

use crate::dtype::DType;

/// Strings in one arena: `bytes[offsets[i]..offsets[i + 1]]` is string i, valid UTF-8.
#[derive(Debug, Clone, Default)]
pub struct Strings {
    bytes: Vec<u8>,
    ends: Vec<u64>,
    max_len: usize,
}

impl Strings {
    /// An empty list with room for `n` strings.
    #[must_use]
    pub fn with_capacity(n: usize) -> Self {
        Self { bytes: Vec::new(), ends: Vec::with_capacity(n), max_len: 0 }
    }

    /// Appends a string.
    pub fn push(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
        self.ends.push(self.bytes.len() as u64);
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
        &self.bytes[crate::num::to_usize(start)..crate::num::to_usize(self.ends[i])]
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

    /// Byte length of the longest string.
    #[must_use]
    pub fn max_len(&self) -> usize {
        self.max_len
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        (self.bytes.len() + self.ends.len() * 8) as u64
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
    pub present: Option<Vec<u8>>,
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
        bytes: Vec<u8>,
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

/// Category codes in the smallest type that holds them.
#[derive(Debug, Clone)]
pub enum Codes {
    /// Up to 127 categories.
    I8(Vec<i8>),
    /// Up to 32,767 categories.
    I16(Vec<i16>),
    /// More.
    I32(Vec<i32>),
}

impl Codes {
    /// Code of `row`; -1 = missing.
    #[must_use]
    pub fn get(&self, row: usize) -> i32 {
        match self {
            Self::I8(v) => i32::from(v[row]),
            Self::I16(v) => i32::from(v[row]),
            Self::I32(v) => v[row],
        }
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::I8(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::I32(v) => v.len(),
        }
    }

    /// True if there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The table of a categorical column.
#[derive(Debug, Clone)]
pub enum Categories {
    /// Text labels.
    Text(Strings),
    /// Numbers or booleans, little-endian.
    Numeric {
        /// Type of the values.
        dtype: DType,
        /// The values.
        bytes: Vec<u8>,
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
            ColumnData::Numeric { bytes, .. } => bytes.len() as u64,
            ColumnData::Categorical { codes, categories, .. } => {
                let width = match codes {
                    Codes::I8(_) => 1,
                    Codes::I16(_) => 2,
                    Codes::I32(_) => 4,
                };
                let table = match categories {
                    Categories::Text(s) => s.resident_bytes(),
                    Categories::Numeric { bytes, .. } => bytes.len() as u64,
                };
                codes.len() as u64 * width + table
            }
            ColumnData::Strings(s) => s.resident_bytes(),
        };
        values + self.present.as_ref().map_or(0, |p| p.len() as u64)
    }
}
