//! What an inode number says.
//!
//! A number is arithmetic on what the node is, so that a tree of any size costs no memory and a node has the same number
//! under every name. Bit 63 is clear; bits 60 to 62 are a tag:
//!
//! ```text
//! tag 0  fixed nodes: the root is 1
//! tag 1  batch of an epoch      [57..60) tree  [53..57) format  [32..53) epoch  [0..32) batch
//! tag 2  batch of the source order, the same fields with epoch 0
//! tag 3  directory of a share   [57..60) tree  [35..57) pass  [33..35) kind  [31..33) form  [0..31) index of the pair
//! tag 4  directory of a rank inside a host  [57..60) tree  [35..57) pass  [17..34) host pair  [0..17) rank pair
//! tag 5  its batches.txt        the same fields
//! tag 6  its rows.npy           the same fields
//! tag 7  reserved for entries of single rows
//! ```
//!
//! `tree` and `format` are reserved and 0. A pass is its epoch, or bit 21 for the source order. A pair "r of R" has the
//! index `R (R - 1) / 2 + r`, which numbers all pairs up to 65,535 in 31 bits and up to 511 in 17. These are the limits
//! of the names that resolve: [`MAX_PARTS`], and [`MAX_NESTED_PARTS`] for each of the two of `host-h-of-H/rank-r-of-R`.

use crate::order::{Pass, Share};
use crate::window::BatchId;

/// Largest R of `rank-r-of-R` and of `host-h-of-H`.
pub const MAX_PARTS: u32 = 65_535;
/// Largest H and R where a rank directory lies inside a host directory.
pub const MAX_NESTED_PARTS: u32 = 511;
/// Epoch numbers are below this.
pub const MAX_EPOCHS: u32 = 1 << 21;
/// Batch numbers are below this.
pub const MAX_BATCHES: u64 = 1 << 32;

/// An inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ino(pub u64);

impl Ino {
    /// The root of the tree.
    pub const ROOT: Self = Self(1);
}

/// Nodes of which there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fixed {
    /// The directory that is mounted.
    Root,
    /// `README.md`.
    Readme,
    /// `dataset.json`.
    DatasetJson,
    /// `var_names.txt`.
    VarNames,
    /// `.shufflefs/`.
    Control,
    /// `.shufflefs/status.json`.
    StatusJson,
    /// `.shufflefs/blocks.npy`.
    BlocksNpy,
    /// `.shufflefs/config.toml`.
    ConfigToml,
    /// `.shufflefs/log`.
    Log,
    /// `.shufflefs/errors.tsv`.
    ErrorsTsv,
}

/// Every fixed node with its number.
const FIXED: [(Fixed, u64); 10] = [
    (Fixed::Root, 1),
    (Fixed::Readme, 2),
    (Fixed::DatasetJson, 3),
    (Fixed::VarNames, 4),
    (Fixed::Control, 16),
    (Fixed::StatusJson, 17),
    (Fixed::BlocksNpy, 18),
    (Fixed::ConfigToml, 19),
    (Fixed::Log, 20),
    (Fixed::ErrorsTsv, 21),
];

/// A directory of batches, or one of the two files that describe it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShareNode {
    /// The directory.
    Dir,
    /// Its `batches.txt`.
    BatchesTxt,
    /// Its `rows.npy`.
    RowsNpy,
}

/// A node of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Node {
    /// A node of which there is one.
    Fixed(Fixed),
    /// A directory of batches (the share without host and rank is the pass itself), or a file that describes it.
    Share(Pass, Share, ShareNode),
    /// A batch file, under whatever name.
    Batch(BatchId),
}

const IN_ORDER: u64 = 1 << 21;

const TAG_EPOCH_BATCH: u64 = 1;
const TAG_INORDER_BATCH: u64 = 2;
const TAG_SHARE: u64 = 3;
const TAG_NESTED_DIR: u64 = 4;
const TAG_NESTED_BATCHES: u64 = 5;
const TAG_NESTED_ROWS: u64 = 6;

const FORM_WHOLE: u64 = 0;
const FORM_RANK: u64 = 1;
const FORM_HOST: u64 = 2;

/// The number of a node; `None` if it is outside the limits of this module, so that no name leads to it.
#[must_use]
pub fn pack(node: Node) -> Option<Ino> {
    let ino = match node {
        Node::Fixed(fixed) => FIXED.iter().find(|(f, _)| *f == fixed)?.1,
        Node::Batch(BatchId { pass, batch }) => {
            if batch >= MAX_BATCHES {
                return None;
            }
            match pass {
                Pass::Epoch(_) => TAG_EPOCH_BATCH << 60 | pack_pass(pass)? << 32 | batch,
                Pass::InOrder => TAG_INORDER_BATCH << 60 | batch,
            }
        }
        Node::Share(pass, share, kind) => pack_share(share, kind)? | pack_pass(pass)? << 35,
    };
    Some(Ino(ino))
}

fn pack_share(share: Share, kind: ShareNode) -> Option<u64> {
    let (kind_bits, nested_tag) = match kind {
        ShareNode::Dir => (0, TAG_NESTED_DIR),
        ShareNode::BatchesTxt => (1, TAG_NESTED_BATCHES),
        ShareNode::RowsNpy => (2, TAG_NESTED_ROWS),
    };
    let (form, pair) = match (share.host(), share.rank()) {
        (None, None) => (FORM_WHOLE, 0),
        (None, Some(rank)) => (FORM_RANK, pair_index(rank, MAX_PARTS)?),
        (Some(host), None) => (FORM_HOST, pair_index(host, MAX_PARTS)?),
        (Some(host), Some(rank)) => {
            let (host, rank) = (pair_index(host, MAX_NESTED_PARTS)?, pair_index(rank, MAX_NESTED_PARTS)?);
            return Some(nested_tag << 60 | host << 17 | rank);
        }
    };
    Some(TAG_SHARE << 60 | kind_bits << 33 | form << 31 | pair)
}

fn pack_pass(pass: Pass) -> Option<u64> {
    match pass {
        Pass::Epoch(epoch) => (epoch < MAX_EPOCHS).then_some(u64::from(epoch)),
        Pass::InOrder => Some(IN_ORDER),
    }
}

/// The node that has this number; `None` if [`pack`] never gives it out.
#[must_use]
pub fn unpack(ino: Ino) -> Option<Node> {
    let at = |low: u32, high: u32| (ino.0 >> low) & ((1 << (high - low)) - 1);
    let node = match ino.0 >> 60 {
        0 => Node::Fixed(FIXED.iter().find(|(_, number)| *number == ino.0)?.0),
        TAG_EPOCH_BATCH => Node::Batch(BatchId { pass: unpack_pass(at(32, 53))?, batch: at(0, 32) }),
        TAG_INORDER_BATCH => Node::Batch(BatchId { pass: Pass::InOrder, batch: at(0, 32) }),
        TAG_SHARE => {
            let kind = match at(33, 35) {
                0 => ShareNode::Dir,
                1 => ShareNode::BatchesTxt,
                2 => ShareNode::RowsNpy,
                _ => return None,
            };
            let share = match at(31, 33) {
                FORM_WHOLE => Share::ALL,
                FORM_RANK => Share::new(None, Some(pair_of(at(0, 31))?)).ok()?,
                FORM_HOST => Share::new(Some(pair_of(at(0, 31))?), None).ok()?,
                _ => return None,
            };
            Node::Share(unpack_pass(at(35, 57))?, share, kind)
        }
        tag @ TAG_NESTED_DIR..=TAG_NESTED_ROWS => {
            let kind = match tag {
                TAG_NESTED_DIR => ShareNode::Dir,
                TAG_NESTED_BATCHES => ShareNode::BatchesTxt,
                _ => ShareNode::RowsNpy,
            };
            let share = Share::new(Some(pair_of(at(17, 34))?), Some(pair_of(at(0, 17))?)).ok()?;
            Node::Share(unpack_pass(at(35, 57))?, share, kind)
        }
        _ => return None,
    };
    // Reserved bits, and pairs above their limits, were skipped over: a number that is not the node's own is nobody's.
    (pack(node) == Some(ino)).then_some(node)
}

fn unpack_pass(bits: u64) -> Option<Pass> {
    if bits == IN_ORDER { Some(Pass::InOrder) } else { u32::try_from(bits).ok().map(Pass::Epoch) }
}

/// Index of "part of parts" among all pairs with fewer parts, then fewer before it.
fn pair_index((part, parts): (u32, u32), max_parts: u32) -> Option<u64> {
    let (part, parts, max_parts) = (u64::from(part), u64::from(parts), u64::from(max_parts));
    (part < parts && parts <= max_parts).then(|| parts * (parts - 1) / 2 + part)
}

/// Inverse of [`pair_index`]: with `index = R (R - 1) / 2 + r`, `8 index + 1 = (2 R - 1)^2 + 8 r` lies in `[(2 R - 1)^2, (2 R + 1)^2)`.
fn pair_of(index: u64) -> Option<(u32, u32)> {
    let parts = index.checked_mul(8)?.checked_add(1)?.isqrt().div_ceil(2);
    let part = index.checked_sub(parts * (parts.checked_sub(1)?) / 2)?;
    Some((u32::try_from(part).ok()?, u32::try_from(parts).ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pair(max: u32) -> impl Strategy<Value = (u32, u32)> {
        (1..=max).prop_flat_map(|parts| (0..parts, Just(parts)))
    }

    fn pass() -> impl Strategy<Value = Pass> {
        prop_oneof![(0..MAX_EPOCHS).prop_map(Pass::Epoch), Just(Pass::InOrder)]
    }

    fn share() -> impl Strategy<Value = Share> {
        prop_oneof![
            Just(Share::ALL),
            pair(MAX_PARTS).prop_map(|rank| Share::new(None, Some(rank)).unwrap()),
            pair(MAX_PARTS).prop_map(|host| Share::new(Some(host), None).unwrap()),
            (pair(MAX_NESTED_PARTS), pair(MAX_NESTED_PARTS)).prop_map(|(host, rank)| Share::new(
                Some(host),
                Some(rank)
            )
            .unwrap()),
        ]
    }

    fn node() -> impl Strategy<Value = Node> {
        let kind = prop_oneof![Just(ShareNode::Dir), Just(ShareNode::BatchesTxt), Just(ShareNode::RowsNpy)];
        prop_oneof![
            (0..FIXED.len()).prop_map(|i| Node::Fixed(FIXED[i].0)),
            (pass(), share(), kind).prop_map(|(pass, share, kind)| Node::Share(pass, share, kind)),
            (pass(), 0..MAX_BATCHES).prop_map(|(pass, batch)| Node::Batch(BatchId { pass, batch })),
        ]
    }

    proptest! {
        #[test]
        fn a_node_survives_its_number(node in node()) {
            let ino = pack(node).unwrap();
            prop_assert!(ino.0 >> 63 == 0 && ino.0 != 0);
            prop_assert_eq!(unpack(ino), Some(node));
        }

        #[test]
        fn a_number_is_a_node_or_nothing(number in any::<u64>(), tag in 0..8_u64) {
            let ino = Ino(tag << 60 | number >> 4);
            for ino in [ino, Ino(number)] {
                if let Some(node) = unpack(ino) {
                    prop_assert_eq!(pack(node), Some(ino));
                }
            }
        }
    }

    #[test]
    fn limits_are_refused_and_reached() {
        let share = |host, rank| Node::Share(Pass::Epoch(0), Share::new(host, rank).unwrap(), ShareNode::Dir);
        let batch = |pass, batch| Node::Batch(BatchId { pass, batch });
        let (last_epoch, p, n) = (Pass::Epoch(MAX_EPOCHS - 1), MAX_PARTS, MAX_NESTED_PARTS);
        for ok in [
            share(None, Some((p - 1, p))),
            share(Some((p - 1, p)), None),
            share(Some((n - 1, n)), Some((n - 1, n))),
            batch(last_epoch, MAX_BATCHES - 1),
        ] {
            assert_eq!(unpack(pack(ok).unwrap()), Some(ok));
        }
        for refused in [
            share(None, Some((0, p + 1))),
            share(Some((0, n + 1)), Some((0, 1))),
            share(Some((0, 1)), Some((0, n + 1))),
            batch(Pass::Epoch(MAX_EPOCHS), 0),
            batch(Pass::Epoch(0), MAX_BATCHES),
        ] {
            assert_eq!(pack(refused), None, "{refused:?}");
        }
        assert_eq!(pack(Node::Fixed(Fixed::Root)), Some(Ino::ROOT));
    }
}
