//! Rows put together from chunks that cut them.
//!
//! The chunks of some rows, side by side, are a stripe. A stripe is decoded chunk by chunk, each once, into a buffer of whole rows,
//! which is written. Where it does not fit half of the memory, fewer of its rows are taken at a time and its chunks are
//! decoded as many times.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::super::node::Node;
use super::super::raw_array::{ChunkReader, RawArray};
use super::{Content, Meter, Rewriter, Stop};
use crate::codec::convert;
use crate::dtype::Stored;
use crate::num::{to_u64, to_usize};
use crate::store::cache::Draft;
use crate::store::rows::RowLengths;

/// How far a draft is.
#[derive(Debug, Serialize, Deserialize)]
pub struct State {
    /// Rows that are written.
    rows: u64,
}

/// Rewrites a dense matrix.
pub struct Stripes<'a> {
    node: &'a dyn Node,
    raw: &'a RawArray,
    stored: Stored,
    memory_bytes: u64,
}

impl<'a> Stripes<'a> {
    /// Rewrites with about so much memory.
    pub fn new(node: &'a dyn Node, raw: &'a RawArray, stored: Stored, memory_bytes: u64) -> Self {
        Self { node, raw, stored, memory_bytes }
    }

    fn row_bytes(&self) -> u64 {
        self.raw.dims[1].saturating_mul(to_u64(self.raw.elem_size)).max(1)
    }

    /// Fills `out` with whole rows, from `first_row` on, all of one stripe.
    fn read_rows(&self, reader: &mut ChunkReader<'_>, first_row: u64, out: &mut [u8]) -> Result<(), Stop> {
        let [chunk_rows, chunk_cols] = self.raw.chunk;
        let (n_cols, size) = (self.raw.dims[1], to_u64(self.raw.elem_size));
        let grid_cols = n_cols.div_ceil(chunk_cols);
        let skip = first_row % chunk_rows;
        for j in 0..grid_cols {
            let chunk = reader.chunk(first_row / chunk_rows * grid_cols + j)?;
            let run = to_usize(chunk_cols.min(n_cols - j * chunk_cols) * size);
            let to = to_usize(j * chunk_cols * size);
            let from = chunk.chunks_exact(to_usize(chunk_cols * size)).skip(to_usize(skip));
            for (row, from) in out.chunks_exact_mut(to_usize(self.row_bytes())).zip(from) {
                row[to..to + run].copy_from_slice(&from[..run]);
            }
        }
        Ok(())
    }
}

impl Rewriter for Stripes<'_> {
    type State = State;

    fn work_bytes(&self) -> u64 {
        self.raw.total_bytes()
    }

    fn prepare(&mut self, _: &mut Meter) -> Result<(), Stop> {
        Ok(())
    }

    fn resume(&mut self, content: &Content, state: &State) -> bool {
        let is_right = |(_, len): &(u64, u64)| *len == self.raw.total_bytes();
        content.places.first().is_some_and(is_right) && state.rows <= self.raw.dims[0]
    }

    fn sections(&self) -> (Option<Arc<RowLengths>>, Vec<u64>) {
        (None, vec![self.raw.total_bytes()])
    }

    fn start(&self) -> State {
        State { rows: 0 }
    }

    fn write(&mut self, draft: &Draft, places: &[(u64, u64)], state: State, meter: &mut Meter) -> Result<(), Stop> {
        let Some(&(address, _)) = places.first() else {
            return Err(self.node.refused("its rows have no place", "mount it again").into());
        };
        let (n_rows, chunk_rows, row_bytes) = (self.raw.dims[0], self.raw.chunk[0], self.row_bytes());
        let at_once = (self.memory_bytes / 2 / row_bytes).max(1);
        let mut reader = ChunkReader::new(self.raw, self.node.source(), self.node.path())?;
        let (mut rows, mut swapped) = (Vec::new(), Vec::new());
        let (mut at, mut unsaved) = (state.rows, 0);
        meter.at(at * row_bytes);
        while at < n_rows {
            let stripe_end = (at - at % chunk_rows + chunk_rows).min(n_rows);
            let end = stripe_end.min(at + at_once);
            let len = to_usize((end - at) * row_bytes);
            rows.resize(len, 0);
            self.read_rows(&mut reader, at, &mut rows)?;
            let bytes = if self.stored.big_endian {
                swapped.resize(len, 0);
                convert::copy_elements(&rows, &mut swapped, self.raw.elem_size, true);
                &swapped
            } else {
                &rows
            };
            draft.file().write_all_at(bytes, address + at * row_bytes)?;
            at = end;
            unsaved += to_u64(len);
            meter.at(at * row_bytes);
            if unsaved >= self.memory_bytes {
                draft.checkpoint(State { rows: at })?;
                unsaved = 0;
            }
        }
        Ok(())
    }
}
