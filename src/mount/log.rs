//! The log: the last lines in memory for `.shufflefs/log`, a file if one is asked for, and the terminal while there is one.
//!
//! Memory and file take everything down to `info` (lower with `-v`); the terminal takes warnings only, since it belongs to
//! the person who typed the command. A daemon leaves the terminal when it is ready: [`Log::leave_terminal`].

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Lines that are kept in memory.
const KEPT_LINES: usize = 2_000;
/// Bytes that are kept in memory.
const KEPT_BYTES: usize = 1 << 20;

/// What is logged, and where to.
#[derive(Debug, Clone, Default)]
pub struct LogConfig {
    /// Append to this file, too.
    pub file: Option<PathBuf>,
    /// How often `-v` was given, minus how often `-q` was.
    pub verbosity: i8,
}

/// The log of this process.
#[derive(Clone)]
pub struct Log {
    sink: Arc<Sink>,
}

struct Sink {
    kept: Mutex<Kept>,
    file: Option<File>,
    terminal: AtomicBool,
}

#[derive(Default)]
struct Kept {
    lines: VecDeque<Vec<u8>>,
    n_bytes: usize,
}

impl Kept {
    fn push(&mut self, line: &[u8]) {
        self.n_bytes += line.len();
        self.lines.push_back(line.to_vec());
        while self.lines.len() > KEPT_LINES || self.n_bytes > KEPT_BYTES {
            let Some(oldest) = self.lines.pop_front() else { break };
            self.n_bytes -= oldest.len();
        }
    }
}

impl Log {
    /// Starts the log of this process, and sends the messages of panics there. Starts no thread.
    ///
    /// # Errors
    /// If the file cannot be opened for appending. A log that was started before stays, and takes nothing here.
    pub fn start(config: &LogConfig) -> io::Result<Self> {
        let open = |path: &PathBuf| File::options().append(true).create(true).open(path).map_err(|e| named(path, &e));
        let file = config.file.as_ref().map(open).transpose()?;
        let sink = Arc::new(Sink { kept: Mutex::default(), file, terminal: AtomicBool::new(true) });
        let (kept_level, terminal_level) = match config.verbosity {
            i8::MIN..=-1 => (LevelFilter::INFO, LevelFilter::ERROR),
            0 => (LevelFilter::INFO, LevelFilter::WARN),
            1 => (LevelFilter::DEBUG, LevelFilter::INFO),
            _ => (LevelFilter::TRACE, LevelFilter::DEBUG),
        };
        // What libraries say below a warning is about them, not about this program.
        let targets = |level| Targets::new().with_default(LevelFilter::WARN.min(level)).with_target("shufflefs", level);
        let kept = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_writer(KeptWriter(Arc::clone(&sink)))
            .with_filter(targets(kept_level));
        let terminal = tracing_subscriber::fmt::layer()
            .without_time()
            .with_target(false)
            .with_ansi(false)
            .with_writer(TerminalWriter(Arc::clone(&sink)))
            .with_filter(targets(terminal_level));
        // A second subscriber (in tests) is refused; the first one goes on.
        let _ = tracing_subscriber::registry().with(kept).with(terminal).try_init();
        // A panic is caught where it happens and answered; what it said belongs into the log, without a backtrace.
        std::panic::set_hook(Box::new(|info| tracing::error!("{info}")));
        Ok(Self { sink })
    }

    /// The lines that are kept, oldest first.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        let kept = self.sink.kept.lock();
        let mut text = Vec::with_capacity(kept.n_bytes);
        for line in &kept.lines {
            text.extend_from_slice(line);
        }
        text
    }

    /// Writes nothing to the terminal any more.
    pub fn leave_terminal(&self) {
        self.sink.terminal.store(false, Ordering::Relaxed);
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// One event a `write_all`: the formatter hands over complete lines.
#[derive(Clone)]
struct KeptWriter(Arc<Sink>);

impl Write for KeptWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.kept.lock().push(line);
        if let Some(mut file) = self.0.file.as_ref() {
            // A full disk must not end the mount; the lines in memory remain.
            let _ = file.write_all(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for KeptWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[derive(Clone)]
struct TerminalWriter(Arc<Sink>);

impl Write for TerminalWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.0.terminal.load(Ordering::Relaxed) {
            let _ = io::stderr().write_all(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for TerminalWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_lines_are_kept() {
        let mut kept = Kept::default();
        for i in 0..KEPT_LINES + 5 {
            kept.push(format!("{i}\n").as_bytes());
        }
        assert_eq!(kept.lines.len(), KEPT_LINES);
        assert_eq!(kept.lines[0], b"5\n");
        kept.push(&vec![b'x'; KEPT_BYTES]);
        assert_eq!((kept.lines.len(), kept.n_bytes), (1, KEPT_BYTES));
    }
}
