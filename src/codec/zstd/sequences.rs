//! Sequences: which literals and which repeats make up a block (RFC 8878, sections 3.1.1.3.2 and 3.1.1.4).

use std::ops::Range;

use super::bits::Backward;
use super::fse::Table;
use crate::codec::lz_copy;
use crate::num::to_usize;

/// Baseline and number of further bits of each code for a number of literals.
const LITERAL_CODES: [(usize, u8); 36] = codes(
    0,
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
);
/// Those of each code for the length of a repeat.
const REPEAT_CODES: [(usize, u8); 53] = codes(
    3,
    [
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2,
        2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
    ],
);
/// Counts of the tables that a frame need not hold.
const LITERAL_COUNTS: [i16; 36] =
    [4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1];
const OFFSET_COUNTS: [i16; 29] =
    [1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1];
const REPEAT_COUNTS: [i16; 53] = [
    1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1,
];
/// Largest offset code that is taken: no block of 128 KiB has a larger one, and its bits fit beside the others of a sequence.
const MAX_OFFSET_CODE: u8 = 17;

/// Each code begins where the one before ends.
const fn codes<const N: usize>(first: usize, n_bits: [u8; N]) -> [(usize, u8); N] {
    let mut codes = [(0, 0); N];
    let (mut i, mut next) = (0, first);
    while i < N {
        codes[i] = (next, n_bits[i]);
        // A code of n bits stands for 2^n values.
        next += 1 << n_bits[i];
        i += 1;
    }
    codes
}

/// The table of one of the three numbers of a sequence.
#[derive(Debug)]
struct Kind<const N: usize> {
    /// The one that frames need not hold.
    predefined: Table<N>,
    /// That of a frame that holds one.
    own: Table<N>,
    is_predefined: bool,
    /// Its codes are below this.
    n_symbols: usize,
}

impl<const N: usize> Kind<N> {
    fn new(counts: &[i16], log: u32, n_symbols: usize) -> Self {
        let mut predefined = Table::default();
        let built = predefined.build(counts, log);
        debug_assert!(built.is_some());
        Self { predefined, own: Table::default(), is_predefined: true, n_symbols }
    }

    /// The one that [`Self::set`] made.
    fn table(&self) -> &Table<N> {
        if self.is_predefined { &self.predefined } else { &self.own }
    }

    /// Makes the table that `mode` says, from the bytes at `place`. Returns the bytes that it takes.
    fn set(&mut self, mode: u8, source: &[u8], place: Range<usize>) -> Option<usize> {
        self.is_predefined = mode == 0;
        match mode {
            0 => Some(0),
            1 => {
                let symbol = *source.get(place)?.first()?;
                self.own.set_single(symbol);
                (usize::from(symbol) < self.n_symbols).then_some(1)
            }
            2 => self.own.read(source, place, self.n_symbols),
            // That of the block before, and there is none.
            _ => None,
        }
    }
}

/// The tables of sequences.
#[derive(Debug)]
pub(super) struct Sequences {
    literals: Kind<512>,
    offsets: Kind<256>,
    repeats: Kind<512>,
}

impl Default for Sequences {
    fn default() -> Self {
        Self {
            literals: Kind::new(&LITERAL_COUNTS, 6, LITERAL_CODES.len()),
            offsets: Kind::new(&OFFSET_COUNTS, 5, usize::from(MAX_OFFSET_CODE) + 1),
            repeats: Kind::new(&REPEAT_COUNTS, 6, REPEAT_CODES.len()),
        }
    }
}

impl Sequences {
    /// Runs the sequences at `place` of `source`. The last `n_literals` bytes of `out` are its literals; they move to their places, repeats come
    /// between them. `None` if that does not make up `out`.
    pub(super) fn run(&mut self, source: &[u8], place: Range<usize>, out: &mut [u8], n_literals: usize) -> Option<()> {
        let head = source.get(place.clone())?;
        let (n_sequences, n_bytes) = match *head {
            // Nothing follows.
            [0] => return (n_literals == out.len()).then_some(()),
            [n @ 1..128, ..] => (usize::from(n), 1),
            [high @ 128..=254, low, ..] => ((usize::from(high) - 128) << 8 | usize::from(low), 2),
            [255, low, high, ..] => (usize::from(u16::from_le_bytes([low, high])) + 0x7f00, 3),
            _ => return None,
        };
        let modes = *head.get(n_bytes)?;
        // The lowest bits are reserved. No sequence can be written as 128, 0, too: that is left to others.
        if modes & 3 != 0 || n_sequences == 0 {
            return None;
        }
        let mut at = place.start + n_bytes + 1;
        at += self.literals.set(modes >> 6, source, at..place.end)?;
        at += self.offsets.set(modes >> 4 & 3, source, at..place.end)?;
        at += self.repeats.set(modes >> 2 & 3, source, at..place.end)?;
        self.run_stream(source, at..place.end, n_sequences, Block::new(out, n_literals)?)
    }

    fn run_stream(&self, source: &[u8], place: Range<usize>, n_sequences: usize, mut block: Block<'_>) -> Option<()> {
        let (literals, offsets, repeats) = (self.literals.table(), self.offsets.table(), self.repeats.table());
        let mut stream = Backward::open(source, place.end)?;
        let mut literal_state = to_usize(stream.take(literals.log));
        let mut offset_state = to_usize(stream.take(offsets.log));
        let mut repeat_state = to_usize(stream.take(repeats.log));
        for left in (0..n_sequences).rev() {
            let literal = literals.entry(literal_state);
            let offset = offsets.entry(offset_state);
            let repeat = repeats.entry(repeat_state);
            // At most 17, 16 and 16 bits of 56.
            stream.refill(source)?;
            if offset.symbol > MAX_OFFSET_CODE {
                return None;
            }
            let offset_value = (1 << offset.symbol) + to_usize(stream.take(u32::from(offset.symbol)));
            let (base, n_bits) = *REPEAT_CODES.get(usize::from(repeat.symbol))?;
            let n_repeated = base + to_usize(stream.take(u32::from(n_bits)));
            let (base, n_bits) = *LITERAL_CODES.get(usize::from(literal.symbol))?;
            let n_literals = base + to_usize(stream.take(u32::from(n_bits)));
            block.push(n_literals, offset_value, n_repeated)?;
            if left > 0 {
                stream.refill(source)?;
                literal_state = usize::from(literal.base) + to_usize(stream.take(u32::from(literal.n_bits)));
                repeat_state = usize::from(repeat.base) + to_usize(stream.take(u32::from(repeat.n_bits)));
                offset_state = usize::from(offset.base) + to_usize(stream.take(u32::from(offset.n_bits)));
            }
        }
        (stream.left(place.start)? == 0 && block.is_complete()).then_some(())
    }
}

/// A block that is made up.
struct Block<'a> {
    out: &'a mut [u8],
    /// Bytes that are complete.
    written: usize,
    /// First literal that was not moved; all behind it are literals, too.
    literals: usize,
    /// The last three offsets.
    recent: [usize; 3],
}

impl<'a> Block<'a> {
    fn new(out: &'a mut [u8], n_literals: usize) -> Option<Self> {
        let literals = out.len().checked_sub(n_literals)?;
        Some(Self { out, written: 0, literals, recent: [1, 4, 8] })
    }

    /// Moves `n_literals`, then repeats `n_repeated` bytes.
    fn push(&mut self, n_literals: usize, offset_value: usize, n_repeated: usize) -> Option<()> {
        let end = self.literals.checked_add(n_literals).filter(|&end| end <= self.out.len())?;
        // The gap between both is what repeats have still to fill, so nothing is overwritten that was not moved.
        self.out.copy_within(self.literals..end, self.written);
        self.literals = end;
        self.written += n_literals;
        let offset = self.offset(offset_value, n_literals == 0)?;
        let free = self.out.get_mut(..self.literals)?;
        lz_copy::repeat(free, offset, self.written, n_repeated)?;
        self.written += n_repeated;
        Some(())
    }

    /// The offset of a value: values up to 3 stand for recent offsets.
    fn offset(&mut self, value: usize, no_literals: bool) -> Option<usize> {
        let [first, second, third] = self.recent;
        let recent = match value.checked_sub(4) {
            Some(offset) => [offset + 1, first, second],
            None => match value + usize::from(no_literals) {
                1 => self.recent,
                2 => [second, first, third],
                3 => [third, first, second],
                _ => [first.checked_sub(1)?, first, second],
            },
        };
        self.recent = recent;
        // An offset of 0 is none.
        Some(recent[0]).filter(|&offset| offset > 0)
    }

    /// True if what is left are literals at their places.
    fn is_complete(&self) -> bool {
        self.written == self.literals
    }
}
