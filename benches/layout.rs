//! A batch file apart from its values: its layout, and everything that is written when the last value has arrived.

#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;

use criterion::Criterion;
use shufflefs::batch::safetensors::Safetensors;
use shufflefs::batch::{BatchContext, BatchShape, BatchSpec, Encoder as _};
use shufflefs::dtype::{DType, Stored};
use shufflefs::order::Pass;
use shufflefs::store::column::{CodeValues, Codes};
use shufflefs::store::{
    Categories, Column, ColumnData, Element, ElementKind, Part, PartRole, Schema, SourceInfo, Strings,
};

mod support;

const N_ROWS: u64 = 100_000;
const N_VARS: u64 = 36_601;
const BATCH_ROWS: u32 = 256;
const ROW_VALUES: u32 = 2000;

/// X as CSR, three categorical columns, two numeric ones, and names.
fn schema() -> Schema {
    let part = |role, dtype| Part { element: 0, role, stored: Stored::little(dtype), path: "X".into() };
    let categorical = |name: &str, n: i16| {
        let codes = CodeValues::I16((0..N_ROWS).map(|i| (i % 977) as i16 % n).collect());
        let codes = Codes::new(codes, n as usize);
        let categories = Categories::Text((0..n).map(|i| format!("{name}-{i}")).collect());
        Column { name: name.into(), data: ColumnData::Categorical { codes, categories, ordered: false }, present: None }
    };
    let numeric = |name: &str| {
        let bytes = vec![1; 4 * N_ROWS as usize];
        Column {
            name: name.into(),
            data: ColumnData::Numeric { dtype: DType::F32, bytes: bytes.into() },
            present: None,
        }
    };
    Schema {
        n_rows: N_ROWS,
        n_vars: N_VARS,
        var_names: (0..N_VARS).map(|i| format!("gene-{i}")).collect(),
        genes: None,
        elements: vec![Element {
            name: "X".into(),
            kind: ElementKind::Sparse { data: 0, indices: 1 },
            n_cols: N_VARS,
            stored_cols: N_VARS,
            dtype: DType::F32,
            index_dtype: DType::I32,
            gene_axis: true,
            dense_sources: Arc::new([]),
        }],
        parts: vec![part(PartRole::Values, DType::F32), part(PartRole::Indices, DType::I32)],
        columns: vec![
            categorical("plate", 14),
            categorical("drug", 378),
            categorical("cell_line", 50),
            numeric("n_counts"),
            numeric("pcnt_mito"),
        ],
        obs_names: Some((0..N_ROWS).map(|i| format!("cell-{i:08}")).collect::<Strings>()),
        sources: vec![SourceInfo {
            path: PathBuf::from("a.h5ad"),
            kind: "h5ad, csr".into(),
            rows: 0..N_ROWS,
            n_vars: N_VARS,
        }],
    }
}

fn main() {
    let spec = BatchSpec { schema: Arc::new(schema()), dense: false, seed: 0, fingerprint: "0".repeat(32) };
    let encoder = Safetensors::new(spec).unwrap();
    let n_values = [u64::from(BATCH_ROWS * ROW_VALUES)];
    let shape = BatchShape { n_rows: BATCH_ROWS, n_values: &n_values };
    let rows: Vec<u64> = (0..u64::from(BATCH_ROWS)).map(|i| i * 7919 % N_ROWS).collect();
    let row_starts = [(0..=BATCH_ROWS).map(|i| i * ROW_VALUES).collect()];
    let layout = encoder.layout(shape);
    let mut buffer = vec![0; usize::try_from(layout.buffer_bytes).unwrap()];
    let batch = BatchContext { pass: Pass::Epoch(0), batch: 0, rows: &rows, pad_rows: 0, row_starts: &row_starts };

    let mut c = support::criterion();
    run(&mut c, "layout of 256 rows", || {
        black_box(encoder.layout(black_box(shape)));
    });
    run(&mut c, "finish of 256 rows", || encoder.finish(&layout, batch, &mut buffer));
    c.final_summary();
}

fn run(c: &mut Criterion, name: &str, mut work: impl FnMut()) {
    c.benchmark_group("safetensors").bench_function(name, |b| b.iter(&mut work));
}
