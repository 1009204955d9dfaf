//! Numeric values whose type grows with what is appended.

use super::{bytes_of, missing_value};
use crate::codec::narrow;
use crate::dtype::{DType, Stored};
use crate::store::column::ColumnData;

/// Little-endian numbers of one type.
pub struct Numbers {
    dtype: DType,
    bytes: Vec<u8>,
}

impl Numbers {
    /// `n_missing` missing values, and then `bytes`.
    pub fn new(dtype: DType, n_missing: usize, bytes: &[u8]) -> Self {
        let mut numbers = Self { dtype, bytes: Vec::with_capacity(bytes_of(n_missing, dtype) + bytes.len()) };
        numbers.pad(n_missing);
        numbers.bytes.extend_from_slice(bytes);
        numbers
    }

    /// The type so far.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Appends `n` missing values.
    pub fn pad(&mut self, n: usize) {
        let value = missing_value(self.dtype);
        self.bytes.extend_from_slice(&value[..self.dtype.size_bytes()].repeat(n));
    }

    /// Appends values; says why if they do not go together.
    pub fn append(&mut self, dtype: DType, bytes: &[u8]) -> Result<(), String> {
        let common = joined_type(self.dtype, dtype);
        if common != self.dtype {
            self.bytes = convert(&self.bytes, self.dtype, common)?;
            self.dtype = common;
        }
        if dtype == common {
            self.bytes.extend_from_slice(bytes);
        } else {
            self.bytes.extend_from_slice(&convert(bytes, dtype, common)?);
        }
        Ok(())
    }

    pub fn finish(self) -> ColumnData {
        ColumnData::Numeric { dtype: self.dtype, bytes: self.bytes.into() }
    }
}

/// The type of both together: lossless if there is one, else doubles, if every value is exact there.
pub fn joined_type(a: DType, b: DType) -> DType {
    a.common(b).unwrap_or(DType::F64)
}

/// The same values in another type, or which one is not exact there.
pub fn convert(bytes: &[u8], from: DType, to: DType) -> Result<Vec<u8>, String> {
    let mut out = vec![0; bytes_of(bytes.len() / from.size_bytes(), to)];
    narrow::convert_values(bytes, Stored::little(from), to, &mut out).map_err(|bad| bad.to_string())?;
    Ok(out)
}
