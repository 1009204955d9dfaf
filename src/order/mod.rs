//! Which row is where in an epoch. Integers only.
#![allow(missing_docs, unused_variables)]

use std::ops::Range;

pub const MAX_EPOCHS: u32 = 1 << 21;
pub const VERSION: &str = "v1";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pass {
    /// Epoch number, below 2^21.
    Epoch(u32),
    InOrder,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    Keep,
    Drop,
    Pad,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankPolicy {
    Drop,
    Repeat,
}

/// A directory's share of an epoch: `host-h-of-H`, `rank-r-of-R`, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Share {
    pub host: Option<(u32, u32)>,
    pub rank: Option<(u32, u32)>,
}

pub struct Order {}

impl Order {
    pub fn n_rows(&self) -> u64 {
        unimplemented!()
    }
    pub fn batch_size(&self) -> u32 {
        unimplemented!()
    }
    pub fn fetch_factor(&self) -> u32 {
        unimplemented!()
    }
    pub fn seed(&self) -> u64 {
        unimplemented!()
    }
    pub fn tail(&self) -> Tail {
        unimplemented!()
    }
    pub fn n_batches(&self, pass: Pass) -> u64 {
        unimplemented!()
    }
    pub fn n_windows(&self, pass: Pass) -> u64 {
        unimplemented!()
    }
    pub fn window_of(&self, batch: u64) -> u64 {
        unimplemented!()
    }
    pub fn window_batches(&self, pass: Pass, window: u64) -> Range<u64> {
        unimplemented!()
    }
    /// Rows of the batch, padding included.
    pub fn batch_len(&self, pass: Pass, batch: u64) -> u32 {
        unimplemented!()
    }
    /// How many of them are padding (only the last batch under `--tail pad`).
    pub fn pad_rows(&self, pass: Pass, batch: u64) -> u32 {
        unimplemented!()
    }
    /// Global row ids of all batches of the window, batch after batch, padding included.
    pub fn window_rows(&self, pass: Pass, window: u64) -> Vec<u64> {
        unimplemented!()
    }
    /// Global row ids of one batch.
    pub fn batch_rows(&self, pass: Pass, batch: u64) -> Vec<u64> {
        unimplemented!()
    }
    /// First rows of all blocks (phase 0), as published in blocks.npy.
    pub fn n_blocks(&self) -> u64 {
        unimplemented!()
    }
    pub fn block_first_rows(&self) -> Vec<i64> {
        unimplemented!()
    }
    pub fn share_len(&self, pass: Pass, share: Share, policy: RankPolicy) -> u64 {
        unimplemented!()
    }
    /// The i-th batch of the share.
    pub fn share_batch(&self, pass: Pass, share: Share, policy: RankPolicy, i: u64) -> u64 {
        unimplemented!()
    }
    /// Position of a batch in the share.
    pub fn share_position(&self, pass: Pass, share: Share, policy: RankPolicy, batch: u64) -> Option<u64> {
        unimplemented!()
    }
}
