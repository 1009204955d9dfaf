//! AnnData: what its containers have in common.
//!
//! A source is opened through [`container`] in two steps. [`catalog`](container::catalog) lists what is inside without loading
//! anything, for `inspect` and for messages that name what exists. [`container::open`] loads what a [`Selection`] names: chunk
//! maps, row lengths, columns and names.
//! A [`Collector`] makes one [`AnnDataStore`] of any number of [`Opened`] sources.

mod by_rows;
mod catalog;
mod collector;
mod columns;
pub mod container;
mod frame;
mod hdf5;
mod matrix;
mod node;
mod raw_array;
mod root;
mod select;
pub mod store;
mod tenx;
mod texts;
mod values;
mod zarr;

use std::path::PathBuf;
use std::sync::Arc;

use super::chunk_map::{ChunkFiles, ChunkMap};
use super::column::{Column, Strings};
use super::files::Files;
use super::rows::RowLengths;
use crate::dtype::DType;

pub use by_rows::{Rewritten, rewritten_bytes};
pub use collector::{Collected, Collector, Joining};
pub use container::{Expansion, SourceSpec, catalog, expand, open};
pub use select::{AUTO_CATEGORIES, AUTO_NAMES};
pub use store::AnnDataStore;

/// Which parts of an AnnData object take part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    /// The matrix: `X`, `raw/X`, `layers/counts`; `None` for batches without X. It defines the gene axis: with `raw/X` the genes are
    /// those of `raw/var`.
    pub x: Option<String>,
    /// Layers by name, served as `layers.<name>`.
    pub layers: Vec<String>,
    /// Keys of `obsm`, served as `obsm.<key>`.
    pub obsm: Vec<String>,
    /// Columns of `obs`.
    pub obs: ObsChoice,
    /// Names of the rows.
    pub names: NamesChoice,
    /// A boolean column of `var` whose true genes are wanted.
    pub genes_column: Option<String>,
    /// True if this is one of several sources, which need not have every column of `obs` that is named.
    pub one_of_many: bool,
}

/// Which columns of `obs` take part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObsChoice {
    /// Numeric, boolean, nullable, and categorical columns of at most 65,536 categories; no text columns.
    Auto,
    /// Every column that can be read.
    All,
    /// None.
    None,
    /// These, in this order; one that is missing or cannot be read is refused.
    Columns(Vec<String>),
}

/// Whether the names of the rows take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamesChoice {
    /// Up to 10 million rows.
    Auto,
    /// Always.
    Yes,
    /// Never.
    No,
}

/// One source, opened and checked.
#[derive(Debug)]
pub struct Opened {
    /// The source as it was named, with the group inside.
    pub path: PathBuf,
    /// Its files, stamped.
    pub files: Files,
    /// Container and encoding in a few words, such as `h5ad, csr`.
    pub kind: String,
    /// Number of rows.
    pub n_obs: u64,
    /// Number of genes on the chosen gene axis.
    pub n_vars: u64,
    /// Names of the genes on the chosen gene axis.
    pub var_names: Strings,
    /// Names of the rows, if chosen.
    pub obs_names: Option<Strings>,
    /// Chosen matrices: X first, then layers, then obsm. Their chunk maps name files by their number in `files`.
    pub elements: Vec<OpenedElement>,
    /// Chosen columns of `obs`.
    pub columns: Vec<Column>,
    /// For `genes_column`: one flag per gene.
    pub gene_mask: Option<Vec<bool>>,
    /// What `auto` left out, and why: `(element, reason)`.
    pub left_out: Vec<(String, String)>,
    /// Oddities that the user should know, one line each.
    pub warnings: Vec<String>,
}

/// One matrix of a source.
#[derive(Debug)]
pub struct OpenedElement {
    /// Name as in batches: `X`, `layers.counts`, `obsm.X_pca`.
    pub name: String,
    /// Number of columns.
    pub n_cols: u64,
    /// True if its columns are the genes of the chosen gene axis.
    pub gene_axis: bool,
    /// How its rows are stored.
    pub layout: OpenedLayout,
    /// The file of the rows, if they were rewritten and the file is not among those of the source yet.
    pub rewritten: Option<Rewritten>,
    /// Where it lies in the container: `X`, `raw/X`, `layers/counts`.
    pub path: String,
}

impl OpenedElement {
    /// The files of the source that it needs.
    fn files_mut(&mut self) -> Vec<&mut ChunkFiles> {
        match &mut self.rewritten {
            Some(rewritten) => rewritten.made_of.iter_mut().map(|origin| &mut origin.files).collect(),
            None => self.layout.maps_mut().map(|map| &mut map.files).collect(),
        }
    }
}

/// How the rows of a matrix are stored.
#[derive(Debug)]
pub enum OpenedLayout {
    /// CSR.
    Sparse {
        /// Stored values per row.
        lengths: Arc<RowLengths>,
        /// Values; an array of rank 1.
        data: ChunkMap,
        /// Column indices; an array of rank 1.
        indices: ChunkMap,
    },
    /// Row-major dense, an array of rank 2.
    Dense {
        /// Values.
        values: ChunkMap,
    },
}

impl OpenedLayout {
    /// Type of the values as stored.
    #[must_use]
    pub fn dtype(&self) -> DType {
        match self {
            Self::Sparse { data: values, .. } | Self::Dense { values } => values.stored.dtype,
        }
    }

    /// Its arrays.
    pub fn maps_mut(&mut self) -> impl Iterator<Item = &mut ChunkMap> {
        let [first, second] = match self {
            Self::Sparse { data, indices, .. } => [Some(data), Some(indices)],
            Self::Dense { values } => [Some(values), None],
        };
        first.into_iter().chain(second)
    }
}

/// What a container holds, for `inspect` and for messages.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Catalog {
    /// Container and its generation, such as `HDF5 AnnData 0.1.0`.
    pub container: String,
    /// Number of rows.
    pub n_obs: u64,
    /// Number of genes of `var`.
    pub n_vars: u64,
    /// Matrices that can be served, and those that cannot with the reason.
    pub matrices: Vec<CatalogMatrix>,
    /// Columns of `obs`.
    pub columns: Vec<CatalogColumn>,
    /// Names of elements that are not served (`uns`, `obsp`, ...).
    pub skipped: Vec<String>,
}

/// One matrix of a container.
#[derive(Debug, Clone, serde::Serialize)]
pub struct CatalogMatrix {
    /// Path in the container: `X`, `raw/X`, `layers/counts`, `obsm/X_pca`.
    pub path: String,
    /// `csr`, `csc`, `dense`, or the encoding as found.
    pub encoding: String,
    /// Rows and columns.
    pub shape: [u64; 2],
    /// Type of the values, as numpy names it.
    pub dtype: String,
    /// Stored values (sparse), else rows * columns.
    pub n_values: u64,
    /// Chunk extent of the values, in elements; empty if contiguous or compact.
    pub chunk: Vec<u64>,
    /// Extent of a shard of zarr, in elements; empty where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shard: Vec<u64>,
    /// Filters in encode order, such as `shuffle`, `gzip(4)`.
    pub filters: Vec<String>,
    /// Bytes on disk of all its arrays.
    pub stored_bytes: u64,
    /// Mean rows per chunk of the values.
    pub rows_per_chunk: Option<f64>,
    /// Bytes of its rows, if a mount writes them into the cache folder first, once.
    pub rewritten_bytes: Option<u64>,
    /// Why it cannot be served, if it cannot.
    pub refused: Option<String>,
}

/// One column of `obs`.
#[derive(Debug, Clone, serde::Serialize)]
pub struct CatalogColumn {
    /// Name.
    pub name: String,
    /// `int64`, `bool`, `categorical`, `string`, `nullable-integer`, ...
    pub kind: String,
    /// Number of categories, for categoricals.
    pub n_categories: Option<u64>,
    /// True if `--obs auto` takes it.
    pub auto: bool,
}
