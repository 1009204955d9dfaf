//! Who sleeps, and who is woken for what.
//!
//! Waking a thread that finds nothing to do costs two context switches, and an engine does tens of thousands of things per second.
//! So workers and I/O threads sleep apart: I/O threads are woken only while reads are slow, and workers for returned memory
//! only while a job waits for it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use parking_lot::{Condvar, MutexGuard};

use super::plan::Spacing;
use super::state::State;

/// Reads that make their thread sleep this long on average are worth reading ahead, several at a time: less than any disk takes,
/// more than a read from the page cache, which hardly ever sleeps.
const SLOW_READ_NS: u64 = 40_000;

/// Reads after which storage is known to be fast or slow.
const JUDGED_READS: u64 = 32;

/// How long a worker sleeps at most while a job waits for memory: a batch that is closed right between two looks is seen then.
const STARVED_NAP: Duration = Duration::from_millis(10);

/// The sleepers of an engine. Used with the lock of its [`State`].
#[derive(Default)]
pub struct Wake {
    workers: Condvar,
    readers: Condvar,
    /// True while a worker that sleeps knows of a job that waits for memory.
    starving: AtomicBool,
    /// Set when memory came back since a worker last looked.
    memory_back: AtomicBool,
    /// Mean time that reading a group made its thread sleep.
    slept_ns: AtomicU64,
    /// Groups that were read.
    n_read: AtomicU64,
}

impl Wake {
    /// There is new work for all workers, and for I/O threads if reads are slow.
    pub fn work(&self) {
        self.workers.notify_all();
        self.reads();
    }

    /// There is work for one worker.
    pub fn one_worker(&self) {
        self.workers.notify_one();
    }

    /// There are groups to read ahead, if that is worth it.
    pub fn reads(&self) {
        if self.reads_are_slow() {
            self.readers.notify_all();
        }
    }

    /// Everybody looks around: the engine ends.
    pub fn everybody(&self) {
        self.workers.notify_all();
        self.readers.notify_all();
    }

    /// Memory came back. Called from drops, so it takes no lock.
    pub fn memory(&self) {
        self.memory_back.store(true, Release);
        if self.starving.load(Acquire) {
            self.workers.notify_one();
        }
    }

    /// Lets jobs try again if memory came back since the last call.
    pub fn look_for_memory(&self, state: &mut State) {
        if self.memory_back.swap(false, Acquire) {
            state.unstarve();
        }
    }

    /// A worker sleeps until there may be work.
    pub fn sleep_as_worker(&self, state: &mut MutexGuard<'_, State>) {
        let starving = state.any_starved();
        self.starving.store(starving, Release);
        if !starving {
            self.workers.wait(state);
        } else if self.workers.wait_for(state, STARVED_NAP).timed_out() {
            state.unstarve();
        }
    }

    /// An I/O thread sleeps until there may be something to read ahead.
    pub fn sleep_as_reader(&self, state: &mut MutexGuard<'_, State>) {
        self.readers.wait(state);
    }

    /// True if reads are worth doing ahead, by other threads.
    #[must_use]
    pub fn reads_are_slow(&self) -> bool {
        self.slept_ns.load(Relaxed) >= SLOW_READ_NS
    }

    /// How reads are put together. As long as too little is known, as for slow storage, where a wrong guess costs most.
    #[must_use]
    pub fn spacing(&self) -> Spacing {
        let is_fast = self.n_read.load(Relaxed) >= JUDGED_READS && !self.reads_are_slow();
        if is_fast { Spacing::FAST } else { Spacing::SLOW }
    }

    /// Notes how long reading a group made its thread sleep, as a running mean over about sixteen groups.
    pub fn note_read(&self, read: &SleepMeter) {
        let slept = u64::try_from(read.slept().as_nanos()).unwrap_or(u64::MAX / 2);
        let old = self.slept_ns.load(Relaxed);
        self.slept_ns.store(old - old / 16 + slept / 16, Relaxed);
        self.n_read.fetch_add(1, Relaxed);
    }
}

/// Measures whether something made this thread sleep. Time alone does not tell: on a busy machine every read takes long.
pub struct SleepMeter {
    start: Instant,
    switches: i64,
}

impl SleepMeter {
    /// Starts now.
    #[must_use]
    pub fn start() -> Self {
        Self { start: Instant::now(), switches: voluntary_switches() }
    }

    /// Time since the start, if the thread went to sleep by itself since, else 0.
    fn slept(&self) -> Duration {
        if voluntary_switches() > self.switches { self.start.elapsed() } else { Duration::ZERO }
    }
}

/// How often this thread gave up its processor by itself.
fn voluntary_switches() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.voluntary_context_switches())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_reads_are_slow_and_busy_ones_are_not() {
        let wake = Wake::default();
        let read = SleepMeter::start();
        let until = Instant::now() + Duration::from_millis(20);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        wake.note_read(&read);
        assert!(!wake.reads_are_slow());
        for _ in 0..8 {
            let read = SleepMeter::start();
            std::thread::sleep(Duration::from_millis(2));
            wake.note_read(&read);
        }
        assert!(wake.reads_are_slow());
    }
}
