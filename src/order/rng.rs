//! Counter-based randomness: every use has a ChaCha8 stream of its own, so no draw depends on another.
//!
//! The 32-byte key is `seed | epoch | domain | index`, four little-endian `u64`. The stream number (nonce) is 0, the 64-bit
//! block counter begins at 0, and the output is taken as consecutive 32-bit words in the order in which ChaCha defines them.
//! Bounded draws are Lemire's multiply-shift with rejection, which is free of bias; shuffles are Fisher-Yates from the end.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::num::to_u64;

/// What a stream is for. The numbers are part of the order's definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Domain {
    /// Shuffle of the block ids; index 0.
    Blocks = 1,
    /// Shuffle of the rows inside a window; index = window.
    Rows = 2,
    /// Phase of fixed blocks; index = source.
    Phase = 3,
}

/// Words generated at a time.
const BUFFER_WORDS: usize = 256;

/// A stream of unbiased bounded draws.
pub(super) struct Draws {
    rng: ChaCha8Rng,
    /// The next words of the stream, of which `used` are used up.
    words: [[u8; 4]; BUFFER_WORDS],
    used: usize,
}

impl Draws {
    /// The stream of `(seed, epoch, domain, index)`, from its beginning.
    pub(super) fn new(seed: u64, epoch: u32, domain: Domain, index: u64) -> Self {
        let mut key = [0_u8; 32];
        let words = [seed, u64::from(epoch), domain as u64, index];
        for (bytes, word) in key.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Self { rng: ChaCha8Rng::from_seed(key), words: [[0; 4]; BUFFER_WORDS], used: BUFFER_WORDS }
    }

    /// A uniform integer in `[0, n)`, for `n` in `1..=2^32`.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        debug_assert!((1..=1 << 32).contains(&n));
        let mut product = self.word() * n;
        // The low word is uniform over the multiples of gcd(n, 2^32); dropping the values below 2^32 mod n leaves each result
        // equally many words. That threshold is below n, so the division is rarely needed.
        if product & 0xffff_ffff < n {
            let threshold = (1 << 32) % n;
            while product & 0xffff_ffff < threshold {
                product = self.word() * n;
            }
        }
        product >> 32
    }

    /// Fisher-Yates: for `i` from the last index down to 1, swaps the items `i` and `below(i + 1)`.
    ///
    /// The partners of many swaps are drawn before the swaps are made, so that the cache misses of the swaps overlap.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        let mut partners = [0_u32; BUFFER_WORDS];
        let mut n_left = items.len();
        while n_left > 1 {
            let n_swaps = (n_left - 1).min(BUFFER_WORDS);
            for (done, partner) in partners[..n_swaps].iter_mut().enumerate() {
                *partner = self.below(to_u64(n_left - done)) as u32; // n_left is at most 2^32
            }
            for (done, &partner) in partners[..n_swaps].iter().enumerate() {
                items.swap(n_left - done - 1, partner as usize);
            }
            n_left -= n_swaps;
        }
    }

    fn word(&mut self) -> u64 {
        let word = match self.words.get(self.used) {
            Some(&word) => word,
            None => self.refill(),
        };
        self.used += 1;
        u64::from(u32::from_le_bytes(word))
    }

    #[cold]
    fn refill(&mut self) -> [u8; 4] {
        self.rng.fill_bytes(self.words.as_flattened_mut());
        self.used = 0;
        self.words[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keystream of ChaCha8 for a 256-bit key and nonce of zeros: test vector TC1 of draft-strombergson-chacha-test-vectors.
    const TC1: [u8; 64] = [
        0x3e, 0x00, 0xef, 0x2f, 0x89, 0x5f, 0x40, 0xd6, 0x7f, 0x5b, 0xb8, 0xe8, 0x1f, 0x09, 0xa5, 0xa1, 0x2c, 0x84,
        0x0e, 0xc3, 0xce, 0x9a, 0x7f, 0x3b, 0x18, 0x1b, 0xe1, 0x88, 0xef, 0x71, 0x1a, 0x1e, 0x98, 0x4c, 0xe1, 0x72,
        0xb9, 0x21, 0x6f, 0x41, 0x9f, 0x44, 0x53, 0x67, 0x45, 0x6d, 0x56, 0x19, 0x31, 0x4a, 0x42, 0xa3, 0xda, 0x86,
        0xb0, 0x01, 0x38, 0x7b, 0xfd, 0xb8, 0x0e, 0x0c, 0xfe, 0x42,
    ];

    #[test]
    fn stream_is_chacha8() {
        let mut rng = ChaCha8Rng::from_seed([0; 32]);
        let bytes: Vec<u8> = (0..16).flat_map(|_| rng.next_u32().to_le_bytes()).collect();
        assert_eq!(bytes, TC1);
    }

    #[test]
    fn draws_of_the_full_range_are_the_words() {
        let mut words = ChaCha8Rng::from_seed(Draws::new(7, 3, Domain::Rows, 9).rng.get_seed());
        let mut draws = Draws::new(7, 3, Domain::Rows, 9);
        for _ in 0..200 {
            assert_eq!(draws.below(1 << 32), u64::from(words.next_u32()));
        }
    }

    #[test]
    fn key_is_seed_epoch_domain_index() {
        let key = Draws::new(0x0102_0304_0506_0708, 9, Domain::Phase, 1 << 63).rng.get_seed();
        assert_eq!(key[..8], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(key[8..24], [9, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(key[24..], [0, 0, 0, 0, 0, 0, 0, 0x80]);
    }

    #[test]
    fn rejection_takes_the_next_word() {
        // Just above 2^31 half of all words are rejected, so a missing rejection shows at once.
        let n = (1 << 31) + 1;
        let mut words = ChaCha8Rng::from_seed(Draws::new(1, 0, Domain::Rows, 0).rng.get_seed());
        let mut draws = Draws::new(1, 0, Domain::Rows, 0);
        let mut rejected = 0;
        for _ in 0..1000 {
            let expected = loop {
                let product = u128::from(words.next_u32()) * n;
                if product % (1 << 32) >= (1 << 32) % n {
                    break product >> 32;
                }
                rejected += 1;
            };
            assert_eq!(u128::from(draws.below(n as u64)), expected);
        }
        assert!((800..1200).contains(&rejected), "{rejected}");
    }

    #[test]
    fn shuffles_are_uniform() {
        // 24 orders of 4 items, 24,000 shuffles: chi-square with 23 degrees of freedom is below 60 but once in 10^4.
        let mut counts = std::collections::HashMap::new();
        for seed in 0..24_000 {
            let mut items = [0, 1, 2, 3];
            Draws::new(seed, 0, Domain::Blocks, 0).shuffle(&mut items);
            *counts.entry(items).or_insert(0_i32) += 1;
        }
        assert_eq!(counts.len(), 24);
        let chi_square: f64 = counts.values().map(|&count| f64::from(count - 1000).powi(2) / 1000.0).sum();
        assert!(chi_square < 60.0, "{chi_square}");
    }
}
