//! Columns of `obs` of several sources, laid end to end.
//!
//! The columns are the union over the sources, in first-seen order. Where a source lacks one, its rows are missing: code -1 in a
//! categorical, and a `present` flag of 0 elsewhere. Categories are united by label in first-seen order, so that a source added at the
//! end changes no code of the others. Numbers become the smallest type that holds both; 64-bit integers beside floats become
//! doubles if every value is exact there. Text beside text labels becomes labels.
//!
//! Values are appended to what is there. A single source is passed through as it came, possibly mapped from the cache folder.

mod numbers;
mod table;

use std::collections::HashMap;

use super::super::column::{Categories, Column, ColumnData, Strings};
use crate::dtype::DType;
use crate::num::to_u64;
use numbers::Numbers;
use table::Labels;

/// Two sources whose columns of one name are not of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnFault {
    /// The column.
    pub name: String,
    /// The first source that has it.
    pub first: usize,
    /// The source that does not agree.
    pub second: usize,
    /// In what they differ: `int64 in the one, categories in the other`.
    pub reason: String,
}

/// Joins columns source by source.
#[derive(Default)]
pub struct ColumnJoiner {
    /// The columns of the first source, until a second one comes.
    only: Option<Vec<Column>>,
    columns: Vec<Joined>,
    by_name: HashMap<String, usize>,
    n_sources: usize,
    n_rows: usize,
}

/// One column of all sources so far.
struct Joined {
    name: String,
    first_source: usize,
    data: Data,
    present: Option<Vec<u8>>,
    /// True as long as every source with the column has its categories in this order.
    ordered: bool,
    /// True if some source calls its categories ordered.
    any_ordered: bool,
    n_rows: usize,
}

enum Data {
    Numeric(Numbers),
    Labels(Labels),
    Text(Strings),
}

/// The columns of all sources.
#[derive(Debug, Default)]
pub struct JoinedColumns {
    /// The columns.
    pub columns: Vec<Column>,
    /// Columns whose categories some source orders, but not all in the same way.
    pub unordered: Vec<String>,
}

impl ColumnJoiner {
    /// Appends the columns of the next source, which has `n_rows` rows.
    ///
    /// # Errors
    /// [`ColumnFault`] if one is of another kind than before.
    pub fn add(&mut self, columns: Vec<Column>, n_rows: usize) -> Result<(), ColumnFault> {
        self.n_sources += 1;
        if self.n_sources == 1 {
            self.only = Some(columns);
            self.n_rows = n_rows;
            return Ok(());
        }
        if let Some(first) = self.only.take() {
            first.into_iter().try_for_each(|column| self.append(column, 0, 0))?;
        }
        let (source, rows_before) = (self.n_sources - 1, self.n_rows);
        self.n_rows += n_rows;
        columns.into_iter().try_for_each(|column| self.append(column, source, rows_before))
    }

    fn append(&mut self, column: Column, source: usize, rows_before: usize) -> Result<(), ColumnFault> {
        if let Some(joined) = self.by_name.get(&column.name).and_then(|&i| self.columns.get_mut(i)) {
            joined.pad(rows_before);
            return joined.append(column, source);
        }
        self.by_name.insert(column.name.clone(), self.columns.len());
        self.columns.push(Joined::new(column, source, rows_before));
        Ok(())
    }

    /// True if some source has this column.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name) || self.only.iter().flatten().any(|column| column.name == name)
    }

    /// The columns of all sources.
    #[must_use]
    pub fn finish(self) -> JoinedColumns {
        if let Some(columns) = self.only {
            return JoinedColumns { columns, unordered: Vec::new() };
        }
        let mut out = JoinedColumns::default();
        for mut joined in self.columns {
            joined.pad(self.n_rows);
            if joined.any_ordered && !joined.ordered {
                out.unordered.push(joined.name.clone());
            }
            out.columns.push(joined.finish());
        }
        out
    }
}

impl Joined {
    fn new(column: Column, source: usize, rows_before: usize) -> Self {
        let (mut ordered, n_rows) = (false, column.len());
        let data = match column.data {
            ColumnData::Numeric { dtype, bytes } => Data::Numeric(Numbers::new(dtype, rows_before, &bytes)),
            ColumnData::Categorical { codes, categories, ordered: is_ordered } => {
                ordered = is_ordered;
                let mut labels = Labels::new(&categories, rows_before);
                // Into an empty table anything goes.
                let _ = labels.append(&codes, &categories);
                Data::Labels(labels)
            }
            ColumnData::Strings(texts) => {
                let mut all: Strings = std::iter::repeat_n("", rows_before).collect();
                texts.iter().for_each(|text| all.push(text));
                Data::Text(all)
            }
        };
        let mut joined = Self {
            name: column.name,
            first_source: source,
            present: None,
            ordered,
            any_ordered: ordered,
            n_rows: rows_before,
            data,
        };
        if rows_before > 0 && !matches!(joined.data, Data::Labels(_)) {
            joined.present = Some(vec![0; rows_before]);
        }
        joined.append_present(column.present.as_deref(), n_rows);
        joined.n_rows += n_rows;
        joined
    }

    /// Marks rows as missing up to `n_rows`.
    fn pad(&mut self, n_rows: usize) {
        let n = n_rows.saturating_sub(self.n_rows);
        if n == 0 {
            return;
        }
        match &mut self.data {
            Data::Numeric(numbers) => numbers.pad(n),
            Data::Labels(labels) => labels.pad(n),
            Data::Text(texts) => (0..n).for_each(|_| texts.push("")),
        }
        if !matches!(self.data, Data::Labels(_)) {
            self.append_present(Some(&vec![0; n]), n);
        }
        self.n_rows = n_rows;
    }

    /// Appends the flags of `n` rows, all of them there if there are no flags.
    fn append_present(&mut self, flags: Option<&[u8]>, n: usize) {
        if let (None, None) = (&self.present, flags) {
            return;
        }
        let present = self.present.get_or_insert_with(|| vec![1; self.n_rows]);
        match flags {
            Some(flags) => present.extend_from_slice(flags),
            None => present.resize(present.len() + n, 1),
        }
    }

    fn append(&mut self, column: Column, source: usize) -> Result<(), ColumnFault> {
        let kind = describe(&column.data);
        let n_rows = column.len();
        let mut flags = column.present.as_deref();
        if let (Data::Text(texts), ColumnData::Categorical { categories: Categories::Text(_), .. }) =
            (&self.data, &column.data)
        {
            self.data = Data::Labels(Labels::of_texts(texts, self.present.as_deref()));
            self.present = None;
        }
        let first_kind = self.describe();
        let result = match (&mut self.data, &column.data) {
            (Data::Numeric(numbers), ColumnData::Numeric { dtype, bytes }) => numbers.append(*dtype, bytes),
            (Data::Labels(labels), ColumnData::Categorical { codes, categories, ordered }) => {
                self.any_ordered |= ordered;
                self.ordered &= *ordered && labels.is_table(categories);
                labels.append(codes, categories)
            }
            (Data::Labels(labels), ColumnData::Strings(texts)) if labels.are_texts() => {
                self.ordered = false;
                labels.append_texts(texts, flags);
                flags = None;
                Ok(())
            }
            (Data::Text(all), ColumnData::Strings(texts)) => {
                texts.iter().for_each(|text| all.push(text));
                Ok(())
            }
            _ => Err("cannot be one column".to_owned()),
        };
        if let Err(why) = result {
            let (name, first) = (self.name.clone(), self.first_source);
            let reason = format!("{first_kind} and {kind}: {why}");
            return Err(ColumnFault { name, first, second: source, reason });
        }
        self.append_present(flags, n_rows);
        self.n_rows += n_rows;
        Ok(())
    }

    fn describe(&self) -> String {
        match &self.data {
            Data::Numeric(numbers) => numbers.dtype().to_string(),
            Data::Labels(labels) => labels.describe(),
            Data::Text(_) => "text".to_owned(),
        }
    }

    fn finish(self) -> Column {
        let data = match self.data {
            Data::Numeric(numbers) => numbers.finish(),
            Data::Labels(labels) => labels.finish(self.ordered),
            Data::Text(texts) => ColumnData::Strings(texts),
        };
        Column { name: self.name, data, present: self.present.map(Into::into) }
    }
}

fn describe(data: &ColumnData) -> String {
    match data {
        ColumnData::Numeric { dtype, .. } => dtype.to_string(),
        ColumnData::Categorical { categories, .. } => table_kind(categories),
        ColumnData::Strings(_) => "text".to_owned(),
    }
}

fn table_kind(categories: &Categories) -> String {
    match categories {
        Categories::Text(_) => "text categories".to_owned(),
        Categories::Numeric { dtype, .. } => format!("{dtype} categories"),
    }
}

/// The bytes of a value that stands for a missing one: 0, or not a number.
fn missing_value(dtype: DType) -> [u8; 8] {
    let mut word = [0; 8];
    match dtype {
        DType::F16 => word[..2].copy_from_slice(&0x7e00_u16.to_le_bytes()),
        DType::F32 => word[..4].copy_from_slice(&f32::NAN.to_le_bytes()),
        DType::F64 => word.copy_from_slice(&f64::NAN.to_le_bytes()),
        _ => {}
    }
    word
}

/// Bytes of memory that `n` values of `dtype` take.
fn bytes_of(n: usize, dtype: DType) -> usize {
    n.saturating_mul(dtype.size_bytes())
}

impl JoinedColumns {
    /// Takes out categorical columns of more than `most` categories; returns their names and how many they have.
    pub fn take_long_tables(&mut self, most: u64) -> Vec<(String, u64)> {
        let n = |column: &Column| match &column.data {
            ColumnData::Categorical { categories, .. } => to_u64(categories.len()),
            _ => 0,
        };
        let long = self.columns.extract_if(.., |column| n(column) > most);
        long.map(|column| (column.name.clone(), n(&column))).collect()
    }
}

#[cfg(test)]
mod tests;
