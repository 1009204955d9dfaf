//! Opening the sources and joining them.
//!
//! Sources are added in order, but many small ones are opened side by side: each is a handful of reads that wait for storage, and on a
//! network that is all the time there is. A round of sources is opened by some threads, then added; few sources, which may be
//! large, are opened one by one, so that what they bring is never there twice.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::SystemTime;

use anyhow::bail;
use parking_lot::Mutex;

use super::options::{DEFAULT_IO_DEPTH, Options};
use super::progress::Shown;
use crate::store::OpenError;
use crate::store::anndata::{
    self, AUTO_CATEGORIES, AUTO_NAMES, Collected, Collector, Joining, NamesChoice, ObsChoice, Opened, Selection,
    SourceSpec,
};
use crate::store::cache::{self, CacheConfig, RewriteConfig};
use crate::store::collection::{Join, Loss};

/// Sources that are opened one by one.
const FEW: usize = 32;

/// Sources per thread and round.
const ROUND: usize = 4;

/// Opens the sources and joins them.
///
/// # Errors
/// The first source, in order, that cannot be opened or does not go with those before it.
pub fn collect(sources: &[PathBuf], options: &Options) -> anyhow::Result<Collected> {
    if sources.is_empty() {
        bail!("no SOURCE given");
    }
    let mut selection = options.selection.clone();
    selection.one_of_many = sources.len() > 1;
    let (mut collector, cache) = (Collector::new(joining(options)), cache_config(options));
    let threads = if sources.len() <= FEW { 1 } else { options.io_depth.unwrap_or(DEFAULT_IO_DEPTH) };
    for round in sources.chunks(if threads == 1 { 1 } else { threads * ROUND }) {
        if selection.names == NamesChoice::Auto && collector.n_rows() > AUTO_NAMES {
            // They are not kept for so many rows, so they need not be read.
            selection.names = NamesChoice::No;
        }
        for opened in open_round(round, &selection, &cache, threads) {
            collector.add(opened?)?;
        }
    }
    Ok(collector.finish()?)
}

/// Opens some sources with some threads; the results are in the order of the sources.
fn open_round(
    sources: &[PathBuf],
    selection: &Selection,
    cache: &CacheConfig,
    threads: usize,
) -> Vec<Result<Opened, OpenError>> {
    let open = |source: &PathBuf| anndata::open(&SourceSpec::parse(source), selection, cache);
    if threads == 1 {
        return sources.iter().map(open).collect();
    }
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(sources.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads.min(sources.len()) {
            scope.spawn(|| {
                while let Some((i, source)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, sources.get(i)?)))
                {
                    let opened = open(source);
                    results.lock().push((i, opened));
                }
            });
        }
    });
    let mut results = results.into_inner();
    results.sort_unstable_by_key(|(i, _)| *i);
    results.into_iter().map(|(_, opened)| opened).collect()
}

/// How sources become one dataset.
fn joining(options: &Options) -> Joining {
    let selection = &options.selection;
    Joining {
        genes: options.join,
        x_dtype_is_given: options.x_dtype.is_some(),
        columns: match &selection.obs {
            ObsChoice::Columns(names) => names.clone(),
            ObsChoice::Auto | ObsChoice::All | ObsChoice::None => Vec::new(),
        },
        most_categories: (selection.obs == ObsChoice::Auto).then_some(AUTO_CATEGORIES),
        most_names: (selection.names == NamesChoice::Auto).then_some(AUTO_NAMES),
    }
}

/// What a join did to the genes, in a sentence.
#[must_use]
pub fn loss_text(loss: Loss, source: &Path, how: Join) -> String {
    let Loss { n_union, n_joined, n_source, .. } = loss;
    let text = |n: usize| super::text::count(n as u64);
    let (joined, union, of_source) = (text(n_joined), text(n_union), text(n_source));
    let source = source.display();
    match how {
        Join::Outer => format!(
            "the sources have {union} genes together (--join outer); those that a source lacks are 0 in its rows; {source} \
             lacks most, {of_source}"
        ),
        Join::Inner | Join::Exact => format!(
            "{joined} of {union} genes are in all sources and are served (--join inner); {source} loses most, {of_source}; \
             --join outer serves all"
        ),
    }
}

/// The newest modification time of the sources.
#[must_use]
pub fn newest(sources: &[PathBuf]) -> SystemTime {
    let modified = |source: &PathBuf| std::fs::metadata(SourceSpec::parse(source).path).and_then(|m| m.modified()).ok();
    let times = sources.iter().filter_map(modified);
    times.max().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The cache folder of the options, else the one of the user. `$SHUFFLEFS_CACHE_MIN_ROWS` and `$SHUFFLEFS_REWRITE_MEMORY` are for tests of
/// small sources.
pub fn cache_config(options: &Options) -> CacheConfig {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let memory_bytes = options.memory_bytes.unwrap_or(RewriteConfig::DEFAULT_MEMORY_BYTES);
    let rewrite = RewriteConfig {
        planned: options.planned,
        any_size: options.cache_dir.is_some(),
        memory_bytes: number("SHUFFLEFS_REWRITE_MEMORY")
            .unwrap_or_else(|| memory_bytes.min(RewriteConfig::DEFAULT_MEMORY_BYTES)),
        progress: Arc::new(Shown::default()),
    };
    CacheConfig {
        folder: options.cache_dir.clone().or_else(default_cache_folder),
        min_rows: number("SHUFFLEFS_CACHE_MIN_ROWS").unwrap_or(CacheConfig::DEFAULT_MIN_ROWS),
        max_bytes: CacheConfig::DEFAULT_MAX_BYTES,
        rewrite,
    }
}

/// The cache folder that is used if none is named.
#[must_use]
pub fn default_cache_folder() -> Option<PathBuf> {
    let env = |name: &str| std::env::var_os(name).map(PathBuf::from);
    cache::default_folder(env("XDG_CACHE_HOME").as_deref(), env("HOME").as_deref())
}
