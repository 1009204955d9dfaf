//! From the filter ids and client data of an HDF5 file to [`Filter`].
//!
//! The ids are those of the HDF Group's registry; what the client data mean is up to each plugin, whose `set_local`
//! callback completes what the user passed.

use super::{BitshuffleCompressor, Filter};
use crate::num::to_usize;

/// Names of registered filters that cannot be decoded here, for error texts.
const UNSUPPORTED: [(i32, &str); 12] = [
    (4, "szip"),
    (5, "nbit"),
    (6, "scaleoffset"),
    (257, "lzo"),
    (305, "lzo"),
    (307, "bzip2"),
    (32013, "zfp"),
    (32016, "fcidecomp"),
    (32017, "sz"),
    (32018, "fcidecomp"),
    (32024, "sz3"),
    (32028, "sperr"),
];

impl Filter {
    /// The filter of an HDF5 filter `id` with its `client_data`, for elements of `elem_size` bytes (used where the client
    /// data do not tell).
    ///
    /// # Errors
    /// A text that names the filter and says why it cannot be decoded.
    pub fn from_hdf5(id: i32, client_data: &[u32], elem_size: usize) -> Result<Self, String> {
        let value = |i: usize| client_data.get(i).copied();
        let size_at = |i: usize| match value(i) {
            Some(bytes) if bytes > 0 => to_usize(u64::from(bytes)),
            _ => elem_size.max(1),
        };
        match id {
            1 => Ok(Self::Deflate),
            2 => Ok(Self::Shuffle { elem_size: size_at(0) }),
            3 => Ok(Self::Fletcher32),
            32000 => Ok(Self::Lzf),
            32001 if value(6) == Some(3) => Err("filter 32001 (blosc) with snappy is not supported".to_owned()),
            32001 => Ok(Self::Blosc),
            32004 => Ok(Self::Lz4),
            32008 => Self::bitshuffle(size_at(2), value(3).unwrap_or(0), value(4).unwrap_or(0)),
            32015 => Ok(Self::Zstd),
            32026 => Ok(Self::Blosc2),
            _ => Err(match UNSUPPORTED.iter().find(|(known, _)| *known == id) {
                Some((_, name)) => format!("filter {id} ({name}) is not supported"),
                None => format!("filter {id} is not known"),
            }),
        }
    }

    fn bitshuffle(elem_size: usize, block_elems: u32, compressor: u32) -> Result<Self, String> {
        if !block_elems.is_multiple_of(8) {
            return Err(format!(
                "filter 32008 (bitshuffle) has a block of {block_elems} elements, not a multiple of 8"
            ));
        }
        let compressor = match compressor {
            0 => BitshuffleCompressor::None,
            2 => BitshuffleCompressor::Lz4,
            3 => BitshuffleCompressor::Zstd,
            other => return Err(format!("filter 32008 (bitshuffle) with compressor {other} is not supported")),
        };
        Ok(Self::Bitshuffle { elem_size, block_elems: to_usize(u64::from(block_elems)), compressor })
    }

    /// The name users know the filter by: `gzip`, `shuffle`, `blosc`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Deflate => super::deflate::NAME,
            Self::Shuffle { .. } => super::shuffle::NAME,
            Self::Fletcher32 => super::fletcher32::NAME,
            Self::Lzf => super::lzf::NAME,
            Self::Blosc => super::blosc::NAME,
            Self::Lz4 => super::lz4::NAME,
            Self::Bitshuffle { .. } => super::bitshuffle::NAME,
            Self::Zstd => super::zstd::NAME,
            Self::Blosc2 => super::blosc2::NAME,
            Self::Crc32c => super::crc32c::NAME,
            Self::Lz4Block => super::lz4::NAME,
            Self::Delta { .. } => super::delta::NAME,
            Self::Transpose { .. } => super::transpose::NAME,
            Self::ZipDeflate => super::deflate::ZIP_NAME,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_ids_become_filters() {
        assert_eq!(Filter::from_hdf5(1, &[4], 4), Ok(Filter::Deflate));
        assert_eq!(Filter::from_hdf5(2, &[8], 4), Ok(Filter::Shuffle { elem_size: 8 }));
        assert_eq!(Filter::from_hdf5(2, &[], 4), Ok(Filter::Shuffle { elem_size: 4 }));
        assert_eq!(Filter::from_hdf5(32001, &[2, 2, 4, 100, 5, 1, 1], 4), Ok(Filter::Blosc));
        let bitshuffle = Filter::Bitshuffle { elem_size: 2, block_elems: 4096, compressor: BitshuffleCompressor::Zstd };
        assert_eq!(Filter::from_hdf5(32008, &[0, 4, 2, 4096, 3, 3], 4), Ok(bitshuffle));
    }

    #[test]
    fn refusals_name_the_filter() {
        for (id, data, text) in [
            (4, &[][..], "filter 4 (szip)"),
            (5, &[], "filter 5 (nbit)"),
            (6, &[], "filter 6 (scaleoffset)"),
            (32013, &[], "filter 32013 (zfp)"),
            (40000, &[], "filter 40000"),
            (-1, &[], "filter -1"),
            (32001, &[2, 2, 4, 100, 5, 1, 3], "snappy"),
            (32008, &[0, 4, 2, 4095, 2], "multiple of 8"),
            (32008, &[0, 4, 2, 0, 9], "compressor 9"),
        ] {
            let error = Filter::from_hdf5(id, data, 4).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn names() {
        assert_eq!(Filter::Deflate.name(), "gzip");
        assert_eq!(Filter::Shuffle { elem_size: 4 }.name(), "shuffle");
        assert_eq!(Filter::Blosc2.name(), "blosc2");
    }
}
