//! Dropping and moving the genes of sparse rows inside the image, when all their values have arrived.
//!
//! Rows are taken in order and written over what was dropped before them, so that nothing is staged. A row whose source's columns stay
//! where they are (or were renumbered on the way) is moved as a whole, or not at all if nothing was dropped before it. A row whose columns
//! change places is sorted by column, stably, so that duplicates keep their order.

use crate::num::to_usize;
use crate::store::GeneMap;

/// Applies the map of each row, if it has one. `data` and `indices`, of `item` and `index_item` bytes each (1, 2, 4 or 8), hold the rows at
/// `starts`. Returns the new row pointers; everything behind the last kept value is zeroed.
pub(super) fn compact_genes<'a>(
    maps: impl Iterator<Item = Option<&'a GeneMap>>,
    starts: &[u32],
    (item, index_item): (usize, usize),
    data: &mut [u8],
    indices: &mut [u8],
) -> Vec<u32> {
    macro_rules! by_index {
        ($data:literal) => {
            match index_item {
                1 => compact::<$data, 1>(maps, starts, data, indices),
                2 => compact::<$data, 2>(maps, starts, data, indices),
                4 => compact::<$data, 4>(maps, starts, data, indices),
                _ => compact::<$data, 8>(maps, starts, data, indices),
            }
        };
    }
    match item {
        1 => by_index!(1),
        2 => by_index!(2),
        4 => by_index!(4),
        _ => by_index!(8),
    }
}

fn compact<'a, const D: usize, const I: usize>(
    maps: impl Iterator<Item = Option<&'a GeneMap>>,
    starts: &[u32],
    data: &mut [u8],
    indices: &mut [u8],
) -> Vec<u32> {
    let (data, indices) = (data.as_chunks_mut::<D>().0, indices.as_chunks_mut::<I>().0);
    let mut out_starts = Vec::with_capacity(starts.len());
    out_starts.push(0);
    let mut at = 0_usize;
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for (map, bounds) in maps.zip(starts.windows(2)) {
        let row = bounds[0] as usize..bounds[1] as usize;
        match map {
            None => {
                if at != row.start {
                    data.copy_within(row.clone(), at);
                    indices.copy_within(row.clone(), at);
                }
                at += row.len();
            }
            Some(map) if map.is_monotone() => {
                for i in row {
                    if let Some(out) = map.get(load(indices[i])) {
                        data[at] = data[i];
                        indices[at] = store(out);
                        at += 1;
                    }
                }
            }
            Some(map) => {
                keys.clear();
                // Column above, position below: as numbers they sort stably.
                let key = |i: usize| map.get(load(indices[i])).map(|out| u64::from(out) << 32 | (i - row.start) as u64);
                keys.extend(row.clone().filter_map(key));
                keys.sort_unstable();
                values.clear();
                values.extend(keys.iter().map(|key| data[row.start + to_usize(key & u64::from(u32::MAX))]));
                for (key, value) in keys.iter().zip(&values) {
                    // The upper half of a key is a u32.
                    #[allow(clippy::cast_possible_truncation)]
                    let out = (key >> 32) as u32;
                    data[at] = *value;
                    indices[at] = store(out);
                    at += 1;
                }
            }
        }
        // At most the stored count, which is below 2^31.
        #[allow(clippy::cast_possible_truncation)]
        out_starts.push(at as u32);
    }
    data[at..].as_flattened_mut().fill(0);
    indices[at..].as_flattened_mut().fill(0);
    out_starts
}

/// A column index. Indices were checked to be below 2^31.
#[inline]
fn load<const I: usize>(bytes: [u8; I]) -> u32 {
    let mut word = [0; 4];
    let n = I.min(4);
    word[..n].copy_from_slice(&bytes[..n]);
    u32::from_le_bytes(word)
}

#[inline]
fn store<const I: usize>(value: u32) -> [u8; I] {
    let wide = u64::from(value).to_le_bytes();
    std::array::from_fn(|i| wide[i])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ints(bytes: &[u8]) -> Vec<u32> {
        bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
    }

    fn bytes(values: &[u32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn all(map: &GeneMap, n: usize) -> impl Iterator<Item = Option<&GeneMap>> {
        std::iter::repeat_n(Some(map), n)
    }

    /// Rows {3: a, 0: b, 3: c}, {}, {1: d, 2: e} with genes [3, none, 0].
    #[test]
    fn dropped_genes_are_compacted_and_sorted_stably() {
        let genes = GeneMap::new(5, &[Some(3), None, Some(0)]).unwrap();
        let mut data = bytes(&[10, 20, 30, 40, 50]);
        let mut indices = bytes(&[3, 0, 3, 1, 0]);
        let starts = compact_genes(all(&genes, 3), &[0, 3, 3, 5], (4, 4), &mut data, &mut indices);
        assert_eq!(starts, [0, 3, 3, 4]);
        assert_eq!(ints(&indices), [0, 0, 2, 2, 0]);
        assert_eq!(ints(&data), [10, 30, 20, 50, 0]);
    }

    #[test]
    fn monotone_genes_keep_the_stored_order() {
        let genes = GeneMap::new(4, &[Some(1), Some(3)]).unwrap();
        let mut data = bytes(&[1, 2, 3, 4]);
        let mut indices = bytes(&[3, 1, 0, 3]);
        let starts = compact_genes(all(&genes, 2), &[0, 3, 4], (4, 4), &mut data, &mut indices);
        assert_eq!((starts, ints(&indices), ints(&data)), (vec![0, 2, 3], vec![1, 0, 1, 0], vec![1, 2, 4, 0]));
    }

    #[test]
    fn rows_of_other_sources_only_move_up() {
        let drops = GeneMap::new(3, &[Some(2)]).unwrap();
        let mut data = [1_u8, 2, 3, 4, 5, 6].to_vec();
        let mut indices: Vec<u8> = [7_u16, 0, 2, 9, 8, 2].iter().flat_map(|v| v.to_le_bytes()).collect();
        let maps = [None, Some(&drops), None, Some(&drops)];
        let starts = compact_genes(maps.into_iter(), &[0, 1, 3, 5, 6], (1, 2), &mut data, &mut indices);
        assert_eq!((starts, data), (vec![0, 1, 2, 4, 5], vec![1, 3, 4, 5, 6, 0]));
        let indices: Vec<u16> = indices.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect();
        assert_eq!(indices, [7, 0, 9, 8, 0, 0]);
    }
}
