//! What one thread keeps from chunk to chunk: buffers, and the state of the decompressors.
//!
//! Buffers only grow, and are not cleared in between: their growth is bounded by the chunk sizes of the arrays, which were
//! checked when the store was opened.

use std::fmt;

use ::zstd::zstd_safe::DCtx;

use super::zstd::pair::PairDecoder;

/// Buffers and decompressors that one thread reuses from chunk to chunk.
#[derive(Default)]
pub struct Scratch {
    /// Results of the filters between the first and the last one.
    pub(super) stages: [Vec<u8>; 2],
    /// What the decoders use inside.
    pub(super) tools: Tools,
}

/// Buffers and decompressors inside the decoders, made when they are first needed.
#[derive(Default)]
pub(super) struct Tools {
    /// Whole zlib and gzip streams.
    libdeflate: Option<libdeflater::Decompressor>,
    /// Streams that stop at the last needed byte.
    inflate: Option<flate2::Decompress>,
    /// zstd frames.
    zstd: Option<DCtx<'static>>,
    /// Pairs of small zstd frames.
    zstd_pair: Option<Box<PairDecoder>>,
    /// One compressed block before its shuffle is undone.
    pub(super) block: Vec<u8>,
    /// A second one, for chains of shuffles.
    pub(super) block_spare: Vec<u8>,
    /// A padded chunk, before its blocks are put in place.
    pub(super) padded: Vec<u8>,
    /// Offsets of the chunks of a frame.
    pub(super) offsets: Vec<u8>,
}

impl Tools {
    /// The decompressor of whole zlib and gzip streams.
    pub(super) fn libdeflate(&mut self) -> &mut libdeflater::Decompressor {
        self.libdeflate.get_or_insert_with(libdeflater::Decompressor::new)
    }

    /// A fresh streaming decompressor; `zlib_header` false means a raw deflate stream.
    pub(super) fn inflate(&mut self, zlib_header: bool) -> &mut flate2::Decompress {
        let inflate = self.inflate.get_or_insert_with(|| flate2::Decompress::new(zlib_header));
        inflate.reset(zlib_header);
        inflate
    }

    /// The zstd context.
    pub(super) fn zstd(&mut self) -> &mut DCtx<'static> {
        self.zstd.get_or_insert_with(DCtx::create)
    }

    /// The decoder of two small zstd frames.
    pub(super) fn zstd_pair(&mut self) -> &mut PairDecoder {
        self.zstd_pair.get_or_insert_default()
    }
}

#[cfg(test)]
impl Scratch {
    /// Size of the largest buffer, in bytes.
    pub(super) fn largest_buffer(&self) -> usize {
        let Tools { block, block_spare, padded, offsets, .. } = &self.tools;
        [&self.stages[0], &self.stages[1], block, block_spare, padded, offsets]
            .map(Vec::len)
            .into_iter()
            .max()
            .unwrap_or(0)
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").finish_non_exhaustive()
    }
}

/// The first `len` bytes of `buffer`, which grows if it must. They hold whatever was there before.
#[must_use]
pub fn sized(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_grow_and_keep_their_size() {
        let mut buffer = Vec::new();
        assert_eq!(sized(&mut buffer, 10).len(), 10);
        sized(&mut buffer, 10)[9] = 7;
        assert_eq!(sized(&mut buffer, 3).len(), 3);
        assert_eq!(sized(&mut buffer, 10)[9], 7);
    }
}
