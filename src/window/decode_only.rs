//! Reading and decoding windows without making batches of them: the bound of any engine over this store and this order.
//!
//! A window is planned as the engine plans it, with all its rows as one batch of no size. Then the pieces are taken out of the plan: each
//! chunk keeps a single one of no length, which tells a *sink* that the chunk was decoded, or why not. So exactly the code of the
//! [workers](super::worker) runs, minus the copies. Threads take group after group; who finds none left plans the next window.
//!
//! Records keep their pieces, since taking a record apart is a part of decoding it; they find no column to be copied to.

use std::sync::Arc;

use parking_lot::Mutex;

use super::arena::Arena;
use super::assembly::Assembly;
use super::bad::BadChunks;
use super::counters::{CounterValues, Counters};
use super::plan::{PieceTask, ReadOrder, Spacing, WindowPlan};
use super::records::ColumnPlaces;
use super::worker::{Decoder, ThreadBuffers};
use super::{BatchError, BatchId};
use crate::batch::{BatchContext, BatchShape, Encoder, Layout};
use crate::order::{Order, Pass};
use crate::store::{Extent, PartRole, Store};

/// What was read and decoded.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Decoded {
    /// Windows.
    pub n_windows: usize,
    /// Rows of the windows, padding included.
    pub rows: u64,
    /// What the rows take as they are stored, compressed: of each chunk the share of its elements that belongs to them. Over a whole
    /// epoch these are the bytes of the arrays in the file. The denominator of the read amplification.
    pub stored_bytes: f64,
    /// What the rows take in batches, in the types that are served. The denominator of copies per value.
    pub served_bytes: u64,
    /// The work.
    pub counters: CounterValues,
}

/// Reads and decodes `windows`, one after the other, with `n_threads` threads. `go_on` is asked with the rows planned so far before each
/// window, so that windows are never left half done.
///
/// # Errors
/// The first chunk that cannot be read, or that memory for the threads is missing.
pub fn decode_windows(
    (store, order): (&dyn Store, &Order),
    windows: impl Iterator<Item = (Pass, u64)> + Send,
    n_threads: usize,
    go_on: impl Fn(u64) -> bool + Send,
) -> Result<Decoded, BatchError> {
    let internal = |error: std::io::Error| BatchError::Internal { what: error.to_string() };
    let (counters, bad) = (Counters::default(), BadChunks::default());
    let sink = Sink::new(store, n_threads).map_err(internal)?;
    let feed = Mutex::new(Feed { windows, go_on, current: None, total: Decoded::default() });
    let work = || -> Result<(), BatchError> {
        let (mut buffers, mut stored) = (ThreadBuffers::new(), Vec::new());
        let decoder = Decoder { store, kept: None, bad: &bad, counters: &counters };
        loop {
            let (plan, group) = match feed.lock().take(store, order, &sink, &counters) {
                None => return Ok(()),
                Some(next) => next?,
            };
            let read = decoder.read_group(&plan, group, &mut stored);
            let group = &plan.groups[group];
            let read = read.map(|()| &stored[..group.len as usize]);
            decoder.run(&plan, group, read, &mut buffers, &mut |_| ());
            if let Some(error) = plan.batches.get(WINDOW as usize).and_then(|batch| batch.failure()) {
                sink.assembly.fail(error);
            }
        }
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..n_threads).map(|_| scope.spawn(work)).collect();
        let panicked = || Err(BatchError::Internal { what: "a thread panicked".into() });
        others.into_iter().fold(work(), |result, thread| result.and(thread.join().unwrap_or_else(|_| panicked())))
    })?;
    sink.assembly.finish(&Nothing { n_parts: store.schema().parts.len() })?;
    Ok(Decoded { counters: counters.values(), ..feed.into_inner().total })
}

/// The batch of a plan that stands for its window: where records go.
const WINDOW: u32 = 1;

/// Where the pieces of no length go.
struct Sink {
    assembly: Arc<Assembly>,
    arena: Arc<Arena>,
}

impl Sink {
    fn new(store: &dyn Store, n_threads: usize) -> std::io::Result<Self> {
        // Regions of the sink, of the window that is planned, and of those that threads are still at. No page is ever touched.
        let arena = Arena::new((n_threads as u64 + 2) * 4096)?;
        let assembly = Arc::new(Self::empty_batch(&arena, store, (Pass::InOrder, 0), Vec::new())?);
        Ok(Self { assembly, arena })
    }

    /// A batch of these rows whose values take no room.
    fn empty_batch(
        arena: &Arc<Arena>,
        store: &dyn Store,
        (pass, batch): (Pass, u64),
        rows: Vec<u64>,
    ) -> std::io::Result<Assembly> {
        let schema = store.schema();
        let region = arena.alloc(1).ok_or_else(|| std::io::Error::other("the arena of the sink is full"))?;
        let layout = Nothing { n_parts: schema.parts.len() }.layout(BatchShape { n_rows: 0, n_values: &[] });
        let row_starts = schema.elements.iter().map(|element| match element.kind.has_row_lengths() {
            true => vec![0; rows.len() + 1],
            false => Vec::new(),
        });
        let row_starts = row_starts.collect();
        Ok(Assembly::new(BatchId { pass, batch }, rows, 0, row_starts, layout, region))
    }
}

/// The windows that are left, and the groups that are left of the present one.
struct Feed<W, G> {
    windows: W,
    go_on: G,
    current: Option<(Arc<WindowPlan>, usize)>,
    total: Decoded,
}

impl<W: Iterator<Item = (Pass, u64)>, G: Fn(u64) -> bool> Feed<W, G> {
    /// The next group, `None` at the end.
    fn take(
        &mut self,
        store: &dyn Store,
        order: &Order,
        sink: &Sink,
        counters: &Counters,
    ) -> Option<Result<(Arc<WindowPlan>, usize), BatchError>> {
        loop {
            if let Some((plan, next)) = &mut self.current
                && *next < plan.groups.len()
            {
                *next += 1;
                return Some(Ok((Arc::clone(plan), *next - 1)));
            }
            if !(self.go_on)(self.total.rows) {
                return None;
            }
            let window = self.windows.next()?;
            match self.plan(store, order, sink, window) {
                Ok(plan) => {
                    Counters::add(&counters.plans, 1);
                    Counters::add(&counters.bytes_wanted, plan.wanted_bytes);
                    Counters::add(&counters.bytes_needed, plan.needed_filtered_bytes);
                    self.current = Some((Arc::new(plan), 0));
                }
                Err(error) => return Some(Err(BatchError::Internal { what: error.to_string() })),
            }
        }
    }

    /// Plans a window, adds it to the totals, and takes its pieces out.
    fn plan(
        &mut self,
        store: &dyn Store,
        order: &Order,
        sink: &Sink,
        (pass, window): (Pass, u64),
    ) -> std::io::Result<WindowPlan> {
        let rows = order.window_rows(pass, window);
        self.total.n_windows += 1;
        self.total.rows += rows.len() as u64;
        let batch = Arc::new(Sink::empty_batch(&sink.arena, store, (pass, window), rows)?);
        let mut plan = WindowPlan::new(store, None, vec![Arc::clone(&batch)], ReadOrder::File, Spacing::FAST);
        let mut pieces = Vec::with_capacity(plan.tasks.len());
        for task in &mut plan.tasks {
            let part = &store.schema().parts[task.part as usize];
            let i = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
            if let (PartRole::Records, Extent::File { len, .. }) = (part.role, task.extent) {
                let range = task.pieces.start as usize..task.pieces.end as usize;
                pieces.extend(plan.pieces[range].iter().map(|piece| PieceTask { batch: WINDOW, ..*piece }));
                task.pieces = i..u32::try_from(pieces.len()).unwrap_or(u32::MAX);
                self.total.stored_bytes += f64::from(len);
                continue;
            }
            let form = store.chunk_form(task.part as usize, task.chunk);
            let item = form.stored.dtype.size_bytes() as u64;
            let served_item = store.schema().elements[part.element].served(part.role).size_bytes() as u64;
            let wanted = plan.pieces[task.pieces.start as usize..task.pieces.end as usize].iter();
            let n_wanted: u64 = wanted.map(|piece| u64::from(piece.len)).sum();
            self.total.served_bytes += n_wanted * served_item;
            let n_in_chunk = form.bytes as u64 / item;
            if let Extent::File { len, .. } = store.extent(task.part as usize, task.chunk, task.need.clone(), true) {
                self.total.stored_bytes += if store.is_plain(task.part as usize, task.chunk) {
                    (n_wanted * item) as f64
                } else {
                    f64::from(len) * n_wanted as f64 / n_in_chunk.max(1) as f64
                };
            }
            sink.assembly.expect_piece();
            pieces.push(PieceTask { batch: 0, slot: 0, from: task.need.start, len: 0, dest: 0 });
            task.pieces = i..i + 1;
        }
        if store.schema().records.is_some() {
            self.total.served_bytes += plan.wanted_bytes;
        }
        plan.pieces = pieces;
        plan.batches = vec![Arc::clone(&sink.assembly), batch];
        plan.columns = ColumnPlaces::new(store.schema(), &plan.batches);
        Ok(plan)
    }
}

/// A format without a byte.
struct Nothing {
    n_parts: usize,
}

impl Encoder for Nothing {
    fn extension(&self) -> &'static str {
        ""
    }

    fn layout(&self, _: BatchShape<'_>) -> Layout {
        Layout { size_bytes: 0, buffer_bytes: 0, part_offsets: vec![0; self.n_parts], ..Layout::default() }
    }

    fn finish(&self, _: &Layout, _: BatchContext<'_>, _: &mut [u8]) {}
}
