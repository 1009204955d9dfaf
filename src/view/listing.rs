//! What is in a directory: entry number i is computed, never looked up in a list, so that a listing resumes anywhere at
//! once and a directory of any size costs nothing.

use super::Tree;
use super::errno::ViewError;
use super::name;
use super::node::{Fixed, Ino, Node, ShareNode, pack, unpack};
use super::share::ShareView;
use crate::order::{Pass, Share};
use crate::window::BatchId;

/// One entry of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Its number.
    pub ino: Ino,
    /// True for a directory.
    pub is_dir: bool,
    /// Its name.
    pub name: &'a str,
    /// The offset that resumes the listing behind this entry.
    pub next_offset: u64,
}

/// Names of the files in the root, with their nodes.
const ROOT_FILES: [(&str, Fixed); 3] =
    [("README.md", Fixed::Readme), ("dataset.json", Fixed::DatasetJson), ("var_names.txt", Fixed::VarNames)];

/// Names of the files in `.shufflefs`, with their nodes.
const CONTROL_FILES: [(&str, Fixed); 5] = [
    ("status.json", Fixed::StatusJson),
    ("blocks.npy", Fixed::BlocksNpy),
    ("config.toml", Fixed::ConfigToml),
    ("log", Fixed::Log),
    ("errors.tsv", Fixed::ErrorsTsv),
];

const CONTROL: &str = ".shufflefs";
const IN_ORDER: &str = "inorder";
const BATCHES_TXT: &str = "batches.txt";
const ROWS_NPY: &str = "rows.npy";

impl Tree {
    /// Calls `emit` for the entries of a directory from `offset` on (0, or the `next_offset` of an entry), `.` and `..`
    /// included, until it returns true (no room for this entry) or the directory ends.
    ///
    /// # Errors
    /// [`ViewError::NoEntry`] and [`ViewError::NotDirectory`].
    pub fn list(&self, dir: Ino, offset: u64, emit: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<(), ViewError> {
        let node = unpack(dir).filter(|node| self.exists(*node)).ok_or(ViewError::NoEntry)?;
        let mut name = String::new();
        for index in offset.. {
            let child = match index {
                0 => {
                    name.replace_range(.., ".");
                    Some(node)
                }
                1 => {
                    name.replace_range(.., "..");
                    Some(parent(node))
                }
                _ => self.listed(node, index - 2, &mut name)?,
            };
            let Some(child) = child else { break };
            let Some(ino) = pack(child) else { break };
            if emit(&DirEntry { ino, is_dir: is_dir(child), name: &name, next_offset: index + 1 }) {
                break;
            }
        }
        Ok(())
    }

    /// Entry `index` of the listed ones, its name in `name`.
    fn listed(&self, dir: Node, index: u64, name: &mut String) -> Result<Option<Node>, ViewError> {
        match dir {
            Node::Fixed(Fixed::Root) => Ok(self.listed_in_root(index, name)),
            Node::Fixed(Fixed::Control) => Ok(put_file(&mut CONTROL_FILES.iter(), index, name).ok()),
            Node::Share(pass, share, ShareNode::Dir) => Ok(self.listed_in_share(self.share(pass, share), index, name)),
            Node::Fixed(_) | Node::Share(..) | Node::Batch(_) => Err(ViewError::NotDirectory),
        }
    }

    fn listed_in_root(&self, index: u64, name: &mut String) -> Option<Node> {
        let mut files = ROOT_FILES.iter().filter(|(_, file)| self.exists(Node::Fixed(*file)));
        let index = match put_file(&mut files, index, name) {
            Ok(node) => return Some(node),
            Err(beyond) => beyond,
        };
        let n_epochs = self.config.list_epochs;
        let pass = match u32::try_from(index) {
            Ok(epoch) if epoch < n_epochs => {
                name::epoch(name, epoch);
                Pass::Epoch(epoch)
            }
            Ok(index) if index == n_epochs => {
                name.replace_range(.., IN_ORDER);
                Pass::InOrder
            }
            _ => return None,
        };
        Some(Node::Share(pass, Share::ALL, ShareNode::Dir))
    }

    fn listed_in_share(&self, view: ShareView<'_>, index: u64, name: &mut String) -> Option<Node> {
        let n_batches = view.n_batches();
        let node = |share, kind| Some(Node::Share(view.pass, share, kind));
        match index.checked_sub(n_batches) {
            None => {
                let batch = view.batch(index);
                view.names.write(name, batch);
                Some(Node::Batch(BatchId { pass: view.pass, batch }))
            }
            Some(0) => {
                name.replace_range(.., BATCHES_TXT);
                node(view.share, ShareNode::BatchesTxt)
            }
            Some(1) => {
                name.replace_range(.., ROWS_NPY);
                node(view.share, ShareNode::RowsNpy)
            }
            Some(beyond) => {
                let n_ranks = self.n_listed_ranks(view.share);
                let rank = u32::try_from(beyond - 2).ok().filter(|rank| *rank < n_ranks)?;
                name::part(name, "rank", (rank, n_ranks));
                node(Share::new(None, Some((rank, n_ranks))).ok()?, ShareNode::Dir)
            }
        }
    }

    /// Rank directories that are listed in the directory of a share.
    pub(super) fn n_listed_ranks(&self, share: Share) -> u32 {
        if share == Share::ALL { self.config.world_size.unwrap_or(0) } else { 0 }
    }

    /// The node called `name` in the directory `dir`, whether it is listed or not.
    ///
    /// # Errors
    /// [`ViewError::NoEntry`] and [`ViewError::NotDirectory`].
    pub(super) fn child(&self, dir: Node, name: &str) -> Result<Node, ViewError> {
        let child = match dir {
            Node::Fixed(Fixed::Root) => match name {
                CONTROL => Some(Node::Fixed(Fixed::Control)),
                IN_ORDER => Some(Node::Share(Pass::InOrder, Share::ALL, ShareNode::Dir)),
                _ => find_file(&ROOT_FILES, name).or_else(|| {
                    let pass = Pass::Epoch(name::parse_epoch(name)?);
                    Some(Node::Share(pass, Share::ALL, ShareNode::Dir))
                }),
            },
            Node::Fixed(Fixed::Control) => find_file(&CONTROL_FILES, name),
            Node::Share(pass, share, ShareNode::Dir) => self.child_of_share(self.share(pass, share), name),
            Node::Fixed(_) | Node::Share(..) | Node::Batch(_) => return Err(ViewError::NotDirectory),
        };
        child.filter(|node| self.exists(*node)).ok_or(ViewError::NoEntry)
    }

    fn child_of_share(&self, view: ShareView<'_>, name: &str) -> Option<Node> {
        let node = |share, kind| Some(Node::Share(view.pass, share, kind));
        match name {
            BATCHES_TXT => return node(view.share, ShareNode::BatchesTxt),
            ROWS_NPY => return node(view.share, ShareNode::RowsNpy),
            _ => {}
        }
        if let Some(batch) = view.names.parse(name) {
            view.position(batch)?;
            return Some(Node::Batch(BatchId { pass: view.pass, batch }));
        }
        let (host, None) = (view.share.host(), view.share.rank()) else { return None };
        if let Some(rank) = name::parse_part(name, "rank") {
            return node(Share::new(host, Some(rank)).ok()?, ShareNode::Dir);
        }
        let None = host else { return None };
        node(Share::new(Some(name::parse_part(name, "host")?), None).ok()?, ShareNode::Dir)
    }

    /// The node at a path such as `epoch-00003/rank-0-of-4/batch-0000000.safetensors`; a slash at either end does no harm.
    #[must_use]
    pub fn resolve(&self, path: &str) -> Option<Ino> {
        let mut node = Node::Fixed(Fixed::Root);
        for name in path.split('/').filter(|name| !name.is_empty() && *name != ".") {
            node = self.child(node, name).ok()?;
        }
        pack(node)
    }

    /// The path of a batch, as the epoch's directory has it.
    pub(super) fn batch_path(&self, id: BatchId) -> String {
        let (mut dir, mut file) = (String::new(), String::new());
        match id.pass {
            Pass::Epoch(epoch) => name::epoch(&mut dir, epoch),
            Pass::InOrder => dir.push_str(IN_ORDER),
        }
        self.names(id.pass).write(&mut file, id.batch);
        format!("{dir}/{file}")
    }
}

/// Directories have subdirectories; everything else does not.
pub(super) fn is_dir(node: Node) -> bool {
    matches!(node, Node::Fixed(Fixed::Root | Fixed::Control) | Node::Share(_, _, ShareNode::Dir))
}

/// The directory that holds the directory `node`.
fn parent(node: Node) -> Node {
    let Node::Share(pass, share, _) = node else { return Node::Fixed(Fixed::Root) };
    match (share.host(), share.rank()) {
        (None, None) => Node::Fixed(Fixed::Root),
        (host @ Some(_), Some(_)) => Node::Share(pass, Share::new(host, None).unwrap_or_default(), ShareNode::Dir),
        _ => Node::Share(pass, Share::ALL, ShareNode::Dir),
    }
}

fn find_file(files: &[(&str, Fixed)], name: &str) -> Option<Node> {
    files.iter().find(|(n, _)| *n == name).map(|(_, file)| Node::Fixed(*file))
}

/// File `index` of a table, or how far behind its end `index` is.
fn put_file(
    files: &mut dyn Iterator<Item = &(&'static str, Fixed)>,
    mut index: u64,
    name: &mut String,
) -> Result<Node, u64> {
    for (file_name, file) in files {
        if index == 0 {
            name.replace_range(.., file_name);
            return Ok(Node::Fixed(*file));
        }
        index -= 1;
    }
    Err(index)
}
