//! Bounded decompressors: every decoder fills a caller's slice exactly, or fails. Nothing here allocates by a number
//! that was read from the data.
//!
//! A stored chunk has gone through a chain of filters. [`Pipeline`] holds the chain in encode order with the size of the
//! decoded chunk, and undoes it from the last filter to the first, skipping those that the chunk's mask marks as not
//! applied. Intermediate results live in a [`Scratch`] that each thread reuses.
//!
//! A caller that needs only a part of a chunk says which bytes it needs. Chains whose last-decoded filter can stop early
//! (deflate, lz4 byte planes inside blosc) then decode no further than the end of that part, and chains without any
//! filter touch nothing else. What was decoded is reported, so that the amplification can be counted.
//!
//! [`convert`] holds what happens to decoded elements on their way into a batch: byte swaps, and column indices made
//! int32 after their range check. [`stream_copy`] copies past the caches.
// Test data may wrap.
#![cfg_attr(not(test), deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss))]

mod b2nd;
mod bitshuffle;
mod blosc;
mod blosc2;
mod blosc_blocks;
mod blosclz;
pub mod convert;
mod crc32c;
mod deflate;
mod delta;
#[cfg(test)]
mod fixture_tests;
mod fletcher32;
#[cfg(test)]
mod fuzz_tests;
mod lz4;
mod lz_copy;
mod lzf;
pub mod narrow;
mod pipeline;
mod reader;
mod registry;
mod scratch;
mod shuffle;
pub mod stream_copy;
mod transpose;
mod unsized_chunks;
mod zstd;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::dtype::Stored;

pub use crc32c::checksum as crc32c_checksum;
pub use scratch::{Scratch, sized};
pub use unsized_chunks::decode_unsized;

/// One step of a filter chain: filters of HDF5, with their numbers in its registry, and codecs of zarr.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    /// 1: A zlib stream; a gzip member, as zarr stores it, is recognised by its first bytes.
    Deflate,
    /// 2: Bytes of equal significance stored together; `elem_size` as the filter's client data say, in bytes.
    Shuffle {
        /// Element size in bytes.
        elem_size: usize,
    },
    /// 3: A 4-byte Fletcher-32 checksum behind the data.
    Fletcher32,
    /// 32000: LZF.
    Lzf,
    /// 32001: One blosc-1 buffer.
    Blosc,
    /// 32004: LZ4 in blocks behind a big-endian header.
    Lz4,
    /// 32008: Bit shuffle, alone or with a compressor per block.
    Bitshuffle {
        /// Element size in bytes.
        elem_size: usize,
        /// Block length in elements; 0 stands for the library's default.
        block_elems: usize,
        /// What compresses the shuffled blocks.
        compressor: BitshuffleCompressor,
    },
    /// 32015: One zstd frame.
    Zstd,
    /// 32026: One blosc-2 frame.
    Blosc2,
    /// A 4-byte CRC-32C behind the data, little-endian.
    Crc32c,
    /// One LZ4 block behind its decoded size, as numcodecs writes it.
    Lz4Block,
    /// Differences between neighbouring elements.
    Delta {
        /// Their type.
        stored: Stored,
    },
    /// The elements of a matrix column by column.
    Transpose {
        /// Rows of the chunk.
        n_rows: usize,
        /// Element size in bytes.
        elem_size: usize,
    },
    /// The raw deflate stream of a compressed member of a zip archive. Only as the last filter, around all others.
    ZipDeflate,
}

/// The compressor inside the bitshuffle filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BitshuffleCompressor {
    /// Bit shuffle only.
    None,
    /// LZ4 per block.
    Lz4,
    /// zstd per block.
    Zstd,
}

/// Why stored bytes could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The stored bytes end before the needed part is complete. If only a prefix of the chunk was read, reading all of
    /// it helps; otherwise the chunk is damaged.
    #[error("{filter}: stored bytes end too early")]
    Truncated {
        /// Name of the filter.
        filter: &'static str,
    },
    /// The stored bytes are not what the filter writes.
    #[error("{filter}: {reason}")]
    Corrupt {
        /// Name of the filter.
        filter: &'static str,
        /// What is wrong.
        reason: &'static str,
    },
    /// The stored bytes decode to another length than the chunk has.
    #[error("{filter}: decodes to {found} bytes or more, the chunk has {expected}")]
    WrongLength {
        /// Name of the filter.
        filter: &'static str,
        /// Bytes the chunk must have.
        expected: u64,
        /// Bytes found or claimed.
        found: u64,
    },
    /// A checksum does not match.
    #[error("{filter}: checksum does not match")]
    Checksum {
        /// Name of the filter.
        filter: &'static str,
    },
}

impl CodecError {
    /// Name of the filter that failed.
    #[must_use]
    pub const fn filter(&self) -> &'static str {
        match self {
            Self::Truncated { filter }
            | Self::Corrupt { filter, .. }
            | Self::WrongLength { filter, .. }
            | Self::Checksum { filter } => filter,
        }
    }
}

/// What a decode produced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoded {
    /// Bytes of the output that are valid: contains what was asked for.
    pub valid: Range<usize>,
    /// Bytes that went through a decompressor (0 if the chunk had no filter applied); the numerator of the amplification.
    pub decoded_bytes: u64,
}

/// Size of the internal blocks of an array's blosc chunks, in bytes: it stands in each chunk and not in the array's
/// metadata, so the first decoded chunk sets it, once, for all clones. Until then prefixes cannot be estimated.
#[derive(Debug, Clone, Default)]
pub struct BlockHint(Arc<AtomicUsize>);

impl BlockHint {
    /// The size, once known.
    #[must_use]
    pub fn get(&self) -> Option<usize> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            bytes => Some(bytes),
        }
    }

    /// Keeps the first size that was seen.
    fn learn(&self, bytes: usize) {
        if self.0.load(Ordering::Relaxed) == 0 {
            // A lost race means that another thread has set it.
            let _ = self.0.compare_exchange(0, bytes, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// The filter chain of one array.
#[derive(Debug, Clone)]
pub struct Pipeline {
    /// Filters in encode order.
    pub filters: Arc<[Filter]>,
    /// Size of a decoded chunk in bytes; edge chunks are stored full-size.
    pub chunk_bytes: usize,
    /// What decoding found out about the chunks; start with the default.
    pub block_hint: BlockHint,
}

impl Pipeline {
    /// A chain in encode order, for chunks that decode to `chunk_bytes` bytes.
    #[must_use]
    pub fn new(filters: impl Into<Arc<[Filter]>>, chunk_bytes: usize) -> Self {
        Self { filters: filters.into(), chunk_bytes, block_hint: BlockHint::default() }
    }

    /// True if the chain holds no filter: any part of a chunk can then be read by itself.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.filters.is_empty()
    }

    /// How many of a chunk's `stored_len` bytes are likely enough to decode the first `need_end` bytes of the chunk. An
    /// estimate with a margin for chains that can stop early, `stored_len` for all others. A caller that read only this
    /// much and gets [`CodecError::Truncated`] reads the whole chunk and decodes again.
    #[must_use]
    pub fn stored_prefix(&self, stored_len: usize, mask: u32, need_end: usize) -> usize {
        pipeline::stored_prefix(self, stored_len, mask, need_end)
    }

    /// Decodes a chunk, at least the bytes `need` of it, into `out`, which has [`Self::chunk_bytes`] bytes. Bit i of `mask` set
    /// means that filter i was not applied to this chunk. `stored` may be a prefix of the stored bytes if `is_prefix`
    /// says so; checksums over the whole chunk are then not verified, and every failure is reported as
    /// [`CodecError::Truncated`], since only the whole chunk can tell damage from a prefix that is too short.
    ///
    /// # Errors
    /// [`CodecError`] if the bytes are damaged, end early, or decode to another length than the chunk has. `out` then holds
    /// unspecified bytes.
    pub fn decode(
        &self,
        stored: &[u8],
        is_prefix: bool,
        mask: u32,
        need: Range<usize>,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<Decoded, CodecError> {
        pipeline::decode(self, stored, is_prefix, mask, need, scratch, out)
            .map_err(|error| if is_prefix { CodecError::Truncated { filter: error.filter() } } else { error })
    }
}

/// Decodes one LZ4 block that must fill `out` exactly.
///
/// # Errors
/// [`CodecError`] if it does not.
pub fn lz4_block(stored: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
    let reason = "damaged block, or of another length";
    lz4::block(stored, out).map_err(|_| CodecError::Corrupt { filter: lz4::NAME, reason })
}

/// Decodes one zstd frame that must fill `out` exactly; the size that it claims is compared before.
///
/// # Errors
/// [`CodecError`] if it does not.
pub fn zstd_frame(stored: &[u8], scratch: &mut Scratch, out: &mut [u8]) -> Result<(), CodecError> {
    let len = out.len();
    zstd::decode(stored, len, out, &mut scratch.tools).map(|_| ())
}

/// Most bytes that a frame decoded by [`zstd_pair`] has.
pub const ZSTD_PAIR_BYTES: usize = zstd::BLOCK_BYTES;

/// Decodes two zstd frames at once, each to exactly its part of `out`, in less time than one after the other. False if that cannot be done
/// with these two, because they are of another kind, or because one is damaged: [`zstd_frame`] decodes them, or tells. `out` then holds
/// anything.
pub fn zstd_pair(stored: [&[u8]; 2], scratch: &mut Scratch, out: [&mut [u8]; 2]) -> bool {
    scratch.tools.zstd_pair().decode(stored, out)
}
