//! Opens what a [`Selection`] names.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use super::columns::{ColumnKind, ColumnSource, Fault};
use super::frame::Frame;
use super::matrix::{self, Expected};
use super::node::{ElemType, Node, NodeRef};
use super::root::{Root, listing, raw_frame};
use super::{NamesChoice, ObsChoice, OpenedElement, OpenedLayout, Selection};
use crate::store::column::{Column, ColumnData, Strings};
use crate::store::error::OpenError;

/// Most categories of a column that `auto` takes.
pub const AUTO_CATEGORIES: u64 = 65_536;
/// Why a column is left out that the frame only lists.
pub const NOT_A_MEMBER: &str = "named in column-order but not a member of obs";
/// Most rows whose names `auto` keeps.
pub const AUTO_NAMES: u64 = 10_000_000;
/// Repeated names are looked for up to this many rows.
const CHECKED_NAMES: usize = 1 << 20;

/// What a container holds of a selection; becomes an [`Opened`](super::Opened) together with its file.
pub struct Selected {
    /// `csr`, `csc`, `dense`, or `no X`.
    pub x_kind: &'static str,
    /// Number of rows.
    pub n_obs: u64,
    /// Number of genes of the chosen gene axis.
    pub n_vars: u64,
    /// Their names.
    pub var_names: Strings,
    /// Names of the rows, if chosen.
    pub obs_names: Option<Strings>,
    /// X first, then layers, then obsm.
    pub elements: Vec<OpenedElement>,
    /// Columns of `obs`.
    pub columns: Vec<Column>,
    /// One flag per gene, for `genes_column`.
    pub gene_mask: Option<Vec<bool>>,
    /// What `auto` left out, and why.
    pub left_out: Vec<(String, String)>,
    /// Oddities.
    pub warnings: Vec<String>,
}

/// Opens what `selection` names below `node`.
///
/// # Errors
/// [`OpenError`] if it does not exist, cannot be served, or is damaged.
pub fn open(node: NodeRef, selection: &Selection) -> Result<Selected, OpenError> {
    let root = Root::open(node)?;
    let mut open = Opening { root: &root, warnings: Vec::new(), left_out: Vec::new() };
    let (x, raw_var) = match &selection.x {
        Some(choice) => {
            let (x, raw_var) = open.x(choice)?;
            (Some(x), raw_var)
        }
        None => (None, None),
    };
    let genes = raw_var.as_ref().unwrap_or(&root.var);
    let x_kind = match x.as_ref().map(|x| (&x.layout, &x.rewritten)) {
        Some((OpenedLayout::Sparse { .. }, None)) => "csr",
        Some((OpenedLayout::Sparse { .. }, Some(_))) => "csc",
        Some((OpenedLayout::Dense { .. }, _)) => "dense",
        None => "no X",
    };
    let mut elements: Vec<OpenedElement> = x.into_iter().collect();
    for name in unique(&root, "layers", &selection.layers)? {
        elements.push(open.layer(name, format!("layers.{name}"), raw_var.is_none())?);
    }
    for name in unique(&root, "obsm", &selection.obsm)? {
        elements.push(open.obsm(name)?);
    }
    let columns = open.columns(&selection.obs, selection.one_of_many)?;
    let var_names = genes.names()?;
    let gene_mask = match &selection.genes_column {
        Some(name) => Some(open.gene_mask(genes, name)?),
        None => None,
    };
    let obs_names = open.obs_names(selection.names)?;
    let Opening { warnings, left_out, .. } = open;
    let (n_obs, n_vars) = (root.obs.n_rows(), genes.n_rows());
    Ok(Selected { x_kind, n_obs, n_vars, var_names, obs_names, elements, columns, gene_mask, left_out, warnings })
}

/// `names`, or a refusal if one occurs twice.
fn unique<'s>(root: &Root, group: &str, names: &'s [String]) -> Result<&'s [String], OpenError> {
    let mut seen = HashSet::new();
    match names.iter().find(|name| !seen.insert(name.as_str())) {
        Some(twice) => Err(root.node.refused(&format!("{group}/{twice} was asked for twice"), "name it once")),
        None => Ok(names),
    }
}

struct Opening<'r> {
    root: &'r Root,
    warnings: Vec<String>,
    left_out: Vec<(String, String)>,
}

impl Opening<'_> {
    /// The matrix of `--x`, and the genes of `raw` if it is theirs.
    fn x(&mut self, choice: &str) -> Result<(OpenedElement, Option<Frame>), OpenError> {
        let root = self.root;
        if let Some(layer) = choice.strip_prefix("layers/") {
            return Ok((self.layer(layer, "X".to_owned(), true)?, None));
        }
        match choice {
            "X" => match root.node.child("X")? {
                Some(x) => Ok((self.matrix(x.as_ref(), "X".to_owned(), root.expected(), true)?, None)),
                None => Err(self.no_x(root.node.as_ref(), "has no X")?),
            },
            "raw/X" | "raw.X" => match &root.raw {
                Some((x, var)) => {
                    let genes = raw_frame(root, var)?;
                    let n_rows = root.obs.n_rows();
                    let expected = Expected { n_rows, cols: Some((genes.n_rows(), "raw/var")) };
                    Ok((self.matrix(x.as_ref(), "X".to_owned(), expected, true)?, Some(genes)))
                }
                None => Err(self.no_x(root.node.as_ref(), "has no raw/X")?),
            },
            other => Err(self.no_x(root.node.as_ref(), &format!("--x {other} is not X, raw/X or layers/NAME"))?),
        }
    }

    /// A refusal that lists what `--x` can be.
    fn no_x(&self, node: &dyn Node, reason: &str) -> Result<OpenError, OpenError> {
        let choices: Vec<String> = self.root.choices()?.iter().map(|c| format!("--x {c}")).collect();
        Ok(node.refused(reason, &format!("use {}", choices.join(" or "))))
    }

    /// Opens a matrix over genes; what cannot be served is refused with the alternatives.
    fn matrix(
        &mut self,
        node: &dyn Node,
        name: String,
        expected: Expected<'_>,
        gene_axis: bool,
    ) -> Result<OpenedElement, OpenError> {
        let (kind, _) = matrix::classify(node, expected)?;
        if let Some((reason, remedy)) = matrix::refusal_reason(&kind) {
            let choices: Vec<String> = self.root.choices()?.iter().map(|c| format!("--x {c}")).collect();
            let remedy = match kind {
                matrix::MatrixKind::Null => format!("use {}", choices.join(" or ")),
                _ => format!("{remedy}, or use {}", choices.join(" or ")),
            };
            return Err(node.refused(&reason, &remedy));
        }
        matrix::open(node, name, expected, gene_axis, &mut self.warnings)
    }

    fn layer(&mut self, layer: &str, name: String, gene_axis: bool) -> Result<OpenedElement, OpenError> {
        let node = match self.root.node.child("layers")? {
            Some(layers) => layers.child(layer)?,
            None => None,
        };
        match node {
            Some(node) => self.matrix(node.as_ref(), name, self.root.expected(), gene_axis),
            None => Err(self.absent("layers", layer)?),
        }
    }

    fn absent(&self, group: &str, name: &str) -> Result<OpenError, OpenError> {
        let found = self.root.keys(group)?;
        let reason = format!("has no {group}/{name}; {group} holds {}", listing(&found));
        Ok(self.root.node.refused(&reason, "name one that exists"))
    }

    fn obsm(&mut self, key: &str) -> Result<OpenedElement, OpenError> {
        let expected = Expected { n_rows: self.root.obs.n_rows(), cols: None };
        let name = format!("obsm.{key}");
        let Some(obsm) = self.root.node.child("obsm")? else { return Err(self.absent("obsm", key)?) };
        if obsm.is_group() {
            return match obsm.child(key)? {
                Some(node) => matrix::open(node.as_ref(), name, expected, false, &mut self.warnings),
                None => Err(self.absent("obsm", key)?),
            };
        }
        match obsm.info()?.elem {
            ElemType::Record(fields) => match fields.iter().find(|f| f.name == key) {
                Some(field) => matrix::open_record_field(obsm.as_ref(), field, name, expected),
                None => Err(self.absent("obsm", key)?),
            },
            other => Err(obsm.refused(&format!("is an array of {}", other.describe()), "leave it out")),
        }
    }

    fn columns(&mut self, choice: &ObsChoice, may_lack: bool) -> Result<Vec<Column>, OpenError> {
        let obs = &self.root.obs;
        match choice {
            ObsChoice::None => Ok(Vec::new()),
            ObsChoice::Columns(names) => {
                let mut columns = Vec::new();
                for name in unique(self.root, "obs", names)? {
                    let Some(source) = obs.column(name)? else {
                        if may_lack {
                            continue;
                        }
                        let reason = format!("has no column {name}; columns are {}", listing(obs.columns()));
                        return Err(obs.node().refused(&reason, "name one that exists"));
                    };
                    match source.read(obs.node(), name, obs.n_rows()) {
                        Ok(read) => {
                            self.warnings.extend(read.warnings);
                            columns.push(read.column);
                        }
                        Err(Fault::Open(error)) => return Err(error),
                        Err(Fault::Unsupported(reason)) => {
                            let element = format!("obs/{name}");
                            let path = obs.node().source().path();
                            return Err(OpenError::refused(path, element, reason, "leave it out of --obs"));
                        }
                    }
                }
                Ok(columns)
            }
            ObsChoice::Auto | ObsChoice::All => self.all_columns(*choice == ObsChoice::Auto),
        }
    }

    /// All columns that can be served; those of `auto` only.
    fn all_columns(&mut self, auto: bool) -> Result<Vec<Column>, OpenError> {
        let obs = &self.root.obs;
        for name in obs.missing() {
            self.left_out.push((format!("obs/{name}"), NOT_A_MEMBER.to_owned()));
        }
        let mut columns = Vec::new();
        for name in obs.columns() {
            let Some(source) = obs.column(name)? else { continue };
            let read = match source.kind() {
                Ok(kind) if auto && !in_auto(&kind) => Err(Fault::Unsupported(why_not_auto(&kind))),
                Ok(_) => source.read(obs.node(), name, obs.n_rows()),
                Err(fault) => Err(fault),
            };
            match read {
                Ok(read) => {
                    self.warnings.extend(read.warnings);
                    columns.push(read.column);
                }
                Err(Fault::Unsupported(reason)) => self.left_out.push((format!("obs/{name}"), reason)),
                Err(Fault::Open(error)) => return Err(error),
            }
        }
        Ok(columns)
    }

    fn obs_names(&mut self, choice: NamesChoice) -> Result<Option<Strings>, OpenError> {
        let obs = &self.root.obs;
        if !names_wanted(choice, obs.n_rows(), &mut self.left_out) {
            return Ok(None);
        }
        if !obs.has_names() {
            self.warnings.push("obs: has no index, row numbers are taken as names".to_owned());
        }
        let names = obs.names()?;
        if has_repeats(&names) {
            self.warnings.push("obs: names occur more than once; rows are told apart by their numbers".to_owned());
        }
        Ok(Some(names))
    }

    /// One flag per gene from a boolean column.
    fn gene_mask(&mut self, genes: &Frame, name: &str) -> Result<Vec<bool>, OpenError> {
        let refused = |reason: &str, remedy: &str| {
            let element = format!("{}/{name}", genes.node().path());
            OpenError::refused(genes.node().source().path(), element, reason, remedy)
        };
        let Some(source) = genes.column(name)? else {
            let flags: Vec<String> = genes.columns().iter().filter(|c| is_flag(genes, c)).cloned().collect();
            return Err(refused("does not exist", &format!("boolean columns are: {}", listing(&flags))));
        };
        let column = read_flags(&source, genes, name).map_err(|fault| match fault {
            Fault::Open(error) => error,
            Fault::Unsupported(reason) => refused(&reason, "choose a boolean column"),
        })?;
        if column.present.as_ref().is_some_and(|present| present.contains(&0)) {
            self.warnings.push(format!("{}/{name}: missing values count as false", genes.node().path()));
        }
        match column.data {
            ColumnData::Numeric { bytes, .. } => Ok(bytes.iter().map(|&b| b != 0).collect()),
            _ => Err(refused("is not boolean", "choose a boolean column")),
        }
    }
}

fn is_flag(frame: &Frame, name: &str) -> bool {
    use crate::dtype::DType;
    let kind = frame.column(name).ok().flatten().and_then(|source| source.kind().ok());
    matches!(kind, Some(ColumnKind::Number(DType::Bool) | ColumnKind::Nullable(DType::Bool)))
}

fn read_flags(source: &ColumnSource<'_>, genes: &Frame, name: &str) -> Result<Column, Fault> {
    let kind = source.kind()?;
    if !is_flag(genes, name) {
        return Err(Fault::Unsupported(format!("is {}, not boolean", kind.describe())));
    }
    Ok(source.read(genes.node(), name, genes.n_rows())?.column)
}

/// True if `--obs auto` takes a column of this kind.
#[must_use]
pub fn in_auto(kind: &ColumnKind) -> bool {
    match kind {
        ColumnKind::Number(_) | ColumnKind::Nullable(_) => true,
        ColumnKind::Categorical(n) => *n <= AUTO_CATEGORIES,
        ColumnKind::Text => false,
    }
}

fn why_not_auto(kind: &ColumnKind) -> String {
    match kind {
        ColumnKind::Categorical(n) => format!("{n} categories, more than {AUTO_CATEGORIES}; name it in --obs"),
        _ => "text; name it in --obs".to_owned(),
    }
}

/// True if the names of `n_rows` rows take part; says so if there are too many for `auto`.
pub fn names_wanted(choice: NamesChoice, n_rows: u64, left_out: &mut Vec<(String, String)>) -> bool {
    match choice {
        NamesChoice::No => false,
        NamesChoice::Yes => true,
        NamesChoice::Auto if n_rows <= AUTO_NAMES => true,
        NamesChoice::Auto => {
            let reason = format!("{n_rows} rows, more than {AUTO_NAMES}; --names yes keeps them");
            left_out.push(("obs_names".to_owned(), reason));
            false
        }
    }
}

/// True if two names are equal (or, once in 2^24 files of a million rows, seem to be). Only looked for where there are not too many.
pub fn has_repeats(names: &Strings) -> bool {
    if names.len() > CHECKED_NAMES {
        return false;
    }
    let state = RandomState::new();
    let mut hashes: Vec<u64> = (0..names.len()).map(|i| state.hash_one(names.bytes(i))).collect();
    hashes.sort_unstable();
    hashes.windows(2).any(|pair| matches!(pair, [a, b] if a == b))
}
