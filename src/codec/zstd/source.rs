//! Both frames, one behind the other in one array.
//!
//! What reads a stream moves back from its end, up to eight bytes at a time. In an array whose size is a power of two, and known when this is compiled, a place is
//! cut to the array instead of being checked; all that is wrong with a place shows at the end, when it is not where the stream begins. The copy
//! also brings the frames into the cache in the order in which memory is read ahead.

use super::BLOCK_BYTES;
use super::huffman::LANE_LITERALS;
use super::table::MAX_BITS;

/// Bytes of the array, but for those that are read behind the last place.
pub(super) const SOURCE: usize = 1 << 19;
/// Longest frame that is taken.
const MAX_FRAME: usize = BLOCK_BYTES;
/// Where the frames lie. The second one begins in another part of the first cache.
const FRAMES: [usize; 2] = [1 << 16, (1 << 16) + MAX_FRAME + 1024];

// Codes may say that a stream is longer than it is, by all of them at most: that does not reach the beginning of the array.
const _: () = assert!(FRAMES[0] > LANE_LITERALS * MAX_BITS as usize / 8 + 8);
// Numbers before streams are looked at eight bytes at a time.
const _: () = assert!(FRAMES[0] + MAX_FRAME + 8 <= FRAMES[1] && FRAMES[1] + MAX_FRAME + 8 <= SOURCE);

/// A copy of two frames.
#[derive(Debug)]
pub(super) struct Source(Vec<u8>);

impl Default for Source {
    fn default() -> Self {
        Self(vec![0; SOURCE + 8])
    }
}

impl Source {
    /// Copies both frames and says where they lie. `None` if one is too long. What lies between them is anything.
    pub(super) fn copy(&mut self, frames: [&[u8]; 2]) -> Option<[usize; 2]> {
        for (frame, at) in frames.into_iter().zip(FRAMES) {
            if frame.len() > MAX_FRAME {
                return None;
            }
            self.0.get_mut(at..at + frame.len())?.copy_from_slice(frame);
        }
        Some(FRAMES)
    }

    /// The array.
    pub(super) fn bytes(&self) -> Option<&[u8; SOURCE + 8]> {
        self.0.as_slice().try_into().ok()
    }
}
