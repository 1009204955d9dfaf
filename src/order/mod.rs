//! Which row is where in an epoch. Integers only: no I/O, no clock, no state but caches of pure functions.
//!
//! An epoch is the rows of the dataset in an order that is a pure function of (blocks, batch size, fetch factor, seed, epoch),
//! defined in `docs/ORDER.md` and frozen as version [`VERSION`]:
//!
//! 1. the rows are cut into [`Blocks`]; the block ids are shuffled;
//! 2. the shuffled blocks, laid end to end, are cut into windows of `batch_size * fetch_factor` rows, and the rows inside each
//!    window are shuffled;
//! 3. batch k is rows `k * batch_size ..` of that sequence; [`Tail`] says what becomes of a short last one.
//!
//! Per epoch one table of 4 bytes per block is built (see [`Order::prepare`]) and kept for the last few epochs; everything else
//! is arithmetic. No table of rows exists. [`Pass::InOrder`] is the same machinery without the shuffles.
//!
//! A [`Share`] (rank, host) is a way to pick from the list of batches and has no influence on them.

pub mod defaults;
pub mod quality;

mod blocks;
mod cuts;
mod epoch;
mod error;
mod rng;
mod share;
mod window;

#[cfg(test)]
mod tests;

use std::ops::Range;

pub use blocks::{Blocks, SourceRows};
pub use error::OrderError;
pub use share::{Runs, Share};

use crate::num::to_u64;

/// Version of the order: the same version, sources and options give the same batches for ever.
pub const VERSION: &str = "v1";

/// Epochs are numbered below this: what fits an inode beside the batch.
pub const MAX_EPOCHS: u32 = 1 << 21;

/// Batches of a pass are numbered with 32 bits.
const MAX_BATCHES: u64 = 1 << 32;
/// The row ids of the largest window take 2 GiB.
const MAX_WINDOW_ROWS: u64 = 1 << 28;

/// One pass over the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pass {
    /// Epoch number, below 2^21.
    Epoch(u32),
    /// Every row in source order, short last batch kept.
    InOrder,
}

/// What becomes of a short last batch of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// It stays short.
    Keep,
    /// It is not served.
    Drop,
    /// It is filled with the epoch's first rows.
    Pad,
}

/// What becomes of batches that do not make a whole round of ranks or hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankPolicy {
    /// They are in no rank; nor is a short last batch.
    Drop,
    /// They are dealt, and who would go without gets the first batches once more.
    Repeat,
}

/// Everything an order depends on, apart from the epoch.
#[derive(Debug, Clone)]
pub struct OrderConfig {
    /// Number of rows.
    pub n_rows: u64,
    /// The blocks, of as many rows.
    pub blocks: Blocks,
    /// Rows of a batch, at least 1.
    pub batch_size: u32,
    /// Batches of a window, at least 1.
    pub fetch_factor: u32,
    /// Any number.
    pub seed: u64,
    /// What becomes of a short last batch.
    pub tail: Tail,
}

/// The order of all epochs of a dataset.
pub struct Order {
    blocks: Blocks,
    batch_size: u32,
    fetch_factor: u32,
    seed: u64,
    tail: Tail,
    tables: epoch::Tables,
    memo: window::Memo,
}

impl Order {
    /// Checks the configuration. Builds nothing yet.
    ///
    /// # Errors
    /// If there is no row or no batch, a number is 0, or a window or an epoch cannot be numbered; see [`OrderError`].
    pub fn new(config: OrderConfig) -> Result<Self, OrderError> {
        let OrderConfig { n_rows, blocks, batch_size, fetch_factor, seed, tail } = config;
        if batch_size == 0 {
            return Err(OrderError::ZeroBatchSize);
        }
        if fetch_factor == 0 {
            return Err(OrderError::ZeroFetchFactor);
        }
        if blocks.n_rows() != n_rows {
            return Err(OrderError::RowCount { found: blocks.n_rows(), expected: n_rows });
        }
        if n_rows == 0 {
            return Err(OrderError::NoRows);
        }
        if tail == Tail::Drop && n_rows < u64::from(batch_size) {
            return Err(OrderError::NothingLeft { n_rows, batch_size });
        }
        let window_rows = (u64::from(batch_size) * u64::from(fetch_factor)).min(n_rows.max(u64::from(batch_size)));
        if window_rows > MAX_WINDOW_ROWS {
            return Err(OrderError::WindowTooLarge { batch_size, fetch_factor, window_rows, limit: MAX_WINDOW_ROWS });
        }
        if n_rows.div_ceil(u64::from(batch_size)) > MAX_BATCHES {
            return Err(OrderError::TooManyBatches { n_rows, batch_size, limit: MAX_BATCHES });
        }
        let tables = epoch::Tables::new(&blocks);
        Ok(Self { blocks, batch_size, fetch_factor, seed, tail, tables, memo: window::Memo::default() })
    }

    /// Number of rows, each of which is in every epoch once.
    #[must_use]
    pub fn n_rows(&self) -> u64 {
        self.blocks.n_rows()
    }

    /// Rows of a batch.
    #[must_use]
    pub fn batch_size(&self) -> u32 {
        self.batch_size
    }

    /// Batches of a window.
    #[must_use]
    pub fn fetch_factor(&self) -> u32 {
        self.fetch_factor
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// What becomes of a short last batch of an epoch.
    #[must_use]
    pub fn tail(&self) -> Tail {
        self.tail
    }

    /// The blocks.
    #[must_use]
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// Number of blocks at phase 0.
    #[must_use]
    pub fn n_blocks(&self) -> u64 {
        self.blocks.n_blocks()
    }

    /// First rows of all blocks (phase 0), as published in `blocks.npy`.
    #[must_use]
    pub fn block_first_rows(&self) -> Vec<i64> {
        self.blocks.first_rows()
    }

    /// Statistics for the quality law.
    #[must_use]
    pub fn block_stats(&self) -> quality::BlockStats {
        quality::BlockStats::new(&self.blocks, self.window_size())
    }

    /// Number of batches of the pass.
    #[must_use]
    pub fn n_batches(&self, pass: Pass) -> u64 {
        if self.tail_of(pass) == Tail::Drop {
            self.n_full_batches()
        } else {
            self.n_rows().div_ceil(u64::from(self.batch_size))
        }
    }

    /// Number of windows that hold at least one batch of the pass.
    #[must_use]
    pub fn n_windows(&self, pass: Pass) -> u64 {
        self.n_batches(pass).div_ceil(u64::from(self.fetch_factor))
    }

    /// The window that holds the batch.
    #[must_use]
    pub fn window_of(&self, batch: u64) -> u64 {
        batch / u64::from(self.fetch_factor)
    }

    /// The batches of the window; none beyond the last window.
    #[must_use]
    pub fn window_batches(&self, pass: Pass, window: u64) -> Range<u64> {
        let n_batches = self.n_batches(pass);
        let first = window.saturating_mul(u64::from(self.fetch_factor)).min(n_batches);
        first..first.saturating_add(u64::from(self.fetch_factor)).min(n_batches)
    }

    /// Rows of the batch, padding included; 0 beyond the last batch.
    #[must_use]
    pub fn batch_len(&self, pass: Pass, batch: u64) -> u32 {
        if batch >= self.n_batches(pass) {
            return 0;
        }
        match self.tail_of(pass) {
            Tail::Keep => self.batch_size - self.missing_rows(batch),
            Tail::Drop | Tail::Pad => self.batch_size,
        }
    }

    /// How many of them are padding (only the last batch under `--tail pad`).
    #[must_use]
    pub fn pad_rows(&self, pass: Pass, batch: u64) -> u32 {
        if self.tail_of(pass) != Tail::Pad || batch >= self.n_batches(pass) {
            return 0;
        }
        self.missing_rows(batch)
    }

    /// Builds the table of an epoch, unless it is there, so that its first batch need not wait for it.
    pub fn prepare(&self, pass: Pass) {
        if let Pass::Epoch(epoch) = pass {
            self.tables.with(&self.blocks, self.seed, epoch, |_| ());
        }
    }

    /// Bytes of memory that the blocks and the tables built so far take.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.blocks.resident_bytes() + self.tables.resident_bytes() + self.memo_bytes()
    }

    /// Bytes of memory that the blocks, a full cache of tables, and the remembered window may take: the charge to `--memory`.
    #[must_use]
    pub fn max_resident_bytes(&self) -> u64 {
        let window_rows = self.window_size().min(self.n_rows() + u64::from(self.batch_size));
        self.blocks.resident_bytes() + self.tables.max_bytes(&self.blocks) + window_rows * to_u64(size_of::<u64>())
    }

    /// Number of batches of the share. The same for all ranks, or hosts, of one directory.
    #[must_use]
    pub fn share_len(&self, pass: Pass, share: Share, policy: RankPolicy) -> u64 {
        self.deck(pass).len(share, policy)
    }

    /// The i-th batch of the share.
    ///
    /// # Panics
    /// If `i` is not below [`Order::share_len`].
    #[must_use]
    pub fn share_batch(&self, pass: Pass, share: Share, policy: RankPolicy, i: u64) -> u64 {
        assert!(i < self.share_len(pass, share, policy), "batch {i} is beyond the share");
        self.deck(pass).batch(share, policy, i)
    }

    /// Position of a batch in the share, if it is in it: the inverse of [`Order::share_batch`]. No batch is twice in a share.
    #[must_use]
    pub fn share_position(&self, pass: Pass, share: Share, policy: RankPolicy, batch: u64) -> Option<u64> {
        self.deck(pass).position(share, policy, batch)
    }

    /// The batches of the pass that `n_hosts` hosts deal in runs; those before are dealt by whole windows.
    #[must_use]
    pub fn host_runs(&self, pass: Pass, n_hosts: u32, policy: RankPolicy) -> Runs {
        self.deck(pass).runs(n_hosts, policy)
    }

    /// The tail that the pass has: source order is never cut nor filled.
    fn tail_of(&self, pass: Pass) -> Tail {
        match pass {
            Pass::Epoch(_) => self.tail,
            Pass::InOrder => Tail::Keep,
        }
    }

    fn n_full_batches(&self) -> u64 {
        self.n_rows() / u64::from(self.batch_size)
    }

    /// Rows that the batch lacks of a full one.
    fn missing_rows(&self, batch: u64) -> u32 {
        if batch < self.n_full_batches() {
            0
        } else {
            self.batch_size - (self.n_rows() % u64::from(self.batch_size)) as u32
        }
    }

    fn deck(&self, pass: Pass) -> share::Deck {
        let n_batches = self.n_batches(pass);
        let n_full = if self.tail_of(pass) == Tail::Keep { self.n_full_batches() } else { n_batches };
        share::Deck { n_batches, n_full, window_batches: u64::from(self.fetch_factor) }
    }
}
