#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)] // small test data

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::UNIX_EPOCH;

use proptest::prelude::*;

use super::*;
use crate::order::{Blocks, OrderConfig, SourceRows, Tail};
use crate::window::{BatchError, BatchId, Image, OpenReply};

/// What the fake engine does with an open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Serve,
    Fail,
    Shorten,
    Drop,
    Panic,
}

/// An engine without sources: the bytes of a batch follow from its number.
struct Fake {
    act: Act,
    n_sizes: AtomicU64,
    n_opens: AtomicU64,
}

fn size_of(id: BatchId) -> u64 {
    1_000 + id.batch * 7 % 999
}

fn bytes_of(id: BatchId) -> Vec<u8> {
    (0..size_of(id)).map(|i| ((i * 31 + id.batch) % 251) as u8).collect()
}

impl Batches for Fake {
    fn size_bytes(&self, id: BatchId) -> u64 {
        self.n_sizes.fetch_add(1, Ordering::Relaxed);
        size_of(id)
    }

    fn open(&self, id: BatchId, reply: OpenReply) {
        self.n_opens.fetch_add(1, Ordering::Relaxed);
        match self.act {
            Act::Serve => reply(Ok(Image::new(Arc::new(bytes_of(id))))),
            Act::Fail => reply(Err(BatchError::NoMemory { waited_s: 1 })),
            Act::Shorten => reply(Ok(Image::new(Arc::new(vec![0_u8; 3])))),
            Act::Drop => drop(reply),
            Act::Panic => panic!("the fake engine was told to"),
        }
    }

    fn status_json(&self) -> serde_json::Value {
        serde_json::json!({ "windows": 3 })
    }

    fn failures(&self) -> Vec<crate::window::Failure> {
        vec![crate::window::Failure {
            unix_seconds: 7,
            id: BatchId { pass: Pass::InOrder, batch: 2 },
            reason: "why".into(),
        }]
    }
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    n_rows: u64,
    m: u32,
    f: u32,
    tail: Tail,
    policy: RankPolicy,
    world_size: Option<u32>,
}

const SHAPE: Shape =
    Shape { n_rows: 1_003, m: 10, f: 3, tail: Tail::Keep, policy: RankPolicy::Drop, world_size: Some(4) };

fn tree_with(shape: Shape, act: Act, max_open: usize) -> (Tree, Arc<Fake>) {
    let source = SourceRows { rows: 0..shape.n_rows, first_rows: None, x_bytes: 0 };
    let order = OrderConfig {
        n_rows: shape.n_rows,
        blocks: Blocks::fixed(4, &[source]).unwrap(),
        batch_size: shape.m,
        fetch_factor: shape.f,
        seed: 7,
        tail: shape.tail,
    };
    let fake = Arc::new(Fake { act, n_sizes: AtomicU64::new(0), n_opens: AtomicU64::new(0) });
    let tree = Tree::new(TreeConfig {
        order: Arc::new(Order::new(order).unwrap()),
        batches: Arc::clone(&fake) as Arc<dyn Batches>,
        extension: "safetensors".to_owned(),
        statics: Statics {
            readme: b"# read me\n".to_vec(),
            dataset_json: b"{}\n".to_vec(),
            var_names: Some(b"g0\ng1\n".to_vec()),
            config_toml: b"seed = 7\n".to_vec(),
        },
        list_epochs: 2,
        world_size: shape.world_size,
        rank_policy: shape.policy,
        uid: 1,
        gid: 2,
        mtime: UNIX_EPOCH,
        log: Arc::new(|| b"a line\n".to_vec()),
        max_open,
    });
    (tree.unwrap(), fake)
}

fn tree(shape: Shape) -> Tree {
    tree_with(shape, Act::Serve, 100).0
}

type Entry = (String, Ino, bool);

fn list(tree: &Tree, dir: Ino) -> Vec<Entry> {
    let mut entries = Vec::new();
    tree.list(dir, 0, &mut |e| {
        entries.push((e.name.to_owned(), e.ino, e.is_dir));
        false
    })
    .unwrap();
    entries
}

fn read_all(tree: &Tree, ino: Ino) -> Vec<u8> {
    let opened = tree.open_and_wait(ino).unwrap();
    let bytes = tree.read(opened.handle, 0, u32::MAX).unwrap().to_vec();
    tree.release(opened.handle).unwrap();
    assert_eq!(bytes.len() as u64, tree.attr(ino).unwrap().size_bytes);
    bytes
}

/// Every directory that a walk over listed names meets, with its entries.
fn walk(tree: &Tree, root: Ino) -> Vec<(Ino, Vec<Entry>)> {
    let mut dirs = Vec::new();
    let mut todo = vec![root];
    while let Some(dir) = todo.pop() {
        let entries = list(tree, dir);
        todo.extend(entries.iter().filter(|(name, _, is_dir)| *is_dir && !name.starts_with('.')).map(|e| e.1));
        dirs.push((dir, entries));
    }
    dirs
}

fn shapes() -> impl Strategy<Value = Shape> {
    let tail = prop_oneof![Just(Tail::Keep), Just(Tail::Drop), Just(Tail::Pad)];
    let policy = prop_oneof![Just(RankPolicy::Drop), Just(RankPolicy::Repeat)];
    (1..400_u64, 1..12_u32, 1..5_u32, tail, policy, proptest::option::of(1..9_u32))
        .prop_map(|(n_rows, m, f, tail, policy, world_size)| Shape { n_rows, m, f, tail, policy, world_size })
        .prop_filter("an epoch needs a batch", |s| s.tail != Tail::Drop || s.n_rows >= u64::from(s.m))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn listings_names_numbers_and_links_agree(shape in shapes()) {
        let tree = tree(shape);
        let mut n_names: HashMap<Ino, u32> = HashMap::new();
        for (dir, entries) in walk(&tree, Ino::ROOT) {
            let names: HashSet<_> = entries.iter().map(|e| &e.0).collect();
            prop_assert_eq!(names.len(), entries.len());
            prop_assert_eq!(entries[0].clone(), (".".to_owned(), dir, true));
            for (name, ino, is_dir) in &entries[2..] {
                let attr = tree.attr(*ino).unwrap();
                prop_assert_eq!(tree.lookup(dir, OsStr::new(name)).unwrap(), attr);
                prop_assert_eq!((attr.ino, attr.is_dir), (*ino, *is_dir));
                prop_assert_eq!(attr.n_blocks(), attr.size_bytes.div_ceil(512));
                if *is_dir {
                    prop_assert_eq!(list(&tree, *ino)[1].1, dir);
                } else {
                    *n_names.entry(*ino).or_default() += 1;
                }
            }
            let n_subdirs = entries.iter().filter(|e| e.2).count();
            prop_assert_eq!(tree.attr(dir).unwrap().n_links as usize, n_subdirs);
        }
        for (ino, n) in n_names {
            prop_assert_eq!(tree.attr(ino).unwrap().n_links, n);
        }
    }

    #[test]
    fn describing_files_equal_what_the_directory_holds(
        shape in shapes(),
        host in (1..4_u32).prop_flat_map(|n| (0..n, Just(n))),
        rank in (1..4_u32).prop_flat_map(|n| (0..n, Just(n))),
        form in 0..4,
        pass in prop_oneof![Just("epoch-00000"), Just("epoch-00017"), Just("inorder")],
        cuts in proptest::collection::vec((0.0..1.0_f64, 0..600_u32), 8),
    ) {
        let tree = tree(shape);
        let mut path = pass.to_owned();
        if form & 1 == 1 {
            path += &format!("/host-{}-of-{}", host.0, host.1);
        }
        if form & 2 == 2 {
            path += &format!("/rank-{}-of-{}", rank.0, rank.1);
        }
        let dir = tree.resolve(&path).unwrap();
        let batches: Vec<_> = list(&tree, dir).into_iter().filter(|e| e.0.starts_with("batch-")).collect();
        let text: String = batches.iter().map(|e| format!("{}\n", e.0)).collect();
        let rows: Vec<u64> = batches
            .iter()
            .flat_map(|(_, ino, _)| match unpack(*ino) {
                Some(Node::Batch(id)) => tree.config.order.batch_rows(id.pass, id.batch),
                other => panic!("{other:?}"),
            })
            .collect();
        let mut npy = npy::header(rows.len() as u64).to_vec();
        npy.extend(rows.iter().flat_map(|row| (*row as i64).to_le_bytes()));
        for (name, whole) in [("batches.txt", text.into_bytes()), ("rows.npy", npy)] {
            let ino = tree.lookup(dir, OsStr::new(name)).unwrap().ino;
            prop_assert_eq!(&read_all(&tree, ino), &whole);
            let opened = tree.open_and_wait(ino).unwrap();
            for (at, len) in &cuts {
                let offset = (at * (whole.len() + 9) as f64) as usize;
                let expected = &whole[offset.min(whole.len())..(offset + *len as usize).min(whole.len())];
                prop_assert_eq!(&*tree.read(opened.handle, offset as u64, *len).unwrap(), expected);
            }
            prop_assert!(tree.read(opened.handle, u64::MAX, u32::MAX).unwrap().is_empty());
        }
    }
}

#[test]
fn a_walk_never_opens_a_batch() {
    let (tree, fake) = tree_with(SHAPE, Act::Panic, 100);
    let n_batches: usize = walk(&tree, Ino::ROOT)
        .iter()
        .flat_map(|(_, entries)| entries)
        .filter(|e| tree.attr(e.1).unwrap().size_bytes > 0 && e.0.starts_with("batch-"))
        .count();
    // Three passes of 101 batches, and 25 rounds of four ranks in each.
    assert_eq!(n_batches, 3 * (101 + 100));
    assert_eq!(fake.n_opens.load(Ordering::Relaxed), 0);
    assert!(fake.n_sizes.load(Ordering::Relaxed) > 0);
}

#[test]
fn a_listing_resumes_anywhere() {
    let tree = tree(SHAPE);
    for dir in ["", "epoch-00000", "inorder/rank-0-of-4", ".shufflefs", "epoch-00009/host-0-of-2"] {
        let dir = tree.resolve(dir).unwrap();
        let whole = list(&tree, dir);
        let (mut paged, mut offset) = (Vec::new(), 0);
        loop {
            let mut room = 3;
            let before = paged.len();
            tree.list(dir, offset, &mut |e| {
                if room == 0 {
                    return true;
                }
                room -= 1;
                paged.push((e.name.to_owned(), e.ino, e.is_dir));
                offset = e.next_offset;
                false
            })
            .unwrap();
            if paged.len() == before {
                break;
            }
        }
        assert_eq!(paged, whole);
    }
    let readme = tree.resolve("README.md").unwrap();
    assert!(matches!(tree.list(readme, 2, &mut |_| false), Err(ViewError::NotDirectory)));
}

#[test]
fn the_same_batch_has_one_number() {
    let tree = tree(SHAPE);
    let at = |path: &str| tree.resolve(path);
    let batch = at("epoch-00000/batch-0000005.safetensors").unwrap();
    assert_eq!(at("epoch-00000/rank-1-of-4/batch-0000005.safetensors"), Some(batch));
    assert_eq!(at("epoch-00000/rank-0-of-1/batch-0000005.safetensors"), Some(batch));
    // Windows of three batches are dealt to hosts: batch 5 is the last of window 1.
    assert_eq!(at("epoch-00000/host-1-of-2/batch-0000005.safetensors"), Some(batch));
    assert_eq!(at("epoch-00000/host-1-of-2/rank-0-of-2/batch-0000005.safetensors"), Some(batch));
    assert_eq!(at("/epoch-00000//./batch-0000005.safetensors/"), Some(batch));
    assert_ne!(at("epoch-00001/batch-0000005.safetensors"), Some(batch));
    assert_ne!(at("inorder/batch-0000005.safetensors"), Some(batch));
    for elsewhere in [
        "epoch-00000/rank-0-of-4/batch-0000005.safetensors",
        "epoch-00000/host-0-of-2/batch-0000005.safetensors",
        "epoch-00000/batch-0000101.safetensors",
        "epoch-00000/rank-0-of-4/batch-0000100.safetensors",
    ] {
        assert_eq!(at(elsewhere), None, "{elsewhere}");
    }
}

#[test]
fn hostile_names_are_nobodys() {
    let tree = tree(SHAPE);
    assert!(tree.resolve("epoch-2097151/batch-0000000.safetensors").is_some());
    assert!(tree.resolve("epoch-00000/rank-65534-of-65535/batches.txt").is_some());
    assert!(tree.resolve("epoch-00000/host-510-of-511/rank-510-of-511/rows.npy").is_some());
    for path in [
        "epoch-2097152",
        "epoch-0",
        "epoch-99999999999999999999",
        "epoch-00000\n",
        "..",
        "epoch-00000/..",
        "readme.md",
        "inorder/inorder",
        ".shufflefs/log/x",
        ".shufflefs/batches.txt",
        "README.md/x",
        "epoch-00000/rank-4-of-4",
        "epoch-00000/rank-0-of-0",
        "epoch-00000/rank-0-of-65536",
        "epoch-00000/rank-0-of-4/rank-0-of-4",
        "epoch-00000/rank-0-of-4/host-0-of-4",
        "epoch-00000/host-0-of-2/host-0-of-2",
        "epoch-00000/host-0-of-512/rank-0-of-2",
        "epoch-00000/host-0-of-2/rank-0-of-512",
        "epoch-00000/batch-0000000.npz",
        "epoch-00000/batch-0000000.safetensors\0",
        "epoch-00000/batch-\u{661}000000.safetensors",
    ] {
        assert_eq!(tree.resolve(path), None, "{path:?}");
    }
    for name in [&b"README.md\xff"[..], b"", b".", b"..", b"/", &[b'a'; 4096]] {
        assert!(matches!(tree.lookup(Ino::ROOT, OsStr::from_bytes(name)), Err(ViewError::NoEntry)), "{name:?}");
    }
    let readme = tree.resolve("README.md").unwrap();
    assert!(matches!(tree.lookup(readme, OsStr::new("x")), Err(ViewError::NotDirectory)));
    for number in [0, 5, 99, u64::MAX, 7 << 60, 1 << 60 | 101, 1 << 60 | 1 << 57] {
        assert!(matches!(tree.attr(Ino(number)), Err(ViewError::NoEntry)), "{number:#x}");
    }
}

#[test]
fn a_batch_is_read_at_any_range() {
    let (tree, fake) = tree_with(SHAPE, Act::Serve, 100);
    let id = BatchId { pass: Pass::Epoch(3), batch: 17 };
    let ino = tree.resolve("epoch-00003/rank-1-of-4/batch-0000017.safetensors").unwrap();
    let opened = tree.open_and_wait(ino).unwrap();
    assert_eq!(opened.serving, Serving::Batch { size_bytes: size_of(id) });
    let whole = bytes_of(id);
    for (offset, len) in [(0, 4096), (1, 1), (whole.len() - 1, 10), (whole.len(), 10), (500, 100)] {
        let expected = &whole[offset..(offset + len).min(whole.len())];
        assert_eq!(&*tree.read(opened.handle, offset as u64, len as u32).unwrap(), expected);
    }
    assert_eq!((tree.n_open(), fake.n_opens.load(Ordering::Relaxed)), (1, 1));
    tree.release(opened.handle).unwrap();
    assert_eq!(tree.n_open(), 0);
    assert!(matches!(tree.read(opened.handle, 0, 1), Err(ViewError::BadHandle)));
    assert!(matches!(tree.open_and_wait(Ino::ROOT), Err(ViewError::IsDirectory)));
    assert!(matches!(tree.open_and_wait(Ino(99)), Err(ViewError::NoEntry)));
    assert_eq!(tree.n_open(), 0);
}

#[test]
fn failures_answer_and_give_their_place_back() {
    let path = "epoch-00000/batch-0000001.safetensors";
    let open = |tree: &Tree| {
        let (to, from) = std::sync::mpsc::channel();
        let ino = tree.resolve(path).unwrap();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            tree.open(ino, Box::new(move |result| to.send(result.map(drop)).unwrap()));
        }));
        let answers: Vec<_> = from.iter().collect();
        assert_eq!((answers.len(), tree.n_open()), (1, 0));
        (answers.into_iter().next().unwrap().unwrap_err(), caught.is_err())
    };
    for (act, panics) in [(Act::Fail, false), (Act::Shorten, false), (Act::Drop, false), (Act::Panic, true)] {
        let (tree, _) = tree_with(SHAPE, act, 100);
        let (error, panicked) = open(&tree);
        assert_eq!(panicked, panics);
        assert!(error.to_string().starts_with(path), "{error}");
        match act {
            Act::Fail => assert_eq!(errno(&error), libc::ENOMEM),
            Act::Shorten => assert!(matches!(error, ViewError::WrongSize { found: 3, .. })),
            _ => assert!(matches!(error, ViewError::Dropped { .. })),
        }
    }
}

#[test]
fn open_files_are_limited() {
    let (tree, _) = tree_with(SHAPE, Act::Serve, 2);
    let ino = tree.resolve("epoch-00000/batch-0000001.safetensors").unwrap();
    let first = tree.open_and_wait(ino).unwrap();
    tree.open_and_wait(tree.resolve("README.md").unwrap()).unwrap();
    let refused = tree.open_and_wait(ino).unwrap_err();
    assert_eq!(errno(&refused), libc::ENFILE);
    tree.release(first.handle).unwrap();
    tree.open_and_wait(ino).unwrap();
}

#[test]
fn fixed_files_hold_what_they_were_given() {
    let tree = tree(SHAPE);
    let read = |path: &str| read_all(&tree, tree.resolve(path).unwrap());
    assert_eq!(read("README.md"), b"# read me\n");
    assert_eq!(read("var_names.txt"), b"g0\ng1\n");
    assert_eq!(read(".shufflefs/config.toml"), b"seed = 7\n");
    assert_eq!(read(".shufflefs/log"), b"a line\n");
    let errors = "unix_seconds\tpath\terror\n7\tinorder/batch-0000002.safetensors\twhy\n";
    assert_eq!(read(".shufflefs/errors.tsv"), errors.as_bytes());
    let blocks = read(".shufflefs/blocks.npy");
    let rows: Vec<i64> = blocks[128..].chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(rows, (0..1_003).step_by(4).collect::<Vec<i64>>());

    let status = tree.resolve(".shufflefs/status.json").unwrap();
    let opened = tree.open_and_wait(status).unwrap();
    assert_eq!(opened.serving, Serving::Volatile);
    let json: serde_json::Value = serde_json::from_slice(&tree.read(opened.handle, 0, 4096).unwrap()).unwrap();
    assert_eq!((json["windows"].as_u64(), json["open_files"].as_u64()), (Some(3), Some(1)));
    assert_eq!(json["pid"].as_u64(), Some(u64::from(std::process::id())));
    assert!(!tree.attr(status).unwrap().is_constant && tree.attr(Ino::ROOT).unwrap().is_constant);
    // The control directory is found by name, and not by a walk.
    assert!(list(&tree, Ino::ROOT).iter().all(|(name, ..)| name != ".shufflefs"));
}

#[test]
fn a_dataset_without_genes_has_no_list_of_them() {
    let (mut tree, _) = tree_with(SHAPE, Act::Serve, 1);
    tree.statics.var_names = None;
    assert_eq!(tree.resolve("var_names.txt"), None);
    let names: Vec<_> = list(&tree, Ino::ROOT).into_iter().map(|e| e.0).collect();
    assert_eq!(names, [".", "..", "README.md", "dataset.json", "epoch-00000", "epoch-00001", "inorder"]);
}

#[test]
fn options_that_names_cannot_say_are_refused() {
    let config = |world_size, list_epochs| {
        let (tree, _) = tree_with(SHAPE, Act::Serve, 1);
        Tree::new(TreeConfig { world_size, list_epochs, ..tree.config }).map(drop)
    };
    assert_eq!(config(Some(0), 2), Err(TreeError::WorldSize { world_size: 0 }));
    assert_eq!(config(Some(65_536), 2), Err(TreeError::WorldSize { world_size: 65_536 }));
    assert_eq!(config(None, MAX_EPOCHS + 1), Err(TreeError::ListEpochs { list_epochs: MAX_EPOCHS + 1 }));
    assert_eq!(config(Some(65_535), MAX_EPOCHS), Ok(()));
}
