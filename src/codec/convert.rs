//! What happens to decoded elements on their way into a batch.
//!
//! Values keep their type and become little-endian; column indices of any integer type become int32 after each was found
//! to be below the number of columns. The check has no branch per element: a group of elements is converted, the
//! comparisons are collected into one flag, and only a group with a bad one is searched for it. Groups are staged in a
//! small buffer and then streamed past the caches ([`super::stream_copy`]), so nothing bad reaches the destination.

use super::stream_copy::{Fence, stream_copy, stream_copy_unfenced};
use crate::dtype::{DType, Stored};
use crate::num::to_u64;

/// Elements that are staged at once: 4 KiB of int32.
const GROUP: usize = 1024;

/// Why indices cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadIndex {
    /// An index is negative, or not below the number of columns (or of int32).
    #[error("column index {value} at position {position} is not in 0..{n_cols}")]
    OutOfRange {
        /// Position of the first bad index, in elements.
        position: usize,
        /// Its value.
        value: i128,
        /// Number of columns.
        n_cols: u64,
    },
    /// The stored type is no integer; known when a source is opened, so this is a defect of the caller.
    #[error("column indices of type {dtype}")]
    NotIntegers {
        /// The stored type.
        dtype: DType,
    },
}

/// Copies elements of `elem_size` bytes (1, 2, 4 or 8; with `swap` false any), reversing the bytes of each if `swap` says
/// so.
///
/// # Panics
/// If the lengths differ.
pub fn copy_elements(src: &[u8], dst: &mut [u8], elem_size: usize, swap: bool) {
    assert_eq!(src.len(), dst.len(), "source and destination of a copy differ in length");
    match elem_size {
        2 if swap => swap_elements::<2>(src, dst),
        4 if swap => swap_elements::<4>(src, dst),
        8 if swap => swap_elements::<8>(src, dst),
        _ => stream_copy(src, dst),
    }
}

fn swap_elements<const SIZE: usize>(src: &[u8], dst: &mut [u8]) {
    for (to, from) in dst.as_chunks_mut::<SIZE>().0.iter_mut().zip(src.as_chunks::<SIZE>().0) {
        *to = *from;
        to.reverse();
    }
}

/// Converts stored column indices to little-endian int32 and checks that each is in `0..n_cols`. `src` holds elements of
/// type `stored`, `dst` has four bytes for each. On error `dst` holds unspecified bytes.
///
/// # Errors
/// [`BadIndex::OutOfRange`] for the first index outside, [`BadIndex::NotIntegers`] for types that cannot be indices.
///
/// # Panics
/// If the lengths do not belong to the same number of elements.
pub fn indices_to_i32(src: &[u8], stored: Stored, n_cols: u64, dst: &mut [u8]) -> Result<(), BadIndex> {
    let size = stored.dtype.size_bytes();
    assert_eq!(src.len() / size * 4, dst.len(), "source and destination of indices differ in length");
    let is_signed = matches!(stored.dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    if !is_signed && !matches!(stored.dtype, DType::U8 | DType::U16 | DType::U32 | DType::U64) {
        return Err(BadIndex::NotIntegers { dtype: stored.dtype });
    }
    // Read as unsigned, negative values are those from the sign bit up, and above the limit.
    let sign_bit = 1_u64 << (8 * size - 1);
    let limit = n_cols.min(1 << 31).min(if is_signed { sign_bit } else { u64::MAX });
    let first_bad_group = match (size, stored.big_endian) {
        (1, _) => narrow(src, limit, dst, |[byte]: [u8; 1]| u32::from(byte)),
        (2, false) => narrow(src, limit, dst, |bytes| u32::from(u16::from_le_bytes(bytes))),
        (2, true) => narrow(src, limit, dst, |bytes| u32::from(u16::from_be_bytes(bytes))),
        (4, false) => same_type(src, limit, dst),
        (4, true) => narrow(src, limit, dst, u32::from_be_bytes),
        (_, false) => wide(src, limit, dst, u64::from_le_bytes),
        (_, true) => wide(src, limit, dst, u64::from_be_bytes),
    };
    match first_bad_group {
        None => Ok(()),
        Some(group) => Err(find_bad(src, stored, is_signed, limit, n_cols, group * GROUP)),
    }
}

/// Converts indices of up to four bytes; returns the number of the first group with a bad one.
fn narrow<const SIZE: usize>(
    src: &[u8],
    limit: u64,
    dst: &mut [u8],
    read: impl Fn([u8; SIZE]) -> u32,
) -> Option<usize> {
    // The limit is at most 2^31.
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    staged(src, dst, |group, staging| {
        let mut is_bad = false;
        for (to, from) in staging.iter_mut().zip(group) {
            let index = read(*from);
            is_bad |= index >= limit;
            *to = index.to_le_bytes();
        }
        is_bad
    })
}

/// As [`narrow`], for indices of eight bytes.
fn wide(src: &[u8], limit: u64, dst: &mut [u8], read: impl Fn([u8; 8]) -> u64) -> Option<usize> {
    staged(src, dst, |group, staging| {
        let mut is_bad = false;
        for (to, from) in staging.iter_mut().zip(group) {
            let index = read(*from);
            is_bad |= index >= limit;
            let [a, b, c, d, ..] = index.to_le_bytes();
            *to = [a, b, c, d];
        }
        is_bad
    })
}

/// As [`narrow`], for indices that are little-endian int32 already: checked in place, then copied.
fn same_type(src: &[u8], limit: u64, dst: &mut [u8]) -> Option<usize> {
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    for (i, group) in src.as_chunks::<4>().0.chunks(GROUP).enumerate() {
        let mut is_bad = false;
        for bytes in group {
            is_bad |= u32::from_le_bytes(*bytes) >= limit;
        }
        if is_bad {
            return Some(i);
        }
    }
    stream_copy(src, dst);
    None
}

/// Converts group by group into a buffer, and copies each to its place if `convert` finds nothing bad in it.
#[inline(always)]
fn staged<const SIZE: usize>(
    src: &[u8],
    dst: &mut [u8],
    convert: impl Fn(&[[u8; SIZE]], &mut [[u8; 4]]) -> bool,
) -> Option<usize> {
    let elems = src.as_chunks::<SIZE>().0;
    let outs = dst.as_chunks_mut::<4>().0;
    if elems.len() * 4 < super::stream_copy::MIN_BYTES {
        return convert(elems, outs).then_some(0);
    }
    let _fence = Fence::new();
    let mut staging = [[0; 4]; GROUP];
    for (i, (group, out)) in elems.chunks(GROUP).zip(outs.chunks_mut(GROUP)).enumerate() {
        let staging = &mut staging[..group.len()];
        if convert(group, staging) {
            return Some(i);
        }
        stream_copy_unfenced(staging.as_flattened(), out.as_flattened_mut());
    }
    None
}

/// The first bad index at or behind position `from`.
fn find_bad(src: &[u8], stored: Stored, is_signed: bool, limit: u64, n_cols: u64, from: usize) -> BadIndex {
    let size = stored.dtype.size_bytes();
    let value = |elem: &[u8]| {
        let mut bytes = [0; 8];
        for (i, byte) in elem.iter().enumerate() {
            bytes[if stored.big_endian { size - 1 - i } else { i }] = *byte;
        }
        u64::from_le_bytes(bytes)
    };
    let found = src.chunks_exact(size).map(value).enumerate().skip(from).find(|(_, value)| *value >= limit);
    // The caller has seen one in this group.
    let (position, bits) = found.unwrap_or((from, 0));
    let sign_bit = 1_u64 << (8 * size - 1);
    let value = match is_signed && bits & sign_bit != 0 {
        true => i128::from(bits) - (1_i128 << (8 * size)),
        false => i128::from(bits),
    };
    debug_assert!(to_u64(position) < to_u64(src.len()));
    BadIndex::OutOfRange { position, value, n_cols }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTEGERS: [DType; 8] =
        [DType::U8, DType::I8, DType::U16, DType::I16, DType::U32, DType::I32, DType::U64, DType::I64];

    fn store(values: &[i128], stored: Stored) -> Vec<u8> {
        let size = stored.dtype.size_bytes();
        values
            .iter()
            .flat_map(|value| {
                let mut bytes = value.to_le_bytes()[..size].to_vec();
                if stored.big_endian {
                    bytes.reverse();
                }
                bytes
            })
            .collect()
    }

    fn all_types() -> impl Iterator<Item = Stored> {
        INTEGERS.into_iter().flat_map(|dtype| [false, true].map(|big_endian| Stored { dtype, big_endian }))
    }

    #[test]
    fn every_type_and_byte_order_becomes_int32() {
        for stored in all_types() {
            for n in [0, 1, 7, 127, 128, 1024, 1025, 5000] {
                let values: Vec<i128> = (0..n).map(|i| i * 37 % 100).collect();
                let mut dst = vec![0xee; values.len() * 4];
                indices_to_i32(&store(&values, stored), stored, 100, &mut dst).unwrap();
                assert_eq!(dst, store(&values, Stored::little(DType::I32)), "{stored:?} {n}");
            }
        }
    }

    #[test]
    fn the_first_bad_index_is_named() {
        for stored in all_types() {
            for n in [10, 3000] {
                for position in [0, 9, n - 1] {
                    let is_signed = matches!(stored.dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
                    let bits = 8 * stored.dtype.size_bytes();
                    let lowest = if is_signed { -(1_i128 << (bits - 1)) } else { 100 };
                    let highest = (1_i128 << (bits - usize::from(is_signed))) - 1;
                    for value in [100, highest, if is_signed { -1 } else { 101 }, lowest] {
                        let mut values: Vec<i128> = (0..n as i128).map(|i| i % 100).collect();
                        values[position] = value;
                        *values.last_mut().unwrap() = value;
                        let mut dst = vec![0; n * 4];
                        let error = indices_to_i32(&store(&values, stored), stored, 100, &mut dst).unwrap_err();
                        assert_eq!(error, BadIndex::OutOfRange { position, value, n_cols: 100 }, "{stored:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn negative_bytes_are_not_large_ones() {
        // -56 has the bits of 200, which is below 250.
        let mut dst = [0; 4];
        let error = indices_to_i32(&[200], Stored::little(DType::I8), 250, &mut dst).unwrap_err();
        assert_eq!(error, BadIndex::OutOfRange { position: 0, value: -56, n_cols: 250 });
        indices_to_i32(&[200], Stored::little(DType::U8), 250, &mut dst).unwrap();
        assert_eq!(dst, [200, 0, 0, 0]);
    }

    #[test]
    fn int32_is_the_limit_whatever_the_number_of_columns() {
        let mut dst = [0; 4];
        let source = 0x8000_0000_u64.to_le_bytes();
        assert!(indices_to_i32(&source, Stored::little(DType::U64), u64::MAX, &mut dst).is_err());
        let source = 0x7fff_ffff_u64.to_le_bytes();
        indices_to_i32(&source, Stored::little(DType::U64), u64::MAX, &mut dst).unwrap();
        assert!(matches!(
            indices_to_i32(&[0; 4], Stored::little(DType::F32), 9, &mut dst),
            Err(BadIndex::NotIntegers { dtype: DType::F32 })
        ));
        assert!(indices_to_i32(&[0; 4], Stored::little(DType::U32), 0, &mut dst).is_err());
    }

    #[test]
    fn elements_are_copied_and_swapped() {
        let src: Vec<u8> = (0..1600_usize).map(|i| i as u8).collect();
        for size in [1, 2, 4, 8] {
            let mut dst = vec![0; 1600];
            copy_elements(&src, &mut dst, size, false);
            assert_eq!(dst, src);
            copy_elements(&src, &mut dst, size, true);
            let expected: Vec<u8> = src.chunks(size).flat_map(|e| e.iter().rev().copied()).collect();
            assert_eq!(dst, expected);
        }
    }
}
