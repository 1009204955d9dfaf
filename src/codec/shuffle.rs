//! The shuffle filter: bytes of equal significance stored together, in planes.
//!
//! Plane k holds byte k of every element; what does not fill an element stays behind the planes. Undoing it interleaves
//! the planes. The common element sizes are interleaved in tiles of 64 elements through wider and wider integers, a
//! pattern that compilers turn into vector shuffles.

/// Name in messages.
pub(super) const NAME: &str = "shuffle";

/// Elements of a tile.
const TILE: usize = 64;

/// Undoes the shuffle of all of `src` into `dst`, which has the same length.
pub(super) fn unshuffle(elem_size: usize, src: &[u8], dst: &mut [u8]) {
    let n_elems = src.len() / elem_size.max(1);
    unshuffle_elems(elem_size, src, 0, n_elems, dst);
    let planes_end = n_elems * elem_size.max(1);
    if let (Some(from), Some(to)) = (src.get(planes_end..), dst.get_mut(planes_end..))
        && from.len() == to.len()
    {
        to.copy_from_slice(from);
    }
}

/// Undoes the shuffle of the elements `first..end` into their places in `dst`, which has the length of `src`. The other
/// bytes of `dst` stay as they are.
pub(super) fn unshuffle_elems(elem_size: usize, src: &[u8], first: usize, end: usize, dst: &mut [u8]) {
    let n_elems = src.len() / elem_size.max(1);
    let end = end.min(n_elems);
    if elem_size <= 1 || first >= end {
        if elem_size <= 1 && first < end {
            dst[first..end].copy_from_slice(&src[first..end]);
        }
        return;
    }
    let out = &mut dst[first * elem_size..end * elem_size];
    let plane = |k: usize| &src[k * n_elems + first..k * n_elems + end];
    match elem_size {
        2 => interleave_2(&[0, 1].map(plane), out),
        4 => interleave_4(&[0, 1, 2, 3].map(plane), out),
        8 => interleave_8(&[0, 1, 2, 3, 4, 5, 6, 7].map(plane), out),
        _ => {
            for k in 0..elem_size {
                for (byte, elem) in plane(k).iter().zip(out.chunks_exact_mut(elem_size)) {
                    elem[k] = *byte;
                }
            }
        }
    }
}

fn interleave_2(planes: &[&[u8]; 2], out: &mut [u8]) {
    let (elems, _) = out.as_chunks_mut::<2>();
    for ((elem, a), b) in elems.iter_mut().zip(planes[0]).zip(planes[1]) {
        *elem = [*a, *b];
    }
}

fn interleave_4(planes: &[&[u8]; 4], out: &mut [u8]) {
    let tiles = planes.map(|plane| plane.as_chunks::<TILE>().0);
    let (out_tiles, _) = out.as_chunks_mut::<{ 4 * TILE }>();
    let n_tiles = out_tiles.len();
    let tiles = tiles.map(|plane| &plane[..n_tiles]);
    for (i, tile) in out_tiles.iter_mut().enumerate() {
        let words = zip_u16(&zip_u8(&tiles[0][i], &tiles[1][i]), &zip_u8(&tiles[2][i], &tiles[3][i]));
        for (elem, word) in tile.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *elem = word.to_le_bytes();
        }
    }
    interleave_rest(planes, n_tiles * TILE, out);
}

/// Interleaves eight planes.
pub(super) fn interleave_8(planes: &[&[u8]; 8], out: &mut [u8]) {
    let tiles = planes.map(|plane| plane.as_chunks::<TILE>().0);
    let (out_tiles, _) = out.as_chunks_mut::<{ 8 * TILE }>();
    let n_tiles = out_tiles.len();
    let tiles = tiles.map(|plane| &plane[..n_tiles]);
    for (i, tile) in out_tiles.iter_mut().enumerate() {
        let low = zip_u16(&zip_u8(&tiles[0][i], &tiles[1][i]), &zip_u8(&tiles[2][i], &tiles[3][i]));
        let high = zip_u16(&zip_u8(&tiles[4][i], &tiles[5][i]), &zip_u8(&tiles[6][i], &tiles[7][i]));
        for ((elem, low), high) in tile.as_chunks_mut::<8>().0.iter_mut().zip(low).zip(high) {
            *elem = (u64::from(low) | (u64::from(high) << 32)).to_le_bytes();
        }
    }
    interleave_rest(planes, n_tiles * TILE, out);
}

/// The elements behind the last whole tile.
fn interleave_rest<const SIZE: usize>(planes: &[&[u8]; SIZE], from: usize, out: &mut [u8]) {
    let (elems, _) = out.as_chunks_mut::<SIZE>();
    for (i, elem) in elems.iter_mut().enumerate().skip(from) {
        *elem = planes.map(|plane| plane[i]);
    }
}

/// `a` in the low and `b` in the high half of each word.
#[inline(always)]
fn zip_u8(a: &[u8; TILE], b: &[u8; TILE]) -> [u16; TILE] {
    let mut words = [0; TILE];
    for i in 0..TILE {
        words[i] = u16::from_le_bytes([a[i], b[i]]);
    }
    words
}

/// As [`zip_u8`], one size up.
#[inline(always)]
fn zip_u16(a: &[u16; TILE], b: &[u16; TILE]) -> [u32; TILE] {
    let mut words = [0; TILE];
    for i in 0..TILE {
        words[i] = u32::from(a[i]) | (u32::from(b[i]) << 16);
    }
    words
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The encoder, from the filter's definition.
    pub(in crate::codec) fn shuffle(elem_size: usize, data: &[u8]) -> Vec<u8> {
        let n = data.len() / elem_size;
        let mut out: Vec<u8> = (0..elem_size).flat_map(|k| (0..n).map(move |i| data[i * elem_size + k])).collect();
        out.extend(&data[n * elem_size..]);
        out
    }

    #[test]
    fn unshuffle_inverts_shuffle() {
        for elem_size in [1, 2, 3, 4, 7, 8, 12, 16] {
            for len in [0, 1, 7, 64, 255, 256, 257, 1024, 5000] {
                let data: Vec<u8> = (0..len).map(|i: usize| (i * 7919 / 8) as u8).collect();
                let mut out = vec![0; len];
                unshuffle(elem_size, &shuffle(elem_size, &data), &mut out);
                assert_eq!(out, data, "{elem_size} {len}");
            }
        }
    }

    #[test]
    fn a_range_of_elements_leaves_the_others_alone() {
        for elem_size in [1, 2, 4, 5, 8] {
            let data: Vec<u8> = (0..1000_usize).map(|i| (i * 31) as u8).collect();
            let shuffled = shuffle(elem_size, &data);
            let mut out = vec![0xee; 1000];
            unshuffle_elems(elem_size, &shuffled, 10, 100, &mut out);
            let (from, to) = (10 * elem_size, 100 * elem_size);
            assert_eq!(out[from..to], data[from..to]);
            assert!(out[..from].iter().chain(&out[to..]).all(|b| *b == 0xee));
        }
    }
}
