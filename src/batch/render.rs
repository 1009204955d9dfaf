//! Filling in what is not scattered, and rearranging what was: the parts of finishing a batch that all formats share.

use std::ops::Range;

use super::BatchContext;
use super::fields::{BatchSpec, Content, text_width};
use crate::dtype::DType;
use crate::num::to_usize;
use crate::store::{ColumnData, GeneMap, Strings};

/// Two disjoint ranges of one buffer, in the order asked for.
pub(super) fn two_ranges(buffer: &mut [u8], a: Range<u64>, b: Range<u64>) -> (&mut [u8], &mut [u8]) {
    let (a, b) = (to_usize(a.start)..to_usize(a.end), to_usize(b.start)..to_usize(b.end));
    if a.start <= b.start {
        let (low, high) = buffer.split_at_mut(b.start);
        (&mut low[a], &mut high[..b.end - b.start])
    } else {
        let (low, high) = buffer.split_at_mut(a.start);
        (&mut high[..a.end - a.start], &mut low[b])
    }
}

/// Writes the values `range` of sparse rows as one dense row. Values of one column that is stored twice are added up, as every
/// reader of CSR does.
pub(super) fn densify(
    genes: Option<&GeneMap>,
    range: Range<usize>,
    (dtype, index_item): (DType, usize),
    (data, indices): (&[u8], &[u8]),
    out: &mut [u8],
) {
    out.fill(0);
    let item = dtype.size_bytes();
    for i in range {
        let col = load_index(indices, i, index_item);
        let col = match genes {
            Some(genes) => genes.get(col),
            None => Some(col),
        };
        if let Some(col) = col {
            let to = col as usize * item;
            add_assign(dtype, &mut out[to..to + item], &data[i * item..(i + 1) * item]);
        }
    }
}

/// Moves the columns of one dense row to where they go; columns that nothing goes to are zero.
pub(super) fn move_genes(genes: Option<&GeneMap>, item: usize, row: &[u8], out: &mut [u8]) {
    let Some(genes) = genes else {
        out.copy_from_slice(row);
        return;
    };
    out.fill(0);
    for (value, col) in row.chunks_exact(item).zip(0_u32..) {
        if let Some(to) = genes.get(col) {
            let to = to as usize * item;
            out[to..to + item].copy_from_slice(value);
        }
    }
}

/// Row sums as float64, added left to right, of rows that start at `starts` in `data`.
pub(super) fn row_totals(dtype: DType, starts: impl Iterator<Item = Range<usize>>, data: &[u8], out: &mut [u8]) {
    let item = dtype.size_bytes();
    for (row, out) in starts.zip(out.chunks_exact_mut(8)) {
        let values = &data[row.start * item..row.end * item];
        let total: f64 = values.chunks_exact(item).fold(0.0, |sum, v| sum + dtype.load_f64(v));
        out.copy_from_slice(&total.to_le_bytes());
    }
}

/// Fills a field that does not come from the scatter. `out` has the field's exact length.
pub(super) fn fill_resident(spec: &BatchSpec, content: Content, batch: BatchContext<'_>, out: &mut [u8]) {
    let schema = &spec.schema;
    let rows = batch.rows;
    match content {
        Content::Row => fill_each(rows, out, |&row| row.to_le_bytes()),
        Content::Source => fill_each(rows, out, |&row| {
            let source = schema.source_of(row);
            i32::try_from(source).unwrap_or(i32::MAX).to_le_bytes()
        }),
        Content::Shape(e) => {
            let shape = [rows.len() as u64, spec.n_cols_out(e)];
            fill_each(&shape, out, |n| n.to_le_bytes());
        }
        Content::Numeric(c) => {
            if let ColumnData::Numeric { dtype, bytes } = &schema.columns[c].data {
                let item = dtype.size_bytes();
                for (&row, out) in rows.iter().zip(out.chunks_exact_mut(item)) {
                    let at = to_usize(row) * item;
                    out.copy_from_slice(&bytes[at..at + item]);
                }
            }
        }
        Content::Codes(c) => {
            if let ColumnData::Categorical { codes, .. } = &schema.columns[c].data {
                fill_each(rows, out, |&row| i64::from(codes.get(to_usize(row))).to_le_bytes());
            }
        }
        Content::Text(c) => {
            if let ColumnData::Strings(strings) = &schema.columns[c].data {
                fill_text(strings, rows, out);
            }
        }
        Content::Names => {
            if let Some(names) = &schema.obs_names {
                fill_text(names, rows, out);
            }
        }
        Content::Present(c) => {
            if let Some(present) = &schema.columns[c].present {
                fill_each(rows, out, |&row| [present[to_usize(row)]]);
            }
        }
        // Filled by the scatter, or by the encoder.
        Content::Data(_) | Content::Indices(_) | Content::IndPtr(_) | Content::Total(_) | Content::Matrix(_) => {}
    }
}

/// Writes `bytes(item)` for each item, one after the other.
pub(super) fn fill_each<T, const N: usize>(items: &[T], out: &mut [u8], bytes: impl Fn(&T) -> [u8; N]) {
    for (item, out) in items.iter().zip(out.chunks_exact_mut(N)) {
        out.copy_from_slice(&bytes(item));
    }
}

fn fill_text(strings: &Strings, rows: &[u64], out: &mut [u8]) {
    for (&row, out) in rows.iter().zip(out.chunks_exact_mut(to_usize(text_width(strings.max_len())))) {
        let text = strings.bytes(to_usize(row));
        let (head, rest) = out.split_at_mut(text.len());
        head.copy_from_slice(text);
        rest.fill(0);
    }
}

/// Column index number `i` of `item` bytes. Indices were checked to be below 2^31.
fn load_index(bytes: &[u8], i: usize, item: usize) -> u32 {
    let mut word = [0; 4];
    let n = item.min(4);
    word[..n].copy_from_slice(&bytes[i * item..i * item + n]);
    u32::from_le_bytes(word)
}

/// `to += value` for little-endian elements. Integers wrap, booleans are or-ed: what scipy does.
fn add_assign(dtype: DType, to: &mut [u8], value: &[u8]) {
    macro_rules! add {
        ($type:ty, $add:expr) => {{
            let mut a = [0; size_of::<$type>()];
            let mut b = [0; size_of::<$type>()];
            a.copy_from_slice(to);
            b.copy_from_slice(value);
            let sum: $type = $add(<$type>::from_le_bytes(a), <$type>::from_le_bytes(b));
            to.copy_from_slice(&sum.to_le_bytes());
        }};
    }
    // The first value of a column is copied, not added to zero: so every bit of it survives.
    if to.iter().all(|&byte| byte == 0) {
        to.copy_from_slice(value);
        return;
    }
    match dtype {
        DType::Bool => to[0] |= value[0],
        DType::U8 => add!(u8, u8::wrapping_add),
        DType::I8 => add!(i8, i8::wrapping_add),
        DType::U16 => add!(u16, u16::wrapping_add),
        DType::I16 => add!(i16, i16::wrapping_add),
        DType::U32 => add!(u32, u32::wrapping_add),
        DType::I32 => add!(i32, i32::wrapping_add),
        DType::U64 => add!(u64, u64::wrapping_add),
        DType::I64 => add!(i64, i64::wrapping_add),
        DType::F32 => add!(f32, |a: f32, b: f32| a + b),
        DType::F64 => add!(f64, |a: f64, b: f64| a + b),
        DType::F16 => {
            let sum = dtype.load_f64(to) + dtype.load_f64(value);
            to.copy_from_slice(&crate::dtype::f64_to_f16(sum).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ints(bytes: &[u8]) -> Vec<u32> {
        (0..bytes.len() / 4).map(|i| load_index(bytes, i, 4)).collect()
    }

    fn bytes(values: &[u32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn dense_rows_add_duplicates() {
        let mut out = vec![9; 2 * 3 * 4];
        let sparse = (&bytes(&[5, 6, 7])[..], &bytes(&[2, 2, 0])[..]);
        for (range, out) in [0..2, 2..3].into_iter().zip(out.chunks_exact_mut(12)) {
            densify(None, range, (DType::U32, 4), sparse, out);
        }
        assert_eq!(ints(&out), [0, 0, 11, 7, 0, 0]);
        let genes = GeneMap::new(3, &[Some(2)]).unwrap();
        let mut out = vec![9; 4];
        densify(Some(&genes), 0..2, (DType::U32, 4), sparse, &mut out);
        assert_eq!(ints(&out), [11]);
        let mut moved = vec![9; 8];
        let genes = GeneMap::new(3, &[Some(2), None]).unwrap();
        move_genes(Some(&genes), 4, &bytes(&[1, 2, 3]), &mut moved);
        assert_eq!(ints(&moved), [3, 0]);
        move_genes(None, 4, &bytes(&[1, 2]), &mut moved);
        assert_eq!(ints(&moved), [1, 2]);
    }

    #[test]
    fn totals_add_left_to_right() {
        let data: Vec<u8> = [1e16_f64, 1.0, -1e16].iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut out = [0; 16];
        row_totals(DType::F64, [0..3, 3..3].into_iter(), &data, &mut out);
        assert_eq!(f64::from_le_bytes(out[..8].try_into().unwrap()), 1e16 + 1.0 - 1e16);
        assert_eq!(f64::from_le_bytes(out[8..].try_into().unwrap()), 0.0);
    }
}
