//! AnnData in HDF5.
//!
//! The HDF5 library is entered once, when a source is opened, and only for structure: what is where, of which type, with
//! which filters. [`open`] turns that into chunk maps, resident columns and row lengths and leaves no object of the library
//! open. Values, names and labels are read by ourselves from the addresses that the library gave, with our own bounded decoders.
//!
//! Before the library sees the file, its superblock is read here: what is not HDF5, cut off, or still being written is
//! refused with a reason. Nothing that lies outside the file is ever followed (external links, external storage, virtual
//! datasets), and the file is never locked.

mod heap;
mod layout;
mod library;
mod node;
mod superblock;
mod types;

use std::path::Path;
use std::rc::Rc;

use super::node::{NodeRef, Source};
use super::root::Root;
use super::select::{self, Selected};
use super::{Catalog, Opened, Selection, catalog as listing};
use crate::store::cache::CacheConfig;
use crate::store::error::OpenError;
use crate::store::file::SourceFile;
use node::H5File;
pub use superblock::looks_like_hdf5;

/// Lists what the file at `path` holds.
///
/// # Errors
/// [`OpenError`] if it is not an AnnData file in HDF5, or damaged.
pub fn catalog(path: &Path) -> Result<Catalog, OpenError> {
    let list = |root| listing::list(&Root::open(root)?, "HDF5");
    with_root(path, &CacheConfig::off(), list).map(|(_, catalog, _)| catalog)
}

/// Opens what `selection` names in the file at `path`.
///
/// # Errors
/// [`OpenError`] if something of it does not exist, cannot be served, or is damaged.
pub fn open(path: &Path, selection: &Selection) -> Result<Opened, OpenError> {
    open_cached(path, selection, &CacheConfig::off())
}

/// As [`open`]; what takes long to find out is kept in the cache folder.
///
/// # Errors
/// As [`open`]. Nothing that goes wrong with the cache folder is one.
pub fn open_cached(path: &Path, selection: &Selection, cache: &CacheConfig) -> Result<Opened, OpenError> {
    let (file, mut selected, trouble) = with_root(path, cache, |root| select::open(root, selection))?;
    selected.warnings.extend(trouble);
    let Selected { x_kind, n_obs, n_vars, var_names, obs_names, elements, columns, .. } = selected;
    Ok(Opened {
        file,
        kind: format!("h5ad, {x_kind}"),
        n_obs,
        n_vars,
        var_names,
        obs_names,
        elements,
        columns,
        gene_mask: selected.gene_mask,
        left_out: selected.left_out,
        warnings: selected.warnings,
    })
}

/// Opens the file, lets `read` look at its root group, and closes everything of the library again. The file is returned
/// with the stamp it had before anything was read; if it changed since, what was read is not to be trusted.
fn with_root<T>(
    path: &Path,
    cache: &CacheConfig,
    read: impl FnOnce(NodeRef) -> Result<T, OpenError>,
) -> Result<(SourceFile, T, Option<String>), OpenError> {
    // A named pipe would block the open.
    let metadata = std::fs::metadata(path).map_err(|source| OpenError::Io { file: path.to_owned(), source })?;
    if !metadata.is_file() {
        return Err(OpenError::refused(path, "file", "is not a regular file", "give an .h5ad file"));
    }
    let file = Rc::new(SourceFile::open(path)?);
    let superblock = superblock::read(&file)?;
    let h5 = H5File::open(Source::new(Rc::clone(&file), cache), &superblock)?;
    let result = read(Rc::new(h5.root()?));
    let trouble = h5.trouble();
    drop(h5);
    let result = result?;
    if file.check_unchanged().is_err() {
        let reason = "changed while it was opened";
        return Err(OpenError::refused(path, "file", reason, "try again when its writer is done"));
    }
    // Everything that shared the file is gone, since `read` returns data, not nodes; else it is opened once more.
    let file = match Rc::try_unwrap(file) {
        Ok(file) => file,
        Err(shared) => SourceFile::open(shared.path())?,
    };
    Ok((file, result, trouble))
}
