//! What a window costs, computed from the chunk maps without reading anything.

use std::collections::HashMap;

use crate::store::{Extent, Store};

/// Reads and decoded bytes of some rows, fetched together.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct ReadCost {
    /// Chunks that are touched.
    pub chunks: u64,
    /// Stored bytes that are read, gaps between coalesced chunks not counted.
    pub bytes_read: u64,
    /// Bytes that come out of decompressors. For a chunk whose end is not needed, up to the last needed value.
    pub bytes_decoded: u64,
    /// Bytes of filtered chunks that the rows need.
    pub bytes_needed: u64,
    /// Bytes that the rows need, filtered or not.
    pub bytes_wanted: u64,
}

impl ReadCost {
    /// The cost of `rows`, in any order.
    #[must_use]
    pub fn of_rows(store: &dyn Store, rows: &[u64]) -> Self {
        let mut cost = Self::default();
        for part in 0..store.schema().parts.len() {
            cost.add_part(store, part, rows);
        }
        cost
    }

    fn add_part(&mut self, store: &dyn Store, part: usize, rows: &[u64]) {
        // Per chunk: the range of elements that any row needs, and how many are needed in all.
        let mut needs: HashMap<u32, (std::ops::Range<u32>, u64)> = HashMap::new();
        for &row in rows {
            store.pieces(part, row, &mut |piece| {
                let (need, n) = needs.entry(piece.chunk).or_insert((piece.from..piece.from, 0));
                *need = need.start.min(piece.from)..need.end.max(piece.from + piece.len);
                *n += u64::from(piece.len);
            });
        }
        self.chunks += needs.len() as u64;
        for (chunk, (need, n)) in needs {
            let plain = store.is_plain(part, chunk);
            let form = store.chunk_form(part, chunk);
            let item = form.stored.dtype.size_bytes() as u64;
            self.bytes_wanted += n * item;
            self.bytes_needed += if plain { 0 } else { n * item };
            let end = u64::from(need.end) * item;
            if let Extent::File { len, is_prefix, .. } = store.extent(part, chunk, need, false) {
                self.bytes_read += u64::from(len);
                if !plain {
                    self.bytes_decoded += if is_prefix { end } else { form.bytes as u64 };
                }
            }
        }
    }

    /// Decoded bytes per needed byte; `None` if nothing is compressed.
    #[must_use]
    pub fn amplification(&self) -> Option<f64> {
        (self.bytes_needed > 0).then(|| self.bytes_decoded as f64 / self.bytes_needed as f64)
    }
}
