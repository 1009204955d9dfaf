//! AnnData in zarr, formats 2 and 3, in a folder or in a zip archive.
//!
//! Metadata are read by ourselves, of each node that is needed and of no other. What the arrays say becomes the same structures as for
//! HDF5: chunk files, and chunks inside shards, are chunk maps. Nothing outside the store's folder is ever opened.

mod archive;
mod beneath;
mod codecs;
mod dtypes;
mod keys;
mod layout;
mod metadata;
mod node;
mod store;
mod text;

use std::path::Path;
use std::rc::Rc;

use super::container::{Container, Expansion, SourceSpec};
use super::node::{Node, NodeRef, Source};
use crate::store::cache::{CacheConfig, SourceCache};
use crate::store::error::OpenError;
use node::{Shared, ZarrNode};
use store::ZarrStore;

/// The first bytes of a zip archive, with members or without.
pub const ZIP_SIGNATURES: [[u8; 4]; 2] = [*b"PK\x03\x04", *b"PK\x05\x06"];

/// Encoding of a collection of annbatch, whose rows are already shuffled.
const COLLECTION: &str = "annbatch-preshuffled";
/// Name of its members, before their number.
const MEMBER: &str = "dataset_";

/// Opens the store at `path`, a folder or a zip archive, and lets `read` look at its root group. The label of its format comes first.
///
/// # Errors
/// [`OpenError`] if it is no zarr store or damaged; what `read` returns.
pub fn with_root<T>(
    path: &Path,
    cache: &CacheConfig,
    read: impl FnOnce(NodeRef) -> Result<T, OpenError>,
) -> Result<(String, Container<T>), OpenError> {
    let (store, root, format) = open_root(path, cache)?;
    let label = format!("zarr v{format}{}", if store.is_archive() { " zip" } else { "" });
    let content = read(Rc::new(root))?;
    store.check_unchanged()?;
    Ok((label, Container { files: store.take_files(), content, trouble: None }))
}

fn open_root(path: &Path, cache: &CacheConfig) -> Result<(Rc<ZarrStore>, ZarrNode, u8), OpenError> {
    let store = if path.is_dir() { ZarrStore::folder(path)? } else { ZarrStore::archive(path)? };
    for format in [3, 2] {
        let source = Source::new(path, Rc::clone(&store) as Rc<_>, SourceCache::without_pieces(cache, path));
        source.saw(store.archive_bytes());
        let shared = Rc::new(Shared { store: Rc::clone(&store), source, format });
        if let Some(root) = ZarrNode::open(&shared, String::new())? {
            return Ok((store, root, format));
        }
    }
    let (what, remedy) = match store.is_archive() {
        true => ("is a zip archive, but no zarr store", "unzip it and give what is inside"),
        false => ("is a folder, but no zarr store (no zarr.json, .zgroup or .zarray)", "give a file or a zarr store"),
    };
    Err(OpenError::refused(path, "file", what, remedy))
}

/// The sources that the folder `path` stands for, if it is a collection.
///
/// # Errors
/// [`OpenError`] if it is a collection and damaged.
pub fn expand(path: &Path) -> Result<Option<Expansion>, OpenError> {
    if !path.join("zarr.json").is_file() {
        return Ok(None);
    }
    let (_, root, _) = open_root(path, &CacheConfig::off())?;
    if root.attr_text("encoding-type")?.as_deref() != Some(COLLECTION) {
        return Ok(None);
    }
    let number = |name: &String| name.strip_prefix(MEMBER)?.parse::<u64>().ok();
    let mut members: Vec<(u64, String)> =
        root.children()?.into_iter().filter_map(|name| Some((number(&name)?, name))).collect();
    members.sort();
    if members.is_empty() {
        return Err(root.refused("is an empty collection of annbatch", "write it again"));
    }
    let spec = |(_, name): (u64, String)| SourceSpec { path: path.to_owned(), group: Some(name) };
    Ok(Some(Expansion { sources: members.into_iter().map(spec).collect(), shuffled: true }))
}
