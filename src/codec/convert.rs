//! placeholder until merge
#![allow(missing_docs)]
use crate::dtype::{DType, Stored};
#[derive(Debug)]
pub struct BadIndex {
    pub position: usize,
    pub value: i128,
}
pub fn copy_elements(src: &[u8], dst: &mut [u8], elem_size: usize, swap: bool) {
    dst.copy_from_slice(src);
    if swap {
        for e in dst.chunks_exact_mut(elem_size) {
            e.reverse();
        }
    }
}
pub fn indices_to_i32(src: &[u8], stored: Stored, n_cols: u64, dst: &mut [u8]) -> Result<(), BadIndex> {
    let n = stored.dtype.size_bytes();
    for (i, (s, d)) in src.chunks_exact(n).zip(dst.chunks_exact_mut(4)).enumerate() {
        let mut w = [0u8; 8];
        w[..n].copy_from_slice(s);
        if stored.big_endian {
            w[..n].reverse();
        }
        let v = if stored.dtype == DType::I32 {
            i128::from(i32::from_le_bytes([w[0], w[1], w[2], w[3]]))
        } else {
            i128::from(u64::from_le_bytes(w))
        };
        if v < 0 || v >= i128::from(n_cols) {
            return Err(BadIndex { position: i, value: v });
        }
        d.copy_from_slice(&(u32::try_from(v).unwrap_or(0)).to_le_bytes());
    }
    Ok(())
}
