//! LZ4 blocks, and the LZ4 filter of HDF5 that stores a chunk as a sequence of them.
//!
//! The filter writes the chunk size (u64) and the block size (u32), then per block its stored length (u32) and its bytes,
//! all numbers big-endian; a block whose stored length equals its size is not compressed. Blocks are independent, so
//! those before the needed bytes are skipped, and the last needed one is decoded only as far as it is needed.
//!
//! Blocks are decoded by the reference library, whose `safe` functions check every access against both buffers.

use std::ffi::{c_char, c_int};
use std::ops::Range;

use super::CodecError;
use super::pipeline::Produced;
use super::reader::Reader;
use crate::num::to_u64;

/// Name in messages.
pub(super) const NAME: &str = "lz4";

// In the library that `lz4_sys` links, but not in its bindings.
#[allow(unsafe_code)]
unsafe extern "C" {
    fn LZ4_decompress_safe_partial(
        src: *const c_char,
        dst: *mut c_char,
        compressed_size: c_int,
        target_output_size: c_int,
        dst_capacity: c_int,
    ) -> c_int;
}

/// Why an LZ4 block did not give what it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BadBlock;

/// Decodes a block that must fill `dst` exactly.
#[allow(unsafe_code)]
pub(super) fn block(src: &[u8], dst: &mut [u8]) -> Result<(), BadBlock> {
    let (src_len, dst_len) = lengths(src, dst)?;
    // SAFETY: the library reads at most `src_len` bytes from `src` and writes at most `dst_len` bytes to `dst`, for any
    // content; both are the lengths of the slices.
    let written =
        unsafe { lz4_sys::LZ4_decompress_safe(src.as_ptr().cast(), dst.as_mut_ptr().cast(), src_len, dst_len) };
    if written == dst_len { Ok(()) } else { Err(BadBlock) }
}

/// Decodes the first `dst.len()` bytes of a block that may hold more, and whose end may be missing.
#[allow(unsafe_code)]
pub(super) fn block_prefix(src: &[u8], dst: &mut [u8]) -> Result<(), BadBlock> {
    let (src_len, dst_len) = lengths(src, dst)?;
    // SAFETY: as above.
    let written =
        unsafe { LZ4_decompress_safe_partial(src.as_ptr().cast(), dst.as_mut_ptr().cast(), src_len, dst_len, dst_len) };
    if written == dst_len { Ok(()) } else { Err(BadBlock) }
}

fn lengths(src: &[u8], dst: &[u8]) -> Result<(c_int, c_int), BadBlock> {
    match (c_int::try_from(src.len()), c_int::try_from(dst.len())) {
        (Ok(src_len), Ok(dst_len)) if src_len > 0 && dst_len > 0 => Ok((src_len, dst_len)),
        _ => Err(BadBlock),
    }
}

/// Decodes the blocks that hold `need`.
pub(super) fn decode(src: &[u8], need: Range<usize>, out: &mut [u8]) -> Result<Produced, CodecError> {
    let mut reader = Reader::new(src, NAME);
    let (total, block_bytes) = (u64::from_be_bytes(reader.array()?), reader.len_u32_be()?);
    if total != to_u64(out.len()) {
        return Err(CodecError::WrongLength { filter: NAME, expected: to_u64(out.len()), found: total });
    }
    if block_bytes == 0 {
        return Err(CodecError::Corrupt { filter: NAME, reason: "block size is zero" });
    }
    let is_whole = need.end == out.len();
    let first_start = need.start / block_bytes * block_bytes;
    let mut start = 0;
    for block_out in out.chunks_mut(block_bytes) {
        if start >= need.end {
            break;
        }
        let stored_len = reader.len_u32_be()?;
        if start < first_start {
            reader.take(stored_len)?;
        } else {
            let take = block_out.len().min(need.end - start);
            decode_block(&mut reader, stored_len, take, block_out)?;
        }
        start += block_out.len();
    }
    if is_whole && !reader.is_empty() {
        return Err(CodecError::Corrupt { filter: NAME, reason: "bytes behind the last block" });
    }
    Ok(Produced { valid: first_start..need.end, decoded: need.end - first_start })
}

/// Decodes what numcodecs writes: the size of the chunk (u32, little-endian), then one block.
pub(super) fn decode_sized(src: &[u8], need_end: usize, out: &mut [u8]) -> Result<Produced, CodecError> {
    let mut reader = Reader::new(src, NAME);
    let total = u32::from_le_bytes(reader.array()?);
    if u64::from(total) != to_u64(out.len()) {
        return Err(CodecError::WrongLength { filter: NAME, expected: to_u64(out.len()), found: u64::from(total) });
    }
    let stored = reader.rest();
    let is_part = !super::pipeline::is_nearly_all(need_end, out.len());
    let end = if is_part { need_end } else { out.len() };
    let result = if is_part { block_prefix(stored, &mut out[..end]) } else { block(stored, out) };
    result.map_err(|BadBlock| CodecError::Corrupt { filter: NAME, reason: "damaged block" })?;
    Ok(Produced::up_to(end))
}

/// Decodes the first `take` bytes of the block that fills `out`.
fn decode_block(reader: &mut Reader<'_>, stored_len: usize, take: usize, out: &mut [u8]) -> Result<(), CodecError> {
    let is_part = take < out.len();
    let is_raw = stored_len == out.len();
    let stored = match reader.take(stored_len) {
        Ok(stored) => stored,
        // What is needed of the block may be there although its end is not.
        Err(_) if is_part => reader.rest(),
        Err(error) => return Err(error),
    };
    if is_raw {
        out[..take].copy_from_slice(stored.get(..take).ok_or(CodecError::Truncated { filter: NAME })?);
        return Ok(());
    }
    let result = if is_part { block_prefix(stored, &mut out[..take]) } else { block(stored, out) };
    result.map_err(|BadBlock| CodecError::Corrupt { filter: NAME, reason: "damaged block" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(data: &[u8], block_bytes: usize) -> Vec<u8> {
        let mut out = (data.len() as u64).to_be_bytes().to_vec();
        out.extend((block_bytes as u32).to_be_bytes());
        for block in data.chunks(block_bytes) {
            let packed = lz4_flex::block::compress(block);
            let stored = if packed.len() < block.len() { &packed } else { block };
            out.extend((stored.len() as u32).to_be_bytes());
            out.extend(stored);
        }
        out
    }

    fn sample() -> Vec<u8> {
        (0..10_000_u32).flat_map(|i| (i / 3 * 17).to_le_bytes()).collect()
    }

    #[test]
    fn every_range_decodes_and_nothing_else_is_touched() {
        let data = sample();
        for block_bytes in [1000, 4096, 39_999, 40_000, 1 << 30] {
            let stored = encode(&data, block_bytes);
            for need in [0..40_000, 0..1, 5000..5001, 39_999..40_000, 0..20_000, 999..1001] {
                let mut out = vec![0xaa; data.len()];
                let produced = decode(&stored, need.clone(), &mut out).unwrap();
                assert!(produced.valid.start <= need.start && produced.valid.end >= need.end);
                assert_eq!(out[produced.valid.clone()], data[produced.valid.clone()]);
                assert!(out[produced.valid.end..].iter().all(|b| *b == 0xaa));
            }
        }
    }

    #[test]
    fn the_end_of_the_last_block_may_be_missing() {
        let data = sample();
        let stored = encode(&data, 1 << 20);
        let mut out = vec![0; data.len()];
        decode(&stored[..stored.len() * 6 / 10], 0..data.len() / 2, &mut out).unwrap();
        assert_eq!(out[..data.len() / 2], data[..data.len() / 2]);
        assert!(decode(&stored[..stored.len() / 3], 0..data.len() / 2, &mut out).is_err());
    }

    #[test]
    fn one_block_behind_its_size() {
        let data = sample();
        let mut stored = (data.len() as u32).to_le_bytes().to_vec();
        stored.extend(lz4_flex::block::compress(&data));
        for need_end in [1, 1000, data.len() - 1, data.len()] {
            let mut out = vec![0; data.len()];
            let produced = decode_sized(&stored, need_end, &mut out).unwrap();
            assert!(produced.valid.end >= need_end && out[..need_end] == data[..need_end]);
        }
        let mut out = vec![0; data.len() + 1];
        assert!(matches!(decode_sized(&stored, 1, &mut out), Err(CodecError::WrongLength { .. })));
        let mut out = vec![0; data.len()];
        let cut = stored.len() / 2;
        assert!(decode_sized(&stored[..cut], data.len(), &mut out).is_err());
        assert!(decode_sized(&stored[..3], 1, &mut out).is_err());
    }

    #[test]
    fn headers_are_checked() {
        let data = sample();
        let mut out = vec![0; data.len()];
        let mut stored = encode(&data, 4096);
        stored.push(0);
        assert!(matches!(decode(&stored, 0..data.len(), &mut out), Err(CodecError::Corrupt { .. })));
        stored[7] ^= 1;
        assert!(matches!(decode(&stored, 0..data.len(), &mut out), Err(CodecError::WrongLength { .. })));
        stored[7] ^= 1;
        stored[8..12].fill(0);
        assert!(matches!(decode(&stored, 0..data.len(), &mut out), Err(CodecError::Corrupt { .. })));
        assert_eq!(decode(&stored[..10], 0..1, &mut out), Err(CodecError::Truncated { filter: NAME }));
    }
}
