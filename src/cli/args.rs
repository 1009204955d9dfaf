//! What can be typed. Nothing here looks at the system: [`super::options`] makes a validated configuration of it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use serde::{Deserialize, Serialize};

/// Mounts AnnData and Atompack datasets as directories of shuffled batch files.
#[derive(Debug, Parser)]
#[command(name = "shufflefs", version, about, max_term_width = 110, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Mount a dataset; goes to the background when the mount is ready
    Mount(MountArgs),
    /// Unmount
    Umount(UmountArgs),
    /// Show what is in a dataset and how it is stored
    Inspect(InspectArgs),
    /// Show batches, windows, memory, predicted diversity and read amplification
    Plan(PlanArgs),
    /// Write one file of the tree to standard output, without mounting
    Cat(CatArgs),
    /// Write a directory of the tree as plain files, without mounting
    Export(ExportArgs),
    /// Show the state of a mount, or list all mounts
    Status(StatusArgs),
    /// Measure how fast a dataset is decoded, made into batches, and read through a mount
    Bench(BenchArgs),
}

/// Options that decide what the batches are. Shared by all commands that serve batches, and the content of a `--config` file.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct DatasetArgs {
    /// Rows per batch file [default: 256]
    #[arg(long, value_name = "ROWS", help_heading = "Order")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<u32>,
    /// Rows that move as a unit: `auto` cuts along the chunks of X [default: auto]
    #[arg(long, value_name = "ROWS|auto", help_heading = "Order")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<String>,
    /// Batches that are fetched together and shuffled among each other [default: auto]
    #[arg(long, value_name = "BATCHES|auto", help_heading = "Order")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fetch_factor: Option<String>,
    /// Another seed is another order of every epoch [default: 0]
    #[arg(long, value_name = "N", help_heading = "Order")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// What becomes of a short last batch: keep, drop, or pad with the epoch's first rows [default: keep]
    #[arg(long, value_name = "keep|drop|pad", help_heading = "Order")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tail: Option<String>,
    /// The same as --tail drop
    #[arg(long, help_heading = "Order", conflicts_with = "tail")]
    #[serde(skip)]
    pub drop_last: bool,

    /// Format of batch files; npz, atp and extxyz are for molecules [default: safetensors]
    #[arg(long, value_name = "safetensors|npz|atp|extxyz", help_heading = "Content")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// Fields of molecules; auto is all of them [default: auto]
    #[arg(long, value_name = "auto|all|a,b", value_delimiter = ',', help_heading = "Content")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
    /// The matrix: X, raw/X, layers/NAME, or none [default: X]
    #[arg(long, value_name = "PATH", help_heading = "Content")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub x: Option<String>,
    /// Layers to serve besides X
    #[arg(long, value_name = "a,b", value_delimiter = ',', help_heading = "Content")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<String>,
    /// Keys of obsm to serve
    #[arg(long, value_name = "k1,k2", value_delimiter = ',', help_heading = "Content")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub obsm: Vec<String>,
    /// Columns of obs: auto leaves out text and very long category lists [default: auto]
    #[arg(long, value_name = "auto|all|none|c1,c2", value_delimiter = ',', help_heading = "Content")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub obs: Vec<String>,
    /// Names of the rows: auto keeps them up to 10 million rows [default: auto]
    #[arg(long, value_name = "auto|yes|no", help_heading = "Content")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub names: Option<String>,
    /// Serve a sparse X (and layers) as dense rows
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", help_heading = "Content")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dense: Option<bool>,
    /// Type of the values of X, if each is exact in it: uint8, uint16, float16, ... [default: as stored]
    #[arg(long, value_name = "DTYPE", help_heading = "Content")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub x_dtype: Option<String>,
    /// Type of the column indices: uint8, uint16, int32, int64, ... [default: int32]
    #[arg(long, value_name = "DTYPE", help_heading = "Content")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index_dtype: Option<String>,
    /// Genes of several sources that differ: those of all (inner), of any (outer, missing ones are 0), or refuse (exact) [default: inner]
    #[arg(long, value_name = "inner|outer|exact", help_heading = "Content")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub join: Option<String>,
    /// Serve these genes only, in this order: a file with one name per line, or var:COLUMN for a boolean column of var
    #[arg(long, value_name = "FILE|var:COLUMN", help_heading = "Content")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub genes: Option<String>,
    /// What to do about genes of the file that the dataset lacks [default: refuse]
    #[arg(long, value_name = "refuse|zero", help_heading = "Content")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub genes_missing: Option<String>,

    /// List rank-r-of-R directories for R ranks (any other resolves by name)
    #[arg(long, value_name = "R", help_heading = "Tree")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub world_size: Option<u32>,
    /// Batches that do not make a whole round of ranks: drop them, or repeat the epoch's first ones [default: drop]
    #[arg(long, value_name = "drop|repeat", help_heading = "Tree")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<String>,
    /// Epochs that a listing shows; any epoch resolves by name [default: 2]
    #[arg(long, value_name = "N", help_heading = "Tree")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub list_epochs: Option<u32>,

    /// Memory for data, such as 2G or 512MiB [default: what the plan can use, at most a quarter of RAM]
    #[arg(long, value_name = "SIZE", help_heading = "Resources")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Threads that decode [default: the CPUs this process may use]
    #[arg(long, value_name = "N", help_heading = "Resources")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Most reads under way at one time [default: 16, or the threads if they are more]
    #[arg(long, value_name = "N", help_heading = "Resources")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_depth: Option<u32>,
    /// Where the index of large sources is kept for the next time [default: $XDG_CACHE_HOME/shufflefs or ~/.cache/shufflefs]
    #[arg(long, value_name = "DIR", help_heading = "Resources")]
    #[serde(skip)]
    pub cache_dir: Option<PathBuf>,
    /// Take options (and sources) from a TOML file; what is typed wins
    #[arg(long, value_name = "FILE", help_heading = "Resources")]
    #[serde(skip)]
    pub config: Option<PathBuf>,

    /// Sources, in a --config file only.
    #[arg(skip)]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<PathBuf>,
}

/// `shufflefs mount`.
#[derive(Debug, Args)]
pub struct MountArgs {
    /// The dataset (PATH::GROUP for an object inside a file or store), then the mount point
    #[arg(value_name = "SOURCE... MNT", required = true)]
    pub paths: Vec<PathBuf>,
    /// What the batches are.
    #[command(flatten)]
    pub dataset: DatasetArgs,
    /// Stay in the foreground
    #[arg(short, long, help_heading = "Mount")]
    pub foreground: bool,
    /// Let other users in
    #[arg(long, help_heading = "Mount")]
    pub allow_other: bool,
    /// Owner of the files [default: you]
    #[arg(long, value_name = "UID", help_heading = "Mount")]
    pub uid: Option<u32>,
    /// Group of the files [default: yours]
    #[arg(long, value_name = "GID", help_heading = "Mount")]
    pub gid: Option<u32>,
    /// How reads are served; passthrough (root, Linux 6.9) is for batches that are read again
    #[arg(long, value_name = "auto|passthrough|direct|cached", default_value = "auto", help_heading = "Mount")]
    pub io: String,
    /// Seconds that an open waits without any progress for it
    #[arg(long, value_name = "SECONDS", default_value_t = 120, help_heading = "Mount")]
    pub timeout: u64,
    /// Seconds that open files stay readable after SIGTERM or SIGINT
    #[arg(long, value_name = "SECONDS", default_value_t = 0, help_heading = "Mount")]
    pub grace: u64,
    /// Append the log to this file
    #[arg(long, value_name = "PATH", help_heading = "Mount")]
    pub log_file: Option<PathBuf>,
    /// Log more (twice: even more)
    #[arg(short, long, action = clap::ArgAction::Count, help_heading = "Mount")]
    pub verbose: u8,
    /// Print errors only
    #[arg(short, long, help_heading = "Mount")]
    pub quiet: bool,
    /// Options as in fstab, such as -o allow_other,batch_size=512
    #[arg(short = 'o', value_name = "k=v,...", help_heading = "Mount")]
    pub fstab: Vec<String>,
}

/// `shufflefs umount`.
#[derive(Debug, Args)]
pub struct UmountArgs {
    /// The mount point
    #[arg(value_name = "MNT")]
    pub mount_point: PathBuf,
    /// Detach now, even if files are open
    #[arg(short, long)]
    pub lazy: bool,
}

/// `shufflefs inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The dataset
    #[arg(value_name = "SOURCE", required = true)]
    pub sources: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `shufflefs plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The dataset
    #[arg(value_name = "SOURCE")]
    pub sources: Vec<PathBuf>,
    /// What the batches are.
    #[command(flatten)]
    pub dataset: DatasetArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `shufflefs cat`.
#[derive(Debug, Args)]
pub struct CatArgs {
    /// The dataset
    #[arg(value_name = "SOURCE")]
    pub sources: Vec<PathBuf>,
    /// What the batches are.
    #[command(flatten)]
    pub dataset: DatasetArgs,
    /// The file, as a path inside the mount [default: the first batch of epoch 0]
    #[arg(long, value_name = "PATH")]
    pub path: Option<String>,
}

/// `shufflefs export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The dataset
    #[arg(value_name = "SOURCE")]
    pub sources: Vec<PathBuf>,
    /// What the batches are.
    #[command(flatten)]
    pub dataset: DatasetArgs,
    /// Where to write; files that are there already in full are kept
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// The directory or file to write, as a path inside the mount [default: everything that a listing shows]
    #[arg(long, value_name = "PATH")]
    pub path: Option<String>,
}

/// `shufflefs status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The mount point; without it, all mounts are listed
    #[arg(value_name = "MNT")]
    pub mount_point: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `shufflefs bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The dataset
    #[arg(value_name = "SOURCE")]
    pub sources: Vec<PathBuf>,
    /// What the batches are.
    #[command(flatten)]
    pub dataset: DatasetArgs,
    /// Also read through a private mount, which is made for this
    #[arg(long, help_heading = "Measurement")]
    pub mount: bool,
    /// Epochs to read, from epoch 0 on
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Measurement")]
    pub epochs: u32,
    /// Stop with the window that reaches N rows
    #[arg(long, value_name = "N", help_heading = "Measurement")]
    pub rows: Option<u64>,
    /// Stop each measurement with the window that reaches S seconds
    #[arg(long, value_name = "S", help_heading = "Measurement")]
    pub seconds: Option<f64>,
    /// Let each read of the engine's measurement take MS milliseconds longer, as on network storage
    #[arg(long, value_name = "MS", default_value_t = 0, help_heading = "Measurement", conflicts_with = "mount")]
    pub read_delay: u64,
    /// Print JSON, one line per measurement
    #[arg(long)]
    pub json: bool,
}

impl DatasetArgs {
    /// These options, completed by those of `base`.
    #[must_use]
    pub fn or(self, base: Self) -> Self {
        let list = |mine: Vec<String>, theirs| if mine.is_empty() { theirs } else { mine };
        Self {
            batch_size: self.batch_size.or(base.batch_size),
            block_size: self.block_size.or(base.block_size),
            fetch_factor: self.fetch_factor.or(base.fetch_factor),
            seed: self.seed.or(base.seed),
            tail: self.tail.or(if self.drop_last { None } else { base.tail }),
            drop_last: self.drop_last,
            format: self.format.or(base.format),
            fields: list(self.fields, base.fields),
            x: self.x.or(base.x),
            layers: list(self.layers, base.layers),
            obsm: list(self.obsm, base.obsm),
            obs: list(self.obs, base.obs),
            names: self.names.or(base.names),
            dense: self.dense.or(base.dense),
            x_dtype: self.x_dtype.or(base.x_dtype),
            index_dtype: self.index_dtype.or(base.index_dtype),
            join: self.join.or(base.join),
            genes: self.genes.or(base.genes),
            genes_missing: self.genes_missing.or(base.genes_missing),
            world_size: self.world_size.or(base.world_size),
            ranks: self.ranks.or(base.ranks),
            list_epochs: self.list_epochs.or(base.list_epochs),
            memory: self.memory.or(base.memory),
            threads: self.threads.or(base.threads),
            io_depth: self.io_depth.or(base.io_depth),
            cache_dir: self.cache_dir,
            config: self.config,
            sources: if self.sources.is_empty() { base.sources } else { self.sources },
        }
    }
}

/// Words of fstab that say what is so anyway, or belong to mount(8).
const FSTAB_IGNORED: [&str; 14] = [
    "defaults", "ro", "noatime", "nosuid", "nodev", "noexec", "auto", "noauto", "user", "nouser", "_netdev", "nofail",
    "async", "dev",
];

/// Replaces every `-o a,b=c` by `--a --b=c`, so that fstab and the command line have the same options.
///
/// # Errors
/// A text for options that contradict what a mount is.
pub fn expand_fstab(args: impl Iterator<Item = std::ffi::OsString>) -> Result<Vec<std::ffi::OsString>, String> {
    let mut out = Vec::new();
    let mut args = args;
    while let Some(arg) = args.next() {
        let words = match arg.to_str() {
            Some("-o") => args.next().and_then(|w| w.into_string().ok()).ok_or("-o: expected k=v,...")?,
            Some(text) if text.starts_with("-o") && !text.starts_with("--") => {
                text[2..].trim_start_matches('=').to_owned()
            }
            Some("--") => {
                out.push(arg);
                out.extend(args);
                break;
            }
            _ => {
                out.push(arg);
                continue;
            }
        };
        for word in words.split(',').filter(|w| !w.is_empty() && !FSTAB_IGNORED.contains(w) && !w.starts_with("x-")) {
            if word == "rw" {
                return Err("-o rw: the tree is read-only".to_owned());
            }
            let (key, value) = word.split_once('=').map_or((word, None), |(k, v)| (k, Some(v)));
            let key = key.replace('_', "-");
            out.push(value.map_or_else(|| format!("--{key}"), |value| format!("--{key}={value}")).into());
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn expand(words: &[&str]) -> Result<Vec<String>, String> {
        let out = expand_fstab(words.iter().map(Into::into))?;
        Ok(out.into_iter().map(|w| w.into_string().unwrap()).collect())
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn fstab_options_become_options() {
        let words = [
            "shufflefs",
            "mount",
            "-o",
            "ro,allow_other,batch_size=512,x-systemd.automount",
            "a",
            "-onoatime,seed=3",
            "b",
        ];
        let out = expand(&words).unwrap();
        assert_eq!(out, ["shufflefs", "mount", "--allow-other", "--batch-size=512", "a", "--seed=3", "b"]);
        assert!(expand(&["-o", "rw"]).unwrap_err().contains("read-only"));
        assert_eq!(expand(&["x", "--", "-o", "y"]).unwrap(), ["x", "--", "-o", "y"]);
    }

    #[test]
    fn what_is_typed_wins_over_the_file() {
        let file: DatasetArgs = toml::from_str("batch-size = 64\nseed = 7\nobs = ['a']\ndense = true").unwrap();
        let typed = DatasetArgs { seed: Some(1), obs: vec!["b".into()], ..DatasetArgs::default() };
        let both = typed.or(file);
        assert_eq!((both.batch_size, both.seed, both.dense), (Some(64), Some(1), Some(true)));
        assert_eq!(both.obs, ["b"]);
        assert!(toml::from_str::<DatasetArgs>("batch_size = 64").is_err(), "unknown keys are refused");
    }
}
