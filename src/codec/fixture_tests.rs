//! Chunks that the reference implementations wrote (`tests/data/codec/make.py`), decoded whole and in part.

use std::io::Read;
use std::ops::Range;
use std::path::PathBuf;

use super::{CodecError, Filter, Pipeline, Scratch};

/// One stored chunk.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) pipeline: Pipeline,
    pub(super) mask: u32,
    pub(super) stored: Vec<u8>,
    pub(super) plain: Vec<u8>,
}

/// All fixtures.
pub(super) fn cases() -> Vec<Case> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/codec");
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    let (chunks, index) = (read("chunks.bin"), String::from_utf8(read("index.tsv")).unwrap());
    let mut plain = Vec::new();
    flate2::read::ZlibDecoder::new(read("plain.bin").as_slice()).read_to_end(&mut plain).unwrap();
    index
        .lines()
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            let number = |i: usize| fields[i].parse::<usize>().unwrap();
            Case {
                name: fields[0].to_owned(),
                pipeline: Pipeline::new(filters(fields[1], number(3)), number(7)),
                mask: u32::try_from(number(2)).unwrap(),
                stored: chunks[number(4)..number(4) + number(5)].to_vec(),
                plain: plain[number(6)..number(6) + number(7)].to_vec(),
            }
        })
        .collect()
}

fn filters(text: &str, elem_size: usize) -> Vec<Filter> {
    let filter = |part: &str| {
        let (id, data) = part.split_once(':').unwrap();
        let data: Vec<u32> = data.split(',').filter(|v| !v.is_empty()).map(|v| v.parse().unwrap()).collect();
        Filter::from_hdf5(id.parse().unwrap(), &data, elem_size).unwrap()
    };
    text.split(';').map(filter).collect()
}

/// Parts of a chunk that end and start at odd places.
fn parts(len: usize) -> Vec<Range<usize>> {
    vec![0..1, 0..len, len - 1..len, len / 3..len / 2, 0..len * 2 / 3, 4..8, len / 2..len / 2 + 1, 5..5]
}

#[test]
fn whole_chunks_equal_what_the_library_decodes() {
    let cases = cases();
    assert!(cases.len() > 100);
    let mut scratch = Scratch::default();
    for case in cases {
        let len = case.plain.len();
        let mut out = vec![0xee; len];
        let decoded = case.pipeline.decode(&case.stored, false, case.mask, 0..len, &mut scratch, &mut out);
        let decoded = decoded.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        assert_eq!(decoded.valid, 0..len, "{}", case.name);
        assert!(out == case.plain, "{}", case.name);
        let is_raw = case.mask != 0 || case.name.starts_with("fletcher");
        assert_eq!(decoded.decoded_bytes, if is_raw { 0 } else { len as u64 }, "{}", case.name);
    }
}

#[test]
fn parts_equal_the_same_parts_of_the_whole() {
    let mut scratch = Scratch::default();
    for case in cases() {
        for need in parts(case.plain.len()) {
            let mut out = vec![0xee; case.plain.len()];
            let decoded = case.pipeline.decode(&case.stored, false, case.mask, need.clone(), &mut scratch, &mut out);
            let valid = decoded.unwrap_or_else(|error| panic!("{} {need:?}: {error}", case.name)).valid;
            assert!(valid.start <= need.start && need.end <= valid.end, "{} {need:?} {valid:?}", case.name);
            assert!(out[valid.clone()] == case.plain[valid.clone()], "{} {need:?}", case.name);
        }
    }
}

#[test]
fn prefixes_are_right_or_too_short() {
    let mut scratch = Scratch::default();
    let mut n_shorter = 0;
    for case in cases() {
        let len = case.plain.len();
        for need in parts(len) {
            let estimate = case.pipeline.stored_prefix(case.stored.len(), case.mask, need.end);
            assert!(estimate <= case.stored.len());
            n_shorter += usize::from(estimate < case.stored.len());
            for prefix in [estimate, estimate / 2, case.stored.len() - 1] {
                let mut out = vec![0xee; len];
                let stored = &case.stored[..prefix];
                match case.pipeline.decode(stored, true, case.mask, need.clone(), &mut scratch, &mut out) {
                    Ok(decoded) => {
                        let valid = decoded.valid;
                        assert!(valid.start <= need.start && need.end <= valid.end, "{} {need:?}", case.name);
                        assert!(out[valid.clone()] == case.plain[valid.clone()], "{} {need:?}", case.name);
                    }
                    Err(error) => assert!(matches!(error, CodecError::Truncated { .. }), "{}: {error}", case.name),
                }
            }
        }
    }
    assert!(n_shorter > 50, "{n_shorter}");
}

#[test]
fn estimated_prefixes_of_long_chunks_suffice() {
    let mut scratch = Scratch::default();
    for case in cases().iter().filter(|case| case.plain.len() > 100_000) {
        let len = case.plain.len();
        let mut out = vec![0; len];
        // Teaches the block size where only the chunk knows it.
        case.pipeline.decode(&case.stored, false, case.mask, 0..len, &mut scratch, &mut out).unwrap();
        for need_end in (0..len).step_by(9973) {
            let prefix = case.pipeline.stored_prefix(case.stored.len(), case.mask, need_end);
            let stored = &case.stored[..prefix];
            let is_prefix = prefix < case.stored.len();
            let result = case.pipeline.decode(stored, is_prefix, case.mask, 0..need_end, &mut scratch, &mut out);
            let decoded = result.unwrap_or_else(|error| panic!("{} {need_end}: {error}", case.name));
            assert!(out[..need_end] == case.plain[..need_end], "{} {need_end}", case.name);
            if case.name.starts_with("gzip") && need_end < len * 7 / 8 {
                assert_eq!(decoded.decoded_bytes, need_end as u64, "{}", case.name);
            }
            // Of byte planes no more than needed; the short last block is not split.
            let block_bytes = case.pipeline.block_hint.get().unwrap_or(1);
            if case.name == "blosc-lz4-long" && need_end <= len / block_bytes * block_bytes {
                assert!(decoded.decoded_bytes < need_end as u64 + 4, "{} {need_end}", decoded.decoded_bytes);
            }
        }
    }
}

#[test]
fn another_chunk_size_is_refused() {
    let mut scratch = Scratch::default();
    for case in cases() {
        for len in [case.plain.len() + 24, case.plain.len() - 24] {
            let pipeline = Pipeline::new(case.pipeline.filters.clone(), len);
            let mut out = vec![0; len];
            let result = pipeline.decode(&case.stored, false, case.mask, 0..len, &mut scratch, &mut out);
            assert!(result.is_err(), "{} {len}", case.name);
        }
    }
}

#[test]
fn stored_bytes_that_are_missing_are_noticed() {
    let mut scratch = Scratch::default();
    for case in cases() {
        let len = case.plain.len();
        let mut out = vec![0; len];
        let stored = &case.stored[..case.stored.len() / 2];
        let result = case.pipeline.decode(stored, false, case.mask, 0..len, &mut scratch, &mut out);
        assert!(result.is_err(), "{}", case.name);
    }
}
