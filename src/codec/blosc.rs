//! The blosc filter: one buffer of the blosc-1 format.
//!
//! A header of 16 bytes (format version, codec version, flags, element size, then as little-endian i32 the sizes of the
//! data, of a block, and of the buffer), then the offsets of the blocks and the blocks (`blosc_blocks`), or the data as
//! they are if the flags say so. Format: C-Blosc 1.21, `README_CHUNK_FORMAT.rst`.

use std::ops::Range;

use super::blosc_blocks::{Blocks, MAX_STEPS, Step, StreamCodec};
use super::pipeline::Produced;
use super::reader::Reader;
use super::scratch::Tools;
use super::{BlockHint, CodecError};
use crate::num::to_u64;

/// Name in messages.
pub(super) const NAME: &str = "blosc";

/// Size of the header.
const HEADER_BYTES: usize = 16;
/// The only version of the format.
const VERSION: u8 = 2;
/// Blocks of more streams than this are never split,
const MAX_STREAMS: usize = 16;
/// nor those whose streams would be shorter than this.
const MIN_STREAM_BYTES: usize = 128;

const SHUFFLED: u8 = 1;
const COPIED: u8 = 2;
const BIT_SHUFFLED: u8 = 4;
const RESERVED: u8 = 8;
const NOT_SPLIT: u8 = 16;

/// Decodes the internal blocks that hold `need`.
pub(super) fn decode(
    (src, is_whole): (&[u8], bool),
    need: Range<usize>,
    hint: &BlockHint,
    tools: &mut Tools,
    out: &mut [u8],
) -> Result<Produced, CodecError> {
    let mut header = Reader::new(src, NAME);
    let [version, _, flags, elem_size] = header.array()?;
    let (data_len, block_bytes, stored_len) = (header.len_i32_le()?, header.len_i32_le()?, header.len_i32_le()?);
    if version != VERSION || flags & RESERVED != 0 {
        return Err(corrupt("unknown version"));
    }
    if data_len != out.len() {
        return Err(CodecError::WrongLength { filter: NAME, expected: to_u64(out.len()), found: to_u64(data_len) });
    }
    if (is_whole && stored_len != src.len()) || stored_len < src.len() {
        return Err(corrupt("header and chunk differ in the stored size"));
    }
    if data_len == 0 {
        return Ok(Produced::up_to(0));
    }
    let elem_size = usize::from(elem_size);
    if block_bytes == 0 || block_bytes > data_len || elem_size == 0 {
        return Err(corrupt("block or element size out of range"));
    }
    hint.learn(block_bytes);
    if flags & COPIED != 0 {
        return copied(src, stored_len, need, out);
    }
    let Some(codec) = StreamCodec::from_flags(flags) else { return Err(corrupt("unknown codec")) };
    let is_split = flags & NOT_SPLIT == 0 && elem_size <= MAX_STREAMS && block_bytes / elem_size >= MIN_STREAM_BYTES;
    let mut steps = [None; MAX_STEPS];
    if flags & SHUFFLED != 0 && elem_size > 1 {
        steps[0] = Some(Step::Shuffle(elem_size));
    } else if flags & BIT_SHUFFLED != 0 && block_bytes >= elem_size {
        steps[0] = Some(Step::Bitshuffle { elem_size, all_or_nothing: true });
    }
    let blocks = Blocks {
        filter: NAME,
        chunk: src,
        table_at: HEADER_BYTES,
        codec,
        n_streams: if is_split { elem_size } else { 1 },
        block_bytes,
        has_runs: false,
        steps,
    };
    blocks.decode(need, tools, out)
}

/// Data that did not compress stand behind the header.
fn copied(src: &[u8], stored_len: usize, need: Range<usize>, out: &mut [u8]) -> Result<Produced, CodecError> {
    if stored_len != out.len() + HEADER_BYTES {
        return Err(corrupt("stored size of uncompressed data is wrong"));
    }
    let data = src.get(HEADER_BYTES..).and_then(|data| data.get(need.clone()));
    out[need.clone()].copy_from_slice(data.ok_or(CodecError::Truncated { filter: NAME })?);
    Ok(Produced { decoded: need.len(), valid: need })
}

const fn corrupt(reason: &'static str) -> CodecError {
    CodecError::Corrupt { filter: NAME, reason }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use proptest::prelude::*;

    use super::super::{Filter, Pipeline, Scratch};
    use super::*;

    /// What C-Blosc makes of `data`.
    #[allow(unsafe_code)]
    fn compress(data: &[u8], level: i32, shuffle: i32, elem_size: usize, codec: &str, block_bytes: usize) -> Vec<u8> {
        let mut out = vec![0; data.len() + HEADER_BYTES];
        let codec = CString::new(codec).unwrap();
        // SAFETY: the lengths are those of the two buffers, and the name ends with a zero byte.
        let len = unsafe {
            blosc_src::blosc_compress_ctx(
                level,
                shuffle,
                elem_size,
                data.len(),
                data.as_ptr().cast(),
                out.as_mut_ptr().cast(),
                out.len(),
                codec.as_ptr(),
                block_bytes,
                1,
            )
        };
        out.truncate(usize::try_from(len).unwrap());
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn everything_that_c_blosc_writes(
            level in 0..10_i32,
            shuffle in 0..3_i32,
            elem_size in prop::sample::select(vec![1_usize, 2, 3, 4, 7, 8, 16, 17, 40]),
            codec in prop::sample::select(vec!["blosclz", "lz4", "lz4hc", "zlib", "zstd"]),
            block_bytes in prop::sample::select(vec![0_usize, 128, 1000, 4096, 20_000]),
            (n, spread, period) in (1..9000_usize, 1..2000_u64, 1..500_usize),
            (a, b) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        ) {
            let mut state = 1_u64;
            let mut data: Vec<u8> = (0..n).flat_map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                ((state >> 33) % spread).to_le_bytes()
            }).take(n * 4).collect();
            for i in period..data.len() / 2 {
                data[i] = data[i - period];
            }
            let stored = compress(&data, level, shuffle, elem_size, codec, block_bytes);
            let pipeline = Pipeline::new([Filter::Blosc], data.len());
            let mut scratch = Scratch::default();
            let (a, b) = (a.index(data.len()), b.index(data.len()) + 1);
            for need in [0..data.len(), 0..b, a.min(b)..a.max(b)] {
                let mut out = vec![0xee; data.len()];
                let decoded = pipeline.decode(&stored, false, 0, need.clone(), &mut scratch, &mut out).unwrap();
                let valid = decoded.valid;
                prop_assert!(valid.start <= need.start && need.end <= valid.end);
                prop_assert!(out[valid.clone()] == data[valid]);
            }
        }
    }

    #[test]
    fn sizes_in_the_header_must_be_those_of_the_chunk() {
        let data: Vec<u8> = (0..40_000_u32).flat_map(|i| (i / 5).to_le_bytes()).collect();
        let stored = compress(&data, 5, 1, 4, "lz4", 0);
        let mut out = vec![0; data.len()];
        let mut decode = |stored: &[u8]| {
            super::decode((stored, true), 0..data.len(), &BlockHint::default(), &mut Tools::default(), &mut out)
        };
        assert!(decode(&stored).is_ok());
        assert!(matches!(decode(&stored[..stored.len() - 1]), Err(CodecError::Corrupt { .. })));
        assert!(matches!(decode(&[stored.as_slice(), &[0]].concat()), Err(CodecError::Corrupt { .. })));
        for at in [0, 3, 4, 8, 12] {
            let mut changed = stored.clone();
            changed[at] = changed[at].wrapping_add(1);
            // Another element size only matters where it does not divide the block.
            assert!(at == 3 || decode(&changed).is_err(), "{at}");
        }
    }
}
