//! Arrays of several dimensions inside blosc-2 frames: the `b2nd` metalayer.
//!
//! The HDF5 plugin stores a chunk of two or more dimensions as one chunk of blocks that are themselves multidimensional:
//! the chunk is padded along each axis to a multiple of the block, blocks follow one another in row-major order, and so do
//! the elements inside a block. The metalayer, named in the frame's header, gives the shapes. Format: C-Blosc2,
//! `README_B2ND_METALAYER.rst`.

use super::CodecError;
use super::blosc2::NAME;
use super::reader::Reader;
use crate::num::to_u64;

/// The most dimensions that are accepted; the format allows 16.
const MAX_DIMS: usize = 4;

/// Shape of a chunk and of its blocks, in elements; axes that the array does not have are 1 and come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Array {
    chunk: [usize; MAX_DIMS],
    block: [usize; MAX_DIMS],
    elem_size: usize,
}

impl Array {
    /// The metalayer of a frame, if it has one. `metalayers` is the part of the frame's header that lists them.
    pub(super) fn find(metalayers: &[u8], frame: &[u8]) -> Result<Option<Self>, CodecError> {
        let mut list = Reader::new(metalayers, NAME);
        // An array of 3: size of the list (u16), the map of names to offsets (u16 entries), the contents.
        if list.array::<2>()? != [0x93, 0xcd] {
            return Err(corrupt("unknown metalayers"));
        }
        list.take(2)?;
        if list.u8()? != 0xde {
            return Err(corrupt("unknown metalayers"));
        }
        let n_layers = u16::from_be_bytes(list.array()?);
        for _ in 0..n_layers {
            let name_len = usize::from(list.u8()?.wrapping_sub(0xa0));
            let name = list.take(name_len)?;
            let offset = list.len_msgpack(0xd2)?;
            if name == b"b2nd" || name == b"caterva" {
                let elem_size = Self::frame_elem_size(frame)?;
                return Self::read(Reader::at(frame, offset, NAME)?, elem_size).map(Some);
            }
        }
        Ok(None)
    }

    /// The element size, which stands at a fixed place of the frame's header.
    fn frame_elem_size(frame: &[u8]) -> Result<usize, CodecError> {
        Reader::at(frame, 0x2f, NAME)?.len_msgpack(0xd2)
    }

    fn read(mut content: Reader<'_>, elem_size: usize) -> Result<Self, CodecError> {
        if content.u8()? != 0xc6 {
            return Err(corrupt("unknown array metalayer"));
        }
        content.take(4)?;
        let [_, _, n_dims] = content.array()?;
        let n_dims = usize::from(n_dims);
        if n_dims == 0 || n_dims > MAX_DIMS {
            return Err(corrupt("arrays of that many dimensions are not supported"));
        }
        let shape = axes(&mut content, n_dims, 0xd3)?;
        let chunk = axes(&mut content, n_dims, 0xd2)?;
        let block = axes(&mut content, n_dims, 0xd2)?;
        if shape != chunk {
            return Err(corrupt("array and chunk differ in shape"));
        }
        Ok(Self { chunk, block, elem_size })
    }

    /// Checks that the shapes give the sizes of the chunk and of its padded form, which is then at most
    /// `2^MAX_DIMS` times the chunk.
    pub(super) fn check(&self, chunk_bytes: usize, padded_bytes: usize) -> Result<(), CodecError> {
        let sizes_are_right =
            self.elem_size > 0 && self.chunk.iter().zip(&self.block).all(|(chunk, block)| *block > 0 && block <= chunk);
        let bytes = |shape: [usize; MAX_DIMS]| {
            shape.iter().try_fold(self.elem_size, |product, extent| product.checked_mul(*extent))
        };
        if !sizes_are_right {
            return Err(corrupt("element size or shape of the blocks out of range"));
        }
        if bytes(self.chunk) != Some(chunk_bytes) {
            let found = to_u64(bytes(self.chunk).unwrap_or(usize::MAX));
            return Err(CodecError::WrongLength { filter: NAME, expected: to_u64(chunk_bytes), found });
        }
        let padded = std::array::from_fn(|axis| self.chunk[axis].next_multiple_of(self.block[axis]));
        if bytes(padded) == Some(padded_bytes) { Ok(()) } else { Err(corrupt("padded size does not fit the shapes")) }
    }

    /// Puts the blocks of `padded` in place. Both slices have the sizes that [`Self::check`] was given.
    pub(super) fn unblock(&self, padded: &[u8], out: &mut [u8]) {
        let n_blocks: [usize; MAX_DIMS] = std::array::from_fn(|axis| self.chunk[axis].div_ceil(self.block[axis]));
        let block_bytes = self.block.iter().product::<usize>() * self.elem_size;
        let row_bytes = self.block[MAX_DIMS - 1] * self.elem_size;
        for (i, block) in padded.chunks_exact(block_bytes).enumerate() {
            let at = position(i, n_blocks);
            let origin: [usize; MAX_DIMS] = std::array::from_fn(|axis| at[axis] * self.block[axis]);
            let width = self.block[MAX_DIMS - 1].min(self.chunk[MAX_DIMS - 1] - origin[MAX_DIMS - 1]) * self.elem_size;
            for (j, row) in block.chunks_exact(row_bytes).enumerate() {
                let inside = position(j, [self.block[0], self.block[1], self.block[2], 1]);
                let cell: [usize; MAX_DIMS] = std::array::from_fn(|axis| origin[axis] + inside[axis]);
                if cell.iter().zip(&self.chunk).all(|(index, extent)| index < extent) {
                    let first = cell.iter().zip(&self.chunk).fold(0, |sum, (index, extent)| sum * extent + index);
                    let start = first * self.elem_size;
                    out[start..start + width].copy_from_slice(&row[..width]);
                }
            }
        }
    }
}

/// The extents of an array, each behind a type byte, with 1 for the axes before them.
fn axes(content: &mut Reader<'_>, n_dims: usize, marker: u8) -> Result<[usize; MAX_DIMS], CodecError> {
    let mut extents = [1; MAX_DIMS];
    if usize::from(content.u8()?) != 0x90 + n_dims {
        return Err(corrupt("unknown array metalayer"));
    }
    for extent in &mut extents[MAX_DIMS - n_dims..] {
        *extent = content.len_msgpack(marker)?;
    }
    Ok(extents)
}

/// Row-major position of the i-th cell of a grid.
fn position(i: usize, grid: [usize; MAX_DIMS]) -> [usize; MAX_DIMS] {
    let mut rest = i;
    let mut at = [0; MAX_DIMS];
    for axis in (0..MAX_DIMS).rev() {
        at[axis] = rest % grid[axis];
        rest /= grid[axis];
    }
    at
}

const fn corrupt(reason: &'static str) -> CodecError {
    CodecError::Corrupt { filter: NAME, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_put_in_place_and_padding_is_dropped() {
        let array = Array { chunk: [1, 1, 5, 7], block: [1, 1, 2, 3], elem_size: 1 };
        array.check(35, 6 * 9).unwrap();
        let mut padded = vec![0xee; 54];
        for row in 0..5_usize {
            for col in 0..7_usize {
                let block = (row / 2) * 3 + col / 3;
                padded[block * 6 + (row % 2) * 3 + col % 3] = (row * 7 + col) as u8;
            }
        }
        let mut out = vec![0; 35];
        array.unblock(&padded, &mut out);
        assert_eq!(out, (0..35).collect::<Vec<u8>>());
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let array = Array { chunk: [1, 1, 5, 7], block: [1, 1, 2, 3], elem_size: 1 };
        assert!(array.check(36, 54).is_err());
        assert!(array.check(35, 55).is_err());
        assert!(Array { block: [1, 1, 6, 3], ..array }.check(35, 63).is_err());
        assert!(Array { block: [1, 1, 0, 3], ..array }.check(35, 0).is_err());
        let huge = Array { chunk: [usize::MAX; 4], block: [1; 4], elem_size: 8 };
        assert!(huge.check(35, 54).is_err());
    }
}
