//! The copies on the way from a decoded chunk to a batch, row by row, into memory that is not in a cache.

#![allow(clippy::unwrap_used, missing_docs)]

use criterion::{Criterion, Throughput};
use shufflefs::codec::convert;
use shufflefs::dtype::{DType, Stored};

mod support;

/// Values of one row.
const ROW_VALUES: usize = 2000;
/// Rows of one pass: four million values, more than any cache holds.
const N_ROWS: usize = 2000;
const N_COLS: u64 = 36_601;

fn main() {
    let mut c = support::criterion();
    values(&mut c);
    for dtype in [DType::I32, DType::U16, DType::I64] {
        indices(&mut c, dtype);
    }
    c.final_summary();
}

fn values(c: &mut Criterion) {
    let source: Vec<u8> = (0..ROW_VALUES * 4).map(|i| i as u8).collect();
    let mut batch = vec![0; N_ROWS * ROW_VALUES * 4];
    let mut group = c.benchmark_group("scatter");
    group.throughput(Throughput::Bytes(batch.len() as u64));
    for (name, swap) in [("values, 4 bytes", false), ("values, 4 bytes, big-endian", true)] {
        group.bench_function(name, |b| {
            b.iter(|| {
                for row in batch.chunks_exact_mut(source.len()) {
                    convert::copy_elements(&source, row, 4, swap);
                }
            });
        });
    }
}

/// Indices of any type become int32, each checked.
fn indices(c: &mut Criterion, dtype: DType) {
    let size = dtype.size_bytes();
    let source: Vec<u8> = (0..ROW_VALUES as u64).flat_map(|i| (i * 18).to_le_bytes()[..size].to_vec()).collect();
    let mut batch = vec![0; N_ROWS * ROW_VALUES * 4];
    let mut group = c.benchmark_group("scatter");
    group.throughput(Throughput::Bytes(batch.len() as u64));
    group.bench_function(format!("indices, {dtype}"), |b| {
        b.iter(|| {
            for row in batch.chunks_exact_mut(ROW_VALUES * 4) {
                convert::indices_to_i32(&source, Stored::little(dtype), N_COLS, row).unwrap();
            }
        });
    });
}
