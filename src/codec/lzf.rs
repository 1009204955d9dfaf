//! The LZF filter of h5py: one LibLZF stream without a header.
//!
//! A control byte below 32 starts a run of 1 to 32 literal bytes. Any other holds a length in its upper three bits (7: one
//! more byte is added) and the upper five bits of a distance, whose lower eight follow: length + 2 bytes are repeated
//! from distance + 1 bytes back.

use super::CodecError;
use super::lz_copy::{MAX_RUN, literals, repeat};
use super::pipeline::Produced;
use crate::num::to_u64;

/// Name in messages.
pub(super) const NAME: &str = "lzf";

/// Decodes at least the first `need_end` bytes of `out`, stopping at the first sequence that ends there or behind.
pub(super) fn decode(src: &[u8], need_end: usize, out: &mut [u8]) -> Result<Produced, CodecError> {
    let (mut read, mut written) = (0, 0);
    while written < need_end {
        let Some(&control) = src.get(read) else { break };
        read += 1;
        let control = usize::from(control);
        if control < MAX_RUN {
            let len = control + 1;
            if literals(src, read, len, out, written).is_none() {
                return Err(match src.len() < read + len {
                    true => CodecError::Truncated { filter: NAME },
                    false => wrong_length(out.len(), written + len),
                });
            }
            (read, written) = (read + len, written + len);
        } else {
            let (len, distance, bytes) = back_reference(control, src.get(read..).unwrap_or_default())?;
            if repeat(out, distance, written, len).is_none() {
                return Err(match written < distance {
                    true => CodecError::Corrupt { filter: NAME, reason: "distance reaches before the start" },
                    false => wrong_length(out.len(), written + len),
                });
            }
            (read, written) = (read + bytes, written + len);
        }
    }
    if written < need_end {
        let is_whole = need_end == out.len();
        return Err(if is_whole { wrong_length(out.len(), written) } else { CodecError::Truncated { filter: NAME } });
    }
    if need_end == out.len() && read != src.len() {
        return Err(wrong_length(out.len(), written + 1));
    }
    Ok(Produced::up_to(written))
}

/// Length, distance and number of further bytes of a back reference.
#[inline(always)]
fn back_reference(control: usize, rest: &[u8]) -> Result<(usize, usize, usize), CodecError> {
    let (len, low, bytes) = match (control >> 5, rest) {
        (7, [more, low, ..]) => (7 + usize::from(*more), *low, 2),
        (len, [low, ..]) if len < 7 => (len, *low, 1),
        _ => return Err(CodecError::Truncated { filter: NAME }),
    };
    Ok((len + 2, ((control & 31) << 8 | usize::from(low)) + 1, bytes))
}

const fn wrong_length(expected: usize, found: usize) -> CodecError {
    CodecError::WrongLength { filter: NAME, expected: to_u64(expected), found: to_u64(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_by_hand() {
        // "abc", then 6 bytes from 3 back, then "x", then a run of 40 of them.
        let stream = [2, b'a', b'b', b'c', 4 << 5, 2, 0, b'x', 7 << 5, 31, 0];
        let expected = [b"abcabcabcx".as_slice(), &[b'x'; 40]].concat();
        let mut out = vec![0; expected.len()];
        assert_eq!(decode(&stream, out.len(), &mut out).unwrap().valid, 0..50);
        assert_eq!(out, expected);
        for need_end in 1..50 {
            let mut out = vec![0; 50];
            let valid = decode(&stream, need_end, &mut out).unwrap().valid;
            assert!(valid.end >= need_end);
            assert_eq!(out[..valid.end], expected[..valid.end]);
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let stream = [2, b'a', b'b', b'c', 4 << 5, 2];
        for len in [5, 8, 10] {
            let mut out = vec![0; len];
            assert!(matches!(decode(&stream, len, &mut out), Err(CodecError::WrongLength { .. })), "{len}");
        }
        let mut out = vec![0; 9];
        assert_eq!(decode(&stream[..5], 9, &mut out), Err(CodecError::Truncated { filter: NAME }));
        assert!(matches!(decode(&[0, 1, 32, 1], 4, &mut out), Err(CodecError::Corrupt { .. })));
    }
}
