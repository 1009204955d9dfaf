//! Lossless conversion of values to another type, on request: counts as `uint16` take half the memory traffic of `float32`.
//!
//! Every value must come back equal when it is converted back; the first one that does not is reported and nothing of the run is
//! used. As in [`convert`](super::convert), a group is converted without a branch per element, the comparisons are collected into one flag,
//! and the group is streamed to its place from a small buffer.

use super::convert::{BadIndex, indices_to_i32};
use super::stream_copy::{Fence, stream_copy_unfenced};
use crate::dtype::{DType, Stored, f16_to_f32, f64_to_f16};

/// Elements that are staged at once.
const GROUP: usize = 1024;

/// A value that the wanted type cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("value {value} at position {position} is not exact as {dtype}")]
pub struct BadValue {
    /// Position in the run, in elements.
    pub position: usize,
    /// The value, as text.
    pub value: String,
    /// The wanted type.
    pub dtype: DType,
}

/// Converts `src`, elements of type `stored`, to little-endian elements of type `to` in `dst`. Integers, floats and booleans convert to any number type as
/// long as each value is exact there (NaN to NaN); negative zero may become zero. On error `dst` holds unspecified bytes.
///
/// # Errors
/// [`BadValue`] for the first value that is not exact, or if `to` is `bool` and the source is not.
///
/// # Panics
/// If the lengths do not belong to the same number of elements.
pub fn convert_values(src: &[u8], stored: Stored, to: DType, dst: &mut [u8]) -> Result<(), BadValue> {
    let (from_size, to_size) = (stored.dtype.size_bytes(), to.size_bytes());
    assert_eq!(src.len() / from_size * to_size, dst.len(), "source and destination of a conversion differ in length");
    let bad_group = first_bad_group(src, stored, to, dst);
    let Some(group) = bad_group else { return Ok(()) };
    Err(find_bad(src, stored, to, group * GROUP))
}

/// Converts column indices as [`indices_to_i32`] does, gives them new numbers if there are any (`renumbering[old]`), and writes them as `to`, an
/// integer type that holds every number.
///
/// # Errors
/// As [`indices_to_i32`].
///
/// # Panics
/// If the lengths do not belong to the same number of elements.
pub fn indices_to(
    src: &[u8],
    stored: Stored,
    n_cols: u64,
    renumbering: Option<&[u32]>,
    to: DType,
    dst: &mut [u8],
) -> Result<(), BadIndex> {
    let (from_size, to_size) = (stored.dtype.size_bytes(), to.size_bytes());
    assert_eq!(src.len() / from_size * to_size, dst.len(), "source and destination of indices differ in length");
    let mut numbers = [0_u32; GROUP];
    let mut staging = [0_u8; GROUP * 8];
    let _fence = Fence::new();
    for (i, (from, out)) in src.chunks(GROUP * from_size).zip(dst.chunks_mut(GROUP * to_size)).enumerate() {
        let numbers = &mut numbers[..from.len() / from_size];
        if !read_indices(from, stored, n_cols, numbers) {
            // The slow way finds which one it is.
            return indices_to_i32(from, stored, n_cols, &mut vec![0; numbers.len() * 4]).map_err(|bad| match bad {
                BadIndex::OutOfRange { position, value, n_cols } => {
                    BadIndex::OutOfRange { position: position + i * GROUP, value, n_cols }
                }
                other @ BadIndex::NotIntegers { .. } => other,
            });
        }
        if let Some(renumbering) = renumbering {
            for number in &mut *numbers {
                *number = renumbering.get(*number as usize).copied().unwrap_or(0);
            }
        }
        let staging = &mut staging[..out.len()];
        match to_size {
            1 => write_indices::<1>(numbers, staging),
            2 => write_indices::<2>(numbers, staging),
            4 => write_indices::<4>(numbers, staging),
            _ => write_indices::<8>(numbers, staging),
        }
        stream_copy_unfenced(staging, out);
    }
    Ok(())
}

/// Reads indices of any integer type; false if one is outside `0..n_cols` or of int32, or the type is no integer.
fn read_indices(src: &[u8], stored: Stored, n_cols: u64, out: &mut [u32]) -> bool {
    macro_rules! read {
        ($type:ty) => {{
            const SIZE: usize = size_of::<$type>();
            let limit = u64::from(u32::MAX >> 1).saturating_add(1).min(n_cols);
            let mut is_good = true;
            for (to, bytes) in out.iter_mut().zip(src.as_chunks::<SIZE>().0) {
                let value =
                    if stored.big_endian { <$type>::from_be_bytes(*bytes) } else { <$type>::from_le_bytes(*bytes) };
                // Negative numbers become large ones; what is not below the limit is not used.
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_lossless)]
                let (wide, low) = (value as u64, value as u32);
                is_good &= wide < limit;
                *to = low;
            }
            is_good
        }};
    }
    match stored.dtype {
        DType::U8 => read!(u8),
        DType::I8 => read!(i8),
        DType::U16 => read!(u16),
        DType::I16 => read!(i16),
        DType::U32 => read!(u32),
        DType::I32 => read!(i32),
        DType::U64 => read!(u64),
        DType::I64 => read!(i64),
        DType::Bool | DType::F16 | DType::F32 | DType::F64 => false,
    }
}

/// The low bytes of each number, above which there are none.
fn write_indices<const SIZE: usize>(numbers: &[u32], out: &mut [u8]) {
    for (to, number) in out.as_chunks_mut::<SIZE>().0.iter_mut().zip(numbers) {
        let wide = u64::from(*number).to_le_bytes();
        *to = std::array::from_fn(|i| wide[i]);
    }
}

/// Converts group by group; returns the number of the first group with a bad value. `convert` gives the new bytes, and whether they are
/// exact.
#[inline(always)]
fn grouped<const FROM: usize, const TO: usize>(
    src: &[u8],
    dst: &mut [u8],
    swap: bool,
    convert: impl Fn([u8; FROM]) -> ([u8; TO], bool),
) -> Option<usize> {
    let (elems, outs) = (src.as_chunks::<FROM>().0, dst.as_chunks_mut::<TO>().0);
    let _fence = Fence::new();
    let mut staging = [[0; TO]; GROUP];
    for (i, (group, out)) in elems.chunks(GROUP).zip(outs.chunks_mut(GROUP)).enumerate() {
        let mut is_exact = true;
        let staging = &mut staging[..group.len()];
        if swap {
            for (to, from) in staging.iter_mut().zip(group) {
                let mut from = *from;
                from.reverse();
                let (bytes, exact) = convert(from);
                is_exact &= exact;
                *to = bytes;
            }
        } else {
            for (to, from) in staging.iter_mut().zip(group) {
                let (bytes, exact) = convert(*from);
                is_exact &= exact;
                *to = bytes;
            }
        }
        if !is_exact {
            return Some(i);
        }
        stream_copy_unfenced(staging.as_flattened(), out.as_flattened_mut());
    }
    None
}

/// Integers: to integers by a checked conversion, to floats if the integer comes back.
#[inline(always)]
fn from_int<T, const FROM: usize>(
    src: &[u8],
    dst: &mut [u8],
    to: DType,
    swap: bool,
    read: impl Fn([u8; FROM]) -> T + Copy,
) -> Option<usize>
where
    T: Copy + Into<i128>,
{
    macro_rules! int {
        ($to:ty) => {
            grouped::<FROM, { size_of::<$to>() }>(src, dst, swap, |bytes| {
                let value = <$to>::try_from(Into::<i128>::into(read(bytes)));
                (value.unwrap_or(0).to_le_bytes(), value.is_ok())
            })
        };
    }
    macro_rules! float {
        ($to:ty, $make:expr, $back:expr) => {
            grouped::<FROM, { size_of::<$to>() }>(src, dst, swap, |bytes| {
                let value = Into::<i128>::into(read(bytes));
                let made: $to = $make(value);
                (made.to_le_bytes(), $back(made) == value)
            })
        };
    }
    // Whether a float is exact is what is asked, so the rounding of the cast is wanted; casts from floats saturate.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
    match to {
        DType::U8 => int!(u8),
        DType::I8 => int!(i8),
        DType::U16 => int!(u16),
        DType::I16 => int!(i16),
        DType::U32 => int!(u32),
        DType::I32 => int!(i32),
        DType::U64 => int!(u64),
        DType::I64 => int!(i64),
        DType::F16 => float!(u16, |v| f64_to_f16(v as f64), |h| f16_to_f32(h) as i128),
        DType::F32 => float!(f32, |v| v as f32, |f| f as i128),
        DType::F64 => float!(f64, |v| v as f64, |f| f as i128),
        DType::Bool => Some(0),
    }
}

macro_rules! from_float {
    ($src:expr, $dst:expr, $to:expr, $swap:expr, $read:expr, $float:ty, $size:expr) => {{
        macro_rules! number {
            ($t:ty) => {
                grouped::<{ $size }, { size_of::<$t>() }>($src, $dst, $swap, |bytes| {
                    let value: $float = $read(bytes);
                    let made = value as $t;
                    (made.to_le_bytes(), equal(f64::from(value), made as f64))
                })
            };
        }
        // The largest ones are not exact as doubles, so that saturation would go unnoticed.
        macro_rules! wide {
            ($t:ty) => {
                grouped::<{ $size }, 8>($src, $dst, $swap, |bytes| {
                    let value: $float = $read(bytes);
                    let made = value as $t;
                    (made.to_le_bytes(), value.fract() == 0.0 && value as i128 == i128::from(made))
                })
            };
        }
        match $to {
            DType::U8 => number!(u8),
            DType::I8 => number!(i8),
            DType::U16 => number!(u16),
            DType::I16 => number!(i16),
            DType::U32 => number!(u32),
            DType::I32 => number!(i32),
            DType::U64 => wide!(u64),
            DType::I64 => wide!(i64),
            DType::F32 => number!(f32),
            DType::F64 => number!(f64),
            DType::F16 => grouped::<{ $size }, 2>($src, $dst, $swap, |bytes| {
                let value = f64::from($read(bytes));
                let made = f64_to_f16(value);
                (made.to_le_bytes(), equal(value, f64::from(f16_to_f32(made))))
            }),
            DType::Bool => Some(0),
        }
    }};
}

/// Single-precision floats (and halves, read as such).
// Truncating and rounding is what is compared with the value afterwards.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, clippy::cast_lossless)]
#[inline(always)]
fn from_f32<const FROM: usize>(
    src: &[u8],
    dst: &mut [u8],
    to: DType,
    swap: bool,
    read: impl Fn([u8; FROM]) -> f32 + Copy,
) -> Option<usize> {
    from_float!(src, dst, to, swap, read, f32, FROM)
}

/// Double-precision floats.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, clippy::cast_lossless)] // as above
fn from_f64(src: &[u8], dst: &mut [u8], to: DType, swap: bool) -> Option<usize> {
    from_float!(src, dst, to, swap, f64::from_le_bytes, f64, 8)
}

/// Equal, or both not a number.
fn equal(a: f64, b: f64) -> bool {
    a == b || (a.is_nan() && b.is_nan())
}

/// The first bad value at or behind position `from`: found by converting one by one.
fn find_bad(src: &[u8], stored: Stored, to: DType, from: usize) -> BadValue {
    let size = stored.dtype.size_bytes();
    let mut one = [0_u8; 8];
    let bad = src.chunks_exact(size).enumerate().skip(from).find(|(_, elem)| {
        let out = &mut one[..to.size_bytes()];
        first_bad_group(elem, stored, to, out).is_some()
    });
    let (position, elem) = bad.unwrap_or((from, &[]));
    let mut little = elem.to_vec();
    if stored.big_endian {
        little.reverse();
    }
    let value = match stored.dtype.load_json(&little) {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    BadValue { position, value, dtype: to }
}

/// Converts by the stored type; returns the number of the first group with a bad value.
fn first_bad_group(src: &[u8], stored: Stored, to: DType, dst: &mut [u8]) -> Option<usize> {
    let swap = stored.big_endian;
    match stored.dtype {
        DType::Bool | DType::U8 => from_int::<u8, 1>(src, dst, to, swap, u8::from_le_bytes),
        DType::I8 => from_int::<i8, 1>(src, dst, to, swap, i8::from_le_bytes),
        DType::U16 => from_int::<u16, 2>(src, dst, to, swap, u16::from_le_bytes),
        DType::I16 => from_int::<i16, 2>(src, dst, to, swap, i16::from_le_bytes),
        DType::U32 => from_int::<u32, 4>(src, dst, to, swap, u32::from_le_bytes),
        DType::I32 => from_int::<i32, 4>(src, dst, to, swap, i32::from_le_bytes),
        DType::U64 => from_int::<u64, 8>(src, dst, to, swap, u64::from_le_bytes),
        DType::I64 => from_int::<i64, 8>(src, dst, to, swap, i64::from_le_bytes),
        DType::F16 => from_f32::<2>(src, dst, to, swap, |b| f16_to_f32(u16::from_le_bytes(b))),
        DType::F32 => from_f32::<4>(src, dst, to, swap, f32::from_le_bytes),
        DType::F64 => from_f64(src, dst, to, swap),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn counts_become_integers() {
        let values: Vec<f32> = (0..3000).map(|i| (i * 21) as f32).collect();
        let mut dst = vec![0; 6000];
        convert_values(&floats(&values), Stored::little(DType::F32), DType::U16, &mut dst).unwrap();
        let found: Vec<f32> = dst.as_chunks::<2>().0.iter().map(|b| f32::from(u16::from_le_bytes(*b))).collect();
        assert_eq!(found, values);
    }

    #[test]
    fn the_first_inexact_value_is_named() {
        for bad in [0.5, -1.0, 65536.0, f32::NAN, f32::INFINITY, 1e30] {
            let mut values = vec![7.0; 2500];
            values[2100] = bad;
            values[2400] = 0.25;
            let error = convert_values(&floats(&values), Stored::little(DType::F32), DType::U16, &mut vec![0; 5000]);
            let error = error.unwrap_err();
            assert_eq!((error.position, error.dtype), (2100, DType::U16), "{bad}");
        }
    }

    /// Every pair of types, for values at the borders of all types: exact if and only if a detour over 128-bit integers, or over
    /// doubles for fractions, gives the same value.
    #[test]
    fn every_pair_of_types_is_exact_or_refused() {
        let numbers = [
            DType::U8,
            DType::I8,
            DType::U16,
            DType::I16,
            DType::U32,
            DType::I32,
            DType::U64,
            DType::I64,
            DType::F16,
            DType::F32,
            DType::F64,
        ];
        let borders: Vec<i128> =
            (0..65).flat_map(|bit| [-1, 0, 1].map(|d| (1_i128 << bit) + d)).flat_map(|v| [v, -v]).collect();
        let fits = |v: i128, dtype: DType| -> bool {
            match dtype {
                DType::U8 => u8::try_from(v).is_ok(),
                DType::I8 => i8::try_from(v).is_ok(),
                DType::U16 => u16::try_from(v).is_ok(),
                DType::I16 => i16::try_from(v).is_ok(),
                DType::U32 => u32::try_from(v).is_ok(),
                DType::I32 => i32::try_from(v).is_ok(),
                DType::U64 => u64::try_from(v).is_ok(),
                DType::I64 => i64::try_from(v).is_ok(),
                // Exact floats: the odd part has at most 11, 24 or 53 bits, and the size fits.
                _ => {
                    let bits = match dtype {
                        DType::F16 => 11,
                        DType::F32 => 24,
                        _ => 53,
                    };
                    let odd = if v == 0 { 0 } else { v.unsigned_abs() >> v.trailing_zeros() };
                    odd < 1 << bits && (dtype != DType::F16 || v.unsigned_abs() < 65520)
                }
            }
        };
        let bytes = |v: i128, dtype: DType| -> Vec<u8> {
            match dtype {
                DType::F16 => f64_to_f16(v as f64).to_le_bytes().to_vec(),
                DType::F32 => (v as f32).to_le_bytes().to_vec(),
                DType::F64 => (v as f64).to_le_bytes().to_vec(),
                _ => v.to_le_bytes()[..dtype.size_bytes()].to_vec(),
            }
        };
        for from in numbers {
            for to in numbers {
                for &v in borders.iter().filter(|&&v| fits(v, from)) {
                    let mut dst = vec![0; to.size_bytes()];
                    let mut src = bytes(v, from);
                    let result = convert_values(&src, Stored::little(from), to, &mut dst);
                    assert_eq!(result.is_ok(), fits(v, to), "{v} from {from} to {to}");
                    if result.is_ok() {
                        assert_eq!(dst, bytes(v, to), "{v} from {from} to {to}");
                        src.reverse();
                        convert_values(&src, Stored { dtype: from, big_endian: true }, to, &mut dst).unwrap();
                        assert_eq!(dst, bytes(v, to), "{v} from big-endian {from} to {to}");
                    }
                }
            }
        }
    }

    #[test]
    fn indices_narrow_after_their_check() {
        let src: Vec<u8> = (0..3000_u32).flat_map(|i| (i * 20 % 60_000).to_le_bytes()).collect();
        let mut dst = vec![0; 6000];
        indices_to(&src, Stored::little(DType::U32), 60_000, None, DType::U16, &mut dst).unwrap();
        let found: Vec<u32> = dst.as_chunks::<2>().0.iter().map(|b| u32::from(u16::from_le_bytes(*b))).collect();
        assert_eq!(found, (0..3000).map(|i| i * 20 % 60_000).collect::<Vec<u32>>());
        let error = indices_to(&src, Stored::little(DType::U32), 59_000, None, DType::U16, &mut dst).unwrap_err();
        assert_eq!(error, BadIndex::OutOfRange { position: 2950, value: 59_000, n_cols: 59_000 });
    }

    #[test]
    fn indices_get_new_numbers() {
        let renumbering: Vec<u32> = (0..100).map(|i| i * 3 + 1).collect();
        let types = [DType::U8, DType::I8, DType::U16, DType::I16, DType::U32, DType::I32, DType::U64, DType::I64];
        for dtype in types {
            for to in [DType::U16, DType::I32, DType::I64] {
                for big_endian in [false, true] {
                    let number = |i: i64| {
                        let mut bytes = i.to_le_bytes()[..dtype.size_bytes()].to_vec();
                        if big_endian {
                            bytes.reverse();
                        }
                        bytes
                    };
                    let src: Vec<u8> = (0..2500).flat_map(|i| number(i % 100)).collect();
                    let stored = Stored { dtype, big_endian };
                    let mut dst = vec![0; 2500 * to.size_bytes()];
                    indices_to(&src, stored, 100, Some(&renumbering), to, &mut dst).unwrap();
                    let found: Vec<f64> = dst.chunks_exact(to.size_bytes()).map(|v| to.load_f64(v)).collect();
                    let expected: Vec<f64> = (0..2500).map(|i| f64::from(i % 100 * 3 + 1)).collect();
                    assert_eq!(found, expected, "{dtype} to {to}");
                    let bad = [number(5), number(-1)].concat();
                    let dst = &mut dst[..2 * to.size_bytes()];
                    let error = indices_to(&bad, stored, 100, Some(&renumbering), to, dst).unwrap_err();
                    assert!(matches!(error, BadIndex::OutOfRange { position: 1, .. }), "{dtype}");
                }
            }
        }
    }
}
