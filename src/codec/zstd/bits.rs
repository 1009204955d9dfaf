//! Bit streams that are read from their end (RFC 8878, section 4.1).
//!
//! The highest bit that is set in the last byte is a mark; the bits below it, then those of the bytes before, are the stream. Eight
//! bytes at a time are held, the next bit highest. A mark of ours below them, moved along as bits are taken, counts what was taken.

/// A place in a stream that is read from its end.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Backward {
    /// The next bits, the first one highest; the lowest bit that is set is no part of the stream.
    pub(super) bits: u64,
    /// Where the eight bytes lie that `bits` were taken from.
    pub(super) at: usize,
}

impl Backward {
    /// The stream that ends before byte `end` of `src`. `None` if it has no mark, or fewer than eight bytes lie before its end.
    pub(super) fn open(src: &[u8], end: usize) -> Option<Self> {
        let at = end.checked_sub(8)?;
        let bytes = load(src, at)?;
        // The mark is in the last byte.
        if bytes >> 56 == 0 {
            return None;
        }
        Some(Self { bits: (bytes | 1) << (bytes.leading_zeros() + 1), at })
    }

    /// Makes at least 56 bits available: eight bytes, without those that were taken of the first one and the mark. `None` if that reaches before
    /// `src`.
    #[inline(always)]
    pub(super) fn refill(&mut self, src: &[u8]) -> Option<()> {
        let taken = self.bits.trailing_zeros();
        self.at = self.at.wrapping_sub((taken >> 3) as usize);
        self.bits = (load(src, self.at)? | 1) << (taken & 7);
        Some(())
    }

    /// The next `n` bits without taking them; 0 < `n` < 64.
    #[inline(always)]
    pub(super) fn peek(&self, n: u32) -> u64 {
        self.bits >> (64 - n)
    }

    /// Takes as many bits as the low six bits of `n` say.
    #[inline(always)]
    pub(super) fn skip(&mut self, n: u32) {
        self.bits = self.bits.wrapping_shl(n);
    }

    /// Takes `n` bits, at most 63.
    #[inline(always)]
    pub(super) fn take(&mut self, n: u32) -> u64 {
        let value = (self.bits >> 1) >> (63 - (n & 63));
        self.skip(n);
        value
    }

    /// Bits that are left of a stream that begins at byte `start`. `None` if more were taken than it has.
    #[inline(always)]
    pub(super) fn left(&self, start: usize) -> Option<usize> {
        (self.at * 8 + 64 - self.bits.trailing_zeros() as usize).checked_sub(start * 8)
    }
}

/// Eight bytes from `at` on.
#[inline(always)]
pub(super) fn load(src: &[u8], at: usize) -> Option<u64> {
    let bytes = src.get(at..at.wrapping_add(8))?;
    bytes.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_come_from_the_end() {
        // Mark, then 1, 01, 0011, and 8 bits of the byte before.
        let src = [9, 9, 9, 9, 9, 9, 9, 0b1010_0101, 0b1101_0011];
        let mut stream = Backward::open(&src, 9).unwrap();
        assert_eq!(stream.left(7), Some(15));
        assert_eq!([stream.take(1), stream.take(2), stream.take(4)], [1, 0b01, 0b0011]);
        assert_eq!((stream.peek(8), stream.left(7)), (0b1010_0101, Some(8)));
        stream.refill(&src).unwrap();
        assert_eq!((stream.take(0), stream.take(8), stream.left(7)), (0, 0b1010_0101, Some(0)));
        stream.skip(1);
        assert_eq!(stream.left(7), None);
        assert!(Backward::open(&[1; 7], 7).is_none());
        assert!(Backward::open(&[0; 8], 8).is_none());
    }

    #[test]
    fn no_byte_before_the_source_is_read() {
        let src = [0xff; 9];
        let mut stream = Backward::open(&src, 9).unwrap();
        stream.skip(16);
        assert!(stream.refill(&src).is_none());
    }
}
