//! Reads whole elements through the `Store` trait, the slow and simple way, and the digests of the manifest.
#![allow(dead_code)] // each test binary uses a part of it

use std::collections::HashMap;
use std::ops::Range;

use sha2::{Digest, Sha256};
use shufflefs::codec::Scratch;
use shufflefs::dtype::{DType, Stored};
use shufflefs::store::{ElementId, ElementKind, Extent, PartId, Piece, ReadError, Store};

/// The values of all rows of one element, and the column indices of a sparse one.
pub struct Rows {
    pub values: Vec<Vec<f64>>,
    pub is_sparse: bool,
}

impl Rows {
    pub fn row_sums(&self) -> Vec<f64> {
        self.values.iter().map(|row| seq_sum(row.iter().copied())).collect()
    }

    pub fn n_stored(&self) -> usize {
        let counted = |row: &Vec<f64>| row.iter().filter(|v| self.is_sparse || **v != 0.0).count();
        self.values.iter().map(counted).sum()
    }
}

pub fn seq_sum(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, |sum, v| sum + v)
}

pub fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

pub fn digest_f64(sums: &[f64]) -> String {
    let bits = |v: &f64| if v.is_nan() { 0x7ff8_0000_0000_0000 } else { v.to_bits() };
    sha256_hex(&sums.iter().flat_map(|v| bits(v).to_le_bytes()).collect::<Vec<u8>>())
}

pub fn digest_names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    sha256_hex(names.collect::<Vec<_>>().join("\n").as_bytes())
}

fn half_to_f64(bits: u16) -> f64 {
    let (sign, exponent, fraction) = (bits >> 15, i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let magnitude = match exponent {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + fraction / 1024.0) * 2_f64.powi(exponent - 15),
    };
    if sign == 1 { -magnitude } else { magnitude }
}

pub fn to_f64(bytes: &[u8], stored: Stored) -> Vec<f64> {
    bytes
        .chunks_exact(stored.dtype.size_bytes())
        .map(|element| {
            let mut e = [0_u8; 8];
            e[..element.len()].copy_from_slice(element);
            if stored.big_endian {
                e[..element.len()].reverse();
            }
            let word = u64::from_le_bytes(e);
            match stored.dtype {
                DType::Bool | DType::U8 | DType::U16 | DType::U32 | DType::U64 => word as f64,
                DType::I8 => f64::from(word as i8),
                DType::I16 => f64::from(word as i16),
                DType::I32 => f64::from(word as i32),
                DType::I64 => word as i64 as f64,
                DType::F16 => half_to_f64(word as u16),
                DType::F32 => f64::from(f32::from_bits(word as u32)),
                DType::F64 => f64::from_bits(word),
            }
        })
        .collect()
}

/// Reads and decodes the elements `need` of a chunk, a prefix first and all of it if that was too short.
pub fn decode_chunk(store: &dyn Store, part: PartId, chunk: u32, need: Range<u32>) -> Result<Vec<u8>, ReadError> {
    let mut out = vec![0xa5; store.chunk_bytes(part)];
    let mut scratch = Scratch::default();
    for whole in [false, true] {
        let mut stored = Vec::new();
        if let Extent::File { file, address, len, .. } = store.extent(part, chunk, need.clone(), whole) {
            assert!(len as usize <= store.max_stored_bytes());
            stored.resize(len as usize, 0);
            store.read_at(file, address, &mut stored)?;
        }
        match store.decode(part, chunk, need.clone(), &stored, whole, &mut scratch, &mut out) {
            Err(ReadError::Short) if !whole => {}
            result => return result.map(|_| out),
        }
    }
    unreachable!("a whole chunk is never too short")
}

fn pieces(store: &dyn Store, part: PartId, row: u64) -> Vec<Piece> {
    let mut pieces = Vec::new();
    store.pieces(part, row, &mut |piece| pieces.push(piece));
    let mut at = 0;
    for piece in &pieces {
        assert_eq!(piece.to, at, "pieces follow each other");
        assert!(piece.len > 0);
        at += piece.len;
    }
    pieces
}

/// All rows of one part as stored bytes: every chunk is read once, for all that is needed of it.
fn read_part(store: &dyn Store, part: PartId) -> Result<Vec<Vec<u8>>, ReadError> {
    let size = store.schema().parts[part].stored.dtype.size_bytes();
    let all: Vec<Vec<Piece>> = (0..store.schema().n_rows).map(|row| pieces(store, part, row)).collect();
    let mut needs: HashMap<u32, Range<u32>> = HashMap::new();
    for piece in all.iter().flatten() {
        let need = needs.entry(piece.chunk).or_insert(piece.from..piece.from);
        *need = need.start.min(piece.from)..need.end.max(piece.from + piece.len);
    }
    let mut chunks = HashMap::new();
    for (&chunk, need) in &needs {
        chunks.insert(chunk, decode_chunk(store, part, chunk, need.clone())?);
    }
    let slice = |p: &Piece| &chunks[&p.chunk][p.from as usize * size..(p.from + p.len) as usize * size];
    Ok(all.iter().map(|pieces| pieces.iter().flat_map(slice).copied().collect()).collect())
}

pub fn read_element(store: &dyn Store, element: ElementId) -> Result<Rows, ReadError> {
    let schema = store.schema();
    let convert = |part: PartId, rows: Vec<Vec<u8>>| {
        rows.iter().map(|row| to_f64(row, schema.parts[part].stored)).collect::<Vec<_>>()
    };
    match schema.elements[element].kind {
        ElementKind::Mixed { .. } => unreachable!("one source is sparse or dense"),
        ElementKind::Dense { values } => {
            let rows = convert(values, read_part(store, values)?);
            assert!(rows.iter().all(|row| row.len() as u64 == schema.elements[element].n_cols));
            Ok(Rows { values: rows, is_sparse: false })
        }
        ElementKind::Sparse { data, indices } => {
            let rows = convert(data, read_part(store, data)?);
            let columns = convert(indices, read_part(store, indices)?);
            for (row, (values, columns)) in rows.iter().zip(&columns).enumerate() {
                assert_eq!(values.len(), store.row_len(element, row as u64) as usize);
                assert_eq!(values.len(), columns.len());
                assert!(columns.iter().all(|c| *c >= 0.0 && *c < schema.elements[element].n_cols as f64));
            }
            Ok(Rows { values: rows, is_sparse: true })
        }
    }
}

/// The values of one row, every piece read by itself.
pub fn read_row(store: &dyn Store, element: ElementId, row: u64) -> Result<Vec<f64>, ReadError> {
    let (ElementKind::Dense { values: part }
    | ElementKind::Sparse { data: part, .. }
    | ElementKind::Mixed { data: part, .. }) = store.schema().elements[element].kind;
    let stored = store.schema().parts[part].stored;
    let size = stored.dtype.size_bytes();
    let mut values = Vec::new();
    for piece in pieces(store, part, row) {
        let need = piece.from..piece.from + piece.len;
        let chunk = decode_chunk(store, part, piece.chunk, need)?;
        values.extend(to_f64(&chunk[piece.from as usize * size..(piece.from + piece.len) as usize * size], stored));
    }
    Ok(values)
}

/// Single rows, backwards, read piece by piece, equal those that were read chunk by chunk.
pub fn check_partial_reads(store: &dyn Store, element: ElementId, rows: &Rows) {
    let n = rows.values.len();
    for row in (0..n).rev().step_by((n / 20).max(1)) {
        let values = read_row(store, element, row as u64).unwrap();
        let same = values.iter().zip(&rows.values[row]).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same && values.len() == rows.values[row].len(), "row {row}");
    }
}
