//! Chunks of a matrix that are stored column by column: `order` F of zarr format 2, a leading `transpose` of format 3.
//!
//! The copy goes over square tiles, so that both sides stay in the cache.

use super::CodecError;
use super::pipeline::Produced;
use crate::num::to_u64;

/// Name in messages.
pub(super) const NAME: &str = "transpose";

/// Rows and columns of a tile.
const TILE: usize = 32;

/// Writes the matrix `src`, of `n_rows` rows stored column by column, row by row into `out`.
pub(super) fn decode(n_rows: usize, elem_size: usize, src: &[u8], out: &mut [u8]) -> Result<Produced, CodecError> {
    if src.len() != out.len() {
        let (expected, found) = (to_u64(out.len()), to_u64(src.len()));
        return Err(CodecError::WrongLength { filter: NAME, expected, found });
    }
    let column_bytes = n_rows.saturating_mul(elem_size);
    if column_bytes == 0 || !out.len().is_multiple_of(column_bytes) {
        return Err(CodecError::Corrupt { filter: NAME, reason: "the chunk is no matrix" });
    }
    let n_cols = out.len() / column_bytes;
    for first_row in (0..n_rows).step_by(TILE) {
        for first_col in (0..n_cols).step_by(TILE) {
            for row in first_row..(first_row + TILE).min(n_rows) {
                for col in first_col..(first_col + TILE).min(n_cols) {
                    let (from, to) = ((col * n_rows + row) * elem_size, (row * n_cols + col) * elem_size);
                    out[to..to + elem_size].copy_from_slice(&src[from..from + elem_size]);
                }
            }
        }
    }
    Ok(Produced::up_to(out.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_become_rows() {
        for (rows, cols, size) in [(2, 3, 1), (1, 5, 4), (70, 33, 2), (33, 70, 8), (40, 1, 3)] {
            let value = |row: usize, col: usize| (0..size).map(move |k| (row * 7 + col * 13 + k) as u8);
            let src: Vec<u8> = (0..cols).flat_map(|c| (0..rows).flat_map(move |r| value(r, c))).collect();
            let want: Vec<u8> = (0..rows).flat_map(|r| (0..cols).flat_map(move |c| value(r, c))).collect();
            let mut out = vec![0; src.len()];
            decode(rows, size, &src, &mut out).unwrap();
            assert_eq!(out, want, "{rows} {cols} {size}");
        }
        assert!(decode(4, 1, &[0; 6], &mut [0; 6]).is_err());
        assert!(decode(0, 1, &[0; 6], &mut [0; 6]).is_err());
        assert!(decode(2, 1, &[0; 6], &mut [0; 4]).is_err());
    }
}
