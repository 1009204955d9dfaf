//! The order: what an epoch costs before its first batch, and what a window costs.

#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;

use criterion::{BatchSize, Criterion};
use shufflefs::order::{Blocks, Order, OrderConfig, Pass, SourceRows, Tail};

mod support;

const N_BLOCKS: u64 = 1_000_000;
/// As the chunks of an `.h5ad` with 2,000 values per row cut it.
const MEAN_BLOCK_ROWS: u64 = 24;

fn order() -> Order {
    let first_rows: Vec<u64> = (0..N_BLOCKS).map(|i| i * MEAN_BLOCK_ROWS + i % 3).collect();
    let n_rows = N_BLOCKS * MEAN_BLOCK_ROWS;
    let source = SourceRows { rows: 0..n_rows, first_rows: Some(first_rows), x_bytes: n_rows * 16_000 };
    let blocks = Blocks::auto(&[source]).unwrap();
    let (batch_size, fetch_factor) = (256, 96);
    Order::new(OrderConfig { n_rows, blocks, batch_size, fetch_factor, seed: 0, tail: Tail::Keep }).unwrap()
}

fn main() {
    let mut c = support::criterion();
    epoch_table(&mut c);
    window(&mut c);
    c.final_summary();
}

/// Shuffling the blocks and summing their rows.
fn epoch_table(c: &mut Criterion) {
    let mut group = c.benchmark_group("order");
    group.sample_size(10);
    group.bench_function("epoch table, 10^6 blocks", |b| {
        b.iter_batched(order, |order| order.prepare(Pass::Epoch(0)), BatchSize::PerIteration);
    });
    group.finish();
}

/// The rows of a window of a prepared epoch, shuffled.
fn window(c: &mut Criterion) {
    let order = order();
    order.prepare(Pass::Epoch(0));
    let mut window = 0;
    c.benchmark_group("order").bench_function("window of 24,576 rows", |b| {
        b.iter(|| {
            window = (window + 1) % order.n_windows(Pass::Epoch(0));
            black_box(order.window_rows(Pass::Epoch(0), window))
        });
    });
}
