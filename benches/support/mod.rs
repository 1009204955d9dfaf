//! What all micro-benchmarks share: short runs, since they show orders of magnitude and regressions, and ratios inside one run only.

use std::time::Duration;

use criterion::Criterion;

/// One second per benchmark.
pub fn criterion() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .configure_from_args()
}
