//! The delta codec of numcodecs: every element but the first is stored as its difference from the one before.
//!
//! Integers wrap around, as they do in numpy; floats are added from left to right in their own type.

use super::CodecError;
use super::pipeline::Produced;
use crate::dtype::{DType, Stored};
use crate::num::to_u64;

/// Name in messages.
pub(super) const NAME: &str = "delta";

/// Adds up the elements of `src` into `out`, at least those that hold the first `need_end` bytes.
pub(super) fn decode(stored: Stored, src: &[u8], need_end: usize, out: &mut [u8]) -> Result<Produced, CodecError> {
    if src.len() != out.len() {
        let (expected, found) = (to_u64(out.len()), to_u64(src.len()));
        return Err(CodecError::WrongLength { filter: NAME, expected, found });
    }
    let size = stored.dtype.size_bytes();
    let end = need_end.next_multiple_of(size).min(out.len() / size * size);
    let (src, out) = (&src[..end], &mut out[..end]);
    match stored.dtype {
        DType::I8 | DType::U8 => running::<1>(src, out, stored, |a, b| [a[0].wrapping_add(b[0])]),
        DType::I16 | DType::U16 => running(src, out, stored, sum_u16),
        DType::I32 | DType::U32 => running(src, out, stored, sum_u32),
        DType::I64 | DType::U64 => running(src, out, stored, sum_u64),
        DType::F32 => running(src, out, stored, |a, b| (f32::from_le_bytes(a) + f32::from_le_bytes(b)).to_le_bytes()),
        DType::F64 => running(src, out, stored, |a, b| (f64::from_le_bytes(a) + f64::from_le_bytes(b)).to_le_bytes()),
        DType::Bool | DType::F16 => {
            return Err(CodecError::Corrupt { filter: NAME, reason: "differences of a type that has none" });
        }
    }
    Ok(Produced::up_to(end))
}

fn sum_u16(a: [u8; 2], b: [u8; 2]) -> [u8; 2] {
    u16::from_le_bytes(a).wrapping_add(u16::from_le_bytes(b)).to_le_bytes()
}

fn sum_u32(a: [u8; 4], b: [u8; 4]) -> [u8; 4] {
    u32::from_le_bytes(a).wrapping_add(u32::from_le_bytes(b)).to_le_bytes()
}

fn sum_u64(a: [u8; 8], b: [u8; 8]) -> [u8; 8] {
    u64::from_le_bytes(a).wrapping_add(u64::from_le_bytes(b)).to_le_bytes()
}

/// Running sums of elements of `SIZE` bytes; `add` works on little-endian ones.
fn running<const SIZE: usize>(
    src: &[u8],
    out: &mut [u8],
    stored: Stored,
    add: impl Fn([u8; SIZE], [u8; SIZE]) -> [u8; SIZE],
) {
    let swapped = |mut bytes: [u8; SIZE]| {
        if stored.big_endian {
            bytes.reverse();
        }
        bytes
    };
    let mut sum: Option<[u8; SIZE]> = None;
    for (to, from) in out.as_chunks_mut::<SIZE>().0.iter_mut().zip(src.as_chunks::<SIZE>().0) {
        let next = swapped(*from);
        let total = sum.map_or(next, |sum| add(sum, next));
        *to = swapped(total);
        sum = Some(total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_every_type() {
        let little = Stored::little;
        let mut out = [0; 4];
        decode(little(DType::U8), &[250, 10, 0xff, 1], 4, &mut out).unwrap();
        assert_eq!(out, [250, 4, 3, 4]);
        decode(Stored { dtype: DType::I16, big_endian: true }, &[1, 0, 0xff, 0xff], 4, &mut out).unwrap();
        assert_eq!(out, [1, 0, 0, 0xff]);
        let floats = [1.5_f32, -2.0, 0.25].map(f32::to_le_bytes).concat();
        let mut out = [0; 12];
        let produced = decode(little(DType::F32), &floats, 5, &mut out).unwrap();
        assert_eq!((produced.valid, &out[..8]), (0..8, &*[1.5_f32, -0.5].map(f32::to_le_bytes).concat()));
        for (dtype, size) in [(DType::I32, 4), (DType::U64, 8), (DType::F64, 8)] {
            let mut out = vec![9; size * 2];
            decode(little(dtype), &vec![0; size * 2], size * 2, &mut out).unwrap();
            assert_eq!(out, vec![0; size * 2]);
        }
        assert!(decode(little(DType::Bool), &[0], 1, &mut [0]).is_err());
        assert!(decode(little(DType::U8), &[0, 1], 1, &mut [0]).is_err());
    }
}
