//! What is in a directory: entry number i is computed, never looked up in a list, so that a listing resumes anywhere at
//! once and a directory of any size costs nothing.

use super::Tree;
use super::errno::ViewError;
use super::name;
use super::node::{Fixed, Ino, Node, ShareNode, pack, unpack};
use super::share::ShareView;
use crate::num::{to_u64, to_usize};
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

/// Names of the files in the root, with their nodes; the last one only where there are genes.
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
        let listing = self.listing(node)?;
        let mut name = String::new();
        for index in offset.. {
            let child = match index {
                0 => Some(put(&mut name, ".", node)),
                1 => Some(put(&mut name, "..", parent(node))),
                _ => listing.entry(index - 2, &mut name),
            };
            let Some(child) = child else { break };
            let Some(ino) = pack(child) else { break };
            if emit(&DirEntry { ino, is_dir: is_dir(child), name: &name, next_offset: index + 1 }) {
                break;
            }
        }
        Ok(())
    }

    /// What is listed in a directory.
    fn listing(&self, dir: Node) -> Result<Listing<'_>, ViewError> {
        match dir {
            Node::Fixed(Fixed::Root) => {
                let skipped = usize::from(!self.exists(Node::Fixed(Fixed::VarNames)));
                let files = ROOT_FILES.get(..ROOT_FILES.len() - skipped).unwrap_or_default();
                Ok(Listing::Root { files, n_epochs: self.config.list_epochs })
            }
            Node::Fixed(Fixed::Control) => Ok(Listing::Control),
            Node::Share(pass, share, ShareNode::Dir) => {
                let view = self.share(pass, share);
                Ok(Listing::Share { view, n_batches: view.n_batches(), n_ranks: self.n_listed_ranks(share) })
            }
            Node::Fixed(_) | Node::Share(..) | Node::Batch(_) => Err(ViewError::NotDirectory),
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
        let host = name::parse_part(name, "host")?;
        let dir = node(Share::new(Some(host), None).ok()?, ShareNode::Dir);
        // Who looks up one host's directory is likely to read every H-th window.
        self.config.batches.expect_hosts(host.1, self.config.rank_policy);
        dir
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

/// The listed entries of one directory, each computed from its index.
enum Listing<'a> {
    Root { files: &'static [(&'static str, Fixed)], n_epochs: u32 },
    Control,
    Share { view: ShareView<'a>, n_batches: u64, n_ranks: u32 },
}

impl Listing<'_> {
    /// Entry `index`, its name in the place of `name`; `None` behind the last one.
    fn entry(&self, index: u64, name: &mut String) -> Option<Node> {
        match self {
            Self::Root { files, n_epochs } => match index.checked_sub(to_u64(files.len())) {
                None => file(files, index, name),
                Some(beyond) => {
                    let pass = match u32::try_from(beyond).ok()? {
                        epoch if epoch < *n_epochs => {
                            name::epoch(name, epoch);
                            Pass::Epoch(epoch)
                        }
                        beyond if beyond == *n_epochs => {
                            name.replace_range(.., IN_ORDER);
                            Pass::InOrder
                        }
                        _ => return None,
                    };
                    Some(Node::Share(pass, Share::ALL, ShareNode::Dir))
                }
            },
            Self::Control => file(&CONTROL_FILES, index, name),
            Self::Share { view, n_batches, n_ranks } => {
                let node = |share, kind| Node::Share(view.pass, share, kind);
                match index.checked_sub(*n_batches) {
                    None => {
                        let batch = view.batch(index);
                        view.names.write(name, batch);
                        Some(Node::Batch(BatchId { pass: view.pass, batch }))
                    }
                    Some(0) => Some(put(name, BATCHES_TXT, node(view.share, ShareNode::BatchesTxt))),
                    Some(1) => Some(put(name, ROWS_NPY, node(view.share, ShareNode::RowsNpy))),
                    Some(beyond) => {
                        let rank = u32::try_from(beyond - 2).ok().filter(|rank| rank < n_ranks)?;
                        name::part(name, "rank", (rank, *n_ranks));
                        Some(node(Share::new(None, Some((rank, *n_ranks))).ok()?, ShareNode::Dir))
                    }
                }
            }
        }
    }
}

fn file(files: &[(&str, Fixed)], index: u64, name: &mut String) -> Option<Node> {
    let (file_name, file) = files.get(to_usize(index))?;
    Some(put(name, file_name, Node::Fixed(*file)))
}

fn put(name: &mut String, text: &str, node: Node) -> Node {
    name.replace_range(.., text);
    node
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
