//! The engine's front: opens come in, batches go out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::arena::Arena;
use super::assembly::Assembly;
use super::bad::BadChunks;
use super::counters::{CounterValues, Counters};
use super::errors::{ErrorLog, Failure};
use super::kept::KeptChunks;
use super::sizes::Sizes;
use super::state::{Limits, Slot, State, Urgency, Waiter};
use super::stream::{Host, Place, Scope, Streams};
use super::threads::Threads;
use super::wake::Wake;
use super::{BatchError, BatchId, Batches, Image, OpenReply};
use crate::batch::Encoder;
use crate::order::{Order, Pass, RankPolicy};
use crate::store::Store;

/// What the engine may use.
#[derive(Debug, Clone, Copy)]
pub struct EngineConfig {
    /// Bytes for batch images, those that readers hold included. What scratch buffers and the store take is not in it.
    pub image_bytes: u64,
    /// Threads that decode.
    pub threads: usize,
    /// Reads that may be under way at one time, at least 1.
    pub io_depth: usize,
    /// Groups that may be read ahead, each into a buffer of its own.
    pub read_ahead: usize,
    /// How long an open waits without any progress for it.
    pub timeout: Duration,
    /// Number of ranks that are expected, if known.
    pub world_size: Option<u32>,
    /// Bytes of the arena to fault in ahead of the first use.
    pub populate_bytes: u64,
    /// How long [`Engine::start`] may take for that; the rest happens beside the first opens.
    pub populate_within: Duration,
    /// Keep all chunks once they are decoded: the caller has [`KeptChunks::needed_bytes`] for that, besides `image_bytes`.
    pub keep_chunks: bool,
}

/// Assembles batches of one dataset in one order and one format.
pub struct Engine {
    shared: Arc<Shared>,
    _threads: Threads,
}

/// What all threads of the engine share.
pub(super) struct Shared {
    pub store: Arc<dyn Store>,
    pub order: Arc<Order>,
    pub encoder: Arc<dyn Encoder>,
    pub config: EngineConfig,
    pub arena: Arc<Arena>,
    pub counters: Counters,
    pub errors: ErrorLog,
    pub sizes: Sizes,
    pub kept: Option<KeptChunks>,
    pub bad: BadChunks,
    /// True if chunks have to be decoded, and so cost more than their needed bytes.
    pub decodes: bool,
    pub state: Mutex<State>,
    /// Who sleeps.
    pub wake: Wake,
}

impl Engine {
    /// Starts the engine's threads.
    ///
    /// # Errors
    /// What the operating system says to the reservation of memory or to a new thread.
    pub fn start(
        store: Arc<dyn Store>,
        order: Arc<Order>,
        encoder: Arc<dyn Encoder>,
        config: EngineConfig,
    ) -> std::io::Result<Self> {
        let arena = Arena::new(config.image_bytes)?;
        let sizes = Sizes::new(Arc::clone(&store), Arc::clone(&order), Arc::clone(&encoder));
        let decodes = (0..store.schema().parts.len()).any(|part| store.filtered_bytes(part) > 0);
        let kept = config.keep_chunks.then(|| KeptChunks::new(&*store));
        let limits = Limits { io_depth: config.io_depth, n_workers: config.threads };
        let shared = Arc::new(Shared {
            store,
            order,
            encoder,
            config,
            arena: Arc::clone(&arena),
            counters: Counters::default(),
            errors: ErrorLog::default(),
            sizes,
            kept,
            bad: BadChunks::default(),
            decodes,
            state: Mutex::new(State::new(Streams::new(config.world_size), limits)),
            wake: Wake::default(),
        });
        let weak = Arc::downgrade(&shared);
        arena.set_on_free(move || {
            if let Some(shared) = weak.upgrade() {
                shared.wake.memory();
            }
        });
        let threads = Threads::start(&shared)?;
        Ok(Self { shared, _threads: threads })
    }

    /// Opens a batch and waits for it: for callers without an event loop.
    ///
    /// # Errors
    /// [`BatchError`] as for any open.
    pub fn open_blocking(&self, id: BatchId) -> Result<Image, BatchError> {
        let (send, receive) = std::sync::mpsc::sync_channel(1);
        self.open(
            id,
            Box::new(move |result| {
                let _ = send.send(result);
            }),
        );
        receive.recv().unwrap_or(Err(BatchError::ShuttingDown))
    }

    /// The counters now.
    #[must_use]
    pub fn counters(&self) -> CounterValues {
        self.shared.counters.values()
    }

    /// Bytes of images: in use, most ever in use, and allowed.
    #[must_use]
    pub fn image_memory(&self) -> (u64, u64, u64) {
        let arena = &self.shared.arena;
        (arena.used_bytes(), arena.peak_bytes(), arena.capacity_bytes())
    }

    /// Waits until nothing is under way, for tests and benchmarks.
    pub fn wait_idle(&self) {
        loop {
            {
                let state = self.shared.state.lock();
                if state.jobs.is_empty() {
                    return;
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Batches for Engine {
    fn size_bytes(&self, id: BatchId) -> u64 {
        self.shared.sizes.size_bytes(id)
    }

    fn open(&self, id: BatchId, reply: OpenReply) {
        self.shared.open(id, reply);
    }

    fn expect_hosts(&self, n_hosts: u32, policy: RankPolicy) {
        self.shared.state.lock().streams.expect_hosts(n_hosts, policy);
    }

    fn status_json(&self) -> serde_json::Value {
        self.shared.status_json()
    }

    fn failures(&self) -> Vec<Failure> {
        self.shared.errors.failures()
    }
}

impl Shared {
    fn open(&self, id: BatchId, reply: OpenReply) {
        Counters::add(&self.counters.opens, 1);
        let mut state = self.state.lock();
        let place = self.place(id.pass, self.order.window_of(id.batch), state.streams.hosts());
        if state.ending {
            drop(state);
            reply(Err(BatchError::ShuttingDown));
            return;
        }
        // Now the pass may have all workers.
        let mut new_work = !state.streams.is_read(id.pass);
        let seen = state.streams.opened(id, &place);
        let now = state.tick();
        let mut waiting = Some(reply);
        let mut ready = None;
        match state.batches.get_mut(&id) {
            Some(Slot::Ready { image, opened, last_use }) => {
                (*opened, *last_use) = (true, now);
                ready = Some(self.lend(image));
            }
            Some(Slot::Loading { job, waiters }) => {
                waiters.extend(waiting.take().map(|reply| Waiter { reply, since: Instant::now() }));
                let job = *job;
                if let Some(job) = state.job(job) {
                    new_work |= job.urgency == Urgency::Guess;
                    job.urgency = Urgency::Demand;
                    // What is waited for comes first, should the job still wait to be planned.
                    job.wanted.sort_by_key(|&batch| batch != id.batch);
                }
            }
            None => {
                let others = (id.batch + 1..place.batches.end).chain(place.batches.start..id.batch);
                let rest = others.filter(|&batch| seen.scope == Scope::Window && place.is_for(seen.host, batch));
                let wanted = std::iter::once(id.batch).chain(rest);
                new_work |= state.queue_job(id.pass, place.window, wanted, Urgency::Demand);
                if let Some(Slot::Loading { waiters, .. }) = state.batches.get_mut(&id) {
                    waiters.extend(waiting.take().map(|reply| Waiter { reply, since: Instant::now() }));
                }
                Counters::add(&self.counters.opens_isolated, u64::from(seen.scope == Scope::Batch));
            }
        }
        if let Some((pass, next)) = seen.next_window
            && self.guess(&mut state, pass, next, seen.host)
        {
            new_work = true;
            state.hint = seen.after_next.map(|window| (pass, window));
        }
        drop(state);
        if new_work {
            self.wake.work();
        }
        if seen.began_jumping {
            tracing::warn!(
                pass = pass_name(id.pass),
                "names are opened out of order, so every batch is assembled by itself, which is much slower: \
                 read the names in the order of batches.txt (shuffle=False, no distributed sampler); they are shuffled already"
            );
        }
        if let (Some(image), Some(reply)) = (ready, waiting) {
            Counters::add(&self.counters.opens_ready, 1);
            reply(Ok(image));
        }
    }

    /// A clone of a kept image that wakes the workers when it is closed: its memory may be needed.
    fn lend(&self, image: &Image) -> Image {
        image.lend(&self.arena)
    }

    /// Queues the window that the stream will enter next, if there is room for it, or for a good part of it where that costs nothing.
    /// Returns whether it did.
    fn guess(&self, state: &mut State, pass: Pass, window: u64, host: Option<Host>) -> bool {
        if matches!(pass, Pass::Epoch(epoch) if epoch >= crate::order::MAX_EPOCHS) {
            return false;
        }
        let place = self.place(pass, window, state.streams.hosts());
        let is_absent = |batch| !state.batches.contains_key(&BatchId { pass, batch });
        let absent: Vec<u64> =
            place.batches.clone().filter(|&batch| place.is_for(host, batch) && is_absent(batch)).collect();
        let loading = state.jobs.iter().any(|job| job.pass == pass && job.window == window);
        if absent.is_empty() || loading {
            return false;
        }
        let free = self.arena.capacity_bytes() - self.arena.used_bytes() + state.consumed_bytes();
        let mean = Arena::region_bytes(self.sizes.mean_buffer_bytes());
        let (all, eighth) = (absent.len() as u64, place.batches.end.saturating_sub(place.batches.start).div_ceil(8));
        // Nearly every chunk of a window has rows of nearly every batch: what is assembled in two parts is decoded twice. So the
        // guess waits until the window that is read has made room for all of it, unless there never is so much.
        // Readers go on meanwhile, and what they have open makes no room.
        let whole = all.saturating_add(eighth.max(2)).saturating_mul(mean);
        let is_whole = self.decodes && whole <= self.arena.capacity_bytes();
        let least = if is_whole { whole } else { eighth.min(all).saturating_mul(mean) };
        free >= least && state.queue_job(pass, window, absent.into_iter(), Urgency::Guess)
    }

    /// The window of a pass, as so many hosts share it.
    fn place(&self, pass: Pass, window: u64, (n_hosts, policy): (u32, RankPolicy)) -> Place {
        Place {
            window,
            batches: self.order.window_batches(pass, window),
            n_windows: self.order.n_windows(pass),
            n_batches: self.order.n_batches(pass),
            window_batches: u64::from(self.order.fetch_factor()),
            runs: self.order.host_runs(pass, n_hosts, policy),
        }
    }

    /// Finishes a batch whose last piece arrived, keeps it, and answers who waits for it.
    pub(super) fn deliver(&self, batch: &Arc<Assembly>) {
        let start = Instant::now();
        let result = batch.finish(&*self.encoder);
        Counters::lap(&self.counters.finish_ns, start);
        let failed = result.is_err();
        Counters::add(if failed { &self.counters.batches_failed } else { &self.counters.batches }, 1);
        let mut state = self.state.lock();
        let now = state.tick();
        let waiters = match state.batches.remove(&batch.id) {
            Some(Slot::Loading { job, waiters }) => {
                state.note_delivery(job);
                waiters
            }
            _ => Vec::new(),
        };
        if let Ok(image) = &result {
            let slot = Slot::Ready { image: image.clone(), opened: !waiters.is_empty(), last_use: now };
            state.batches.insert(batch.id, slot);
        }
        drop(state);
        self.answer(batch.id, waiters, &result);
        // Without this clone, the batch may be thrown away from here on.
        drop(result);
        self.wake.memory();
    }

    /// Answers readers; a failure that somebody waited for is told once, wherever it is looked for.
    pub(super) fn answer(&self, id: BatchId, waiters: Vec<Waiter>, result: &Result<Image, BatchError>) {
        if let Err(error) = result
            && !waiters.is_empty()
        {
            self.errors.push(id, error);
        }
        for waiter in waiters {
            let waited = u64::try_from(waiter.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
            Counters::add(&self.counters.open_wait_ns, waited);
            (waiter.reply)(match result {
                Ok(image) => Ok(self.lend(image)),
                Err(error) => Err(error.clone()),
            });
        }
    }

    fn status_json(&self) -> serde_json::Value {
        let counters = self.counters.values();
        let state = self.state.lock();
        let (mut ready, mut loading, mut waiting) = (0, 0, 0);
        for slot in state.batches.values() {
            match slot {
                Slot::Ready { .. } => ready += 1,
                Slot::Loading { waiters, .. } => {
                    loading += 1;
                    waiting += waiters.len();
                }
            }
        }
        let jumping: Vec<String> = state.streams.jumping().map(pass_name).collect();
        let jobs: Vec<_> = state
            .jobs
            .iter()
            .map(|job| serde_json::json!({"pass": pass_name(job.pass), "window": job.window, "batches": job.wanted.len(), "urgency": format!("{:?}", job.urgency).to_lowercase()}))
            .collect();
        drop(state);
        let ratio = |a: u64, b: u64| if b == 0 { None } else { Some((a as f64 / b as f64 * 1000.0).round() / 1000.0) };
        serde_json::json!({
            "counters": counters,
            "decoded_per_needed": ratio(counters.bytes_decoded, counters.bytes_needed),
            "hit_rate": ratio(counters.opens_ready, counters.opens),
            "images": {
                "used_bytes": self.arena.used_bytes(),
                "peak_bytes": self.arena.peak_bytes(),
                "limit_bytes": self.arena.capacity_bytes(),
                "ready": ready,
                "loading": loading,
            },
            "opens_waiting": waiting,
            "jobs": jobs,
            "read_out_of_order": jumping,
            "threads": self.config.threads,
            "io_depth": self.config.io_depth,
        })
    }
}

/// The pass as its directory is called.
#[must_use]
pub fn pass_name(pass: Pass) -> String {
    match pass {
        Pass::Epoch(epoch) => format!("epoch-{epoch:05}"),
        Pass::InOrder => "inorder".to_owned(),
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.ending = true;
        state.jobs.clear();
        let mut waiters = Vec::new();
        state.batches.retain(|_, slot| match slot {
            Slot::Loading { waiters: w, .. } => {
                waiters.append(w);
                false
            }
            Slot::Ready { .. } => true,
        });
        drop(state);
        self.shared.wake.everybody();
        for waiter in waiters {
            (waiter.reply)(Err(BatchError::ShuttingDown));
        }
    }
}
