//! One module per subcommand.

pub mod bench;
pub mod cat;
pub mod export;
pub mod inspect;
pub mod mount;
pub mod plan;
pub mod status;
pub mod umount;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;

use super::args::DatasetArgs;
use super::dataset::Dataset;
use super::describe::dataset_json;
use super::options::{Options, UsageError};
use super::sources::Sources;
use super::{readme, with_config};
use crate::view::{DEFAULT_MAX_OPEN, LogText, Statics, Tree, TreeConfig};
use crate::window::Engine;

/// How long `cat` and `export` wait for a batch without any progress.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Who owns the nodes, and what the tree shows beside the batches.
struct Frame {
    mount_point: String,
    uid: u32,
    gid: u32,
    log: LogText,
}

impl Default for Frame {
    fn default() -> Self {
        Self { mount_point: "MNT".into(), uid: 0, gid: 0, log: Arc::new(Vec::new) }
    }
}

/// Makes paths absolute: a daemon works in `/`.
fn absolute(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    paths.iter().map(|p| std::path::absolute(p).with_context(|| p.display().to_string())).collect()
}

/// The sources of a command: what was typed, or what the `--config` file names.
fn sources_of(typed: &[PathBuf], args: &DatasetArgs) -> anyhow::Result<Sources> {
    let sources = if typed.is_empty() { &args.sources } else { typed };
    if sources.is_empty() {
        return Err(UsageError { option: "SOURCE".into(), reason: "no source given".into() }.into());
    }
    Sources::resolve(sources, &std::env::current_dir()?)
}

/// Options, completed, with absolute paths; and what they mean.
fn options_of(args: DatasetArgs) -> anyhow::Result<(DatasetArgs, Options)> {
    let mut args = with_config(args)?;
    if let Some(genes) = args.genes.as_deref().filter(|g| !g.starts_with("var:")) {
        args.genes = Some(absolute(&[PathBuf::from(genes)])?[0].display().to_string());
    }
    if let Some(folder) = args.cache_dir.take() {
        args.cache_dir = absolute(&[folder])?.pop();
    }
    let options = Options::new(&args)?;
    Ok((args, options))
}

/// The tree over a dataset for this process alone.
fn own_tree_of(dataset: &Dataset, args: &DatasetArgs) -> anyhow::Result<Tree> {
    tree_of(dataset, args, Frame::default(), dataset.engine(TIMEOUT, Duration::ZERO)?)
}

/// The tree over a dataset, with an engine of [`Dataset::engine`].
fn tree_of(dataset: &Dataset, args: &DatasetArgs, frame: Frame, engine: Engine) -> anyhow::Result<Tree> {
    let config = TreeConfig {
        order: Arc::clone(&dataset.order),
        batches: Arc::new(engine),
        extension: dataset.encoder.extension().to_owned(),
        statics: statics(dataset, args, &frame.mount_point)?,
        list_epochs: dataset.options.list_epochs,
        world_size: dataset.options.world_size,
        rank_policy: dataset.options.ranks,
        uid: frame.uid,
        gid: frame.gid,
        mtime: dataset.modified,
        log: frame.log,
        max_open: DEFAULT_MAX_OPEN,
    };
    Ok(Tree::new(config)?)
}

fn statics(dataset: &Dataset, args: &DatasetArgs, mount_point: &str) -> anyhow::Result<Statics> {
    let mut dataset_json = serde_json::to_string_pretty(&dataset_json(dataset))?;
    dataset_json.push('\n');
    let var_names = (!dataset.genes.is_empty()).then(|| {
        let mut text = String::new();
        for gene in dataset.genes.iter() {
            text.push_str(gene);
            text.push('\n');
        }
        text.into_bytes()
    });
    Ok(Statics {
        readme: readme::readme(dataset, mount_point).into_bytes(),
        dataset_json: dataset_json.into_bytes(),
        var_names,
        config_toml: config_toml(dataset, args)?.into_bytes(),
    })
}

/// The options of a mount as a `--config` file that makes the same batches. What was automatic is written out.
fn config_toml(dataset: &Dataset, args: &DatasetArgs) -> anyhow::Result<String> {
    let mut args = args.clone();
    args.sources.clone_from(&dataset.sources);
    args.batch_size = Some(dataset.order.batch_size());
    args.fetch_factor = Some(dataset.order.fetch_factor().to_string());
    args.block_size = Some(dataset.options.block_size.map_or_else(|| "auto".into(), |b| b.to_string()));
    args.seed = Some(dataset.order.seed());
    if args.drop_last {
        args.tail = Some("drop".into());
    }
    Ok(toml::to_string(&args)?)
}

/// A path of the tree without leading or trailing slashes.
fn tree_path(path: &str) -> &str {
    path.trim_matches('/')
}

/// Says what is wrong with a path that does not exist in the tree.
fn no_such_path(path: &str, dataset: &Dataset) -> anyhow::Error {
    let n = dataset.order.n_batches(crate::order::Pass::Epoch(0));
    anyhow::anyhow!(
        "--path {path}: no such file in the tree; an epoch has {n} batches, such as epoch-00000/batch-0000000.{}",
        dataset.encoder.extension()
    )
}

/// True if both name the same place.
fn same_place(a: &Path, b: &Path) -> bool {
    a == b || matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}
