//! Loop threads answer on the CPU of the reader.
//!
//! A direct read is a conversation of two threads, of which one sleeps while the other works: the reader asks, a loop thread
//! copies, the reader goes on; a batch of 4 MiB takes five such turns. Left to itself the scheduler puts the two on two CPUs, so
//! that every turn has to wake a CPU that just went to sleep, and the copy ends up in the cache of the wrong one. On one CPU a
//! turn is a task switch, the reader finds its bytes in the nearest cache, and no parallelism is lost, because a thread that waits
//! for its read computes nothing. Measured (docs/PERFORMANCE.md): 1.3 times the rate where nothing has to be decompressed.
//!
//! It helps one reader only: a loop thread cannot choose whose request it gets next. So loop threads move to a reader's CPU
//! after [`IN_A_ROW`] reads by that thread alone, look from time to time where it is now, and are free to run anywhere as soon as
//! another thread reads, or the reader turns out not to wait for its reads (asynchronous I/O).

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Reads by one thread, with none by another in between, after which it counts as the only reader: several batches.
const IN_A_ROW: u32 = 32;
/// How long the CPU of a reader is believed, in microseconds. A look takes 10 to 20.
const BELIEVED_US: u64 = 4_000;
/// No CPU in particular.
const ANY: i32 = -1;

thread_local! {
    /// The CPU that this thread is bound to.
    static BOUND_TO: Cell<i32> = const { Cell::new(ANY) };
}

/// Who reads, and where. One per mount; used without a lock, since a wrong choice costs only time.
pub(super) struct Follow {
    /// The CPUs that this process may use. Without them nothing is ever bound.
    allowed: Option<CpuSet>,
    began: Instant,
    reader: AtomicU32,
    in_a_row: AtomicU32,
    cpu: AtomicI32,
    looked_us: AtomicU64,
    /// Set if the last look found that the reader did not wait.
    ran: AtomicBool,
}

impl Follow {
    /// Nobody reads yet.
    pub fn new() -> Self {
        Self {
            allowed: sched_getaffinity(Pid::from_raw(0)).ok(),
            began: Instant::now(),
            reader: AtomicU32::new(0),
            in_a_row: AtomicU32::new(0),
            cpu: AtomicI32::new(ANY),
            looked_us: AtomicU64::new(0),
            ran: AtomicBool::new(false),
        }
    }

    /// A loop thread is about to answer a read of the thread `tid`, or of nobody who waits for it: moves the loop thread to where it
    /// should do that.
    pub fn answer(&self, tid: Option<u32>) {
        let now_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        // Readers of another process namespace have the number 0.
        self.bind(self.choose(tid.unwrap_or(0), now_us, waits_on));
    }

    /// A loop thread is about to answer something else that the thread `tid` asks: it is free to run anywhere, unless that is the reader.
    pub fn answer_other(&self, tid: u32) {
        if self.reader.load(Relaxed) != tid {
            self.bind(ANY);
        }
    }

    /// The CPU that the loop threads should be bound to; `tid` is 0 if nobody knows who reads. `waits_on`: the CPU of a thread that sleeps.
    fn choose(&self, tid: u32, now_us: u64, waits_on: impl FnOnce(u32) -> Option<i32>) -> i32 {
        if tid == 0 || self.reader.swap(tid, Relaxed) != tid {
            self.in_a_row.store(0, Relaxed);
            self.cpu.store(ANY, Relaxed);
            return ANY;
        }
        let in_a_row = self.in_a_row.load(Relaxed);
        if in_a_row < IN_A_ROW {
            self.in_a_row.store(in_a_row + 1, Relaxed);
            return ANY;
        }
        if in_a_row == IN_A_ROW || now_us.saturating_sub(self.looked_us.load(Relaxed)) >= BELIEVED_US {
            self.in_a_row.store(IN_A_ROW + 1, Relaxed);
            self.looked_us.store(now_us, Relaxed);
            let found = waits_on(tid).filter(|&cpu| self.may_use(cpu));
            let ran_before = self.ran.swap(found.is_none(), Relaxed);
            // Once is no proof: the reader may have asked, and not have gone to sleep yet.
            if found.is_some() || ran_before {
                self.cpu.store(found.unwrap_or(ANY), Relaxed);
            }
        }
        self.cpu.load(Relaxed)
    }

    fn may_use(&self, cpu: i32) -> bool {
        let number = usize::try_from(cpu).ok();
        number.zip(self.allowed.as_ref()).is_some_and(|(number, allowed)| allowed.is_set(number).unwrap_or(false))
    }

    /// Binds this thread to a CPU, or frees it.
    fn bind(&self, cpu: i32) {
        let Some(allowed) = &self.allowed else { return };
        if BOUND_TO.get() == cpu {
            return;
        }
        let mut set = CpuSet::new();
        let this_thread = Pid::from_raw(0);
        let bound = match usize::try_from(cpu) {
            Ok(number) => set.set(number).and_then(|()| sched_setaffinity(this_thread, &set)),
            // Where the CPUs of the process have changed since, all of those that there are now: the kernel leaves out the rest.
            Err(_) => sched_setaffinity(this_thread, allowed).or_else(|_| {
                (0..CpuSet::count()).try_for_each(|number| set.set(number))?;
                sched_setaffinity(this_thread, &set)
            }),
        };
        // A refusal (a CPU that went offline) leaves the thread where it was.
        if bound.is_ok() {
            BOUND_TO.set(cpu);
        }
    }
}

/// The CPU that a thread sleeps on; `None` if it runs (fields 3 and 39 of its `stat`, proc(5)).
fn waits_on(tid: u32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{tid}/stat")).ok()?;
    // The second field is a name in parentheses, and may hold anything; the rest starts with field 3.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    fields.next().filter(|&state| state != "R")?;
    fields.nth(39 - 4)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(numbers: std::ops::Range<usize>) -> CpuSet {
        let mut set = CpuSet::new();
        numbers.for_each(|cpu| set.set(cpu).unwrap());
        set
    }

    fn follow() -> Follow {
        Follow { allowed: Some(cpus(0..4)), ..Follow::new() }
    }

    fn read(follow: &Follow, tid: u32, now_us: u64, cpu: i32) -> i32 {
        follow.choose(tid, now_us, |_| Some(cpu))
    }

    /// Reads until the reader `tid` is known to be the only one.
    fn read_alone(follow: &Follow, tid: u32) {
        for _ in 0..=IN_A_ROW {
            assert_eq!(read(follow, tid, 0, 3), ANY);
        }
    }

    #[test]
    fn one_reader_is_followed_and_looked_for_again_after_a_while() {
        let follow = follow();
        read_alone(&follow, 7);
        assert_eq!(read(&follow, 7, 10, 1), 1);
        assert_eq!(read(&follow, 7, 10 + BELIEVED_US - 1, 0), 1, "believed");
        assert_eq!(read(&follow, 7, 10 + BELIEVED_US, 0), 0);
        assert_eq!(read(&follow, 7, 10 + 2 * BELIEVED_US, 4), 0, "a CPU that this process may not use, once");
        assert_eq!(read(&follow, 7, 11 + 2 * BELIEVED_US, 1), 0, "not looked at with every read");
        assert_eq!(read(&follow, 7, 10 + 3 * BELIEVED_US, 1), 1);
        let runs = |_| None;
        assert_eq!(follow.choose(7, 10 + 4 * BELIEVED_US, runs), 1, "it may be about to wait");
        assert_eq!(follow.choose(7, 10 + 5 * BELIEVED_US, runs), ANY, "it does not wait");
        assert_eq!(read(&follow, 7, 10 + 6 * BELIEVED_US, 1), 1);
    }

    #[test]
    fn several_readers_are_not_followed() {
        let follow = follow();
        read_alone(&follow, 7);
        assert_eq!(read(&follow, 7, 0, 2), 2);
        for turn in 0..10 * IN_A_ROW {
            assert_eq!(read(&follow, 8 - turn % 2, 0, 2), ANY);
        }
        read_alone(&follow, 9);
        assert_eq!(read(&follow, 9, 0, 1), 1, "a new reader is looked at, the last one's CPU is not taken for its own");
        for _ in 0..10 * IN_A_ROW {
            assert_eq!(read(&follow, 0, 0, 2), ANY, "nobody knows who");
        }
    }

    #[test]
    fn a_bound_thread_is_where_it_was_told_to_be_and_a_free_one_anywhere() {
        let follow = Follow::new();
        let allowed = follow.allowed.unwrap();
        let here = nix::sched::sched_getcpu().unwrap();
        follow.bind(i32::try_from(here).unwrap());
        assert_eq!(sched_getaffinity(Pid::from_raw(0)).unwrap(), cpus(here..here + 1));
        follow.bind(ANY);
        assert_eq!(sched_getaffinity(Pid::from_raw(0)).unwrap(), allowed);
    }

    #[test]
    fn a_thread_that_sleeps_is_found_and_one_that_runs_is_not() {
        let own = u32::try_from(nix::unistd::gettid().as_raw()).unwrap();
        assert_eq!(waits_on(own), None);
        assert_eq!(waits_on(u32::MAX), None, "no such thread");
        let (sender, tid) = std::sync::mpsc::channel();
        let (_held, held) = std::sync::mpsc::channel::<()>();
        std::thread::spawn(move || {
            sender.send(u32::try_from(nix::unistd::gettid().as_raw()).unwrap()).unwrap();
            held.recv()
        });
        let tid = tid.recv().unwrap();
        let found = std::iter::repeat_with(|| waits_on(tid)).take(1_000_000).flatten().next();
        assert!(usize::try_from(found.unwrap()).unwrap() < CpuSet::count());
    }
}
