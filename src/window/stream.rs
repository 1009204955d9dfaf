//! Telling readers that go through an epoch from those that jump.
//!
//! An open either continues a stream, and then the whole window is worth assembling, or it is isolated, and then only its own
//! batch is. It continues a stream if it is the first batch of a window, or *near* a recently opened one: loader workers and
//! ranks open names slightly out of order, or with a constant step. If most recent opens of a pass are not near any other
//! (a loader that shuffles names), every open of the pass counts as isolated until that changes.
//!
//! From the windows that a stream enters follows the one it will enter next: the step between the last two, one at
//! first, and past the end the same place in the next epoch.
//!
//! Where names told that hosts share the epochs, each open also tells its host, and as long as all opens of a pass are of one host,
//! the pass is read by that host's list: its next window is known exactly, and of the windows at the end, which
//! hosts deal in runs, only the host's run is assembled.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use super::BatchId;
use crate::order::{Pass, RankPolicy, Runs};

/// Opens that are compared with a new one.
const RECENT: usize = 16;

/// Distance in batches that counts as near: eight loader workers step back by at most fifteen names, but one of the
/// last sixteen opens is then closer than this.
const NEAR: u64 = 8;

/// Opens over which near and far ones are counted.
const JUDGED: usize = 32;

/// A pass that nobody opened for this many opens of other passes is abandoned.
const ABANDONED_OPENS: u64 = 256;

/// What an open asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Its own batch only.
    Batch,
    /// The whole window.
    Window,
}

/// Where an opened batch lies in its pass.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its window.
    pub window: u64,
    /// The batches of that window.
    pub batches: Range<u64>,
    /// Windows of the pass.
    pub n_windows: u64,
    /// Batches of the pass.
    pub n_batches: u64,
    /// Batches of a full window.
    pub window_batches: u64,
    /// What hosts do not deal by whole windows, see [`Streams::hosts`].
    pub runs: Runs,
}

/// The host that reads a pass, where its batches are dealt among several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host {
    /// Its number.
    pub index: u64,
    /// How many there are.
    pub n_hosts: u64,
}

/// What is known after an open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// What to assemble if the batch is not there.
    pub scope: Scope,
    /// The window that the stream will enter next, if this open is part of a stream.
    pub next_window: Option<(Pass, u64)>,
    /// The window after that, if it is in the same pass.
    pub after_next: Option<u64>,
    /// Who reads the pass, if it is one host of several.
    pub host: Option<Host>,
    /// True if with this open the pass was found to be read out of order.
    pub began_jumping: bool,
}

/// Recent opens of all passes.
#[derive(Debug)]
pub struct Streams {
    passes: HashMap<Pass, PassStream>,
    clock: u64,
    near: u64,
    /// Hosts among which windows are dealt, as far as names told, and how.
    hosts: (u32, RankPolicy),
}

#[derive(Debug)]
struct PassStream {
    recent: VecDeque<u64>,
    judged: VecDeque<bool>,
    last_step: i64,
    window: Option<u64>,
    window_step: u64,
    /// True once the step was seen, and is no guess any more.
    knows_step: bool,
    last_open: u64,
    jumping: bool,
    /// The host of the last open.
    host: Option<u64>,
    /// True once opens of several hosts were seen.
    many_hosts: bool,
}

impl Streams {
    /// `world_size`: number of ranks that are expected to read side by side, if known.
    #[must_use]
    pub fn new(world_size: Option<u32>) -> Self {
        let near = NEAR.max(u64::from(world_size.unwrap_or(0)));
        Self { passes: HashMap::new(), clock: 0, near, hosts: (1, RankPolicy::Drop) }
    }

    /// Somebody named a directory of one of `n_hosts` hosts: the first guess about the step from window to window.
    pub fn expect_hosts(&mut self, n_hosts: u32, policy: RankPolicy) {
        self.hosts = (n_hosts.max(1), policy);
    }

    /// Hosts among which the epochs are dealt, as far as names told, and how; one host if none did.
    #[must_use]
    pub fn hosts(&self) -> (u32, RankPolicy) {
        self.hosts
    }

    /// Notes an open of `id`, which lies at `place`.
    pub fn opened(&mut self, id: BatchId, place: &Place) -> Seen {
        self.clock += 1;
        let (clock, distance, n_hosts) = (self.clock, self.near, u64::from(self.hosts.0));
        // A new epoch is read as the last one was: a host keeps its step.
        let last = self.passes.values().filter(|p| p.knows_step).max_by_key(|p| p.last_open);
        let step = last.map_or(n_hosts, |p| p.window_step);
        let many_hosts = self.passes.values().max_by_key(|p| p.last_open).is_some_and(|p| p.many_hosts);
        let pass = self.passes.entry(id.pass).or_insert_with(|| PassStream { many_hosts, ..PassStream::new(step) });
        pass.last_open = clock;
        let last_host = pass.host.map(|index| Host { index, n_hosts });
        let index = last_host.filter(|&host| place.is_in_run(host, id.batch)).map(|host| host.index);
        let index = index.or_else(|| place.host_of(id.batch, n_hosts));
        let host = index.and_then(|index| pass.note_host(index)).filter(|_| n_hosts > 1);
        let host = host.map(|index| Host { index, n_hosts });
        let near = pass.note(id.batch, distance);
        let was_jumping = pass.jumping;
        pass.jumping = pass.is_jumping();
        let first = place.batches.clone().find(|&batch| place.is_for(host, batch));
        let first = first == Some(id.batch);
        let scope = if (first || near) && !pass.jumping { Scope::Window } else { Scope::Batch };
        let next_window = (scope == Scope::Window).then(|| pass.next_window(id.pass, place, host)).flatten();
        let after_next = next_window.filter(|&(next, _)| next == id.pass).and_then(|(_, window)| match host {
            Some(host) => Place { window, ..place.clone() }.window_after(host),
            None => Some(window + pass.window_step).filter(|&window| window < place.n_windows),
        });
        Seen { scope, next_window, after_next, host, began_jumping: pass.jumping && !was_jumping }
    }

    /// True if a batch of `pass` was ever opened.
    #[must_use]
    pub fn is_read(&self, pass: Pass) -> bool {
        self.passes.contains_key(&pass)
    }

    /// True if the readers of `pass` seem to have gone: others opened many batches since.
    #[must_use]
    pub fn is_abandoned(&self, pass: Pass) -> bool {
        // A pass without any open is a guess about the next epoch: not abandoned as long as anything is read at all.
        self.passes.get(&pass).is_some_and(|p| self.clock - p.last_open > ABANDONED_OPENS)
    }

    /// Passes that are read out of order.
    pub fn jumping(&self) -> impl Iterator<Item = Pass> {
        self.passes.iter().filter(|(_, p)| p.jumping).map(|(&pass, _)| pass)
    }
}

impl Place {
    /// The host of `n_hosts` that `batch` of this pass belongs to; `None` if the batch is not dealt.
    fn host_of(&self, batch: u64, n_hosts: u64) -> Option<u64> {
        match batch.checked_sub(self.runs.first) {
            Some(in_runs) => in_runs.checked_div(self.runs.len).filter(|&host| host < n_hosts),
            None => Some(self.window % n_hosts),
        }
    }

    /// True if `batch` is in the run of `host`, which may go on with the first batches of the pass.
    fn is_in_run(&self, host: Host, batch: u64) -> bool {
        self.runs.position(host.index, batch, self.n_batches).is_some()
    }

    /// True if `batch` of this window is assembled for `host`: whole windows are, of the others only the host's run. For nobody in
    /// particular, all are.
    #[must_use]
    pub fn is_for(&self, host: Option<Host>, batch: u64) -> bool {
        host.is_none_or(|host| self.host_of(batch, host.n_hosts) == Some(host.index) || self.is_in_run(host, batch))
    }

    /// The window that follows in `host`'s list of the pass; `None` at its end.
    fn window_after(&self, host: Host) -> Option<u64> {
        let first_of_runs = self.runs.first / self.window_batches;
        let run_start = self.runs.start(host.index);
        let (first, end) = (run_start / self.window_batches, (run_start + self.runs.len).div_ceil(self.window_batches));
        let next = match self.window + host.n_hosts {
            _ if self.window >= first_of_runs => self.window + 1,
            // Where a run goes on with the first batches of the pass, the list ends.
            _ if self.window % host.n_hosts != host.index => return None,
            by_window if by_window < first_of_runs => return Some(by_window),
            _ => first,
        };
        (self.runs.len > 0 && next < end.min(self.n_windows)).then_some(next)
    }

    /// The window that `host`'s list of a pass like this begins with.
    fn first_window(&self, host: Host) -> u64 {
        if self.runs.first == 0 { self.runs.start(host.index) / self.window_batches } else { host.index }
    }
}

impl PassStream {
    fn new(window_step: u64) -> Self {
        Self {
            recent: VecDeque::with_capacity(RECENT),
            judged: VecDeque::with_capacity(JUDGED),
            last_step: 0,
            window: None,
            window_step,
            knows_step: false,
            last_open: 0,
            jumping: false,
            host: None,
            many_hosts: false,
        }
    }

    /// Notes the host of an open. Returns it as long as there was no other.
    fn note_host(&mut self, host: u64) -> Option<u64> {
        self.many_hosts |= self.host.replace(host).is_some_and(|before| before != host);
        (!self.many_hosts).then_some(host)
    }

    /// Notes an open; true if it is near a recent one, or the last step repeated.
    fn note(&mut self, batch: u64, distance: u64) -> bool {
        let Some(&last) = self.recent.back() else {
            self.recent.push_back(batch);
            return false;
        };
        let step = i64::try_from(batch).unwrap_or(i64::MAX) - i64::try_from(last).unwrap_or(i64::MAX);
        let near = self.recent.iter().any(|&b| b.abs_diff(batch) <= distance) || (step != 0 && step == self.last_step);
        // Opening the same batch again says nothing about a stream.
        if step != 0 {
            self.last_step = step;
            push(&mut self.recent, batch, RECENT);
            push(&mut self.judged, near, JUDGED);
        }
        near
    }

    fn is_jumping(&self) -> bool {
        let far = self.judged.iter().filter(|&&near| !near).count();
        far >= 4 && far * 2 > self.judged.len()
    }

    fn next_window(&mut self, pass: Pass, place: &Place, host: Option<Host>) -> Option<(Pass, u64)> {
        let window = place.window;
        if let Some(host) = host {
            return match (place.window_after(host), pass) {
                (Some(next), _) => Some((pass, next)),
                (None, Pass::Epoch(epoch)) => Some((Pass::Epoch(epoch + 1), place.first_window(host))),
                (None, Pass::InOrder) => None,
            };
        }
        match self.window {
            // A step forward shows the stride; falling back to a window just left does not.
            Some(before) if window > before => {
                self.window_step = window - before;
                self.knows_step = true;
                self.window = Some(window);
            }
            Some(before) if before - window <= 1 => {}
            _ => self.window = Some(window),
        }
        let current = self.window.unwrap_or(window);
        let next = current + self.window_step;
        if next < place.n_windows {
            return Some((pass, next));
        }
        match pass {
            Pass::Epoch(epoch) => Some((Pass::Epoch(epoch + 1), current % self.window_step)),
            Pass::InOrder => None,
        }
    }
}

fn push<T>(queue: &mut VecDeque<T>, item: T, limit: usize) {
    if queue.len() == limit {
        queue.pop_front();
    }
    queue.push_back(item);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens `batches` of epoch 0 with 64 batches per window and 10 windows, of which hosts deal the last ones in runs if they do not
    /// make whole rounds.
    fn run(streams: &mut Streams, batches: impl IntoIterator<Item = u64>) -> Vec<Seen> {
        let n_hosts = u64::from(streams.hosts().0);
        let first = 10 / n_hosts * n_hosts * 64;
        run_as(streams, (640, 64), Runs { first, len: (640 - first) / n_hosts }, batches)
    }

    /// Opens `batches` of an epoch of `n_batches` in windows of `window_batches`.
    fn run_as(
        streams: &mut Streams,
        (n_batches, window_batches): (u64, u64),
        runs: Runs,
        batches: impl IntoIterator<Item = u64>,
    ) -> Vec<Seen> {
        let open = |batch: u64| {
            let window = batch / window_batches;
            let end = (window * window_batches + window_batches).min(n_batches);
            let batches = window * window_batches..end;
            let n_windows = n_batches.div_ceil(window_batches);
            let id = BatchId { pass: Pass::Epoch(0), batch };
            streams.opened(id, &Place { window, batches, n_windows, n_batches, window_batches, runs })
        };
        batches.into_iter().map(open).collect()
    }

    #[test]
    fn reading_in_order_is_a_stream() {
        let seen = run(&mut Streams::new(None), 0..640);
        assert!(seen.iter().all(|s| s.scope == Scope::Window));
        assert_eq!(seen[0].next_window, Some((Pass::Epoch(0), 1)));
        assert_eq!((seen[0].after_next, seen[500].after_next, seen[550].after_next), (Some(2), Some(9), None));
        assert_eq!(seen[639].next_window, Some((Pass::Epoch(1), 0)));
    }

    #[test]
    fn one_open_in_the_middle_is_isolated_and_its_neighbour_is_not() {
        let seen = run(&mut Streams::new(None), [200, 201]);
        assert_eq!((seen[0].scope, seen[0].next_window), (Scope::Batch, None));
        assert_eq!(seen[1].scope, Scope::Window);
    }

    #[test]
    fn workers_out_of_order_are_a_stream() {
        // Eight workers, each up to fifteen names late.
        let order = (0..320_u64).map(|i| i ^ 7).collect::<Vec<_>>();
        let seen = run(&mut Streams::new(None), order);
        assert!(seen[8..].iter().all(|s| s.scope == Scope::Window));
        assert_eq!(seen[319].next_window, Some((Pass::Epoch(0), 5)));
    }

    #[test]
    fn a_distant_rank_is_a_stream() {
        let seen = run(&mut Streams::new(None), (0..20).map(|i| 17 + 32 * i));
        assert!(seen[2..].iter().all(|s| s.scope == Scope::Window), "{seen:?}");
        let seen = run(&mut Streams::new(Some(32)), (0..20).map(|i| 17 + 32 * i));
        assert!(seen[1..].iter().all(|s| s.scope == Scope::Window));
    }

    #[test]
    fn shuffled_names_are_isolated_and_said_once() {
        // A fixed permutation of 640 with large steps that never repeat.
        let order: Vec<u64> = (0..320_u64).map(|i| i * i * 277 % 641 % 640).collect();
        let seen = run(&mut Streams::new(None), order);
        assert_eq!(seen.iter().filter(|s| s.began_jumping).count(), 1);
        assert!(seen[20..].iter().filter(|s| s.scope == Scope::Window).count() < 30);
    }

    #[test]
    fn a_host_skips_the_windows_of_others() {
        let batches = (0..5).flat_map(|i| (2 * i + 1) * 64..(2 * i + 2) * 64);
        let seen = run(&mut Streams::new(None), batches);
        assert_eq!(seen[0].next_window, Some((Pass::Epoch(0), 2)), "the first guess");
        assert_eq!(seen[64].next_window, Some((Pass::Epoch(0), 5)));
        assert_eq!(seen[319].next_window, Some((Pass::Epoch(1), 1)));
    }

    #[test]
    fn a_host_that_is_known_by_name_is_guessed_right_at_once() {
        let mut streams = Streams::new(None);
        streams.expect_hosts(2, RankPolicy::Drop);
        let seen = run(&mut streams, 64..65);
        assert_eq!(seen[0].next_window, Some((Pass::Epoch(0), 3)));
    }

    #[test]
    fn a_hosts_list_is_followed_to_its_end() {
        // Windows 0-8 are dealt whole to three hosts, window 9 in runs of 21 batches.
        let mut streams = Streams::new(None);
        streams.expect_hosts(3, RankPolicy::Drop);
        let seen = run(&mut streams, (128..192).chain(320..384).chain(512..576).chain(618..639));
        let host = Some(Host { index: 2, n_hosts: 3 });
        assert!(seen.iter().all(|s| s.scope == Scope::Window && s.host == host));
        let next: Vec<_> = [0, 64, 128, 192].iter().map(|&i| seen[i].next_window.unwrap()).collect();
        let epoch = Pass::Epoch;
        assert_eq!(next, [(epoch(0), 5), (epoch(0), 8), (epoch(0), 9), (epoch(1), 2)]);
    }

    #[test]
    fn a_run_that_begins_again_is_still_its_hosts() {
        // As in the tests of `order::share`: four hosts, 18 batches in windows of 3, repeat: host 3 has 9, 10, 11, 0, 1.
        let mut streams = Streams::new(None);
        streams.expect_hosts(4, RankPolicy::Repeat);
        let seen = run_as(&mut streams, (18, 3), Runs { first: 12, len: 2 }, [9, 10, 11, 0, 1]);
        let host = Some(Host { index: 3, n_hosts: 4 });
        assert!(seen.iter().all(|s| s.host == host), "{seen:?}");
        let next = [seen[0].next_window, seen[3].next_window];
        assert_eq!(next, [Some((Pass::Epoch(1), 3)); 2], "its run has no window of its own");
        let place = |window| Place {
            window,
            batches: 3 * window..3 * window + 3,
            n_windows: 6,
            n_batches: 18,
            window_batches: 3,
            runs: Runs { first: 12, len: 2 },
        };
        assert_eq!((0..3).map(|batch| place(0).is_for(host, batch)).collect::<Vec<_>>(), [true, true, false]);
        assert!((9..12).all(|batch| place(3).is_for(host, batch)));
    }

    #[test]
    fn with_more_hosts_than_batches_a_whole_epoch_is_read_as_ever() {
        let mut streams = Streams::new(None);
        streams.expect_hosts(64, RankPolicy::Drop);
        let seen = run_as(&mut streams, (62, 6), Runs { first: 0, len: 0 }, 0..13);
        assert!(seen.iter().all(|s| s.host.is_none() && s.scope == Scope::Window));
        // The first guess is that of a host; from the second window on the step is known.
        assert_eq!(seen[6].next_window, Some((Pass::Epoch(0), 2)));
    }

    #[test]
    fn hosts_that_read_side_by_side_are_one_stream() {
        let mut streams = Streams::new(None);
        streams.expect_hosts(2, RankPolicy::Drop);
        let seen = run(&mut streams, (0..64).flat_map(|i| [i, 64 + i]));
        assert!(seen[1..].iter().all(|s| s.host.is_none()));
    }

    #[test]
    fn an_epoch_left_behind_is_abandoned() {
        let mut streams = Streams::new(None);
        run(&mut streams, 0..3);
        for batch in 0..=ABANDONED_OPENS {
            assert!(!streams.is_abandoned(Pass::Epoch(0)));
            let runs = Runs { first: 1000, len: 0 };
            let (batches, n_batches) = (0..1000, 1000);
            let place = Place { window: 0, batches, n_windows: 1, n_batches, window_batches: 1000, runs };
            streams.opened(BatchId { pass: Pass::Epoch(5), batch }, &place);
        }
        assert!(streams.is_abandoned(Pass::Epoch(0)));
        assert!(!streams.is_abandoned(Pass::Epoch(5)));
    }
}
