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
//! library, which decodes it or tells. Of what it takes, every stream must end with its last bit.

use super::frame::Parts;
use super::huffman::Literals;
use super::sequences::Sequences;
use super::source::Source;
use super::weights::Weights;

/// A decoder of two frames, kept from pair to pair. It has room for the largest frames, 0.8 MiB, of which a pair touches what it needs.
#[derive(Debug, Default)]
pub(in crate::codec) struct PairDecoder {
    source: Source,
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
        let [first_at, second_at] = self.source.copy(frames)?;
        let source = self.source.bytes()?;
        let [first_parts, second_parts] = parts;
        let parts = [first_parts.moved_to(first_at), second_parts.moved_to(second_at)];
        let weights = parts.each_ref().map(|parts| parts.weights.clone());
        Weights::of_two(source, weights, &mut self.weights)?;
        self.literals.of_two(source, &parts, &mut self.weights, [first, second])?;
        for (parts, out) in parts.into_iter().zip([first, second]) {
            self.sequences.run(source, parts.sequences, out, parts.n_literals)?;
        }
        Some(())
    }
}
