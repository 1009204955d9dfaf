//! AnnData in HDF5.
//!
//! The HDF5 library is entered once, when a source is opened, and only for structure: what is where, of which type, with
//! which filters. [`with_root`] shows that as a tree of nodes, which becomes chunk maps, resident columns and row lengths and leaves no object of the library
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

use super::container::Container;
use super::node::NodeRef;
use crate::store::cache::CacheConfig;
use crate::store::error::OpenError;
use crate::store::file::SourceFile;
use crate::store::files::Files;
use node::H5File;

/// Opens the file, lets `read` look at its root group, and closes everything of the library again. The file is returned
/// with the stamp it had before anything was read; if it changed since, what was read is not to be trusted.
///
/// # Errors
/// [`OpenError`] if the file is not HDF5, damaged, or changes meanwhile; what `read` returns.
pub fn with_root<T>(
    path: &Path,
    cache: &CacheConfig,
    read: impl FnOnce(NodeRef) -> Result<T, OpenError>,
) -> Result<Container<T>, OpenError> {
    // A named pipe would block the open.
    let metadata = std::fs::metadata(path).map_err(|source| OpenError::Io { file: path.to_owned(), source })?;
    if !metadata.is_file() {
        return Err(OpenError::refused(path, "file", "is not a regular file", "give an .h5ad file"));
    }
    let file = Rc::new(SourceFile::open(path)?);
    let superblock = superblock::read(&file)?;
    let h5 = H5File::open(Rc::clone(&file), cache, &superblock)?;
    let result = read(Rc::new(h5.root()?));
    let trouble = h5.trouble();
    drop(h5);
    let content = result?;
    if file.check_unchanged().is_err() {
        let reason = "changed while it was opened";
        return Err(OpenError::refused(path, "file", reason, "try again when its writer is done"));
    }
    Ok(Container { files: Files::one(&file), content, trouble })
}
