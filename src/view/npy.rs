//! The header of an `.npy` file of int64 in one dimension.
//!
//! Source: the format description in numpy (`numpy.lib.format`, version 1.0): the magic, two version bytes, the header's
//! length as little-endian u16, then a Python dictionary padded with spaces and ended by a newline. Here the whole is
//! always 128 bytes, so that a position in the file tells the element.

/// Length of the header in bytes.
pub(super) const HEADER_BYTES: usize = 128;

/// Header of `n` little-endian int64.
pub(super) fn header(n: u64) -> [u8; HEADER_BYTES] {
    let mut bytes = [b' '; HEADER_BYTES];
    let dict = format!("{{'descr': '<i8', 'fortran_order': False, 'shape': ({n},), }}");
    let preamble = b"\x93NUMPY\x01\x00\x76\x00"; // 0x76 = 128 - 10 bytes follow
    let parts = preamble.iter().chain(dict.as_bytes());
    for (to, from) in bytes.iter_mut().zip(parts) {
        *to = *from;
    }
    bytes[HEADER_BYTES - 1] = b'\n';
    bytes
}

/// Size in bytes of a file of `n` int64.
pub(super) fn size_bytes(n: u64) -> u64 {
    crate::num::to_u64(HEADER_BYTES) + n * 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_holds_any_length() {
        for n in [0, 7, u64::MAX] {
            let bytes = header(n);
            assert_eq!(usize::from(u16::from_le_bytes([bytes[8], bytes[9]])), HEADER_BYTES - 10);
            let dict = std::str::from_utf8(&bytes[10..]).unwrap();
            assert!(dict.ends_with('\n') && dict.trim_end().ends_with(&format!("({n},), }}")), "{dict}");
        }
    }
}
