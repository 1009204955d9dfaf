//! Progress of long work while a dataset is opened: a bar on a terminal, a line in the log now and then elsewhere.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;

use crate::store::cache::Progress;

/// Time between two lines in the log.
const LOG_EVERY: Duration = Duration::from_secs(30);

/// Work under way.
#[derive(Debug)]
struct Work {
    what: String,
    total_bytes: u64,
    bar: Option<ProgressBar>,
    told: Instant,
}

/// Shows the progress of one work at a time.
#[derive(Debug, Default)]
pub struct Shown(Mutex<Option<Work>>);

impl Progress for Shown {
    fn begin(&self, what: &str, total_bytes: u64) {
        let bar = std::io::stderr().is_terminal().then(|| {
            let template = match total_bytes {
                0 => "{msg}",
                _ => "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
            };
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = ProgressBar::with_draw_target(Some(total_bytes), ProgressDrawTarget::stderr());
            let bar = bar.with_style(style).with_message(what.to_owned());
            bar.tick();
            bar
        });
        tracing::info!("{what}");
        *self.0.lock() = Some(Work { what: what.to_owned(), total_bytes, bar, told: Instant::now() });
    }

    fn at(&self, done_bytes: u64) {
        let mut work = self.0.lock();
        let Some(work) = work.as_mut() else { return };
        if let Some(bar) = &work.bar {
            bar.set_position(done_bytes);
        }
        if work.told.elapsed() >= LOG_EVERY {
            work.told = Instant::now();
            let percent = u128::from(done_bytes) * 100 / u128::from(work.total_bytes.max(1));
            tracing::info!("{}: {percent} %", work.what);
        }
    }

    fn end(&self) {
        if let Some(Work { bar: Some(bar), .. }) = self.0.lock().take() {
            bar.finish_and_clear();
        }
    }
}
