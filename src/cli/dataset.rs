//! Opening a dataset as the options say: store, order, encoder, memory. What every command that serves batches starts with.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};

use super::molecules::{self, Molecules};
use super::options::{DEFAULT_IO_DEPTH, Format, Options, UsageError};
use super::sources::Sources;
use super::{collect, memory, text};
use crate::batch::safetensors::Safetensors;
use crate::batch::{BatchSpec, Encoder};
use crate::order::defaults;
use crate::order::{Blocks, Order, OrderConfig, SourceRows};
use crate::store::anndata::Collected;
use crate::store::collection::Loss;
use crate::store::fingerprint::fingerprint;
use crate::store::{GeneMap, Schema, Store, Strings};
use crate::window::kept::KeptChunks;
use crate::window::sizes::Sizes;
use crate::window::{Engine, EngineConfig, KEPT_PART};

/// Windows that the default memory holds: the one that is read, the next one, and room for what readers keep open.
const DEFAULT_WINDOWS: u64 = 4;

/// Windows whose pages are made ready at the start, besides those of batches that are kept: the first one and the one after it.
const POPULATED_WINDOWS: u64 = 2;

/// Longest list of genes: no organism has so many.
const MAX_GENE_LIST_BYTES: u64 = 64 << 20;

/// Largest coalesced read: what a read buffer holds besides a chunk.
const GROUP_BYTES: u64 = 1 << 20;

/// A dataset, opened and checked, with everything that its batches follow from.
pub struct Dataset {
    /// The sources, as absolute paths.
    pub sources: Vec<PathBuf>,
    /// The options.
    pub options: Options,
    /// The rows.
    pub store: Arc<dyn Store>,
    /// Which row is where.
    pub order: Arc<Order>,
    /// What a batch looks like.
    pub spec: BatchSpec,
    /// The format.
    pub encoder: Arc<dyn Encoder>,
    /// Names of the genes in a batch, in the order of its columns.
    pub genes: Strings,
    /// Genes of the file that the dataset lacks, served as zero.
    pub missing_genes: Vec<String>,
    /// What `auto` left out: element and reason.
    pub left_out: Vec<(String, String)>,
    /// What the user should know, one line each.
    pub warnings: Vec<String>,
    /// What joining the genes of sources cost, if they differ.
    pub loss: Option<Loss>,
    /// Facts about molecules, if the sources hold such.
    pub molecules: Option<Molecules>,
    /// Memory and threads.
    pub resources: Resources,
    /// Newest modification time of the sources.
    pub modified: SystemTime,
}

/// Memory and threads of an engine.
#[derive(Debug, Clone, Copy)]
pub struct Resources {
    /// The whole budget.
    pub memory_bytes: u64,
    /// Of it, for images.
    pub image_bytes: u64,
    /// Of it, for files that the kernel reads by itself (`--io passthrough`).
    pub backing_bytes: u64,
    /// Of it, what the store holds: chunk maps, row lengths, columns, names.
    pub store_bytes: u64,
    /// Of it, buffers of threads.
    pub scratch_bytes: u64,
    /// One batch of the longest rows: what must fit.
    pub largest_batch_bytes: u64,
    /// A batch of mean rows.
    pub mean_batch_bytes: u64,
    /// Threads that decode.
    pub threads: usize,
    /// Reads under way at one time.
    pub io_depth: usize,
    /// Groups that are read ahead at one time when storage is slow.
    pub read_ahead: usize,
    /// Of the budget, for decoded chunks that are kept over epochs: all of them, or 0.
    pub kept_bytes: u64,
}

impl Dataset {
    /// Opens `sources` as `options` say.
    ///
    /// # Errors
    /// One line that names the file, the element, the reason and the way out.
    pub fn open(sources: &Sources, options: Options) -> anyhow::Result<Self> {
        let content = match sources.molecules {
            true => molecules::open(&sources.paths, &options)?,
            false => open_cells(&sources.paths, &options)?,
        };
        let Content { store, spec, encoder, genes, missing_genes, left_out, mut warnings, loss, molecules } = content;
        let order = make_order(&*store, &options, sources.shuffled)?;
        let last = order.n_rows() % u64::from(order.batch_size());
        if last == 1 && options.tail == crate::order::Tail::Keep {
            warnings.push(
                "the last batch of an epoch has one row, on which batch norm fails: --tail drop or pad".to_owned(),
            );
        }
        check_int32(&*store, &order)?;
        let resources = Resources::new(&*store, &order, &*encoder, &options)?;
        let modified = modified(&sources.paths, molecules.as_ref());
        Ok(Self {
            sources: sources.paths.clone(),
            options,
            store,
            order: Arc::new(order),
            spec,
            encoder,
            genes,
            missing_genes,
            left_out,
            warnings,
            loss,
            molecules,
            resources,
            modified,
        })
    }

    /// Starts an engine over the dataset, which may take `populate_within` to make the pages of the first windows ready.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn engine(&self, timeout: Duration, populate_within: Duration) -> anyhow::Result<Engine> {
        self.engine_over(Arc::clone(&self.store), timeout, populate_within)
    }

    /// The same over a decorated store.
    ///
    /// # Errors
    /// As [`Dataset::engine`].
    pub fn engine_over(
        &self,
        store: Arc<dyn Store>,
        timeout: Duration,
        populate_within: Duration,
    ) -> anyhow::Result<Engine> {
        let r = &self.resources;
        let window = r.mean_batch_bytes.saturating_mul(u64::from(self.order.fetch_factor()));
        let epoch = r.mean_batch_bytes.saturating_mul(self.order.n_batches(crate::order::Pass::InOrder));
        let config = EngineConfig {
            image_bytes: r.image_bytes,
            threads: r.threads,
            io_depth: r.io_depth,
            read_ahead: r.read_ahead,
            timeout,
            world_size: self.options.world_size,
            keep_chunks: r.kept_bytes > 0,
            populate_within,
            populate_bytes: window
                .saturating_mul(POPULATED_WINDOWS)
                .saturating_add(window / KEPT_PART)
                .min(r.image_bytes)
                .min(epoch.saturating_mul(2)),
        };
        Engine::start(store, Arc::clone(&self.order), Arc::clone(&self.encoder), config)
            .context("cannot start the engine")
    }

    /// The dataset's schema.
    #[must_use]
    pub fn schema(&self) -> &Schema {
        &self.spec.schema
    }
}

/// What one family of sources makes of them.
pub(super) struct Content {
    pub(super) store: Arc<dyn Store>,
    pub(super) spec: BatchSpec,
    pub(super) encoder: Arc<dyn Encoder>,
    pub(super) genes: Strings,
    pub(super) missing_genes: Vec<String>,
    pub(super) left_out: Vec<(String, String)>,
    pub(super) warnings: Vec<String>,
    pub(super) loss: Option<Loss>,
    pub(super) molecules: Option<Molecules>,
}

/// Opens sources of cells.
fn open_cells(sources: &[PathBuf], options: &Options) -> anyhow::Result<Content> {
    refuse_molecule_options(options)?;
    let Collected { mut store, gene_mask, left_out, mut warnings, loss } = collect::collect(sources, options)?;
    store.serve_as(options.x_dtype, options.index_dtype)?;
    let (choice, missing_genes) = choose_genes(store.schema(), gene_mask, options)?;
    if let Some(choice) = &choice {
        store.choose_genes(choice);
    }
    if let Some((loss, source)) = &loss {
        warnings.push(collect::loss_text(*loss, source, options.join));
    }
    let store: Arc<dyn Store> = Arc::new(store);
    let schema = Arc::new(store.schema().clone());
    let genes = batch_genes(&schema, choice.as_ref(), &missing_genes, options)?;
    let fingerprint = fingerprint(&*store, &genes, options.dense);
    let spec = BatchSpec { schema, dense: options.dense, seed: options.seed, fingerprint };
    let encoder: Arc<dyn Encoder> = Arc::new(Safetensors::new(spec.clone())?);
    let loss = loss.map(|(loss, _)| loss);
    Ok(Content { store, spec, encoder, genes, missing_genes, left_out, warnings, loss, molecules: None })
}

/// Refuses options that only make sense for molecules.
fn refuse_molecule_options(options: &Options) -> Result<(), UsageError> {
    let (option, reason) = match (options.format, &options.fields) {
        (Format::Safetensors, None) => return Ok(()),
        (Format::Safetensors, Some(_)) => {
            ("--fields".to_owned(), "is for molecules; cells have --obs, --layers, --obsm")
        }
        (format, _) => (format!("--format {}", format.name()), "is for molecules; cells are served as safetensors"),
    };
    Err(UsageError { option, reason: reason.to_owned() })
}

/// When the newest source was last modified.
fn modified(sources: &[PathBuf], molecules: Option<&Molecules>) -> SystemTime {
    let Some(molecules) = molecules else { return collect::newest(sources) };
    let files: Vec<PathBuf> = molecules.files.iter().map(|file| file.path.clone()).collect();
    collect::newest(&files).max(collect::newest(sources))
}

/// Blocks, window and order from the store and the options.
fn make_order(store: &dyn Store, options: &Options, shuffled: bool) -> anyhow::Result<Order> {
    if let (0, Some(source)) = (store.schema().n_rows, store.schema().sources.first()) {
        let others = if store.schema().sources.len() > 1 { ", nor has any other source" } else { "" };
        let what =
            if store.schema().records.is_some() { "file: has no committed molecules" } else { "obs: has no rows" };
        bail!("{}: {what}{others}; there is nothing to serve", source.path.display());
    }
    let sources: Vec<SourceRows> = store
        .chunk_borders()
        .into_iter()
        .map(|b| SourceRows { rows: b.rows, first_rows: b.first_rows, x_bytes: b.x_bytes })
        .collect();
    let blocks = match options.block_size {
        None => Blocks::auto(&sources)?,
        Some(rows) => Blocks::fixed(rows, &sources)?,
    };
    let m = options.batch_size;
    let fetch_factor = options.fetch_factor.unwrap_or_else(|| defaults::fetch_factor(&blocks, &sources, m, shuffled));
    let n_rows = store.schema().n_rows;
    let config = OrderConfig { n_rows, blocks, batch_size: m, fetch_factor, seed: options.seed, tail: options.tail };
    Ok(Order::new(config)?)
}

/// Row pointers of a batch are int32.
fn check_int32(store: &dyn Store, order: &Order) -> anyhow::Result<()> {
    for (e, element) in store.schema().elements.iter().enumerate() {
        if element.kind.has_row_lengths() {
            let (m, longest) = (u64::from(order.batch_size()), u64::from(store.max_row_len(e)));
            if m.saturating_mul(longest) > u64::from(u32::MAX >> 1) {
                bail!(
                    "{}: a batch of {m} rows of up to {longest} values exceeds int32 row pointers; use a smaller --batch-size",
                    element.name
                );
            }
        }
    }
    Ok(())
}

/// The choice of genes, and the genes of the file that the dataset lacks.
fn choose_genes(
    schema: &Schema,
    mask: Option<Vec<bool>>,
    options: &Options,
) -> anyhow::Result<(Option<GeneMap>, Vec<String>)> {
    let n = crate::num::to_usize(schema.n_vars);
    if let Some(mask) = mask {
        let column = options.selection.genes_column.clone().unwrap_or_default();
        let chosen: Vec<Option<usize>> = (0..n).filter(|&i| mask.get(i) == Some(&true)).map(Some).collect();
        if chosen.is_empty() {
            bail!("--genes var:{column}: no gene is true; choose another column");
        }
        return Ok((GeneMap::new(n, &chosen), Vec::new()));
    }
    let Some(file) = &options.genes_file else { return Ok((None, Vec::new())) };
    let wanted = read_gene_list(file)?;
    let mut by_name: HashMap<&str, (usize, bool)> = HashMap::with_capacity(n);
    for (i, name) in schema.var_names.iter().enumerate() {
        by_name.entry(name).and_modify(|(_, twice)| *twice = true).or_insert((i, false));
    }
    let (mut chosen, mut missing) = (Vec::with_capacity(wanted.len()), Vec::new());
    for name in &wanted {
        match by_name.get(name.as_str()) {
            Some((_, true)) => {
                bail!("--genes {}: the dataset has several genes called {name}; make the names unique", file.display())
            }
            Some(&(i, false)) => chosen.push(Some(i)),
            None => {
                missing.push(name.clone());
                chosen.push(None);
            }
        }
    }
    if !missing.is_empty() && !options.missing_genes_are_zero {
        let some = missing.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
        bail!(
            "--genes {}: {} of {} genes are not in the dataset ({some}{}); take them out, or --genes-missing zero",
            file.display(),
            missing.len(),
            wanted.len(),
            if missing.len() > 3 { ", ..." } else { "" }
        );
    }
    if missing.len() == wanted.len() {
        bail!(
            "--genes {}: none of its genes is in the dataset; are they names of another kind (symbols, ids)?",
            file.display()
        );
    }
    Ok((GeneMap::new(n, &chosen), missing))
}

/// One gene per line; blank lines are skipped.
fn read_gene_list(file: &Path) -> anyhow::Result<Vec<String>> {
    let context = || format!("--genes {}", file.display());
    let meta = std::fs::metadata(file).with_context(context)?;
    if !meta.is_file() || meta.len() > MAX_GENE_LIST_BYTES {
        bail!(
            "--genes {}: expected a text file of gene names, at most {}",
            file.display(),
            text::bytes(MAX_GENE_LIST_BYTES)
        );
    }
    let list = std::fs::read_to_string(file).with_context(context)?;
    // Some editors begin a text with a byte-order mark.
    let list = list.trim_start_matches('\u{feff}');
    let genes: Vec<String> = list.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if genes.is_empty() {
        bail!("--genes {}: the file names no gene; expected one name per line", file.display());
    }
    let mut seen = std::collections::HashSet::new();
    if let Some(twice) = genes.iter().find(|name| !seen.insert(name.as_str())) {
        bail!("--genes {}: {twice} is named twice", file.display());
    }
    Ok(genes)
}

/// Names of the genes of a batch.
fn batch_genes(
    schema: &Schema,
    genes: Option<&GeneMap>,
    missing: &[String],
    options: &Options,
) -> anyhow::Result<Strings> {
    let Some(genes) = genes else { return Ok(schema.var_names.clone()) };
    if let (Some(file), false) = (&options.genes_file, missing.is_empty()) {
        return Ok(read_gene_list(file)?.into_iter().collect());
    }
    let mut names = vec![""; genes.n_out() as usize];
    for (i, name) in schema.var_names.iter().enumerate() {
        if let Some(slot) = u32::try_from(i).ok().and_then(|i| genes.get(i)) {
            names[slot as usize] = name;
        }
    }
    Ok(names.into_iter().collect())
}

impl Resources {
    /// Divides the memory.
    ///
    /// # Errors
    /// If one batch of the longest rows does not fit, with the memory that would do.
    pub fn new(store: &dyn Store, order: &Order, encoder: &dyn Encoder, options: &Options) -> anyhow::Result<Self> {
        let m = order.batch_size().min(u32::try_from(order.n_rows()).unwrap_or(u32::MAX));
        let largest = page_round(Sizes::largest_buffer_bytes(store, encoder, m));
        let mean = page_round(Sizes::mean_batch_buffer_bytes(store, encoder, m));
        let store_bytes = store.resident_bytes() + order.max_resident_bytes();
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let wanted_threads = options.threads.unwrap_or(cpus);
        let io_depth = options.io_depth.unwrap_or(DEFAULT_IO_DEPTH.max(wanted_threads));
        let scratch_of = |threads: usize, read_ahead: usize| scratch_bytes(store, threads, read_ahead);
        let windows = (u64::from(order.fetch_factor()) * DEFAULT_WINDOWS)
            .min(2 * order.n_batches(crate::order::Pass::InOrder) + 8);
        let useful = largest
            + mean.saturating_mul(windows).saturating_mul(9) / 8
            + scratch_of(wanted_threads, io_depth)
            + store_bytes;
        // Decoded chunks are kept if they take at most half of what is left for data.
        let decoded = KeptChunks::needed_bytes(store).unwrap_or(u64::MAX);
        let with_chunks = useful.saturating_add(decoded).max(decoded.saturating_mul(2).saturating_add(useful / 4));
        let memory_bytes = options.memory_bytes.unwrap_or_else(|| {
            let limit = memory::available_bytes().map_or(useful, |available| available / 4);
            if with_chunks <= limit { with_chunks } else { useful.min(limit) }
        });
        // Large chunks make large buffers; rather fewer reads ahead and fewer threads than no room for images.
        let fits = |threads: usize, read_ahead: usize| {
            let scratch = scratch_of(threads, read_ahead);
            scratch <= memory_bytes / 4 && memory_bytes.saturating_sub(scratch + store_bytes) >= largest
        };
        let read_ahead = (1..=io_depth).rev().find(|&n| fits(wanted_threads, n)).unwrap_or(1);
        let threads = (1..=wanted_threads).rev().find(|&n| fits(n, read_ahead)).unwrap_or(1);
        let scratch_bytes = scratch_of(threads, read_ahead);
        let data_bytes = memory_bytes.saturating_sub(scratch_bytes + store_bytes);
        let leaves_a_batch = data_bytes.saturating_sub(decoded) >= largest;
        let kept_bytes = if decoded <= data_bytes / 2 && leaves_a_batch { decoded } else { 0 };
        let image_bytes = data_bytes - kept_bytes;
        if image_bytes < largest {
            let needed = largest + scratch_of(1, 1) + store_bytes;
            bail!(
                "--memory {}: a batch of {m} of the longest rows takes {}, buffers {}, and the index of the dataset {}; \
                 use --memory {}M or more, or a smaller --batch-size",
                text::bytes(memory_bytes),
                text::bytes(largest),
                text::bytes(scratch_bytes),
                text::bytes(store_bytes),
                needed.div_ceil(1 << 20)
            );
        }
        let (largest_batch_bytes, mean_batch_bytes) = (largest, mean);
        Ok(Self {
            memory_bytes,
            image_bytes,
            backing_bytes: 0,
            store_bytes,
            scratch_bytes,
            largest_batch_bytes,
            mean_batch_bytes,
            threads,
            io_depth,
            read_ahead,
            kept_bytes,
        })
    }
}

impl Resources {
    /// Gives half of the images' memory to files that the kernel reads by itself. Images are copied into them as they are
    /// opened, so both halves hold about as much: what is assembled ahead, and what readers hold or read again. One batch of the
    /// longest rows must fit into the images' part; where no file has room, images are served.
    pub fn share_with_files(&mut self) {
        let both = self.image_bytes.saturating_add(self.backing_bytes);
        self.image_bytes = (both / 2).max(self.largest_batch_bytes).min(both);
        self.backing_bytes = both - self.image_bytes;
    }
}

/// Buffers of all threads: per worker a group of stored bytes, a chunk read again, a decoded chunk, and as much twice over inside the filter chain;
/// per read ahead a group.
fn scratch_bytes(store: &dyn Store, threads: usize, read_ahead: usize) -> u64 {
    let decoded = (0..store.schema().parts.len()).map(|part| store.chunk_bytes(part) as u64).max().unwrap_or(0);
    let stored = store.max_stored_bytes() as u64;
    let group = GROUP_BYTES.max(stored);
    threads as u64 * (group + stored + 3 * decoded) + read_ahead as u64 * group
}

fn page_round(bytes: u64) -> u64 {
    crate::num::align_up(bytes, 4096).unwrap_or(u64::MAX / 2)
}
