//! Columns into rows, in bounded memory and a number of passes that does not grow with the matrix.
//!
//! First the row numbers are read once and counted: 4 bytes a row, which become the row lengths. If all rows fit the memory, a
//! second pass puts every value where it belongs and the rows are written.
//!
//! Otherwise rows are grouped into *buckets* of some megabytes. The second pass appends every value to its bucket, through small
//! buffers, and a third takes bucket after bucket, orders it by row in memory and writes it to its place. So whatever the size,
//! the source is read once and its row numbers twice, and the rows are written twice and read once; passes over row ranges that
//! each read all of the source would read it as often as it is larger than the memory.
//!
//! Buckets need no room of their own: they lie in the entry, where their rows will be, moved up by a *shift*. Ordering bucket
//! after bucket from the first one on then overwrites only what was ordered before, and the shift leaves room for several buckets
//! between two checkpoints. In a bucket, a value's column and its row share the 4 bytes that the column index takes later:
//! buckets have few enough rows for that.
//!
//! Columns are read in order and appending keeps it, so a row's values come out by ascending column, and values of one row and
//! column in stored order.

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::super::node::Node;
use super::columns::{Csc, Segment};
use super::{Content, INDEX_BYTES, Meter, Rewriter, Stop};
use crate::num::{to_u64, to_usize};
use crate::store::cache::Draft;
use crate::store::error::OpenError;
use crate::store::rows::{GROUP, RowLengths};

/// Bits that number the rows of one group, which is never divided.
const GROUP_BITS: u32 = GROUP.ilog2();
/// Smallest and largest first guess for the size of a bucket.
const BUCKET_BYTES: Range<u64> = 64 << 10..32 << 20;
/// What one write should have at least, and what more than that gains nothing.
const WRITE_BYTES: Range<u64> = 16 << 10..512 << 10;
/// Fewest values of the buffer of a bucket.
const MIN_BUFFER_VALUES: u64 = 64;

/// How far a draft is.
#[derive(Debug, Serialize, Deserialize)]
pub enum State {
    /// Values are appended to buckets.
    Scatter {
        /// Values of the source that are done.
        done: u64,
        /// Values in each bucket.
        fills: Vec<u64>,
        /// How rows are divided.
        division: Division,
    },
    /// Buckets are ordered.
    Order {
        /// Buckets that are done.
        done: usize,
        /// How rows are divided.
        division: Division,
    },
}

/// How rows are divided into buckets: another run may have another amount of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Division {
    /// Most values of a bucket, unless one group of rows has more; 0 if all rows are put in order in memory.
    bucket_values: u64,
    /// How far buckets lie behind their place, in values.
    shift: u64,
}

/// A bucket: whole groups of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bucket {
    rows: Range<usize>,
    /// Numbers of its values, in row order.
    values: Range<u64>,
}

/// Rewrites a CSC matrix.
pub struct Transpose<'a> {
    csc: &'a Csc<'a>,
    node: &'a dyn Node,
    memory_bytes: u64,
    value_bytes: u64,
    column_bits: u32,
    lengths: Arc<RowLengths>,
    division: Division,
}

impl<'a> Transpose<'a> {
    /// Rewrites with about so much memory.
    ///
    /// # Errors
    /// [`OpenError`] if there are more columns than a bucket can number.
    pub fn new(
        node: &'a dyn Node,
        csc: &'a Csc<'a>,
        [_, n_cols]: [u64; 2],
        memory_bytes: u64,
    ) -> Result<Self, OpenError> {
        let column_bits = u64::BITS - n_cols.saturating_sub(1).leading_zeros();
        if column_bits + GROUP_BITS > u32::BITS {
            let reason = format!("is stored by columns (csc) and has {n_cols} of them");
            return Err(node.refused(&reason, "write it again by rows"));
        }
        let value_bytes = to_u64(csc.data_type.dtype.size_bytes());
        let division = Division { bucket_values: 0, shift: 0 };
        Ok(Self { csc, node, memory_bytes, value_bytes, column_bits, lengths: Arc::default(), division })
    }

    /// Bytes of a value and its column.
    fn pair_bytes(&self) -> u64 {
        self.value_bytes + INDEX_BYTES
    }

    /// Counts the values of each row.
    fn count(&self, meter: &mut Meter) -> Result<RowLengths, Stop> {
        let n_rows = self.csc.n_rows;
        self.node.source().charge(self.node.path(), n_rows.saturating_mul(6))?;
        let mut counts = vec![0_u32; to_usize(n_rows)];
        let index_bytes = to_u64(self.csc.index_type.dtype.size_bytes());
        self.csc.each(0, false, &mut |segment| -> Result<(), Stop> {
            for row in segment.rows {
                // Below the number of rows, as the stream checked.
                let count = &mut counts[u32::from_le_bytes(*row) as usize];
                *count = count.wrapping_add(1);
            }
            meter.add(to_u64(segment.rows.len()) * index_bytes);
            Ok(())
        })?;
        match RowLengths::new(counts) {
            // A count that wrapped is missed in the sum.
            Some(lengths) if lengths.total() == self.csc.n_values() => Ok(lengths),
            _ => Err(self.node.refused("has a row of more than 2^32 values", "the file is damaged").into()),
        }
    }

    /// How to divide rows: not at all if they fit the memory, else so that neither the buffers of all buckets nor two copies of one
    /// take more than half of it.
    fn divide(&self) -> Division {
        let pair = self.pair_bytes();
        let all = self.lengths.total().saturating_mul(pair);
        if all.saturating_add(self.csc.n_rows.saturating_mul(8)) <= self.memory_bytes {
            return Division { bucket_values: 0, shift: 0 };
        }
        let mut bucket_bytes = (self.memory_bytes / 16).clamp(BUCKET_BYTES.start, BUCKET_BYTES.end);
        let write_bytes = |bucket_bytes: u64| self.memory_bytes / 2 / (all / bucket_bytes).max(1);
        while write_bytes(bucket_bytes) < WRITE_BYTES.start && bucket_bytes < self.memory_bytes / 4 {
            bucket_bytes *= 2;
        }
        let bucket_values = (bucket_bytes / pair).max(1);
        let buckets = self.buckets(bucket_values);
        let longest = buckets.iter().map(|b| b.values.end - b.values.start).max().unwrap_or(0);
        // Room for what is ordered between two checkpoints.
        let between = (self.memory_bytes / pair).min(self.lengths.total() / 8);
        Division { bucket_values, shift: longest + between }
    }

    /// Groups rows into buckets of at most so many values and as many rows as can be numbered.
    fn buckets(&self, bucket_values: u64) -> Vec<Bucket> {
        let (n_rows, lengths) = (self.lengths.n_rows(), &self.lengths);
        let most_rows = 1_usize << (u32::BITS - self.column_bits).min(30);
        let mut buckets = Vec::new();
        let mut open = Bucket { rows: 0..0, values: 0..0 };
        for (group, &start) in lengths.group_starts().iter().enumerate() {
            let rows_end = ((group + 1) * GROUP).min(n_rows);
            let end = lengths.group_starts().get(group + 1).copied().unwrap_or(lengths.total());
            let is_full = end - open.values.start > bucket_values || rows_end - open.rows.start > most_rows;
            if is_full && !open.rows.is_empty() {
                let next = Bucket { rows: open.rows.end..open.rows.end, values: start..start };
                buckets.push(std::mem::replace(&mut open, next));
            }
            (open.rows.end, open.values.end) = (rows_end, end);
        }
        buckets.push(open);
        buckets
    }

    /// Puts all rows in order in memory and writes them.
    fn write_at_once<const SIZE: usize>(&self, target: &Target<'_>, meter: &mut Meter) -> Result<(), Stop> {
        let n_values = to_usize(self.lengths.total());
        let mut next: Vec<u64> = (0..self.lengths.n_rows()).map(|row| self.lengths.range(row).start).collect();
        let mut ordered = Ordered::<SIZE>::new(n_values);
        let source_bytes = self.source_pair_bytes();
        self.csc.each(0, true, &mut |segment| -> Result<(), Stop> {
            let column = segment.column.to_le_bytes();
            for (row, value) in segment.rows.iter().zip(segment.data.as_chunks::<SIZE>().0) {
                let next = &mut next[u32::from_le_bytes(*row) as usize];
                ordered.put(to_usize(*next), *value, column).ok_or_else(|| self.changed())?;
                *next += 1;
            }
            meter.add(to_u64(segment.rows.len()) * source_bytes);
            Ok(())
        })?;
        if (0..self.lengths.n_rows()).any(|row| next[row] != self.lengths.range(row).end) {
            return Err(self.changed().into());
        }
        target.write(0, ordered.values.as_flattened(), ordered.columns.as_flattened())?;
        Ok(())
    }

    /// Appends all values from `done` on to their buckets.
    fn scatter<const SIZE: usize>(
        &self,
        target: &Target<'_>,
        buckets: &[Bucket],
        (done, fills): (u64, Vec<u64>),
        meter: &mut Meter,
    ) -> Result<(), Stop> {
        let mut scatter = Scatter::<SIZE>::new(self, target, buckets, fills);
        let source_bytes = self.source_pair_bytes();
        let (mut checked, every) = (done, (self.memory_bytes / self.pair_bytes()).max(1));
        self.csc.each(done, true, &mut |segment| -> Result<(), Stop> {
            scatter.take(&segment)?;
            meter.add(to_u64(segment.rows.len()) * source_bytes);
            if segment.end - checked >= every {
                scatter.flush_all()?;
                checked = segment.end;
                let state = State::Scatter { done: checked, fills: scatter.fills.clone(), division: self.division };
                target.draft.checkpoint(state)?;
            }
            Ok(())
        })?;
        scatter.flush_all()?;
        let is_full = |(bucket, fill): (&Bucket, &u64)| bucket.values.end - bucket.values.start == *fill;
        if !buckets.iter().zip(&scatter.fills).all(is_full) {
            return Err(self.changed().into());
        }
        target.draft.checkpoint(State::Order { done: 0, division: self.division })?;
        Ok(())
    }

    /// Orders the buckets from number `done` on, each at its place.
    fn order<const SIZE: usize>(
        &self,
        target: &Target<'_>,
        buckets: &[Bucket],
        done: usize,
        meter: &mut Meter,
    ) -> Result<(), Stop> {
        let shift = self.division.shift;
        // Where the first bucket lies that a process which goes on would order again.
        let mut needed_from = buckets.get(done).map_or(0, |bucket| bucket.values.start + shift);
        for (number, bucket) in buckets.iter().enumerate().skip(done) {
            if bucket.values.end > needed_from {
                target.draft.checkpoint(State::Order { done: number, division: self.division })?;
                needed_from = bucket.values.start + shift;
            }
            let n_values = to_usize(bucket.values.end - bucket.values.start);
            let mut scattered = Ordered::<SIZE>::new(n_values);
            target.read(bucket.values.start + shift, &mut scattered)?;
            let ordered = self.order_one(bucket, &scattered)?;
            target.write(bucket.values.start, ordered.values.as_flattened(), ordered.columns.as_flattened())?;
            meter.add(to_u64(n_values) * self.pair_bytes());
        }
        Ok(())
    }

    fn order_one<const SIZE: usize>(&self, bucket: &Bucket, scattered: &Ordered<SIZE>) -> Result<Ordered<SIZE>, Stop> {
        let start = |row: usize| to_usize(self.lengths.range(row).start - bucket.values.start);
        let mut next: Vec<usize> = bucket.rows.clone().map(start).collect();
        let mut ordered = Ordered::<SIZE>::new(scattered.values.len());
        let column_mask = low_bits(self.column_bits);
        for (value, packed) in scattered.values.iter().zip(&scattered.columns) {
            let packed = u32::from_le_bytes(*packed);
            let row = packed.checked_shr(self.column_bits).unwrap_or(0) as usize;
            let next = next.get_mut(row).ok_or_else(|| self.changed())?;
            ordered.put(*next, *value, (packed & column_mask).to_le_bytes()).ok_or_else(|| self.changed())?;
            *next += 1;
        }
        let ends = bucket.rows.clone().map(|row| start(row) + self.lengths.len(row) as usize);
        if next.iter().zip(ends).any(|(next, end)| *next != end) {
            return Err(self.changed().into());
        }
        Ok(ordered)
    }

    /// Bytes of a value and its row in the source, before compression.
    fn source_pair_bytes(&self) -> u64 {
        self.value_bytes + to_u64(self.csc.index_type.dtype.size_bytes())
    }

    fn changed(&self) -> OpenError {
        self.node.refused("does not read the same twice", "try again when its writer is done")
    }

    fn write_typed<const SIZE: usize>(
        &mut self,
        target: &Target<'_>,
        state: State,
        meter: &mut Meter,
    ) -> Result<(), Stop> {
        let Division { bucket_values, shift } = self.division;
        if bucket_values == 0 {
            return self.write_at_once::<SIZE>(target, meter);
        }
        let buckets = self.buckets(bucket_values);
        let done = match state {
            State::Scatter { done, fills, .. } => {
                meter.add(done * self.source_pair_bytes());
                self.scatter::<SIZE>(target, &buckets, (done, fills), meter)?;
                0
            }
            State::Order { done, .. } => {
                let ordered = buckets.get(done).map_or(0, |bucket| bucket.values.start);
                meter.add(self.csc.n_values() * self.source_pair_bytes() + ordered * self.pair_bytes());
                done
            }
        };
        self.order::<SIZE>(target, &buckets, done, meter)?;
        for (start, item_bytes) in [(target.values, self.value_bytes), (target.columns, INDEX_BYTES)] {
            target.draft.clear(start + self.lengths.total() * item_bytes, shift * item_bytes)?;
        }
        Ok(())
    }
}

impl Rewriter for Transpose<'_> {
    type State = State;

    fn work_bytes(&self) -> u64 {
        let (index_bytes, source_bytes) =
            (self.csc.index_bytes(), self.csc.n_values().saturating_mul(self.source_pair_bytes()));
        let ordering = self.csc.n_values().saturating_mul(self.pair_bytes());
        index_bytes.saturating_add(source_bytes).saturating_add(ordering)
    }

    fn prepare(&mut self, meter: &mut Meter) -> Result<(), Stop> {
        let name = format!("row lengths of {}, counted", self.node.path());
        let n_rows = self.csc.n_rows;
        let counted = self.node.source().cache().rows(&name, n_rows, || self.count(meter))?;
        if to_u64(counted.n_rows()) != n_rows || counted.total() != self.csc.n_values() {
            return Err(self.changed().into());
        }
        self.lengths = Arc::new(counted);
        self.division = self.divide();
        Ok(())
    }

    fn resume(&mut self, content: &Content, state: &State) -> bool {
        let Some(lengths) = &content.lengths else { return false };
        let (State::Scatter { division, .. } | State::Order { division, .. }) = state;
        if to_u64(lengths.n_rows()) != self.csc.n_rows || lengths.total() != self.csc.n_values() {
            return false;
        }
        (self.lengths, self.division) = (Arc::clone(lengths), *division);
        let fits = |(_, len): &(u64, u64), item: u64| {
            *len == lengths.total().saturating_add(division.shift).saturating_mul(item)
        };
        let sizes_are_right =
            content.places.iter().zip([self.value_bytes, INDEX_BYTES]).all(|(place, item)| fits(place, item));
        // A smaller memory than last time may not hold the same buckets; begin again.
        let memory_is_right = match division.bucket_values {
            0 => self.divide().bucket_values == 0,
            values => values.saturating_mul(self.pair_bytes()) <= (self.memory_bytes / 2).max(BUCKET_BYTES.start),
        };
        let buckets = self.buckets(division.bucket_values.max(1));
        let state_is_right = match state {
            State::Scatter { fills, done, .. } => {
                let below = |(fill, bucket): (&u64, &Bucket)| *fill <= bucket.values.end - bucket.values.start;
                let known = fills.len() == buckets.len() && fills.iter().zip(&buckets).all(below);
                *done == 0 || known && fills.iter().sum::<u64>() == *done
            }
            State::Order { done, .. } => *done <= buckets.len(),
        };
        sizes_are_right && memory_is_right && state_is_right
    }

    fn sections(&self) -> (Option<Arc<RowLengths>>, Vec<u64>) {
        let places = self.lengths.total().saturating_add(self.division.shift);
        let sizes = [self.value_bytes, INDEX_BYTES].map(|item| places.saturating_mul(item));
        (Some(Arc::clone(&self.lengths)), sizes.to_vec())
    }

    fn start(&self) -> State {
        State::Scatter { done: 0, fills: Vec::new(), division: self.division }
    }

    fn write(&mut self, draft: &Draft, places: &[(u64, u64)], state: State, meter: &mut Meter) -> Result<(), Stop> {
        let &[(values, _), (columns, _)] = places else { return Err(self.changed().into()) };
        let target = Target { draft, values, columns, value_bytes: self.value_bytes };
        meter.at(self.csc.index_bytes());
        match self.value_bytes {
            1 => self.write_typed::<1>(&target, state, meter),
            2 => self.write_typed::<2>(&target, state, meter),
            4 => self.write_typed::<4>(&target, state, meter),
            _ => self.write_typed::<8>(&target, state, meter),
        }
    }
}

/// Where rows are written.
struct Target<'a> {
    draft: &'a Draft,
    /// Address of the first value.
    values: u64,
    /// Address of the first column index.
    columns: u64,
    value_bytes: u64,
}

impl Target<'_> {
    /// Writes values and columns to the places from number `at` on.
    fn write(&self, at: u64, values: &[u8], columns: &[u8]) -> std::io::Result<()> {
        let file = self.draft.file();
        file.write_all_at(values, self.values + at * self.value_bytes)?;
        file.write_all_at(columns, self.columns + at * INDEX_BYTES)
    }

    /// Reads as many as there is room for.
    fn read<const SIZE: usize>(&self, at: u64, into: &mut Ordered<SIZE>) -> std::io::Result<()> {
        let file = self.draft.file();
        file.read_exact_at(into.values.as_flattened_mut(), self.values + at * self.value_bytes)?;
        file.read_exact_at(into.columns.as_flattened_mut(), self.columns + at * INDEX_BYTES)
    }
}

/// Values and their columns, or what stands for those.
struct Ordered<const SIZE: usize> {
    values: Vec<[u8; SIZE]>,
    columns: Vec<[u8; 4]>,
}

impl<const SIZE: usize> Ordered<SIZE> {
    fn new(n_values: usize) -> Self {
        Self { values: vec![[0; SIZE]; n_values], columns: vec![[0; 4]; n_values] }
    }

    #[inline]
    fn put(&mut self, at: usize, value: [u8; SIZE], column: [u8; 4]) -> Option<()> {
        *self.values.get_mut(at)? = value;
        *self.columns.get_mut(at)? = column;
        Some(())
    }
}

/// The buffers of all buckets.
struct Scatter<'a, const SIZE: usize> {
    job: &'a Transpose<'a>,
    target: &'a Target<'a>,
    buckets: &'a [Bucket],
    /// Values of each bucket that are written.
    fills: Vec<u64>,
    /// The bucket of each group of rows.
    of_group: Vec<u32>,
    /// Values of a buffer.
    room: usize,
    buffers: Ordered<SIZE>,
    /// Values in each buffer.
    held: Vec<usize>,
}

impl<'a, const SIZE: usize> Scatter<'a, SIZE> {
    fn new(job: &'a Transpose<'a>, target: &'a Target<'a>, buckets: &'a [Bucket], mut fills: Vec<u64>) -> Self {
        let mut of_group = vec![0; job.lengths.n_rows().div_ceil(GROUP)];
        for (number, bucket) in (0..).zip(buckets) {
            of_group[bucket.rows.start / GROUP..bucket.rows.end.div_ceil(GROUP)].fill(number);
        }
        fills.resize(buckets.len(), 0);
        let write_bytes = job.memory_bytes / 2 / to_u64(buckets.len()).max(1);
        let room = (write_bytes.min(WRITE_BYTES.end) / job.pair_bytes()).max(MIN_BUFFER_VALUES);
        let room = to_usize(room.min(job.division.bucket_values.max(MIN_BUFFER_VALUES)));
        let buffers = Ordered::new(room * buckets.len());
        Self { job, target, buckets, fills, of_group, room, buffers, held: vec![0; buckets.len()] }
    }

    /// Appends the values of a segment to their buckets.
    fn take(&mut self, segment: &Segment<'_>) -> Result<(), Stop> {
        let column_bits = self.job.column_bits;
        for (row, value) in segment.rows.iter().zip(segment.data.as_chunks::<SIZE>().0) {
            // Below the number of rows, as the stream checked.
            let row = u32::from_le_bytes(*row) as usize;
            let bucket = self.of_group[row / GROUP] as usize;
            // Fewer rows than the bits above those of the column can number, see `buckets`.
            let packed = ((row - self.buckets[bucket].rows.start) as u64) << column_bits | u64::from(segment.column);
            #[allow(clippy::cast_possible_truncation)]
            let packed = (packed as u32).to_le_bytes();
            let held = self.held[bucket];
            let at = bucket * self.room + held;
            (self.buffers.values[at], self.buffers.columns[at]) = (*value, packed);
            self.held[bucket] = held + 1;
            if held + 1 == self.room {
                self.flush(bucket)?;
            }
        }
        Ok(())
    }

    /// Writes what one buffer holds.
    fn flush(&mut self, bucket: usize) -> Result<(), Stop> {
        let held = std::mem::take(&mut self.held[bucket]);
        let (place, fill) = (&self.buckets[bucket].values, self.fills[bucket]);
        if fill + to_u64(held) > place.end - place.start {
            return Err(self.job.changed().into());
        }
        let range = bucket * self.room..bucket * self.room + held;
        let at = place.start + self.job.division.shift + fill;
        self.target.write(
            at,
            self.buffers.values[range.clone()].as_flattened(),
            self.buffers.columns[range].as_flattened(),
        )?;
        self.fills[bucket] = fill + to_u64(held);
        Ok(())
    }

    fn flush_all(&mut self) -> Result<(), Stop> {
        (0..self.buckets.len()).try_for_each(|bucket| self.flush(bucket))
    }
}

/// A number whose lowest `n` bits are ones.
fn low_bits(n: u32) -> u32 {
    u32::MAX.checked_shr(u32::BITS - n.min(u32::BITS)).unwrap_or(0)
}
