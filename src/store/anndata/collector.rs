//! Sources put together into one [`AnnDataStore`], one after the other.
//!
//! What a source brings is taken apart as it comes: its chunk maps and row lengths go to the elements, its columns to the end of the columns
//! so far, its genes to the lists of genes, so that ten thousand sources never exist side by side. Which parts an element has, its
//! type, and where genes go is settled when the last one is there.
//!
//! The elements are those of the first source; every other one must have them, since a missing layer is no layer of zeros. An element that is sparse
//! here and dense there is served dense.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::select::NOT_A_MEMBER;
use super::store::{AnnDataStore, SourcePart, StoredPart};
use super::{Opened, OpenedElement, OpenedLayout};
use crate::dtype::DType;
use crate::num::{to_u64, to_usize};
use crate::store::chunk_map::ChunkMap;
use crate::store::collection::genes::FlagsDiffer;
use crate::store::collection::{ColumnFault, ColumnJoiner, GeneFault, GeneFlags, GeneLists, Join, Loss};
use crate::store::column::Strings;
use crate::store::error::OpenError;
use crate::store::files::Files;
use crate::store::rows::RowLengths;
use crate::store::{Element, ElementKind, Part, PartId, PartRole, Schema, SourceInfo};

/// How sources become one dataset.
#[derive(Debug, Clone, Default)]
pub struct Joining {
    /// Which genes are served where sources differ.
    pub genes: Join,
    /// True if X is going to be served in a type of its own ([`AnnDataStore::serve_as`]), so that the types of the sources need
    /// not have one in common.
    pub x_dtype_is_given: bool,
    /// Columns of `obs` in the order in which they were asked for, if they were; each must be in one source at least.
    pub columns: Vec<String>,
    /// Most categories of a column, over all sources; columns with more are left out. `None`: any number.
    pub most_categories: Option<u64>,
    /// Most rows whose names are kept. `None`: any number.
    pub most_names: Option<u64>,
}

/// The dataset, and what is to be said of it.
pub struct Collected {
    /// The rows.
    pub store: AnnDataStore,
    /// For a choice of genes by a column: one flag per joined gene.
    pub gene_mask: Option<Vec<bool>>,
    /// What was left out, and why.
    pub left_out: Vec<(String, String)>,
    /// Oddities, one line each.
    pub warnings: Vec<String>,
    /// What joining the genes cost, with the source that differs most.
    pub loss: Option<(Loss, PathBuf)>,
}

/// Takes sources in.
pub struct Collector {
    joining: Joining,
    files: Files,
    sources: Vec<SourceInfo>,
    n_rows: u64,
    elements: Vec<Gathered>,
    genes: GeneLists,
    flags: GeneFlags,
    columns: ColumnJoiner,
    /// Columns that a source left out although it has them: the first source, and why.
    left_out: Vec<LeftOut>,
    names: Option<Strings>,
    warnings: Warnings,
}

/// Something that a source did not serve.
struct LeftOut {
    name: String,
    reason: String,
    source: usize,
    n_sources: usize,
}

/// One element of all sources so far.
struct Gathered {
    name: String,
    path: String,
    gene_axis: bool,
    n_cols: u64,
    dtype: DType,
    /// The first source of this type.
    dtype_source: usize,
    data: GatheredPart,
    indices: GatheredPart,
    values: GatheredPart,
    /// By source; `None` where it is dense.
    lengths: Vec<Option<Arc<RowLengths>>>,
}

/// One part of all sources so far.
#[derive(Default)]
struct GatheredPart {
    sources: Vec<SourcePart>,
    n_chunks: u32,
}

impl Collector {
    /// A dataset without a source.
    #[must_use]
    pub fn new(joining: Joining) -> Self {
        Self {
            joining,
            files: Files::default(),
            sources: Vec::new(),
            n_rows: 0,
            elements: Vec::new(),
            genes: GeneLists::default(),
            flags: GeneFlags::default(),
            columns: ColumnJoiner::default(),
            left_out: Vec::new(),
            names: Some(Strings::default()),
            warnings: Warnings::default(),
        }
    }

    /// Rows so far.
    #[must_use]
    pub fn n_rows(&self) -> u64 {
        self.n_rows
    }

    /// Adds the next source.
    ///
    /// # Errors
    /// [`OpenError::Refused`] if it does not go with the sources before it, naming both, or if there are more than 2^32 chunks.
    pub fn add(&mut self, source: Opened) -> Result<(), OpenError> {
        let number = self.sources.len();
        let absolute = std::path::absolute(&source.path).unwrap_or_else(|_| source.path.clone());
        let rows = self.n_rows..self.n_rows.saturating_add(source.n_obs);
        self.n_rows = rows.end;
        self.sources.push(SourceInfo { path: absolute, kind: source.kind, rows, n_vars: source.n_vars });
        let Some(first_file) = self.files.append(source.files) else {
            let reason = "more than 2^32 files in all sources";
            return Err(self.refused(number, "file", reason, "mount fewer of them"));
        };
        self.warnings.add(&self.sources, source.warnings);
        for (name, reason) in source.left_out {
            match self.left_out.iter_mut().find(|known| known.name == name) {
                Some(known) => known.n_sources += 1,
                None => self.left_out.push(LeftOut { name, reason, source: number, n_sources: 1 }),
            }
        }
        let list = self.genes.add(source.var_names);
        if let Some(flags) = source.gene_mask {
            self.flags.add(number, list, flags);
        }
        match (&mut self.names, source.obs_names) {
            (Some(all), Some(names)) if number == 0 => *all = names,
            (Some(all), Some(names)) => names.iter().for_each(|name| all.push(name)),
            (names, _) => *names = None,
        }
        if self.joining.most_names.is_some_and(|most| self.n_rows > most) {
            self.names = None;
        }
        let n_obs = to_usize(source.n_obs);
        self.columns.add(source.columns, n_obs).map_err(|fault| self.refuse_column(fault))?;
        self.add_elements(source.elements, first_file)
    }

    fn add_elements(&mut self, elements: Vec<OpenedElement>, first_file: u32) -> Result<(), OpenError> {
        let number = self.sources.len() - 1;
        if number == 0 {
            self.elements = elements.iter().map(Gathered::new).collect();
        }
        // All sources are opened with one selection, so they have the same elements in the same order.
        for i in 0..self.elements.len() {
            let Some(element) = elements.get(i).filter(|element| element.name == self.elements[i].name) else {
                let name = &self.elements[i].name;
                return Err(self.refused(number, name, "is not there, but in other sources", "leave it out"));
            };
            self.check_element(i, element)?;
        }
        for (gathered, element) in self.elements.iter_mut().zip(elements) {
            let name = element.path.clone();
            if let Err(n) = gathered.add(element, first_file) {
                let reason = format!("{n} chunks in all sources");
                return Err(self.refused(number, &name, reason, "write it again with larger chunks"));
            }
        }
        Ok(())
    }

    /// Checks that an element goes with those of the sources before, and settles its type.
    fn check_element(&mut self, i: usize, element: &OpenedElement) -> Result<(), OpenError> {
        let number = self.sources.len() - 1;
        let (gathered, dtype) = (&self.elements[i], element.layout.dtype());
        if !element.gene_axis && element.n_cols != gathered.n_cols {
            let reason = format!("has {} columns, {} in {}", element.n_cols, gathered.n_cols, self.path(0).display());
            return Err(self.refused(number, &element.path, reason, format!("leave {} out", element.name)));
        }
        if number == 0 || dtype == gathered.dtype {
            return Ok(());
        }
        match gathered.dtype.common(dtype) {
            Some(common) if common == gathered.dtype => {}
            Some(common) => {
                self.elements[i].dtype = common;
                self.elements[i].dtype_source = number;
            }
            None if self.joining.x_dtype_is_given && element.name == "X" => {}
            None => {
                let (first, name) = (gathered.dtype_source, &element.name);
                let reason = format!(
                    "is {dtype}, but {} up to {}, and no type holds both",
                    gathered.dtype,
                    self.path(first).display()
                );
                let remedy = match name.as_str() {
                    "X" => "choose one by --x-dtype, such as float32: each value is checked",
                    _ => "leave it out, or write it again in one type",
                };
                return Err(self.refused(number, &element.path, reason, remedy));
            }
        }
        Ok(())
    }

    /// Settles what depends on all sources.
    ///
    /// # Errors
    /// [`OpenError::Refused`] if their genes cannot be joined as asked for, naming the source.
    pub fn finish(mut self) -> Result<Collected, OpenError> {
        let (how, sources) = (self.joining.genes, std::mem::take(&mut self.sources));
        let joined = std::mem::take(&mut self.genes).join(how).map_err(|fault| refuse_genes(&sources, how, fault))?;
        let gene_mask = std::mem::take(&mut self.flags).join(&joined.served);
        let gene_mask = gene_mask.map_err(|differ| refuse_flags(&sources, &joined.names, differ))?;
        let n_vars = to_u64(joined.names.len());
        let loss = joined.loss.map(|loss| (loss, sources[loss.source].path.clone()));
        let mut left_out = self.settle_left_out(&sources);
        if let (Some(name), Some(source)) =
            (self.joining.columns.iter().find(|c| !self.columns.has(c)), sources.first())
        {
            let reason = format!("neither this nor any other source has a column {name}");
            return Err(OpenError::refused(
                &source.path,
                "obs",
                reason,
                "name one that exists (see shufflefs inspect)",
            ));
        }
        let mut columns = std::mem::take(&mut self.columns).finish();
        self.warnings.say(columns.unordered.iter().map(|name| {
            format!("obs/{name}: sources order its categories differently, or not at all: served as not ordered")
        }));
        let most = self.joining.most_categories.unwrap_or(u64::MAX);
        left_out.extend(columns.take_long_tables(most).into_iter().map(|(name, n)| {
            (format!("obs/{name}"), format!("{n} categories in all sources, more than {most}; name it in --obs"))
        }));
        // A column that one source serves and another has but does not serve would look as if its values were missing.
        let has_more = self.left_out.iter().filter(|l| l.reason != NOT_A_MEMBER);
        let withheld: Vec<&str> = has_more.filter_map(|l| l.name.strip_prefix("obs/")).collect();
        columns.columns.retain(|column| !withheld.contains(&column.name.as_str()));
        let place = |name: &String| self.joining.columns.iter().position(|asked| asked == name);
        columns.columns.sort_by_key(|column| place(&column.name));
        if let (Some(most), true) = (self.joining.most_names, self.names.is_none())
            && self.n_rows > most
            && !left_out.iter().any(|(name, _)| name == "obs_names")
        {
            let reason = format!("{} rows, more than {most}; --names yes keeps them", self.n_rows);
            left_out.push(("obs_names".to_owned(), reason));
        }
        let served = Some(joined.served).filter(|served| !served.is_identity()).map(Arc::new);
        let schema = Schema {
            n_rows: self.n_rows,
            n_vars,
            var_names: joined.names,
            genes: served,
            elements: Vec::new(),
            parts: Vec::new(),
            columns: columns.columns,
            obs_names: self.names.take(),
            sources,
        };
        let mut store = AnnDataStore::empty(schema, std::mem::take(&mut self.files));
        for element in self.elements {
            element.finish(&mut store, n_vars);
        }
        Ok(Collected { store, gene_mask, left_out, warnings: self.warnings.finish(), loss })
    }

    /// What sources left out, told once each.
    fn settle_left_out(&self, sources: &[SourceInfo]) -> Vec<(String, String)> {
        let n = sources.len();
        let tell = |l: &LeftOut| match (n, l.n_sources) {
            (1, _) => (l.name.clone(), l.reason.clone()),
            (_, here) if here == n => (l.name.clone(), format!("{}, in all sources", l.reason)),
            (_, here) => (
                l.name.clone(),
                format!("{}, in {here} of {n} sources: {}", l.reason, sources[l.source].path.display()),
            ),
        };
        self.left_out.iter().map(tell).collect()
    }

    fn path(&self, source: usize) -> &Path {
        &self.sources[source].path
    }

    fn refused(&self, source: usize, element: &str, reason: impl Into<String>, remedy: impl Into<String>) -> OpenError {
        OpenError::refused(self.path(source), element, reason, remedy)
    }

    fn refuse_column(&self, fault: ColumnFault) -> OpenError {
        let reason = format!("does not go with the column of {}: {}", self.path(fault.first).display(), fault.reason);
        let remedy = "name other columns in --obs, or write one of the files again";
        self.refused(fault.second, &format!("obs/{}", fault.name), reason, remedy)
    }
}

fn refuse_genes(sources: &[SourceInfo], how: Join, fault: GeneFault) -> OpenError {
    let first = sources.first().map_or_else(Default::default, |source| source.path.display().to_string());
    let refused =
        |source: usize, reason: String, remedy: &str| OpenError::refused(&sources[source].path, "var", reason, remedy);
    match fault {
        GeneFault::Twice { source, name } => refused(
            source,
            format!("{name} occurs twice, so that genes cannot be joined by name (sources differ in their genes)"),
            "make the names unique: adata.var_names_make_unique()",
        ),
        GeneFault::Disjoint { source, examples } => refused(
            source,
            format!("has no gene in common with the sources before it ({})", examples.join(" there, ") + " here"),
            "are they names of another kind (symbols, ids)? --join outer serves all genes of all",
        ),
        GeneFault::Differs { source, n, examples } => {
            let dots = if n > examples.len() { ", ..." } else { "" };
            let reason = format!("and {first} differ in {n} genes ({}{dots})", examples.join(", "));
            refused(source, reason, "use --join inner or --join outer")
        }
        GeneFault::TooMany { n } => {
            refused(0, format!("{n} genes in all sources"), &format!("--join {} cannot number them", how.name()))
        }
    }
}

fn refuse_flags(sources: &[SourceInfo], genes: &Strings, differ: FlagsDiffer) -> OpenError {
    let first = sources[differ.first].path.display();
    let reason =
        format!("the column of --genes differs from that of {first}, first at gene {}", genes.get(differ.gene));
    OpenError::refused(&sources[differ.second].path, "var", reason, "name the genes in a file: --genes FILE")
}

impl Gathered {
    fn new(element: &OpenedElement) -> Self {
        Self {
            name: element.name.clone(),
            path: element.path.clone(),
            gene_axis: element.gene_axis,
            n_cols: element.n_cols,
            dtype: element.layout.dtype(),
            dtype_source: 0,
            data: GatheredPart::default(),
            indices: GatheredPart::default(),
            values: GatheredPart::default(),
            lengths: Vec::new(),
        }
    }

    /// Adds the arrays of a source; fails with the number of chunks if they cannot be numbered.
    fn add(&mut self, element: OpenedElement, first_file: u32) -> Result<(), u64> {
        let path: Arc<str> = element.path.into();
        let (lengths, data, indices, values) = match element.layout {
            OpenedLayout::Sparse { lengths, data, indices } => (Some(lengths), Some(data), Some(indices), None),
            OpenedLayout::Dense { values } => (None, None, None, Some(values)),
        };
        let source = self.lengths.len();
        self.lengths.push(lengths);
        for (part, map) in [(&mut self.data, data), (&mut self.indices, indices), (&mut self.values, values)] {
            map.map_or(Ok(()), |map| part.add(source, map, &path, first_file))?;
        }
        Ok(())
    }

    /// Makes an element of it.
    fn finish(self, store: &mut AnnDataStore, n_vars: u64) {
        let element = store.schema.elements.len();
        let is_dense: Vec<bool> = self.lengths.iter().map(Option::is_none).collect();
        let (any_dense, any_sparse) = (is_dense.contains(&true), is_dense.contains(&false));
        let path = self.path;
        let sparse = any_sparse.then(|| {
            let data = add_part(store, element, PartRole::Values, self.data, format!("{path}/data"));
            (data, add_part(store, element, PartRole::Indices, self.indices, format!("{path}/indices")))
        });
        let dense = any_dense.then(|| add_part(store, element, PartRole::Values, self.values, path.clone()));
        let kind = match (sparse, dense) {
            (Some((data, indices)), Some(values)) => ElementKind::Mixed { data, indices, values },
            (Some((data, indices)), None) => ElementKind::Sparse { data, indices },
            // An element comes with at least one source.
            (None, values) => ElementKind::Dense { values: values.unwrap_or(0) },
        };
        let widest = store.schema.sources.iter().map(|source| source.n_vars).max().unwrap_or(0);
        store.schema.elements.push(Element {
            name: self.name,
            kind,
            n_cols: if self.gene_axis { n_vars } else { self.n_cols },
            stored_cols: if self.gene_axis { widest } else { self.n_cols },
            dtype: self.dtype,
            index_dtype: DType::I32,
            gene_axis: self.gene_axis,
            dense_sources: if any_dense && any_sparse { is_dense.into() } else { Arc::new([]) },
        });
        store.lengths.push(if any_sparse { self.lengths } else { Vec::new() });
    }
}

fn add_part(store: &mut AnnDataStore, element: usize, role: PartRole, part: GatheredPart, path: String) -> PartId {
    let id = store.parts.len();
    let maps = || part.sources.iter().map(|source| &source.map);
    if let Some(first) = maps().next() {
        let stored = first.stored;
        store.schema.parts.push(Part { element, role, stored, path });
    }
    let chunk_bytes = maps().map(|map| map.pipeline.chunk_bytes).max().unwrap_or(0);
    let n_chunks = u64::from(part.n_chunks);
    store.parts.push(StoredPart { element, role, sources: part.sources, chunk_bytes, n_chunks });
    id
}

impl GatheredPart {
    fn add(&mut self, source: usize, map: ChunkMap, path: &Arc<str>, first_file: u32) -> Result<(), u64> {
        let all = u64::from(self.n_chunks).saturating_add(map.n_chunks());
        let next = u32::try_from(all).map_err(|_| all)?;
        let map = ChunkMap { files: map.files.behind(first_file), ..map };
        // Most sources have the same paths.
        let path = match self.sources.last() {
            Some(last) if last.path == *path => Arc::clone(&last.path),
            _ => Arc::clone(path),
        };
        self.sources.push(SourcePart { source, first_chunk: self.n_chunks, map, path });
        self.n_chunks = next;
        Ok(())
    }
}

/// Warnings of the sources, each told once.
#[derive(Default)]
struct Warnings {
    /// Text, the first source that it is from, and of how many.
    seen: Vec<(String, PathBuf, usize)>,
    said: Vec<String>,
    n_sources: usize,
}

/// Distinct warnings of sources that are told.
const MOST_WARNINGS: usize = 100;

impl Warnings {
    fn add(&mut self, sources: &[SourceInfo], texts: Vec<String>) {
        self.n_sources = sources.len();
        for text in texts {
            if let Some((_, _, n)) = self.seen.iter_mut().find(|(known, ..)| *known == text) {
                *n += 1;
            } else if self.seen.len() < MOST_WARNINGS {
                let path = sources.last().map_or_else(Default::default, |source| source.path.clone());
                self.seen.push((text, path, 1));
            }
        }
    }

    fn say(&mut self, texts: impl Iterator<Item = String>) {
        self.said.extend(texts);
    }

    fn finish(self) -> Vec<String> {
        let tell = |(text, path, n): (String, PathBuf, usize)| match (self.n_sources, n) {
            (1, _) => text,
            (_, 1) => format!("{}: {text}", path.display()),
            (_, n) => format!("{}: {text} (and in {} other sources)", path.display(), n - 1),
        };
        self.seen.into_iter().map(tell).chain(self.said).collect()
    }
}
