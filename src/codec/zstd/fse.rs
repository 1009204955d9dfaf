//! Finite state entropy: its tables, from the counts in a frame (RFC 8878, section 4.1).

use std::ops::Range;

use super::bits::load;

/// What a state says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// To which the next bits are added for the next state.
    pub(super) base: u16,
    /// How many bits that are.
    pub(super) n_bits: u8,
    /// The symbol.
    pub(super) symbol: u8,
}

/// A table of at most `N` states, a power of two.
#[derive(Debug)]
pub(super) struct Table<const N: usize> {
    entries: [Entry; N],
    /// Bits of a state.
    pub(super) log: u32,
}

/// Most symbols of any table.
const MAX_SYMBOLS: usize = 53;

impl<const N: usize> Default for Table<N> {
    fn default() -> Self {
        Self { entries: [Entry::default(); N], log: 0 }
    }
}

impl<const N: usize> Table<N> {
    /// What `state` says.
    #[inline(always)]
    pub(super) fn entry(&self, state: usize) -> Entry {
        self.entries[state % N]
    }

    /// A table of one state, which is never left.
    pub(super) fn set_single(&mut self, symbol: u8) {
        self.log = 0;
        self.entries[0] = Entry { base: 0, n_bits: 0, symbol };
    }

    /// Makes the table of the counts at the start of `place` in `src`, which has at least eight bytes more. Returns the bytes that they take. `None` if
    /// they are not those of symbols below `n_symbols` and a table of this size, or nothing follows them.
    pub(super) fn read(&mut self, src: &[u8], place: Range<usize>, n_symbols: usize) -> Option<usize> {
        let mut bits = Forward { src, start: place.start, taken: 0 };
        let log = bits.take(4)? + 5;
        if 1 << log > N {
            return None;
        }
        let mut counts = [0; MAX_SYMBOLS];
        let n = read_counts(&mut bits, log, counts.get_mut(..n_symbols)?)?;
        let used = bits.taken.div_ceil(8) as usize;
        if used >= place.len() {
            return None;
        }
        self.build(&counts[..n], log)?;
        Some(used)
    }

    /// Makes the table of these counts, -1 for "less than one", which add up to 2^`log`.
    pub(super) fn build(&mut self, counts: &[i16], log: u32) -> Option<()> {
        let size = 1_usize << log;
        let entries = self.entries.get_mut(..size)?;
        let mask = size - 1;
        // The next state of each symbol, before it is scaled.
        let mut next = [0_u16; MAX_SYMBOLS];
        let mut n_free = size;
        for ((symbol, &count), next) in (0..).zip(counts).zip(&mut next) {
            *next = count.unsigned_abs();
            if count < 0 {
                n_free = n_free.checked_sub(1)?;
                entries[n_free].symbol = symbol;
            }
        }
        let step = (size >> 1) + (size >> 3) + 3;
        let mut at = 0;
        for (symbol, &count) in (0..).zip(counts) {
            for _ in 0..count {
                entries[at].symbol = symbol;
                at = (at + step) & mask;
                while at >= n_free {
                    at = (at + step) & mask;
                }
            }
        }
        if at != 0 {
            return None;
        }
        for entry in entries {
            let next = next.get_mut(usize::from(entry.symbol))?;
            let n_bits = (log + 1).checked_sub(16 - next.leading_zeros())?;
            entry.n_bits = u8::try_from(n_bits).ok()?;
            entry.base = u16::try_from((usize::from(*next) << n_bits).checked_sub(size)?).ok()?;
            *next += 1;
        }
        self.log = log;
        Some(())
    }
}

/// Reads counts, -1 for "less than one", that add up to 2^`log`. Returns how many there are.
fn read_counts(bits: &mut Forward<'_>, log: u32, counts: &mut [i16]) -> Option<usize> {
    let mut n = 0;
    // One more than what is left to be counted: a number is one more than the count, so this is also the largest one that can come.
    let mut left: u32 = (1 << log) + 1;
    while left > 1 {
        // As many bits as `left` has; the lowest numbers take one less, as many as there are too many of that length.
        let n_bits = u32::BITS - left.leading_zeros();
        let half = 1 << (n_bits - 1);
        let n_short = 2 * half - 1 - left;
        let value = bits.peek(n_bits)?;
        let short = value & (half - 1);
        let number = if short < n_short {
            bits.taken += n_bits - 1;
            short
        } else {
            bits.taken += n_bits;
            if value >= half { value - n_short } else { value }
        };
        *counts.get_mut(n)? = i16::try_from(number).ok()? - 1;
        left = left.checked_sub(if number == 0 { 1 } else { number - 1 })?;
        n += 1;
        if number == 1 {
            // How many more zeros follow, in steps of up to three.
            loop {
                let zeros = bits.take(2)?;
                n += zeros as usize;
                if zeros < 3 {
                    break;
                }
                if n > counts.len() {
                    return None;
                }
            }
        }
    }
    (left == 1 && n <= counts.len()).then_some(n)
}

/// Bits read from the first to the last, the lowest bit of a byte first.
struct Forward<'a> {
    src: &'a [u8],
    start: usize,
    taken: u32,
}

impl Forward<'_> {
    /// The next `n` bits, at most 32.
    fn peek(&self, n: u32) -> Option<u32> {
        let bytes = load(self.src, self.start + (self.taken >> 3) as usize)?;
        u32::try_from(bytes >> (self.taken & 7) & ((1 << n) - 1)).ok()
    }

    fn take(&mut self, n: u32) -> Option<u32> {
        let value = self.peek(n)?;
        self.taken += n;
        Some(value)
    }
}
