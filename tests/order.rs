//! Golden vectors of the order, and their recomputation by an independent script from the definition in `docs/ORDER.md`.
//!
//! After a deliberate change of the order: `cargo test --test order -- --ignored write_golden`, and a line in the changelog.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use shufflefs::order::{Blocks, Order, OrderConfig, Pass, RankPolicy, Share, SourceRows, Tail, defaults};

/// What is recorded of an order is a function of this.
struct Spec {
    name: String,
    seed: u64,
    batch_size: u32,
    fetch_factor: u32,
    tail: Tail,
    block_size: Option<u32>,
    sources: Vec<SourceRows>,
    epochs: Vec<u32>,
    /// Record every row, not only a number folded from them.
    in_full: bool,
    /// (H, R); 0 leaves the level out.
    worlds: Vec<(u32, u32)>,
}

fn tail_name(tail: Tail) -> &'static str {
    match tail {
        Tail::Keep => "keep",
        Tail::Drop => "drop",
        Tail::Pad => "pad",
    }
}

/// One number that depends on every row and its place.
fn folded<'a>(rows: impl Iterator<Item = &'a u64>) -> u64 {
    rows.fold(0, |total: u64, row| total.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(row + 1))
}

impl Spec {
    fn blocks(&self) -> Blocks {
        match self.block_size {
            Some(block_rows) => Blocks::fixed(block_rows, &self.sources).unwrap(),
            None => Blocks::auto(&self.sources).unwrap(),
        }
    }

    fn order(&self) -> Order {
        let blocks = self.blocks();
        let (batch_size, fetch_factor, seed, tail) = (self.batch_size, self.fetch_factor, self.seed, self.tail);
        Order::new(OrderConfig { n_rows: blocks.n_rows(), blocks, batch_size, fetch_factor, seed, tail }).unwrap()
    }

    fn record(&self) -> Value {
        let order = self.order();
        let block_rows: Vec<u32> = order.blocks().sources().map(|(_, block_rows)| block_rows.unwrap_or(0)).collect();
        let fetch_factor = |shuffled| defaults::fetch_factor(order.blocks(), &self.sources, self.batch_size, shuffled);
        json!({
            "name": self.name,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "fetch_factor": self.fetch_factor,
            "tail": tail_name(self.tail),
            "block_size": self.block_size,
            "sources": self.sources.iter().map(|source| json!({
                "rows": [source.rows.start, source.rows.end],
                "chunk_first_rows": source.first_rows,
                "x_bytes": source.x_bytes,
            })).collect::<Vec<_>>(),
            "blocks": order.block_first_rows(),
            "block_rows": block_rows,
            "default_fetch_factors": [fetch_factor(false), fetch_factor(true)],
            "epochs": self.epochs.iter().map(|&epoch| self.record_epoch(&order, epoch)).collect::<Vec<_>>(),
            "shares": self.worlds.iter().flat_map(|&world| record_shares(&order, world)).collect::<Vec<_>>(),
        })
    }

    fn record_epoch(&self, order: &Order, epoch: u32) -> Value {
        let pass = Pass::Epoch(epoch);
        let batches: Vec<Vec<u64>> = (0..order.n_batches(pass)).map(|batch| order.batch_rows(pass, batch)).collect();
        let mut record = json!({
            "epoch": epoch,
            "lengths": batches.iter().map(Vec::len).collect::<Vec<_>>(),
            "folded": folded(batches.iter().flatten()),
        });
        if self.in_full {
            record["batches"] = json!(batches);
        }
        record
    }
}

fn record_shares(order: &Order, (n_hosts, n_ranks): (u32, u32)) -> Vec<Value> {
    let parts = |n: u32| if n == 0 { vec![None] } else { (0..n).map(|part| Some((part, n))).collect() };
    let mut records = Vec::new();
    for (policy, name) in [(RankPolicy::Drop, "drop"), (RankPolicy::Repeat, "repeat")] {
        for host in parts(n_hosts) {
            for rank in parts(n_ranks) {
                let (pass, share) = (Pass::Epoch(0), Share::new(host, rank).unwrap());
                let len = order.share_len(pass, share, policy);
                let batches: Vec<u64> = (0..len).map(|i| order.share_batch(pass, share, policy, i)).collect();
                records.push(json!({ "host": host, "rank": rank, "policy": name, "batches": batches }));
            }
        }
    }
    records
}

/// A source that follows the others, with chunks that begin every `chunk_rows` rows, more or less.
fn push_source(sources: &mut Vec<SourceRows>, n_rows: u64, chunk_rows: Option<u64>, row_bytes: u64) {
    let start = sources.last().map_or(0, |last| last.rows.end);
    let first_rows = chunk_rows.map(|chunk_rows| {
        let mut first_rows: Vec<u64> = (0..n_rows.div_ceil(chunk_rows))
            .map(|i| start + i * chunk_rows + i * i * 7 % (chunk_rows / 2 + 1))
            .collect();
        first_rows.retain(|&row| row < start + n_rows);
        first_rows
    });
    sources.push(SourceRows { rows: start..start + n_rows, first_rows, x_bytes: n_rows * row_bytes });
}

fn spec(name: &str, m_f: (u32, u32), tail: Tail, sources: &[(u64, Option<u64>, u64)]) -> Spec {
    let mut listed = Vec::new();
    for &(n_rows, chunk_rows, row_bytes) in sources {
        push_source(&mut listed, n_rows, chunk_rows, row_bytes);
    }
    Spec {
        name: name.to_owned(),
        seed: 0,
        batch_size: m_f.0,
        fetch_factor: m_f.1,
        tail,
        block_size: None,
        sources: listed,
        epochs: vec![0, 1],
        in_full: true,
        worlds: Vec::new(),
    }
}

fn golden_specs() -> Vec<Spec> {
    let three_files = [(90, Some(17), 4000), (0, Some(1), 0), (41, Some(20), 4000), (75, Some(25), 4000)];
    let mixed = [(60, None, 4000), (50, Some(16), 4000), (0, None, 0), (35, None, 4000)];
    let block_size = |b, spec: Spec| Spec { block_size: Some(b), ..spec };
    vec![
        block_size(
            8,
            Spec { worlds: vec![(0, 4)], ..spec("fixed blocks, a phase", (10, 3), Tail::Keep, &[(104, None, 0)]) },
        ),
        block_size(7, spec("fixed blocks in several sources", (8, 2), Tail::Pad, &three_files)),
        Spec {
            worlds: vec![(2, 0), (3, 0)],
            seed: 1,
            ..spec("chunks of several sources", (9, 3), Tail::Drop, &three_files)
        },
        Spec {
            seed: u64::MAX,
            epochs: vec![0, (1 << 21) - 1],
            worlds: vec![(2, 2)],
            ..spec("chunks and fixed blocks", (16, 2), Tail::Pad, &mixed)
        },
        spec(
            "small chunks joined, long runs cut",
            (12, 2),
            Tail::Keep,
            &[(100, Some(3), 1 << 20), (70, Some(40), 1 << 20)],
        ),
        Spec { worlds: vec![(0, 2), (2, 0)], ..spec("one row", (256, 4), Tail::Keep, &[(1, Some(1), 8)]) },
        spec("fewer rows than a batch, padded", (10, 2), Tail::Pad, &[(4, None, 8)]),
        block_size(1, spec("single rows in one window", (7, 100), Tail::Keep, &[(50, Some(10), 8)])),
        block_size(1000, spec("a block longer than its source", (10, 3), Tail::Keep, &[(77, None, 8), (20, None, 8)])),
        Spec {
            worlds: vec![(2, 3), (4, 0), (0, 5), (3, 2), (50, 0)],
            seed: 42,
            ..spec("hosts and ranks", (5, 3), Tail::Keep, &[(197, None, 5000)])
        },
        Spec {
            in_full: false,
            seed: 7,
            ..spec("thousands of blocks", (256, 8), Tail::Keep, &[(12_000, Some(21), 900), (9_001, None, 900)])
        },
        block_size(
            16,
            Spec { in_full: false, seed: 1 << 40, ..spec("many windows", (64, 4), Tail::Drop, &[(20_011, None, 900)]) },
        ),
    ]
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn golden_path() -> PathBuf {
    repository().join("tests/data/order/golden.json")
}

fn write_records(path: &Path, specs: &[Spec]) {
    let lines: Vec<String> = specs.iter().map(|spec| spec.record().to_string()).collect();
    std::fs::write(path, format!("[\n{}\n]\n", lines.join(",\n"))).unwrap();
}

/// Runs the script on recorded orders; `None` if there is no Python here.
fn python_agrees(records: &Path) -> Option<(bool, String)> {
    let script = repository().join("tests/order_recompute.py");
    match Command::new("python3").arg(script).arg(records).output() {
        Ok(output) => Some((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("skipped: no python3");
            None
        }
        Err(error) => panic!("python3: {error}"),
    }
}

#[test]
#[ignore = "rewrites the golden vectors"]
fn write_golden() {
    write_records(&golden_path(), &golden_specs());
}

#[test]
fn golden_vectors() {
    let golden: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(golden_path()).unwrap()).unwrap();
    let specs = golden_specs();
    assert_eq!(golden.len(), specs.len());
    for (golden, spec) in golden.iter().zip(&specs) {
        assert_eq!(golden, &spec.record(), "{}", spec.name);
    }
}

#[test]
fn python_recomputes_the_golden_vectors() {
    if let Some((agrees, message)) = python_agrees(&golden_path()) {
        assert!(agrees, "{message}");
    }
}

#[test]
fn python_recomputes_random_orders() {
    // A small generator of its own: the orders are the same in every run.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let mut specs = Vec::new();
    for i in 0..60 {
        let mut sources = Vec::new();
        for _ in 0..=below(3) {
            let chunk_rows = (below(3) > 0).then(|| 1 + below(40));
            push_source(&mut sources, below(300), chunk_rows, below(600_000));
        }
        push_source(&mut sources, 1 + below(50), None, 10);
        let n_rows = sources.iter().map(|source| source.rows.end).max().unwrap();
        let batch_size = 1 + below(40) as u32;
        let tails = [Tail::Keep, Tail::Pad, Tail::Drop];
        specs.push(Spec {
            name: format!("random order {i}"),
            seed: below(u64::MAX),
            batch_size,
            fetch_factor: 1 + below(8) as u32,
            tail: tails[below(if n_rows < u64::from(batch_size) { 2 } else { 3 }) as usize],
            block_size: (below(3) == 0).then(|| 1 + below(70) as u32),
            sources,
            epochs: vec![0, below(1 << 21) as u32],
            in_full: true,
            worlds: vec![(below(4) as u32, 1 + below(6) as u32)],
        });
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("random.json");
    write_records(&path, &specs);
    let Some((agrees, message)) = python_agrees(&path) else { return };
    assert!(agrees, "{message}");
    // The judge can say no: one row in the wrong place.
    let mut records: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    records[0]["epochs"][1]["batches"][0][0] = json!(n_rows_of(&specs[0]));
    std::fs::write(&path, serde_json::to_string(&records).unwrap()).unwrap();
    let (agrees, message) = python_agrees(&path).unwrap();
    assert!(!agrees && message.contains("random order 0: batches of epoch"), "{message}");
}

fn n_rows_of(spec: &Spec) -> u64 {
    spec.blocks().n_rows()
}

#[test]
fn document_prints_the_code_that_is_tested() {
    let document = std::fs::read_to_string(repository().join("docs/ORDER.md")).unwrap();
    let script = std::fs::read_to_string(repository().join("tests/order_recompute.py")).unwrap();
    let printed: Vec<&str> =
        document.split("```python\n").skip(1).map(|rest| rest.split("```").next().unwrap().trim_end()).collect();
    let tested: Vec<&str> = ["order", "shares"]
        .into_iter()
        .map(|region| {
            let code = script.split(&format!("# begin {region}\n")).nth(1).unwrap();
            code.split(&format!("# end {region}\n")).next().unwrap().trim_end()
        })
        .collect();
    assert_eq!(printed, tested);
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with(['#', '"']);
    assert_eq!(tested[0].lines().filter(is_code).count(), 40, "lines of Python");
}
