//! The crc32c codec of zarr: a 4-byte checksum behind the data, little-endian.
//!
//! CRC-32C (Castagnoli; RFC 3720, appendix B.4), eight bytes at a time: eight tables of 256 numbers that are made at compile time, of
//! which table k holds the checksum of a byte followed by k zero bytes.

use super::CodecError;

/// Name in messages.
pub(super) const NAME: &str = "crc32c";

/// Size of the checksum in bytes.
const TRAILER_BYTES: usize = 4;

/// The polynomial, lowest power first.
const POLYNOMIAL: u32 = 0x82f6_3b78;

static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0_u32; 256]; 8];
    let mut byte = 0_u32;
    while byte < 256 {
        let mut sum = byte;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ POLYNOMIAL } else { sum >> 1 };
            bit += 1;
        }
        tables[0][byte as usize] = sum;
        byte += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut i = 0;
        while i < 256 {
            let before = tables[k - 1][i];
            tables[k][i] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            i += 1;
        }
        k += 1;
    }
    tables
}

/// The checksum of `data`.
#[must_use]
pub fn checksum(data: &[u8]) -> u32 {
    let (groups, rest) = data.as_chunks::<8>();
    let mut sum = u32::MAX;
    for group in groups {
        let word = u64::from_le_bytes(*group) ^ u64::from(sum);
        let bytes = word.to_le_bytes();
        sum = TABLES.iter().rev().zip(bytes).fold(0, |sum, (table, byte)| sum ^ table[usize::from(byte)]);
    }
    for byte in rest {
        let [low, ..] = sum.to_le_bytes();
        sum = (sum >> 8) ^ TABLES[0][usize::from(low ^ byte)];
    }
    !sum
}

/// Checks the trailer of `bytes` and returns the data before it.
pub(super) fn verify(bytes: &[u8]) -> Result<&[u8], CodecError> {
    let (data, trailer) = bytes.split_last_chunk::<TRAILER_BYTES>().ok_or(CodecError::Truncated { filter: NAME })?;
    if u32::from_le_bytes(*trailer) == checksum(data) { Ok(data) } else { Err(CodecError::Checksum { filter: NAME }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_checksums() {
        // RFC 3720, appendix B.4, and the check value of the catalogue of CRCs.
        assert_eq!(checksum(&[0; 32]), 0x8a91_36aa);
        assert_eq!(checksum(&[0xff; 32]), 0x62a8_ab43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(checksum(&ascending), 0x46dd_794e);
        let descending: Vec<u8> = (0..32).rev().collect();
        assert_eq!(checksum(&descending), 0x113f_db5c);
        assert_eq!(checksum(b"123456789"), 0xe306_9283);
        assert_eq!(checksum(b""), 0);
    }

    #[test]
    fn trailers_are_checked() {
        let mut bytes = b"123456789".to_vec();
        bytes.extend(0xe306_9283_u32.to_le_bytes());
        assert_eq!(verify(&bytes), Ok(&b"123456789"[..]));
        bytes[3] ^= 1;
        assert_eq!(verify(&bytes), Err(CodecError::Checksum { filter: NAME }));
        assert_eq!(verify(&bytes[..3]), Err(CodecError::Truncated { filter: NAME }));
    }
}
