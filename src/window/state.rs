//! What the engine knows at a moment, under one lock that is held for short steps only: which batches are there, which are
//! under way, who waits, which jobs are queued.
//!
//! A batch is in one of three states: absent, loading (some [`Job`] will deliver it; opens wait), or ready. A job is a window, or a part
//! of one, on its way: first it waits to be planned, then its groups of chunks are handed to workers one by one.
//!
//! **What may be thrown away.** Ready batches stay until their memory is needed. Consumed ones (opened and closed again) go first,
//! oldest first. Batches that nobody opened yet go only for an open that waits, never for a guess; of those the ones
//! farthest ahead go first. Batches that somebody has open never go.
//!
//! **An epoch that nobody has opened yet** leaves a worker's time to those who still read the last one: assembling its first window takes
//! all workers but one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::plan::WindowPlan;
use super::stream::Streams;
use super::{BatchId, Image, OpenReply};
use crate::order::Pass;

/// How urgent a job is; also what it may throw away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// A reader waits for a batch of it.
    Demand,
    /// The rest of a window that is being read.
    Stream,
    /// The window after that.
    Guess,
}

/// Number of a job; later ones are larger.
pub type JobId = u64;

/// A window, or a part of one, on its way.
pub struct Job {
    /// Its number.
    pub id: JobId,
    /// The pass.
    pub pass: Pass,
    /// The window.
    pub window: u64,
    /// The batches to deliver, most wanted first.
    pub wanted: Vec<u64>,
    /// How urgent it is.
    pub urgency: Urgency,
    /// What happens next.
    pub phase: Phase,
    /// When something last happened for it.
    pub last_progress: Instant,
    /// Batches of it that are not delivered yet.
    pub undelivered: usize,
    /// True if there was no memory for any of its batches when it was last planned.
    pub found_no_memory: bool,
    /// Workers that process a group of it.
    pub n_workers: usize,
}

/// What happens next with a job.
pub enum Phase {
    /// It waits to be planned; `starved`: until memory is given back.
    Queued {
        /// True if there was no memory for any of its batches.
        starved: bool,
    },
    /// A worker plans it.
    Planning,
    /// Its groups are handed out, from number `next` on.
    Running {
        /// The plan.
        plan: Arc<WindowPlan>,
        /// The next group.
        next: usize,
    },
}

/// A reader that waits for a batch.
pub struct Waiter {
    /// What to answer.
    pub reply: OpenReply,
    /// Since when it waits.
    pub since: Instant,
}

/// A batch that is not absent.
pub enum Slot {
    /// A job will deliver it.
    Loading {
        /// The job.
        job: JobId,
        /// Who waits for it.
        waiters: Vec<Waiter>,
    },
    /// It is there.
    Ready {
        /// The file.
        image: Image,
        /// True once somebody opened it.
        opened: bool,
        /// When it was last opened, or delivered.
        last_use: u64,
    },
}

/// How much is done at one time.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Reads under way.
    pub io_depth: usize,
    /// Workers in all.
    pub n_workers: usize,
}

/// Everything behind the engine's lock.
pub struct State {
    limits: Limits,
    /// Batches that are not absent.
    pub batches: HashMap<BatchId, Slot>,
    /// Jobs that are not done.
    pub jobs: Vec<Job>,
    /// Groups that were read ahead: job, plan, group, bytes.
    pub read_ahead: Vec<ReadAhead>,
    /// Reads under way, by workers and by I/O threads.
    pub reading: usize,
    /// Groups that are being read ahead, or were and wait for a worker: each has a buffer.
    pub ahead: usize,
    /// Workers that sleep because so many reads are under way.
    pub blocked: usize,
    /// Buffers of groups that were read ahead and are done with.
    pub spare: Vec<Vec<u8>>,
    /// A window that storage should know of.
    pub hint: Option<(Pass, u64)>,
    /// Recent opens.
    pub streams: Streams,
    /// Set when the engine ends.
    pub ending: bool,
    clock: u64,
    next_job: JobId,
}

/// A group whose bytes were read by an I/O thread.
pub struct ReadAhead {
    /// The job.
    pub job: JobId,
    /// Its plan.
    pub plan: Arc<WindowPlan>,
    /// The group, an index of the plan's groups.
    pub group: usize,
    /// What the read gave.
    pub bytes: Result<Vec<u8>, crate::store::ReadError>,
}

/// Class, then the batch farthest ahead, then the oldest.
type EvictionRank = (u8, std::cmp::Reverse<u64>, u64);

/// A batch that was thrown away; its memory returns when this is dropped.
pub struct Evicted {
    _image: Image,
    /// False if nobody ever opened it.
    pub opened: bool,
}

/// Something for a worker to do.
pub enum Work {
    /// Plan this job.
    Plan {
        /// Its number.
        job: JobId,
    },
    /// Process a group.
    Group {
        /// The job.
        job: JobId,
        /// Its plan.
        plan: Arc<WindowPlan>,
        /// The group.
        group: usize,
    },
    /// Process a group whose bytes are there.
    Ahead(ReadAhead),
}

impl State {
    /// Nothing there yet.
    #[must_use]
    pub fn new(streams: Streams, limits: Limits) -> Self {
        Self {
            limits,
            batches: HashMap::new(),
            jobs: Vec::new(),
            read_ahead: Vec::new(),
            reading: 0,
            ahead: 0,
            blocked: 0,
            spare: Vec::new(),
            hint: None,
            streams,
            ending: false,
            clock: 0,
            next_job: 0,
        }
    }

    /// A number that grows with every use.
    pub fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Queues a job for the `wanted` batches of a window that are absent, most wanted first. Returns whether there was any.
    pub fn queue_job(&mut self, pass: Pass, window: u64, wanted: impl Iterator<Item = u64>, urgency: Urgency) -> bool {
        let wanted: Vec<u64> = wanted.filter(|&batch| !self.batches.contains_key(&BatchId { pass, batch })).collect();
        if wanted.is_empty() {
            return false;
        }
        let id = self.next_job;
        self.next_job += 1;
        for &batch in &wanted {
            self.batches.insert(BatchId { pass, batch }, Slot::Loading { job: id, waiters: Vec::new() });
        }
        let (phase, undelivered) = (Phase::Queued { starved: false }, wanted.len());
        self.jobs.push(Job {
            id,
            pass,
            window,
            wanted,
            urgency,
            phase,
            last_progress: Instant::now(),
            undelivered,
            found_no_memory: false,
            n_workers: 0,
        });
        true
    }

    /// Queues a job for batches that are loading already, under another job.
    pub fn requeue(&mut self, pass: Pass, window: u64, wanted: Vec<u64>, phase: Phase, last_progress: Instant) {
        let id = self.next_job;
        self.next_job += 1;
        for &batch in &wanted {
            if let Some(Slot::Loading { job, .. }) = self.batches.get_mut(&BatchId { pass, batch }) {
                *job = id;
            }
        }
        let undelivered = wanted.len();
        self.jobs.push(Job {
            id,
            pass,
            window,
            wanted,
            urgency: Urgency::Demand,
            phase,
            last_progress,
            undelivered,
            found_no_memory: true,
            n_workers: 0,
        });
    }

    /// The job of that number, if it is not done.
    pub fn job(&mut self, id: JobId) -> Option<&mut Job> {
        self.jobs.iter_mut().find(|job| job.id == id)
    }

    /// Takes the most urgent thing to do, if there is any; nothing that needs a read while the I/O depth is reached. A group
    /// that has to be read counts as being read from here on, and the worker as one of its job's, until [`Self::note_group_done`].
    pub fn take_work(&mut self) -> Option<Work> {
        let spared = self.spared_jobs();
        // Bytes that are there first: they hold a buffer.
        let may_take = (0..self.read_ahead.len()).filter(|&i| !spared.contains(&self.read_ahead[i].job));
        if let Some(best) = may_take.min_by_key(|&i| self.rank_of(self.read_ahead[i].job)) {
            self.ahead -= 1;
            let ahead = self.read_ahead.swap_remove(best);
            if let Some(job) = self.job(ahead.job) {
                job.n_workers += 1;
            }
            return Some(Work::Ahead(ahead));
        }
        let may_read = !self.is_full();
        let jobs = self.jobs.iter_mut().filter(|job| job.has_work(may_read) && !spared.contains(&job.id));
        let job = jobs.min_by_key(|job| (job.urgency, job.id))?;
        match &mut job.phase {
            Phase::Queued { .. } => {
                job.phase = Phase::Planning;
                Some(Work::Plan { job: job.id })
            }
            Phase::Running { plan, next } => {
                let group = *next;
                *next += 1;
                job.n_workers += 1;
                self.reading += usize::from(plan.is_read(group));
                Some(Work::Group { job: job.id, plan: Arc::clone(plan), group })
            }
            Phase::Planning => None,
        }
    }

    /// A worker is done with a group of this job.
    pub fn note_group_done(&mut self, id: JobId) {
        if let Some(job) = self.job(id) {
            job.n_workers -= 1;
            job.last_progress = Instant::now();
        }
    }

    /// True if as many reads are under way as there may be.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.reading >= self.limits.io_depth
    }

    /// True if nothing but reads that are under way keeps a worker from working.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        let spared = self.spared_jobs();
        self.is_full() && self.jobs.iter().any(|job| job.has_work(true) && !spared.contains(&job.id))
    }

    /// Jobs that get no more workers for now: nobody has read their epoch yet, all workers but one are at such jobs already, and
    /// somebody else may need the last one.
    fn spared_jobs(&self) -> Vec<JobId> {
        let early = || self.jobs.iter().filter(|job| job.urgency == Urgency::Guess && !self.streams.is_read(job.pass));
        let n_workers: usize = early().map(|job| job.n_workers).sum();
        let is_enough = n_workers >= self.limits.n_workers.saturating_sub(1).max(1);
        early().filter(|_| is_enough).map(|job| job.id).collect()
    }

    /// Takes a group for reading ahead, if there is any; it counts as being read from here on.
    pub fn take_read(&mut self) -> Option<(JobId, Arc<WindowPlan>, usize, Vec<u8>)> {
        let running = |job: &&mut Job| matches!(&job.phase, Phase::Running { plan, next } if plan.is_read(*next));
        let job = self.jobs.iter_mut().filter(running).min_by_key(|job| (job.urgency, job.id))?;
        match &mut job.phase {
            Phase::Running { plan, next } => {
                let group = *next;
                *next += 1;
                self.reading += 1;
                self.ahead += 1;
                // What was touched before costs less than fresh memory.
                Some((job.id, Arc::clone(plan), group, self.spare.pop().unwrap_or_default()))
            }
            Phase::Queued { .. } | Phase::Planning => None,
        }
    }

    fn rank_of(&self, id: JobId) -> (Urgency, JobId) {
        // A job whose groups are all handed out is gone from the list; what is left of it is the oldest work there is.
        self.jobs.iter().find(|job| job.id == id).map_or((Urgency::Demand, id), |job| (job.urgency, id))
    }

    /// Notes that a batch of a job was delivered. A job of which nobody waits for anything any more is urgent no longer, so that
    /// others who wait do not wait for the rest of its window.
    pub fn note_delivery(&mut self, id: JobId) {
        let batches = &self.batches;
        let is_waited_for = |pass, batch: u64| matches!(batches.get(&BatchId { pass, batch }), Some(Slot::Loading { waiters, .. }) if !waiters.is_empty());
        if let Some(job) = self.jobs.iter_mut().find(|job| job.id == id) {
            job.undelivered -= 1;
            if job.urgency == Urgency::Demand && !job.wanted.iter().any(|&batch| is_waited_for(job.pass, batch)) {
                job.urgency = Urgency::Stream;
            }
        }
        self.jobs.retain(|job| job.undelivered > 0);
    }

    /// Lets jobs that wait for memory try again.
    pub fn unstarve(&mut self) {
        for job in &mut self.jobs {
            if let Phase::Queued { starved } = &mut job.phase {
                *starved = false;
            }
        }
    }

    /// True if any job waits for memory.
    #[must_use]
    pub fn any_starved(&self) -> bool {
        self.jobs.iter().any(|job| matches!(job.phase, Phase::Queued { starved: true }))
    }

    /// Removes consumed batches of at least `want_bytes`, oldest first, if more than `keep_bytes` of them are there: their memory is
    /// used again rather than fresh memory. The caller drops them outside the lock.
    pub fn recycle(&mut self, want_bytes: u64, keep_bytes: u64) -> Vec<Evicted> {
        let consumed = self.consumed_bytes();
        if consumed < keep_bytes.saturating_add(want_bytes) {
            return Vec::new();
        }
        // Some more than is wanted now: finding them takes a look at every batch.
        self.evict(Urgency::Guess, want_bytes.max(keep_bytes / 8))
    }

    /// Removes ready batches of at least `want_bytes`, if there are enough that a job of this urgency may throw away, and as many as
    /// there are otherwise. The caller drops them outside the lock.
    pub fn evict(&mut self, urgency: Urgency, want_bytes: u64) -> Vec<Evicted> {
        let mut ranked: Vec<(EvictionRank, BatchId)> =
            self.batches.iter().filter_map(|(&id, slot)| Some((self.eviction_rank(id, slot, urgency)?, id))).collect();
        ranked.sort_unstable();
        let (mut evicted, mut bytes) = (Vec::new(), 0);
        for (_, id) in ranked {
            if bytes >= want_bytes {
                break;
            }
            if let Some(Slot::Ready { image, opened, .. }) = self.batches.remove(&id) {
                bytes += image.bytes().len() as u64;
                evicted.push(Evicted { _image: image, opened });
            }
        }
        evicted
    }

    /// Lower is thrown away first; `None`: not for a job of this urgency.
    fn eviction_rank(&self, id: BatchId, slot: &Slot, urgency: Urgency) -> Option<EvictionRank> {
        let Slot::Ready { image, opened, last_use } = slot else { return None };
        if image.is_shared() {
            None
        } else if *opened {
            Some((0, std::cmp::Reverse(0), *last_use))
        } else if urgency <= Urgency::Stream && self.streams.is_abandoned(id.pass) {
            Some((1, std::cmp::Reverse(id.batch), 0))
        } else if urgency == Urgency::Demand {
            Some((2, std::cmp::Reverse(id.batch), 0))
        } else {
            None
        }
    }

    /// Bytes of ready batches that a guess may throw away.
    #[must_use]
    pub fn consumed_bytes(&self) -> u64 {
        self.batches
            .values()
            .map(|slot| match slot {
                Slot::Ready { image, opened: true, .. } if !image.is_shared() => image.bytes().len() as u64,
                _ => 0,
            })
            .sum()
    }
}

impl Job {
    fn has_work(&self, may_read: bool) -> bool {
        match &self.phase {
            Phase::Queued { starved } => !starved,
            Phase::Planning => false,
            Phase::Running { plan, next } => *next < plan.groups.len() && (may_read || !plan.is_read(*next)),
        }
    }
}
