//! Tells of passes over records before they begin, and shows how far they are.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::text::bytes;
use crate::store::atompack::Progress;

/// A pass over fewer bytes is not worth a word.
const WORTH_A_WORD_BYTES: u64 = 256 << 20;

/// A bar on a terminal, a line elsewhere.
#[derive(Default)]
pub struct Bar(Option<ProgressBar>);

impl Progress for Bar {
    fn begin(&mut self, file: &Path, why: &str, total: u64) {
        tracing::info!("{}: all records are read once ({}), since {why}", file.display(), bytes(total));
        if total < WORTH_A_WORD_BYTES {
            return;
        }
        // Nobody has to read it.
        let _ = writeln!(
            std::io::stderr(),
            "{}: reading all records once ({}), since {why}; the result is kept for the next time",
            file.display(),
            bytes(total)
        );
        if std::io::stderr().is_terminal()
            && let Ok(style) = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
        {
            self.0 = Some(ProgressBar::new(total).with_style(style));
        }
    }

    fn advance(&mut self, n: u64) {
        if let Some(bar) = &self.0 {
            bar.inc(n);
        }
    }

    fn end(&mut self) {
        if let Some(bar) = self.0.take() {
            bar.finish_and_clear();
        }
    }
}
