//! Read-ahead hints for the window after the next one.
//!
//! While a window is read and the next one is assembled, nothing is known to storage of what comes then. Where reads are
//! slow, an I/O thread looks up which bytes that window needs and names them to the kernel, which fetches them in the
//! background as far as it sees fit. Nothing is allocated for it, and nothing is lost if the guess is wrong or the kernel does nothing.

use super::plan::Spacing;
use crate::store::{Extent, Store};

/// Runs of bytes this close together are named as one: they are read as one.
const MAX_GAP_BYTES: u64 = Spacing::SLOW.max_gap_bytes;

/// Names the stored bytes of `rows` (ascending) to the kernel.
pub fn will_need(store: &dyn Store, rows: &[u64]) {
    for part in 0..store.schema().parts.len() {
        let mut runs: Vec<(u32, u64, u64)> = Vec::new();
        let mut add = |chunk, need| {
            if let Extent::File { file, address, len, .. } = store.extent(part, chunk, need, false) {
                runs.push((file, address, u64::from(len)));
            }
        };
        // Pieces of one chunk follow each other, except in arrays that are cut along both axes, where a repetition does no harm.
        let mut open: Option<(u32, std::ops::Range<u32>)> = None;
        for &row in rows {
            store.pieces(part, row, &mut |piece| {
                let end = piece.from + piece.len;
                match &mut open {
                    Some((chunk, need)) if *chunk == piece.chunk => {
                        *need = need.start.min(piece.from)..need.end.max(end);
                    }
                    other => {
                        if let Some((chunk, need)) = other.replace((piece.chunk, piece.from..end)) {
                            add(chunk, need);
                        }
                    }
                }
            });
        }
        if let Some((chunk, need)) = open {
            add(chunk, need);
        }
        for (file, offset, len) in merged(runs) {
            store.will_need(file, offset, len);
        }
    }
}

/// Runs of (file, first byte, bytes) by address, close ones made one.
fn merged(mut runs: Vec<(u32, u64, u64)>) -> Vec<(u32, u64, u64)> {
    runs.sort_unstable();
    let mut merged: Vec<(u32, u64, u64)> = Vec::new();
    for (file, offset, len) in runs {
        match merged.last_mut() {
            Some((last_file, start, last_len))
                if *last_file == file && offset <= *start + *last_len + MAX_GAP_BYTES =>
            {
                *last_len = (*last_len).max(offset + len - *start);
            }
            _ => merged.push((file, offset, len)),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_runs_are_one() {
        let gap = MAX_GAP_BYTES;
        let runs = vec![(1, 5, 5), (0, 100, 10), (0, 110 + gap, 7), (0, 118 + 2 * gap, 1), (0, 100, 3)];
        assert_eq!(merged(runs), [(0, 100, 17 + gap), (0, 118 + 2 * gap, 1), (1, 5, 5)]);
    }
}
