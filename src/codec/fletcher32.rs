//! The fletcher32 filter: a 4-byte checksum behind the data.
//!
//! HDF5 (`H5_checksum_fletcher32`) reads the data as big-endian 16-bit words, an odd last byte as the high half of one
//! more, and keeps two sums modulo 65535 in which 65535 stands for zero once a word was not zero. The trailer is their
//! little-endian concatenation. Libraries before 1.6.3 swapped the bytes of each half on little-endian machines; HDF5
//! still accepts that, and so does this module.

use super::CodecError;

/// Name in messages.
pub(super) const NAME: &str = "fletcher32";

/// Size of the trailer in bytes.
pub(super) const TRAILER_BYTES: usize = 4;

/// Words between two reductions of the sums: `second` stays below 2^63 by far.
const WORDS_PER_FOLD: usize = 4096;
/// Words that are summed at once: `64 * 65 / 2 * 65535` fits a u32.
const WORDS_PER_GROUP: usize = 64;

/// Checks the trailer of `bytes` and returns the data before it.
pub(super) fn verify(bytes: &[u8]) -> Result<&[u8], CodecError> {
    let (data, trailer) = bytes.split_last_chunk::<TRAILER_BYTES>().ok_or(CodecError::Truncated { filter: NAME })?;
    let stored = u32::from_le_bytes(*trailer);
    let sum = checksum(data);
    let swapped = ((sum & 0x00ff_00ff) << 8) | ((sum >> 8) & 0x00ff_00ff);
    if stored == sum || stored == swapped { Ok(data) } else { Err(CodecError::Checksum { filter: NAME }) }
}

/// The checksum of `data`.
fn checksum(data: &[u8]) -> u32 {
    let (mut first, mut second) = (0_u64, 0_u64);
    let (words, odd) = data.as_chunks::<2>();
    for run in words.chunks(WORDS_PER_FOLD) {
        let (groups, rest) = run.as_chunks::<WORDS_PER_GROUP>();
        for group in groups {
            // Each word counts once in the first sum, and in the second as often as words follow it, itself included.
            let (mut sum, mut weighted, mut weight) = (0_u32, 0_u32, 64_u32);
            for word in group {
                let value = u32::from(u16::from_be_bytes(*word));
                sum += value;
                weighted += weight * value;
                weight -= 1;
            }
            second += first * 64 + u64::from(weighted);
            first += u64::from(sum);
        }
        for word in rest {
            first += u64::from(u16::from_be_bytes(*word));
            second += first;
        }
        (first, second) = (fold(first), fold(second));
    }
    if let [byte] = odd {
        first += u64::from(*byte) << 8;
        second += first;
    }
    (fold32(second) << 16) | fold32(first)
}

/// `sum` modulo 65535, with 65535 for multiples other than 0: what adding the carries back leads to.
const fn fold(sum: u64) -> u64 {
    if sum == 0 { 0 } else { (sum - 1) % 65535 + 1 }
}

#[allow(clippy::cast_possible_truncation)] // `fold` is at most 65535
const fn fold32(sum: u64) -> u32 {
    fold(sum) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Word by word with the carries added back at each step.
    fn plain(data: &[u8]) -> u32 {
        let (mut first, mut second) = (0_u32, 0_u32);
        for pair in data.chunks(2) {
            first += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b));
            first = (first & 0xffff) + (first >> 16);
            second += first;
            second = (second & 0xffff) + (second >> 16);
        }
        (second << 16) | first
    }

    #[test]
    fn grouped_sums_equal_the_plain_ones() {
        for len in [0, 1, 2, 3, 127, 128, 129, 8191, 8192, 8193, 50_001] {
            for data in [vec![0xff; len], vec![0; len], (0..len).map(|i| (i * 31 % 251) as u8).collect()] {
                assert_eq!(checksum(&data), plain(&data), "{len} bytes");
            }
        }
    }

    #[test]
    fn both_byte_orders_pass_and_damage_does_not() {
        let mut stored = b"some data that is not long".to_vec();
        let sum = checksum(&stored);
        stored.extend(sum.to_le_bytes());
        assert_eq!(verify(&stored).unwrap().len(), 26);
        stored.truncate(26);
        let [a, b, c, d] = sum.to_le_bytes();
        stored.extend([b, a, d, c]);
        assert_eq!(verify(&stored).unwrap().len(), 26);
        stored[3] ^= 1;
        assert_eq!(verify(&stored), Err(CodecError::Checksum { filter: NAME }));
        assert_eq!(verify(&[1, 2, 3]), Err(CodecError::Truncated { filter: NAME }));
    }
}
