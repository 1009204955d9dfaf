//! The table of a frame's literals: which one begins with which bits (RFC 8878, section 4.2.1).
//!
//! Codes go from the longest to the shortest, those of one length in the order of their literals. A code fills as many entries as it leaves bits of a
//! lookup, so writing a table is sorting the literals by weight and repeating each.

use super::weights::{N_LITERALS, Weights};

/// Bits of the longest code.
pub(super) const MAX_BITS: u32 = 11;
/// Entries that are written at a time.
const RUN: usize = 8;
/// Entries of the largest table: writes of whole runs go beyond its end.
pub(super) const TABLE: usize = (1 << MAX_BITS) + RUN;

/// Parts of the literals that are counted and sorted side by side: where the same weight comes again, the next count waits for the one
/// before.
const N_PARTS: u8 = 8;
/// Literals of a part.
const PART: u8 = 32;
/// Counters of a part.
const COUNTERS: u8 = 16;

/// One counter per part and weight, and room for any byte as a weight.
type Counters = [u8; (N_PARTS * COUNTERS) as usize + N_LITERALS];

/// Each literal as it stands in an entry, as often as entries are written at a time. (If they are made on the spot, they are written one by one.)
static ENTRIES: [[u16; RUN]; N_LITERALS] = {
    let mut entries = [[0; RUN]; N_LITERALS];
    let mut literal = 0;
    while literal < N_LITERALS {
        entries[literal] = [u16::from_le_bytes([0, literal.to_le_bytes()[0]]); RUN];
        literal += 1;
    }
    entries
};

/// The literals of a frame in the order of their codes.
#[derive(Debug)]
pub(super) struct Sorted {
    /// By weight, then by number; those without a code come last.
    literals: [u8; N_LITERALS],
    /// Literals of each weight but 0.
    counts: [u16; COUNTERS as usize],
    /// Bits of the longest code.
    pub(super) log: u32,
}

impl Sorted {
    /// From weights, of which the last one is not decoded but what is left. `None` if no code has these weights.
    pub(super) fn new(weights: &mut Weights) -> Option<Self> {
        let Weights { values, n, .. } = weights;
        values.get_mut(*n..)?.fill(0);
        let (mut counters, mut counts) = count(values);
        let total: u32 = (0..).zip(&counts[1..]).map(|(shift, &count)| u32::from(count) << shift).sum();
        let log = u32::BITS - total.leading_zeros();
        if total == 0 || log > MAX_BITS {
            return None;
        }
        let rest = (1 << log) - total;
        let last = u8::try_from(rest.trailing_zeros() + 1).ok()?;
        *values.get_mut(*n)? = last;
        let part = COUNTERS * (u8::try_from(*n).ok()? / PART);
        counters[usize::from(part)] -= 1;
        counters[usize::from(part + last)] += 1;
        *counts.get_mut(usize::from(last))? += 1;
        // There are always two codes of the longest length.
        if !rest.is_power_of_two() || counts[1] < 2 || counts[1] % 2 == 1 {
            return None;
        }
        Some(Self { literals: sort(values, counters), counts, log })
    }

    /// Writes the entries for lookups of `LOOKUP` bits: the length of a code below its literal. `None` if the codes do not fill them.
    pub(super) fn write<const LOOKUP: u32>(&self, table: &mut [u16; TABLE]) -> Option<()> {
        let spare = LOOKUP.checked_sub(self.log)?;
        let (mut at, mut rest) = (0, self.literals.as_slice());
        for (weight, &count) in (1..=self.log).zip(&self.counts[1..]) {
            let (literals, longer) = rest.split_at_checked(usize::from(count))?;
            rest = longer;
            let length = [u16::try_from(self.log + 1 - weight).ok()?; RUN];
            let n_entries = 1_usize << (spare + weight - 1);
            for &literal in literals {
                let mut entries = ENTRIES[usize::from(literal)];
                entries.iter_mut().zip(length).for_each(|(entry, length)| *entry |= length);
                if n_entries <= RUN {
                    // What goes beyond the last entry is overwritten by the next literal.
                    let from = at % (1 << LOOKUP);
                    table[from..from + RUN].copy_from_slice(&entries);
                } else {
                    let runs = table.get_mut(at..at + n_entries)?.chunks_exact_mut(RUN);
                    runs.for_each(|run| run.copy_from_slice(&entries));
                }
                at += n_entries;
            }
        }
        (at == 1 << LOOKUP).then_some(())
    }
}

/// How many literals of each part have each weight, and all of them.
#[inline(always)]
fn count(weights: &[u8; N_LITERALS]) -> (Counters, [u16; COUNTERS as usize]) {
    let mut counters: Counters = [0; _];
    for i in 0..PART {
        for part in 0..N_PARTS {
            let weight = weights[usize::from(part * PART + i)];
            counters[usize::from(part * COUNTERS) + usize::from(weight)] += 1;
        }
    }
    let mut counts = [0; COUNTERS as usize];
    for row in counters.chunks_exact(COUNTERS.into()).take(N_PARTS.into()) {
        for (count, &of_part) in counts.iter_mut().zip(row) {
            *count += u16::from(of_part);
        }
    }
    (counters, counts)
}

/// The literals by weight, then by number; those without a code come last.
#[inline(always)]
fn sort(weights: &[u8; N_LITERALS], mut counters: Counters) -> [u8; N_LITERALS] {
    // From counts to first places.
    let mut at = 0_u8;
    for weight in (1..COUNTERS).chain([0]) {
        for part in 0..N_PARTS {
            let place = &mut counters[usize::from(part * COUNTERS + weight)];
            let count = std::mem::replace(place, at);
            at = at.wrapping_add(count);
        }
    }
    let mut sorted = [0; N_LITERALS];
    for i in 0..PART {
        for part in 0..N_PARTS {
            let literal = part * PART + i;
            let place = &mut counters[usize::from(part * COUNTERS) + usize::from(weights[usize::from(literal)])];
            sorted[usize::from(*place)] = literal;
            *place = place.wrapping_add(1);
        }
    }
    sorted
}
