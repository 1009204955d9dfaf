//! The zstd filter: one frame.
//!
//! The size that the frame claims is compared before anything is decoded, and the frame is decoded straight into the
//! output by a context that is kept, so that no window is allocated. For a prefix the streaming decoder stops at the last
//! needed byte; it works in blocks of 128 KiB, so it is only used where it saves one. Its window is limited to what the
//! chunk needs; frames that ask for more are decoded as a whole.
//!
//! Small frames that come together are decoded two at a time by a decoder of ours, see [`pair`].

mod bits;
mod frame;
mod fse;
mod huffman;
pub(super) mod pair;
#[cfg(test)]
mod pair_tests;
mod sequences;
mod source;
mod table;
mod weights;

use ::zstd::zstd_safe::{self, DParameter, InBuffer, OutBuffer, ResetDirective};

use super::CodecError;
use super::pipeline::Produced;
use super::scratch::Tools;
use crate::num::to_u64;

/// Name in messages.
pub(super) const NAME: &str = "zstd";

/// Largest block of a frame (RFC 8878, section 3.1.1.2): the unit in which a frame decodes.
pub(super) const BLOCK_BYTES: usize = 128 * 1024;

/// Decodes the first `need_end` bytes, or all of `out` if that is hardly more work.
pub(super) fn decode(src: &[u8], need_end: usize, out: &mut [u8], tools: &mut Tools) -> Result<Produced, CodecError> {
    check_claimed_size(src, out.len())?;
    if need_end.next_multiple_of(BLOCK_BYTES) < out.len() {
        match prefix(src, need_end, out, tools) {
            Streamed::Done => {
                return Ok(Produced { valid: 0..need_end, decoded: need_end.next_multiple_of(BLOCK_BYTES) });
            }
            Streamed::Failed(error) => return Err(error),
            Streamed::Refused => {}
        }
    }
    whole(src, out, tools)?;
    Ok(Produced::up_to(out.len()))
}

/// The size in the header of the frame must be that of the output, if it is there.
fn check_claimed_size(src: &[u8], expected: usize) -> Result<(), CodecError> {
    match zstd_safe::get_frame_content_size(src) {
        Ok(Some(found)) if found != to_u64(expected) => {
            Err(CodecError::WrongLength { filter: NAME, expected: to_u64(expected), found })
        }
        Ok(_) => Ok(()),
        Err(_) => Err(CodecError::Corrupt { filter: NAME, reason: "not a zstd frame" }),
    }
}

/// Decodes a frame that must have exactly the length of `out`.
pub(super) fn whole(src: &[u8], out: &mut [u8], tools: &mut Tools) -> Result<(), CodecError> {
    let expected = to_u64(out.len());
    match tools.zstd().decompress(out, src) {
        Ok(len) if len == out.len() => Ok(()),
        Ok(len) => Err(CodecError::WrongLength { filter: NAME, expected, found: to_u64(len) }),
        Err(code) if zstd_safe::get_error_name(code).contains("Destination buffer is too small") => {
            Err(CodecError::WrongLength { filter: NAME, expected, found: expected + 1 })
        }
        Err(_) => Err(CodecError::Corrupt { filter: NAME, reason: "damaged or cut frame" }),
    }
}

/// What became of a streamed prefix.
enum Streamed {
    Done,
    Failed(CodecError),
    /// The decoder did not take the frame.
    Refused,
}

/// Decodes the first `need_end` bytes of a longer frame.
fn prefix(src: &[u8], need_end: usize, out: &mut [u8], tools: &mut Tools) -> Streamed {
    let window_log = out.len().next_power_of_two().ilog2().clamp(20, 27);
    let context = tools.zstd();
    if context.reset(ResetDirective::SessionOnly).is_err()
        || context.set_parameter(DParameter::WindowLogMax(window_log)).is_err()
    {
        return Streamed::Refused;
    }
    let mut input = InBuffer::around(src);
    let mut output = OutBuffer::around(&mut out[..need_end]);
    while output.pos() < need_end {
        let before = (input.pos, output.pos());
        match context.decompress_stream(&mut output, &mut input) {
            Err(_) if before == (0, 0) && output.pos() == 0 => return Streamed::Refused,
            Err(_) => return Streamed::Failed(CodecError::Corrupt { filter: NAME, reason: "damaged frame" }),
            Ok(0) if output.pos() < need_end => {
                let (expected, found) = (to_u64(need_end), to_u64(output.pos()));
                return Streamed::Failed(CodecError::WrongLength { filter: NAME, expected, found });
            }
            Ok(_) if before == (input.pos, output.pos()) => {
                return Streamed::Failed(CodecError::Truncated { filter: NAME });
            }
            Ok(_) => {}
        }
    }
    Streamed::Done
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers below 4096 without a pattern.
    fn sample(n: u32) -> Vec<u8> {
        let mut state = 1_u64;
        (0..n)
            .flat_map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                ((state >> 52) as u32).to_le_bytes()
            })
            .collect()
    }

    #[test]
    fn whole_and_prefix() {
        let data = sample(200_000);
        let stored = ::zstd::bulk::compress(&data, 3).unwrap();
        let mut tools = Tools::default();
        for need_end in [1, 1000, BLOCK_BYTES, BLOCK_BYTES + 1, data.len() - 1, data.len()] {
            let mut out = vec![0; data.len()];
            let produced = decode(&stored, need_end, &mut out, &mut tools).unwrap();
            assert!(produced.valid.end >= need_end && produced.decoded <= need_end.next_multiple_of(BLOCK_BYTES));
            assert_eq!(out[..need_end], data[..need_end]);
        }
        let mut out = vec![0; data.len()];
        assert!(decode(&stored[..stored.len() / 2], data.len() / 4, &mut out, &mut tools).is_ok());
        assert_eq!(out[..data.len() / 4], data[..data.len() / 4]);
    }

    #[test]
    fn a_frame_without_a_size_and_with_a_large_window_decodes() {
        use std::io::Write;
        let data = sample(300_000);
        let mut encoder = ::zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
        encoder.window_log(24).unwrap();
        encoder.write_all(&data).unwrap();
        let stored = encoder.finish().unwrap();
        assert!(matches!(zstd_safe::get_frame_content_size(&stored), Ok(None)));
        for need_end in [1000, data.len()] {
            let mut out = vec![0; data.len()];
            decode(&stored, need_end, &mut out, &mut Tools::default()).unwrap();
            assert_eq!(out[..need_end], data[..need_end]);
        }
        let mut out = vec![0; data.len() - 1];
        let len = out.len();
        let error = decode(&stored, len, &mut out, &mut Tools::default());
        assert!(matches!(error, Err(CodecError::WrongLength { .. })), "{error:?}");
    }

    #[test]
    fn claims_are_checked_before_decoding() {
        // A frame of 17 bytes that claims 2^60: nothing is allocated for it.
        let mut bomb = vec![0x28, 0xb5, 0x2f, 0xfd, 0xe0];
        bomb.extend((1_u64 << 60).to_le_bytes());
        bomb.extend([1, 0, 0, 0]);
        let error = decode(&bomb, 100, &mut [0; 100], &mut Tools::default());
        assert!(matches!(error, Err(CodecError::WrongLength { found, .. }) if found == 1 << 60), "{error:?}");
        let error = decode(b"no frame at all", 100, &mut [0; 100], &mut Tools::default());
        assert!(matches!(error, Err(CodecError::Corrupt { .. })));
    }
}
