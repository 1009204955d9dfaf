//! Chunks whose decoded size nobody knows beforehand: text of variable length in zarr.
//!
//! Most compressors tell the size in their header. It is believed as far as a limit of the caller, and then the chunk must decode to
//! exactly that. Where no header tells (gzip, zlib, zstd written as a stream), the stream is decoded piece by piece up to the limit.

use std::io::Read;

use super::pipeline;
use super::scratch::Scratch;
use super::{CodecError, Filter, Pipeline, deflate};
use crate::num::{to_u64, to_usize};

/// Decodes a whole chunk of unknown size, at most `limit` bytes. `filters` are in encode order; bit i of `mask` set means that filter i
/// was not applied.
///
/// # Errors
/// [`CodecError`] if the bytes are damaged, or decode to more than `limit` bytes.
pub fn decode_unsized(
    filters: &[Filter],
    mask: u32,
    stored: &[u8],
    limit: usize,
    scratch: &mut Scratch,
) -> Result<Vec<u8>, CodecError> {
    let mut bytes = None;
    for (_, filter) in pipeline::applied(filters, mask).rev() {
        let src = bytes.as_deref().unwrap_or(stored);
        bytes = Some(invert(filter, src, limit, scratch)?);
    }
    match bytes {
        Some(bytes) => Ok(bytes),
        None if stored.len() > limit => Err(too_long("chunk", limit)),
        None => Ok(stored.to_vec()),
    }
}

fn invert(filter: &Filter, src: &[u8], limit: usize, scratch: &mut Scratch) -> Result<Vec<u8>, CodecError> {
    let claimed = match filter {
        Filter::Crc32c | Filter::Fletcher32 => return filter.verify(src).map(<[u8]>::to_vec),
        Filter::Blosc => src.get(4..8).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes).map(u64::from),
        Filter::Lz4Block => src.get(..4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes).map(u64::from),
        Filter::Zstd => match ::zstd::zstd_safe::get_frame_content_size(src) {
            Ok(Some(claimed)) => Some(claimed),
            _ => return stream(filter.name(), ::zstd::stream::Decoder::with_buffer(src).ok(), limit),
        },
        Filter::Deflate if src.starts_with(&deflate::GZIP_MAGIC) => {
            return stream(filter.name(), Some(flate2::bufread::MultiGzDecoder::new(src)), limit);
        }
        Filter::Deflate => return stream(filter.name(), Some(flate2::bufread::ZlibDecoder::new(src)), limit),
        Filter::ZipDeflate => return stream(filter.name(), Some(flate2::bufread::DeflateDecoder::new(src)), limit),
        _ => None,
    };
    let Some(claimed) = claimed else {
        return Err(CodecError::Corrupt { filter: filter.name(), reason: "text cannot be stored like this" });
    };
    if claimed > to_u64(limit) {
        return Err(too_long(filter.name(), limit));
    }
    let mut out = vec![0; to_usize(claimed)];
    let need = 0..out.len();
    Pipeline::new([filter.clone()], out.len()).decode(src, false, 0, need, scratch, &mut out)?;
    Ok(out)
}

fn stream(name: &'static str, decoder: Option<impl Read>, limit: usize) -> Result<Vec<u8>, CodecError> {
    let damaged = CodecError::Corrupt { filter: name, reason: "damaged stream" };
    let Some(decoder) = decoder else { return Err(damaged) };
    let mut out = Vec::new();
    match decoder.take(to_u64(limit) + 1).read_to_end(&mut out) {
        Ok(_) if out.len() > limit => Err(too_long(name, limit)),
        Ok(_) => Ok(out),
        Err(_) => Err(damaged),
    }
}

fn too_long(filter: &'static str, limit: usize) -> CodecError {
    CodecError::WrongLength { filter, expected: to_u64(limit), found: to_u64(limit) + 1 }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn check(filters: &[Filter], stored: &[u8], want: &[u8]) {
        let mut scratch = Scratch::default();
        assert_eq!(decode_unsized(filters, 0, stored, want.len(), &mut scratch).unwrap(), want, "{filters:?}");
        let short = decode_unsized(filters, 0, stored, want.len() - 1, &mut scratch);
        assert!(matches!(short, Err(CodecError::WrongLength { .. })), "{filters:?} {short:?}");
        let cut = decode_unsized(filters, 0, &stored[..stored.len() / 2], want.len(), &mut scratch);
        assert!(filters.is_empty() || cut.is_err(), "{filters:?} {cut:?}");
    }

    #[test]
    fn every_compressor() {
        let data: Vec<u8> = (0..40_000_u32).flat_map(|i| (i % 300).to_le_bytes()).collect();
        let compression = flate2::Compression::default();
        check(&[], &data, &data);
        check(&[Filter::Zstd], &::zstd::bulk::compress(&data, 1).unwrap(), &data);
        let mut streamed = ::zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
        streamed.write_all(&data).unwrap();
        check(&[Filter::Zstd], &streamed.finish().unwrap(), &data);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), compression);
        gzip.write_all(&data).unwrap();
        check(&[Filter::Deflate], &gzip.finish().unwrap(), &data);
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), compression);
        zlib.write_all(&data).unwrap();
        check(&[Filter::Deflate], &zlib.finish().unwrap(), &data);
        let mut lz4 = (data.len() as u32).to_le_bytes().to_vec();
        lz4.extend(lz4_flex::block::compress(&data));
        check(&[Filter::Lz4Block], &lz4, &data);
        let mut zip = flate2::write::DeflateEncoder::new(Vec::new(), compression);
        zip.write_all(&lz4).unwrap();
        let zip = zip.finish().unwrap();
        let mut scratch = Scratch::default();
        let chain = [Filter::Lz4Block, Filter::ZipDeflate];
        assert_eq!(decode_unsized(&chain, 0, &zip, data.len(), &mut scratch).unwrap(), data);
        assert_eq!(decode_unsized(&chain, 0b10, &lz4, data.len(), &mut scratch).unwrap(), data);
        let mut out = vec![0; data.len()];
        for (stored, mask) in [(&zip, 0), (&lz4, 0b10)] {
            out.fill(0);
            let pipeline = Pipeline::new(chain.clone(), data.len());
            pipeline.decode(stored, false, mask, 0..data.len(), &mut scratch, &mut out).unwrap();
            assert_eq!(out, data);
        }
        let mut summed = data.clone();
        summed.extend(crate::codec::crc32c_checksum(&data).to_le_bytes());
        assert_eq!(decode_unsized(&[Filter::Crc32c], 0, &summed, data.len(), &mut scratch).unwrap(), data);
    }

    #[test]
    fn a_claim_allocates_nothing() {
        let mut bomb = vec![0x28, 0xb5, 0x2f, 0xfd, 0xe0];
        bomb.extend((1_u64 << 60).to_le_bytes());
        bomb.extend([1, 0, 0, 0]);
        let mut scratch = Scratch::default();
        let result = decode_unsized(&[Filter::Zstd], 0, &bomb, 1 << 20, &mut scratch);
        assert!(matches!(result, Err(CodecError::WrongLength { .. })));
    }
}
