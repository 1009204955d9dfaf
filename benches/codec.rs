//! Decoding: whole chunks and the first halves of chunks that the reference implementations wrote (`tests/data/codec`).

#![allow(clippy::unwrap_used, missing_docs)]

use std::fs::read;
use std::io::Read as _;
use std::path::PathBuf;

use criterion::{BenchmarkId, Criterion, Throughput};
use shufflefs::codec::{Filter, Pipeline, Scratch, zstd_frame, zstd_pair};

mod support;

/// Chunks of 160,000 bytes, and of 6,012 where there is no long one.
const CASES: [&str; 8] = [
    "gzip-long",
    "lzf-long",
    "zstd-long",
    "blosc-lz4-long",
    "blosc2-lz4-long",
    "bitshuffle-lz4-long",
    "shuffle-f4",
    "shuffle-gzip-f4",
];

struct Case {
    pipeline: Pipeline,
    stored: Vec<u8>,
    chunk_bytes: usize,
}

/// One line of the index: name, filters as `id:data;...`, filter mask, element size, place and length in chunks.bin, and in plain.bin.
fn case(fields: &[&str], chunks: &[u8]) -> Case {
    let number = |i: usize| fields[i].parse::<usize>().unwrap();
    let filter = |text: &str| {
        let (id, data) = text.split_once(':').unwrap();
        let data: Vec<u32> = data.split(',').filter(|v| !v.is_empty()).map(|v| v.parse().unwrap()).collect();
        Filter::from_hdf5(id.parse().unwrap(), &data, number(3)).unwrap()
    };
    let filters: Vec<Filter> = fields[1].split(';').map(filter).collect();
    let stored = chunks[number(4)..number(4) + number(5)].to_vec();
    Case { pipeline: Pipeline::new(filters, number(7)), stored, chunk_bytes: number(7) }
}

fn main() {
    let mut c = support::criterion();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/codec");
    let chunks = read(folder.join("chunks.bin")).unwrap();
    let mut index = String::new();
    std::fs::File::open(folder.join("index.tsv")).unwrap().read_to_string(&mut index).unwrap();
    for line in index.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        if CASES.contains(&fields[0]) {
            decode(&mut c, fields[0], &case(&fields, &chunks));
        }
    }
    two_records(&mut c);
    c.final_summary();
}

/// Two records of 64 atoms, compressed with zstd: one after the other by the reference library, and at once.
fn two_records(c: &mut Criterion) {
    let mut state = 1_u64;
    let mut record = || {
        let mut number = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / 1_677_721.6
        };
        (0..384).flat_map(|_| number().to_le_bytes()).collect::<Vec<u8>>()
    };
    let records = [record(), record()];
    let stored = records.each_ref().map(|record| zstd::bulk::compress(record, 3).unwrap());
    let [first, second] = &stored;
    let mut out = records.each_ref().map(|record| vec![0; record.len()]);
    let [first_out, second_out] = &mut out;
    let mut scratch = Scratch::default();
    let mut group = c.benchmark_group("codec");
    group.throughput(Throughput::Elements(2));
    group.bench_function(BenchmarkId::new("zstd-records", "one by one"), |b| {
        b.iter(|| {
            zstd_frame(first, &mut scratch, first_out).unwrap();
            zstd_frame(second, &mut scratch, second_out).unwrap();
        });
    });
    group.bench_function(BenchmarkId::new("zstd-records", "two at once"), |b| {
        b.iter(|| assert!(zstd_pair([first, second], &mut scratch, [&mut *first_out, &mut *second_out])));
    });
    group.finish();
    assert_eq!(out, records);
}

fn decode(c: &mut Criterion, name: &str, case: &Case) {
    let mut scratch = Scratch::default();
    let mut out = vec![0; case.chunk_bytes];
    let mut group = c.benchmark_group("codec");
    for (part, end) in [("whole", case.chunk_bytes), ("first half", case.chunk_bytes / 2)] {
        group.throughput(Throughput::Bytes(end as u64));
        group.bench_function(BenchmarkId::new(name, part), |b| {
            b.iter(|| case.pipeline.decode(&case.stored, false, 0, 0..end, &mut scratch, &mut out).unwrap());
        });
    }
}
