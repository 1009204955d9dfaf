//! `shufflefs bench`: how fast this dataset is on this machine, and where the time goes.
//!
//! Three measurements, one after the other, over the same windows:
//!
//! * `decode`: every chunk is read and decoded by all threads, and nothing is done with it: the bound of the other two;
//! * `engine`: every batch is assembled and summed in this process, without a file system;
//! * `mount` (`--mount`): a child process mounts the dataset at a private place, and this process reads every file there with read(2) into
//!   one buffer, and sums it.
//!
//! Every byte of every batch is added up, so a rate never counts what did not arrive, and the two checksums must agree. Whole
//! windows are measured, so that no half-used window flatters a rate.

mod private_mount;
mod report;
mod usage;

use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use memmap2::MmapMut;
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{TIMEOUT, config_toml, options_of, sources_of};
use crate::cli::args::{BenchArgs, DatasetArgs};
use crate::cli::dataset::Dataset;
use crate::cli::options::UsageError;
use crate::num::to_usize;
use crate::order::Pass;
use crate::store::fault::{Fault, FaultyStore};
use crate::window::arena::Arena;
use crate::window::decode_only::decode_windows;
use crate::window::engine::pass_name;
use crate::window::{BatchId, Batches as _};
use private_mount::PrivateMount;
use report::{Measured, Reference, Report};
use usage::ProcessUsage;

/// How long a measurement waits at its end for windows that were assembled ahead, so that its counters are complete.
const SETTLE_TIME: Duration = Duration::from_secs(10);

/// Measures and prints.
pub fn run(args: BenchArgs) -> anyhow::Result<()> {
    let (dataset_args, options) = options_of(args.dataset.clone())?;
    let start = Instant::now();
    let dataset = Dataset::open(&sources_of(&args.sources, &dataset_args)?, options)?;
    let open_s = start.elapsed().as_secs_f64();
    let bench = Bench::new(&dataset, &args)?;
    let mut report = Report::new(&dataset, &args);
    let (decode, reference) = bench.decode(open_s)?;
    report.add(&decode)?;
    use_memory_once(dataset.resources.image_bytes)?;
    let engine = bench.engine(open_s, &reference)?;
    report.add(&engine)?;
    if args.mount {
        let mount = bench.mount(&dataset_args, &reference)?;
        report.add(&mount)?;
        if mount.rows == engine.rows && mount.checksum != engine.checksum {
            bail!("the mount served other bytes than the engine made: this is a defect of shufflefs");
        }
    }
    report.end()
}

/// What is measured, and until when.
struct Bench<'a> {
    dataset: &'a Dataset,
    epochs: u32,
    max_rows: u64,
    max_time: Duration,
    read_delay: Duration,
    /// Set by the first SIGINT or SIGTERM: a private mount must be taken away before the end.
    interrupted: Arc<AtomicBool>,
}

/// What was read, of batches.
#[derive(Default)]
struct Reading {
    rows: u64,
    seconds: f64,
    cpu_s: f64,
    first_batch_s: Option<f64>,
    checksum: u64,
    nnz: u64,
}

impl<'a> Bench<'a> {
    fn new(dataset: &'a Dataset, args: &BenchArgs) -> anyhow::Result<Self> {
        let max_time = match args.seconds {
            None => Duration::MAX,
            Some(s) => Duration::try_from_secs_f64(s)
                .map_err(|e| UsageError { option: format!("--seconds {s}"), reason: e.to_string() })?,
        };
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal sets the flag, the second one ends the process.
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&interrupted))?;
            signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
        }
        let max_rows = args.rows.unwrap_or(u64::MAX);
        let read_delay = Duration::from_millis(args.read_delay);
        Ok(Self { dataset, epochs: args.epochs, max_rows, max_time, read_delay, interrupted })
    }

    /// All windows of the epochs, in order.
    fn windows(&self) -> impl Iterator<Item = (Pass, u64)> + Send + use<'a> {
        let order = &self.dataset.order;
        let windows_of = move |pass| (0..order.n_windows(pass)).map(move |window| (pass, window));
        (0..self.epochs).map(Pass::Epoch).flat_map(windows_of)
    }

    /// True if another window is to be measured.
    fn goes_on(&self, rows: u64, start: Instant) -> bool {
        rows < self.max_rows && start.elapsed() < self.max_time && !self.interrupted.load(Relaxed)
    }

    fn check_interrupted(&self) -> anyhow::Result<()> {
        if self.interrupted.load(Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }

    /// Stored values of X in the rows of a window.
    fn nnz_of(&self, (pass, window): (Pass, u64)) -> u64 {
        let store = &self.dataset.store;
        match store.schema().elements.first().and_then(|element| element.kind.sparse()) {
            Some(_) => {
                let rows = self.dataset.order.window_rows(pass, window);
                rows.into_iter().map(|row| u64::from(store.row_len(0, row))).sum()
            }
            None => 0,
        }
    }

    fn progress(&self, mode: &'static str) -> anyhow::Result<ProgressBar> {
        if !std::io::IsTerminal::is_terminal(&std::io::stderr()) {
            return Ok(ProgressBar::hidden());
        }
        let rows = self.dataset.order.n_rows().saturating_mul(u64::from(self.epochs)).min(self.max_rows);
        let style = ProgressStyle::with_template("{msg:6} {bar:40} {human_pos}/{human_len} rows {per_sec} {eta}")?;
        Ok(ProgressBar::new(rows).with_style(style).with_message(mode))
    }

    fn decode(&self, open_s: f64) -> anyhow::Result<(Measured, Reference)> {
        let d = self.dataset;
        let progress = self.progress("decode")?;
        usage::reset_peak_memory();
        let (start, cpu) = (Instant::now(), usage::own_cpu_seconds()?);
        let go_on = |rows| {
            progress.set_position(rows);
            self.goes_on(rows, start)
        };
        let decoded = decode_windows((&*d.store, &d.order), self.windows(), d.resources.threads, go_on)?;
        let (seconds, cpu_s) = (start.elapsed().as_secs_f64(), usage::own_cpu_seconds()? - cpu);
        progress.finish_and_clear();
        self.check_interrupted()?;
        let nnz = self.windows().take(decoded.n_windows).map(|window| self.nnz_of(window)).sum();
        let reading = Reading { rows: decoded.rows, seconds, cpu_s, nnz, ..Reading::default() };
        let reference = Reference::new(&decoded);
        let counters = serde_json::to_value(decoded.counters)?;
        let own = ProcessUsage::of("self")?;
        Ok((Measured::new("decode", &reading, None, open_s, own.peak_bytes, &counters, &reference), reference))
    }

    fn engine(&self, open_s: f64, reference: &Reference) -> anyhow::Result<Measured> {
        usage::reset_peak_memory();
        let start = Instant::now();
        let store = Arc::clone(&self.dataset.store);
        let store = match self.read_delay {
            Duration::ZERO => store,
            delay => Arc::new(FaultyStore::new(store, 0..u64::MAX, Fault::Delay(delay))),
        };
        let engine = self.dataset.engine_over(store, TIMEOUT, Duration::ZERO)?;
        let open_s = open_s + start.elapsed().as_secs_f64();
        let reading = self.read("engine", |id| Ok(sum_words(engine.open_blocking(id)?.bytes())), || Ok(0.0))?;
        let counters = settled(|| Ok(engine.status_json()))?;
        let own = ProcessUsage::of("self")?;
        Ok(Measured::new("engine", &reading, Some(reading.checksum), open_s, own.peak_bytes, &counters, reference))
    }

    fn mount(&self, args: &DatasetArgs, reference: &Reference) -> anyhow::Result<Measured> {
        usage::reset_peak_memory();
        let mount = PrivateMount::start(&config_toml(self.dataset, args)?)?;
        self.check_interrupted()?;
        let mut folder = Folder::default();
        let mut buffer = MmapMut::map_anon(1 << 20)?;
        let read = |id: BatchId| {
            let path = mount.path().join(folder.path_of(&mount, id)?);
            let len = read_file(&path, &mut buffer).with_context(|| path.display().to_string())?;
            Ok(sum_words(&buffer[..len]))
        };
        let reading = self.read("mount", read, || mount.cpu_seconds())?;
        let status = mount.path().join(".shufflefs/status.json");
        let counters = settled(|| Ok(serde_json::from_str(&std::fs::read_to_string(&status)?)?))?;
        let peak = ProcessUsage::of("self")?.peak_bytes + mount.peak_bytes()?;
        Ok(Measured::new("mount", &reading, Some(reading.checksum), mount.open_s(), peak, &counters, reference))
    }

    /// Reads batch after batch of all windows; `read` gives the sum of a batch's words, `other_cpu` the CPU seconds of a server so far.
    fn read(
        &self,
        mode: &'static str,
        mut read: impl FnMut(BatchId) -> anyhow::Result<u64>,
        other_cpu: impl Fn() -> anyhow::Result<f64>,
    ) -> anyhow::Result<Reading> {
        let order = &self.dataset.order;
        let progress = self.progress(mode)?;
        let mut reading = Reading::default();
        let (start, cpu) = (Instant::now(), usage::own_cpu_seconds()? + other_cpu()?);
        for window in self.windows() {
            if !self.goes_on(reading.rows, start) {
                break;
            }
            for batch in order.window_batches(window.0, window.1) {
                self.check_interrupted()?;
                let sum = read(BatchId { pass: window.0, batch })?;
                reading.checksum = reading.checksum.wrapping_add(sum);
                reading.first_batch_s.get_or_insert_with(|| start.elapsed().as_secs_f64());
                reading.rows += u64::from(order.batch_len(window.0, batch));
                progress.set_position(reading.rows);
            }
            reading.nnz += self.nnz_of(window);
        }
        reading.seconds = start.elapsed().as_secs_f64();
        reading.cpu_s = usage::own_cpu_seconds()? + other_cpu()? - cpu;
        progress.finish_and_clear();
        self.check_interrupted()?;
        Ok(reading)
    }
}

/// The names of the batches of one directory, as the mount lists them.
#[derive(Default)]
struct Folder {
    pass: Option<Pass>,
    names: Vec<String>,
}

impl Folder {
    /// The path of a batch inside the mount.
    fn path_of(&mut self, mount: &PrivateMount, id: BatchId) -> anyhow::Result<String> {
        let folder = pass_name(id.pass);
        if self.pass != Some(id.pass) {
            let list = mount.path().join(&folder).join("batches.txt");
            let text = std::fs::read_to_string(&list).with_context(|| list.display().to_string())?;
            (self.pass, self.names) = (Some(id.pass), text.lines().map(str::to_owned).collect());
        }
        let name = self.names.get(to_usize(id.batch));
        Ok(format!("{folder}/{}", name.with_context(|| format!("{folder}/batches.txt: has no batch {}", id.batch))?))
    }
}

/// Reads a file into the front of a buffer that grows if it must; returns its length. The buffer is a mapping because it then begins at a
/// page boundary, like the pages of the batch in the server: the kernel copies page by page, in two thirds of the time.
fn read_file(path: &std::path::Path, buffer: &mut MmapMut) -> std::io::Result<usize> {
    let mut file = File::open(path)?;
    let len = to_usize(file.metadata()?.len());
    if buffer.len() < len {
        *buffer = MmapMut::map_anon(len)?;
    }
    file.read_exact(&mut buffer[..len])?;
    Ok(len)
}

/// The sum of all bytes, taken as little-endian words of 8, the last one filled up with zeros.
fn sum_words(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let sum = words.iter().fold(0_u64, |sum, &word| sum.wrapping_add(u64::from_le_bytes(word)));
    sum.wrapping_add(u64::from_le_bytes(last))
}

/// Takes as much memory as images may take and gives it back. On a virtual machine, pages that nobody used before cost their first
/// user several times what they cost the next one; without this, the first measurement that makes images would pay for all others.
fn use_memory_once(len_bytes: u64) -> anyhow::Result<()> {
    Arena::new(len_bytes)?.populate(len_bytes, None);
    Ok(())
}

/// The counters once nothing is under way any more, or after [`SETTLE_TIME`].
fn settled(status: impl Fn() -> anyhow::Result<Value>) -> anyhow::Result<Value> {
    let start = Instant::now();
    loop {
        let mut now = status()?;
        let is_idle = now["jobs"].as_array().is_none_or(Vec::is_empty);
        if is_idle || start.elapsed() > SETTLE_TIME {
            return Ok(now["counters"].take());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums() {
        assert_eq!(sum_words(&[]), 0);
        assert_eq!(sum_words(&[1, 0, 0, 0, 0, 0, 0, 0, 2, 1]), 1 + 2 + 256);
        assert_eq!(sum_words(&[0xff; 16]), u64::MAX.wrapping_mul(2));
    }
}
