//! The code lengths of a frame's literals, as weights (RFC 8878, section 4.2.1).
//!
//! They are compressed with finite state entropy by two states in turn: each step waits for the table and for the bits of the step before,
//! so that most of a core idles. Two frames step in turn for that reason.

use std::ops::Range;

use super::bits::Backward;
use super::fse::Table;
use crate::num::to_usize;

/// Most literals there are.
pub(super) const N_LITERALS: usize = 256;
/// Weights that are coded are below this: no code that is taken is longer. The library has no room for tables that name more of them.
const N_WEIGHTS: usize = 12;
/// Most bits that a step takes: those of the largest table.
const STEP_BITS: usize = 6;
/// Steps between two refills.
const STEPS: usize = 4;

/// The weights of a frame, and the table that decodes them.
#[derive(Debug)]
pub(super) struct Weights {
    table: Table<64>,
    /// One weight per literal, below 16.
    pub(super) values: [u8; N_LITERALS],
    /// How many of them were decoded.
    pub(super) n: usize,
}

impl Default for Weights {
    fn default() -> Self {
        Self { table: Table::default(), values: [0; N_LITERALS], n: 0 }
    }
}

/// Where the decoding of the weights of a frame is.
struct Steps {
    stream: Backward,
    /// First byte of the stream.
    start: usize,
    /// The state whose turn it is, and the other one.
    states: [usize; 2],
}

impl Weights {
    /// Decodes the weights of two frames, which lie at `places` of `source`. `None` if one of them is damaged.
    #[inline(never)]
    pub(super) fn of_two(source: &[u8], places: [Range<usize>; 2], into: &mut [Self; 2]) -> Option<()> {
        let [first, second] = into;
        let [first_place, second_place] = places;
        let mut a = first.begin(source, first_place)?;
        let mut b = second.begin(source, second_place)?;
        let mut n = 0;
        // Whether these are too many is for the last steps to say.
        while n + 2 * STEPS < N_LITERALS && a.has_bits(STEPS) && b.has_bits(STEPS) {
            a.stream.refill(source)?;
            b.stream.refill(source)?;
            // Arrays, so that this is unrolled.
            let of_first: &mut [u8; STEPS] = first.values.get_mut(n..n + STEPS)?.try_into().ok()?;
            let of_second: &mut [u8; STEPS] = second.values.get_mut(n..n + STEPS)?.try_into().ok()?;
            for step in 0..STEPS {
                of_first[step] = a.step(&first.table, step % 2);
                of_second[step] = b.step(&second.table, step % 2);
            }
            n += STEPS;
        }
        first.end(source, a, n)?;
        second.end(source, b, n)
    }

    fn begin(&mut self, source: &[u8], place: Range<usize>) -> Option<Steps> {
        let used = self.table.read(source, place.clone(), N_WEIGHTS)?;
        let start = place.start + used;
        let mut stream = Backward::open(source, place.end)?;
        let states = [(); 2].map(|()| to_usize(stream.take(self.table.log)));
        stream.left(start)?;
        Some(Steps { stream, start, states })
    }

    /// Decodes what is left, `n` weights being there. A stream ends with the step that asks for more bits than there are; the other state still
    /// has a weight then.
    fn end(&mut self, source: &[u8], mut steps: Steps, mut n: usize) -> Option<()> {
        loop {
            steps.stream.refill(source)?;
            for i in [0, 1].into_iter().cycle().take(STEPS) {
                // This step and the other state may give two more, and one more is not coded.
                if n + 2 >= N_LITERALS {
                    return None;
                }
                self.values[n] = steps.step(&self.table, i);
                if steps.stream.left(steps.start).is_none() {
                    self.values[n + 1] = self.table.entry(steps.states[1 - i]).symbol;
                    self.n = n + 2;
                    return Some(());
                }
                n += 1;
            }
        }
    }
}

impl Steps {
    /// True if `n` steps need not look whether there are bits.
    #[inline(always)]
    fn has_bits(&self, n: usize) -> bool {
        self.stream.left(self.start).is_some_and(|left| left >= n * STEP_BITS)
    }

    /// The weight that state `i` says, and on to its next state.
    #[inline(always)]
    fn step(&mut self, table: &Table<64>, i: usize) -> u8 {
        let entry = table.entry(self.states[i]);
        let bits = self.stream.take(u32::from(entry.n_bits));
        self.states[i] = usize::from(entry.base) + to_usize(bits);
        entry.symbol
    }
}
