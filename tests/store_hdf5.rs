//! HDF5 files made on the spot: what the shared data do not hold, and what a hostile file can say.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

#[path = "common/reading.rs"]
mod reading;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hdf5::types::{FixedAscii, VarLenUnicode};
use hdf5::{Dataset, File, Group, H5Type};
use reading::{read_element, read_row};
use shufflefs::store::anndata;
use shufflefs::store::anndata::{AnnDataStore, NamesChoice, ObsChoice, Opened, OpenedLayout, Selection, SourceSpec};
use shufflefs::store::cache::CacheConfig;
use shufflefs::store::fault::{CountingStore, Counts, Fault, FaultyStore};
use shufflefs::store::{ColumnData, ReadError, Store};
use tempfile::TempDir;

const ROWS: usize = 5;
const GENES: usize = 10;

/// A file with `obs` (5 rows) and `var` (10 genes), and what `fill` adds.
fn file(fill: impl FnOnce(&File)) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made.h5ad");
    let file = File::create(&path).unwrap();
    frame(&file, "obs", ROWS);
    frame(&file, "var", GENES);
    fill(&file);
    file.close().unwrap();
    (dir, path)
}

/// An attribute of fixed-length text.
fn attr(object: &hdf5::Location, name: &str, value: &str) {
    let value = FixedAscii::<24>::from_ascii(value).unwrap();
    object.new_attr::<FixedAscii<24>>().create(name).unwrap().write_scalar(&value).unwrap();
}

fn frame(file: &File, name: &str, n: usize) -> Group {
    let group = file.create_group(name).unwrap();
    attr(&group, "encoding-type", "dataframe");
    attr(&group, "_index", "_index");
    let names: Vec<VarLenUnicode> = (0..n).map(|i| format!("{name}{i}").parse().unwrap()).collect();
    group.new_dataset_builder().with_data(&names).create("_index").unwrap();
    group
}

/// Values that tell their row: `10 * row + column + 1`, in every second column.
fn rows() -> (Vec<f32>, Vec<i64>, Vec<i64>) {
    let (mut data, mut indices, mut indptr) = (Vec::new(), Vec::new(), vec![0]);
    for row in 0..ROWS {
        for col in (row % 2..GENES).step_by(2).take(row) {
            data.push((10 * row + col + 1) as f32);
            indices.push(col as i64);
        }
        indptr.push(data.len() as i64);
    }
    (data, indices, indptr)
}

fn csr(file: &Group, name: &str) -> Group {
    let (data, indices, indptr) = rows();
    let group = file.create_group(name).unwrap();
    attr(&group, "encoding-type", "csr_matrix");
    group.new_attr::<i64>().shape([2]).create("shape").unwrap().write(&[ROWS as i64, GENES as i64]).unwrap();
    group.new_dataset_builder().with_data(&data).create("data").unwrap();
    group.new_dataset_builder().with_data(&indices).create("indices").unwrap();
    group.new_dataset_builder().with_data(&indptr).create("indptr").unwrap();
    group
}

fn replace<T: H5Type>(group: &Group, name: &str, values: &[T]) -> Dataset {
    group.unlink(name).unwrap();
    group.new_dataset_builder().with_data(values).create(name).unwrap()
}

fn select(x: Option<&str>) -> Selection {
    Selection {
        x: x.map(ToOwned::to_owned),
        layers: Vec::new(),
        obsm: Vec::new(),
        obs: ObsChoice::Auto,
        names: NamesChoice::Auto,
        genes_column: None,
        one_of_many: false,
    }
}

fn open(path: &Path, selection: &Selection) -> Opened {
    anndata::open(&SourceSpec::from(path), selection, &CacheConfig::off()).unwrap_or_else(|e| panic!("{e}"))
}

fn store(path: &Path) -> AnnDataStore {
    AnnDataStore::new(vec![open(path, &select(Some("X")))]).unwrap()
}

/// The message of a refusal, which must be one line that holds all `words`.
fn refused(path: &Path, selection: &Selection, words: &[&str]) {
    let text = anndata::open(&SourceSpec::from(path), selection, &CacheConfig::off())
        .expect_err("must be refused")
        .to_string();
    assert!(text.starts_with(&*path.to_string_lossy()) && !text.contains('\n'), "{text}");
    assert!(words.iter().all(|word| text.contains(word)), "{text} lacks one of {words:?}");
}

fn expected_row(row: usize) -> Vec<f64> {
    let (data, _, indptr) = rows();
    data[indptr[row] as usize..indptr[row + 1] as usize].iter().map(|v| f64::from(*v)).collect()
}

#[test]
fn s1_row_lists() {
    let dense: Vec<f64> = (0..ROWS * GENES).map(|i| i as f64).collect();
    let dense_file = |chunk: Option<(usize, usize)>| {
        file(|f| {
            let builder = f.new_dataset::<f64>();
            let builder = match chunk {
                Some(chunk) => builder.chunk(chunk).deflate(4),
                None => builder.no_chunk(),
            };
            builder.shape((ROWS, GENES)).create("X").unwrap().write_raw(&dense).unwrap();
        })
    };
    let sparse = file(|f| drop(csr(f, "X")));
    let lists: [&[usize]; 4] = [&[0, 2, 2], &[4, 0, 3], &[4, 3, 2, 1, 0], &[1]];
    for (_dir, path) in [dense_file(None), dense_file(Some((2, 3))), dense_file(Some((4, 10)))] {
        let store = store(&path);
        for &row in lists.iter().copied().flatten() {
            assert_eq!(read_row(&store, 0, row as u64).unwrap(), dense[row * GENES..(row + 1) * GENES]);
        }
    }
    let store = store(&sparse.1);
    for &row in lists.iter().copied().flatten() {
        assert_eq!(read_row(&store, 0, row as u64).unwrap(), expected_row(row));
    }
}

#[test]
fn s2_index_widths() {
    fn put(group: &Group, name: &str, width: &str) {
        let (_, indices, indptr) = rows();
        let values = if name == "indices" { indices } else { indptr };
        macro_rules! write {
            ($t:ty) => {
                drop(replace(group, name, &values.iter().map(|v| *v as $t).collect::<Vec<$t>>()))
            };
        }
        match width {
            "u8" => write!(u8),
            "u16" => write!(u16),
            "u32" => write!(u32),
            "u64" => write!(u64),
            "i32" => write!(i32),
            _ => write!(i64),
        }
    }
    for indices in ["u8", "u16", "u32", "u64", "i32", "i64"] {
        for indptr in ["u32", "u64", "i32", "i64"] {
            let (_dir, path) = file(|f| {
                let x = csr(f, "X");
                put(&x, "indices", indices);
                put(&x, "indptr", indptr);
            });
            let rows = read_element(&store(&path), 0).unwrap();
            let expected: Vec<Vec<f64>> = (0..ROWS).map(expected_row).collect();
            assert_eq!(rows.values, expected, "{indices} {indptr}");
        }
    }
}

#[test]
fn s8_only_what_was_chosen_is_read() {
    let (_dir, path) = file(|f| {
        csr(f, "X");
        let layers = f.create_group("layers").unwrap();
        csr(&layers, "a");
        // A layer that could not be opened costs nothing while it is not asked for.
        let bad = csr(&layers, "bad");
        replace(&bad, "indptr", &[0_i64, 9, 1, 2, 3, 4]);
    });
    let store = CountingStore::new(store(&path));
    assert_eq!(store.counts(), Counts::default());
    read_element(&store, 0).unwrap();
    let counts = store.counts();
    assert_eq!((counts.reads, counts.decodes, counts.decoded_bytes), (2, 2, 0), "one run of data, one of indices");
    let with_layer = Selection { layers: vec!["a".to_owned()], ..select(None) };
    assert_eq!(open(&path, &with_layer).elements[0].name, "layers.a");
    refused(&path, &Selection { layers: vec!["bad".to_owned()], ..select(None) }, &["layers/bad/indptr", "row 1"]);
}

#[test]
fn nothing_outside_the_file_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("other.h5");
    let secret = File::create(&other).unwrap();
    secret.new_dataset_builder().with_data(&[1_234_567_f32; ROWS * GENES]).create("X").unwrap();
    secret.close().unwrap();
    let other_name = other.to_str().unwrap();
    let (_a, external_link) = file(|f| f.link_external(other_name, "/X", "X").unwrap());
    refused(&external_link, &select(Some("X")), &[": X: ", "external link"]);
    let (_b, external_data) = file(|f| {
        let builder = f.new_dataset::<f32>().no_chunk().external(other_name, 0, ROWS * GENES * 4);
        builder.shape((ROWS, GENES)).create("X").unwrap();
    });
    refused(&external_data, &select(Some("X")), &[": X: ", "external storage"]);
    let (_c, virtual_data) = file(|f| {
        let builder = f.new_dataset::<f32>().virtual_map(other_name, "X", ROWS * GENES, .., (ROWS, GENES), ..);
        builder.shape((ROWS, GENES)).create("X").unwrap();
    });
    refused(&virtual_data, &select(Some("X")), &[": X: ", "virtual dataset"]);
}

#[test]
fn soft_links_stay_inside_and_end() {
    let (_dir, path) = file(|f| {
        csr(&f.create_group("layers").unwrap(), "counts");
        f.link_soft("/layers/counts", "X").unwrap();
    });
    assert_eq!(read_element(&store(&path), 0).unwrap().values[4], expected_row(4));
    for (target, word) in [("/X", "link to a link"), ("/nowhere/X", "does not exist"), ("../X", "does not exist")] {
        let (_dir, path) = file(|f| f.link_soft(target, "X").unwrap());
        refused(&path, &select(Some("X")), &[": X: ", word]);
    }
    // Every component of the path is a link again: without a common limit this would take for ever.
    let (_dir, path) = file(|f| {
        f.link_soft("/a/a/a/a/a/a/a/a", "a").unwrap();
        f.link_soft(&"/a".repeat(2000), "X").unwrap();
    });
    refused(&path, &select(Some("X")), &["link"]);
}

#[test]
fn huge_claims_are_refused_before_anything_is_allocated() {
    let claim = |shape: (usize, usize), chunk: (usize, usize)| {
        file(move |f| drop(f.new_dataset::<f32>().chunk(chunk).shape(shape).create("X").unwrap()))
    };
    let (_a, chunks) = claim((ROWS, 1 << 30), (1, 1));
    refused(&chunks, &select(Some("X")), &[": X: ", "var"]);
    let (_b, table) = file(|f| {
        let x = csr(f, "X");
        x.unlink("data").unwrap();
        x.new_dataset::<f32>().chunk([1]).shape([1_usize << 36]).create("data").unwrap();
    });
    refused(&table, &select(Some("X")), &["X/indptr", "ends at"]);
    let (_c, column) = file(|f| {
        let obs = f.group("obs").unwrap();
        obs.unlink("_index").unwrap();
        obs.new_dataset::<i64>().no_chunk().shape([1_usize << 39]).create("_index").unwrap();
    });
    refused(&column, &Selection { names: NamesChoice::Yes, ..select(None) }, &["obs/_index", "bytes of memory"]);
    let (_d, dimension) = file(|f| {
        f.new_dataset::<i8>().no_chunk().shape((1_usize << 41, 1)).create("X").unwrap();
    });
    refused(&dimension, &select(Some("X")), &[": X: ", "beyond the limits"]);
    let (_e, chunk) = file(|f| {
        let x = csr(f, "X");
        x.unlink("indptr").unwrap();
        let builder = x.new_dataset::<i64>().chunk([1_usize << 26]).deflate(1);
        let indptr = builder.shape(hdf5::Extents::resizable([6].into())).create("indptr").unwrap();
        indptr.write_raw(&rows().2).unwrap();
    });
    refused(&chunk, &select(Some("X")), &["X/indptr", "chunk of 536870912 bytes"]);
}

#[test]
fn three_billion_values_made_of_holes() {
    const LEN: usize = 3_000_000_000;
    let (_dir, path) = file(|f| {
        let x = csr(f, "X");
        for name in ["data", "indices"] {
            x.unlink(name).unwrap();
            let builder = x.new_dataset::<i32>().chunk([1_usize << 20]).deflate(1).fill_value(3_i32);
            let array = builder.shape([LEN]).create(name).unwrap();
            array.write_slice(&[8_i32, 9], LEN - 2..LEN).unwrap();
        }
        replace(&x, "indptr", &[0_i64, 2, 2, 1 << 31, (LEN - 3) as i64, LEN as i64]);
    });
    assert!(std::fs::metadata(&path).unwrap().len() < 1 << 20);
    let store = store(&path);
    assert_eq!(store.row_len(0, 4), 3);
    assert_eq!(read_row(&store, 0, 0).unwrap(), [3.0, 3.0], "never written: the fill value");
    assert!(read_row(&store, 0, 1).unwrap().is_empty());
    assert_eq!(read_row(&store, 0, 4).unwrap(), [3.0, 8.0, 9.0]);
    let borders = &store.chunk_borders()[0];
    assert_eq!(borders.x_bytes, LEN as u64 * 8);
    assert_eq!(borders.first_rows.as_deref(), Some(&[0, 3, 4][..]));
}

#[test]
fn rows_that_indptr_cannot_mean() {
    for (indptr, words) in [
        (vec![1_i64, 2, 2, 2, 2, 2], ["X/indptr", "starts at 1"]),
        (vec![0, 2, 1, 2, 2, 2], ["X/indptr", "decreases at row 1"]),
        (vec![0, -2, 1, 2, 2, 2], ["X/indptr", "negative"]),
        (vec![0, 1, 2, 3, 4], ["X/indptr", "for 5 rows"]),
        (vec![0, 1, 2, 3, 4, 1 << 33], ["X/indptr", "row 4 has"]),
        (vec![0, 1, 2, 3, 4, 5], ["X/indptr", "ends at 5"]),
    ] {
        let (_dir, path) = file(|f| drop(replace(&csr(f, "X"), "indptr", &indptr)));
        refused(&path, &select(Some("X")), &words);
    }
}

#[test]
fn sparse_groups_that_do_not_say_their_format() {
    let bare = |n_genes: usize| {
        file(move |f| {
            if n_genes != GENES {
                f.unlink("var").unwrap();
                frame(f, "var", n_genes);
            }
            let x = csr(f, "X");
            for name in ["encoding-type", "shape"] {
                x.delete_attr(name).unwrap();
            }
        })
    };
    let (_a, csr_by_length) = bare(GENES);
    assert_eq!(read_element(&store(&csr_by_length), 0).unwrap().values[3], expected_row(3));
    let (_b, ambiguous) = bare(ROWS);
    refused(&ambiguous, &select(Some("X")), &[": X: ", "by rows or by columns"]);
}

#[test]
fn codes_of_all_ones_are_missing() {
    let codes = |values: &'static [u8]| {
        file(move |f| {
            let column = f.group("obs").unwrap().create_group("c").unwrap();
            attr(&column, "encoding-type", "categorical");
            column.new_dataset_builder().with_data(values).create("codes").unwrap();
            column.new_dataset_builder().with_data(&[1.5_f64, 2.5]).create("categories").unwrap();
        })
    };
    let (_a, good) = codes(&[0, 255, 1, 255, 0]);
    let opened = open(&good, &select(None));
    assert!(matches!(opened.warnings.as_slice(), [w] if w.contains("obs/c") && w.contains("2 codes")));
    let ColumnData::Categorical { codes: found, ordered: false, .. } = &opened.columns[0].data else { panic!() };
    assert_eq!((0..5).map(|i| found.get(i)).collect::<Vec<_>>(), [0, -1, 1, -1, 0]);
    let (_b, bad) = codes(&[0, 1, 2, 255, 0]);
    refused(&bad, &select(None), &["obs/c", "code 2 but 2 categories", "row 2"]);
}

#[test]
fn text_of_every_layout() {
    let texts: Vec<VarLenUnicode> = ["", "ä", "two words", "3", "four"].map(|t| t.parse().unwrap()).to_vec();
    let (_dir, path) = file(|f| {
        let obs = f.group("obs").unwrap();
        attr(&obs, "encoding-version", "0.2.0");
        let compact = obs.new_dataset_builder().with_data(&texts).layout(hdf5::plist::dataset_create::Layout::Compact);
        compact.create("compact").unwrap();
        obs.new_dataset_builder().with_data(&texts).chunk([2]).shuffle().deflate(1).create("chunked").unwrap();
        obs.new_dataset::<VarLenUnicode>().chunk([2]).shape([ROWS]).create("never_written").unwrap();
        // Attributes of variable length are read from the heap as well.
        let order: Vec<VarLenUnicode> = ["never_written", "chunked", "compact"].map(|t| t.parse().unwrap()).to_vec();
        obs.new_attr_builder().with_data(&order).create("column-order").unwrap();
    });
    let opened = open(&path, &Selection { obs: ObsChoice::All, ..select(None) });
    let names: Vec<&str> = opened.columns.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["never_written", "chunked", "compact"]);
    for (column, expected) in opened.columns.iter().zip([[""; 5], ["", "ä", "two words", "3", "four"]].iter().cycle())
    {
        let ColumnData::Strings(found) = &column.data else { panic!() };
        let expected = if column.name == "compact" { &["", "ä", "two words", "3", "four"] } else { expected };
        assert_eq!(&found.iter().collect::<Vec<_>>(), expected, "{}", column.name);
    }
}

#[test]
fn genes_can_be_chosen_by_a_boolean_column() {
    let (_dir, path) = file(|f| {
        let var = f.group("var").unwrap();
        let flags: Vec<bool> = (0..GENES).map(|i| i % 3 == 0).collect();
        var.new_dataset_builder().with_data(&flags).create("highly_variable").unwrap();
        var.new_dataset_builder().with_data(&[0_i32; GENES]).create("number").unwrap();
    });
    let by = |name: &str| Selection { genes_column: Some(name.to_owned()), ..select(None) };
    let mask = open(&path, &by("highly_variable")).gene_mask.unwrap();
    assert_eq!(mask, (0..GENES).map(|i| i % 3 == 0).collect::<Vec<_>>());
    refused(&path, &by("number"), &["var/number", "int32, not boolean"]);
    refused(&path, &by("nope"), &["var/nope", "highly_variable"]);
}

#[test]
fn unknown_filters_are_refused_at_mount_and_only_where_needed() {
    let (_dir, path) = file(|f| {
        csr(f, "X");
        let layers = f.create_group("layers").unwrap();
        let builder = layers.new_dataset::<i32>().chunk((ROWS, GENES)).nbit();
        builder.shape((ROWS, GENES)).create("packed").unwrap();
    });
    store(&path);
    let packed = Selection { layers: vec!["packed".to_owned()], ..select(None) };
    refused(&path, &packed, &["layers/packed", "filter 5", "gzip"]);
    let catalog = anndata::catalog(&SourceSpec::from(&*path)).unwrap();
    let entry = catalog.matrices.iter().find(|m| m.path == "layers/packed").unwrap();
    assert!(entry.refused.as_ref().unwrap().contains("filter 5"));
}

#[test]
fn borders_follow_the_longer_chunks() {
    let chunked = |data_chunk: usize, index_chunk: usize| {
        file(move |f| {
            let (data, indices, _) = rows();
            let x = csr(f, "X");
            x.unlink("data").unwrap();
            x.unlink("indices").unwrap();
            x.new_dataset_builder().with_data(&data).chunk([data_chunk]).create("data").unwrap();
            x.new_dataset_builder().with_data(&indices).chunk([index_chunk]).deflate(4).create("indices").unwrap();
        })
    };
    // Row starts: 0 0 1 3 6, of 10 values.
    for (data, indices, borders) in [(4, 4, vec![0, 4]), (3, 2, vec![0, 3, 4]), (2, 5, vec![0, 4]), (10, 1, vec![0])] {
        let (_dir, path) = chunked(data, indices);
        assert_eq!(store(&path).chunk_borders()[0].first_rows.as_ref(), Some(&borders), "{data} {indices}");
    }
    let (_dir, contiguous) = file(|f| drop(csr(f, "X")));
    let borders = &store(&contiguous).chunk_borders()[0];
    assert_eq!((borders.first_rows.clone(), borders.rows.clone(), borders.x_bytes), (None, 0..5, 10 * 12));
}

#[test]
fn every_failing_read_is_an_error_and_the_next_one_works() {
    let (_dir, path) = file(|f| {
        let (data, ..) = rows();
        let x = csr(f, "X");
        x.unlink("data").unwrap();
        x.new_dataset_builder().with_data(&data).chunk([3]).shuffle().deflate(4).create("data").unwrap();
    });
    let good = read_element(&store(&path), 0).unwrap().values;
    for n in 0.. {
        let faulty = FaultyStore::new(Arc::new(store(&path)), n..n + 1, Fault::Fail);
        let first = read_element(&faulty, 0);
        if !faulty.struck() {
            assert_eq!(first.unwrap().values, good);
            assert_eq!(n, 5, "four chunks of data, one run of indices");
            break;
        }
        assert!(matches!(first, Err(ReadError::Io { .. })), "read {n}");
        assert_eq!(read_element(&faulty, 0).unwrap().values, good);
    }
    let stale = FaultyStore::new(Arc::new(store(&path)), 0..1, Fault::Stale);
    assert!(stale.check_unchanged(0).is_ok());
    assert!(matches!(read_row(&stale, 0, 4), Err(ReadError::Stale { .. })));
    assert!(matches!(stale.check_unchanged(0), Err(ReadError::Stale { .. })));
}

#[test]
fn a_changed_source_is_stale() {
    let (_dir, path) = file(|f| drop(csr(f, "X")));
    let store = store(&path);
    store.check_unchanged(0).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(100).unwrap();
    assert!(matches!(store.check_unchanged(0), Err(ReadError::Stale { .. })));
    assert!(matches!(read_row(&store, 0, 4), Err(ReadError::Stale { .. })));
}

#[test]
fn no_lock_is_taken_and_none_is_in_the_way() {
    let (_dir, path) = file(|f| drop(csr(f, "X")));
    let holder = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    holder.lock().unwrap();
    assert_eq!(read_element(&store(&path), 0).unwrap().values[4], expected_row(4));
}

#[test]
fn flipped_bytes_are_refused_or_read_but_never_kill() {
    let (dir, path) = file(|f| {
        let (data, ..) = rows();
        let x = csr(f, "X");
        x.unlink("data").unwrap();
        x.new_dataset_builder().with_data(&data).chunk([3]).deflate(4).create("data").unwrap();
        f.group("obs").unwrap().new_dataset_builder().with_data(&[1_i32; ROWS]).create("n").unwrap();
    });
    let bytes = std::fs::read(&path).unwrap();
    let mutant = dir.path().join("mutant.h5ad");
    let everything = Selection { obs: ObsChoice::All, names: NamesChoice::Yes, ..select(Some("X")) };
    let (mut opened, mut refused) = (0, 0);
    for at in (0..bytes.len()).step_by(11) {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1 << (at % 8);
        std::fs::write(&mutant, &bytes).unwrap();
        match anndata::open(&SourceSpec::from(&*mutant), &everything, &CacheConfig::off()) {
            Ok(source) => {
                opened += 1;
                let store = AnnDataStore::new(vec![source]).unwrap();
                for row in 0..store.schema().n_rows {
                    let _ = read_row(&store, 0, row);
                }
            }
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().contains("inside this program"), "byte {at}: {error}");
            }
        }
    }
    assert!(opened > 0 && refused > 0, "{opened} {refused}");
}

#[test]
fn small_compressed_obsm_that_cuts_rows_is_resident() {
    let values: Vec<f32> = (0..ROWS * 4).map(|i| i as f32).collect();
    let (_dir, path) = file(|f| {
        let obsm = f.create_group("obsm").unwrap();
        let builder = obsm.new_dataset::<f32>().chunk((2, 3)).deflate(4);
        builder.shape((ROWS, 4)).create("X_pca").unwrap().write_raw(&values).unwrap();
    });
    let opened = open(&path, &Selection { obsm: vec!["X_pca".to_owned()], ..select(None) });
    let OpenedLayout::Dense { values: map } = &opened.elements[0].layout else { panic!() };
    assert_eq!(map.resident_bytes(), (ROWS * 4 * 4) as u64);
    let store = CountingStore::new(AnnDataStore::new(vec![opened]).unwrap());
    assert_eq!(read_row(&store, 0, 3).unwrap(), [12.0, 13.0, 14.0, 15.0]);
    assert_eq!(store.counts().reads, 0);
}

#[test]
fn several_genomes_of_10x_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("genomes.h5");
    let file = File::create(&path).unwrap();
    for (genome, scale) in [("GRCh38", 1), ("mm10", 2)] {
        let group = csr(&file, genome);
        let (_, _, indptr) = rows();
        let data: Vec<i32> = (0..indptr[ROWS]).map(|i| i as i32 * scale).collect();
        replace(&group, "data", &data);
        group.new_dataset_builder().with_data(&[GENES as i32, ROWS as i32]).create("shape").unwrap();
        let names: Vec<FixedAscii<8>> = (0..GENES).map(|i| FixedAscii::from_ascii(&format!("g{i}")).unwrap()).collect();
        group.new_dataset_builder().with_data(&names).create("genes").unwrap();
    }
    file.close().unwrap();
    refused(&path, &select(Some("X")), &["GRCh38, mm10", "::GRCh38"]);
    let spec = SourceSpec::parse(&path.with_extension("h5::mm10"));
    let opened = anndata::open(&spec, &select(Some("X")), &CacheConfig::off()).unwrap();
    assert!(opened.kind == "HDF5 10x v2, csr" && opened.var_names.get(3) == "g3", "{}", opened.kind);
    assert!(opened.warnings.iter().any(|w| w.contains("barcodes")), "{:?}", opened.warnings);
    let store = AnnDataStore::new(vec![opened]).unwrap();
    assert_eq!(read_row(&store, 0, 2).unwrap(), [2.0, 4.0], "every value is doubled");
    assert_eq!(store.schema().sources[0].path, path.with_extension("h5::mm10"));
    let text = anndata::catalog(&spec).unwrap();
    assert_eq!((text.container.as_str(), text.n_obs, text.n_vars), ("HDF5 10x Genomics v2", ROWS as u64, GENES as u64));
}
