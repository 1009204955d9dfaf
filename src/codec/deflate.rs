//! The deflate filter: one zlib stream (HDF5, zarr `zlib`) or one gzip member (zarr `gzip`), told apart by their first
//! two bytes.
//!
//! Whole chunks go through libdeflate, which wants all of input and output, is the fastest, and checks the checksum
//! behind the data. A prefix goes through a streaming inflate whose output slice ends with the last needed byte: it stops
//! there, without the checksum.

use flate2::{FlushDecompress, Status};
use libdeflater::DecompressionError;

use super::CodecError;
use super::pipeline::Produced;
use super::reader::Reader;
use super::scratch::Tools;
use crate::num::to_u64;

/// Name in messages.
pub(super) const NAME: &str = "gzip";

/// Name in messages about members of zip archives.
pub(super) const ZIP_NAME: &str = "zip member";

/// The first two bytes of a gzip member; no zlib stream starts with them.
pub(super) const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Inflates the first `need_end` bytes, or all of `out` if that is hardly more work.
pub(super) fn decode(src: &[u8], need_end: usize, out: &mut [u8], tools: &mut Tools) -> Result<Produced, CodecError> {
    // A prefix does not show that a stream goes on and on; its stored length does. (Of such a stream, everything is read.)
    if src.len() > longest_stream_bytes(out.len()) {
        return Err(CodecError::Corrupt {
            filter: NAME,
            reason: "the stream is longer than any that decodes to the chunk",
        });
    }
    if super::pipeline::is_nearly_all(need_end, out.len()) {
        whole(src, out, tools)?;
        return Ok(Produced::up_to(out.len()));
    }
    prefix(src, need_end, out, tools)?;
    Ok(Produced::up_to(need_end))
}

/// More than any compressor needs for `len` bytes: stored blocks and a header, and the slack of zlib's own bound
/// (`deflateBound` for the worst parameters).
pub(super) fn longest_stream_bytes(len: usize) -> usize {
    len.saturating_add(len / 8 + len / 64 + 1024)
}

/// Inflates a stream that must have exactly the length of `out`.
pub(super) fn whole(src: &[u8], out: &mut [u8], tools: &mut Tools) -> Result<(), CodecError> {
    let expected = to_u64(out.len());
    let inflater = tools.libdeflate();
    let result = if src.starts_with(&GZIP_MAGIC) {
        inflater.gzip_decompress(src, out)
    } else {
        inflater.zlib_decompress(src, out)
    };
    match result {
        Ok(len) if len == out.len() => Ok(()),
        Ok(len) => Err(CodecError::WrongLength { filter: NAME, expected, found: to_u64(len) }),
        Err(DecompressionError::InsufficientSpace) => {
            Err(CodecError::WrongLength { filter: NAME, expected, found: expected + 1 })
        }
        Err(DecompressionError::BadData) => {
            Err(CodecError::Corrupt { filter: NAME, reason: "damaged or cut stream, or its checksum does not match" })
        }
    }
}

/// Inflates a compressed member of a zip archive, a raw deflate stream; the number of bytes it decodes to, at most `out.len()`.
pub(super) fn member(src: &[u8], out: &mut [u8], tools: &mut Tools) -> Result<usize, CodecError> {
    match tools.libdeflate().deflate_decompress(src, out) {
        Ok(len) => Ok(len),
        Err(DecompressionError::InsufficientSpace) => {
            Err(CodecError::WrongLength { filter: ZIP_NAME, expected: to_u64(out.len()), found: to_u64(out.len()) + 1 })
        }
        Err(DecompressionError::BadData) => {
            Err(CodecError::Corrupt { filter: ZIP_NAME, reason: "damaged or cut stream" })
        }
    }
}

/// Inflates the first `need_end` bytes of a longer stream.
fn prefix(src: &[u8], need_end: usize, out: &mut [u8], tools: &mut Tools) -> Result<(), CodecError> {
    let (zlib_header, mut src) = match src.starts_with(&GZIP_MAGIC) {
        true => (false, after_gzip_header(src)?),
        false => (true, src),
    };
    let inflater = tools.inflate(zlib_header);
    let mut out = &mut out[..need_end];
    while !out.is_empty() {
        let (consumed, produced) = (inflater.total_in(), inflater.total_out());
        let status = inflater
            .decompress(src, out, FlushDecompress::None)
            .map_err(|_| CodecError::Corrupt { filter: NAME, reason: "damaged stream" })?;
        let consumed = crate::num::to_usize(inflater.total_in() - consumed);
        let produced = crate::num::to_usize(inflater.total_out() - produced);
        src = src.get(consumed..).unwrap_or_default();
        out = out.get_mut(produced..).unwrap_or_default();
        if out.is_empty() {
            break;
        }
        if status == Status::StreamEnd {
            let found = inflater.total_out();
            return Err(CodecError::WrongLength { filter: NAME, expected: to_u64(need_end), found });
        }
        if consumed == 0 && produced == 0 {
            return Err(CodecError::Truncated { filter: NAME });
        }
    }
    Ok(())
}

/// The deflate stream behind the header of a gzip member (RFC 1952, section 2.3).
fn after_gzip_header(src: &[u8]) -> Result<&[u8], CodecError> {
    let mut reader = Reader::new(src, NAME);
    let [_, _, method, flags, _, _, _, _, _, _] = reader.array::<10>()?;
    if method != 8 || flags & 0xe0 != 0 {
        return Err(CodecError::Corrupt { filter: NAME, reason: "unknown gzip header" });
    }
    if flags & 4 != 0 {
        let extra_bytes = u16::from_le_bytes(reader.array()?);
        reader.take(usize::from(extra_bytes))?;
    }
    // A file name and a comment, each ended by a zero byte.
    for flag in [8, 16] {
        if flags & flag != 0 {
            while reader.u8()? != 0 {}
        }
    }
    if flags & 2 != 0 {
        reader.take(2)?;
    }
    Ok(reader.rest())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::codec::{Filter, Pipeline, Scratch};

    /// A stream that starts as a chunk does and goes on for 256 times as long: no part of it is served.
    #[test]
    fn a_bomb_is_refused_even_where_only_its_beginning_is_needed() {
        let chunk = 32_000;
        let stream = zlib(&vec![0; chunk * 8192]);
        let chain = Pipeline::new([Filter::Deflate], chunk);
        for need in [8, chunk / 8, chunk / 2, chunk] {
            let read = chain.stored_prefix(stream.len(), 0, need);
            let mut out = vec![1; chunk];
            let result =
                chain.decode(&stream[..read], read < stream.len(), 0, 0..need, &mut Scratch::default(), &mut out);
            assert!(result.is_err(), "{need}");
        }
    }

    fn zlib(data: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(4));
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn gzip(data: &[u8]) -> Vec<u8> {
        let builder = flate2::GzBuilder::new().filename("name").comment("comment").extra([1, 2, 3]);
        let mut encoder = builder.write(Vec::new(), flate2::Compression::new(4));
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn sample() -> Vec<u8> {
        (0..20_000_u32).flat_map(|i| (i.wrapping_mul(2_654_435_761) >> 24).to_le_bytes()).collect()
    }

    #[test]
    fn both_wrappings_whole_and_prefix() {
        let data = sample();
        let mut tools = Tools::default();
        for stream in [zlib(&data), gzip(&data)] {
            for need_end in [1, 2, 1000, 60_000, data.len() - 1, data.len()] {
                let mut out = vec![0; data.len()];
                let produced = decode(&stream, need_end, &mut out, &mut tools).unwrap();
                assert!(produced.valid.end >= need_end);
                assert_eq!(out[..need_end], data[..need_end]);
            }
        }
    }

    #[test]
    fn a_prefix_touches_no_more_output_and_no_more_input_than_it_needs() {
        let data = sample();
        let stream = zlib(&data);
        let mut out = vec![0xaa; data.len()];
        let half = data.len() / 2;
        assert_eq!(
            decode(&stream[..stream.len() * 3 / 4], half, &mut out, &mut Tools::default()).unwrap().decoded,
            half
        );
        assert_eq!(out[..half], data[..half]);
        assert!(out[half..].iter().all(|b| *b == 0xaa));
    }

    #[test]
    fn wrong_lengths_and_damage_are_refused() {
        let data = sample();
        let mut tools = Tools::default();
        let mut stream = zlib(&data);
        let (mut longer, mut shorter) = (vec![0; data.len() + 1], vec![0; data.len() - 1]);
        for out in [&mut longer, &mut shorter] {
            assert!(matches!(whole(&stream, out, &mut tools), Err(CodecError::WrongLength { .. })));
        }
        let mut out = vec![0; data.len()];
        let cut = &stream[..stream.len() / 2];
        assert!(matches!(whole(cut, &mut out, &mut tools), Err(CodecError::Corrupt { .. })));
        let most = data.len() * 3 / 4;
        assert_eq!(prefix(cut, most, &mut out, &mut tools), Err(CodecError::Truncated { filter: NAME }));
        let last = stream.len() - 1;
        stream[last] ^= 1;
        assert!(matches!(whole(&stream, &mut out, &mut tools), Err(CodecError::Corrupt { .. })), "Adler-32");
    }
}
