//! The list of batches that failed, as `.shufflefs/errors.tsv` shows it.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::BatchError;

/// Failures that are kept.
const KEPT: usize = 10_000;

/// The last failures.
#[derive(Default)]
pub struct ErrorLog {
    lines: Mutex<VecDeque<String>>,
}

impl ErrorLog {
    /// Notes a failure that a reader saw.
    pub fn push(&self, pass: &str, batch: u64, error: &BatchError) {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let reason = error.to_string().replace(['\t', '\n'], " ");
        let mut lines = self.lines.lock();
        if lines.len() == KEPT {
            lines.pop_front();
        }
        lines.push_back(format!("{seconds}\t{pass}\t{batch}\t{reason}\n"));
    }

    /// All of them, oldest first, with a line of column names.
    #[must_use]
    pub fn tsv(&self) -> String {
        let lines = self.lines.lock();
        std::iter::once("unix_seconds\tpass\tbatch\terror\n").chain(lines.iter().map(String::as_str)).collect()
    }
}
