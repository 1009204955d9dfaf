//! The two copies of which LZ decoders consist, in steps of whole words.
//!
//! Where there is room behind the write position, a copy moves whole words and overshoots its end; what it overshoots is
//! written again by what follows, or lies behind the valid part. Close to the ends it moves single bytes. Every access is
//! checked.

/// Longest run of literals of LZF and BloscLZ.
pub(super) const MAX_RUN: usize = 32;
/// Bytes that one step of a wide copy moves.
const WORD: usize = 16;
/// Longer repeats are left to the copy of the standard library.
const LONG: usize = 128;

/// Copies `len` literals (at most [`MAX_RUN`]) from `src[read..]` to `out[written..]`. `None` if either is too short.
#[inline(always)]
pub(super) fn literals(src: &[u8], read: usize, len: usize, out: &mut [u8], written: usize) -> Option<()> {
    if let (Some(from), Some(to)) = (src.get(read..read + MAX_RUN), out.get_mut(written..written + MAX_RUN)) {
        to.copy_from_slice(from);
        return Some(());
    }
    literals_slowly(src, read, len, out, written)
}

/// A run close to the end of either slice.
#[inline(never)]
fn literals_slowly(src: &[u8], read: usize, len: usize, out: &mut [u8], written: usize) -> Option<()> {
    out.get_mut(written..written + len)?.copy_from_slice(src.get(read..read + len)?);
    Some(())
}

/// Writes `len` bytes to `out[written..]` that repeat those from `distance` back (at least 1). `None` if the distance
/// reaches before the start, or the end of `out` is too near.
#[inline(always)]
pub(super) fn repeat(out: &mut [u8], distance: usize, written: usize, len: usize) -> Option<()> {
    let from = written.checked_sub(distance)?;
    let end = written + len;
    if end + WORD <= out.len() && distance >= 8 && len <= LONG {
        return if distance >= WORD {
            wide_copy::<WORD>(out, from, written, end)
        } else {
            wide_copy::<8>(out, from, written, end)
        };
    }
    repeat_slowly(out, distance, written, len)
}

/// Repeats that are short-ranged, long, or close to the end.
#[inline(never)]
fn repeat_slowly(out: &mut [u8], distance: usize, written: usize, len: usize) -> Option<()> {
    let (from, end) = (written.checked_sub(distance)?, written + len);
    let (before, rest) = out.split_at_mut_checked(written)?;
    let target = rest.get_mut(..len)?;
    if distance == 1 {
        target.fill(*before.last()?);
    } else if len <= WORD {
        for i in written..end {
            out[i] = out[i - distance];
        }
    } else {
        // What is there already is a whole number of periods: each step doubles it.
        let mut at = written;
        while at < end {
            let step = (at - from).min(end - at);
            out.copy_within(from..from + step, at);
            at += step;
        }
    }
    Some(())
}

/// Moves `STEP` bytes at a time, less than `STEP` beyond `end`; source and destination are at least `STEP` apart.
#[inline(always)]
fn wide_copy<const STEP: usize>(out: &mut [u8], from: usize, to: usize, end: usize) -> Option<()> {
    let (mut from, mut to) = (from, to);
    while to < end {
        let word: [u8; STEP] = *out.get(from..)?.first_chunk()?;
        *out.get_mut(to..)?.first_chunk_mut()? = word;
        (from, to) = (from + STEP, to + STEP);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_equal_a_copy_byte_by_byte() {
        for distance in 1..40 {
            for len in (1..70).chain([128, 129, 500]) {
                for room in [0, 1, 15, 16, 100] {
                    let mut out: Vec<u8> = (0..40 + len + room).map(|i| (i * 7) as u8).collect();
                    let mut expected = out.clone();
                    for i in 40..40 + len {
                        expected[i] = expected[i - distance];
                    }
                    assert_eq!(repeat(&mut out, distance, 40, len), Some(()));
                    assert_eq!(out[..40 + len], expected[..40 + len], "{distance} {len} {room}");
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut out = [0; 100];
        assert_eq!(repeat(&mut out, 11, 10, 5), None);
        assert_eq!(repeat(&mut out, 10, 90, 11), None);
        assert_eq!(repeat(&mut out, 10, 90, 10), Some(()));
        assert_eq!(literals(&[1; 40], 35, 6, &mut out, 0), None);
        assert_eq!(literals(&[1; 40], 35, 5, &mut out, 96), None);
        assert_eq!(literals(&[1; 40], 35, 5, &mut out, 95), Some(()));
        assert_eq!(out[95..], [1; 5]);
    }
}
