//! Damaged and random input: any result but a panic, an access out of bounds, or memory beyond the chunk's.

use proptest::prelude::*;

use super::fixture_tests::cases;
use super::{BitshuffleCompressor, Filter, Pipeline, Scratch};

fn any_filter() -> impl Strategy<Value = Filter> {
    let compressor =
        prop::sample::select(vec![BitshuffleCompressor::None, BitshuffleCompressor::Lz4, BitshuffleCompressor::Zstd]);
    prop_oneof![
        Just(Filter::Deflate),
        (0..20_usize).prop_map(|elem_size| Filter::Shuffle { elem_size }),
        Just(Filter::Fletcher32),
        Just(Filter::Lzf),
        Just(Filter::Blosc),
        Just(Filter::Lz4),
        (0..20_usize, 0..5_usize, compressor).prop_map(|(elem_size, groups, compressor)| {
            Filter::Bitshuffle { elem_size, block_elems: groups * 8, compressor }
        }),
        Just(Filter::Zstd),
        Just(Filter::Blosc2),
    ]
}

/// Decodes and checks what every result must satisfy.
fn decode(pipeline: &Pipeline, stored: &[u8], is_prefix: bool, mask: u32, need: std::ops::Range<usize>) {
    let mut scratch = Scratch::default();
    let mut out = vec![0; pipeline.chunk_bytes];
    if let Ok(decoded) = pipeline.decode(stored, is_prefix, mask, need.clone(), &mut scratch, &mut out) {
        assert!(decoded.valid.start <= need.start && need.end <= decoded.valid.end);
        assert!(decoded.valid.end <= pipeline.chunk_bytes);
    }
    // Every buffer has its size from the chunk or the stored bytes; padding of arrays may double each axis.
    let limit = 16 * pipeline.chunk_bytes.max(stored.len()) + 256;
    assert!(scratch.largest_buffer() <= limit, "{} > {limit}", scratch.largest_buffer());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes(
        filters in prop::collection::vec(any_filter(), 0..4),
        stored in prop::collection::vec(any::<u8>(), 0..400),
        chunk_bytes in 0..2000_usize,
        (a, b) in (0..2000_usize, 0..2000_usize),
        mask in 0..8_u32,
        is_prefix in any::<bool>(),
    ) {
        let (a, b) = (a.min(chunk_bytes), b.min(chunk_bytes));
        let pipeline = Pipeline::new(filters, chunk_bytes);
        decode(&pipeline, &stored, is_prefix, mask, a.min(b)..a.max(b));
    }

    #[test]
    fn valid_headers_and_random_bodies(
        which in any::<prop::sample::Index>(),
        keep in 0..100_usize,
        tail in prop::collection::vec(any::<u8>(), 0..300),
        is_prefix in any::<bool>(),
    ) {
        with_case(which, |case, stored| {
            stored.truncate(keep);
            stored.extend(&tail);
            decode(&case.pipeline, stored, is_prefix, case.mask, 0..case.plain.len());
        });
    }

    #[test]
    fn flipped_bits_and_cuts(
        which in any::<prop::sample::Index>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8_u8, any::<bool>()), 0..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
        is_prefix in any::<bool>(),
        (a, b) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
    ) {
        with_case(which, |case, stored| {
            for (at, bit, in_header) in &flips {
                let len = if *in_header { stored.len().min(160) } else { stored.len() };
                stored[at.index(len)] ^= 1 << bit;
            }
            if let Some(cut) = cut {
                stored.truncate(cut.index(stored.len()));
            }
            let (a, b) = (a.index(case.plain.len()), b.index(case.plain.len()) + 1);
            decode(&case.pipeline, stored, is_prefix, case.mask, a.min(b)..a.max(b));
        });
    }
}

/// Runs `test` on a copy of a fixture's stored bytes.
fn with_case(which: prop::sample::Index, test: impl FnOnce(&super::fixture_tests::Case, &mut Vec<u8>)) {
    use std::sync::OnceLock;
    static CASES: OnceLock<Vec<super::fixture_tests::Case>> = OnceLock::new();
    let cases = CASES.get_or_init(cases);
    let case = &cases[which.index(cases.len())];
    test(case, &mut case.stored.clone());
}

/// Every byte of every small fixture, with all bits of it flipped in turn.
#[test]
fn every_header_byte_flipped() {
    for case in cases() {
        for at in 0..case.stored.len().min(200) {
            for flip in [1, 0x80, 0xff] {
                let mut stored = case.stored.clone();
                stored[at] ^= flip;
                decode(&case.pipeline, &stored, false, case.mask, 0..case.plain.len());
            }
        }
    }
}
