//! BloscLZ streams, the default codec of both blosc formats.
//!
//! A control byte below 32 starts a run of that many plus one literal bytes. Any other holds a length in its upper three
//! bits, and in the lower five the upper part of a distance. A length of 7 is continued by bytes that are added, up to and
//! including the first below 255; then follows the lower byte of the distance. The distance 31 * 256 + 255 is continued
//! by two more bytes, most significant first, that are added to 8191. The upper three bits of the very first byte hold a
//! version: a stream starts with literals.

use super::lz_copy::{MAX_RUN, literals, repeat};

/// The distance from which on two more bytes follow.
const FAR: usize = 31 * 256 + 255;
/// What two-byte distances start from.
const FAR_BASE: usize = 8191;

/// The stream is damaged or too short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BadStream;

/// Decodes until at least `need_end` bytes of `out` are there. If that is all of `out`, the stream must end there too.
pub(super) fn decode(src: &[u8], need_end: usize, out: &mut [u8]) -> Result<(), BadStream> {
    let (mut read, mut written) = (1, 0);
    let mut control = usize::from(*src.first().ok_or(BadStream)?) & 31;
    loop {
        if control < MAX_RUN {
            let len = control + 1;
            literals(src, read, len, out, written).ok_or(BadStream)?;
            (read, written) = (read + len, written + len);
        } else {
            let (len, distance, bytes) = back_reference(control, src.get(read..).ok_or(BadStream)?).ok_or(BadStream)?;
            repeat(out, distance, written, len).ok_or(BadStream)?;
            (read, written) = (read + bytes, written + len);
        }
        if written >= need_end {
            return if need_end < out.len() || read == src.len() { Ok(()) } else { Err(BadStream) };
        }
        control = usize::from(*src.get(read).ok_or(BadStream)?);
        read += 1;
    }
}

/// Length, distance and number of further bytes of a back reference.
#[inline(always)]
fn back_reference(control: usize, rest: &[u8]) -> Option<(usize, usize, usize)> {
    let (mut len, mut bytes) = ((control >> 5) + 2, 0);
    if control >> 5 == 7 {
        loop {
            let more = *rest.get(bytes)?;
            len += usize::from(more);
            bytes += 1;
            if more < 255 {
                break;
            }
        }
    }
    let distance = (control & 31) << 8 | usize::from(*rest.get(bytes)?);
    if distance < FAR {
        return Some((len, distance + 1, bytes + 1));
    }
    let far = rest.get(bytes + 1..)?.first_chunk::<2>()?;
    Some((len, FAR_BASE + usize::from(u16::from_be_bytes(*far)) + 1, bytes + 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_by_hand() {
        // Version bits, "abcd", 9 bytes from 4 back, a run of 300 of the last one.
        let stream = [0x23, b'a', b'b', b'c', b'd', 7 << 5, 0, 3, 7 << 5, 255, 36, 0];
        let expected = [b"abcdabcdabcda".as_slice(), &[b'a'; 300]].concat();
        let mut out = vec![0; expected.len()];
        decode(&stream, out.len(), &mut out).unwrap();
        assert_eq!(out, expected);
        let mut out = vec![0; expected.len()];
        decode(&stream[..8], 13, &mut out).unwrap();
        assert_eq!(out[..13], expected[..13]);
        assert_eq!(decode(&stream, 312, &mut [0; 312]), Err(BadStream));
        assert_eq!(decode(&stream, 314, &mut [0; 314]), Err(BadStream));
        assert_eq!(decode(&[0, b'a', 32, 1], 4, &mut [0; 4]), Err(BadStream));
    }
}
