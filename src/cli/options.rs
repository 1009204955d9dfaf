//! From what was typed to what is meant: every option checked, defaults filled in, nothing opened yet.

use std::path::PathBuf;

use super::args::DatasetArgs;
use crate::dtype::DType;
use crate::order::{RankPolicy, Tail};
use crate::store::anndata::{NamesChoice, ObsChoice, Selection};
use crate::store::atompack::FieldsChoice;
use crate::store::collection::Join;

/// An option that does not make sense: exit code 2.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{option}: {reason}")]
pub struct UsageError {
    /// The option, as typed.
    pub option: String,
    /// What is wrong, and what would be right.
    pub reason: String,
}

fn usage(option: impl Into<String>, reason: impl Into<String>) -> UsageError {
    UsageError { option: option.into(), reason: reason.into() }
}

/// Format of batch files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Named tensors.
    Safetensors,
    /// numpy archives of molecules.
    Npz,
    /// Atompack databases.
    Atp,
    /// Extended XYZ: text.
    Extxyz,
}

impl Format {
    /// The name that is typed, also the extension of files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Npz => "npz",
            Self::Atp => "atp",
            Self::Extxyz => "extxyz",
        }
    }

    fn new(name: Option<&str>) -> Result<Self, UsageError> {
        let Some(name) = name else { return Ok(Self::Safetensors) };
        let all = [Self::Safetensors, Self::Npz, Self::Atp, Self::Extxyz];
        let expected = "expected safetensors or, for molecules, npz, atp or extxyz";
        all.into_iter().find(|format| format.name() == name).ok_or_else(|| usage(format!("--format {name}"), expected))
    }
}

/// Validated options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Rows per batch.
    pub batch_size: u32,
    /// Rows per block; `None`: along the chunks.
    pub block_size: Option<u32>,
    /// Batches per window; `None`: by the store.
    pub fetch_factor: Option<u32>,
    /// Seed of the order.
    pub seed: u64,
    /// What becomes of a short last batch.
    pub tail: Tail,
    /// Format of batch files.
    pub format: Format,
    /// Which fields of molecules take part; `None`: nothing was said.
    pub fields: Option<FieldsChoice>,
    /// Which parts of the dataset take part.
    pub selection: Selection,
    /// Sparse rows as dense ones.
    pub dense: bool,
    /// Type of the values of X; `None`: as stored.
    pub x_dtype: Option<DType>,
    /// Type of column indices; `None`: int32.
    pub index_dtype: Option<DType>,
    /// Which genes are served where sources differ.
    pub join: Join,
    /// A file of gene names.
    pub genes_file: Option<PathBuf>,
    /// Genes that the dataset lacks become zero.
    pub missing_genes_are_zero: bool,
    /// Ranks that a listing shows.
    pub world_size: Option<u32>,
    /// What becomes of batches that do not make a round.
    pub ranks: RankPolicy,
    /// Epochs that a listing shows.
    pub list_epochs: u32,
    /// Bytes of memory for data; `None`: by the plan and the machine.
    pub memory_bytes: Option<u64>,
    /// Threads that decode; `None`: by the machine.
    pub threads: Option<usize>,
    /// Reads under way at one time; `None`: by the threads.
    pub io_depth: Option<usize>,
    /// The cache folder, if one was named.
    pub cache_dir: Option<PathBuf>,
    /// Nothing will be read, so that no matrix needs to be rewritten.
    pub planned: bool,
}

/// Reads under way at one time, by default. Decoding threads read themselves while storage is fast, so no fewer than those.
pub const DEFAULT_IO_DEPTH: usize = 16;

/// Epochs that a listing shows, if nothing else is said.
const DEFAULT_LIST_EPOCHS: u32 = 2;

impl Options {
    /// Checks what was typed.
    ///
    /// # Errors
    /// [`UsageError`] naming the option, the value and what would be right.
    pub fn new(args: &DatasetArgs) -> Result<Self, UsageError> {
        let tail = match (args.drop_last, args.tail.as_deref()) {
            (true, _) | (_, Some("drop")) => Tail::Drop,
            (_, None | Some("keep")) => Tail::Keep,
            (_, Some("pad")) => Tail::Pad,
            (_, Some(other)) => return Err(usage(format!("--tail {other}"), "expected keep, drop or pad")),
        };
        let ranks = match args.ranks.as_deref() {
            None | Some("drop") => RankPolicy::Drop,
            Some("repeat") => RankPolicy::Repeat,
            Some(other) => return Err(usage(format!("--ranks {other}"), "expected drop or repeat")),
        };
        let missing_genes_are_zero = match args.genes_missing.as_deref() {
            None | Some("refuse") => false,
            Some("zero") => true,
            Some(other) => return Err(usage(format!("--genes-missing {other}"), "expected refuse or zero")),
        };
        let join = match args.join.as_deref() {
            None | Some("inner") => Join::Inner,
            Some("outer") => Join::Outer,
            Some("exact") => Join::Exact,
            Some(other) => return Err(usage(format!("--join {other}"), "expected inner, outer or exact")),
        };
        let genes_column = args.genes.as_deref().and_then(|g| g.strip_prefix("var:")).map(str::to_owned);
        let genes_file = args.genes.as_deref().filter(|_| genes_column.is_none()).map(PathBuf::from);
        Ok(Self {
            batch_size: at_least_one("--batch-size", args.batch_size)?.unwrap_or(crate::order::defaults::BATCH_SIZE),
            block_size: number_or_auto("--block-size", args.block_size.as_deref())?,
            fetch_factor: number_or_auto("--fetch-factor", args.fetch_factor.as_deref())?,
            seed: args.seed.unwrap_or(0),
            tail,
            format: Format::new(args.format.as_deref())?,
            fields: fields(args)?,
            selection: selection(args, genes_column)?,
            dense: args.dense.unwrap_or(false),
            x_dtype: dtype("--x-dtype", args.x_dtype.as_deref(), |dtype| dtype != DType::Bool)?,
            index_dtype: dtype("--index-dtype", args.index_dtype.as_deref(), |dtype| dtype.n_indices() > 0)?,
            join,
            genes_file,
            missing_genes_are_zero,
            world_size: at_least_one("--world-size", args.world_size)?,
            ranks,
            list_epochs: args.list_epochs.unwrap_or(DEFAULT_LIST_EPOCHS),
            memory_bytes: args.memory.as_deref().map(parse_size).transpose()?,
            threads: at_least_one("--threads", args.threads)?.map(|n| n as usize),
            io_depth: at_least_one("--io-depth", args.io_depth)?.map(|n| n as usize),
            cache_dir: args.cache_dir.clone(),
            planned: false,
        })
    }
}

fn selection(args: &DatasetArgs, genes_column: Option<String>) -> Result<Selection, UsageError> {
    let obs = match args.obs.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] | ["auto"] => ObsChoice::Auto,
        ["all"] => ObsChoice::All,
        ["none"] => ObsChoice::None,
        _ => ObsChoice::Columns(args.obs.clone()),
    };
    let names = match args.names.as_deref() {
        None | Some("auto") => NamesChoice::Auto,
        Some("yes") => NamesChoice::Yes,
        Some("no") => NamesChoice::No,
        Some(other) => return Err(usage(format!("--names {other}"), "expected auto, yes or no")),
    };
    let x = match args.x.as_deref() {
        None => Some("X".to_owned()),
        Some("none") => None,
        Some(path) => Some(path.to_owned()),
    };
    for (option, list) in [("--layers", &args.layers), ("--obsm", &args.obsm), ("--obs", &args.obs)] {
        refuse_twice(option, list)?;
    }
    Ok(Selection {
        x,
        layers: args.layers.clone(),
        obsm: args.obsm.clone(),
        obs,
        names,
        genes_column,
        one_of_many: false,
    })
}

fn fields(args: &DatasetArgs) -> Result<Option<FieldsChoice>, UsageError> {
    refuse_twice("--fields", &args.fields)?;
    Ok(match args.fields.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => None,
        ["auto" | "all"] => Some(FieldsChoice::All),
        _ => Some(FieldsChoice::Named(args.fields.clone())),
    })
}

fn refuse_twice(option: &str, list: &[String]) -> Result<(), UsageError> {
    match list.iter().enumerate().find_map(|(i, name)| list[..i].contains(name).then_some(name)) {
        Some(twice) => Err(usage(format!("{option} {}", list.join(",")), format!("{twice} is named twice"))),
        None => Ok(()),
    }
}

fn dtype(option: &str, name: Option<&str>, allowed: impl Fn(DType) -> bool) -> Result<Option<DType>, UsageError> {
    let Some(name) = name else { return Ok(None) };
    match DType::from_numpy_name(name).filter(|&dtype| allowed(dtype)) {
        Some(dtype) => Ok(Some(dtype)),
        None => {
            let names: Vec<_> = DType::ALL.into_iter().filter(|&d| allowed(d)).map(DType::numpy_name).collect();
            Err(usage(format!("{option} {name}"), format!("expected one of {}", names.join(", "))))
        }
    }
}

fn at_least_one(option: &str, value: Option<u32>) -> Result<Option<u32>, UsageError> {
    match value {
        Some(0) => Err(usage(format!("{option} 0"), "expected at least 1")),
        other => Ok(other),
    }
}

fn number_or_auto(option: &str, value: Option<&str>) -> Result<Option<u32>, UsageError> {
    match value {
        None | Some("auto") => Ok(None),
        Some(text) => match text.parse::<u32>() {
            Ok(n) if n > 0 => Ok(Some(n)),
            _ => Err(usage(format!("{option} {text}"), "expected auto or a number of at least 1")),
        },
    }
}

/// Parses `2G`, `512MiB`, `1.5GB`, `4096`: K, M, G, T and KiB, ... are powers of 1024, KB, ... of 1000.
///
/// # Errors
/// [`UsageError`] for anything else.
pub fn parse_size(text: &str) -> Result<u64, UsageError> {
    let bad = || usage(format!("--memory {text}"), "expected a size such as 2G, 512MiB or 1.5GB");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| bad())?;
    let unit = unit.trim().to_ascii_lowercase();
    let power = |c: &str| ["k", "m", "g", "t"].iter().position(|p| *p == c).map(|i| i32::try_from(i).unwrap_or(0) + 1);
    let factor = match unit.as_str() {
        "" | "b" => 1.0,
        u => {
            let (prefix, rest) = u.split_at(1);
            let power = power(prefix).ok_or_else(bad)?;
            match rest {
                "" | "ib" => 1024.0_f64.powi(power),
                "b" => 1000.0_f64.powi(power),
                _ => return Err(bad()),
            }
        }
    };
    let bytes = number * factor;
    // 2^53 bytes is more than any machine has.
    if !(1.0..9e15).contains(&bytes) {
        return Err(bad());
    }
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("2G", 2 << 30), ("512MiB", 512 << 20), ("1.5GB", 1_500_000_000), ("4096", 4096), ("7k", 7168)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "2X", "-1", "0", "2GiBs", "1e30", "."] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bad_options_name_the_option_and_the_way_out() {
        let bad = |args: DatasetArgs| Options::new(&args).unwrap_err().to_string();
        let args = DatasetArgs::default;
        assert_eq!(bad(DatasetArgs { tail: Some("cut".into()), ..args() }), "--tail cut: expected keep, drop or pad");
        assert!(bad(DatasetArgs { batch_size: Some(0), ..args() }).contains("--batch-size 0"));
        assert!(bad(DatasetArgs { block_size: Some("x".into()), ..args() }).contains("--block-size x"));
        assert!(bad(DatasetArgs { format: Some("npy".into()), ..args() }).contains("safetensors"));
        assert!(bad(DatasetArgs { layers: vec!["a".into(), "a".into()], ..args() }).contains("twice"));
    }

    #[test]
    fn genes_are_a_file_or_a_column() {
        let options =
            |genes: &str| Options::new(&DatasetArgs { genes: Some(genes.into()), ..DatasetArgs::default() }).unwrap();
        assert_eq!(options("var:hv").selection.genes_column.as_deref(), Some("hv"));
        assert_eq!(options("a.txt").genes_file, Some(PathBuf::from("a.txt")));
    }
}
