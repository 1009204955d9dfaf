//! Undoing a chain of filters.
//!
//! A chain has at most one compressor. Filters before it (in encode order) work on data of known size, the chunk's plus
//! the trailers of checksums, so the compressor's output has an exact size too; filters behind it work on the stored
//! bytes, whose length is at hand. So every buffer gets its size from the chunk or from the bytes that were read, never
//! from a number in them.
//!
//! The last filter that moves bytes writes into the caller's slice; results before it alternate between two scratch
//! buffers, and checksums only shorten a slice. A part of a chunk can be had without the rest where nothing but checksums
//! is applied beside one filter that can stop early ([`stored_prefix`] tells how much of the stored bytes that takes).

use std::ops::Range;

use super::scratch::{Scratch, Tools, sized};
use super::{BitshuffleCompressor, CodecError, Decoded, Filter, Pipeline, bitshuffle, deflate, fletcher32, zstd};
use crate::num::to_u64;

/// Name in messages that concern the chain and no filter of it.
const NAME: &str = "filter chain";

/// What one filter produced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Produced {
    /// Valid bytes of its output; contains what was needed.
    pub(super) valid: Range<usize>,
    /// Bytes it decoded for that.
    pub(super) decoded: usize,
}

impl Produced {
    /// The first `end` bytes, and no more.
    pub(super) const fn up_to(end: usize) -> Self {
        Self { valid: 0..end, decoded: end }
    }
}

/// True if decoding `need_end` of `len` bytes saves too little to forgo the faster decoder of whole chunks and its
/// checksum.
pub(super) const fn is_nearly_all(need_end: usize, len: usize) -> bool {
    need_end >= len - len / 8
}

/// The filters that were applied, with their positions, in encode order.
pub(super) fn applied(filters: &[Filter], mask: u32) -> impl DoubleEndedIterator<Item = (usize, &Filter)> + Clone {
    filters.iter().enumerate().filter(move |(i, _)| *i >= 32 || mask >> i & 1 == 0)
}

impl Filter {
    /// True if the length of its output depends on the data.
    const fn is_compressor(&self) -> bool {
        match self {
            Self::Shuffle { .. }
            | Self::Fletcher32
            | Self::Crc32c
            | Self::Delta { .. }
            | Self::Transpose { .. }
            | Self::ZipDeflate => false,
            Self::Bitshuffle { compressor, .. } => !matches!(compressor, BitshuffleCompressor::None),
            Self::Deflate | Self::Lzf | Self::Blosc | Self::Lz4 | Self::Lz4Block | Self::Zstd | Self::Blosc2 => true,
        }
    }

    /// True if it only adds a checksum behind the data.
    const fn is_checksum(&self) -> bool {
        matches!(self, Self::Fletcher32 | Self::Crc32c)
    }

    /// Checks the trailer of `bytes` and returns the data before it.
    pub(super) fn verify<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], CodecError> {
        match self {
            Self::Crc32c => super::crc32c::verify(bytes),
            _ => fletcher32::verify(bytes),
        }
    }
}

/// See [`Pipeline::stored_prefix`].
pub(super) fn stored_prefix(chain: &Pipeline, stored_len: usize, mask: u32, need_end: usize) -> usize {
    let mut moving = applied(&chain.filters, mask).filter(|(_, filter)| !filter.is_checksum());
    let (Some((_, filter)), None) = (moving.next(), moving.next()) else {
        // Raw bytes, or a chain of which the inner filters need all that the outer ones give.
        let is_raw = applied(&chain.filters, mask).all(|(_, filter)| filter.is_checksum());
        return if is_raw { need_end.min(stored_len) } else { stored_len };
    };
    let granule = match filter {
        // Longer than any stream of the chunk: read it all, so that it is found out.
        Filter::Deflate if stored_len > deflate::longest_stream_bytes(chain.chunk_bytes) => return stored_len,
        Filter::Deflate | Filter::Lzf | Filter::Lz4 | Filter::Lz4Block => 1,
        Filter::Zstd => zstd::BLOCK_BYTES,
        Filter::Bitshuffle { elem_size, block_elems, compressor } => {
            let block_bytes = bitshuffle::block_bytes(*elem_size, *block_elems).max(1);
            if *compressor == BitshuffleCompressor::None {
                return need_end.checked_next_multiple_of(block_bytes).unwrap_or(stored_len).min(stored_len);
            }
            block_bytes
        }
        Filter::Blosc | Filter::Blosc2 => match chain.block_hint.get() {
            Some(bytes) => bytes,
            None => return stored_len,
        },
        Filter::Shuffle { .. }
        | Filter::Fletcher32
        | Filter::Crc32c
        | Filter::Delta { .. }
        | Filter::Transpose { .. }
        | Filter::ZipDeflate => return stored_len,
    };
    estimate(stored_len, need_end.checked_next_multiple_of(granule).unwrap_or(usize::MAX), chain.chunk_bytes)
}

/// The stored bytes of `end` of `chunk_bytes`, if the chunk is about equally compressible everywhere: 10 % and 2 KiB are
/// added (measured on counts: too short for none of 5,400 gzip prefixes).
fn estimate(stored_len: usize, end: usize, chunk_bytes: usize) -> usize {
    if is_nearly_all(end, chunk_bytes) {
        return stored_len;
    }
    let share = u128::from(to_u64(stored_len)) * u128::from(to_u64(end)) / u128::from(to_u64(chunk_bytes.max(1)));
    let with_margin = share + share / 10 + 2048;
    usize::try_from(with_margin).unwrap_or(usize::MAX).min(stored_len)
}

/// Where the bytes lie that the next filter works on.
#[derive(Clone, Copy)]
enum Place {
    Stored,
    Front,
}

/// See [`Pipeline::decode`].
pub(super) fn decode(
    chain: &Pipeline,
    stored: &[u8],
    is_prefix: bool,
    mask: u32,
    need: Range<usize>,
    scratch: &mut Scratch,
    out: &mut [u8],
) -> Result<Decoded, CodecError> {
    if out.len() != chain.chunk_bytes || need.start > need.end || need.end > out.len() {
        return Err(CodecError::Corrupt { filter: NAME, reason: "asked for bytes that the chunk does not have" });
    }
    if need.is_empty() {
        return Ok(Decoded { valid: need, decoded_bytes: 0 });
    }
    if applied(&chain.filters, mask).filter(|(_, filter)| filter.is_compressor()).count() > 1 {
        return Err(CodecError::Corrupt { filter: NAME, reason: "more than one compressor" });
    }
    // Taken out, so that the tools can be used beside them; put back whatever happens.
    let [mut front, mut back] = std::mem::take(&mut scratch.stages);
    let result = undo(chain, (stored, is_prefix), mask, need, (&mut front, &mut back), &mut scratch.tools, out);
    scratch.stages = [front, back];
    result
}

/// Undoes the filters from the last to the first.
fn undo(
    chain: &Pipeline,
    (stored, is_prefix): (&[u8], bool),
    mask: u32,
    need: Range<usize>,
    (front, back): (&mut Vec<u8>, &mut Vec<u8>),
    tools: &mut Tools,
    out: &mut [u8],
) -> Result<Decoded, CodecError> {
    let is_member = |(_, filter): &(usize, &Filter)| **filter == Filter::ZipDeflate;
    let steps = applied(&chain.filters, mask).filter(|step| !is_member(step));
    let mut moving_left = steps.clone().filter(|(_, filter)| !filter.is_checksum()).count();
    let mut checksums_left = steps.clone().count() - moving_left;
    let (mut place, mut len, mut valid) = (Place::Stored, stored.len(), 0..stored.len());
    let (mut is_whole, mut decoded) = (!is_prefix, 0);
    if applied(&chain.filters, mask).any(|step| is_member(&step)) {
        // No chunk of this size is stored in more bytes, whatever its filters.
        let most = deflate::longest_stream_bytes(out.len() + checksums_left * fletcher32::TRAILER_BYTES);
        len = deflate::member(stored, sized(front, most), tools)?;
        (place, valid, decoded) = (Place::Front, 0..len, len);
    }
    for (_, filter) in steps.rev() {
        let src = match place {
            Place::Stored => &stored[..len],
            Place::Front => &front[..len],
        };
        if filter.is_checksum() {
            checksums_left -= 1;
            // Of a part there is nothing to verify, and its end is not the trailer.
            if is_whole {
                len = filter.verify(src)?.len();
                valid = 0..len;
            }
            continue;
        }
        moving_left -= 1;
        let target_len = match filter.is_compressor() || moving_left == 0 {
            true => out.len() + checksums_left * fletcher32::TRAILER_BYTES,
            false => len,
        };
        let is_last = moving_left == 0;
        // Checksums inside are verified when all stored bytes are at hand, and then need all of the data.
        let part = if is_last && (checksums_left == 0 || is_prefix) { need.clone() } else { 0..target_len };
        let writes_out = is_last && target_len == out.len();
        let target = if writes_out { &mut *out } else { sized(back, target_len) };
        let produced = invert(filter, chain, (src, is_whole), part, tools, target)?;
        decoded = decoded.max(produced.decoded);
        if writes_out {
            return Ok(Decoded { valid: produced.valid, decoded_bytes: to_u64(decoded) });
        }
        std::mem::swap(front, back);
        is_whole = produced.valid == (0..target_len);
        (place, len, valid) = (Place::Front, target_len, produced.valid);
    }
    let src = match place {
        Place::Stored => stored,
        Place::Front => front.get(..len).unwrap_or_default(),
    };
    if is_whole && len != out.len() {
        return Err(CodecError::WrongLength { filter: NAME, expected: to_u64(out.len()), found: to_u64(len) });
    }
    match src.get(need.clone()) {
        Some(part) if valid.start <= need.start && need.end <= valid.end => {
            out[need.clone()].copy_from_slice(part);
            Ok(Decoded { valid: need, decoded_bytes: to_u64(decoded) })
        }
        _ => Err(CodecError::Truncated { filter: NAME }),
    }
}

/// Undoes one filter that moves bytes: fills at least the bytes `part` of `out`.
fn invert(
    filter: &Filter,
    chain: &Pipeline,
    (src, is_whole): (&[u8], bool),
    part: Range<usize>,
    tools: &mut Tools,
    out: &mut [u8],
) -> Result<Produced, CodecError> {
    match filter {
        Filter::Deflate => super::deflate::decode(src, part.end, out, tools),
        Filter::Lzf => super::lzf::decode(src, part.end, out),
        Filter::Lz4 => super::lz4::decode(src, part, out),
        Filter::Lz4Block => super::lz4::decode_sized(src, part.end, out),
        Filter::Delta { stored } => super::delta::decode(*stored, src, part.end, out),
        Filter::Transpose { n_rows, elem_size } => super::transpose::decode(*n_rows, *elem_size, src, out),
        Filter::Zstd => super::zstd::decode(src, part.end, out, tools),
        Filter::Blosc => super::blosc::decode((src, is_whole), part, &chain.block_hint, tools, out),
        Filter::Blosc2 => super::blosc2::decode(src, part, &chain.block_hint, tools, out),
        Filter::Bitshuffle { elem_size, block_elems, compressor } => {
            bitshuffle::decode((*elem_size, *block_elems, *compressor), src, part, out, tools)
        }
        Filter::Shuffle { elem_size } => unshuffle(*elem_size, src, part, out),
        Filter::Fletcher32 | Filter::Crc32c | Filter::ZipDeflate => {
            Err(CodecError::Corrupt { filter: NAME, reason: "a filter out of its place" })
        }
    }
}

/// Undoes a shuffle, of which the planes must be complete, for the elements that hold `part`.
fn unshuffle(elem_size: usize, src: &[u8], part: Range<usize>, out: &mut [u8]) -> Result<Produced, CodecError> {
    use super::shuffle;
    if src.len() != out.len() {
        let (expected, found) = (to_u64(out.len()), to_u64(src.len()));
        return Err(CodecError::WrongLength { filter: shuffle::NAME, expected, found });
    }
    let elem_size = elem_size.max(1);
    let n_elems = out.len() / elem_size;
    if part.end <= n_elems * elem_size {
        let (first, end) = (part.start / elem_size, part.end.div_ceil(elem_size));
        shuffle::unshuffle_elems(elem_size, src, first, end, out);
        let valid = first * elem_size..end * elem_size;
        return Ok(Produced { decoded: valid.len(), valid });
    }
    shuffle::unshuffle(elem_size, src, out);
    Ok(Produced::up_to(out.len()))
}
