//! Two small frames at once.
//!
//! A record of a few kilobytes is a frame of its own. Decoding such a frame means steps that wait for each other: a core does a third of
//! what it could. Two frames have nothing to do with each other, so what one waits for hides behind the other. The decoder of the reference
//! library takes one frame at a time, so this is one of our own, for the frames that records are ([`Parts`]), and for nothing else:
//!
//! * [`weights`](super::weights): the code lengths of both, in turn;
//! * [`table`](super::table): which literal begins with which bits, for each;
//! * [`huffman`](super::huffman): their eight streams of literals in turn;
//! * [`sequences`](super::sequences): repeats, of which such frames have few, one frame after the other.
//!
//! It does not say what is wrong with a frame. Whatever it does not take, because it is of another kind or because it is damaged, goes to the reference
//! library, which decodes it or tells. What it takes it decodes to the last bit of every stream, as the library does.

use super::frame::Parts;
use super::huffman::Literals;
use super::sequences::Sequences;
use super::weights::Weights;

/// A decoder of two frames, kept from pair to pair.
#[derive(Debug, Default)]
pub(in crate::codec) struct PairDecoder {
    weights: [Weights; 2],
    literals: Literals,
    sequences: Sequences,
}

impl PairDecoder {
    /// Decodes two frames, each to exactly its part of `out`. False if this is left to others; `out` then holds anything.
    pub(in crate::codec) fn decode(&mut self, frames: [&[u8]; 2], out: [&mut [u8]; 2]) -> bool {
        self.try_decode(frames, out).is_some()
    }

    fn try_decode(&mut self, frames: [&[u8]; 2], out: [&mut [u8]; 2]) -> Option<()> {
        let [first, second] = out;
        let parts = [Parts::of(frames[0], first.len())?, Parts::of(frames[1], second.len())?];
        let [first_parts, second_parts] = &parts;
        Weights::of_two(frames, [first_parts.weights.clone(), second_parts.weights.clone()], &mut self.weights)?;
        self.literals.of_two(frames, &parts, &mut self.weights, [first, second])?;
        for ((frame, parts), out) in frames.into_iter().zip(&parts).zip([first, second]) {
            self.sequences.run(frame, parts.sequences.clone(), out, parts.n_literals)?;
        }
        Some(())
    }
}
