//! Where the parts of a frame lie (RFC 8878, section 3.1.1).
//!
//! Only frames of one kind are taken: with their decoded size, one segment, no dictionary, no checksum; a single block; its literals
//! compressed in four streams by a table in the frame whose code lengths are compressed themselves. That is what a compressor writes
//! for some hundred bytes to 128 KiB that are handed to it at once and do compress.

use std::ops::Range;

use super::BLOCK_BYTES;
use super::bits::load;
use crate::num::{to_u64, to_usize};

/// The parts of a frame, as places in it, or in an array that it was copied to.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    /// The compressed code lengths.
    pub(super) weights: Range<usize>,
    /// The four streams of literals.
    pub(super) streams: [Range<usize>; 4],
    /// How many literals they hold.
    pub(super) n_literals: usize,
    /// The sequences.
    pub(super) sequences: Range<usize>,
}

/// First bytes of a frame: the magic number.
const MAGIC: u64 = 0xfd2f_b528;
/// Flags of a frame in one segment without a checksum and a dictionary, below those for the width of the decoded size.
const ONE_SEGMENT: u8 = 0b10_0000;
/// A last block that is compressed.
const LAST_COMPRESSED: u64 = 0b101;
/// Literals that are compressed by a table of their own.
const COMPRESSED_LITERALS: u64 = 2;
/// Fewest literals in four streams.
const LEAST_LITERALS: usize = 6;
/// Bytes of the stream lengths.
const JUMP_BYTES: usize = 6;

impl Parts {
    /// The parts of a frame that decodes to `len` bytes; `None` if the frame is of another kind, or damaged.
    pub(super) fn of(frame: &[u8], len: usize) -> Option<Self> {
        let head = load(frame, 0)?;
        let flags = frame[4];
        if head & 0xffff_ffff != MAGIC || flags & 0b11_1111 != ONE_SEGMENT {
            return None;
        }
        let (claimed, at) = match flags >> 6 {
            0 => (head >> 40 & 0xff, 6),
            1 => ((head >> 40 & 0xffff) + 256, 7),
            2 => (load(frame, 5)? & 0xffff_ffff, 9),
            _ => return None,
        };
        let block = load(frame, at)? & 0xff_ffff;
        let (at, block_len) = (at + 3, to_usize(block >> 3));
        if claimed != to_u64(len) || len > BLOCK_BYTES || block & 0b111 != LAST_COMPRESSED {
            return None;
        }
        // A block is no larger than the window, which is the whole frame.
        if block_len > len || at + block_len != frame.len() {
            return None;
        }
        let head = load(frame, at)?;
        let (n_bits, header_len) = match head >> 2 & 3 {
            1 => (10, 3),
            2 => (14, 4),
            3 => (18, 5),
            _ => return None,
        };
        let number = |from: u32| to_usize(head >> from & ((1 << n_bits) - 1));
        let (n_literals, literals_len) = (number(4), number(4 + n_bits));
        let at = at + header_len;
        let end = at + literals_len;
        if head & 3 != COMPRESSED_LITERALS || n_literals > len || n_literals < LEAST_LITERALS || end >= frame.len() {
            return None;
        }
        // Larger numbers mean code lengths of four bits each.
        let weights_len = usize::from(frame[at]);
        if weights_len >= 128 || at + 1 + weights_len + JUMP_BYTES > end {
            return None;
        }
        let weights = at + 1..at + 1 + weights_len;
        let jumps = load(frame, weights.end)?;
        let first = weights.end + JUMP_BYTES;
        let second = first + to_usize(jumps & 0xffff);
        let third = second + to_usize(jumps >> 16 & 0xffff);
        let fourth = third + to_usize(jumps >> 32 & 0xffff);
        let streams = [first..second, second..third, third..fourth, fourth..end];
        let parts = Self { weights, streams, n_literals, sequences: end..frame.len() };
        parts.streams.iter().all(|stream| !stream.is_empty()).then_some(parts)
    }

    /// The parts of a frame that was copied to `at`.
    pub(super) fn moved_to(self, at: usize) -> Self {
        let moved = |range: Range<usize>| range.start + at..range.end + at;
        Self {
            weights: moved(self.weights),
            streams: self.streams.map(moved),
            sequences: moved(self.sequences),
            ..self
        }
    }
}
