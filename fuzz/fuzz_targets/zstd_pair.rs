//! Two frames decoded at once, beside the reference library: what is taken must be what the library decodes.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use shufflefs::codec::{Scratch, zstd_frame, zstd_pair};

thread_local! {
    /// One for all inputs, so that what an input leaves behind is seen.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Bytes of one change to a frame: where (16 bits), and which bits.
const CHANGE_BYTES: usize = 3;

fuzz_target!(|data: &[u8]| {
    let Some((&[level, split, n_changes], rest)) = data.split_first_chunk::<3>() else { return };
    let (changes, content) = rest.split_at(rest.len().min(usize::from(n_changes % 8) * CHANGE_BYTES));
    let (first, second) = content.split_at(content.len() * usize::from(split) / 255);
    let contents = [expand(first), expand(second)];
    let Ok(mut compressor) = zstd::bulk::Compressor::new(i32::from(level % 24) - 2) else { return };
    let [Ok(first), Ok(second)] = contents.each_ref().map(|content| compressor.compress(content)) else { return };
    let mut frames = [first, second];
    for change in changes.chunks_exact(CHANGE_BYTES) {
        let place = u16::from_le_bytes([change[0], change[1]]);
        let frame = &mut frames[usize::from(place & 1)];
        let at = usize::from(place >> 1) % frame.len();
        frame[at] ^= change[2];
    }
    let mut out = contents.each_ref().map(|content| vec![0xee; content.len()]);
    let [first_out, second_out] = &mut out;
    let is_taken = SCRATCH
        .with_borrow_mut(|scratch| zstd_pair(frames.each_ref().map(Vec::as_slice), scratch, [first_out, second_out]));
    if is_taken {
        for (frame, out) in frames.iter().zip(out) {
            let mut expected = vec![0; out.len()];
            assert_eq!(zstd_frame(frame, &mut Scratch::default(), &mut expected), Ok(()));
            assert!(out == expected);
        }
    }
});

/// Each byte becomes eight that differ by little, so that there is something to compress that does not repeat.
fn expand(content: &[u8]) -> Vec<u8> {
    let mut state = 1_u32;
    let spread = |&byte: &u8| {
        [(); 8].map(|()| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let [.., random] = state.to_le_bytes();
            byte ^ (random >> (random & 7))
        })
    };
    content.iter().flat_map(spread).collect()
}
