//! The list of batches that failed, which the tree shows as `errors.tsv`.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::{BatchError, BatchId};

/// Failures that are kept.
const KEPT: usize = 10_000;

/// A batch that could not be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// When, in seconds since 1970.
    pub unix_seconds: u64,
    /// Which batch.
    pub id: BatchId,
    /// Why, in one line.
    pub reason: String,
}

/// The last failures.
#[derive(Default)]
pub struct ErrorLog {
    failures: Mutex<VecDeque<Failure>>,
}

impl ErrorLog {
    /// Notes a failure that a reader saw.
    pub fn push(&self, id: BatchId, error: &BatchError) {
        let unix_seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let reason = error.to_string().replace(['\t', '\n', '\r'], " ");
        let mut failures = self.failures.lock();
        if failures.len() == KEPT {
            failures.pop_front();
        }
        failures.push_back(Failure { unix_seconds, id, reason });
    }

    /// All of them, oldest first.
    #[must_use]
    pub fn failures(&self) -> Vec<Failure> {
        self.failures.lock().iter().cloned().collect()
    }
}
