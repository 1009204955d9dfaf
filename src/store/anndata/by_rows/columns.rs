//! A CSC matrix as a stream of runs of values of one column.
//!
//! The arrays of values and of row numbers are cut into chunks of different lengths, and both are cut by columns. A
//! [`Segment`] ends wherever one of the three does; row numbers are checked and made int32 chunk by chunk.

use super::super::node::{Node, Source};
use super::super::raw_array::{RawArray, Runs};
use crate::codec::convert;
use crate::dtype::Stored;
use crate::num::{to_u64, to_usize};
use crate::store::error::OpenError;
use crate::store::rows::RowLengths;

/// The arrays of a CSC matrix, their lengths checked.
pub struct Csc<'a> {
    /// The group.
    pub node: &'a dyn Node,
    /// The values.
    pub data: RawArray,
    /// Their type.
    pub data_type: Stored,
    /// The row of each value.
    pub indices: RawArray,
    /// The type of row numbers: an integer.
    pub index_type: Stored,
    /// Values of each column.
    pub columns: RowLengths,
    /// Number of rows.
    pub n_rows: u64,
}

/// Values of one column that lie together.
pub struct Segment<'a> {
    /// The column.
    pub column: u32,
    /// Number of the value behind the last one.
    pub end: u64,
    /// Rows, as little-endian u32 below the number of rows.
    pub rows: &'a [[u8; 4]],
    /// Values, little-endian; empty if they were not asked for.
    pub data: &'a [u8],
}

impl Csc<'_> {
    /// Bytes of the row numbers, before compression.
    pub fn index_bytes(&self) -> u64 {
        self.indices.total_bytes()
    }

    /// Number of values.
    pub fn n_values(&self) -> u64 {
        self.columns.total()
    }

    fn source(&self) -> &Source {
        self.node.source()
    }

    /// Calls `take` with all values from number `from` on, in stored order; without `with_data` their rows only.
    ///
    /// # Errors
    /// [`OpenError`] if a chunk is damaged or a row number is none; what `take` returns.
    pub fn each<E: From<OpenError>>(
        &self,
        from: u64,
        with_data: bool,
        take: &mut dyn FnMut(Segment<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (index_path, data_path) = (format!("{}/indices", self.node.path()), format!("{}/data", self.node.path()));
        let mut rows = RowNumbers::new(self, Runs::new(&self.indices, self.source(), &index_path)?, from);
        let mut values = match with_data {
            true => Some(Values::new(self, Runs::new(&self.data, self.source(), &data_path)?, from)),
            false => None,
        };
        let total = self.n_values();
        let (mut column, mut at) = (0_u32, from);
        let mut column_end = if total > 0 { u64::from(self.columns.len(0)) } else { 0 };
        while at < total {
            while at >= column_end {
                column += 1;
                column_end += u64::from(self.columns.len(to_usize(u64::from(column))));
            }
            let mut end = column_end.min(rows.reach(at)?);
            if let Some(values) = &mut values {
                end = end.min(values.reach(at)?);
            }
            let data = values.as_ref().map_or(&[][..], |values| values.part(at, end));
            take(Segment { column, end, rows: rows.part(at, end), data })?;
            at = end;
        }
        Ok(())
    }
}

/// Row numbers of the current chunk, checked.
struct RowNumbers<'a> {
    csc: &'a Csc<'a>,
    runs: Runs<'a>,
    first: u64,
    rows: Vec<u8>,
}

impl<'a> RowNumbers<'a> {
    fn new(csc: &'a Csc<'a>, mut runs: Runs<'a>, from: u64) -> Self {
        runs.seek(from);
        Self { csc, runs, first: from, rows: Vec::new() }
    }

    /// Reads until value `at` is there; the number of the value behind the last one that is.
    fn reach(&mut self, at: u64) -> Result<u64, OpenError> {
        while at >= self.first + to_u64(self.rows.len() / 4) {
            if !self.runs.advance()? {
                return Err(self.csc.node.refused("ends before its last column", "the file is damaged"));
            }
            let (first, bytes) = self.runs.run();
            self.first = first;
            let stored = self.csc.index_type;
            self.rows.resize(bytes.len() / stored.dtype.size_bytes() * 4, 0);
            if let Err(bad) = convert::indices_to_i32(bytes, stored, self.csc.n_rows, &mut self.rows) {
                let why = bad.to_string().replace("column index", "row").replace("at position", "of value");
                let reason = format!("{why} (values are counted from {first})");
                let remedy = "the file is damaged: write it again";
                let path = format!("{}/indices", self.csc.node.path());
                return Err(OpenError::refused(self.csc.source().path(), path, reason, remedy));
            }
        }
        Ok(self.first + to_u64(self.rows.len() / 4))
    }

    fn part(&self, start: u64, end: u64) -> &[[u8; 4]] {
        let range = to_usize(start - self.first)..to_usize(end - self.first);
        self.rows.as_chunks::<4>().0.get(range).unwrap_or_default()
    }
}

/// Values of the current chunk, little-endian.
struct Values<'a> {
    csc: &'a Csc<'a>,
    runs: Runs<'a>,
    range: std::ops::Range<u64>,
    swapped: Vec<u8>,
}

impl<'a> Values<'a> {
    fn new(csc: &'a Csc<'a>, mut runs: Runs<'a>, from: u64) -> Self {
        runs.seek(from);
        Self { csc, runs, range: from..from, swapped: Vec::new() }
    }

    fn reach(&mut self, at: u64) -> Result<u64, OpenError> {
        let Stored { dtype, big_endian } = self.csc.data_type;
        while at >= self.range.end {
            if !self.runs.advance()? {
                return Err(self.csc.node.refused("ends before its last column", "the file is damaged"));
            }
            let (first, bytes) = self.runs.run();
            self.range = first..first + to_u64(bytes.len() / dtype.size_bytes());
            if big_endian {
                self.swapped.resize(bytes.len(), 0);
                convert::copy_elements(bytes, &mut self.swapped, dtype.size_bytes(), true);
            }
        }
        Ok(self.range.end)
    }

    fn part(&self, start: u64, end: u64) -> &[u8] {
        let Stored { dtype, big_endian } = self.csc.data_type;
        let bytes = if big_endian { &*self.swapped } else { self.runs.run().1 };
        let size = dtype.size_bytes();
        let range = to_usize(start - self.range.start) * size..to_usize(end - self.range.start) * size;
        bytes.get(range).unwrap_or_default()
    }
}
