//! Sizes of batch files before anything is read: from the order and the row lengths.
//!
//! `ls -l` of an epoch asks for every batch in turn, so what is computed for one batch of a window is kept for the others.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::batch::{BatchShape, Encoder};
use crate::order::{Order, Pass};
use crate::store::Store;

use super::BatchId;

/// Windows whose sizes are kept: 8 bytes a batch.
const KEPT_WINDOWS: usize = 1024;

/// Computes and keeps the sizes of batches.
pub struct Sizes {
    store: Arc<dyn Store>,
    order: Arc<Order>,
    encoder: Arc<dyn Encoder>,
    mean_buffer_bytes: u64,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    windows: HashMap<(Pass, u64), Arc<[u64]>>,
    by_age: VecDeque<(Pass, u64)>,
}

impl Sizes {
    /// Sizes of the batches that `encoder` makes of `store` in `order`.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, order: Arc<Order>, encoder: Arc<dyn Encoder>) -> Self {
        let n_rows = order.batch_len(Pass::InOrder, 0);
        let mean_buffer_bytes = Self::mean_batch_buffer_bytes(&*store, &*encoder, n_rows);
        Self { store, order, encoder, mean_buffer_bytes, kept: Mutex::default() }
    }

    /// Size in bytes of one batch file.
    #[must_use]
    pub fn size_bytes(&self, id: BatchId) -> u64 {
        let schema = self.store.schema();
        if schema.elements.iter().all(|e| e.kind.sparse().is_none()) {
            let n_rows = self.order.batch_len(id.pass, id.batch);
            return self.encoder.layout(BatchShape { n_rows, n_values: &vec![0; schema.elements.len()] }).size_bytes;
        }
        let window = self.order.window_of(id.batch);
        let first = self.order.window_batches(id.pass, window).start;
        let sizes = self.window(id.pass, window);
        sizes.get(crate::num::to_usize(id.batch - first)).copied().unwrap_or(0)
    }

    /// Bytes that a full batch of mean rows takes while it is assembled.
    #[must_use]
    pub fn mean_buffer_bytes(&self) -> u64 {
        self.mean_buffer_bytes
    }

    /// Bytes that a batch of `n_rows` mean rows takes while it is assembled.
    #[must_use]
    pub fn mean_batch_buffer_bytes(store: &dyn Store, encoder: &dyn Encoder, n_rows: u32) -> u64 {
        let mean = |e: usize| {
            let share = u128::from(store.n_values(e)) * u128::from(n_rows) / u128::from(store.schema().n_rows.max(1));
            u64::try_from(share).unwrap_or(u64::MAX)
        };
        buffer_bytes(store, encoder, n_rows, mean)
    }

    /// Bytes that a batch of `n_rows` of the longest rows takes while it is assembled: what must fit the budget.
    #[must_use]
    pub fn largest_buffer_bytes(store: &dyn Store, encoder: &dyn Encoder, n_rows: u32) -> u64 {
        let longest = |e: usize| u64::from(store.max_row_len(e)) * u64::from(n_rows);
        buffer_bytes(store, encoder, n_rows, longest)
    }

    fn window(&self, pass: Pass, window: u64) -> Arc<[u64]> {
        if let Some(sizes) = self.kept.lock().windows.get(&(pass, window)) {
            return Arc::clone(sizes);
        }
        let rows = self.order.window_rows(pass, window);
        let sizes: Arc<[u64]> = self
            .order
            .window_batches(pass, window)
            .scan(0, |at, batch| {
                let n_rows = self.order.batch_len(pass, batch);
                let batch_rows = &rows[*at..*at + n_rows as usize];
                *at += n_rows as usize;
                Some(self.encoder.layout(BatchShape { n_rows, n_values: &self.n_values(batch_rows) }).size_bytes)
            })
            .collect();
        self.keep((pass, window), &sizes);
        sizes
    }

    fn n_values(&self, rows: &[u64]) -> Vec<u64> {
        let elements = self.store.schema().elements.iter().enumerate();
        elements
            .map(|(e, element)| match element.kind.sparse() {
                Some(_) => rows.iter().map(|&row| u64::from(self.store.row_len(e, row))).sum(),
                None => 0,
            })
            .collect()
    }

    fn keep(&self, key: (Pass, u64), sizes: &Arc<[u64]>) {
        let mut kept = self.kept.lock();
        if kept.windows.insert(key, Arc::clone(sizes)).is_none() {
            kept.by_age.push_back(key);
            if kept.by_age.len() > KEPT_WINDOWS
                && let Some(oldest) = kept.by_age.pop_front()
            {
                kept.windows.remove(&oldest);
            }
        }
    }
}

/// Bytes of a batch under assembly whose sparse elements hold `n_values` each.
fn buffer_bytes(store: &dyn Store, encoder: &dyn Encoder, n_rows: u32, n_values: impl Fn(usize) -> u64) -> u64 {
    let elements = store.schema().elements.iter().enumerate();
    let n_values: Vec<u64> =
        elements.map(|(e, element)| if element.kind.sparse().is_some() { n_values(e) } else { 0 }).collect();
    encoder.layout(BatchShape { n_rows, n_values: &n_values }).buffer_bytes
}
