//! The tree: names, numbers, attributes, directory pages, open and read, on plain types.
//!
//! Nothing here is stored per node. An inode number says what the node is ([`node`]); a name is parsed into a node
//! (`name`, `listing`); sizes come from the engine's arithmetic and from the order; the files that describe a directory are
//! computed for the range that is read (`share`). What is stored are the open files (`handles`), whose number is bounded.
//!
//! Looking up, listing and asking for attributes calls [`Batches::size_bytes`] and nothing else of the engine. Only
//! [`Tree::open`] of a batch makes it work; the answer comes from another thread, and a read then finds the finished bytes.
//!
//! The module knows no kernel interface: `mount` translates, `cat` and `export` call it directly.
#![deny(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

pub mod errno;
mod handles;
mod listing;
mod name;
pub mod node;
mod npy;
mod open;
mod share;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::SystemTime;

use parking_lot::Mutex;

pub use errno::{Reporter, ViewError, errno};
pub use handles::Slice;
pub use listing::DirEntry;
pub use node::Ino;
pub use open::{OpenDone, OpenFile, Opened, Serving};

use crate::order::{Order, Pass, RankPolicy, Share};
use crate::window::Batches;
use handles::Handles;
use name::BatchNames;
use node::{Fixed, MAX_BATCHES, MAX_EPOCHS, MAX_PARTS, Node, ShareNode, pack, unpack};
use share::{ShareView, WindowRows};

/// What a part of `status.json` says now.
pub type StatusPart = Box<dyn Fn() -> serde_json::Value + Send + Sync>;

/// What the log says now.
pub type LogText = Arc<dyn Fn() -> Vec<u8> + Send + Sync>;

/// Files whose bytes are there before the tree is.
#[derive(Debug, Clone, Default)]
pub struct Statics {
    /// `README.md`.
    pub readme: Vec<u8>,
    /// `dataset.json`.
    pub dataset_json: Vec<u8>,
    /// `var_names.txt`, if the dataset has genes.
    pub var_names: Option<Vec<u8>>,
    /// `.shufflefs/config.toml`.
    pub config_toml: Vec<u8>,
}

/// What a tree is made of.
pub struct TreeConfig {
    /// Which row is where.
    pub order: Arc<Order>,
    /// The engine.
    pub batches: Arc<dyn Batches>,
    /// What batch names end with: `safetensors`, without a dot.
    pub extension: String,
    /// Files that do not change.
    pub statics: Statics,
    /// Epochs that a listing of the root shows; all others resolve by name.
    pub list_epochs: u32,
    /// R of the rank directories that a listing of an epoch shows.
    pub world_size: Option<u32>,
    /// What becomes of the batches that do not make a whole round of ranks.
    pub rank_policy: RankPolicy,
    /// Owner of every node.
    pub uid: u32,
    /// Group of every node.
    pub gid: u32,
    /// Modification time of every node.
    pub mtime: SystemTime,
    /// Text of `.shufflefs/log`.
    pub log: LogText,
    /// Files that may be open at once.
    pub max_open: usize,
}

/// Files that may be open at once, if nothing else is said.
pub const DEFAULT_MAX_OPEN: usize = 65_536;

/// Why there is no tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// More batches than inode numbers.
    #[error("an epoch would have {n_batches} batches, at most 4294967296 are possible; raise --batch-size")]
    TooManyBatches {
        /// Batches of an epoch.
        n_batches: u64,
    },
    /// `--world-size` is out of range.
    #[error("--world-size {world_size}: expected 1 to {MAX_PARTS}")]
    WorldSize {
        /// What was given.
        world_size: u32,
    },
    /// `--list-epochs` is out of range.
    #[error("--list-epochs {list_epochs}: expected 0 to {MAX_EPOCHS}")]
    ListEpochs {
        /// What was given.
        list_epochs: u32,
    },
}

/// Attributes of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Its number.
    pub ino: Ino,
    /// True for a directory.
    pub is_dir: bool,
    /// Size in bytes; 0 for directories.
    pub size_bytes: u64,
    /// Names under which it is listed; for directories 2 plus the subdirectories listed.
    pub n_links: u32,
    /// False if the next look may see something else.
    pub is_constant: bool,
}

impl Attr {
    /// Size in units of 512 bytes, as `du` counts.
    #[must_use]
    pub fn n_blocks(&self) -> u64 {
        self.size_bytes.div_ceil(512)
    }

    /// Permission bits: everything is read-only.
    #[must_use]
    pub fn mode(&self) -> u16 {
        if self.is_dir { 0o555 } else { 0o444 }
    }
}

/// The tree.
pub struct Tree {
    config: TreeConfig,
    statics: FixedBytes,
    handles: Arc<Handles>,
    window_rows: WindowRows,
    blocks_npy: Mutex<Option<Weak<[u8]>>>,
    io_status: OnceLock<StatusPart>,
}

/// [`Statics`], shared with the files that are open.
struct FixedBytes {
    readme: Arc<[u8]>,
    dataset_json: Arc<[u8]>,
    var_names: Option<Arc<[u8]>>,
    config_toml: Arc<[u8]>,
}

impl Tree {
    /// A tree.
    ///
    /// # Errors
    /// [`TreeError`] if an option is outside what numbers and names can say.
    pub fn new(mut config: TreeConfig) -> Result<Self, TreeError> {
        let n_batches = config.order.n_batches(Pass::Epoch(0)).max(config.order.n_batches(Pass::InOrder));
        if n_batches > MAX_BATCHES {
            return Err(TreeError::TooManyBatches { n_batches });
        }
        if let Some(world_size) = config.world_size.filter(|n| !(1..=MAX_PARTS).contains(n)) {
            return Err(TreeError::WorldSize { world_size });
        }
        if config.list_epochs > MAX_EPOCHS {
            return Err(TreeError::ListEpochs { list_epochs: config.list_epochs });
        }
        let statics = std::mem::take(&mut config.statics);
        Ok(Self {
            statics: FixedBytes {
                readme: statics.readme.into(),
                dataset_json: statics.dataset_json.into(),
                var_names: statics.var_names.map(Into::into),
                config_toml: statics.config_toml.into(),
            },
            handles: Arc::new(Handles::new(config.max_open)),
            window_rows: WindowRows::default(),
            blocks_npy: Mutex::default(),
            io_status: OnceLock::new(),
            config,
        })
    }

    /// Owner and group of every node.
    #[must_use]
    pub fn owner(&self) -> (u32, u32) {
        (self.config.uid, self.config.gid)
    }

    /// Modification time of every node.
    #[must_use]
    pub fn mtime(&self) -> SystemTime {
        self.config.mtime
    }

    /// Adds `io` to `status.json`: how batches reach their readers. The first one set stays.
    pub fn set_io_status(&self, part: StatusPart) {
        let _ = self.io_status.set(part);
    }

    /// Size of a batch; `None` for every other node.
    #[must_use]
    pub fn batch_size_bytes(&self, ino: Ino) -> Option<u64> {
        match unpack(ino) {
            Some(node @ Node::Batch(id)) if self.exists(node) => Some(self.config.batches.size_bytes(id)),
            _ => None,
        }
    }

    /// Attributes of the node called `name` in the directory `parent`.
    ///
    /// # Errors
    /// [`ViewError::NoEntry`] for any name but a canonical one, [`ViewError::NotDirectory`].
    pub fn lookup(&self, parent: Ino, name: &OsStr) -> Result<Attr, ViewError> {
        let name = name.to_str().ok_or(ViewError::NoEntry)?;
        let parent = unpack(parent).filter(|node| self.exists(*node)).ok_or(ViewError::NoEntry)?;
        self.attr_of(self.child(parent, name)?)
    }

    /// Attributes of a node.
    ///
    /// # Errors
    /// [`ViewError::NoEntry`] if no node has this number.
    pub fn attr(&self, ino: Ino) -> Result<Attr, ViewError> {
        self.attr_of(unpack(ino).filter(|node| self.exists(*node)).ok_or(ViewError::NoEntry)?)
    }

    fn attr_of(&self, node: Node) -> Result<Attr, ViewError> {
        let ino = pack(node).ok_or(ViewError::NoEntry)?;
        let file = |size_bytes| Attr { ino, is_dir: false, size_bytes, n_links: 1, is_constant: true };
        let dir = |n_subdirs: u32| Attr { ino, is_dir: true, size_bytes: 0, n_links: 2 + n_subdirs, is_constant: true };
        Ok(match node {
            Node::Fixed(Fixed::Root) => dir(self.config.list_epochs + 1),
            Node::Fixed(Fixed::Control) => dir(0),
            Node::Fixed(Fixed::BlocksNpy) => file(npy::size_bytes(self.config.order.n_blocks())),
            Node::Fixed(fixed) => {
                let size_bytes = crate::num::to_u64(self.fixed_bytes(fixed).len());
                Attr { is_constant: !is_volatile(fixed), ..file(size_bytes) }
            }
            Node::Share(_, share, ShareNode::Dir) => dir(self.n_listed_ranks(share)),
            Node::Share(pass, share, ShareNode::BatchesTxt) => file(self.share(pass, share).batches_txt_bytes()),
            Node::Share(pass, share, ShareNode::RowsNpy) => file(self.share(pass, share).rows_npy_bytes()),
            Node::Batch(id) => {
                let n_links = 1 + self.n_ranks_listing(id.pass, id.batch);
                Attr { n_links, ..file(self.config.batches.size_bytes(id)) }
            }
        })
    }

    /// Listed rank directories of the pass that hold the batch. Ranks take turns, so it is the one of the batch's turn;
    /// only when the round is filled up from the front can the first batches of the pass be in others too.
    fn n_ranks_listing(&self, pass: Pass, batch: u64) -> u32 {
        let n_ranks = self.n_listed_ranks(Share::ALL);
        if n_ranks == 0 {
            return 0;
        }
        let holds = |rank: u32| {
            let share = Share::new(None, Some((rank, n_ranks)));
            share.is_ok_and(|share| self.share(pass, share).position(batch).is_some())
        };
        if self.config.rank_policy == RankPolicy::Repeat && batch < u64::from(n_ranks) {
            return (0..n_ranks).map(|rank| u32::from(holds(rank))).sum();
        }
        u32::try_from(batch % u64::from(n_ranks)).map_or(0, |rank| u32::from(holds(rank)))
    }

    /// True if a node that has a number is in this tree.
    fn exists(&self, node: Node) -> bool {
        match node {
            Node::Fixed(Fixed::VarNames) => self.statics.var_names.is_some(),
            Node::Fixed(_) => true,
            Node::Share(..) => pack(node).is_some(),
            Node::Batch(id) => pack(node).is_some() && id.batch < self.config.order.n_batches(id.pass),
        }
    }

    fn names(&self, pass: Pass) -> BatchNames<'_> {
        BatchNames::new(self.config.order.n_batches(pass), &self.config.extension)
    }

    fn share(&self, pass: Pass, share: Share) -> ShareView<'_> {
        let TreeConfig { order, rank_policy, .. } = &self.config;
        ShareView { order, policy: *rank_policy, pass, share, names: self.names(pass) }
    }

    /// Bytes of a fixed file; none for directories.
    fn fixed_bytes(&self, fixed: Fixed) -> Arc<[u8]> {
        match fixed {
            Fixed::Root | Fixed::Control => Arc::default(),
            Fixed::Readme => Arc::clone(&self.statics.readme),
            Fixed::DatasetJson => Arc::clone(&self.statics.dataset_json),
            Fixed::VarNames => self.statics.var_names.clone().unwrap_or_default(),
            Fixed::ConfigToml => Arc::clone(&self.statics.config_toml),
            Fixed::StatusJson => self.status_json().into(),
            Fixed::Log => (self.config.log)().into(),
            Fixed::ErrorsTsv => self.errors_tsv().into_bytes().into(),
            Fixed::BlocksNpy => self.blocks_npy(),
        }
    }

    /// One line per failure that a reader saw, with the path of the batch.
    fn errors_tsv(&self) -> String {
        let mut text = String::from("unix_seconds\tpath\terror\n");
        for failure in self.config.batches.failures() {
            let path = self.batch_path(failure.id);
            text.push_str(&format!("{}\t{path}\t{}\n", failure.unix_seconds, failure.reason));
        }
        text
    }

    /// The engine's state, with what the tree knows of itself.
    fn status_json(&self) -> Vec<u8> {
        let mut status = self.config.batches.status_json();
        if let Some(fields) = status.as_object_mut() {
            fields.insert("pid".to_owned(), std::process::id().into());
            fields.insert("open_files".to_owned(), self.n_open().into());
            if let Some(io_status) = self.io_status.get() {
                fields.insert("io".to_owned(), io_status());
            }
        }
        let mut text = format!("{status:#}").into_bytes();
        text.push(b'\n');
        text
    }

    /// Eight bytes a block: rendered when it is opened, and shared by those who hold it open.
    fn blocks_npy(&self) -> Arc<[u8]> {
        let mut kept = self.blocks_npy.lock();
        if let Some(bytes) = kept.as_ref().and_then(Weak::upgrade) {
            return bytes;
        }
        let rows = self.config.order.block_first_rows();
        let mut bytes = Vec::with_capacity(npy::HEADER_BYTES + rows.len() * 8);
        bytes.extend_from_slice(&npy::header(crate::num::to_u64(rows.len())));
        bytes.extend(rows.iter().flat_map(|row| row.to_le_bytes()));
        let bytes: Arc<[u8]> = bytes.into();
        *kept = Some(Arc::downgrade(&bytes));
        bytes
    }
}

/// True for the files that say something else each time.
fn is_volatile(fixed: Fixed) -> bool {
    matches!(fixed, Fixed::StatusJson | Fixed::Log | Fixed::ErrorsTsv)
}
