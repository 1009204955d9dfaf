//! Reads every AnnData source of the shared test data, in HDF5 and zarr, through the `Store` trait and compares it with `MANIFEST.tsv`, whose values
//! were computed by h5py and anndata. Folder: `SHUFFLEFS_TEST_DATA`, default `../shared/data` beside the package.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "common/reading.rs"]
mod reading;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use reading::{Rows, digest_f64, digest_names, read_element, seq_sum};
use serde_json::Value;
use shufflefs::dtype::DType;
use shufflefs::store::anndata;
use shufflefs::store::anndata::{AnnDataStore, NamesChoice, ObsChoice, Opened, Selection, SourceSpec};
use shufflefs::store::cache::CacheConfig;
use shufflefs::store::{Categories, Column, ColumnData, ElementKind, OpenError, ReadError, Store};

type Row = HashMap<String, String>;

/// The folder and its manifest; `None` with a loud message if it is absent, which under CI is a failure.
fn manifest() -> Option<(PathBuf, Vec<Row>)> {
    let folder = std::env::var_os("SHUFFLEFS_TEST_DATA")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data"), PathBuf::from);
    let Ok(text) = std::fs::read_to_string(folder.join("MANIFEST.tsv")) else {
        assert!(std::env::var_os("CI").is_none(), "no test data in {}", folder.display());
        eprintln!("\n*** SKIPPED: no test data in {}; set SHUFFLEFS_TEST_DATA ***\n", folder.display());
        return None;
    };
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap().split('\t').collect();
    let rows =
        lines.map(|line| names.iter().zip(line.split('\t')).map(|(k, v)| (k.to_string(), v.to_owned())).collect());
    Some((folder, rows.collect()))
}

fn is_h5ad(row: &Row) -> bool {
    row["kind"].starts_with("h5ad") || row["kind"].starts_with("hostile h5ad")
}

fn is_zarr(row: &Row) -> bool {
    row["kind"].starts_with("zarr")
}

fn select(x: Option<&str>, obs: ObsChoice) -> Selection {
    Selection {
        x: x.map(ToOwned::to_owned),
        layers: Vec::new(),
        obsm: Vec::new(),
        obs,
        names: NamesChoice::Yes,
        genes_column: None,
        one_of_many: false,
    }
}

fn open(path: &Path, selection: &Selection) -> Result<(AnnDataStore, Vec<(String, String)>), OpenError> {
    let opened: Opened = anndata::open(&SourceSpec::parse(path), selection, &CacheConfig::off())?;
    let left_out = opened.left_out.clone();
    Ok((AnnDataStore::new(vec![opened])?, left_out))
}

fn check_x(row: &Row, rows: &Rows, at: &str) {
    let sums = rows.row_sums();
    assert_eq!(digest_f64(&sums), row["x_rows_sha256"], "{at}: row sums");
    let sum: f64 = row["x_sum"].parse().unwrap();
    assert_eq!(seq_sum(sums.iter().copied()).to_bits(), sum.to_bits(), "{at}: sum");
    assert_eq!(rows.n_stored().to_string(), row["x_nnz"], "{at}: stored values");
}

fn check_names(row: &Row, store: &AnnDataStore, at: &str) {
    let schema = store.schema();
    assert_eq!(schema.n_rows.to_string(), row["n_rows"], "{at}");
    assert_eq!(schema.n_vars.to_string(), row["n_vars"], "{at}");
    let names = schema.obs_names.as_ref().expect("names were asked for");
    assert_eq!(names.iter().next().unwrap_or(""), row["obs_first"], "{at}");
    assert_eq!(names.iter().last().unwrap_or(""), row["obs_last"], "{at}");
    assert_eq!(digest_names(names.iter()), row["obs_names_sha256"], "{at}: obs names");
    assert_eq!(digest_names(schema.var_names.iter()), row["var_names_sha256"], "{at}: var names");
}

fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    reading::to_f64(bytes, shufflefs::dtype::Stored::little(dtype))
}

/// `[dtype, categories, missing, check]` as the manifest writes them.
fn describe(column: &Column) -> (String, Option<u64>, u64, String) {
    let is_present = |i: usize| column.present.as_ref().is_none_or(|p| p[i] == 1);
    match &column.data {
        ColumnData::Numeric { dtype, bytes } => {
            let values = numbers(*dtype, bytes);
            let kept: Vec<f64> =
                values.iter().enumerate().filter(|(i, v)| is_present(*i) && !v.is_nan()).map(|(_, v)| *v).collect();
            let nullable = if column.present.is_some() { "nullable " } else { "" };
            let missing = (values.len() - kept.len()) as u64;
            (format!("{nullable}{dtype}"), None, missing, seq_sum(kept.into_iter()).to_string())
        }
        ColumnData::Categorical { codes, categories, ordered } => {
            let codes: Vec<i32> = (0..codes.len()).map(|i| codes.get(i)).collect();
            let missing = codes.iter().filter(|c| **c < 0).count() as u64;
            let (kind, check) = match categories {
                Categories::Text(labels) => {
                    let label = |c: &i32| usize::try_from(*c).map_or("", |c| labels.get(c));
                    ("string", digest_names(codes.iter().map(label)))
                }
                Categories::Numeric { dtype, .. } => {
                    let bytes: Vec<u8> = codes.iter().flat_map(|c| c.to_le_bytes()).collect();
                    (dtype.numpy_name(), reading::sha256_hex(&bytes))
                }
            };
            let ordered = if *ordered { ",ordered" } else { "" };
            (format!("category[{kind}]{ordered}"), Some(categories.len() as u64), missing, check[..16].to_owned())
        }
        ColumnData::Strings(strings) => {
            let missing = (0..strings.len()).filter(|&i| !is_present(i)).count() as u64;
            ("string".to_owned(), None, missing, digest_names(strings.iter())[..16].to_owned())
        }
    }
}

fn check_columns(row: &Row, store: &AnnDataStore, at: &str) {
    let expected: Vec<Value> = serde_json::from_str(&row["obs"]).unwrap();
    let found = &store.schema().columns;
    let names: Vec<&str> = found.iter().map(|c| c.name.as_str()).collect();
    let expected_names: Vec<&str> = expected.iter().map(|c| c[0].as_str().unwrap()).collect();
    assert_eq!(names, expected_names, "{at}: columns");
    for (column, expected) in found.iter().zip(&expected) {
        let at = format!("{at}: obs/{}", column.name);
        assert_eq!(column.len() as u64, store.schema().n_rows, "{at}");
        let (dtype, categories, missing, check) = describe(column);
        assert_eq!(dtype, expected[1].as_str().unwrap(), "{at}");
        assert_eq!(categories, expected[2].as_u64(), "{at}: categories");
        assert_eq!(missing, expected[3].as_u64().unwrap(), "{at}: missing");
        let wanted = expected[4].as_str().unwrap();
        match (check.parse::<f64>(), wanted.parse::<f64>()) {
            (Ok(a), Ok(b)) if column_is_numeric(column) => assert_eq!(a.to_bits(), b.to_bits(), "{at}: sum"),
            _ => assert_eq!(check, wanted, "{at}: digest"),
        }
    }
}

fn column_is_numeric(column: &Column) -> bool {
    matches!(column.data, ColumnData::Numeric { .. })
}

fn same_sum(rows: &Rows, expected: &str, at: &str) {
    let sum = seq_sum(rows.row_sums().into_iter());
    let expected: f64 = expected.parse().unwrap();
    assert!(sum.to_bits() == expected.to_bits() || (sum.is_nan() && expected.is_nan()), "{at}: {sum} {expected}");
}

fn kind_of(store: &AnnDataStore, element: usize) -> &'static str {
    match store.schema().elements[element].kind {
        ElementKind::Sparse { .. } => "csr",
        ElementKind::Dense { .. } => "dense",
        ElementKind::Mixed { .. } => "csr and dense",
    }
}

/// Layers, raw and obsm, each opened by itself without X.
fn check_extra(row: &Row, path: &Path, left_out: &[(String, String)], at: &str) {
    let extra: Value = if row["extra"].is_empty() { Value::Null } else { serde_json::from_str(&row["extra"]).unwrap() };
    let object = |key: &str| extra[key].as_object().cloned().unwrap_or_default();
    for (name, expected) in object("layers") {
        let at = format!("{at}: layers/{name}");
        let selection = Selection { layers: vec![name.clone()], ..select(None, ObsChoice::None) };
        let opened = open(path, &selection);
        if expected[0] == "csc" {
            // There is no folder for its rows here; the mount tests have one.
            let text = opened.err().expect("csc is refused").to_string();
            let words = [&*format!("layers/{name}"), "csc", "--cache-dir"];
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
            continue;
        }
        let (store, _) = opened.unwrap_or_else(|e| panic!("{at}: {e}"));
        let element = &store.schema().elements[0];
        assert_eq!(
            (element.name.as_str(), kind_of(&store, 0)),
            (&*format!("layers.{name}"), expected[0].as_str().unwrap())
        );
        assert!(
            element.gene_axis
                && element.dtype.numpy_name() == expected[1].as_str().unwrap().trim_start_matches("big-endian "),
            "{at}"
        );
        same_sum(&read_element(&store, 0).unwrap(), expected[2].as_str().unwrap(), &at);
    }
    if let Some(expected) = extra["raw"].as_array() {
        let (store, _) =
            open(path, &select(Some("raw/X"), ObsChoice::None)).unwrap_or_else(|e| panic!("{at}: raw: {e}"));
        let schema = store.schema();
        assert_eq!((schema.elements[0].name.as_str(), kind_of(&store, 0)), ("X", expected[0].as_str().unwrap()));
        assert_eq!(schema.elements[0].dtype.numpy_name(), expected[1].as_str().unwrap(), "{at}: raw");
        assert_eq!((schema.n_rows, schema.n_vars), (expected[2].as_u64().unwrap(), expected[3].as_u64().unwrap()));
        assert_eq!(schema.var_names.len() as u64, schema.n_vars, "{at}: genes of raw");
        same_sum(&read_element(&store, 0).unwrap(), expected[4].as_str().unwrap(), &format!("{at}: raw"));
    }
    for (name, expected) in object("obsm") {
        check_obsm(path, &name, expected.as_str().unwrap(), at);
    }
    for name in extra["listed_but_missing"].as_array().into_iter().flatten() {
        let name = format!("obs/{}", name.as_str().unwrap());
        assert!(left_out.iter().any(|(element, _)| *element == name), "{at}: {name} is not among {left_out:?}");
    }
}

/// `expected` is like `float32[50]`, `csr_matrix[30, 100]` or `dataframe[...]`.
fn check_obsm(path: &Path, name: &str, expected: &str, at: &str) {
    let at = format!("{at}: obsm/{name}");
    let selection = Selection { obsm: vec![name.to_owned()], ..select(None, ObsChoice::None) };
    let opened = open(path, &selection);
    let (kind, extent) = expected.trim_start_matches("big-endian ").split_once('[').unwrap();
    if kind == "dataframe" {
        let text = opened.err().expect("a data frame is refused").to_string();
        assert!(text.contains(&format!("obsm/{name}")) && text.contains("dataframe"), "{text}");
        return;
    }
    let (store, _) = opened.unwrap_or_else(|e| panic!("{at}: {e}"));
    let element = &store.schema().elements[0];
    let n_cols: u64 = extent.trim_end_matches(']').split(", ").last().unwrap().parse().unwrap();
    assert_eq!((element.name.as_str(), element.n_cols, element.gene_axis), (&*format!("obsm.{name}"), n_cols, false));
    match kind {
        "csr_matrix" => assert_eq!(kind_of(&store, 0), "csr", "{at}"),
        dtype => assert_eq!((kind_of(&store, 0), element.dtype.numpy_name()), ("dense", dtype), "{at}"),
    }
    read_element(&store, 0).unwrap();
}

fn check_served(row: &Row, path: &Path, at: &str) {
    let x = if row["X"] == "absent" { None } else { Some("X") };
    let (store, left_out) = open(path, &select(x, ObsChoice::All)).unwrap_or_else(|e| panic!("{at}: {e}"));
    check_names(row, &store, at);
    check_columns(row, &store, at);
    if x.is_some() {
        let kind = row["X"].replace("10x csc(genes x cells)", "csr");
        assert!(kind.starts_with(kind_of(&store, 0)), "{at}: {}", row["X"]);
        let rows = read_element(&store, 0).unwrap();
        check_x(row, &rows, at);
        reading::check_partial_reads(&store, 0, &rows);
    }
    check_extra(row, path, &left_out, at);
    let catalog = anndata::catalog(&SourceSpec::parse(path)).unwrap_or_else(|e| panic!("{at}: {e}"));
    assert_eq!((catalog.n_obs, catalog.n_vars), (store.schema().n_rows, store.schema().n_vars), "{at}");
    assert_eq!(catalog.matrices.iter().any(|m| m.path == "X" && m.refused.is_none()), x.is_some(), "{at}");
    let columns: Vec<&str> = catalog.columns.iter().map(|c| c.name.as_str()).collect();
    let served: Vec<&str> = store.schema().columns.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(columns, served, "{at}: catalog");
}

fn refusal(path: &Path, selection: &Selection) -> String {
    let text = open(path, selection).err().unwrap_or_else(|| panic!("{} is not refused", path.display())).to_string();
    assert!(text.contains(&*path.to_string_lossy()), "does not name the file: {text}");
    assert!(!text.contains('\n') && text.contains("; "), "not one line with a way out: {text}");
    text
}

#[test]
fn every_zarr_reads_as_the_manifest_says() {
    let Some((folder, rows)) = manifest() else { return };
    let mut n = 0;
    for row in rows.iter().filter(|row| is_zarr(row)) {
        check_served(row, &folder.join(&row["path"]), &row["path"]);
        n += 1;
    }
    assert_eq!(n, 9);
}

#[test]
fn every_10x_file_reads_as_the_manifest_says() {
    let Some((folder, rows)) = manifest() else { return };
    for row in rows.iter().filter(|row| row["kind"].starts_with("10x")) {
        check_served(row, &folder.join(&row["path"]), &row["path"]);
    }
    for group in ["matrix", "hg19_chr21"] {
        let name = if group == "matrix" { "cellranger_v3" } else { "cellranger_v1.2" };
        let path = folder.join(format!("tenx/{name}.h5::{group}"));
        assert!(open(&path, &select(Some("X"), ObsChoice::All)).is_ok(), "{group}");
    }
    let path = folder.join("tenx/cellranger_v3.h5");
    for (selection, word) in [
        (select(Some("raw/X"), ObsChoice::None), "no raw/X"),
        (select(None, ObsChoice::Columns(vec!["cell_type".into()])), "no obs/cell_type"),
        (Selection { layers: vec!["counts".into()], ..select(None, ObsChoice::None) }, "no layers/counts"),
        (Selection { obsm: vec!["X_pca".into()], ..select(None, ObsChoice::None) }, "no obsm/X_pca"),
        (Selection { genes_column: Some("x".into()), ..select(None, ObsChoice::None) }, "boolean column x"),
    ] {
        let text = refusal(&path, &selection);
        assert!(text.contains("10x Genomics HDF5") && text.contains(word), "{text}");
    }
}

#[test]
fn groups_inside_a_source() {
    let Some((folder, _)) = manifest() else { return };
    for (path, rows) in
        [("other/mudata_v0.2.4.h5mu::mod/mod1", 100), ("other/spatialdata_0.3.zarr::tables/table_points", 0)]
    {
        let (store, _) = open(&folder.join(path), &select(None, ObsChoice::All)).unwrap();
        let source = &store.schema().sources[0];
        assert!(source.path.ends_with(Path::new(path).file_name().unwrap()), "{source:?}");
        assert!(rows == 0 || store.schema().n_rows == rows, "{}", store.schema().n_rows);
        assert!(anndata::catalog(&SourceSpec::parse(&folder.join(path))).is_ok());
    }
    let none = open(&folder.join("other/mudata_v0.2.4.h5mu::mod/none"), &select(None, ObsChoice::All));
    let text = none.err().unwrap().to_string();
    assert!(text.contains("mod: has no none") && text.contains("mod1"), "{text}");
}

#[test]
fn every_h5ad_reads_as_the_manifest_says() {
    let Some((folder, rows)) = manifest() else { return };
    let mut n = 0;
    for row in rows.iter().filter(|row| is_h5ad(row)) {
        let (at, path) = (&*row["path"], folder.join(&row["path"]));
        if row["expect"] == "ok" || at == "hostile/column_order_leaves_obs.h5ad" {
            check_served(row, &path, at);
            n += 1;
        }
    }
    eprintln!("{n} files");
    assert!(n >= 40, "only {n} files");
}

/// Files that are refused as they are, the words that the message must hold, and what else must be true.
#[test]
fn refused_at_mount() {
    let Some((folder, rows)) = manifest() else { return };
    let words: HashMap<&str, &[&str]> = HashMap::from([
        ("hostile/category_code_out_of_range.h5ad", &["obs/cell_type", "code 99", "row 7", "10 categories"][..]),
        ("hostile/data_shorter_than_indptr.h5ad", &["X/indptr", "ends at", "X/data has"]),
        ("hostile/external_storage.h5ad", &[": X: ", "external storage"]),
        ("hostile/indptr_decreases.h5ad", &["X/indptr", "decreases at row 30"]),
        ("hostile/indptr_wrapped_int32.h5ad", &["X/indptr", "negative", "row 40"]),
        ("hostile/obs_column_one_row_short.h5ad", &["obs/lib", "63", "64"]),
        ("hostile/truncated_at_half.h5ad", &["truncated", "31628"]),
        ("hostile/web_page.h5ad", &["not HDF5", "<!DOCTYPE"]),
        ("derived/Baron_H1_256.csc.gzip.h5ad", &[": X: ", "csc", "--cache-dir DIR"]),
        ("derived/small.null_X.h5ad", &[": X: ", "null", "--x none"]),
        ("h5ad/anndata_v0.11.4_no_X.h5ad", &["no X", "--x none"]),
        ("other/mudata_v0.2.4.h5mu", &["MuData", "mod/mod1", "mod/mod2", "h5mu::mod/mod1"]),
        ("other/plain_hdf5.h5", &["not AnnData", "members are"]),
        ("other/spatialdata_0.3.zarr", &["SpatialData", "tables/table_points", "zarr::tables/table"]),
        ("hostile/chunk_key_suffix_leaves_store.zarr", &[": X", "keys", "leave the store"]),
    ]);
    let mut n = 0;
    for row in &rows {
        let (at, path) = (&*row["path"], folder.join(&row["path"]));
        if let Some(words) = words.get(at) {
            let text = refusal(&path, &select(Some("X"), ObsChoice::Auto));
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
            n += 1;
        } else {
            assert!(!is_h5ad(row) || !row["expect"].starts_with("refuse:"), "{at} is not tested");
        }
    }
    assert_eq!(n, words.len());
}

#[test]
fn rows_without_x_are_served_where_x_cannot_be() {
    let Some((folder, rows)) = manifest() else { return };
    for at in ["derived/Baron_H1_256.csc.gzip.h5ad", "derived/small.null_X.h5ad", "h5ad/anndata_v0.11.4_no_X.h5ad"] {
        let row = rows.iter().find(|row| row["path"] == at).unwrap();
        let (store, _) = open(&folder.join(at), &select(None, ObsChoice::All)).unwrap();
        check_names(row, &store, at);
        check_columns(row, &store, at);
        let borders = store.chunk_borders();
        assert_eq!((borders.len(), borders[0].x_bytes, borders[0].first_rows.clone()), (1, 0, None));
    }
}

#[test]
fn one_bomb_fails_alone() {
    let Some((folder, _)) = manifest() else { return };
    let path = folder.join("hostile/gzip_bomb_chunk.h5ad");
    let (store, _) = open(&path, &select(Some("X"), ObsChoice::Auto)).unwrap();
    // A chunk that is needed as a whole is decoded to its end, where the bomb shows.
    for chunk in 0..4 {
        match reading::decode_chunk(&store, 0, chunk, 0..8000) {
            Ok(_) => assert_ne!(chunk, 2),
            Err(ReadError::Corrupt { file, element, chunk: named, .. }) => {
                assert_eq!((chunk, named, element.as_str(), file), (2, 2, "X", path.clone()));
            }
            Err(other) => panic!("chunk {chunk}: {other}"),
        }
    }
    for row in (0..32).chain(48..64) {
        assert_eq!(reading::read_row(&store, 0, row).unwrap().len(), 500, "row {row}");
    }
}

#[test]
fn a_frame_that_lies_fails_alone() {
    let Some((folder, _)) = manifest() else { return };
    let path = folder.join("hostile/zstd_frame_lies.zarr");
    let (store, _) = open(&path, &select(Some("X"), ObsChoice::Auto)).unwrap();
    for row in 0..64 {
        match reading::read_row(&store, 0, row) {
            Ok(values) => assert!(values.len() == 500 && !(32..48).contains(&row), "row {row}"),
            Err(ReadError::Corrupt { file, element, chunk: 2, reason }) => {
                assert!((32..48).contains(&row) && file.ends_with("X/c/2/0") && element == "X", "{row} {reason}");
            }
            Err(other) => panic!("row {row}: {other}"),
        }
    }
}

#[test]
fn external_storage_is_refused_from_its_own_folder_too() {
    let Some((folder, _)) = manifest() else { return };
    // The library would resolve the name of the outside file against the working directory.
    let text = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "external_storage_helper", "--ignored", "--nocapture"])
        .current_dir(folder.join("hostile"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&text.stdout).into_owned() + &String::from_utf8_lossy(&text.stderr);
    assert!(text.contains("external storage") && !text.contains("1234567"), "{text}");
}

#[test]
#[ignore = "run by external_storage_is_refused_from_its_own_folder_too"]
fn external_storage_helper() {
    println!("{}", refusal(Path::new("external_storage.h5ad"), &select(Some("X"), ObsChoice::Auto)));
}

#[test]
fn what_was_asked_for_by_name_is_refused_if_absent() {
    let Some((folder, _)) = manifest() else { return };
    let path = folder.join("h5ad/anndataR_example.h5ad");
    let base = select(None, ObsChoice::None);
    for (selection, words) in [
        (Selection { layers: vec!["nope".into()], ..base.clone() }, ["layers/nope", "dense_X"]),
        (Selection { obsm: vec!["nope".into()], ..base.clone() }, ["obsm/nope", "X_pca"]),
        (Selection { obs: ObsChoice::Columns(vec!["nope".into()]), ..base.clone() }, ["nope", "leiden"]),
        (
            Selection { obs: ObsChoice::Columns(vec!["../var/_index".into()]), ..base.clone() },
            ["../var/_index", "leiden"],
        ),
        (Selection { x: Some("raw/X".into()), ..base.clone() }, ["raw/X", "layers/counts"]),
        (Selection { x: Some("obsm/X_pca".into()), ..base.clone() }, ["obsm/X_pca", "layers/counts"]),
        (Selection { layers: vec!["counts".into(), "counts".into()], ..base.clone() }, ["layers/counts", "twice"]),
        (Selection { genes_column: Some("nope".into()), ..base }, ["var/nope", "boolean columns"]),
    ] {
        let text = refusal(&path, &selection);
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }
}

#[test]
fn auto_leaves_text_out_and_says_so() {
    let Some((folder, _)) = manifest() else { return };
    let (store, left_out) =
        open(&folder.join("derived/small.categories.h5ad"), &select(Some("X"), ObsChoice::Auto)).unwrap();
    assert_eq!(store.schema().columns.len(), 15);
    assert!(matches!(left_out.as_slice(), [(element, reason)] if element == "obs/text" && reason.contains("text")));
    let chosen = ObsChoice::Columns(vec!["text".to_owned(), "flag".to_owned()]);
    let (store, _) = open(&folder.join("derived/small.categories.h5ad"), &select(None, chosen)).unwrap();
    let names: Vec<&str> = store.schema().columns.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["text", "flag"]);
}
