//! Counters of the work the engine does: what regressions are measured by.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one engine. All grow only; none is reset.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub $name: AtomicU64,)* }

        /// The values of all counters at one time.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
        pub struct CounterValues { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// The values now. Not a consistent cut while work is under way.
            #[must_use]
            pub fn values(&self) -> CounterValues {
                CounterValues { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Read calls on sources.
    reads,
    /// Bytes read from sources, gaps between coalesced chunks included.
    bytes_read,
    /// Chunks decoded, or copied if they have no filter.
    chunks,
    /// Chunks that were there from before, decoded.
    chunks_kept,
    /// Chunks whose prefix did not hold what was needed, so that they were read and decoded again.
    prefix_retries,
    /// Windows that storage was told of ahead.
    hints,
    /// Bytes that came out of decompressors.
    bytes_decoded,
    /// Bytes that rows need of filtered chunks: the denominator of the decode amplification.
    bytes_needed,
    /// Bytes that rows need, filtered or not, in the source's types.
    bytes_wanted,
    /// Bytes written into batch images by the scatter, once per value.
    bytes_copied,
    /// Row pieces scattered.
    pieces,
    /// Windows, or parts of windows, planned.
    plans,
    /// Batches assembled.
    batches,
    /// Batches that failed.
    batches_failed,
    /// Opens of batches.
    opens,
    /// Opens that found their batch assembled.
    opens_ready,
    /// Opens that assembled their own batch only.
    opens_isolated,
    /// Batches thrown away before anybody opened them.
    evicted_unopened,
    /// Nanoseconds that worker threads spent reading.
    read_ns,
    /// Nanoseconds spent decoding.
    decode_ns,
    /// Nanoseconds spent scattering.
    scatter_ns,
    /// Nanoseconds spent planning.
    plan_ns,
    /// Nanoseconds spent finishing batches.
    finish_ns,
    /// Nanoseconds that opens waited for their batch.
    open_wait_ns,
}

impl Counters {
    /// Adds `n` to a counter.
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Relaxed);
    }

    /// Adds the time since `start` to a counter of nanoseconds and returns the present time.
    pub fn lap(counter: &AtomicU64, start: std::time::Instant) -> std::time::Instant {
        let now = std::time::Instant::now();
        Self::add(counter, u64::try_from((now - start).as_nanos()).unwrap_or(u64::MAX));
        now
    }
}
