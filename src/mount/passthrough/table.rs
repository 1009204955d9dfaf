//! Which batch is served how, while anybody has it open; and which files are kept after that.
//!
//! The kernel allows one backing file per inode at a time. It also fails to map a file that was opened for direct I/O while the
//! inode has a backing file, and to open by passthrough an inode of which such a mapping exists. So an inode has **one way at a
//! time**: the first open decides it, opens that come while anybody has the batch open follow, and only when the last release
//! was processed may the next open decide anew. (The kernel forgets an open file before it sends its release.)
//!
//! ```text
//!               begin                 filled                     released by the last
//!     absent ----------> filling -----------------> backed, held <------------------> backed, kept ---evict---> absent
//!                          |   \------------------> direct, held ---released by the last---> absent
//!                          |         fell_back
//!                          \--- failed ---> absent
//! ```
//!
//! Files that nobody holds are kept, and the least recently used one goes first when room is needed. The table is arithmetic only:
//! `I` is the backing file as the kernel numbers it, `W` an open that waits.

use std::collections::{BTreeMap, HashMap};

use crate::view::Ino;

/// Files that are kept at most, held ones included: each costs the kernel about a kilobyte beside its pages.
const MAX_FILES: usize = 32_768;

/// What an open is to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Begin<I, W> {
    /// Nothing: whoever fills the file answers it.
    Queued,
    /// Fill a file, and report with [`Table::filled`], [`Table::fell_back`] or [`Table::failed`].
    Fill(W),
    /// Answer with this file. The open is counted.
    Backed(W, I),
    /// Answer with direct I/O. The open is counted.
    Direct(W),
}

enum Entry<I, W> {
    Filling { waiting: Vec<W> },
    Backed { id: I, size_bytes: u64, n_open: u64, last_use: u64 },
    Direct { n_open: u64 },
}

/// All batches that are open or kept.
pub(super) struct Table<I, W> {
    entries: HashMap<Ino, Entry<I, W>>,
    /// Kept files that nobody holds, by their last use.
    kept: BTreeMap<u64, Ino>,
    clock: u64,
    n_files: usize,
    n_evicted: u64,
}

impl<I, W> Default for Table<I, W> {
    fn default() -> Self {
        Self { entries: HashMap::new(), kept: BTreeMap::new(), clock: 0, n_files: 0, n_evicted: 0 }
    }
}

impl<I: Clone, W> Table<I, W> {
    /// An open arrives.
    pub fn begin(&mut self, ino: Ino, open: W) -> Begin<I, W> {
        match self.entries.get_mut(&ino) {
            None => {
                self.entries.insert(ino, Entry::Filling { waiting: Vec::new() });
                Begin::Fill(open)
            }
            Some(Entry::Filling { waiting }) => {
                waiting.push(open);
                Begin::Queued
            }
            Some(Entry::Backed { id, n_open, last_use, .. }) => {
                *n_open += 1;
                self.kept.remove(last_use);
                Begin::Backed(open, id.clone())
            }
            Some(Entry::Direct { n_open }) => {
                *n_open += 1;
                Begin::Direct(open)
            }
        }
    }

    /// The file is there. The open that filled it, and those returned, are counted and are to be answered with it.
    pub fn filled(&mut self, ino: Ino, id: I, size_bytes: u64) -> Vec<W> {
        self.n_files += 1;
        self.settle(ino, |n_open| Entry::Backed { id, size_bytes, n_open, last_use: 0 })
    }

    /// There was no room. The open that tried, and those returned, are counted and are to be answered with direct I/O.
    pub fn fell_back(&mut self, ino: Ino) -> Vec<W> {
        self.settle(ino, |n_open| Entry::Direct { n_open })
    }

    /// There is no batch. Those returned are to be answered with an error.
    pub fn failed(&mut self, ino: Ino) -> Vec<W> {
        match self.entries.remove(&ino) {
            Some(Entry::Filling { waiting }) => waiting,
            other => {
                self.entries.extend(other.map(|entry| (ino, entry)));
                Vec::new()
            }
        }
    }

    fn settle(&mut self, ino: Ino, entry: impl FnOnce(u64) -> Entry<I, W>) -> Vec<W> {
        let waiting = self.failed(ino);
        self.entries.insert(ino, entry(1 + crate::num::to_u64(waiting.len())));
        waiting
    }

    /// A release was processed, or a counted open was answered with an error.
    pub fn released(&mut self, ino: Ino) {
        match self.entries.get_mut(&ino) {
            Some(Entry::Backed { n_open, last_use, .. }) => {
                *n_open = n_open.saturating_sub(1);
                if *n_open == 0 {
                    self.clock += 1;
                    *last_use = self.clock;
                    self.kept.insert(self.clock, ino);
                }
            }
            Some(Entry::Direct { n_open }) => {
                *n_open = n_open.saturating_sub(1);
                if *n_open == 0 {
                    self.entries.remove(&ino);
                }
            }
            Some(Entry::Filling { .. }) | None => {}
        }
    }

    /// Takes files that nobody holds, the least recently used first, until they make up `want_bytes`. The caller drops them outside
    /// its lock.
    pub fn evict(&mut self, want_bytes: u64) -> Vec<I> {
        let (mut evicted, mut bytes) = (Vec::new(), 0_u64);
        while bytes < want_bytes
            && let Some((id, size_bytes)) = self.evict_one()
        {
            bytes = bytes.saturating_add(size_bytes);
            evicted.push(id);
        }
        evicted
    }

    /// Takes files that are too many.
    pub fn evict_surplus(&mut self) -> Vec<I> {
        let surplus = self.n_files.saturating_sub(MAX_FILES);
        std::iter::from_fn(|| self.evict_one()).map(|(id, _)| id).take(surplus).collect()
    }

    fn evict_one(&mut self) -> Option<(I, u64)> {
        let (_, ino) = self.kept.pop_first()?;
        match self.entries.remove(&ino) {
            Some(Entry::Backed { id, size_bytes, .. }) => {
                self.n_files -= 1;
                self.n_evicted += 1;
                Some((id, size_bytes))
            }
            _ => None,
        }
    }

    /// Files, those of them that nobody holds, and how many were given up so far.
    pub fn counts(&self) -> (usize, usize, u64) {
        (self.n_files, self.kept.len(), self.n_evicted)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type T = Table<u32, u32>;
    const A: Ino = Ino(1000);
    const B: Ino = Ino(2000);

    #[test]
    fn one_way_at_a_time() {
        let mut t = T::default();
        assert_eq!(t.begin(A, 1), Begin::Fill(1));
        assert_eq!(t.begin(A, 2), Begin::Queued);
        assert_eq!(t.filled(A, 77, 10), [2]);
        assert_eq!(t.begin(A, 3), Begin::Backed(3, 77));
        assert!(t.evict(1).is_empty(), "three hold it");
        for _ in 0..3 {
            t.released(A);
        }
        assert_eq!(t.begin(A, 4), Begin::Backed(4, 77), "kept");
        t.released(A);
        assert_eq!(t.evict(1), [77]);
        assert_eq!(t.begin(A, 5), Begin::Fill(5));
        assert_eq!(t.begin(A, 6), Begin::Queued);
        assert_eq!(t.fell_back(A), [6]);
        assert_eq!(t.begin(A, 7), Begin::Direct(7), "as long as anybody has it open that way");
        for _ in 0..3 {
            assert!(t.evict(1).is_empty());
            t.released(A);
        }
        assert_eq!(t.begin(A, 8), Begin::Fill(8));
        assert!(t.failed(A).is_empty());
        assert_eq!(t.begin(A, 9), Begin::Fill(9));
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut t = T::default();
        for (ino, id) in [(A, 1), (B, 2)] {
            t.begin(ino, 0);
            t.filled(ino, id, 10);
            t.released(ino);
        }
        assert_eq!(t.begin(A, 0), Begin::Backed(0, 1));
        t.released(A);
        assert_eq!(t.evict(10), [2]);
        assert_eq!(t.evict(1000), [1]);
        assert_eq!(t.counts(), (0, 0, 2));
    }

    proptest! {
        /// Against a plain model: an inode has one id while anybody holds it, and what is evicted is held by nobody.
        #[test]
        fn ids_live_as_long_as_their_holders(ops in prop::collection::vec((0_u64..4, 0_u8..5), 1..300)) {
            let mut t = T::default();
            let mut held: HashMap<Ino, (Option<u32>, u32)> = HashMap::new();
            let mut next_id = 0;
            for (ino, op) in ops {
                let ino = Ino(ino);
                match op {
                    0..=2 => match t.begin(ino, 0) {
                        Begin::Fill(_) => {
                            prop_assert_eq!(held.get(&ino).map_or(0, |h| h.1), 0);
                            next_id += 1;
                            let id = (op > 0).then_some(next_id);
                            match id {
                                Some(id) => t.filled(ino, id, 1),
                                None => t.fell_back(ino),
                            };
                            held.insert(ino, (id, 1));
                        }
                        Begin::Backed(_, id) => {
                            let holders = held.get_mut(&ino).unwrap();
                            prop_assert_eq!(holders.0, Some(id));
                            holders.1 += 1;
                        }
                        Begin::Direct(_) => {
                            let holders = held.get_mut(&ino).unwrap();
                            prop_assert!(holders.0.is_none() && holders.1 > 0);
                            holders.1 += 1;
                        }
                        Begin::Queued => prop_assert!(false, "nothing is being filled"),
                    },
                    3 => if let Some(holders) = held.get_mut(&ino).filter(|h| h.1 > 0) {
                        holders.1 -= 1;
                        t.released(ino);
                    },
                    _ => for id in t.evict(1) {
                        prop_assert!(held.values().all(|h| h.0 != Some(id) || h.1 == 0));
                        held.retain(|_, h| h.0 != Some(id));
                    },
                }
            }
        }
    }
}
