//! Literals: four streams of codes per frame (RFC 8878, section 3.1.1.3.1.6).
//!
//! A literal is looked up by the next bits of its stream, as many as the longest code has, and the next lookup waits for its length: some seven
//! cycles, most of them for the first cache. Four streams in turn hide a half of that, the eight of two frames nearly all.
//!
//! So that eight streams stay in registers, both frames (in [`source`](super::source)), both tables and all eight outputs are one array each, with
//! distances that the compiler knows.

use super::BLOCK_BYTES;
use super::bits::Backward;
use super::frame::Parts;
use super::source::SOURCE;
use super::table::{MAX_BITS, Sorted, TABLE};
use super::weights::Weights;
use crate::num::to_usize;

/// Bits of the longest code that a frame of this size has as a rule: a stream has bits for six of them, but only for five of the
/// longest that there are.
const SHORT_BITS: u32 = 9;
/// Most literals of a stream.
pub(super) const LANE_LITERALS: usize = BLOCK_BYTES / 4;
/// From lane to lane. Not a power of two, or all lanes would share a few lines of the first cache.
const LANE: usize = LANE_LITERALS + 320;
/// Streams of two frames.
const N_LANES: usize = 8;

/// Tables and decoded literals of two frames.
#[derive(Debug)]
pub(super) struct Literals {
    /// Entries of both: the length of the code below the symbol.
    tables: Vec<u16>,
    /// The streams of both, decoded, each in a lane of its own.
    lanes: Vec<u8>,
}

impl Default for Literals {
    fn default() -> Self {
        Self { tables: vec![0; 2 * TABLE], lanes: vec![0; N_LANES * LANE] }
    }
}

impl Literals {
    /// Decodes the literals of two frames to the ends of `out`. `None` if a frame is damaged.
    pub(super) fn of_two(
        &mut self,
        source: &[u8; SOURCE + 8],
        parts: &[Parts; 2],
        weights: &mut [Weights; 2],
        out: [&mut [u8]; 2],
    ) -> Option<()> {
        let [first, second] = weights;
        let sorted = [Sorted::new(first)?, Sorted::new(second)?];
        if sorted.iter().all(|sorted| sorted.log <= SHORT_BITS) {
            self.decode::<SHORT_BITS, 6>(source, parts, &sorted, out)
        } else {
            self.decode::<MAX_BITS, 5>(source, parts, &sorted, out)
        }
    }

    /// With lookups of so many bits, and refills after so many literals.
    fn decode<const LOOKUP: u32, const N: usize>(
        &mut self,
        source: &[u8; SOURCE + 8],
        parts: &[Parts; 2],
        sorted: &[Sorted; 2],
        out: [&mut [u8]; 2],
    ) -> Option<()> {
        for (sorted, table) in sorted.iter().zip(self.tables.chunks_exact_mut(TABLE)) {
            sorted.write::<LOOKUP>(table.try_into().ok()?)?;
        }
        let lengths = parts.each_ref().map(|parts| lane_lengths(parts.n_literals));
        let mut streams = [Backward::default(); N_LANES];
        for (lane, stream) in streams.iter_mut().enumerate() {
            *stream = Backward::open(source, parts[lane / 4].streams[lane % 4].end)?;
        }
        // The last lane is the shortest.
        let n_rounds = lengths[0][3].min(lengths[1][3]) / N;
        let tables: &[u16; 2 * TABLE] = self.tables.as_slice().try_into().ok()?;
        let lanes: &mut [u8; N_LANES * LANE] = self.lanes.as_mut_slice().try_into().ok()?;
        eight_streams::<LOOKUP, N>(source, tables, &mut streams, lanes, n_rounds)?;
        for (lane, (stream, decoded)) in streams.iter_mut().zip(lanes.chunks_exact_mut(LANE)).enumerate() {
            let (side, i) = (lane / 4, lane % 4);
            let rest = decoded.get_mut(n_rounds * N..lengths[side][i])?;
            one_stream::<LOOKUP, N>(source, tables[side * TABLE..][..TABLE].try_into().ok()?, stream, rest)?;
            if stream.left(parts[side].streams[i].start) != Some(0) {
                return None;
            }
        }
        for (side, out) in out.into_iter().enumerate() {
            let mut at = out.len().checked_sub(parts[side].n_literals)?;
            for (lane, len) in lanes[side * 4 * LANE..].chunks_exact(LANE).zip(lengths[side]) {
                out.get_mut(at..at + len)?.copy_from_slice(&lane[..len]);
                at += len;
            }
        }
        Some(())
    }
}

/// Literals per stream.
fn lane_lengths(n_literals: usize) -> [usize; 4] {
    let each = n_literals.div_ceil(4);
    [each, each, each, n_literals - 3 * each]
}

/// Decodes `n_rounds` times `N` literals of each stream, 5 or 6.
#[inline(never)]
fn eight_streams<const LOOKUP: u32, const N: usize>(
    source: &[u8; SOURCE + 8],
    tables: &[u16; 2 * TABLE],
    streams: &mut [Backward; N_LANES],
    lanes: &mut [u8; N_LANES * LANE],
    n_rounds: usize,
) -> Option<()> {
    // Eight variables for what every literal needs, since an array would be kept in memory.
    let [mut b0, mut b1, mut b2, mut b3, mut b4, mut b5, mut b6, mut b7] = streams.map(|stream| stream.bits);
    let mut places = streams.map(|stream| stream.at);
    for round in 0..n_rounds {
        let at = round * N;
        // Never so, but this is where the compiler learns it.
        if at + N > LANE {
            return None;
        }
        macro_rules! each {
            ($what:ident $(, $n:expr)?) => {
                $what!(b0, 0 $(, $n)?);
                $what!(b1, 1 $(, $n)?);
                $what!(b2, 2 $(, $n)?);
                $what!(b3, 3 $(, $n)?);
                $what!(b4, 4 $(, $n)?);
                $what!(b5, 5 $(, $n)?);
                $what!(b6, 6 $(, $n)?);
                $what!(b7, 7 $(, $n)?);
            };
        }
        macro_rules! refill {
            ($bits:ident, $lane:expr) => {
                // As `Backward::refill`, with a place that is cut instead of checked.
                let taken = $bits.trailing_zeros();
                places[$lane] = places[$lane].wrapping_sub((taken >> 3) as usize);
                let from = places[$lane] % SOURCE;
                $bits = (u64::from_le_bytes(source[from..from + 8].try_into().ok()?) | 1) << (taken & 7);
            };
        }
        macro_rules! symbol {
            ($bits:ident, $lane:expr, $n:expr) => {
                let entry = tables[to_usize($bits >> (64 - LOOKUP)) + $lane / 4 * TABLE];
                $bits = $bits.wrapping_shl(u32::from(entry));
                lanes[at + $n + $lane * LANE] = entry.to_le_bytes()[1];
            };
        }
        each!(refill);
        each!(symbol, 0);
        each!(symbol, 1);
        each!(symbol, 2);
        each!(symbol, 3);
        each!(symbol, 4);
        if N == 6 {
            each!(symbol, 5);
        }
    }
    for ((stream, bits), at) in streams.iter_mut().zip([b0, b1, b2, b3, b4, b5, b6, b7]).zip(places) {
        *stream = Backward { bits, at };
    }
    Some(())
}

/// Decodes the last literals of a stream.
fn one_stream<const LOOKUP: u32, const N: usize>(
    source: &[u8],
    table: &[u16; TABLE],
    stream: &mut Backward,
    out: &mut [u8],
) -> Option<()> {
    for out in out.chunks_mut(N) {
        stream.refill(source)?;
        for out in out {
            let entry = table[to_usize(stream.peek(LOOKUP))];
            stream.skip(u32::from(entry));
            *out = entry.to_le_bytes()[1];
        }
    }
    Some(())
}
