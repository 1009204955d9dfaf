//! What a dataset says of itself: `dataset.json`, and the summary that `mount` and `plan` print.

use serde_json::{Value, json};

use super::dataset::Dataset;
use super::text::{bytes, count, plural};
use crate::batch::fields::{categories_json, text_width};
use crate::order::{self, Pass, RankPolicy, Tail};
use crate::store::{Column, ColumnData, Element, ElementKind};
use crate::window::cost::ReadCost;

/// Classes of an example label, for which the loss of diversity is printed.
const EXAMPLE_CLASSES: u64 = 14;

/// `dataset.json`: schema, columns, categories with their counts, sources, options, order.
#[must_use]
pub fn dataset_json(d: &Dataset) -> Value {
    let schema = d.schema();
    let stats = d.order.block_stats();
    let epoch = Pass::Epoch(0);
    json!({
        "shufflefs": env!("CARGO_PKG_VERSION"),
        "fingerprint": d.spec.fingerprint,
        "n_rows": schema.n_rows,
        "n_vars": d.genes.len(),
        "n_vars_source": schema.n_vars,
        "elements": schema.elements.iter().enumerate().map(|(i, e)| element_json(d, i, e)).collect::<Vec<_>>(),
        "columns": schema.columns.iter().map(column_json).collect::<Vec<_>>(),
        "obs_names": schema.obs_names.as_ref().map(|names| json!({"width": text_width(names.max_len())})),
        "missing_genes": d.missing_genes,
        "left_out": d.left_out.iter().map(|(name, why)| json!({"name": name, "reason": why})).collect::<Vec<_>>(),
        "sources": schema.sources.iter().zip(d.order.blocks().sources()).map(|(s, (_, block_rows))| json!({
            "path": s.path.display().to_string(),
            "kind": s.kind,
            "n_vars": s.n_vars,
            "rows": [s.rows.start, s.rows.end],
            "block_rows": block_rows,
        })).collect::<Vec<_>>(),
        "order": {
            "version": order::VERSION,
            "seed": d.order.seed(),
            "batch_size": d.order.batch_size(),
            "fetch_factor": d.order.fetch_factor(),
            "tail": tail_name(d.order.tail()),
            "ranks": match d.options.ranks { RankPolicy::Drop => "drop", RankPolicy::Repeat => "repeat" },
            "n_batches": d.order.n_batches(epoch),
            "n_windows": d.order.n_windows(epoch),
            "n_batches_inorder": d.order.n_batches(Pass::InOrder),
            "blocks": blocks_json(d),
            "blocks_per_window": stats.blocks_per_window,
        },
        "join": (schema.sources.len() > 1).then(|| json!({
            "how": d.options.join.name(),
            "n_vars_all_sources": d.loss.map_or(schema.n_vars, |loss| loss.n_union as u64),
            "n_vars_joined": schema.n_vars,
        })),
        "format": d.encoder.extension(),
        "dense": d.options.dense,
        "x": d.options.selection.x,
        "genes": d.options.selection.genes_column.as_ref().map(|column| format!("var:{column}")).or_else(|| {
            d.options.genes_file.as_ref().map(|file| file.display().to_string())
        }),
    })
}

fn blocks_json(d: &Dataset) -> Value {
    let stats = d.order.block_stats();
    json!({"n": stats.n_blocks, "mean_rows": stats.mean_rows, "cv": stats.cv})
}

fn element_json(d: &Dataset, i: usize, e: &Element) -> Value {
    let encoding = if d.spec.is_csr(i) { "csr" } else { "dense" };
    let n_values = e.kind.sparse().map(|_| d.store.n_values(i));
    json!({
        "name": e.name,
        "encoding": encoding,
        "stored": match e.kind {
            ElementKind::Sparse { .. } => "csr",
            ElementKind::Dense { .. } => "dense",
            ElementKind::Mixed { .. } => "csr and dense",
        },
        "dtype": e.dtype.numpy_name(),
        "index_dtype": n_values.map(|_| e.index_dtype.numpy_name()),
        "n_cols": d.spec.n_cols_out(i),
        "n_values": n_values,
    })
}

fn column_json(column: &Column) -> Value {
    let mut value = match &column.data {
        ColumnData::Numeric { dtype, .. } => {
            json!({"kind": if *dtype == crate::dtype::DType::Bool { "bool" } else { "numeric" }, "dtype": dtype.numpy_name()})
        }
        ColumnData::Strings(s) => json!({"kind": "string", "width": text_width(s.max_len())}),
        ColumnData::Categorical { codes, categories, ordered } => {
            json!({
                "kind": "categorical",
                "ordered": ordered,
                "categories": categories_json(categories),
                "counts": codes.counts(),
                "missing": codes.n_missing(),
            })
        }
    };
    if let Value::Object(map) = &mut value {
        map.insert("name".into(), column.name.clone().into());
        if let Some(present) = &column.present {
            map.insert("nullable".into(), true.into());
            map.insert("missing".into(), present.iter().filter(|&&p| p == 0).count().into());
        }
    }
    value
}

fn tail_name(tail: Tail) -> &'static str {
    match tail {
        Tail::Keep => "keep",
        Tail::Drop => "drop",
        Tail::Pad => "pad",
    }
}

/// The facts of a plan.
#[derive(Debug)]
pub struct Plan {
    /// Cost of the first window of epoch 0.
    pub window_cost: ReadCost,
    /// Rows of that window.
    pub window_rows: u64,
    /// Mean bytes of a window's images.
    pub window_bytes: u64,
}

impl Plan {
    /// Computes the plan. Reads nothing.
    #[must_use]
    pub fn new(d: &Dataset) -> Self {
        let rows = d.order.window_rows(Pass::Epoch(0), 0);
        let batches = d.order.window_batches(Pass::Epoch(0), 0);
        Self {
            window_cost: ReadCost::of_rows(&*d.store, &rows),
            window_rows: rows.len() as u64,
            window_bytes: d.resources.mean_batch_bytes.saturating_mul(batches.end - batches.start),
        }
    }

    /// The plan as JSON.
    #[must_use]
    pub fn json(&self, d: &Dataset) -> Value {
        let stats = d.order.block_stats();
        let r = &d.resources;
        json!({
            "dataset": dataset_json(d),
            "window": {
                "rows": self.window_rows,
                "image_bytes": self.window_bytes,
                "cost": self.window_cost,
                "decoded_per_needed": self.window_cost.amplification(),
            },
            "diversity": {
                "blocks_per_window": stats.blocks_per_window,
                "effective_blocks": stats.effective_blocks(),
                "loss_bits_at_14_classes": stats.loss_bits(EXAMPLE_CLASSES),
                "one_window": stats.one_window,
                "labels": labels_json(d),
            },
            "memory": {
                "limit_bytes": r.memory_bytes,
                "image_bytes": r.image_bytes,
                "store_bytes": r.store_bytes,
                "scratch_bytes": r.scratch_bytes,
                "kept_bytes": r.kept_bytes,
                "largest_batch_bytes": r.largest_batch_bytes,
                "mean_batch_bytes": r.mean_batch_bytes,
            },
            "threads": r.threads,
            "io_depth": r.io_depth,
            "warnings": warnings(d, self),
        })
    }
}

/// Predicted entropy of each categorical column, for the columns and batches for which the law holds.
fn labels_json(d: &Dataset) -> Vec<Value> {
    let stats = d.order.block_stats();
    let columns = d.schema().columns.iter().filter_map(|column| match &column.data {
        ColumnData::Categorical { codes, categories, .. } => Some((column, codes, categories)),
        _ => None,
    });
    columns
        .map(|(column, codes, categories)| {
            let k = categories.len() as u64;
            let counts = codes.counts().iter().copied().chain([codes.n_missing()]);
            let n = codes.len().max(1) as f64;
            let bits: f64 = counts.filter(|&c| c > 0).map(|c| c as f64 / n).map(|p| -p * p.log2()).sum();
            let predicted = order::quality::mean_entropy_bits(bits, k, d.order.batch_size(), stats.effective_blocks());
            json!({"column": column.name, "classes": k, "entropy_bits": bits, "mean_batch_entropy_bits": predicted, "loss_bits": stats.loss_bits(k)})
        })
        .collect()
}

/// Everything worth a warning.
#[must_use]
pub fn warnings(d: &Dataset, plan: &Plan) -> Vec<String> {
    let mut warnings = d.warnings.clone();
    if let Some(a) = plan.window_cost.amplification().filter(|&a| a > 4.0) {
        warnings.push(format!(
            "every needed byte costs {a:.1} decoded ones, because of how the chunks lie (see shufflefs inspect); \
             larger windows (--fetch-factor) decode less, rewriting the file in row chunks helps most"
        ));
    }
    if d.resources.image_bytes < plan.window_bytes {
        warnings.push(format!(
            "a window takes {}, the memory for batches is {}: windows are assembled in parts, which decodes more; \
             raise --memory or lower --fetch-factor",
            bytes(plan.window_bytes),
            bytes(d.resources.image_bytes)
        ));
    }
    if !d.missing_genes.is_empty() {
        warnings.push(format!(
            "{} genes of the list are not in the dataset and are zero",
            count(d.missing_genes.len() as u64)
        ));
    }
    warnings
}

/// The summary, some lines of text.
#[must_use]
pub fn summary(d: &Dataset, plan: &Plan) -> String {
    let mut lines = vec![rows_line(d), batches_line(d)];
    lines.extend(sources_line(d));
    let stats = d.order.block_stats();
    let how = if d.options.block_size.is_none() && d.order.blocks().sources().all(|(_, fixed)| fixed.is_none()) {
        "along chunks"
    } else {
        "of fixed size"
    };
    let loss = stats.loss_bits(EXAMPLE_CLASSES);
    lines.push(format!(
        "blocks       {} {how}, {:.1} rows each; {:.0} per window (B), {loss:.4} bits lost at {EXAMPLE_CLASSES} classes",
        count(stats.n_blocks),
        stats.mean_rows,
        stats.blocks_per_window
    ));
    let amplification = plan
        .window_cost
        .amplification()
        .map_or("nothing is compressed".to_owned(), |a| format!("decoded/needed {a:.2}"));
    lines.push(format!("reads        {} per window, {amplification}", bytes(plan.window_cost.bytes_read)));
    let r = &d.resources;
    let files = match r.backing_bytes {
        0 => String::new(),
        n => format!("{} files of readers, ", bytes(n)),
    };
    let kept = match r.kept_bytes {
        0 => String::new(),
        n => format!("{} decoded chunks kept, ", bytes(n)),
    };
    lines.push(format!(
        "memory       {} ({} batches, {files}{kept}{} index, {} buffers), {} thread{}",
        bytes(r.memory_bytes),
        bytes(r.image_bytes),
        bytes(r.store_bytes),
        bytes(r.scratch_bytes),
        r.threads,
        plural(r.threads as u64)
    ));
    lines.push(format!("fingerprint  {}", d.spec.fingerprint));
    if !d.left_out.is_empty() {
        let left_out: Vec<String> = d.left_out.iter().map(|(name, why)| format!("{name} ({why})")).collect();
        lines.push(format!("left out     {}", left_out.join(", ")));
    }
    lines.extend(warnings(d, plan).into_iter().map(|w| format!("warning      {w}")));
    lines.join("\n")
}

fn rows_line(d: &Dataset) -> String {
    let schema = d.schema();
    let mut parts = vec![format!("{} cells x {} genes", count(schema.n_rows), count(d.genes.len() as u64))];
    for (i, e) in schema.elements.iter().enumerate() {
        let encoding = if d.spec.is_csr(i) { "csr" } else { "dense" };
        parts.push(format!("{} {encoding} {}", e.name, e.dtype));
    }
    let n_columns = schema.columns.len() as u64;
    parts.push(format!("{n_columns} obs column{}", plural(n_columns)));
    parts.push(if schema.obs_names.is_some() { "names".into() } else { "no names".into() });
    format!("rows         {}", parts.join(", "))
}

/// How many sources there are, of which kinds, and how their genes were joined; nothing for one.
fn sources_line(d: &Dataset) -> Option<String> {
    let schema = d.schema();
    if schema.sources.len() < 2 {
        return None;
    }
    let mut kinds = std::collections::BTreeMap::<&str, u64>::new();
    for source in &schema.sources {
        *kinds.entry(&source.kind).or_default() += 1;
    }
    let kinds: Vec<String> = kinds.into_iter().map(|(kind, n)| format!("{} {kind}", count(n))).collect();
    let genes = match d.loss {
        Some(loss) => {
            let (joined, all) = (count(loss.n_joined as u64), count(loss.n_union as u64));
            format!("genes joined by {}: {joined} of {all}", d.options.join.name())
        }
        None if schema.genes.as_ref().is_some_and(|genes| !genes.is_choice) => {
            "the same genes, in several orders".to_owned()
        }
        None => "the same genes".to_owned(),
    };
    Some(format!("sources      {} ({}); {genes}", count(schema.sources.len() as u64), kinds.join("; ")))
}

fn batches_line(d: &Dataset) -> String {
    let n = d.order.n_batches(Pass::Epoch(0));
    let m = d.order.batch_size();
    let last = d.order.batch_len(Pass::Epoch(0), n.saturating_sub(1));
    let tail = if last == m { String::new() } else { format!(" (the last one {last})") };
    let f = d.order.fetch_factor();
    format!(
        "batches      {} per epoch of {m} rows{tail}; m = {m}, f = {f}, windows of {} rows",
        count(n),
        count(u64::from(m) * u64::from(f))
    )
}
