//! Stored numbers, translated when a source is opened: to little-endian bytes for columns, to `i64` for lengths and codes.

use crate::dtype::{DType, Stored};

/// The integers (or booleans) in `bytes`, in order; an entry is `None` if it exceeds `i64`. `None` for floats.
#[must_use]
pub fn integers(bytes: &[u8], stored: Stored) -> Option<impl Iterator<Item = Option<i64>> + '_> {
    let Stored { dtype, big_endian } = stored;
    if dtype.is_float() {
        return None;
    }
    let signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    Some(bytes.chunks_exact(dtype.size_bytes()).map(move |element| {
        let mut word = [0_u8; 8];
        for (i, &byte) in element.iter().enumerate() {
            let place = if big_endian { element.len() - 1 - i } else { i };
            *word.get_mut(place)? = byte;
        }
        let unused_bits = 64 - 8 * dtype.size_bytes();
        if signed {
            // The arithmetic shift copies the sign into the unused bits.
            Some((i64::from_le_bytes(word) << unused_bits) >> unused_bits)
        } else {
            i64::try_from(u64::from_le_bytes(word)).ok()
        }
    }))
}

/// `bytes` in little-endian order, booleans as 0 or 1.
#[must_use]
pub fn to_little(mut bytes: Vec<u8>, stored: Stored) -> Vec<u8> {
    if stored.dtype == DType::Bool {
        for byte in &mut bytes {
            *byte = u8::from(*byte != 0);
        }
    }
    if stored.big_endian {
        for element in bytes.chunks_exact_mut(stored.dtype.size_bytes()) {
            element.reverse();
        }
    }
    bytes
}

/// Every `stride`-th run of `size` bytes of `bytes`, from `offset` on: one field of an array of records.
#[must_use]
pub fn field(bytes: &[u8], stride: usize, offset: usize, size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() / stride.max(1) * size);
    for record in bytes.chunks_exact(stride.max(1)) {
        out.extend_from_slice(record.get(offset..offset + size).unwrap_or_default());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], dtype: DType, big_endian: bool) -> Vec<Option<i64>> {
        integers(bytes, Stored { dtype, big_endian }).unwrap().collect()
    }

    #[test]
    fn integers_of_every_width_and_order() {
        assert_eq!(read(&[0xff, 1], DType::I8, false), [Some(-1), Some(1)]);
        assert_eq!(read(&[0xff, 1], DType::U8, false), [Some(255), Some(1)]);
        assert_eq!(read(&[0xff, 0xfe], DType::I16, true), [Some(-2)]);
        assert_eq!(read(&[0xfe, 0xff], DType::I16, false), [Some(-2)]);
        assert_eq!(read(&(-5_i32).to_be_bytes(), DType::I32, true), [Some(-5)]);
        assert_eq!(read(&u32::MAX.to_le_bytes(), DType::U32, false), [Some(4_294_967_295)]);
        assert_eq!(read(&i64::MIN.to_be_bytes(), DType::I64, true), [Some(i64::MIN)]);
        assert_eq!(read(&u64::MAX.to_le_bytes(), DType::U64, false), [None]);
        assert!(integers(&[0; 4], Stored::little(DType::F32)).is_none());
    }

    #[test]
    fn little_endian_and_fields() {
        let stored = Stored { dtype: DType::F32, big_endian: true };
        assert_eq!(to_little(1.5_f32.to_be_bytes().to_vec(), stored), 1.5_f32.to_le_bytes());
        assert_eq!(to_little(vec![0, 1, 7], Stored::little(DType::Bool)), [0, 1, 1]);
        assert_eq!(field(&[1, 2, 3, 4, 5, 6], 3, 1, 2), [2, 3, 5, 6]);
    }
}
