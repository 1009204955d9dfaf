//! The bitshuffle filter: bits of equal significance stored together, in blocks, each alone or compressed.
//!
//! A shuffled block of n elements (a multiple of 8) consists of rows of n / 8 bytes: row `8 * j + k` holds bit k of byte j
//! of every element, eight elements to a byte, the first in the lowest bit. Blocks have the length in the client data or
//! the library's default; the last one is shorter, and the last `n % 8` elements of the chunk are not shuffled at all.
//!
//! With a compressor the chunk size (u64) and the block size in bytes (u32) come first, then per block its stored length
//! (u32) and its bytes, all big-endian. Blocks are independent: only those that hold needed bytes are decoded.

use std::ops::Range;

use super::pipeline::Produced;
use super::reader::Reader;
use super::scratch::{Tools, sized};
use super::{BitshuffleCompressor, CodecError, shuffle};
use crate::num::to_u64;

/// Name in messages.
pub(super) const NAME: &str = "bitshuffle";

/// Elements whose bits share a byte; block lengths are multiples of it.
const GROUP: usize = 8;
/// What the library's default block aims at.
const DEFAULT_BLOCK_BYTES: usize = 8192;
/// The library's shortest default block.
const MIN_DEFAULT_ELEMS: usize = 128;

/// Length of a block in bytes, if the client data ask for `block_elems` (0: the library's default, which by its own words
/// never changes).
pub(super) fn block_bytes(elem_size: usize, block_elems: usize) -> usize {
    let elem_size = elem_size.max(1);
    let elems = match block_elems {
        0 => (DEFAULT_BLOCK_BYTES / elem_size / GROUP * GROUP).max(MIN_DEFAULT_ELEMS),
        n => n,
    };
    elems.saturating_mul(elem_size)
}

/// Undoes the filter for the blocks that hold `need`.
pub(super) fn decode(
    (elem_size, block_elems, compressor): (usize, usize, BitshuffleCompressor),
    src: &[u8],
    need: Range<usize>,
    out: &mut [u8],
    tools: &mut Tools,
) -> Result<Produced, CodecError> {
    let elem_size = elem_size.max(1);
    if !out.len().is_multiple_of(elem_size) {
        return Err(corrupt("chunk is not a whole number of elements"));
    }
    let mut reader = Reader::new(src, NAME);
    let block_len = match compressor {
        BitshuffleCompressor::None => block_bytes(elem_size, block_elems),
        _ => compressed_header(&mut reader, elem_size, out.len())?,
    };
    let shuffled_len = out.len() / (GROUP * elem_size) * (GROUP * elem_size);
    let mut start = 0;
    let mut valid = None;
    while start < need.end {
        let len = block_len.min(shuffled_len - start);
        if len == 0 {
            // The elements behind the last block.
            let rest = &mut out[shuffled_len..];
            rest.copy_from_slice(reader.take(rest.len())?);
            valid = Some(valid.unwrap_or(shuffled_len));
            start = out.len();
            break;
        }
        let stored_len = if compressor == BitshuffleCompressor::None { len } else { reader.len_u32_be()? };
        let stored = reader.take(stored_len)?;
        if start + len > need.start {
            let shuffled = decompress(compressor, stored, len, tools)?;
            unshuffle(elem_size, shuffled, &mut out[start..start + len]);
            valid = Some(valid.unwrap_or(start));
        }
        start += len;
    }
    if start == out.len() && !reader.is_empty() {
        return Err(corrupt("bytes behind the last element"));
    }
    let valid = valid.unwrap_or(need.start)..start;
    Ok(Produced { decoded: valid.len(), valid })
}

/// Reads the header of a compressed chunk; returns the block size in bytes.
fn compressed_header(reader: &mut Reader<'_>, elem_size: usize, expected: usize) -> Result<usize, CodecError> {
    let total = u64::from_be_bytes(reader.array()?);
    let block_bytes = reader.len_u32_be()?;
    if total != to_u64(expected) {
        return Err(CodecError::WrongLength { filter: NAME, expected: to_u64(expected), found: total });
    }
    if block_bytes == 0 || !block_bytes.is_multiple_of(GROUP * elem_size) {
        return Err(corrupt("block size is not a multiple of 8 elements"));
    }
    Ok(block_bytes)
}

/// The `len` shuffled bytes of a block.
fn decompress<'a>(
    compressor: BitshuffleCompressor,
    stored: &'a [u8],
    len: usize,
    tools: &'a mut Tools,
) -> Result<&'a [u8], CodecError> {
    if compressor == BitshuffleCompressor::None {
        return Ok(stored);
    }
    // Taken out, so that the tools can be used meanwhile.
    let mut buffer = std::mem::take(&mut tools.block);
    let block = sized(&mut buffer, len);
    let result = match compressor {
        BitshuffleCompressor::Zstd => super::zstd::whole(stored, block, tools).is_ok(),
        _ => super::lz4::block(stored, block).is_ok(),
    };
    tools.block = buffer;
    if result { Ok(&tools.block[..len]) } else { Err(corrupt("damaged block")) }
}

/// Undoes the bit shuffle of a block of a multiple of 8 elements. `src` and `dst` have the same length.
pub(super) fn unshuffle(elem_size: usize, src: &[u8], dst: &mut [u8]) {
    let row_len = src.len() / elem_size / GROUP;
    let mut column = 0;
    if elem_size <= MAX_TILED_ELEM {
        while column + TILE_COLUMNS <= row_len {
            let tile = &mut dst[column * GROUP * elem_size..][..TILE_ELEMS * elem_size];
            unshuffle_tile(elem_size, src, (row_len, column), tile);
            column += TILE_COLUMNS;
        }
    }
    if column == row_len {
        return;
    }
    // The columns behind the tiles one by one: eight rows for each byte of the elements.
    for (j, rows) in src.chunks_exact(GROUP * row_len).take(elem_size).enumerate() {
        let row = |k: usize| &rows[k * row_len..(k + 1) * row_len];
        let rows = [0, 1, 2, 3, 4, 5, 6, 7].map(row);
        for (column, elems) in dst.chunks_exact_mut(GROUP * elem_size).enumerate().skip(column) {
            let bits = u64::from_le_bytes(rows.map(|row| row[column]));
            for (byte, elem) in transpose(bits).to_le_bytes().iter().zip(elems.chunks_exact_mut(elem_size)) {
                elem[j] = *byte;
            }
        }
    }
}

/// Columns that are done at once: a cache line of each row.
const TILE_COLUMNS: usize = 64;
/// Their elements.
const TILE_ELEMS: usize = GROUP * TILE_COLUMNS;
/// The longest elements whose tile is kept on the stack, 4 KiB.
const MAX_TILED_ELEM: usize = 8;

/// Undoes the bit shuffle of the columns from `column` on into `dst`. The bits of eight rows, transposed, give eight
/// streams, of which stream i holds the bytes of every eighth element; interleaved they are a byte plane, and the byte
/// planes interleaved are the elements.
fn unshuffle_tile(elem_size: usize, src: &[u8], (row_len, column): (usize, usize), dst: &mut [u8]) {
    let mut planes = [0; MAX_TILED_ELEM * TILE_ELEMS];
    for (j, plane) in planes.chunks_exact_mut(TILE_ELEMS).take(elem_size).enumerate() {
        let rows = std::array::from_fn(|k| &src[(GROUP * j + k) * row_len + column..][..TILE_COLUMNS]);
        let streams = transpose_rows(rows);
        shuffle::interleave_8(&streams.each_ref().map(<[u8; TILE_COLUMNS]>::as_slice), plane);
    }
    shuffle::unshuffle(elem_size, &planes[..dst.len()], dst);
}

/// Transposes the 8 x 8 bits of each column of eight rows: bit k of stream i is bit i of row k. As [`transpose`], with the
/// rows in words of their own.
fn transpose_rows(rows: [&[u8]; GROUP]) -> [[u8; TILE_COLUMNS]; GROUP] {
    const WORDS: usize = TILE_COLUMNS / 8;
    let words = |row: &[u8]| {
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(row.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        words
    };
    let mut x: [[u64; WORDS]; GROUP] = rows.map(words);
    for (distance, mask) in [(4, 0x0f0f_0f0f_0f0f_0f0f), (2, 0x3333_3333_3333_3333), (1, 0x5555_5555_5555_5555)] {
        for pair in x.chunks_exact_mut(2 * distance) {
            let (upper, lower) = pair.split_at_mut(distance);
            for (upper, lower) in upper.iter_mut().flatten().zip(lower.iter_mut().flatten()) {
                let swap: u64 = ((*upper >> distance) ^ *lower) & mask;
                *lower ^= swap;
                *upper ^= swap << distance;
            }
        }
    }
    x.map(|words| {
        let mut bytes = [0; TILE_COLUMNS];
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        bytes
    })
}

/// Transposes an 8 x 8 matrix of bits, one row per byte, by swapping ever larger squares off the diagonal.
#[inline(always)]
const fn transpose(bits: u64) -> u64 {
    let mut x = bits;
    let swap = (x ^ (x >> 7)) & 0x00aa_00aa_00aa_00aa;
    x ^= swap ^ (swap << 7);
    let swap = (x ^ (x >> 14)) & 0x0000_cccc_0000_cccc;
    x ^= swap ^ (swap << 14);
    let swap = (x ^ (x >> 28)) & 0x0000_0000_f0f0_f0f0;
    x ^ swap ^ (swap << 28)
}

const fn corrupt(reason: &'static str) -> CodecError {
    CodecError::Corrupt { filter: NAME, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bit by bit, from the definition.
    fn bit_shuffle(elem_size: usize, data: &[u8]) -> Vec<u8> {
        let n = data.len() / elem_size;
        let mut out = vec![0; data.len()];
        for i in 0..n {
            for bit in 0..8 * elem_size {
                let value = data[i * elem_size + bit / 8] >> (bit % 8) & 1;
                out[bit * (n / 8) + i / 8] |= value << (i % 8);
            }
        }
        out
    }

    fn encode(elem_size: usize, block_elems: usize, data: &[u8]) -> Vec<u8> {
        let whole = data.len() / (8 * elem_size) * 8 * elem_size;
        let mut out: Vec<u8> =
            data[..whole].chunks(block_bytes(elem_size, block_elems)).flat_map(|b| bit_shuffle(elem_size, b)).collect();
        out.extend(&data[whole..]);
        out
    }

    fn sample(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * i / 7) as u8).collect()
    }

    #[test]
    fn whole_chunks_of_all_element_sizes() {
        for elem_size in [1, 2, 3, 4, 8, 16] {
            for n in [0, 1, 7, 8, 9, 63, 1000, 5003] {
                for block_elems in [0, 8, 64, 4096] {
                    let data = sample(n * elem_size);
                    let stored = encode(elem_size, block_elems, &data);
                    let mut out = vec![0; data.len()];
                    let filter = (elem_size, block_elems, BitshuffleCompressor::None);
                    decode(filter, &stored, 0..data.len(), &mut out, &mut Tools::default()).unwrap();
                    assert_eq!(out, data, "{elem_size} {n} {block_elems}");
                }
            }
        }
    }

    #[test]
    fn only_needed_blocks_are_touched() {
        let data = sample(4 * 10_003);
        let stored = encode(4, 0, &data);
        for need in [0..1, 8191..8193, 20_000..20_001, 40_011..40_012, 0..40_012] {
            let mut out = vec![0xaa; data.len()];
            let filter = (4, 0, BitshuffleCompressor::None);
            let produced = decode(filter, &stored, need.clone(), &mut out, &mut Tools::default()).unwrap();
            assert!(produced.valid.start <= need.start && produced.valid.end >= need.end);
            assert!(produced.decoded < need.len() + 2 * 8192);
            assert_eq!(out[produced.valid.clone()], data[produced.valid.clone()]);
        }
    }

    #[test]
    fn default_blocks() {
        assert_eq!(block_bytes(4, 0), 8192);
        assert_eq!(block_bytes(3, 0), 2728 * 3);
        assert_eq!(block_bytes(1000, 0), 128_000);
        assert_eq!(block_bytes(4, 64), 256);
    }
}
