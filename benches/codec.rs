//! Decoding: whole chunks and the first halves of chunks that the reference implementations wrote (`tests/data/codec`).

#![allow(clippy::unwrap_used, missing_docs)]

use std::fs::read;
use std::io::Read as _;
use std::path::PathBuf;

use criterion::{BenchmarkId, Criterion, Throughput};
use shufflefs::codec::{Filter, Pipeline, Scratch};

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
    c.final_summary();
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
