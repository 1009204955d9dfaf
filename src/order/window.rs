//! The rows of one window: a slice of the sequence of shuffled blocks, shuffled again.

use std::sync::Arc;

use parking_lot::Mutex;

use super::rng::{Domain, Draws};
use super::{Order, Pass, Tail};
use crate::num::{to_u64, to_usize};

/// The last window whose rows were asked for batch by batch.
pub(super) type Memo = Mutex<Option<(u32, u64, Arc<Vec<u64>>)>>;

impl Order {
    /// Global row ids of all batches of the window, batch after batch, padding included; empty beyond the last window.
    #[must_use]
    pub fn window_rows(&self, pass: Pass, window: u64) -> Vec<u64> {
        let batches = self.window_batches(pass, window);
        if batches.is_empty() {
            return Vec::new();
        }
        let Pass::Epoch(epoch) = pass else {
            let first = window * self.window_size();
            return (first..(first + self.window_size()).min(self.n_rows())).collect();
        };
        let mut rows = self.shuffled_window(epoch, window);
        let n_served = to_usize((batches.end - batches.start) * u64::from(self.batch_size()));
        match self.tail() {
            Tail::Keep => {}
            Tail::Drop => rows.truncate(n_served),
            Tail::Pad if window == 0 => {
                // Fewer rows than a window: the epoch's first rows are this window's own, as often as needed.
                for i in 0..n_served.saturating_sub(rows.len()) {
                    rows.push(rows[i]);
                }
            }
            Tail::Pad => {
                // More rows than a window, so its first rows are enough for the rest of a batch.
                let missing = n_served.saturating_sub(rows.len());
                if missing > 0 {
                    rows.extend(self.shuffled_window(epoch, 0).into_iter().take(missing));
                }
            }
        }
        rows
    }

    /// Global row ids of one batch, padding included; empty beyond the last batch.
    ///
    /// The last window is remembered, so that batch after batch costs no more than window after window.
    #[must_use]
    pub fn batch_rows(&self, pass: Pass, batch: u64) -> Vec<u64> {
        let len = u64::from(self.batch_len(pass, batch));
        let Pass::Epoch(epoch) = pass else {
            let first = batch.saturating_mul(u64::from(self.batch_size()));
            return (first..first.saturating_add(len)).collect();
        };
        if len == 0 {
            return Vec::new();
        }
        let window = self.window_of(batch);
        let remembered = self.memo.lock().as_ref().and_then(|(at_epoch, at_window, rows)| {
            (*at_epoch == epoch && *at_window == window).then(|| Arc::clone(rows))
        });
        let rows = remembered.unwrap_or_else(|| {
            let rows = Arc::new(self.window_rows(pass, window));
            *self.memo.lock() = Some((epoch, window, Arc::clone(&rows)));
            rows
        });
        let first = (batch - self.window_batches(pass, window).start) * u64::from(self.batch_size());
        rows[to_usize(first)..to_usize(first + len)].to_vec()
    }

    /// Rows of a full window.
    pub(super) fn window_size(&self) -> u64 {
        u64::from(self.batch_size()) * u64::from(self.fetch_factor())
    }

    pub(super) fn memo_bytes(&self) -> u64 {
        self.memo.lock().as_ref().map_or(0, |(_, _, rows)| to_u64(size_of_val(&**rows)))
    }

    /// All rows of a window of an epoch, before the tail is cut or filled.
    fn shuffled_window(&self, epoch: u32, window: u64) -> Vec<u64> {
        let first = window * self.window_size();
        let positions = first..(first + self.window_size()).min(self.n_rows());
        let mut rows = Vec::with_capacity(to_usize(positions.end - positions.start));
        self.tables.with(&self.blocks, self.seed(), epoch, |table| table.extend(&self.blocks, positions, &mut rows));
        Draws::new(self.seed(), epoch, Domain::Rows, window).shuffle(&mut rows);
        rows
    }
}
