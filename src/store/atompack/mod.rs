//! Atompack: molecules as records in `.atp` files.
//!
//! ```text
//! header slots -> schema, index -> (lengths of texts and tensors, by a pass over the records)
//!     \-> [`AtompackStore`]: where the record of a row lies; a record, taken apart into columns
//! ```
//!
//! * [`header`]: the two slots, and which of them counts;
//! * [`schema`]: types of the sections;
//! * [`index`]: where records lie;
//! * [`record`]: one record, parsed;
//! * [`scan`]: passes over all records, where nothing else tells;
//! * [`mod@file`]: one opened file;
//! * [`fields`]: the union of the fields of all files, and the columns made of them;
//! * [`scatter`]: a record to its columns;
//! * [`store`]: the [`Store`](super::Store).
//!
//! A source is a file, or a directory: then all files `*.atp` below it, in the order of their paths as text.

mod bytes;
pub mod fields;
pub mod file;
pub mod header;
pub mod index;
pub mod record;
pub mod scan;
pub mod scatter;
pub mod schema;
pub mod store;

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

pub use fields::FieldsChoice;
pub use scan::Progress;
pub use store::{AtompackStore, Serve};

use super::error::OpenError;

/// Directories below a source.
const MAX_DEPTH: usize = 32;
/// Extension of files in a directory.
const EXTENSION: &str = "atp";

/// True if `path` holds molecules: a file that begins like an Atompack file or has its extension, or a directory with a file of this extension
/// below it.
#[must_use]
pub fn is_atompack(path: &Path) -> bool {
    if path.is_dir() {
        return !is_zarr(path) && files_of(path).is_ok_and(|files| !files.is_empty());
    }
    let mut magic = [0; 4];
    let begins_like_one = File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok();
    (begins_like_one && magic == header::MAGIC) || (path.is_file() && has_extension(path))
}

/// The files of a source: itself, or those of a directory, by their paths as text (`a-b/x.atp` before `a/x.atp`).
///
/// # Errors
/// [`OpenError::Io`] if a directory cannot be listed, [`OpenError::Refused`] if directories are nested too deeply.
pub fn files_of(source: &Path) -> Result<Vec<PathBuf>, OpenError> {
    if !source.is_dir() {
        return Ok(vec![source.to_owned()]);
    }
    let mut files = Vec::new();
    list(source, 0, &mut files)?;
    files.sort_by(|a, b| a.as_os_str().as_encoded_bytes().cmp(b.as_os_str().as_encoded_bytes()));
    Ok(files)
}

fn list(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), OpenError> {
    if depth > MAX_DEPTH {
        return Err(OpenError::refused(folder, "directory", "is nested too deeply", "give a directory further down"));
    }
    let io = |source| OpenError::Io { file: folder.to_owned(), source };
    for entry in folder.read_dir().map_err(io)? {
        let entry = entry.map_err(io)?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(io)?);
        if kind.is_dir() {
            list(&path, depth + 1, files)?;
        } else if has_extension(&path) && path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

fn has_extension(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == EXTENSION)
}

/// A zarr group may hold anything, but it is no directory of molecules; its chunks need not be listed for that.
fn is_zarr(folder: &Path) -> bool {
    [".zgroup", "zarr.json", ".zattrs", ".zarray"].iter().any(|marker| folder.join(marker).exists())
}
