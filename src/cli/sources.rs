//! From the arguments to the list of sources.
//!
//! An argument is a source, or stands for several: a pattern (`*`, `?`, `[...]` in names, for shells that did not expand it, and for `--config` files),
//! a store that says of itself that it is a collection, or a folder of files. A folder gives its members that end in `.h5ad`, `.h5`, `.h5mu`,
//! `.zarr` or `.zarr.zip`, not those of folders inside it, and no hidden ones. Members and matches come in natural order: runs of
//! digits count as numbers (`dataset_2` before `dataset_10`), everything else by bytes. Arguments keep the order in which they are given. A file
//! that turns up twice, by whatever name, is refused, since its rows would be in every epoch twice.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::molecules;
use crate::store::anndata::{self, SourceSpec};

/// Ends of the names of AnnData sources in a folder.
const ENDINGS: [&str; 5] = [".h5ad", ".h5", ".h5mu", ".zarr", ".zarr.zip"];

/// Files and groups that make a folder a zarr store.
const ZARR_MARKERS: [&str; 3] = [".zgroup", "zarr.json", ".zattrs"];

/// The sources of a dataset, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    /// Absolute paths, with `::GROUP` where a group was named.
    pub paths: Vec<PathBuf>,
    /// True if all of them say that their rows are shuffled already.
    pub shuffled: bool,
    /// True if they hold molecules: the paths are then as given, and folders are looked through when they are opened.
    pub molecules: bool,
}

impl Sources {
    /// Resolves `arguments`; relative ones are relative to `base`.
    ///
    /// # Errors
    /// If one matches nothing, cannot be looked at, or gives a source twice.
    pub fn resolve(arguments: &[PathBuf], base: &Path) -> anyhow::Result<Self> {
        let absolute = |argument: &PathBuf| {
            std::path::absolute(base.join(argument)).with_context(|| argument.display().to_string())
        };
        let paths = arguments.iter().map(absolute).collect::<anyhow::Result<Vec<_>>>()?;
        if molecules::are_given(&paths)? {
            let mut folders = paths.iter().filter(|path| path.is_dir());
            folders.try_for_each(|folder| listed(folder).map(drop))?;
            return Ok(Self { paths, shuffled: false, molecules: true });
        }
        let mut found = Found::default();
        paths.iter().try_for_each(|path| found.argument(path))?;
        let paths = found.specs.iter().map(SourceSpec::shown).collect();
        Ok(Self { paths, shuffled: found.all_shuffled && !found.specs.is_empty(), molecules: false })
    }

    /// The sources in a few words: the first ones by name, the number of the others.
    #[must_use]
    pub fn summary(paths: &[PathBuf]) -> String {
        const NAMED: usize = 3;
        let named: Vec<String> = paths.iter().take(NAMED).map(|path| path.display().to_string()).collect();
        match paths.len().saturating_sub(NAMED) {
            0 => named.join(" "),
            n => format!("{} and {} more sources", named.join(" "), super::text::count(n as u64)),
        }
    }
}

/// What was found so far.
struct Found {
    specs: Vec<SourceSpec>,
    all_shuffled: bool,
    /// By device, inode and group: the first name.
    seen: HashMap<(u64, u64, Option<String>), usize>,
}

impl Default for Found {
    fn default() -> Self {
        Self { specs: Vec::new(), all_shuffled: true, seen: HashMap::new() }
    }
}

impl Found {
    fn argument(&mut self, path: &Path) -> anyhow::Result<()> {
        let spec = SourceSpec::parse(path);
        if spec.group.is_some() || spec.path.symlink_metadata().is_ok() {
            return self.one(spec);
        }
        let matches = expand_pattern(path)?;
        if matches.is_empty() {
            // The error of the missing file, or that nothing matches.
            return if has_wildcard(path.as_os_str()) {
                bail!(
                    "{}: matches no file; quote no pattern that the shell should expand, or check the folder",
                    path.display()
                )
            } else {
                self.one(spec)
            };
        }
        matches.into_iter().try_for_each(|path| self.one(SourceSpec { path, group: None }))
    }

    /// A path that exists, or is to be refused for not existing.
    fn one(&mut self, spec: SourceSpec) -> anyhow::Result<()> {
        if spec.group.is_none() && spec.path.is_dir() {
            if let Some(expansion) = anndata::expand(&spec.path)? {
                self.all_shuffled &= expansion.shuffled;
                return expansion.sources.into_iter().try_for_each(|spec| self.push(spec));
            }
            if !is_zarr(&spec.path) {
                let members = members(&spec.path)?;
                return members.into_iter().try_for_each(|path| self.member(path));
            }
        }
        self.all_shuffled = false;
        self.push(spec)
    }

    /// A member of a folder, which may be a collection but no further folder.
    fn member(&mut self, path: PathBuf) -> anyhow::Result<()> {
        if let Some(expansion) = anndata::expand(&path)? {
            self.all_shuffled &= expansion.shuffled;
            return expansion.sources.into_iter().try_for_each(|spec| self.push(spec));
        }
        self.all_shuffled = false;
        self.push(SourceSpec { path, group: None })
    }

    fn push(&mut self, spec: SourceSpec) -> anyhow::Result<()> {
        let metadata = spec.path.metadata().with_context(|| spec.to_string())?;
        let key = (metadata.dev(), metadata.ino(), spec.group.clone());
        if let Some(first) = self.seen.insert(key, self.specs.len()).and_then(|first| self.specs.get(first)) {
            let also = if *first == spec { String::new() } else { format!(", as {first}") };
            bail!("{spec}: is among the sources already{also}; name each source once");
        }
        self.specs.push(spec);
        Ok(())
    }
}

/// True if the folder is a zarr store or a part of one.
#[must_use]
pub fn is_zarr(path: &Path) -> bool {
    ZARR_MARKERS.iter().any(|marker| path.join(marker).exists())
}

/// Names of the AnnData sources in a folder, and of everything else; a mixture of cells and molecules is refused.
fn listed(folder: &Path) -> anyhow::Result<(Vec<OsString>, Vec<OsString>)> {
    let context = || folder.display().to_string();
    let (mut names, mut others) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder).with_context(context)? {
        let name = entry.with_context(context)?.file_name();
        let bytes = name.as_bytes();
        if bytes.starts_with(b".") {
            continue;
        }
        let is_source = ENDINGS.iter().any(|ending| bytes.ends_with(ending.as_bytes()));
        if is_source { names.push(name) } else { others.push(name) }
    }
    match others.iter().find(|name| name.as_bytes().ends_with(b".atp")) {
        Some(atp) if !names.is_empty() => bail!(
            "{}: holds cells and molecules ({}); a dataset is made of one kind: name the files",
            folder.display(),
            atp.to_string_lossy()
        ),
        _ => Ok((names, others)),
    }
}

/// The sources in a folder, in natural order.
fn members(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let (mut names, mut others) = listed(folder)?;
    if names.is_empty() {
        others.sort_unstable();
        let some: Vec<_> = others.iter().take(3).map(|name| name.to_string_lossy()).collect();
        let dots = if others.len() > 3 { ", ..." } else { "" };
        let found =
            if some.is_empty() { "it is empty".to_owned() } else { format!("it holds {}{dots}", some.join(", ")) };
        bail!("{}: no {} inside ({found}); name the files", folder.display(), ENDINGS.join(", "));
    }
    names.sort_unstable_by(|a, b| natural(a, b));
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

fn has_wildcard(text: &OsStr) -> bool {
    text.as_bytes().iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// The paths that match a pattern, name by name from the root, in natural order; none if there is no pattern in it.
fn expand_pattern(pattern: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !has_wildcard(pattern.as_os_str()) {
        return Ok(Vec::new());
    }
    let mut found = vec![PathBuf::new()];
    for component in pattern.components() {
        let name = component.as_os_str();
        if !has_wildcard(name) {
            found.iter_mut().for_each(|path| path.push(name));
            continue;
        }
        let mut next = Vec::new();
        for folder in found {
            // What is no folder has no members.
            let Ok(entries) = std::fs::read_dir(&folder) else { continue };
            let mut names = Vec::new();
            for entry in entries {
                let entry = entry.with_context(|| folder.display().to_string())?.file_name();
                let is_hidden = entry.as_bytes().starts_with(b".") && !name.as_bytes().starts_with(b".");
                if !is_hidden && matches(name.as_bytes(), entry.as_bytes()) {
                    names.push(entry);
                }
            }
            names.sort_unstable_by(|a, b| natural(a, b));
            next.extend(names.into_iter().map(|name| folder.join(name)));
        }
        found = next;
    }
    found.retain(|path| path.symlink_metadata().is_ok());
    Ok(found)
}

/// True if `name` matches `pattern`: `*` any run of bytes, `?` one, `[abc]`, `[a-z]`, `[!a]` one of, or none of, some.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    // The place of the last `*`, and what it has swallowed: each mismatch lets it swallow one more.
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, n));
            p += 1;
            continue;
        }
        if let Some(width) = pattern.get(p..).and_then(|rest| match_one(rest, name[n])) {
            (p, n) = (p + width, n + 1);
            continue;
        }
        let Some((at, swallowed)) = star else { return false };
        star = Some((at, swallowed + 1));
        (p, n) = (at + 1, swallowed + 1);
    }
    pattern.get(p..).is_some_and(|rest| rest.iter().all(|&byte| byte == b'*'))
}

/// If `byte` matches the first element of `pattern`: how long the element is.
fn match_one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern.split_first()? {
        (b'?', _) => Some(1),
        (b'[', rest) => {
            let is_negated = rest.first().is_some_and(|b| matches!(b, b'!' | b'^'));
            let members = &rest[usize::from(is_negated)..];
            // A `]` that comes first is a member.
            let Some(end) = members.iter().skip(1).position(|&b| b == b']').map(|at| at + 1) else {
                return (byte == b'[').then_some(1);
            };
            let mut set = &members[..end];
            let mut is_member = false;
            while let Some((&from, rest)) = set.split_first() {
                match rest {
                    [b'-', to, rest @ ..] => {
                        is_member |= (from..=*to).contains(&byte);
                        set = rest;
                    }
                    _ => {
                        is_member |= from == byte;
                        set = rest;
                    }
                }
            }
            (is_member != is_negated).then_some(1 + usize::from(is_negated) + end + 1)
        }
        (&first, _) => (first == byte).then_some(1),
    }
}

/// Natural order of names: runs of digits by their value, everything else by bytes; names that are equal so far by bytes.
fn natural(a: &OsStr, b: &OsStr) -> Ordering {
    let (mut x, mut y) = (a.as_bytes(), b.as_bytes());
    loop {
        let (Some(&first_x), Some(&first_y)) = (x.first(), y.first()) else {
            return x.len().cmp(&y.len()).then_with(|| a.as_bytes().cmp(b.as_bytes()));
        };
        if first_x.is_ascii_digit() && first_y.is_ascii_digit() {
            let (number_x, rest_x) = split_number(x);
            let (number_y, rest_y) = split_number(y);
            let order = number_x.len().cmp(&number_y.len()).then_with(|| number_x.cmp(number_y));
            if order != Ordering::Equal {
                return order;
            }
            (x, y) = (rest_x, rest_y);
        } else if first_x == first_y {
            (x, y) = (&x[1..], &y[1..]);
        } else {
            return first_x.cmp(&first_y);
        }
    }
}

/// The digits at the start without leading zeros, and the rest.
fn split_number(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let zeros = digits.iter().take_while(|&&byte| byte == b'0').count();
    (&digits[zeros..], rest)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn numbers_in_names_are_numbers() {
        let mut names = ["d10", "d2", "d02", "D3", "d2b", "d", "a9", "d1.h5", "d1", "d20000000000000000000000"];
        names.sort_unstable_by(|a, b| natural(OsStr::new(a), OsStr::new(b)));
        assert_eq!(names, ["D3", "a9", "d", "d1", "d1.h5", "d02", "d2", "d2b", "d10", "d20000000000000000000000"]);
    }

    #[test]
    fn patterns() {
        for (pattern, yes, no) in [
            ("*.h5ad", vec!["a.h5ad", ".h5ad"], vec!["a.h5", "a.h5ad.gz"]),
            ("a?c*", vec!["abc", "abcd"], vec!["ac", "xabc"]),
            ("p[0-3x]-*[!a]", vec!["p2-b", "px-ab"], vec!["p4-b", "p2-a", "p2-"]),
            ("[]]x", vec!["]x"], vec!["[x"]),
            ("a[b", vec!["a[b"], vec!["ab"]),
            ("*a*b*", vec!["ab", "xxaxxbxx"], vec!["ba"]),
            ("", vec![""], vec!["a"]),
        ] {
            assert!(yes.iter().all(|name| matches(pattern.as_bytes(), name.as_bytes())), "{pattern}");
            assert!(no.iter().all(|name| !matches(pattern.as_bytes(), name.as_bytes())), "{pattern}");
        }
    }

    fn resolve(base: &Path, arguments: &[&str]) -> Result<Vec<String>, String> {
        let arguments: Vec<PathBuf> = arguments.iter().map(PathBuf::from).collect();
        let found = Sources::resolve(&arguments, base).map_err(|error| crate::cli::text::chain(&error))?;
        let name = |path: &PathBuf| path.strip_prefix(base).unwrap().display().to_string();
        Ok(found.paths.iter().map(name).collect())
    }

    #[test]
    fn folders_and_patterns_become_files_in_natural_order() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path();
        fs::create_dir_all(base.join("in/deep")).unwrap();
        for name in ["in/d10.h5ad", "in/d9.h5ad", "in/x.h5", "in/notes.txt", "in/.d1.h5ad", "in/deep/z.h5ad", "a1.h5ad"]
        {
            fs::write(base.join(name), name).unwrap();
        }
        assert_eq!(resolve(base, &["in"]).unwrap(), ["in/d9.h5ad", "in/d10.h5ad", "in/x.h5"]);
        assert_eq!(resolve(base, &["a1.h5ad", "in/d*.h5ad"]).unwrap(), ["a1.h5ad", "in/d9.h5ad", "in/d10.h5ad"]);
        assert_eq!(resolve(base, &["*/*/z.h5ad"]).unwrap(), ["in/deep/z.h5ad"]);
        assert!(resolve(base, &["in/q*"]).unwrap_err().contains("matches no file"));
        assert!(resolve(base, &["none.h5ad"]).unwrap_err().contains("No such file"));
        fs::create_dir(base.join("empty")).unwrap();
        assert!(resolve(base, &["empty"]).unwrap_err().contains("it is empty"));
    }

    #[test]
    fn a_source_is_named_once() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path();
        fs::write(base.join("a.h5ad"), "a").unwrap();
        std::os::unix::fs::symlink("a.h5ad", base.join("b.h5ad")).unwrap();
        let error = resolve(base, &["a.h5ad", "b.h5ad"]).unwrap_err();
        assert!(error.contains("b.h5ad: is among the sources already, as ") && error.contains("a.h5ad; "), "{error}");
        assert!(resolve(base, &["a.h5ad", "./a.h5ad"]).is_err());
        assert!(resolve(base, &["."]).is_err(), "a link beside its target");
        fs::write(base.join("m.atp"), "m").unwrap();
        fs::remove_file(base.join("b.h5ad")).unwrap();
        assert!(resolve(base, &["."]).unwrap_err().contains("molecules"));
    }
}
