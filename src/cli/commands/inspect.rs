//! `shufflefs inspect`: what is in a dataset and how it is stored.

use std::fmt::Write as _;
use std::io::Write as _;

use super::absolute;
use crate::cli::args::InspectArgs;
use crate::cli::molecules;
use crate::cli::text::{bytes, count};
use crate::store::anndata::{Catalog, CatalogMatrix, hdf5};

/// Prints the content of each source.
pub fn run(args: &InspectArgs) -> anyhow::Result<()> {
    let sources = absolute(&args.sources)?;
    if molecules::are_given(&sources)? {
        return molecules::inspect::run(&sources, args.json);
    }
    let mut catalogs = Vec::new();
    for source in sources {
        let catalog = hdf5::catalog(&source)?;
        catalogs.push((source, catalog));
    }
    let text = if args.json {
        let list: Vec<_> = catalogs
            .iter()
            .map(|(path, catalog)| serde_json::json!({"source": path.display().to_string(), "content": catalog}))
            .collect();
        serde_json::to_string_pretty(&list)? + "\n"
    } else {
        catalogs.iter().map(|(path, catalog)| format!("{}\n{}", path.display(), describe(catalog))).collect()
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
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
    if let Some(rows) = m.rows_per_chunk {
        let _ = write!(line, " ({rows:.1} rows)");
    }
    if !m.filters.is_empty() {
        let _ = write!(line, ", {}", m.filters.join(" + "));
    }
    let _ = write!(line, ", {} on disk", bytes(m.stored_bytes));
    if let Some(why) = &m.refused {
        let _ = write!(line, "; not served: {why}");
    }
    line
}
