//! The two files that describe a directory of batches, computed for any range of bytes.
//!
//! `batches.txt` has lines of one length, so line i begins at `i * line length`. `rows.npy` is a header of 128 bytes and
//! eight bytes a row; every batch has m rows except perhaps the last one of the pass, whose position in the directory
//! the order knows. So neither file is ever built as a whole; the row ids come window by window from the order and
//! the last windows are kept, since a reader goes through the file from front to back.

use std::sync::Arc;

use parking_lot::Mutex;

use super::name::BatchNames;
use super::npy;
use crate::num::{to_u64, to_usize};
use crate::order::{Order, Pass, RankPolicy, Share};

/// Windows of row ids that are kept.
const KEPT_WINDOWS: usize = 2;

/// One directory of batches.
#[derive(Clone, Copy)]
pub(super) struct ShareView<'a> {
    pub(super) order: &'a Order,
    pub(super) policy: RankPolicy,
    pub(super) pass: Pass,
    pub(super) share: Share,
    pub(super) names: BatchNames<'a>,
}

impl ShareView<'_> {
    fn is_whole(&self) -> bool {
        self.share == Share::ALL
    }

    /// Batches in the directory.
    pub(super) fn n_batches(&self) -> u64 {
        if self.is_whole() {
            self.order.n_batches(self.pass)
        } else {
            self.order.share_len(self.pass, self.share, self.policy)
        }
    }

    /// The i-th batch of the directory, `i` below [`Self::n_batches`].
    pub(super) fn batch(&self, i: u64) -> u64 {
        if self.is_whole() { i } else { self.order.share_batch(self.pass, self.share, self.policy, i) }
    }

    /// Where in the directory a batch of the pass is.
    pub(super) fn position(&self, batch: u64) -> Option<u64> {
        if self.is_whole() {
            (batch < self.order.n_batches(self.pass)).then_some(batch)
        } else {
            self.order.share_position(self.pass, self.share, self.policy, batch)
        }
    }

    fn line_bytes(&self) -> u64 {
        to_u64(self.names.len_bytes()) + 1
    }

    /// Size of `batches.txt`.
    pub(super) fn batches_txt_bytes(&self) -> u64 {
        self.n_batches() * self.line_bytes()
    }

    /// `len` bytes of `batches.txt` at `offset`, fewer at its end.
    pub(super) fn read_batches_txt(&self, offset: u64, len: u32) -> Vec<u8> {
        let stop = offset.saturating_add(u64::from(len)).min(self.batches_txt_bytes());
        let Some(want) = stop.checked_sub(offset).map(to_usize) else { return Vec::new() };
        let line_bytes = self.line_bytes();
        let skip = to_usize(offset % line_bytes);
        let mut lines = Vec::with_capacity(want + 2 * to_usize(line_bytes));
        let mut name = String::new();
        for i in offset / line_bytes..stop.div_ceil(line_bytes) {
            self.names.write(&mut name, self.batch(i));
            lines.extend_from_slice(name.as_bytes());
            lines.push(b'\n');
        }
        cut(lines, skip, want)
    }

    /// Position and number of rows of the one batch that may be shorter than the others, if it is in the directory.
    fn short(&self) -> Option<(u64, u64)> {
        let last = self.order.n_batches(self.pass).checked_sub(1)?;
        let n_rows = self.order.batch_len(self.pass, last);
        let is_short = n_rows < self.order.batch_size();
        is_short.then(|| self.position(last)).flatten().map(|i| (i, u64::from(n_rows)))
    }

    /// Rows of all batches of the directory, padding included.
    pub(super) fn n_rows(&self) -> u64 {
        let m = u64::from(self.order.batch_size());
        let missing = self.short().map_or(0, |(_, n_rows)| m - n_rows);
        self.n_batches() * m - missing
    }

    /// Size of `rows.npy`.
    pub(super) fn rows_npy_bytes(&self) -> u64 {
        npy::size_bytes(self.n_rows())
    }

    /// Position of the batch that holds row `row` of the directory, and the row's place in it.
    fn locate(&self, row: u64) -> (u64, u64) {
        let m = u64::from(self.order.batch_size());
        match self.short() {
            Some((i, n_rows)) if row >= i * m + n_rows => {
                let behind = row - (i * m + n_rows);
                (i + 1 + behind / m, behind % m)
            }
            _ => (row / m, row % m),
        }
    }

    /// `len` bytes of `rows.npy` at `offset`, fewer at its end.
    pub(super) fn read_rows_npy(&self, cache: &WindowRows, offset: u64, len: u32) -> Vec<u8> {
        let n_rows = self.n_rows();
        let stop = offset.saturating_add(u64::from(len)).min(npy::size_bytes(n_rows));
        let Some(want) = stop.checked_sub(offset).map(to_usize) else { return Vec::new() };
        let header_bytes = to_u64(npy::HEADER_BYTES);
        let mut bytes = Vec::with_capacity(want + 16 + npy::HEADER_BYTES);
        let skip;
        let first_row = if offset < header_bytes {
            bytes.extend_from_slice(&npy::header(n_rows));
            skip = to_usize(offset);
            0
        } else {
            skip = to_usize((offset - header_bytes) % 8);
            (offset - header_bytes) / 8
        };
        let end_row = stop.saturating_sub(header_bytes).div_ceil(8);
        self.push_rows(cache, first_row, end_row, &mut bytes);
        cut(bytes, skip, want)
    }

    /// Appends the ids of rows `[row, end)` of the directory.
    fn push_rows(&self, cache: &WindowRows, mut row: u64, end: u64, out: &mut Vec<u8>) {
        while row < end {
            let (i, from) = self.locate(row);
            let batch = self.batch(i);
            let len = u64::from(self.order.batch_len(self.pass, batch));
            let window = self.order.window_of(batch);
            let first = self.order.window_batches(self.pass, window).start;
            let rows = cache.get(self.order, self.pass, window);
            let start = (batch - first) * u64::from(self.order.batch_size());
            let n = len.saturating_sub(from).min(end - row);
            let ids = rows.get(to_usize(start + from)..to_usize(start + from + n)).unwrap_or_default();
            assert!(n > 0 && to_u64(ids.len()) == n, "window {window} does not hold row {from} of batch {batch}");
            out.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
            row += n;
        }
    }
}

/// `want` bytes behind the first `skip`.
fn cut(mut bytes: Vec<u8>, skip: usize, want: usize) -> Vec<u8> {
    bytes.drain(..skip.min(bytes.len()));
    bytes.truncate(want);
    bytes
}

/// The row ids of the last windows that were asked for, the latest one last.
#[derive(Default)]
pub(super) struct WindowRows {
    kept: Mutex<Vec<Window>>,
}

struct Window {
    pass: Pass,
    number: u64,
    rows: Arc<Vec<u64>>,
}

impl WindowRows {
    fn get(&self, order: &Order, pass: Pass, window: u64) -> Arc<Vec<u64>> {
        let mut kept = self.kept.lock();
        if let Some(at) = kept.iter().position(|w| (w.pass, w.number) == (pass, window)) {
            let hit = kept.remove(at);
            let rows = Arc::clone(&hit.rows);
            kept.push(hit);
            return rows;
        }
        drop(kept);
        // Two readers may compute the same window at once; that is cheaper than making all wait for one.
        let rows = Arc::new(order.window_rows(pass, window));
        let mut kept = self.kept.lock();
        if kept.len() == KEPT_WINDOWS {
            kept.remove(0);
        }
        kept.push(Window { pass, number: window, rows: Arc::clone(&rows) });
        rows
    }
}
