//! The front door: what a source is, found out by its content, and opened.
//!
//! A source is a path, or a path and a group inside ([`SourceSpec`]): `mod/rna` of MuData, `tables/table` of SpatialData, a genome of an
//! old 10x file. The container (HDF5, a zarr folder, a zarr archive) gives a tree of [`Node`](super::node::Node)s; the group is looked up
//! in it name by name, and what is found there decides what is served: an AnnData object or a 10x matrix. Extensions are not
//! looked at.
//!
//! [`expand`] knows paths that stand for several sources.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::node::NodeRef;
use super::root::{self, Root};
use super::select::{self, Selected};
use super::tenx::TenX;
use super::{Catalog, Opened, OpenedElement, Selection, catalog as listing, hdf5, zarr};
use crate::store::cache::CacheConfig;
use crate::store::error::OpenError;
use crate::store::file::SourceFile;
use crate::store::files::Files;

/// What containers in HDF5 are called.
const HDF5: &str = "HDF5";

/// A source as it is named: a path, and a group inside.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceSpec {
    /// The file or folder.
    pub path: PathBuf,
    /// A group inside, names joined by `/`.
    pub group: Option<String>,
}

impl SourceSpec {
    /// Splits `PATH::GROUP`. What exists as a path as a whole is a path, and so is what has no `::`.
    #[must_use]
    pub fn parse(text: &Path) -> Self {
        let whole = Self { path: text.to_owned(), group: None };
        if text.symlink_metadata().is_ok() {
            return whole;
        }
        let bytes = text.as_os_str().as_bytes();
        let mut found = None;
        for (at, _) in bytes.windows(2).enumerate().rev().filter(|(_, pair)| *pair == b"::") {
            let (path, group) = (bytes.get(..at).unwrap_or_default(), bytes.get(at + 2..).unwrap_or_default());
            let path = Path::new(OsStr::from_bytes(path));
            let Ok(group) = std::str::from_utf8(group) else { continue };
            if path.as_os_str().is_empty() || group.is_empty() {
                continue;
            }
            let split = Self { path: path.to_owned(), group: Some(group.trim_matches('/').to_owned()) };
            if path.symlink_metadata().is_ok() {
                return split;
            }
            found = found.or(Some(split));
        }
        found.unwrap_or(whole)
    }

    /// The source as one path, for messages and lists of sources: `PATH::GROUP`.
    #[must_use]
    pub fn shown(&self) -> PathBuf {
        match &self.group {
            None => self.path.clone(),
            Some(group) => {
                let mut text = self.path.as_os_str().to_owned();
                text.push("::");
                text.push(group);
                text.into()
            }
        }
    }
}

impl From<&Path> for SourceSpec {
    fn from(path: &Path) -> Self {
        Self { path: path.to_owned(), group: None }
    }
}

impl fmt::Display for SourceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shown().display().fmt(f)
    }
}

/// What a path stands for that is not a source itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expansion {
    /// The sources, in order.
    pub sources: Vec<SourceSpec>,
    /// True if it says of itself that its rows are already shuffled.
    pub shuffled: bool,
}

/// What was read of a container.
pub struct Container<T> {
    /// Its files, with the stamps that they had before anything was read.
    pub files: Files,
    /// What was read.
    pub content: T,
    /// What went wrong with the cache folder.
    pub trouble: Option<String>,
}

/// Opens what `selection` names in a source; what takes long to find out is kept in the cache folder.
///
/// # Errors
/// [`OpenError`] if the source is none that can be served, something of the selection does not exist or cannot be served, or it is
/// damaged. Nothing that goes wrong with the cache folder is one.
pub fn open(spec: &SourceSpec, selection: &Selection, cache: &CacheConfig) -> Result<Opened, OpenError> {
    let read = |root| match Content::find(descend(root, spec)?)? {
        Content::AnnData(node) => Ok((select::open(node, selection)?, String::new())),
        Content::TenX(tenx) => Ok((tenx.open(selection)?, format!(" 10x {}", tenx.version()))),
    };
    let (kind, container) = with_root(&spec.path, cache, read)?;
    let Container { mut files, content: (content, what), trouble } = container;
    let Selected { x_kind, n_obs, n_vars, var_names, obs_names, mut elements, columns, .. } = content;
    files.keep(elements.iter_mut().flat_map(OpenedElement::files_mut));
    for element in &mut elements {
        if let Some(rewritten) = element.rewritten.take()
            && !rewritten.attach(&mut files, &mut element.layout)
        {
            return Err(OpenError::refused(&spec.path, "file", "more than 2^32 files", "mount fewer of them"));
        }
    }
    let mut warnings = content.warnings;
    warnings.extend(trouble);
    let kind = if kind == HDF5 && what.is_empty() { "h5ad" } else { &kind };
    Ok(Opened {
        path: spec.shown(),
        files,
        kind: format!("{kind}{what}, {x_kind}"),
        n_obs,
        n_vars,
        var_names,
        obs_names,
        elements,
        columns,
        gene_mask: content.gene_mask,
        left_out: content.left_out,
        warnings,
    })
}

/// Lists what a source holds.
///
/// # Errors
/// [`OpenError`] if the source is none that can be served, or damaged.
pub fn catalog(spec: &SourceSpec) -> Result<Catalog, OpenError> {
    let read = |root| match Content::find(descend(root, spec)?)? {
        Content::AnnData(node) => listing::list(&Root::open(node)?),
        Content::TenX(tenx) => listing::list_tenx(&tenx),
    };
    let (kind, container) = with_root(&spec.path, &CacheConfig::off(), read)?;
    let mut catalog = container.content;
    catalog.container = format!("{kind} {}", catalog.container);
    Ok(catalog)
}

/// The sources that `path` stands for; `None` if it is a source itself, or nothing that is known here.
///
/// # Errors
/// [`OpenError`] if it stands for several, and is damaged.
pub fn expand(path: &Path) -> Result<Option<Expansion>, OpenError> {
    zarr::expand(path)
}

/// What a group holds.
enum Content {
    AnnData(NodeRef),
    TenX(TenX),
}

impl Content {
    fn find(node: NodeRef) -> Result<Self, OpenError> {
        let is_anndata = node.attr_text("encoding-type")?.as_deref() == Some("anndata") || node.child("obs")?.is_some();
        let tenx = if is_anndata { None } else { TenX::find(&node)? };
        Ok(tenx.map_or(Self::AnnData(node), Self::TenX))
    }
}

/// Opens the container at `path` and lets `read` look at its root; also what it is, in a word.
fn with_root<T>(
    path: &Path,
    cache: &CacheConfig,
    read: impl FnOnce(NodeRef) -> Result<T, OpenError>,
) -> Result<(String, Container<T>), OpenError> {
    if path.is_dir() || is_zip(path)? {
        return zarr::with_root(path, cache, read);
    }
    Ok((HDF5.to_owned(), hdf5::with_root(path, cache, read)?))
}

/// True if `path` begins like a zip archive. What is not there or no regular file is left to the others to refuse.
fn is_zip(path: &Path) -> Result<bool, OpenError> {
    if !std::fs::metadata(path).is_ok_and(|m| m.is_file()) {
        return Ok(false);
    }
    let file = SourceFile::open(path)?;
    let mut head = [0; 4];
    Ok(file.read_at(0, &mut head).is_ok() && zarr::ZIP_SIGNATURES.contains(&head))
}

/// The group of a source, looked up name by name.
fn descend(root: NodeRef, spec: &SourceSpec) -> Result<NodeRef, OpenError> {
    let mut node = root;
    for name in spec.group.iter().flat_map(|group| group.split('/')) {
        let next = node.child(name)?;
        let Some(next) = next else {
            let reason = format!("has no {name}; members are {}", root::listing(&node.children()?));
            return Err(node.refused(&reason, "name one that exists"));
        };
        node = next;
    }
    Ok(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(path: &Path, group: &str) -> SourceSpec {
        SourceSpec { path: path.to_owned(), group: Some(group.to_owned()) }
    }

    #[test]
    fn groups_are_told_from_paths() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.h5mu");
        std::fs::write(&file, "").unwrap();
        let with = |tail: &str| PathBuf::from(format!("{}{tail}", file.display()));
        assert_eq!(SourceSpec::parse(&file), SourceSpec::from(&*file));
        assert_eq!(SourceSpec::parse(&with("::mod/rna")), spec(&file, "mod/rna"));
        assert_eq!(SourceSpec::parse(&with("::/mod/rna/")), spec(&file, "mod/rna"));
        assert_eq!(SourceSpec::parse(&with("::a::b")), spec(&file, "a::b"), "the path exists");
        assert_eq!(SourceSpec::parse(&with("::")), SourceSpec::from(&*with("::")));
        std::fs::write(with("::x"), "").unwrap();
        assert_eq!(SourceSpec::parse(&with("::x")), SourceSpec::from(&*with("::x")), "exists as a whole");
        assert_eq!(SourceSpec::parse(&with("::x::y")), spec(&with("::x"), "y"));
        assert_eq!(SourceSpec::parse(Path::new("none::mod/a")), spec(Path::new("none"), "mod/a"));
        assert_eq!(SourceSpec::parse(Path::new("::mod")), SourceSpec::from(Path::new("::mod")));
        assert_eq!(spec(&file, "mod/rna").shown(), with("::mod/rna"));
    }
}
