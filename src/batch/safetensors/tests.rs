//! The encoder against the `safetensors` crate, which refuses holes, overlaps and bad headers.

use std::path::PathBuf;
use std::sync::Arc;

use super::*;
use crate::dtype::Stored;
use crate::store::column::{CodeValues, Codes};
use crate::store::{
    Categories, Column, ColumnData, Element, ElementKind, GeneMap, Part, PartRole, Schema, ServedGenes, SourceInfo,
    Strings,
};

fn schema(n_rows: u64, choice: Option<GeneMap>) -> Schema {
    let element = |name: &str, kind, n_cols, dtype, gene_axis| Element {
        name: name.into(),
        kind,
        n_cols,
        stored_cols: n_cols,
        dtype,
        index_dtype: DType::I32,
        gene_axis,
        dense_sources: Arc::new([]),
    };
    let part = |element, role, dtype| Part { element, role, stored: Stored::little(dtype), path: String::new() };
    Schema {
        n_rows,
        n_vars: 6,
        var_names: (0..6).map(|i| format!("g{i}")).collect(),
        genes: choice.map(|c| Arc::new(ServedGenes::new(vec![None], Arc::new([0]), 6, false).then(&c))),
        elements: vec![
            element("X", ElementKind::Sparse { data: 0, indices: 1 }, 6, DType::U16, true),
            element("obsm.pca", ElementKind::Dense { values: 2 }, 3, DType::F32, false),
        ],
        parts: vec![
            part(0, PartRole::Values, DType::U16),
            part(0, PartRole::Indices, DType::U64),
            part(1, PartRole::Values, DType::F32),
        ],
        columns: vec![
            Column {
                name: "depth \"x\"".into(),
                data: ColumnData::Numeric { dtype: DType::U8, bytes: (0..n_rows as u8).collect() },
                present: Some((0..n_rows as u8).map(|i| i % 2).collect()),
            },
            Column {
                name: "type".into(),
                data: ColumnData::Categorical {
                    codes: Codes::new(CodeValues::I8((0..n_rows as i8).map(|i| i % 3 - 1).collect()), 2),
                    categories: Categories::Text(["β", "T"].into_iter().collect()),
                    ordered: true,
                },
                present: None,
            },
        ],
        obs_names: Some((0..n_rows).map(|i| "é".repeat(i as usize)).collect::<Strings>()),
        sources: vec![SourceInfo { path: PathBuf::from("a"), kind: String::new(), rows: 0..n_rows, n_vars: 6 }],
    }
}

fn encoder(genes: Option<GeneMap>, dense: bool) -> Safetensors {
    let spec = BatchSpec { schema: Arc::new(schema(9, genes)), dense, seed: u64::MAX, fingerprint: "f".repeat(32) };
    Safetensors::new(spec).unwrap()
}

/// Scatters two rows: {4: 10, 1: 20, 4: 30} and {0: 40}, with obsm 0..6, and finishes the batch.
fn two_rows(encoder: &Safetensors) -> Vec<u8> {
    let layout = encoder.layout(BatchShape { n_rows: 2, n_values: &[4, 0] });
    // As a recycled region: nothing of it may show.
    let mut buffer = vec![0xee; to_usize(layout.buffer_bytes)];
    let mut put = |part: usize, bytes: Vec<u8>| {
        let at = to_usize(layout.part_offsets[part]);
        buffer[at..at + bytes.len()].copy_from_slice(&bytes);
    };
    put(0, [10_u16, 20, 30, 40].iter().flat_map(|v| v.to_le_bytes()).collect());
    put(1, [4_u32, 1, 4, 0].iter().flat_map(|v| v.to_le_bytes()).collect());
    put(2, (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect());
    let starts = [vec![0, 3, 4], vec![]];
    let batch = BatchContext { pass: Pass::Epoch(7), batch: 3, rows: &[5, 2], pad_rows: 1, row_starts: &starts };
    encoder.finish(&layout, batch, &mut buffer);
    buffer.truncate(to_usize(layout.size_bytes));
    buffer
}

fn ints(tensor: &::safetensors::tensor::TensorView<'_>) -> Vec<i64> {
    let item = tensor.data().len() / tensor.shape().iter().product::<usize>().max(1);
    tensor
        .data()
        .chunks_exact(item.max(1))
        .map(|v| {
            let mut word = [0; 8];
            word[..v.len()].copy_from_slice(v);
            i64::from_le_bytes(word)
        })
        .collect()
}

#[test]
fn every_array_comes_out() {
    let file = two_rows(&encoder(None, false));
    let t = ::safetensors::SafeTensors::deserialize(&file).unwrap();
    let get = |name: &str| ints(&t.tensor(name).unwrap());
    assert_eq!(get("X.data"), [10, 20, 30, 40]);
    assert_eq!(get("X.indices"), [4, 1, 4, 0]);
    assert_eq!(get("X.indptr"), [0, 3, 4]);
    assert_eq!(get("X.shape"), [2, 6]);
    assert_eq!(get("row"), [5, 2]);
    assert_eq!(get("obs.depth \"x\""), [5, 2]);
    assert_eq!(get("obs.depth \"x\".present"), [1, 0]);
    assert_eq!(get("obs.type.codes"), [1, 1]);
    assert_eq!(t.tensor("obsm.pca").unwrap().shape(), [2, 3]);
    let names = t.tensor("obs_names").unwrap();
    assert_eq!(names.shape(), [2, 16], "the longest name of all rows, in bytes");
    assert_eq!(&names.data()[..16], "ééééé\0\0\0\0\0\0".as_bytes());
    assert!(t.tensor("source").is_err(), "one source needs no number");
    for name in t.names().into_iter().filter(|n| !n.starts_with("__pad")) {
        let offset = t.tensor(name).unwrap().data().as_ptr() as usize - file.as_ptr() as usize;
        assert_eq!(offset % 64, 0, "{name}");
    }
}

#[test]
fn metadata_identifies_the_bytes() {
    let file = two_rows(&encoder(None, false));
    let (len, meta) = ::safetensors::SafeTensors::read_metadata(&file).unwrap();
    assert_eq!((len + 8) % 4096, 0);
    let meta = meta.metadata().clone().unwrap();
    assert_eq!(meta["X.encoding"], "csr");
    assert_eq!(meta["X.shape"], "[2,6]");
    assert_eq!(meta["obs.type.categories"], "[\"β\",\"T\"]");
    assert_eq!(meta["obs.type.ordered"], "true");
    let identity: serde_json::Value = serde_json::from_str(&meta["shufflefs"]).unwrap();
    assert_eq!(identity["seed"], u64::MAX);
    assert_eq!((&identity["epoch"], &identity["batch"], &identity["pad_rows"]), (&7.into(), &3.into(), &1.into()));
}

#[test]
fn dropped_genes_leave_padding_and_true_shapes() {
    let all = two_rows(&encoder(None, false));
    let genes = || GeneMap::new(6, &[Some(0), Some(4)]).unwrap();
    let file = two_rows(&encoder(Some(genes()), false));
    let t = ::safetensors::SafeTensors::deserialize(&file).unwrap();
    let get = |name: &str| ints(&t.tensor(name).unwrap());
    assert_eq!(get("X.data"), [10, 30, 40]);
    assert_eq!(get("X.indices"), [1, 1, 0]);
    assert_eq!(get("X.indptr"), [0, 2, 3]);
    assert_eq!(get("X.shape"), [2, 2]);
    let totals: Vec<f64> = t
        .tensor("X.total")
        .unwrap()
        .data()
        .chunks_exact(8)
        .map(|v| f64::from_le_bytes(v.try_into().unwrap()))
        .collect();
    assert_eq!(totals, [60.0, 40.0]);
    assert!(!file.contains(&0xee), "no byte of an older image");
    assert!(all.len() <= file.len(), "the size is that of the bound");
}

#[test]
fn sparse_rows_become_dense_and_add_duplicates() {
    for (genes, shape, values) in [
        (None, [2, 6], vec![0, 20, 0, 0, 40, 0, 40, 0, 0, 0, 0, 0]),
        (GeneMap::new(6, &[Some(4), None, Some(0)]), [2, 3], vec![40, 0, 0, 0, 0, 40]),
    ] {
        let file = two_rows(&encoder(genes, true));
        let t = ::safetensors::SafeTensors::deserialize(&file).unwrap();
        let x = t.tensor("X").unwrap();
        assert_eq!((x.shape(), ints(&x)), (&shape[..], values));
    }
}

#[test]
fn the_header_has_room_for_the_largest_numbers() {
    let encoder = encoder(GeneMap::new(6, &[Some(0)]), false);
    let n = (1 << 31) - 1;
    let layout = encoder.layout(BatchShape { n_rows: u32::MAX, n_values: &[n, 0] });
    // Offsets near 2^40 in every entry; the gaps are empty ranges, so that no memory is touched.
    let rows = [0_u64; 1];
    let starts = [vec![0, 1], vec![]];
    let batch = BatchContext {
        pass: Pass::Epoch(1 << 20),
        batch: u64::MAX,
        rows: &rows,
        pad_rows: u32::MAX,
        row_starts: &starts,
    };
    let mut text = String::new();
    encoder.write_metadata(batch, &mut text);
    let worst_entry = "\"__pad000\":{\"dtype\":\"BOOL\",\"shape\":[,],\"data_offsets\":[,]},".len() + 4 * 20;
    assert!(worst_entry < ENTRY_BYTES);
    let names: usize = encoder.fields.iter().map(|f| json(&f.name).len()).sum();
    assert!(text.len() + names + (3 * encoder.fields.len() + 1) * worst_entry < to_usize(encoder.data_start) - 8);
    assert!(layout.size_bytes > 1 << 33);
}

#[test]
fn clashing_names_are_refused_naming_both() {
    let mut schema = schema(3, None);
    schema.columns[0].name = "type.codes".into();
    let spec = BatchSpec { schema: Arc::new(schema), dense: false, seed: 0, fingerprint: String::new() };
    let clash = Safetensors::new(spec).err().unwrap().to_string();
    assert!(
        clash.contains("obs.type.codes") && clash.contains("\"type\"") && clash.contains("\"type.codes\""),
        "{clash}"
    );
}
