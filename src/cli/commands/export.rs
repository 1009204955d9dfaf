//! `shufflefs export`: the bytes of the tree as plain files.
//!
//! A file is written beside its name and renamed when it is complete, so that a name always stands for a whole file. What is
//! there already in full size is kept: an export that was cut off goes on where it stopped. That the files belong
//! together is checked by an identity that the folder keeps: the options, the fingerprint, and size and modification time of the sources.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::{no_such_path, options_of, own_tree_of, sources_of, tree_path};
use crate::cli::args::ExportArgs;
use crate::cli::dataset::Dataset;
use crate::cli::describe::dataset_json;
use crate::store::anndata::SourceSpec;
use crate::view::{Ino, Tree};

/// Bytes per read of the tree.
const STEP: u32 = 4 << 20;

/// The file that says which dataset and options an export is of.
const IDENTITY: &str = ".shufflefs-export.json";

/// Writes a directory or a file of the tree.
pub fn run(args: ExportArgs) -> anyhow::Result<()> {
    let (dataset_args, options) = options_of(args.dataset)?;
    let dataset = Dataset::open(&sources_of(&args.sources, &dataset_args)?, options)?;
    let tree = own_tree_of(&dataset, &dataset_args)?;
    let path = args.path.as_deref().map_or("", tree_path);
    let start = tree.resolve(path).ok_or_else(|| no_such_path(path, &dataset))?;
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let export = Export { tree: &tree, progress: progress(&tree, start)? };
    check_identity(&dataset, &args.out)?;
    export.node(start, &args.out.join(path))?;
    export.progress.finish_and_clear();
    Ok(())
}

struct Export<'a> {
    tree: &'a Tree,
    progress: ProgressBar,
}

impl Export<'_> {
    fn node(&self, ino: Ino, to: &Path) -> anyhow::Result<()> {
        if !self.tree.attr(ino)?.is_dir {
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
            }
            return self.file(ino, to);
        }
        fs::create_dir_all(to).with_context(|| to.display().to_string())?;
        for (name, child) in children(self.tree, ino)? {
            self.node(child, &to.join(name))?;
        }
        Ok(())
    }

    fn file(&self, ino: Ino, to: &Path) -> anyhow::Result<()> {
        let size_bytes = self.tree.attr(ino)?.size_bytes;
        if fs::metadata(to).is_ok_and(|m| m.is_file() && m.len() == size_bytes) {
            self.progress.inc(size_bytes);
            return Ok(());
        }
        // Named by the process, so that two exports into one folder do not write into each other's files.
        let mut part = to.as_os_str().to_owned();
        part.push(format!(".part-{}", std::process::id()));
        let part = Path::new(&part);
        let write = || -> anyhow::Result<()> {
            let mut out = File::create(part)?;
            self.each_piece(ino, &mut |bytes| Ok(out.write_all(bytes)?))?;
            out.sync_all()?;
            Ok(fs::rename(part, to)?)
        };
        write().inspect_err(|_| drop(fs::remove_file(part))).with_context(|| to.display().to_string())
    }

    fn each_piece(&self, ino: Ino, take: &mut dyn FnMut(&[u8]) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let handle = self.tree.open_and_wait(ino)?.handle;
        let mut read = || -> anyhow::Result<()> {
            let mut offset = 0;
            loop {
                let bytes = self.tree.read(handle, offset, STEP)?;
                if bytes.is_empty() {
                    return Ok(());
                }
                take(&bytes)?;
                offset += bytes.len() as u64;
                self.progress.inc(bytes.len() as u64);
            }
        };
        let result = read();
        self.tree.release(handle)?;
        result
    }
}

/// Refuses to mix files of two datasets, of two states of one, or of two choices of options in one folder, and leaves the identity there.
fn check_identity(dataset: &Dataset, out: &Path) -> anyhow::Result<()> {
    let mut sources = Vec::new();
    for source in &dataset.sources {
        let meta = fs::metadata(SourceSpec::parse(source).path).with_context(|| source.display().to_string())?;
        sources.push(json!({"path": source.display().to_string(), "bytes": meta.len(), "modified": [meta.mtime(), meta.mtime_nsec()]}));
    }
    let identity = json!({"sources": sources, "dataset": dataset_json(dataset)});
    let identity = serde_json::to_string_pretty(&identity)? + "\n";
    let path = out.join(IDENTITY);
    match fs::read_to_string(&path) {
        Ok(found) if found == identity => Ok(()),
        Ok(_) => bail!(
            "{}: the folder holds an export of another dataset, of a source that changed since, or of other options; choose another --out",
            out.display()
        ),
        Err(_) => fs::write(&path, identity).with_context(|| path.display().to_string()),
    }
}

/// Names and nodes of a directory, without `.` and `..`.
fn children(tree: &Tree, dir: Ino) -> anyhow::Result<Vec<(String, Ino)>> {
    let mut entries = Vec::new();
    tree.list(dir, 0, &mut |entry| {
        if entry.name != "." && entry.name != ".." {
            entries.push((entry.name.to_owned(), entry.ino));
        }
        false
    })?;
    Ok(entries)
}

/// A bar over all bytes, shown on a terminal only.
fn progress(tree: &Tree, start: Ino) -> anyhow::Result<ProgressBar> {
    if !std::io::IsTerminal::is_terminal(&std::io::stderr()) {
        return Ok(ProgressBar::hidden());
    }
    let mut total = 0;
    let mut open = vec![start];
    while let Some(ino) = open.pop() {
        let attr = tree.attr(ino)?;
        total += attr.size_bytes;
        if attr.is_dir {
            open.extend(children(tree, ino)?.into_iter().map(|(_, child)| child));
        }
    }
    let style = ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}")?;
    Ok(ProgressBar::new(total).with_style(style))
}
