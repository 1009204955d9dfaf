//! The blocks inside blosc chunks, which blosc-1 and blosc-2 share.
//!
//! A chunk is cut into blocks of equal size (the last one may be shorter). A table of offsets says where each one starts.
//! A block is one compressed stream, or, if it is split, one stream per byte of the elements; each stream follows its
//! length. What the streams give is shuffled, and the shuffles are undone block by block.
//!
//! Only the blocks that hold needed bytes are decoded. Of the last one even less, where a byte plane is a stream of its own:
//! the first m bytes of every plane give the first m elements, and LZ4 streams can stop there.

use std::ops::Range;

use super::CodecError;
use super::pipeline::Produced;
use super::reader::Reader;
use super::scratch::{Tools, sized};

/// What compressed the streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamCodec {
    BloscLz,
    Lz4,
    Zlib,
    Zstd,
}

impl StreamCodec {
    /// From the upper three bits of the chunk's flags.
    pub(super) const fn from_flags(flags: u8) -> Option<Self> {
        match flags >> 5 {
            0 => Some(Self::BloscLz),
            1 => Some(Self::Lz4),
            3 => Some(Self::Zlib),
            4 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// A filter inside a chunk, to be undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Byte shuffle of elements of that many bytes.
    Shuffle(usize),
    /// Bit shuffle of elements of that many bytes. `all_or_nothing`: blocks that are not a multiple of 8 elements were
    /// left alone; else only their last elements were.
    Bitshuffle { elem_size: usize, all_or_nothing: bool },
    /// Every byte was combined with one of the chunk's first block.
    Delta { elem_size: usize },
}

/// The most filters a chunk can have.
pub(super) const MAX_STEPS: usize = 6;

/// What the header of a chunk says about its blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks<'a> {
    /// Name in messages.
    pub(super) filter: &'static str,
    /// The chunk, from its header on.
    pub(super) chunk: &'a [u8],
    /// Where the table of offsets starts in it.
    pub(super) table_at: usize,
    pub(super) codec: StreamCodec,
    /// Streams of a full block that is split; 1 if it is not.
    pub(super) n_streams: usize,
    /// Size of a decoded block.
    pub(super) block_bytes: usize,
    /// True if stream lengths of 0 and below stand for runs of one byte (blosc-2).
    pub(super) has_runs: bool,
    /// Filters in encode order.
    pub(super) steps: [Option<Step>; MAX_STEPS],
}

impl Blocks<'_> {
    /// Decodes the blocks that hold `need` into their places in `out`, which has the size of the chunk.
    pub(super) fn decode(&self, need: Range<usize>, tools: &mut Tools, out: &mut [u8]) -> Result<Produced, CodecError> {
        let has_delta = self.has_delta();
        // The first block is the reference of all others.
        let first = if has_delta { 0 } else { need.start / self.block_bytes };
        let start = first * self.block_bytes;
        let (mut at, mut decoded) = (start, 0);
        let mut table = Reader::at(self.chunk, self.table_at, self.filter)?;
        table.take(first * 4)?;
        let mut end = start;
        while at < need.end {
            let offset = table.len_i32_le()?;
            if offset < self.table_at {
                return Err(self.corrupt("block starts inside the header"));
            }
            let (before, block) = out.split_at_mut(at);
            let len = self.block_bytes.min(block.len());
            let streams = Reader::at(self.chunk, offset, self.filter)?;
            // Delta works on whole elements.
            let take = if has_delta { len } else { need.end - at };
            let valid = self.decode_block(streams, take, tools, &mut block[..len])?;
            if has_delta {
                self.undo_delta(before, &mut block[..valid]);
            }
            decoded += valid;
            end = at + valid;
            at += len;
        }
        Ok(Produced { valid: start..end, decoded })
    }

    fn has_delta(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Some(Step::Delta { .. })))
    }

    /// The steps of a block but delta, in encode order. Delta is only accepted as the first of them.
    fn shuffles(&self) -> impl DoubleEndedIterator<Item = Step> + Clone {
        self.steps.into_iter().flatten().filter(|step| !matches!(step, Step::Delta { .. }))
    }

    /// Decodes at least the first `take` bytes of one block, which has the length of `out`; returns how many are valid.
    fn decode_block(
        &self,
        mut streams: Reader<'_>,
        take: usize,
        tools: &mut Tools,
        out: &mut [u8],
    ) -> Result<usize, CodecError> {
        let n_streams = if out.len() == self.block_bytes { self.n_streams } else { 1 };
        let take = take.min(out.len());
        let mut shuffles = self.shuffles();
        match (shuffles.next(), shuffles.next()) {
            (None, _) => {
                self.decode_run(&mut streams, n_streams, take, tools, out)?;
                Ok(take)
            }
            (Some(Step::Shuffle(elem_size)), None) if elem_size == n_streams => {
                let n_elems = take.div_ceil(elem_size);
                self.decode_planes(&mut streams, n_elems, n_streams, tools, out)?;
                Ok((n_elems * elem_size).min(out.len()))
            }
            _ => {
                self.decode_shuffled(&mut streams, n_streams, tools, out)?;
                Ok(out.len())
            }
        }
    }

    /// A block without shuffles: its streams are successive parts of it. Decodes the first `take` bytes.
    fn decode_run(
        &self,
        streams: &mut Reader<'_>,
        n_streams: usize,
        take: usize,
        tools: &mut Tools,
        out: &mut [u8],
    ) -> Result<(), CodecError> {
        let stream_len = self.stream_len(n_streams, out.len())?;
        let mut left = take;
        for part in out.chunks_exact_mut(stream_len) {
            if left == 0 {
                break;
            }
            let take = left.min(stream_len);
            self.decode_stream(streams, take, tools, part)?;
            left -= take;
        }
        Ok(())
    }

    /// A block of which every byte plane is a stream. Decodes the first `n_elems` elements.
    fn decode_planes(
        &self,
        streams: &mut Reader<'_>,
        n_elems: usize,
        elem_size: usize,
        tools: &mut Tools,
        out: &mut [u8],
    ) -> Result<(), CodecError> {
        let stream_len = self.stream_len(elem_size, out.len())?;
        let mut planes = std::mem::take(&mut tools.block);
        let shuffled = sized(&mut planes, out.len());
        let result = shuffled
            .chunks_exact_mut(stream_len)
            .try_for_each(|plane| self.decode_stream(streams, n_elems, tools, plane));
        if result.is_ok() {
            super::shuffle::unshuffle_elems(elem_size, shuffled, 0, n_elems, out);
        }
        tools.block = planes;
        result
    }

    /// A whole block with any shuffles.
    fn decode_shuffled(
        &self,
        streams: &mut Reader<'_>,
        n_streams: usize,
        tools: &mut Tools,
        out: &mut [u8],
    ) -> Result<(), CodecError> {
        let len = out.len();
        let (mut front, mut back) = (std::mem::take(&mut tools.block), std::mem::take(&mut tools.block_spare));
        let result = self.decode_run(streams, n_streams, len, tools, sized(&mut front, len));
        if result.is_ok() {
            let mut left = self.shuffles().count();
            for step in self.shuffles().rev() {
                left -= 1;
                let target = if left == 0 { &mut *out } else { sized(&mut back, len) };
                step.undo(&front[..len], target);
                std::mem::swap(&mut front, &mut back);
            }
        }
        (tools.block, tools.block_spare) = (front, back);
        result
    }

    /// Length of each of a block's streams.
    fn stream_len(&self, n_streams: usize, block_len: usize) -> Result<usize, CodecError> {
        if n_streams == 0 || !block_len.is_multiple_of(n_streams) || block_len < n_streams {
            return Err(self.corrupt("block does not divide into its streams"));
        }
        Ok(block_len / n_streams)
    }

    /// Decodes at least the first `take` bytes of the next stream, which has the length of `out`.
    fn decode_stream(
        &self,
        streams: &mut Reader<'_>,
        take: usize,
        tools: &mut Tools,
        out: &mut [u8],
    ) -> Result<(), CodecError> {
        let stored_len = streams.i32_le()?;
        let Ok(stored_len) = usize::try_from(stored_len) else {
            return self.fill_run(stored_len, streams, out);
        };
        if stored_len == 0 && self.has_runs {
            out.fill(0);
            return Ok(());
        }
        let stored = streams.take(stored_len)?;
        let take = take.min(out.len());
        if stored_len == out.len() {
            out[..take].copy_from_slice(&stored[..take]);
            return Ok(());
        }
        let is_good = match self.codec {
            StreamCodec::BloscLz => super::blosclz::decode(stored, take, out).is_ok(),
            StreamCodec::Lz4 if take < out.len() => super::lz4::block_prefix(stored, &mut out[..take]).is_ok(),
            StreamCodec::Lz4 => super::lz4::block(stored, out).is_ok(),
            StreamCodec::Zlib => super::deflate::whole(stored, out, tools).is_ok(),
            StreamCodec::Zstd => super::zstd::whole(stored, out, tools).is_ok(),
        };
        if is_good { Ok(()) } else { Err(self.corrupt("damaged stream")) }
    }

    /// A run of one byte other than 0, which is the negated length; a token that says so follows.
    fn fill_run(&self, stored_len: i32, streams: &mut Reader<'_>, out: &mut [u8]) -> Result<(), CodecError> {
        if !self.has_runs {
            return Err(self.corrupt("negative stream length"));
        }
        let token = streams.u8()?;
        match stored_len.checked_neg().map(u8::try_from) {
            Some(Ok(value)) if token & 1 == 1 => {
                out.fill(value);
                Ok(())
            }
            _ => Err(self.corrupt("unknown stream token")),
        }
    }

    /// Undoes the delta of a block: against the chunk's first block, which is the start of `before`, or inside the first
    /// block (nothing before it) against the element before.
    fn undo_delta(&self, before: &[u8], block: &mut [u8]) {
        let elem_size = self.steps.iter().flatten().find_map(|step| match step {
            Step::Delta { elem_size } => Some(*elem_size),
            _ => None,
        });
        let width = match elem_size.unwrap_or(1) {
            size @ (1 | 2 | 4 | 8) => size,
            size if size.is_multiple_of(8) => 8,
            _ => 1,
        };
        let len = block.len() / width * width;
        if before.is_empty() {
            for i in width..len {
                block[i] ^= block[i - width];
            }
        } else {
            for (byte, reference) in block[..len].iter_mut().zip(before) {
                *byte ^= reference;
            }
        }
    }

    const fn corrupt(&self, reason: &'static str) -> CodecError {
        CodecError::Corrupt { filter: self.filter, reason }
    }
}

impl Step {
    /// Undoes a shuffle of a block; both slices have its length.
    fn undo(self, src: &[u8], out: &mut [u8]) {
        match self {
            Self::Shuffle(elem_size) => super::shuffle::unshuffle(elem_size, src, out),
            Self::Bitshuffle { elem_size, all_or_nothing } => {
                let elem_size = elem_size.max(1);
                let n_elems = src.len() / elem_size;
                let n_shuffled = match n_elems % 8 {
                    0 => n_elems,
                    _ if all_or_nothing => 0,
                    rest => n_elems - rest,
                };
                let (shuffled, rest) = src.split_at(n_shuffled * elem_size);
                super::bitshuffle::unshuffle(elem_size, shuffled, &mut out[..shuffled.len()]);
                out[shuffled.len()..].copy_from_slice(rest);
            }
            Self::Delta { .. } => out.copy_from_slice(src),
        }
    }
}
