//! `shufflefs inspect`: what is in each source, how it is stored, and what reading it by rows costs.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::cli::args::{DatasetArgs, InspectArgs};
use crate::cli::collect::default_cache_folder;
use crate::cli::dataset::Dataset;
use crate::cli::describe::Plan;
use crate::cli::molecules;
use crate::cli::options::Options;
use crate::cli::sources::Sources;
use crate::cli::text::{bytes, chain, count};
use crate::store::anndata::{self, Catalog, CatalogMatrix, SourceSpec};
use crate::store::cache;

/// Decoded bytes per needed byte from which a source is called slow.
const SLOW: f64 = 4.0;

/// What reading a source by rows costs, with blocks and windows as they are by default.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
struct Reading {
    /// The matrix that is read, as `--x` names it.
    x: String,
    /// Mean rows of a block.
    block_rows: f64,
    /// Rows of a window.
    window_rows: u64,
    /// Bytes read per row.
    read_bytes_per_row: f64,
    /// Decoded bytes per needed byte; `None` if nothing is compressed.
    decoded_per_needed: Option<f64>,
    /// How to make it faster, if it is slow.
    remedy: Option<String>,
}

/// One source, as it is printed.
struct Inspected {
    path: PathBuf,
    catalog: Catalog,
    /// What reading costs, or why it cannot be told.
    reading: Result<Reading, String>,
}

/// Prints the content of each source.
pub fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let sources = Sources::resolve(&args.sources, &std::env::current_dir()?)?;
    if sources.molecules {
        return molecules::inspect::run(&sources.paths, args.json);
    }
    let mut all = Vec::new();
    for path in sources.paths {
        let catalog = anndata::catalog(&SourceSpec::parse(&path))?;
        let reading = reading(&path, &catalog).map_err(|error| chain(&error));
        all.push(Inspected { path, catalog, reading });
    }
    let text = if args.json {
        let one = |source: &Inspected| {
            let (reading, error) = (source.reading.as_ref().ok(), source.reading.as_ref().err());
            serde_json::json!({
                "source": source.path.display().to_string(),
                "content": source.catalog,
                "reading": reading,
                "reading_refused": error,
            })
        };
        serde_json::to_string_pretty(&all.iter().map(one).collect::<Vec<_>>())? + "\n"
    } else {
        let one = |source: &Inspected| {
            format!("{}\n{}{}", source.path.display(), describe(&source.catalog), describe_reading(&source.reading))
        };
        all.iter().map(one).collect::<String>() + &together(&all)
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// Opens the first matrix that can be served, without the columns, and plans a window of it.
fn reading(path: &Path, catalog: &Catalog) -> anyhow::Result<Reading> {
    let can_be_x = |m: &&CatalogMatrix| m.refused.is_none() && !m.path.starts_with("obsm/");
    let Some(matrix) = catalog.matrices.iter().find(can_be_x) else {
        anyhow::bail!("no matrix can be served; --x none serves the columns of obs")
    };
    if matrix.rewritten_bytes.is_some() {
        // How long rows are is known only after all of it was read.
        anyhow::bail!(
            "{}: rows are written first, uncompressed; shufflefs plan tells what reading them costs",
            matrix.path
        );
    }
    let args = DatasetArgs {
        x: Some(matrix.path.clone()),
        obs: vec!["none".to_owned()],
        names: Some("no".to_owned()),
        ..DatasetArgs::default()
    };
    let sources = Sources { paths: vec![path.to_owned()], ..Sources::default() };
    let dataset = Dataset::open(&sources, Options::new(&args)?)?;
    let plan = Plan::new(&dataset);
    let decoded_per_needed = plan.window_cost.amplification();
    let is_slow = decoded_per_needed.is_some_and(|a| a > SLOW);
    Ok(Reading {
        x: matrix.path.clone(),
        block_rows: dataset.order.block_stats().mean_rows,
        window_rows: plan.window_rows,
        read_bytes_per_row: plan.window_cost.bytes_read as f64 / plan.window_rows.max(1) as f64,
        decoded_per_needed,
        remedy: is_slow.then(|| remedy(matrix)),
    })
}

/// How to write a matrix so that rows are cheap.
fn remedy(matrix: &CatalogMatrix) -> String {
    let rows = matrix.rows_per_chunk.unwrap_or(0.0);
    match matrix.chunk.as_slice() {
        [_, cols] if *cols < matrix.shape[1] => format!(
            "its chunks cut rows ({cols} of {} columns): write it again in chunks of some whole rows, such as chunks=(64, {})",
            matrix.shape[1], matrix.shape[1]
        ),
        _ => format!(
            "its chunks are large ({rows:.0} rows): write it again in smaller ones, or make larger windows (--fetch-factor)"
        ),
    }
}

fn describe_reading(reading: &Result<Reading, String>) -> String {
    match reading {
        Err(why) => format!("  reading: {why}\n"),
        Ok(r) => {
            let cost =
                r.decoded_per_needed.map_or("nothing is compressed".to_owned(), |a| format!("decoded/needed {a:.2}"));
            let slow = r.remedy.as_ref().map_or(String::new(), |remedy| format!("\n  slow: {remedy}"));
            format!(
                "  reading {}: blocks of {:.1} rows, {} per row in windows of {} rows, {cost}{slow}\n",
                r.x,
                r.block_rows,
                bytes(r.read_bytes_per_row as u64),
                count(r.window_rows)
            )
        }
    }
}

/// What several sources are together: cells, and which of them are slow.
fn together(all: &[Inspected]) -> String {
    if all.len() < 2 {
        return String::new();
    }
    let cells = all.iter().map(|source| source.catalog.n_obs).fold(0, u64::saturating_add);
    let is_slow = |source: &&Inspected| source.reading.as_ref().is_ok_and(|reading| reading.remedy.is_some());
    let slow: Vec<String> = all.iter().filter(is_slow).map(|source| source.path.display().to_string()).collect();
    let slow = if slow.is_empty() { "none is slow".to_owned() } else { format!("slow: {}", slow.join(", ")) };
    format!("{} sources: {} cells; {slow}\n", count(all.len() as u64), count(cells))
}

fn describe(catalog: &Catalog) -> String {
    let mut text =
        format!("  {}: {} cells x {} genes\n", catalog.container, count(catalog.n_obs), count(catalog.n_vars));
    for matrix in &catalog.matrices {
        let _ = writeln!(text, "  {}", matrix_line(matrix));
    }
    let columns: Vec<String> = catalog
        .columns
        .iter()
        .map(|c| {
            let categories = c.n_categories.map_or(String::new(), |n| format!("[{n}]"));
            let auto = if c.auto { "" } else { ", not in --obs auto" };
            format!("{} ({}{categories}{auto})", c.name, c.kind)
        })
        .collect();
    if !columns.is_empty() {
        let _ = writeln!(text, "  obs: {}", columns.join(", "));
    }
    if !catalog.skipped.is_empty() {
        let _ = writeln!(text, "  not served: {}", catalog.skipped.join(", "));
    }
    text
}

fn matrix_line(m: &CatalogMatrix) -> String {
    let mut line =
        format!("{}: {} {} {} x {}, {} values", m.path, m.encoding, m.dtype, m.shape[0], m.shape[1], count(m.n_values));
    if m.chunk.is_empty() {
        line.push_str(", not chunked");
    } else {
        let chunk: Vec<String> = m.chunk.iter().map(u64::to_string).collect();
        let _ = write!(line, ", chunks of {}", chunk.join(" x "));
    }
    if !m.shard.is_empty() {
        let shard: Vec<String> = m.shard.iter().map(u64::to_string).collect();
        let _ = write!(line, " in shards of {}", shard.join(" x "));
    }
    if let Some(rows) = m.rows_per_chunk {
        let _ = write!(line, " ({rows:.1} rows)");
    }
    if !m.filters.is_empty() {
        let _ = write!(line, ", {}", m.filters.join(" + "));
    }
    let _ = write!(line, ", {} on disk", bytes(m.stored_bytes));
    match (&m.refused, m.rewritten_bytes) {
        (Some(why), _) => {
            let _ = write!(line, "; not served: {why}");
        }
        (None, Some(needed)) => line.push_str(&rewriting(needed)),
        (None, None) => {}
    }
    line
}

/// What it costs to serve a matrix that blocks of rows cannot serve as it is.
fn rewriting(needed_bytes: u64) -> String {
    let needed = bytes(needed_bytes);
    let text = format!("; rows are spread over all of it: the first mount writes them once, {needed}");
    match default_cache_folder() {
        None => text + ", to the folder that --cache-dir names",
        Some(folder) => {
            let at = folder.display();
            let Some(free) = cache::free_bytes(&folder) else { return format!("{text}, to {at}") };
            let how = match needed_bytes > free / cache::LARGE_FREE_SHARE {
                true => "more than a fifth of that, so --cache-dir must name a folder",
                false => "or the folder of --cache-dir",
            };
            format!("{text}, to {at} ({} free; {how})", bytes(free))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(chunk: &[u64], rows_per_chunk: f64) -> CatalogMatrix {
        CatalogMatrix {
            path: "X".into(),
            encoding: "dense".into(),
            shape: [1000, 500],
            dtype: "float32".into(),
            n_values: 500_000,
            chunk: chunk.to_vec(),
            shard: Vec::new(),
            filters: vec!["gzip(4)".into()],
            stored_bytes: 0,
            rows_per_chunk: Some(rows_per_chunk),
            rewritten_bytes: None,
            refused: None,
        }
    }

    #[test]
    fn the_remedy_fits_the_chunks() {
        assert!(remedy(&matrix(&[1000, 10], 1000.0)).contains("(10 of 500 columns)"));
        assert!(remedy(&matrix(&[900, 500], 900.0)).contains("(900 rows)"));
        assert!(remedy(&matrix(&[1_000_000], 2000.0)).contains("--fetch-factor"));
    }

    #[test]
    fn slow_sources_are_named_at_the_end() {
        let reading = |decoded: f64, remedy: Option<&str>| Reading {
            x: "X".into(),
            block_rows: 64.0,
            window_rows: 1000,
            read_bytes_per_row: 10.0,
            decoded_per_needed: Some(decoded),
            remedy: remedy.map(str::to_owned),
        };
        let source = |path: &str, reading| Inspected {
            path: path.into(),
            catalog: Catalog {
                container: "HDF5".into(),
                n_obs: 1000,
                n_vars: 500,
                matrices: vec![matrix(&[900, 500], 900.0)],
                columns: Vec::new(),
                skipped: Vec::new(),
            },
            reading,
        };
        let sources = [source("a", Ok(reading(1.0, None))), source("b", Ok(reading(9.0, Some("write it again"))))];
        assert_eq!(together(&sources), "2 sources: 2,000 cells; slow: b\n");
        assert_eq!(together(&sources[..1]), "");
        assert!(describe_reading(&sources[1].reading).ends_with("decoded/needed 9.00\n  slow: write it again\n"));
        assert!(describe_reading(&Err("no X".into())).contains("no X"));
    }
}
