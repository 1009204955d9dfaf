//! What `bench` prints: a table for people, or one JSON object per measurement with the field names that benchmarks of other loaders use.

use std::io::Write as _;

use serde_json::{Value, json};

use super::{Reading, usage};
use crate::cli::args::BenchArgs;
use crate::cli::dataset::Dataset;
use crate::cli::text::{bytes, count};
use crate::window::decode_only::Decoded;

/// What a byte that rows want takes in the source, and in batches: known from the measurement that only decodes, for the windows that
/// all measurements read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reference {
    stored_per_wanted: f64,
    served_per_wanted: f64,
}

impl Reference {
    pub(super) fn new(decoded: &Decoded) -> Self {
        let wanted = decoded.counters.bytes_wanted as f64;
        Self {
            stored_per_wanted: decoded.stored_bytes / wanted,
            served_per_wanted: decoded.served_bytes as f64 / wanted,
        }
    }
}

/// One measurement.
pub(super) struct Measured {
    pub(super) mode: &'static str,
    pub(super) rows: u64,
    pub(super) checksum: Option<u64>,
    seconds: f64,
    cpu_s: f64,
    first_batch_s: Option<f64>,
    open_s: f64,
    rss_bytes: u64,
    nnz: u64,
    counters: Value,
    decoded_per_needed: Option<f64>,
    read_per_stored: Option<f64>,
    copies_per_value: Option<f64>,
}

impl Measured {
    pub(super) fn new(
        mode: &'static str,
        reading: &Reading,
        checksum: Option<u64>,
        open_s: f64,
        rss_bytes: u64,
        counters: &Value,
        reference: &Reference,
    ) -> Self {
        let counter = |name: &str| counters[name].as_u64().unwrap_or(0) as f64;
        let ratio = |a: f64, b: f64| Some(a / b).filter(|r| r.is_finite());
        let wanted = counter("bytes_wanted");
        Self {
            mode,
            rows: reading.rows,
            checksum,
            seconds: reading.seconds,
            cpu_s: reading.cpu_s,
            first_batch_s: reading.first_batch_s,
            open_s,
            rss_bytes,
            nnz: reading.nnz,
            counters: counters.clone(),
            decoded_per_needed: ratio(counter("bytes_decoded"), counter("bytes_needed")),
            read_per_stored: ratio(counter("bytes_read"), wanted * reference.stored_per_wanted),
            // Nothing is copied without batches.
            copies_per_value: checksum
                .and_then(|_| ratio(counter("bytes_copied"), wanted * reference.served_per_wanted)),
        }
    }

    fn rows_per_s(&self) -> f64 {
        self.rows as f64 / self.seconds
    }

    fn rows_per_cpu_s(&self) -> f64 {
        self.rows as f64 / self.cpu_s
    }

    fn json(&self, data: &str, config: &Value) -> Value {
        let round = |value: f64, digits: i32| {
            let scale = 10_f64.powi(digits);
            Some((value * scale).round() / scale).filter(|v| v.is_finite())
        };
        let ratio = |value: Option<f64>| value.and_then(|v| round(v, 3));
        let mut config = config.clone();
        config["mode"] = self.mode.into();
        json!({
            "bench": "shufflefs",
            "peer_version": env!("CARGO_PKG_VERSION"),
            "data": data,
            "config": config,
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
            "rows_per_s": round(self.rows_per_s(), 1),
            "cpu_s": round(self.cpu_s, 3),
            "rows_per_cpu_s": round(self.rows_per_cpu_s(), 1),
            "first_batch_s": self.first_batch_s.and_then(|s| round(s, 4)),
            "open_s": round(self.open_s, 3),
            "rss_gb": round(self.rss_bytes as f64 / 1e9, 3),
            "nnz_seen": self.nnz,
            "checksum": self.checksum.map(hex),
            "decoded_per_needed": ratio(self.decoded_per_needed),
            "read_per_stored": ratio(self.read_per_stored),
            "copies_per_value": ratio(self.copies_per_value),
            "counters": self.counters,
            "cpus": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            "load1": usage::load1(),
        })
    }
}

fn hex(checksum: u64) -> String {
    format!("{checksum:016x}")
}

/// Prints measurements as they come.
pub(super) struct Report {
    as_json: bool,
    data: String,
    config: Value,
    heading: Vec<String>,
    checksums: Vec<(&'static str, String)>,
}

impl Report {
    pub(super) fn new(d: &Dataset, args: &BenchArgs) -> Self {
        let names = d.sources.iter().map(|s| s.file_name().unwrap_or(s.as_os_str()).to_string_lossy().into_owned());
        let stats = d.order.block_stats();
        let (order, resources) = (&d.order, &d.resources);
        let config = json!({
            "batch": order.batch_size(),
            "fetch_factor": order.fetch_factor(),
            "block": d.options.block_size.map_or_else(|| json!("auto"), |rows| json!(rows)),
            "block_rows": (stats.mean_rows * 10.0).round() / 10.0,
            "blocks_per_window": stats.blocks_per_window,
            "seed": order.seed(),
            "epochs": args.epochs,
            "format": d.encoder.extension(),
            "columns": d.schema().columns.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(),
            "threads": resources.threads,
            "memory_bytes": resources.memory_bytes,
        });
        let heading = vec![
            format!(
                "{} rows x {} genes; batches of {}, windows of {} batches, blocks of {:.1} rows",
                count(order.n_rows()),
                count(d.genes.len() as u64),
                order.batch_size(),
                order.fetch_factor(),
                stats.mean_rows
            ),
            format!("{} threads, {} of memory", resources.threads, bytes(resources.memory_bytes)),
            format!(
                "{:7}{:>12}{:>9}{:>11}{:>12}{:>13}{:>8}{:>16}{:>13}{:>14}",
                "",
                "rows",
                "seconds",
                "rows/s",
                "rows/CPU-s",
                "1st batch s",
                "RSS GB",
                "decoded/needed",
                "read/stored",
                "copies/value"
            ),
        ];
        let data = names.collect::<Vec<_>>().join(" ");
        Self { as_json: args.json, data, config, heading, checksums: Vec::new() }
    }

    pub(super) fn add(&mut self, m: &Measured) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        if self.as_json {
            writeln!(out, "{}", m.json(&self.data, &self.config))?;
            return Ok(out.flush()?);
        }
        for line in self.heading.drain(..) {
            writeln!(out, "{line}")?;
        }
        let ratio = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.2}"));
        writeln!(
            out,
            "{:7}{:>12}{:>9.2}{:>11}{:>12}{:>13}{:>8.2}{:>16}{:>13}{:>14}",
            m.mode,
            count(m.rows),
            m.seconds,
            count(m.rows_per_s() as u64),
            count(m.rows_per_cpu_s() as u64),
            m.first_batch_s.map_or("-".to_owned(), |s| format!("{s:.3}")),
            m.rss_bytes as f64 / 1e9,
            ratio(m.decoded_per_needed),
            ratio(m.read_per_stored),
            ratio(m.copies_per_value),
        )?;
        self.checksums.extend(m.checksum.map(|sum| (m.mode, hex(sum))));
        Ok(out.flush()?)
    }

    /// What stands below the table.
    pub(super) fn end(self) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        if !self.checksums.is_empty() {
            let sums: Vec<String> = self.checksums.iter().map(|(mode, sum)| format!("{mode} {sum}")).collect();
            writeln!(out, "checksum of all batches: {}", sums.join(", "))?;
        }
        Ok(())
    }
}
