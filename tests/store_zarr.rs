//! Zarr stores made here byte by byte: shards and their indexes, what of them is read, groups, collections, and damage of every kind.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "common/reading.rs"]
mod reading;

use std::fs;
use std::path::{Path, PathBuf};

use reading::{read_element, read_row};
use serde_json::{Value, json};
use shufflefs::codec::crc32c_checksum;
use shufflefs::store::anndata::{self, AnnDataStore, NamesChoice, ObsChoice, Selection, SourceSpec};
use shufflefs::store::cache::CacheConfig;
use shufflefs::store::fault::CountingStore;
use shufflefs::store::{OpenError, ReadError, Store};
use tempfile::TempDir;

const ROWS: usize = 10;
const GENES: usize = 6;
const EMPTY: u64 = u64::MAX;

fn select() -> Selection {
    Selection {
        x: Some("X".to_owned()),
        layers: Vec::new(),
        obsm: Vec::new(),
        obs: ObsChoice::All,
        names: NamesChoice::Yes,
        genes_column: None,
        one_of_many: false,
    }
}

fn open(path: &Path) -> Result<AnnDataStore, OpenError> {
    AnnDataStore::new(vec![anndata::open(&SourceSpec::parse(path), &select(), &CacheConfig::off())?])
}

fn refused(path: &Path, words: &[&str]) {
    let text = open(path).err().expect("must be refused").to_string();
    assert!(words.iter().all(|word| text.contains(word)) && !text.contains('\n'), "{text} lacks one of {words:?}");
}

fn document(folder: &Path, content: &Value) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("zarr.json"), content.to_string()).unwrap();
}

fn group(folder: &Path, attributes: &Value) {
    document(folder, &json!({"zarr_format": 3, "node_type": "group", "attributes": attributes}));
}

fn array(folder: &Path, shape: &[usize], chunk: &[usize], data_type: &str, codecs: &Value) {
    document(
        folder,
        &json!({
            "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": data_type, "fill_value": if data_type == "string" { json!("") } else { json!(7) },
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "codecs": codecs,
        }),
    );
}

fn texts(folder: &Path, n: usize) {
    array(folder, &[n], &[n], "string", &json!(["vlen-utf8"]));
    let mut bytes = u32::try_from(n).unwrap().to_le_bytes().to_vec();
    for i in 0..n {
        let text = format!("name{i}");
        bytes.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    fs::create_dir_all(folder.join("c")).unwrap();
    fs::write(folder.join("c/0"), bytes).unwrap();
}

/// An AnnData object without X.
fn frames(folder: &Path) {
    group(folder, &json!({"encoding-type": "anndata"}));
    for (name, n) in [("obs", ROWS), ("var", GENES)] {
        group(&folder.join(name), &json!({"encoding-type": "dataframe", "_index": "_index", "column-order": []}));
        texts(&folder.join(name).join("_index"), n);
    }
}

fn value(row: usize, col: usize) -> f32 {
    (100 * row + col) as f32
}

/// The rows `rows` of X, all columns.
fn chunk(rows: std::ops::Range<usize>) -> Vec<u8> {
    rows.flat_map(|r| (0..GENES).flat_map(move |c| value(r, c).to_le_bytes())).collect()
}

/// An index with its checksum.
fn index(places: &[(u64, u64)]) -> Vec<u8> {
    let mut bytes: Vec<u8> = places.iter().flat_map(|(o, n)| [o.to_le_bytes(), n.to_le_bytes()].concat()).collect();
    bytes.extend(crc32c_checksum(&bytes).to_le_bytes());
    bytes
}

fn sharding(location: &str, inner: &Value) -> Value {
    json!([{"name": "sharding_indexed", "configuration": {
        "chunk_shape": [2, GENES], "codecs": inner, "index_codecs": ["bytes", "crc32c"], "index_location": location,
    }}])
}

fn plain() -> Value {
    json!([{"name": "bytes", "configuration": {"endian": "little"}}])
}

/// X of 10 rows in shards of 6, chunks of 2: rows 2 and 3 are empty, the last shard ends behind the array. The path of the first shard.
fn sharded(folder: &Path, at_start: bool) -> PathBuf {
    frames(folder);
    let x = folder.join("X");
    array(&x, &[ROWS, GENES], &[6, GENES], "float32", &sharding(if at_start { "start" } else { "end" }, &plain()));
    let size = to_u64(chunk(0..2).len());
    let first = if at_start { 52 } else { 0 };
    for (shard, places, data) in [
        (0, [(first + size, size), (EMPTY, EMPTY), (first, size)], [chunk(4..6), chunk(0..2)].concat()),
        (1, [(first, size), (first + size, size), (EMPTY, EMPTY)], chunk(6..10)),
    ] {
        fs::create_dir_all(x.join(format!("c/{shard}"))).unwrap();
        let parts = if at_start { [index(&places), data] } else { [data, index(&places)] };
        fs::write(x.join(format!("c/{shard}/0")), parts.concat()).unwrap();
    }
    x.join("c/0/0")
}

fn to_u64(n: usize) -> u64 {
    n as u64
}

fn expected(row: usize) -> Vec<f64> {
    (0..GENES).map(|col| if row == 2 || row == 3 { 7.0 } else { f64::from(value(row, col)) }).collect()
}

fn made(at_start: bool) -> (TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made.zarr");
    let shard = sharded(&path, at_start);
    (dir, path, shard)
}

#[test]
fn shards_with_holes_and_an_index_on_either_side() {
    for at_start in [false, true] {
        let (_keep, path, _) = made(at_start);
        let store = open(&path).unwrap();
        assert_eq!(store.schema().sources[0].kind, "zarr v3, dense");
        let rows = read_element(&store, 0).unwrap();
        for (row, values) in rows.values.iter().enumerate() {
            assert_eq!(*values, expected(row), "row {row}");
        }
        assert_eq!(store.schema().obs_names.as_ref().unwrap().get(9), "name9");
        assert_eq!(store.chunk_borders()[0].first_rows, Some(vec![0, 2, 4, 6, 8]));
    }
}

#[test]
fn of_a_shard_only_what_is_needed_is_read() {
    let (_keep, path, _) = made(false);
    let store = CountingStore::new(open(&path).unwrap());
    assert_eq!(read_row(&store, 0, 5).unwrap(), expected(5));
    let counts = store.counts();
    assert_eq!((counts.reads, counts.read_bytes, counts.decoded_bytes), (1, to_u64(GENES) * 4, 0));
    assert_eq!(read_row(&store, 0, 2).unwrap(), expected(2));
    assert_eq!(store.counts().reads, 1, "what was never written is not read");
}

#[test]
fn damaged_indexes_are_refused() {
    let size = to_u64(chunk(0..2).len());
    let data = chunk(0..6);
    let places = [(0, size), (size, size), (2 * size, size)];
    let wrong: [(&str, Vec<u8>, &str); 7] = [
        ("checksum", [data.clone(), index(&places)].concat().split_last().unwrap().1.to_vec(), "checksum"),
        ("too short", vec![0; 40], "shorter than its index"),
        ("outside", [data.clone(), index(&[(0, size), (size, size), (4 * size, size)])].concat(), "outside its shard"),
        (
            "overflow",
            [data.clone(), index(&[(u64::MAX - 1, size), (0, size), (0, size)])].concat(),
            "outside its shard",
        ),
        ("one half empty", [data.clone(), index(&[(EMPTY, size), (0, size), (0, size)])].concat(), "outside its shard"),
        ("length", [data.clone(), index(&[(0, size - 1), (0, size), (0, size)])].concat(), "bytes, not"),
        ("empty", Vec::new(), "shorter than its index"),
    ];
    for (what, bytes, word) in wrong {
        let (_keep, path, shard) = made(false);
        fs::write(&shard, bytes).unwrap();
        eprintln!("{what}");
        refused(&path, &[": X: ", word]);
    }
}

#[test]
fn limits_come_before_memory() {
    let huge = 1_usize << 39;
    for (shape, outer, inner, word) in [
        ([ROWS, GENES], [huge, GENES], [2, GENES], "shorter than its index"),
        ([ROWS, GENES], [huge, GENES], [huge, GENES], "chunks of"),
        ([huge, GENES], [1, GENES], [1, GENES], "chunk files"),
        ([huge, huge], [huge, huge], [1, 1], "limits"),
    ] {
        let (_keep, path, _) = made(false);
        let mut codecs = sharding("end", &plain());
        codecs[0]["configuration"]["chunk_shape"] = json!(inner);
        array(&path.join("X"), &shape, &outer, "float32", &codecs);
        let text = open(&path).err().expect("must be refused").to_string();
        assert!(text.contains(word) || text.contains("obs has"), "{text}");
    }
}

#[test]
fn a_file_that_changes_is_stale() {
    let (_keep, path, shard) = made(false);
    let store = open(&path).unwrap();
    fs::remove_file(&shard).unwrap();
    assert!(matches!(read_row(&store, 0, 0), Err(ReadError::Stale { file }) if file == shard));
    assert_eq!(read_row(&store, 0, 7).unwrap(), expected(7), "other files are still served");
    let (_keep, path, shard) = made(false);
    let store = open(&path).unwrap();
    assert_eq!(read_row(&store, 0, 0).unwrap(), expected(0));
    let bytes = fs::read(&shard).unwrap();
    fs::write(&shard, &bytes[..bytes.len() - 1]).unwrap();
    let stale = (0..2).find_map(|file| store.check_unchanged(file).err());
    assert!(matches!(stale, Some(ReadError::Stale { .. })), "{stale:?}");
}

/// Every document and every shard with bytes changed at random: refused, an error, or values; no panic, and little memory.
#[test]
fn mutants_do_no_harm() {
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let (mut served, mut failed) = (0, 0);
    for at_start in [false, true] {
        let (_keep, path, shard) = made(at_start);
        let targets = ["zarr.json", "X/zarr.json", "obs/zarr.json", "obs/_index/zarr.json", "obs/_index/c/0"];
        let targets: Vec<PathBuf> = targets.iter().map(|name| path.join(name)).chain([shard]).collect();
        for target in &targets {
            let good = fs::read(target).unwrap();
            for round in 0..300 {
                let mut bad = good.clone();
                for _ in 0..=random() % 3 {
                    let at = (random() % to_u64(bad.len())) as usize;
                    match random() % 4 {
                        0 => bad[at] = b'0' + (random() % 10) as u8,
                        1 => bad[at] = random() as u8,
                        2 => bad[at] ^= 1 << (random() % 8),
                        _ => drop(bad.splice(at..at, b"9".repeat((random() % 12) as usize))),
                    }
                }
                if round % 10 == 0 {
                    bad.truncate((random() % to_u64(bad.len())) as usize);
                }
                fs::write(target, bad).unwrap();
                let read = open(&path).ok().and_then(|store| read_element(&store, 0).ok());
                *(if read.is_some() { &mut served } else { &mut failed }) += 1;
            }
            fs::write(target, good).unwrap();
        }
    }
    assert!(served > 100 && failed > 100, "{served} {failed}");
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kib: u64 = peak.trim().trim_end_matches(" kB").trim().parse().unwrap();
    assert!(peak_kib < 512 << 10, "{peak_kib} KiB");
}

#[test]
fn collections_are_expanded_in_numeric_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("collection");
    group(&path, &json!({"encoding-type": "annbatch-preshuffled"}));
    assert!(anndata::expand(&path).unwrap_err().to_string().contains("empty collection"));
    for name in ["dataset_10", "dataset_2", "dataset_0", "other", "dataset_x"] {
        frames(&path.join(name));
    }
    let found = anndata::expand(&path).unwrap().unwrap();
    let names: Vec<&str> = found.sources.iter().map(|s| s.group.as_deref().unwrap()).collect();
    assert!(found.shuffled && names == ["dataset_0", "dataset_2", "dataset_10"], "{names:?}");
    assert_eq!(anndata::expand(&path.join("dataset_0")).unwrap(), None);
    assert_eq!(anndata::expand(&path.join("nothing")).unwrap(), None);
    assert_eq!(anndata::expand(dir.path()).unwrap(), None);
    let spec = &found.sources[1];
    assert!(spec.to_string().ends_with("collection::dataset_2"));
    assert_eq!(SourceSpec::parse(&spec.shown()), *spec);
    let selection = Selection { x: None, ..select() };
    let opened = anndata::open(spec, &selection, &CacheConfig::off()).unwrap();
    assert_eq!((opened.n_obs, opened.path), (to_u64(ROWS), spec.shown()));
}
