//! Categories united by label, and the codes of all rows in the smallest type that holds them.

use std::collections::HashMap;

use super::numbers::{convert, joined_type};
use super::table_kind;
use crate::dtype::DType;
use crate::store::column::{Categories, CodeValues, Codes, ColumnData, Strings};

/// A categorical column under construction.
pub struct Labels {
    table: Table,
    codes: GrowingCodes,
    /// The table that came last, and what became of its codes: most sources of an atlas have equal tables.
    last: Option<(Categories, Vec<i32>)>,
}

enum Table {
    Text { labels: Strings, codes: HashMap<Box<str>, i32> },
    Numeric { dtype: DType, bytes: Vec<u8>, codes: HashMap<Vec<u8>, i32> },
}

impl Labels {
    /// An empty table for labels like those of `categories`, and `n_missing` rows without one.
    pub fn new(categories: &Categories, n_missing: usize) -> Self {
        let table = match categories {
            Categories::Text(_) => Table::Text { labels: Strings::default(), codes: HashMap::new() },
            Categories::Numeric { dtype, .. } => {
                Table::Numeric { dtype: *dtype, bytes: Vec::new(), codes: HashMap::new() }
            }
        };
        let mut labels = Self { table, codes: GrowingCodes::I8(Vec::new()), last: None };
        labels.pad(n_missing);
        labels
    }

    /// Labels of what was text.
    pub fn of_texts(texts: &Strings, present: Option<&[u8]>) -> Self {
        let mut labels = Self::new(&Categories::Text(Strings::default()), 0);
        labels.append_texts(texts, present);
        labels
    }

    pub fn are_texts(&self) -> bool {
        matches!(self.table, Table::Text { .. })
    }

    pub fn describe(&self) -> String {
        match &self.table {
            Table::Text { .. } => "text categories".to_owned(),
            Table::Numeric { dtype, .. } => format!("{dtype} categories"),
        }
    }

    /// True if these are exactly the categories so far.
    pub fn is_table(&self, categories: &Categories) -> bool {
        match (&self.table, categories) {
            (Table::Text { labels, .. }, Categories::Text(other)) => labels == other,
            (Table::Numeric { dtype, bytes, .. }, Categories::Numeric { dtype: other, bytes: values }) => {
                dtype == other && **bytes == **values
            }
            _ => false,
        }
    }

    /// Appends `n` rows without a category.
    pub fn pad(&mut self, n: usize) {
        self.codes.extend(std::iter::repeat_n(-1, n), self.table.len());
    }

    /// Appends the rows of a source; says why if its labels are of another kind.
    pub fn append(&mut self, codes: &Codes, categories: &Categories) -> Result<(), String> {
        if !self.last.as_ref().is_some_and(|(last, _)| last == categories) {
            let new_codes = self.table.add(categories)?;
            self.last = Some((categories.clone(), new_codes));
        }
        let new_codes = self.last.as_ref().map_or(&[][..], |(_, codes)| codes);
        let new_code = |code: i32| usize::try_from(code).ok().and_then(|code| new_codes.get(code)).copied();
        let rows = (0..codes.len()).map(|row| new_code(codes.get(row)).unwrap_or(-1));
        self.codes.extend(rows, self.table.len());
        Ok(())
    }

    /// Appends text, each row of which is a label; rows that are not present have none.
    pub fn append_texts(&mut self, texts: &Strings, present: Option<&[u8]>) {
        let mut codes = Vec::with_capacity(texts.len());
        for (row, text) in texts.iter().enumerate() {
            let is_there = present.and_then(|flags| flags.get(row)).is_none_or(|&flag| flag != 0);
            codes.push(if is_there { self.table.text_code(text) } else { -1 });
        }
        self.codes.extend(codes.into_iter(), self.table.len());
    }

    pub fn finish(self, ordered: bool) -> ColumnData {
        let n_categories = self.table.len();
        let values = match self.codes {
            GrowingCodes::I8(codes) => CodeValues::I8(codes.into()),
            GrowingCodes::I16(codes) => CodeValues::I16(codes.into()),
            GrowingCodes::I32(codes) => CodeValues::I32(codes.into()),
        };
        let categories = match self.table {
            Table::Text { labels, .. } => Categories::Text(labels),
            Table::Numeric { dtype, bytes, .. } => Categories::Numeric { dtype, bytes: bytes.into() },
        };
        ColumnData::Categorical { codes: Codes::new(values, n_categories), categories, ordered }
    }
}

impl Table {
    fn len(&self) -> usize {
        match self {
            Self::Text { labels, .. } => labels.len(),
            Self::Numeric { dtype, bytes, .. } => bytes.len() / dtype.size_bytes(),
        }
    }

    /// The code of a text label, a new one if there is none.
    fn text_code(&mut self, label: &str) -> i32 {
        let Self::Text { labels, codes } = self else { return -1 };
        if let Some(&code) = codes.get(label) {
            return code;
        }
        let code = next_code(labels.len());
        labels.push(label);
        codes.insert(label.into(), code);
        code
    }

    /// Adds the labels that are new; returns the code of each.
    fn add(&mut self, categories: &Categories) -> Result<Vec<i32>, String> {
        match (&mut *self, categories) {
            (Self::Text { .. }, Categories::Text(labels)) => {
                Ok(labels.iter().map(|label| self.text_code(label)).collect())
            }
            (Self::Numeric { dtype, bytes, codes }, Categories::Numeric { dtype: other, bytes: values }) => {
                let common = joined_type(*dtype, *other);
                if common != *dtype {
                    *bytes = convert(bytes, *dtype, common)?;
                    *dtype = common;
                    let size = common.size_bytes();
                    *codes = bytes.chunks_exact(size).zip(0..).map(|(value, code)| (value.to_vec(), code)).collect();
                }
                let values = if *other == common { values.to_vec() } else { convert(values, *other, common)? };
                let mut code_of = |value: &[u8]| {
                    if let Some(&code) = codes.get(value) {
                        return code;
                    }
                    let code = next_code(codes.len());
                    bytes.extend_from_slice(value);
                    codes.insert(value.to_vec(), code);
                    code
                };
                Ok(values.chunks_exact(common.size_bytes()).map(&mut code_of).collect())
            }
            (_, other) => Err(format!("labels and {} cannot be one table", table_kind(other))),
        }
    }
}

/// Tables are limited by memory long before 2^31 labels.
fn next_code(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// Codes whose type grows with the number of categories.
enum GrowingCodes {
    I8(Vec<i8>),
    I16(Vec<i16>),
    I32(Vec<i32>),
}

impl GrowingCodes {
    /// Appends codes below `n_categories`, or -1.
    #[allow(clippy::cast_possible_truncation)] // codes are below the number of categories, which chose the type
    fn extend(&mut self, codes: impl Iterator<Item = i32>, n_categories: usize) {
        self.make_room(n_categories);
        match self {
            Self::I8(all) => all.extend(codes.map(|code| code as i8)),
            Self::I16(all) => all.extend(codes.map(|code| code as i16)),
            Self::I32(all) => all.extend(codes),
        }
    }

    fn make_room(&mut self, n_categories: usize) {
        let (fits_i8, fits_i16) = (i8::try_from(n_categories).is_ok(), i16::try_from(n_categories).is_ok());
        *self = match std::mem::replace(self, Self::I8(Vec::new())) {
            Self::I8(all) if fits_i8 => Self::I8(all),
            Self::I8(all) if fits_i16 => Self::I16(all.into_iter().map(i16::from).collect()),
            Self::I8(all) => Self::I32(all.into_iter().map(i32::from).collect()),
            Self::I16(all) if fits_i16 => Self::I16(all),
            Self::I16(all) => Self::I32(all.into_iter().map(i32::from).collect()),
            all @ Self::I32(_) => all,
        };
    }
}
