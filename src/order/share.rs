//! Shares of an epoch: what `rank-r-of-R`, `host-h-of-H` and `host-h-of-H/rank-r-of-R` list.
//!
//! A share is a rule for picking from the one list of batches; it never changes which rows form a batch. Ranks deal that list
//! batch by batch. Hosts deal whole windows as long as there are enough for a round, and of what is left each takes one run of
//! neighbours: batches of one window need the same chunks, so hosts that shared a window batch by batch would both read all of it.
//! A rank below a host deals the host's list by position. Every rule is arithmetic: nothing is listed.

use super::RankPolicy;
use super::error::OrderError;

/// A directory's share of an epoch: `host-h-of-H`, `rank-r-of-R`, both, or everything (the default).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Share {
    host: Option<(u32, u32)>,
    rank: Option<(u32, u32)>,
}

impl Share {
    /// The whole epoch.
    pub const ALL: Self = Self { host: None, rank: None };

    /// The share of `host` = (h, H) and `rank` = (r, R).
    ///
    /// # Errors
    /// [`OrderError::NoSuchShare`] unless h < H and r < R.
    pub fn new(host: Option<(u32, u32)>, rank: Option<(u32, u32)>) -> Result<Self, OrderError> {
        for (kind, part) in [("host", host), ("rank", rank)] {
            if let Some((index, parts)) = part.filter(|(index, parts)| index >= parts) {
                return Err(OrderError::NoSuchShare { kind, index, parts });
            }
        }
        Ok(Self { host, rank })
    }

    /// The host's number and the number of hosts.
    #[must_use]
    pub fn host(self) -> Option<(u32, u32)> {
        self.host
    }

    /// The rank's number and the number of ranks (of the host, if there is one).
    #[must_use]
    pub fn rank(self) -> Option<(u32, u32)> {
        self.rank
    }
}

/// The batches of one pass, ready to be dealt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deck {
    /// All batches.
    pub n_batches: u64,
    /// Those with `batch_size` rows: all, or all but the last.
    pub n_full: u64,
    /// Batches of a window.
    pub window_batches: u64,
}

impl Deck {
    /// Number of batches of the share.
    pub(super) fn len(self, share: Share, policy: RankPolicy) -> u64 {
        let host = self.host_list(share, policy);
        match share.rank {
            Some(part) => Rounds::new(self.rank_counts(host), part, policy).n_rounds,
            None => host.map_or(self.n_batches, |host| host.len()),
        }
    }

    /// The `i`-th batch of the share, for `i` below its length.
    pub(super) fn batch(self, share: Share, policy: RankPolicy, i: u64) -> u64 {
        let host = self.host_list(share, policy);
        let i = share.rank.map_or(i, |part| Rounds::new(self.rank_counts(host), part, policy).item(i));
        host.map_or(i, |host| host.batch(i))
    }

    /// The inverse: where `batch` stands in the share.
    pub(super) fn position(self, share: Share, policy: RankPolicy, batch: u64) -> Option<u64> {
        if batch >= self.n_batches {
            return None;
        }
        let host = self.host_list(share, policy);
        let i = host.map_or(Some(batch), |host| host.position(batch))?;
        share.rank.map_or(Some(i), |part| Rounds::new(self.rank_counts(host), part, policy).position(i))
    }

    /// (all, full) batches of the list that ranks deal. With `drop` a host's list has full batches only; with `repeat` all
    /// are dealt, full or not.
    fn rank_counts(self, host: Option<HostList>) -> (u64, u64) {
        host.map_or((self.n_batches, self.n_full), |host| (host.len(), host.len()))
    }

    /// What `n_hosts` hosts deal behind the windows that make whole rounds.
    pub(super) fn runs(self, n_hosts: u32, policy: RankPolicy) -> Runs {
        let n_hosts = u64::from(n_hosts.max(1));
        let round = self.window_batches * n_hosts;
        let first = self.n_full / round * round;
        Runs { first, len: each((self.n_batches - first, self.n_full - first), n_hosts, policy) }
    }

    fn host_list(self, share: Share, policy: RankPolicy) -> Option<HostList> {
        share.host.map(|(host, n_hosts)| HostList {
            deck: self,
            host: u64::from(host),
            n_hosts: u64::from(n_hosts),
            runs: self.runs(n_hosts, policy),
        })
    }
}

/// The batches at the end of a pass that hosts do not deal by whole windows: one run of neighbours for each host, all equally long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runs {
    /// The first batch of the first host's run.
    pub first: u64,
    /// Batches of a run.
    pub len: u64,
}

impl Runs {
    /// Where the run of `host` begins. Counted on beyond the last batch, where the pass's first batches repeat.
    #[must_use]
    pub fn start(self, host: u64) -> u64 {
        self.first + host * self.len
    }

    /// The place of `batch` in the run of `host`, in a pass of `n_batches`.
    #[must_use]
    pub fn position(self, host: u64, batch: u64, n_batches: u64) -> Option<u64> {
        // A run is no longer than the pass, so it holds a batch once at most.
        let start = self.start(host).checked_rem(n_batches)?;
        Some((batch + n_batches - start) % n_batches).filter(|&i| i < self.len)
    }
}

/// How many of the (all, full) items everyone gets.
fn each((n_items, n_full): (u64, u64), parts: u64, policy: RankPolicy) -> u64 {
    match policy {
        RankPolicy::Drop => n_full / parts,
        RankPolicy::Repeat => n_items.div_ceil(parts),
    }
}

/// Items 0, 1, ... dealt one by one, in rounds that give everyone one item.
#[derive(Debug, Clone, Copy)]
struct Rounds {
    n_items: u64,
    part: u64,
    parts: u64,
    n_rounds: u64,
}

impl Rounds {
    fn new(counts: (u64, u64), (part, parts): (u32, u32), policy: RankPolicy) -> Self {
        let (part, parts) = (u64::from(part), u64::from(parts));
        Self { n_items: counts.0, part, parts, n_rounds: each(counts, parts, policy) }
    }

    /// What is dealt in round `i`, counted on beyond the last item.
    fn dealt(self, i: u64) -> u64 {
        i * self.parts + self.part
    }

    /// What is dealt in round `i`, where the list begins again after its last item.
    fn item(self, i: u64) -> u64 {
        self.dealt(i) % self.n_items
    }

    /// The round that deals `item` without beginning again.
    fn ordinary_round(self, item: u64) -> Option<u64> {
        (item % self.parts == self.part && item / self.parts < self.n_rounds).then_some(item / self.parts)
    }

    /// The last round, if it deals an item beyond the last one: which.
    fn beyond(self) -> Option<(u64, u64)> {
        let last = self.n_rounds.checked_sub(1)?;
        (self.dealt(last) >= self.n_items).then(|| (last, self.dealt(last)))
    }

    fn position(self, item: u64) -> Option<u64> {
        let repeated = || self.beyond().filter(|(_, dealt)| dealt % self.n_items == item).map(|(last, _)| last);
        self.ordinary_round(item).or_else(repeated)
    }
}

/// The batches of one host.
#[derive(Debug, Clone, Copy)]
struct HostList {
    deck: Deck,
    host: u64,
    n_hosts: u64,
    runs: Runs,
}

impl HostList {
    /// Batches that come from whole windows.
    fn by_window(self) -> u64 {
        self.runs.first / self.n_hosts
    }

    fn len(self) -> u64 {
        self.by_window() + self.runs.len
    }

    fn batch(self, i: u64) -> u64 {
        let window_batches = self.deck.window_batches;
        match i.checked_sub(self.by_window()) {
            None => (i / window_batches * self.n_hosts + self.host) * window_batches + i % window_batches,
            Some(i) => (self.runs.start(self.host) + i) % self.deck.n_batches,
        }
    }

    fn position(self, batch: u64) -> Option<u64> {
        let window_batches = self.deck.window_batches;
        let window = batch / window_batches;
        if batch < self.runs.first && window % self.n_hosts == self.host {
            return Some(window / self.n_hosts * window_batches + batch % window_batches);
        }
        self.runs.position(self.host, batch, self.deck.n_batches).map(|i| self.by_window() + i)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(deck: Deck, host: Option<(u32, u32)>, rank: Option<(u32, u32)>, policy: RankPolicy) -> Vec<u64> {
        let share = Share::new(host, rank).unwrap();
        (0..deck.len(share, policy)).map(|i| deck.batch(share, policy, i)).collect()
    }

    #[test]
    fn ranks_deal_whole_rounds() {
        let deck = Deck { n_batches: 11, n_full: 10, window_batches: 3 };
        let ranks = |policy| (0..4).map(|r| list(deck, None, Some((r, 4)), policy)).collect::<Vec<_>>();
        assert_eq!(ranks(RankPolicy::Drop), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(ranks(RankPolicy::Repeat), [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 0]]);
        assert_eq!(list(deck, None, None, RankPolicy::Drop), (0..11).collect::<Vec<_>>());
        assert_eq!(list(deck, None, Some((0, 1)), RankPolicy::Drop), (0..10).collect::<Vec<_>>());
        assert_eq!(list(deck, None, Some((0, 1)), RankPolicy::Repeat), (0..11).collect::<Vec<_>>());
    }

    #[test]
    fn hosts_deal_windows_then_runs() {
        // Windows of 3: 0-2, 3-5, 6-8, 9-11, 12-14, and 15-17 of which 17 is short.
        let deck = Deck { n_batches: 18, n_full: 17, window_batches: 3 };
        let hosts = |policy| (0..2).map(|h| list(deck, Some((h, 2)), None, policy)).collect::<Vec<_>>();
        assert_eq!(hosts(RankPolicy::Drop), [vec![0, 1, 2, 6, 7, 8, 12, 13], vec![3, 4, 5, 9, 10, 11, 14, 15]]);
        assert_eq!(
            hosts(RankPolicy::Repeat),
            [vec![0, 1, 2, 6, 7, 8, 12, 13, 14], vec![3, 4, 5, 9, 10, 11, 15, 16, 17]]
        );
        let hosts: Vec<_> = (0..4).map(|h| list(deck, Some((h, 4)), None, RankPolicy::Repeat)).collect();
        assert_eq!(hosts, [[0, 1, 2, 12, 13], [3, 4, 5, 14, 15], [6, 7, 8, 16, 17], [9, 10, 11, 0, 1]]);
    }

    #[test]
    fn ranks_divide_a_hosts_list_by_position() {
        let deck = Deck { n_batches: 18, n_full: 17, window_batches: 3 };
        let ranks = |policy| (0..3).map(|r| list(deck, Some((1, 2)), Some((r, 3)), policy)).collect::<Vec<_>>();
        assert_eq!(ranks(RankPolicy::Drop), [[3, 9], [4, 10], [5, 11]]);
        assert_eq!(ranks(RankPolicy::Repeat), [[3, 9, 15], [4, 10, 16], [5, 11, 17]]);
        let wide: Vec<_> = (0..5).map(|r| list(deck, Some((1, 2)), Some((r, 5)), RankPolicy::Repeat)).collect();
        assert_eq!(wide, [[3, 11], [4, 15], [5, 16], [9, 17], [10, 3]]);
    }

    #[test]
    fn more_ranks_than_batches() {
        let deck = Deck { n_batches: 2, n_full: 1, window_batches: 3 };
        assert_eq!(list(deck, None, Some((1, 5)), RankPolicy::Drop), [0_u64; 0]);
        let repeated: Vec<_> = (0..5).map(|r| list(deck, None, Some((r, 5)), RankPolicy::Repeat)).collect();
        assert_eq!(repeated, [[0], [1], [0], [1], [0]]);
    }

    #[test]
    fn shares_that_do_not_exist_are_refused() {
        assert!(Share::new(None, Some((0, 0))).is_err());
        assert!(Share::new(Some((2, 2)), None).is_err());
        let refused = Share::new(Some((0, 1)), Some((4, 4))).unwrap_err();
        assert_eq!(refused.to_string(), "rank-4-of-4 does not exist: there are 4, counted from 0");
        assert_eq!(Share::new(None, None), Ok(Share::ALL));
    }
}
