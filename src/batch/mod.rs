//! The byte map of one batch file, and one encoder per format.
//!
//! A batch file is laid out before any value is read: its size follows from the number of rows and the number of stored
//! values per row. The steps are
//!
//! 1. [`fields`]: what a batch consists of, the same for every format: one [`fields::Field`] per array, in file order.
//! 2. [`Encoder::layout`]: where each field lies in the file, given a [`BatchShape`]. The engine takes from it where the rows of every
//!    part go, and scatters decoded values there.
//! 3. [`Encoder::finish`], when the last piece has arrived: everything that is not scattered is filled in (header, row
//!    pointers, resident columns, padding), and what depends on values is settled.
//!
//! **Bound, then final.** Where genes are dropped, the number of stored values is only bounded by what the source holds. The
//! layout is made for the bound; `finish` compacts the rows inside the image, writes the true shapes into the header
//! and declares the rest padding. The size never changes. Elements that need room to be rearranged (sparse rows made
//! dense, genes picked from dense rows) are scattered into a *staging* area behind the file's end, which is part of the
//! buffer while the batch is assembled, and is not served.

mod compact;
pub mod fields;
mod render;
pub mod safetensors;

use std::ops::Range;

use crate::order::Pass;

pub use fields::BatchSpec;

/// What fixes the size of a batch file.
#[derive(Debug, Clone, Copy)]
pub struct BatchShape<'a> {
    /// Rows, padding included.
    pub n_rows: u32,
    /// Stored values per element of the schema; 0 for dense elements.
    pub n_values: &'a [u64],
}

/// Where everything lies in the buffer of one batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Exact size of the file.
    pub size_bytes: u64,
    /// The file plus the staging area behind it.
    pub buffer_bytes: u64,
    /// Per part of the schema: where the first value of the batch's first row goes. Rows follow each other: by the number of
    /// stored values for sparse elements, by the number of columns for dense ones.
    pub part_offsets: Vec<u64>,
    /// Per field: its bytes, for the bound of its size.
    pub fields: Vec<Range<u64>>,
}

/// What a batch is, for the parts of it that are not scattered.
#[derive(Debug, Clone, Copy)]
pub struct BatchContext<'a> {
    /// The epoch, or the source order.
    pub pass: Pass,
    /// Number of the batch.
    pub batch: u64,
    /// Global row ids, in order, padding included.
    pub rows: &'a [u64],
    /// How many of the last rows are padding.
    pub pad_rows: u32,
    /// Per element of the schema: for sparse ones the `rows.len() + 1` offsets of the rows in the element's values, else empty.
    pub row_starts: &'a [Vec<u32>],
}

/// One batch format.
pub trait Encoder: Send + Sync {
    /// File name extension, without the dot.
    fn extension(&self) -> &'static str;

    /// The layout of a batch of this shape: the same for every batch of the same shape.
    fn layout(&self, shape: BatchShape<'_>) -> Layout;

    /// Completes `buffer` (of [`Layout::buffer_bytes`]), in which the rows of all parts were scattered as the layout says. Afterwards the
    /// first [`Layout::size_bytes`] bytes are the file, every one of them written.
    fn finish(&self, layout: &Layout, batch: BatchContext<'_>, buffer: &mut [u8]);
}
