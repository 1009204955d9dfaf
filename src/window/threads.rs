//! The threads of the engine.
//!
//! *Workers* take the most urgent thing to do: plan a window, or read, decode and scatter a group of its chunks. A worker reads its
//! group itself, since bytes that this core just read are in its cache. Only when reads turn out to be slow (network storage, cold
//! disks) do *I/O threads* read groups ahead, and workers find the bytes there. Reads of both together are never more than
//! the I/O depth at one time (what has to be read once more comes on top). A *ticker* ends waits that are too long.
//!
//! No thread ever waits for memory: a job that finds none is put back and tried again when memory came back.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::assembly::Assembly;
use super::counters::Counters;
use super::engine::{Shared, pass_name};
use super::plan::{ReadOrder, WindowPlan};
use super::state::{Job, JobId, Phase, ReadAhead, Slot, State, Urgency, Waiter, Work};
use super::wake::SleepMeter;
use super::worker::{Decoder, ThreadBuffers};
use super::{BatchError, BatchId, KEPT_PART};
use crate::batch::BatchShape;
use crate::store::ReadError;

/// How often waits are checked.
const TICK: Duration = Duration::from_millis(100);

/// The threads, joined when dropped.
pub(super) struct Threads {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts all of them.
    pub(super) fn start(shared: &Arc<Shared>) -> std::io::Result<Self> {
        let mut threads = Self { shared: Arc::clone(shared), handles: Vec::new() };
        for i in 0..shared.config.threads.max(1) {
            threads.spawn(format!("decode-{i}"), |shared| work(&shared))?;
        }
        for i in 0..shared.config.read_ahead {
            threads.spawn(format!("read-{i}"), |shared| read_ahead(&shared))?;
        }
        threads.spawn("ticker".into(), |shared| tick(&shared))?;
        let populate = shared.config.populate_bytes;
        // Before the first open, with all threads, as far as the caller waits for it; the rest beside readers.
        let until = Instant::now() + shared.config.populate_within;
        std::thread::scope(|scope| {
            for _ in 0..shared.config.threads.max(1) {
                scope.spawn(|| shared.arena.populate(populate, Some(until)));
            }
        });
        threads.spawn("populate".into(), move |shared| {
            run_only_when_idle();
            shared.arena.populate(populate, None);
        })?;
        Ok(threads)
    }

    fn spawn(&mut self, name: String, run: impl FnOnce(Arc<Shared>) + Send + 'static) -> std::io::Result<()> {
        let shared = Arc::clone(&self.shared);
        self.handles.push(std::thread::Builder::new().name(name).spawn(move || run(shared))?);
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.state.lock().ending = true;
        self.shared.wake.everybody();
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }
}

/// Gives this thread only time that nobody else wants: who needs a page before it is ready makes it ready.
fn run_only_when_idle() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters live during the call; 0 is the calling thread. A refusal changes nothing.
    #[allow(unsafe_code)]
    unsafe {
        libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters);
    }
}

/// A worker's life.
fn work(shared: &Arc<Shared>) {
    let mut buffers = ThreadBuffers::new();
    loop {
        let work = {
            let mut state = shared.state.lock();
            loop {
                if state.ending {
                    return;
                }
                shared.wake.look_for_memory(&mut state);
                if let Some(work) = state.take_work() {
                    break work;
                }
                let blocked = usize::from(state.is_blocked());
                state.blocked += blocked;
                shared.wake.sleep_as_worker(&mut state);
                state.blocked -= blocked;
            }
        };
        // A defect must cost the batches it hits, not the thread.
        let job = work.job();
        let run = std::panic::AssertUnwindSafe(|| shared.run(work, &mut buffers));
        if std::panic::catch_unwind(run).is_err() {
            buffers = ThreadBuffers::new();
            shared.abandon(job);
        }
    }
}

/// An I/O thread's life.
fn read_ahead(shared: &Arc<Shared>) {
    let decoder = shared.decoder();
    loop {
        let (job, plan, group, mut bytes) = {
            let mut state = shared.state.lock();
            loop {
                if state.ending {
                    return;
                }
                if shared.wake.reads_are_slow()
                    && let Some((pass, window)) = state.hint.take()
                {
                    parking_lot::MutexGuard::unlocked(&mut state, || shared.hint(pass, window));
                    continue;
                }
                let room = !state.is_full() && state.ahead < shared.config.read_ahead;
                if shared.wake.reads_are_slow()
                    && room
                    && let Some(read) = state.take_read()
                {
                    break read;
                }
                shared.wake.sleep_as_reader(&mut state);
            }
        };
        let reading = Reading { shared };
        let meter = SleepMeter::start();
        let read = std::panic::AssertUnwindSafe(|| decoder.read_group(&plan, group, &mut bytes));
        let read = std::panic::catch_unwind(read);
        shared.wake.note_read(&meter);
        drop(reading);
        let mut state = shared.state.lock();
        let Ok(read) = read else {
            state.ahead -= 1;
            drop(state);
            shared.abandon(job);
            continue;
        };
        let bytes = read.map(|()| bytes);
        state.read_ahead.push(ReadAhead { job, plan, group, bytes });
        drop(state);
        shared.wake.one_worker();
    }
}

/// The ticker's life.
fn tick(shared: &Arc<Shared>) {
    let timeout = shared.config.timeout;
    loop {
        std::thread::sleep(TICK);
        let mut state = shared.state.lock();
        if state.ending {
            return;
        }
        let late = take_late_waiters(&mut state, timeout);
        drop(state);
        for (id, waiters, starved) in late {
            let waited_s = timeout.as_secs();
            let error = if starved { BatchError::NoMemory { waited_s } } else { BatchError::Timeout { waited_s } };
            shared.answer(id, waiters, &Err(error));
        }
    }
}

/// Takes the readers for whose batch nothing happened in time; true for those whose job finds no memory.
fn take_late_waiters(state: &mut State, timeout: Duration) -> Vec<(BatchId, Vec<Waiter>, bool)> {
    let mut late = Vec::new();
    let State { batches, jobs, .. } = state;
    for (&id, slot) in batches.iter_mut() {
        let Slot::Loading { job, waiters } = slot else { continue };
        let job = jobs.iter().find(|j| j.id == *job);
        let idle = job.is_none_or(|j| j.last_progress.elapsed() > timeout);
        if idle && waiters.iter().any(|w| w.since.elapsed() > timeout) {
            let starved = job.is_some_and(|j| j.found_no_memory);
            let (gone, stay) = std::mem::take(waiters).into_iter().partition(|w| w.since.elapsed() > timeout);
            *waiters = stay;
            late.push((id, gone, starved));
        }
    }
    late
}

/// A read under way, which ends when this is dropped: who waited for room is told.
struct Reading<'a> {
    shared: &'a Shared,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let Shared { state, wake, .. } = self.shared;
        let mut state = state.lock();
        let was_full = state.is_full();
        state.reading -= 1;
        let is_awaited = state.blocked > 0;
        drop(state);
        if is_awaited {
            wake.one_worker();
        }
        if was_full {
            wake.reads();
        }
    }
}

impl Work {
    fn job(&self) -> JobId {
        match self {
            Self::Plan { job } | Self::Group { job, .. } => *job,
            Self::Ahead(ahead) => ahead.job,
        }
    }
}

impl Shared {
    fn decoder(&self) -> Decoder<'_> {
        let Self { store, kept, bad, counters, .. } = self;
        Decoder { store: &**store, kept: kept.as_ref(), bad, counters }
    }

    fn run(&self, work: Work, buffers: &mut ThreadBuffers) {
        match work {
            Work::Plan { job } => self.plan(job),
            Work::Group { job, plan, group } => {
                // While this thread decodes, others may read ahead.
                self.wake.reads();
                let reading = plan.is_read(group).then(|| Reading { shared: self });
                let meter = SleepMeter::start();
                let mut stored = std::mem::take(&mut buffers.stored);
                let read = self.decoder().read_group(&plan, group, &mut stored);
                if reading.is_some() {
                    self.wake.note_read(&meter);
                }
                drop(reading);
                self.group(job, &plan, group, read.map(|()| &*stored), buffers);
                buffers.stored = stored;
            }
            Work::Ahead(ahead) => {
                self.wake.reads();
                let bytes = ahead.bytes.as_deref().map_err(ReadError::clone);
                self.group(ahead.job, &ahead.plan, ahead.group, bytes, buffers);
                if let Ok(bytes) = ahead.bytes {
                    self.keep_buffer(bytes);
                }
            }
        }
    }

    /// Keeps a buffer for the next read ahead, at most one for each that there may be.
    fn keep_buffer(&self, buffer: Vec<u8>) {
        let mut state = self.state.lock();
        if state.spare.len() < self.config.read_ahead {
            state.spare.push(buffer);
        }
    }

    fn group(
        &self,
        job: JobId,
        plan: &Arc<WindowPlan>,
        group: usize,
        bytes: Result<&[u8], ReadError>,
        buffers: &mut ThreadBuffers,
    ) {
        if let Some(group) = plan.groups.get(group) {
            self.decoder().run(plan, group, bytes, buffers, &mut |batch| self.deliver(batch));
        }
        self.state.lock().note_group_done(job);
    }

    /// Plans a job: gives memory to as many of its batches as there is memory for, and queues the reads.
    fn plan(&self, id: JobId) {
        let start = Instant::now();
        let Some((pass, window, wanted, urgency)) = self.about_job(id) else { return };
        let assemblies = self.allocate(pass, window, &wanted, urgency);
        if !self.keep_allocated(id, &wanted, &assemblies) {
            return;
        }
        let order = if urgency == Urgency::Demand { ReadOrder::Need } else { ReadOrder::File };
        let plan = Arc::new(WindowPlan::new(&*self.store, self.kept.as_ref(), assemblies, order, self.wake.spacing()));
        Counters::add(&self.counters.plans, 1);
        Counters::add(&self.counters.bytes_wanted, plan.wanted_bytes);
        Counters::add(&self.counters.bytes_needed, plan.needed_filtered_bytes);
        {
            let mut state = self.state.lock();
            if let Some(job) = state.job(id) {
                job.phase = Phase::Running { plan: Arc::clone(&plan), next: 0 };
                job.last_progress = Instant::now();
                job.found_no_memory = false;
            }
        }
        self.wake.work();
        // Batches without any value are complete now; the others lose the planner's share.
        for batch in &plan.batches {
            if batch.arrived() {
                self.deliver(batch);
            }
        }
        Counters::lap(&self.counters.plan_ns, start);
    }

    /// Tells storage which bytes a window needs.
    fn hint(&self, pass: crate::order::Pass, window: u64) {
        let mut rows = self.order.window_rows(pass, window);
        rows.sort_unstable();
        super::hints::will_need(&*self.store, &rows);
        Counters::add(&self.counters.hints, 1);
    }

    fn about_job(&self, id: JobId) -> Option<(crate::order::Pass, u64, Vec<u64>, Urgency)> {
        let mut state = self.state.lock();
        let job = state.job(id)?;
        Some((job.pass, job.window, job.wanted.clone(), job.urgency))
    }

    /// Lays out the wanted batches and gives them memory, the most wanted first, until there is none left.
    fn allocate(&self, pass: crate::order::Pass, window: u64, wanted: &[u64], urgency: Urgency) -> Vec<Arc<Assembly>> {
        let rows = self.order.window_rows(pass, window);
        let first = self.order.window_batches(pass, window).start;
        let m = u64::from(self.order.batch_size());
        let mut assemblies = Vec::with_capacity(wanted.len());
        for &batch in wanted {
            let id = BatchId { pass, batch };
            let from = crate::num::to_usize((batch - first) * m);
            let len = self.order.batch_len(pass, batch) as usize;
            let batch_rows = rows[from..from + len].to_vec();
            let row_starts = self.row_starts(&batch_rows);
            let n_values: Vec<u64> = row_starts.iter().map(|s| s.last().copied().map_or(0, u64::from)).collect();
            let n_rows = self.order.batch_len(pass, batch);
            let layout = self.encoder.layout(BatchShape { n_rows, n_values: &n_values });
            // Only for readers that wait may batches be thrown away that nobody read yet.
            let urgency = if self.is_waited_for(id) { Urgency::Demand } else { urgency.max(Urgency::Stream) };
            let Some(region) = self.make_room(layout.buffer_bytes, urgency) else { break };
            let pad_rows = self.order.pad_rows(pass, batch);
            assemblies.push(Arc::new(Assembly::new(id, batch_rows, pad_rows, row_starts, layout, region)));
        }
        assemblies
    }

    fn row_starts(&self, rows: &[u64]) -> Vec<Vec<u32>> {
        let elements = self.store.schema().elements.iter().enumerate();
        elements
            .map(|(e, element)| match element.kind.has_row_lengths() {
                false => Vec::new(),
                true => {
                    let mut starts = Vec::with_capacity(rows.len() + 1);
                    let mut at = 0_u32;
                    starts.push(0);
                    for &row in rows {
                        // Below 2^31: batches of the longest rows are refused at mount otherwise.
                        at += self.store.row_len(e, row);
                        starts.push(at);
                    }
                    starts
                }
            })
            .collect()
    }

    fn is_waited_for(&self, id: BatchId) -> bool {
        matches!(self.state.lock().batches.get(&id), Some(Slot::Loading { waiters, .. }) if !waiters.is_empty())
    }

    /// Memory for a batch, if need be by throwing away what this urgency may.
    ///
    /// Fresh memory costs more than anything else about an image (the kernel zeroes it, and in a virtual machine the host may
    /// have to find it first), so memory that was used is taken before, even if a batch that was read must go for it.
    fn make_room(&self, len_bytes: u64, urgency: Urgency) -> Option<super::arena::Region> {
        loop {
            if let Some(region) = self.arena.alloc_used(len_bytes) {
                return Some(region);
            }
            let window_bytes = self.sizes.mean_buffer_bytes().saturating_mul(u64::from(self.order.fetch_factor()));
            let keep_bytes = window_bytes / KEPT_PART;
            if self.state.lock().recycle(len_bytes, keep_bytes).is_empty() {
                break;
            }
        }
        loop {
            if let Some(region) = self.arena.alloc(len_bytes) {
                return Some(region);
            }
            let evicted = self.state.lock().evict(urgency, len_bytes);
            if evicted.is_empty() {
                return None;
            }
            let unopened = evicted.iter().filter(|e| !e.opened).count();
            Counters::add(&self.counters.evicted_unopened, unopened as u64);
        }
    }

    /// Keeps in the job the batches that got memory. Of the others, those that nobody waits for are forgotten, and the rest waits in
    /// a job of its own. False if no batch got memory: the job is then starved, or gone.
    fn keep_allocated(&self, id: JobId, wanted: &[u64], assemblies: &[Arc<Assembly>]) -> bool {
        let mut state = self.state.lock();
        let Some(job) = state.job(id) else { return false };
        let pass = job.pass;
        let window = job.window;
        if assemblies.len() == wanted.len() {
            return true;
        }
        let without = &wanted[assemblies.len()..];
        let mut waited_for = Vec::new();
        for &batch in without {
            let key = BatchId { pass, batch };
            match state.batches.get(&key) {
                Some(Slot::Loading { waiters, .. }) if !waiters.is_empty() => waited_for.push(batch),
                _ => {
                    state.batches.remove(&key);
                }
            }
        }
        let Some(job) = state.job(id) else { return false };
        let since = job.last_progress;
        // As planned: an open may have put the list in another order since.
        job.wanted = wanted[..assemblies.len()].to_vec();
        job.undelivered = assemblies.len();
        let starved = Phase::Queued { starved: true };
        if assemblies.is_empty() {
            job.undelivered = waited_for.len();
            job.wanted = waited_for;
            job.phase = starved;
            job.found_no_memory = true;
            state.jobs.retain(|job| job.undelivered > 0);
            return false;
        }
        if !waited_for.is_empty() {
            state.requeue(pass, window, waited_for, starved, since);
        }
        true
    }

    /// After a panic in a task of a job: fails what the job has not delivered.
    fn abandon(&self, id: JobId) {
        let mut state = self.state.lock();
        let mut lost = Vec::new();
        state.batches.retain(|&key, slot| match slot {
            Slot::Loading { job, waiters } if *job == id => {
                lost.push((key, std::mem::take(waiters)));
                false
            }
            _ => true,
        });
        state.jobs.retain(|job: &Job| job.id != id);
        drop(state);
        tracing::error!(job = id, "a task panicked; the batches it was for fail");
        self.wake.memory();
        for (key, waiters) in lost {
            let what = format!("a task of {} batch {} panicked", pass_name(key.pass), key.batch);
            self.answer(key, waiters, &Err(BatchError::Internal { what }));
        }
    }
}
