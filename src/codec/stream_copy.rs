//! Copies that bypass the caches.
//!
//! What a scatter writes is not read again by the thread that wrote it, so an ordinary copy wastes memory traffic: it reads
//! every destination line before it overwrites it, and pushes useful data out of the caches. Non-temporal stores do
//! neither. Below [`MIN_BYTES`] the detour costs more than it saves.

use std::sync::atomic::{Ordering, fence};

/// Shorter copies go through the caches.
pub const MIN_BYTES: usize = 512;

/// Copies `src` to `dst`, past the caches where that pays. When it returns, other threads see the bytes as after any
/// ordinary copy.
///
/// # Panics
/// If the lengths differ.
pub fn stream_copy(src: &[u8], dst: &mut [u8]) {
    assert_eq!(src.len(), dst.len(), "source and destination of a copy differ in length");
    if src.len() < MIN_BYTES {
        dst.copy_from_slice(src);
        return;
    }
    let _fence = Fence::new();
    stream_copy_unfenced(src, dst);
}

/// As [`stream_copy`], without the fence: for loops that copy piece by piece under one [`Fence`]. Short copies go through the caches.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn copy_under_fence(src: &[u8], dst: &mut [u8]) {
    assert_eq!(src.len(), dst.len(), "source and destination of a copy differ in length");
    if src.len() < MIN_BYTES { dst.copy_from_slice(src) } else { stream_copy_unfenced(src, dst) }
}

/// As [`copy_under_fence`], of any length.
pub(super) fn stream_copy_unfenced(src: &[u8], dst: &mut [u8]) {
    let (src, dst) = stream_lines(src, dst);
    dst.copy_from_slice(src);
}

/// Orders streamed stores before everything that follows its end, on every way out of a scope.
pub struct Fence(());

impl Fence {
    /// Nothing happens until it is dropped.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

impl Default for Fence {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Fence {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: every x86-64 processor has SSE.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
        fence(Ordering::Release);
    }
}

/// Streams whole cache lines of the destination; returns what is left of both slices.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
fn stream_lines<'a>(src: &'a [u8], dst: &'a mut [u8]) -> (&'a [u8], &'a mut [u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    const LINE: usize = 64;
    const STORE: usize = size_of::<__m128i>();
    let head = dst.as_ptr().align_offset(LINE).min(src.len()).min(dst.len());
    let (src_head, src) = src.split_at(head);
    let (dst_head, dst) = dst.split_at_mut(head);
    dst_head.copy_from_slice(src_head);
    let streamed = src.len().min(dst.len()) / LINE * LINE;
    let (src_lines, src_rest) = src.split_at(streamed);
    let (dst_lines, dst_rest) = dst.split_at_mut(streamed);
    for (from, to) in src_lines.chunks_exact(LINE).zip(dst_lines.chunks_exact_mut(LINE)) {
        // SAFETY: `from` and `to` are lines of 64 bytes, so all four accesses lie inside them; `to` is aligned to 64 bytes,
        // since `head` led there and lines follow one another; SSE2 is part of x86-64.
        unsafe {
            let from = from.as_ptr().cast::<__m128i>();
            let to = to.as_mut_ptr().cast::<__m128i>();
            let values: [__m128i; LINE / STORE] = std::array::from_fn(|i| _mm_loadu_si128(from.add(i)));
            for (i, value) in values.into_iter().enumerate() {
                _mm_stream_si128(to.add(i), value);
            }
        }
    }
    (src_rest, dst_rest)
}

/// Elsewhere everything is left to the ordinary copy.
#[cfg(not(target_arch = "x86_64"))]
fn stream_lines<'a>(src: &'a [u8], dst: &'a mut [u8]) -> (&'a [u8], &'a mut [u8]) {
    (src, dst)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_at_every_alignment_and_writes_nothing_else() {
        let src: Vec<u8> = (0..3000_usize).map(|i| (i * 31 % 251) as u8 + 1).collect();
        for len in [0, 1, 15, 511, 512, 513, 700, 2048] {
            for (src_at, dst_at) in [(0, 0), (1, 0), (0, 1), (3, 17), (63, 64), (5, 63)] {
                let mut dst = vec![0; 3000];
                stream_copy(&src[src_at..src_at + len], &mut dst[dst_at..dst_at + len]);
                assert_eq!(dst[dst_at..dst_at + len], src[src_at..src_at + len], "{len} {src_at} {dst_at}");
                assert!(dst[..dst_at].iter().chain(&dst[dst_at + len..]).all(|b| *b == 0));
            }
        }
    }

    #[test]
    #[should_panic(expected = "differ in length")]
    fn lengths_must_agree() {
        stream_copy(&[0; 600], &mut [0; 601]);
    }
}
