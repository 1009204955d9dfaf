//! BloscLZ streams, the default codec of both blosc formats.
//!
//! A control byte below 32 starts a run of that many plus one literal bytes. Any other holds a length in its upper three
//! bits, and in the lower five the upper part of a distance. A length of 7 is continued by bytes that are added, up to and
//! including the first below 255; then follows the lower byte of the distance. The distance 31 * 256 + 255 is continued
//! by two more bytes, most significant first, that are added to 8191. The upper three bits of the very first byte hold a
//! version: a stream starts with literals.

use super::reader::Reader;

/// The distance from which on two more bytes follow.
const FAR: usize = 31 * 256 + 255;
/// What two-byte distances start from.
const FAR_BASE: usize = 8191;

/// The stream is damaged or too short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BadStream;

/// Decodes until at least `need_end` bytes of `out` are there. If that is all of `out`, the stream must end there too.
pub(super) fn decode(src: &[u8], need_end: usize, out: &mut [u8]) -> Result<(), BadStream> {
    let mut reader = Reader::new(src, "");
    let mut written = 0;
    let mut control = reader.u8().map_err(|_| BadStream)? & 31;
    loop {
        let rest = out.get_mut(written..).ok_or(BadStream)?;
        let len;
        if control < 32 {
            len = usize::from(control) + 1;
            let run = reader.take(len).map_err(|_| BadStream)?;
            rest.get_mut(..len).ok_or(BadStream)?.copy_from_slice(run);
        } else {
            let distance;
            (len, distance) = back_reference(control, &mut reader).map_err(|_| BadStream)?;
            if len > rest.len() || distance > written {
                return Err(BadStream);
            }
            repeat(out, distance, written, len);
        }
        written += len;
        if written >= need_end {
            return if need_end < out.len() || reader.is_empty() { Ok(()) } else { Err(BadStream) };
        }
        control = reader.u8().map_err(|_| BadStream)?;
    }
}

/// Length and distance of a back reference.
fn back_reference(control: u8, reader: &mut Reader<'_>) -> Result<(usize, usize), super::CodecError> {
    let mut len = usize::from(control >> 5) + 2;
    if control >> 5 == 7 {
        loop {
            let more = reader.u8()?;
            len += usize::from(more);
            if more < 255 {
                break;
            }
        }
    }
    let mut distance = usize::from(control & 31) << 8 | usize::from(reader.u8()?);
    if distance == FAR {
        distance = FAR_BASE + usize::from(u16::from_be_bytes(reader.array()?));
    }
    Ok((len, distance + 1))
}

/// Repeats `len` bytes from `distance` back; both ranges lie inside `out`.
fn repeat(out: &mut [u8], distance: usize, written: usize, len: usize) {
    let from = written - distance;
    if distance == 1 {
        let byte = out[from];
        out[written..written + len].fill(byte);
    } else if distance >= len {
        out.copy_within(from..from + len, written);
    } else {
        for i in written..written + len {
            out[i] = out[i - distance];
        }
    }
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
