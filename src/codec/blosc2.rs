//! The blosc2 filter: one contiguous frame of the blosc-2 format ("b2frame").
//!
//! The frame's header (msgpack with fixed positions) gives the sizes of the data and of the chunks inside; an index behind
//! the chunks, itself a chunk, gives their offsets. The HDF5 plugin writes one chunk per frame, which then starts behind
//! the header, so that a prefix of the frame can be decoded. A frame with a `b2nd` metalayer holds its array in
//! multidimensional blocks (`b2nd`).
//!
//! A chunk has the header of blosc-1 with 16 bytes more: up to six filters, and a flag for chunks of one repeated value,
//! which have no blocks. Blocks are those of `blosc_blocks`. Formats: C-Blosc2, `README_CFRAME_FORMAT.rst` and
//! `README_CHUNK_FORMAT.rst`.

use std::ops::Range;

use super::blosc_blocks::{Blocks, MAX_STEPS, Step, StreamCodec};
use super::pipeline::Produced;
use super::reader::Reader;
use super::scratch::{Tools, sized};
use super::{BlockHint, CodecError, b2nd};
use crate::num::{to_u64, to_usize};

/// Name in messages.
pub(super) const NAME: &str = "blosc2";

/// Start of a frame: an array of 14, a string of 8.
const MAGIC: &[u8; 10] = b"\x9e\xa8b2frame\0";
/// Where the metalayers start in the frame's header.
const METALAYERS_AT: usize = 0x57;
/// Header of a chunk without and with the blosc-2 extension.
const HEADER_BYTES: usize = 16;
const EXTENDED_HEADER_BYTES: usize = 32;

/// Both shuffle flags together mark the extended header.
const EXTENDED: u8 = 1 | 4;
const COPIED: u8 = 2;
const NOT_SPLIT: u8 = 16;

/// What the header of a frame says.
struct Frame {
    header_len: usize,
    data_len: usize,
    /// Size of all chunks, without the index.
    chunks_len: usize,
    elem_size: usize,
    /// Size of a decoded chunk; the last one may be shorter.
    chunk_len: usize,
}

/// Decodes the chunks and blocks that hold `need`.
pub(super) fn decode(
    src: &[u8],
    need: Range<usize>,
    hint: &BlockHint,
    tools: &mut Tools,
    out: &mut [u8],
) -> Result<Produced, CodecError> {
    let frame = Frame::read(src)?;
    let header = src.get(METALAYERS_AT..frame.header_len).unwrap_or_default();
    if let Some(array) = b2nd::Array::find(header, src)? {
        hint.learn(usize::MAX);
        array.check(out.len(), frame.data_len)?;
        let mut padded = std::mem::take(&mut tools.padded);
        let result = frame.decode(src, 0..frame.data_len, None, tools, sized(&mut padded, frame.data_len));
        if result.is_ok() {
            array.unblock(&padded[..frame.data_len], out);
        }
        tools.padded = padded;
        return result.map(|_| Produced::up_to(out.len()));
    }
    if frame.data_len != out.len() {
        let (expected, found) = (to_u64(out.len()), to_u64(frame.data_len));
        return Err(CodecError::WrongLength { filter: NAME, expected, found });
    }
    frame.decode(src, need, Some(hint), tools, out)
}

impl Frame {
    fn read(src: &[u8]) -> Result<Self, CodecError> {
        let mut header = Reader::new(src, NAME);
        if header.array()? != *MAGIC {
            return Err(corrupt("not a frame"));
        }
        let header_len = header.len_msgpack(0xd2)?;
        header.len_msgpack(0xcf)?;
        let [_, _, frame_type, _, _] = header.array::<5>()?;
        if frame_type & 15 != 0 {
            return Err(corrupt("frame is not contiguous"));
        }
        let data_len = header.len_msgpack(0xd3)?;
        let chunks_len = header.len_msgpack(0xd3)?;
        let elem_size = header.len_msgpack(0xd2)?;
        header.len_msgpack(0xd2)?;
        let chunk_len = header.len_msgpack(0xd2)?;
        Ok(Self { header_len, data_len, chunks_len, elem_size, chunk_len })
    }

    /// Decodes the chunks that hold `need`.
    fn decode(
        &self,
        src: &[u8],
        need: Range<usize>,
        hint: Option<&BlockHint>,
        tools: &mut Tools,
        out: &mut [u8],
    ) -> Result<Produced, CodecError> {
        if self.data_len == 0 {
            return Ok(Produced::up_to(0));
        }
        if self.chunk_len >= self.data_len && self.chunks_len > 0 {
            let chunk = Chunk::read(src.get(self.header_len..).unwrap_or_default())?;
            if chunk.stored_len != self.chunks_len {
                return Err(corrupt("frame and chunk differ in size"));
            }
            if let Some(hint) = hint {
                hint.learn(chunk.block_bytes.max(1));
            }
            return chunk.decode(need, tools, out);
        }
        // An index entry has 8 bytes: with chunks of at least that size, the index is no larger than the data.
        if self.chunk_len < 8 {
            return Err(corrupt("chunks inside the frame are too small"));
        }
        let mut index = std::mem::take(&mut tools.offsets);
        let index_bytes = sized(&mut index, self.data_len.div_ceil(self.chunk_len) * 8);
        let result = self.decode_by_index(src, need, index_bytes, tools, out);
        tools.offsets = index;
        result
    }

    fn decode_by_index(
        &self,
        src: &[u8],
        need: Range<usize>,
        index: &mut [u8],
        tools: &mut Tools,
        out: &mut [u8],
    ) -> Result<Produced, CodecError> {
        let index_at = self.header_len.checked_add(self.chunks_len).ok_or(corrupt("index out of range"))?;
        let index_len = index.len();
        Chunk::read(src.get(index_at..).unwrap_or_default())?.decode(0..index_len, tools, index)?;
        let mut produced = Produced { valid: need.start..need.start, decoded: 0 };
        for (i, (entry, part)) in index.as_chunks::<8>().0.iter().zip(out.chunks_mut(self.chunk_len)).enumerate() {
            let start = i * self.chunk_len;
            let end = start + part.len();
            if end <= need.start || start >= need.end {
                continue;
            }
            let wanted = need.start.saturating_sub(start)..part.len().min(need.end - start);
            let valid = match self.chunk_at(src, u64::from_le_bytes(*entry))? {
                Ok(chunk) => chunk.decode(wanted, tools, part)?,
                Err(special) => special.fill(wanted, part)?,
            };
            if produced.valid.is_empty() {
                produced.valid.start = start + valid.valid.start;
            }
            produced.valid.end = start + valid.valid.end;
            produced.decoded += valid.decoded;
        }
        Ok(produced)
    }

    /// The chunk that an entry of the index points at, or the value it stands for.
    fn chunk_at<'a>(&self, src: &'a [u8], entry: u64) -> Result<Result<Chunk<'a>, Special<'a>>, CodecError> {
        if entry >> 63 == 1 {
            let kind = u8::try_from(entry >> 56 & 7).unwrap_or_default();
            return Special::without_value(kind, self.elem_size).map(Err);
        }
        let at = to_usize(entry).checked_add(self.header_len).ok_or(corrupt("chunk out of range"))?;
        Chunk::read(src.get(at..).unwrap_or_default()).map(Ok)
    }
}

/// A value that a whole chunk repeats.
#[derive(Debug, Clone, Copy)]
enum Special<'a> {
    Zero,
    Value(&'a [u8]),
}

const NAN_F32: [u8; 4] = f32::NAN.to_le_bytes();
const NAN_F64: [u8; 8] = f64::NAN.to_le_bytes();

impl Special<'_> {
    /// The kinds that need no value beside them.
    fn without_value(kind: u8, elem_size: usize) -> Result<Self, CodecError> {
        match (kind, elem_size) {
            // Values never set read as zeros.
            (1 | 4, _) => Ok(Self::Zero),
            (2, 4) => Ok(Self::Value(&NAN_F32)),
            (2, 8) => Ok(Self::Value(&NAN_F64)),
            _ => Err(corrupt("unknown special chunk")),
        }
    }

    fn fill(self, need: Range<usize>, out: &mut [u8]) -> Result<Produced, CodecError> {
        match self {
            Self::Zero => out[need.clone()].fill(0),
            Self::Value(value) => {
                if value.is_empty() || !out.len().is_multiple_of(value.len()) {
                    return Err(corrupt("repeated value does not fit the chunk"));
                }
                out.chunks_exact_mut(value.len()).for_each(|elem| elem.copy_from_slice(value));
                return Ok(Produced::up_to(out.len()));
            }
        }
        Ok(Produced { decoded: need.len(), valid: need })
    }
}

/// One chunk inside a frame.
struct Chunk<'a> {
    /// From the header on; may reach beyond the chunk.
    bytes: &'a [u8],
    version: u8,
    flags: u8,
    elem_size: usize,
    data_len: usize,
    block_bytes: usize,
    stored_len: usize,
    header_len: usize,
    /// Filter ids and their parameters.
    filters: [(u8, u8); MAX_STEPS],
    blosc2_flags: u8,
}

impl<'a> Chunk<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, CodecError> {
        let mut header = Reader::new(bytes, NAME);
        let [version, _, flags, elem_size] = header.array()?;
        let (data_len, block_bytes, stored_len) = (header.len_i32_le()?, header.len_i32_le()?, header.len_i32_le()?);
        if version > 5 {
            return Err(corrupt("unknown version of a chunk"));
        }
        let mut chunk = Self {
            bytes: &bytes[..stored_len.min(bytes.len())],
            version,
            flags,
            elem_size: usize::from(elem_size),
            data_len,
            block_bytes,
            stored_len,
            header_len: HEADER_BYTES,
            filters: [(0, 0); MAX_STEPS],
            blosc2_flags: 0,
        };
        if flags & EXTENDED == EXTENDED {
            let ids: [u8; MAX_STEPS] = header.array()?;
            header.take(2)?;
            let parameters: [u8; MAX_STEPS] = header.array()?;
            let [other_flags, blosc2_flags] = header.array()?;
            if other_flags != 0 {
                return Err(corrupt("blocks of varying size"));
            }
            chunk.filters = std::array::from_fn(|i| (ids[i], parameters[i]));
            chunk.header_len = EXTENDED_HEADER_BYTES;
            chunk.blosc2_flags = blosc2_flags;
        } else {
            // As blosc-1: one filter, in the flags.
            chunk.filters[MAX_STEPS - 1].0 = if flags & 1 != 0 { 1 } else { (flags & 4) / 2 };
            chunk.filters[0].0 = (flags & 8) / 8 * 3;
        }
        if elem_size == 0 || stored_len < chunk.header_len {
            return Err(corrupt("element or stored size of a chunk out of range"));
        }
        Ok(chunk)
    }

    /// Decodes what holds `need`; `out` has the size of the chunk.
    fn decode(&self, need: Range<usize>, tools: &mut Tools, out: &mut [u8]) -> Result<Produced, CodecError> {
        if self.data_len != out.len() {
            let (expected, found) = (to_u64(out.len()), to_u64(self.data_len));
            return Err(CodecError::WrongLength { filter: NAME, expected, found });
        }
        if let Some(special) = self.special()? {
            return special.fill(need, out);
        }
        if self.block_bytes == 0 || self.block_bytes > out.len() {
            return Err(corrupt("block size out of range"));
        }
        if self.flags & COPIED != 0 {
            if self.stored_len != self.header_len + out.len() {
                return Err(corrupt("stored size of uncompressed data is wrong"));
            }
            let data = self.bytes.get(self.header_len..).and_then(|data| data.get(need.clone()));
            out[need.clone()].copy_from_slice(data.ok_or(CodecError::Truncated { filter: NAME })?);
            return Ok(Produced { decoded: need.len(), valid: need });
        }
        // A dictionary, an instrumented codec, or blocks that lie elsewhere.
        if self.blosc2_flags & 0b1000_1011 != 0 {
            return Err(corrupt("dictionaries and lazy chunks are not supported"));
        }
        let Some(codec) = StreamCodec::from_flags(self.flags) else { return Err(corrupt("unknown codec")) };
        let blocks = Blocks {
            filter: NAME,
            chunk: self.bytes,
            table_at: self.header_len,
            codec,
            n_streams: if self.flags & NOT_SPLIT == 0 { self.elem_size } else { 1 },
            block_bytes: self.block_bytes,
            has_runs: true,
            steps: self.steps()?,
        };
        blocks.decode(need, tools, out)
    }

    /// The value that the whole chunk repeats, if it is of that kind.
    fn special(&self) -> Result<Option<Special<'a>>, CodecError> {
        match self.blosc2_flags >> 4 & 7 {
            0 => Ok(None),
            3 => {
                let value = self.bytes.get(self.header_len..self.stored_len);
                Ok(Some(Special::Value(value.ok_or(CodecError::Truncated { filter: NAME })?)))
            }
            kind => Special::without_value(kind, self.elem_size).map(Some),
        }
    }

    /// The filters as steps.
    fn steps(&self) -> Result<[Option<Step>; MAX_STEPS], CodecError> {
        let mut steps = [None; MAX_STEPS];
        for (i, (step, (id, parameter))) in steps.iter_mut().zip(self.filters).enumerate() {
            *step = match id {
                // 4 rounds floats before compression: there is nothing to undo.
                0 | 4 => None,
                1 if parameter == 0 => Some(Step::Shuffle(self.elem_size)),
                1 => Some(Step::Shuffle(usize::from(parameter))),
                2 => Some(Step::Bitshuffle { elem_size: self.elem_size, all_or_nothing: self.version == 2 }),
                3 if self.filters[..i].iter().all(|(before, _)| matches!(before, 0 | 4)) => {
                    Some(Step::Delta { elem_size: self.elem_size })
                }
                3 => return Err(corrupt("delta behind another filter is not supported")),
                _ => return Err(corrupt("filter of a plugin is not supported")),
            };
        }
        Ok(steps)
    }
}

const fn corrupt(reason: &'static str) -> CodecError {
    CodecError::Corrupt { filter: NAME, reason }
}
