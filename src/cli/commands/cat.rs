//! `shufflefs cat`: one file of the tree, without a mount.

use std::io::{self, Write as _};

use super::{no_such_path, options_of, own_tree_of, sources_of, tree_path};
use crate::cli::args::CatArgs;
use crate::cli::dataset::Dataset;

/// Bytes per read of the tree.
const STEP: u32 = 4 << 20;

/// Writes the file to standard output.
pub fn run(args: CatArgs) -> anyhow::Result<()> {
    let (dataset_args, options) = options_of(args.dataset)?;
    let dataset = Dataset::open(&sources_of(&args.sources, &dataset_args)?, options)?;
    let tree = own_tree_of(&dataset, &dataset_args)?;
    let default = format!("epoch-00000/batch-0000000.{}", dataset.encoder.extension());
    let path = args.path.as_deref().map_or(default.as_str(), tree_path);
    let ino = tree.resolve(path).ok_or_else(|| no_such_path(path, &dataset))?;
    if tree.attr(ino)?.is_dir {
        anyhow::bail!("--path {path}: is a directory; name a file of it, or use shufflefs export");
    }
    let opened = tree.open_and_wait(ino)?;
    let mut out = io::stdout().lock();
    let mut offset = 0;
    loop {
        let bytes = tree.read(opened.handle, offset, STEP)?;
        if bytes.is_empty() {
            break;
        }
        out.write_all(&bytes)?;
        offset += bytes.len() as u64;
    }
    out.flush()?;
    Ok(())
}
