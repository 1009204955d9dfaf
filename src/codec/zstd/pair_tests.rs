//! Pairs of frames beside the reference library: what both take must be equal, and what the library refuses no pair may take.

use ::zstd::bulk::{Compressor, compress};
use ::zstd::zstd_safe::CParameter;

use super::pair::PairDecoder;
use crate::codec::{Scratch, zstd_frame, zstd_pair};

/// Numbers without a pattern.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 ^ (self.0 >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
    }

    /// A float32 between 0 and 10.
    fn coordinate(&mut self) -> [u8; 4] {
        ((self.next() & 0xff_ffff) as f32 / 1_677_721.6).to_le_bytes()
    }
}

/// Bytes as a record of so many atoms has them: coordinates, forces, elements, and fields of the same bytes in every record.
fn record(n_atoms: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = (n_atoms as u32).to_le_bytes().to_vec();
    (0..6 * n_atoms).for_each(|_| bytes.extend(random.coordinate()));
    let elements = [1, 1, 1, 6, 6, 7, 8, 26];
    bytes.extend((0..n_atoms).map(|_| elements[(random.next() & 7) as usize]));
    bytes.extend(b"\x03\x00\x00\x06energy\x01\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00\x24\xc0\x00\x04cell");
    bytes.extend([0; 48]);
    bytes
}

/// Bytes of which those with low numbers are frequent, with repeats of any length and distance in between.
fn mixture(len: usize, skew: u32, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let literals = random.next() % 200;
        (0..literals).for_each(|_| {
            bytes.push((random.next() as u8).leading_zeros().pow(skew) as u8 ^ random.next() as u8 >> skew)
        });
        if !bytes.is_empty() && !random.next().is_multiple_of(3) {
            let distance = (random.next() as usize % bytes.len() + 1).min(1 << (random.next() % 17));
            let n = random.next() as usize % (1 << (random.next() % 12)) + 3;
            (0..n).for_each(|_| bytes.push(bytes[bytes.len() - distance]));
        }
    }
    bytes.truncate(len);
    bytes
}

/// What the library makes of a frame that must have `len` bytes.
fn by_the_library(frame: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut out = vec![0; len];
    zstd_frame(frame, &mut Scratch::default(), &mut out).ok().map(|()| out)
}

/// Decodes two frames, checks them against the library if they were taken, and says whether they were.
fn agrees(decoder: &mut PairDecoder, frames: [&[u8]; 2], lens: [usize; 2]) -> bool {
    let mut out = lens.map(|len| vec![0xee; len]);
    let [first, second] = &mut out;
    let is_taken = decoder.decode(frames, [first, second]);
    if is_taken {
        for ((frame, out), len) in frames.into_iter().zip(out).zip(lens) {
            let expected = by_the_library(frame, len);
            assert!(expected.as_ref() == Some(&out), "{len} bytes: {frame:?}");
        }
    }
    is_taken
}

#[test]
fn records_are_decoded_two_at_a_time() {
    let mut decoder = PairDecoder::default();
    for n_atoms in [30, 31, 63, 64, 65, 300] {
        for level in [1_i32, 3, 9, 19] {
            let records = [record(n_atoms, 1), record(n_atoms + level.unsigned_abs() as usize, 2)];
            let frames = records.each_ref().map(|record| compress(record, level).unwrap());
            let mut out = records.each_ref().map(|record| vec![0; record.len()]);
            let [first, second] = &mut out;
            assert!(decoder.decode([&frames[0], &frames[1]], [first, second]), "{n_atoms} atoms, level {level}");
            assert!(out == records, "{n_atoms} atoms, level {level}");
        }
    }
}

#[test]
fn frames_of_different_sizes_and_tables() {
    let mut decoder = PairDecoder::default();
    let mut n_taken = 0;
    for seed in 0..1500 {
        let mut random = Random(seed);
        let mut side = || {
            let len = random.next() as usize % (1 << (random.next() % 8 + 10)) + 300;
            let data = mixture(len, (random.next() % 3) as u32, seed);
            let frame = compress(&data, (random.next() % 22) as i32 - 2).unwrap();
            (frame, len)
        };
        let (first, second) = (side(), side());
        n_taken += usize::from(agrees(&mut decoder, [&first.0, &second.0], [first.1, second.1]));
    }
    assert!(n_taken > 300, "{n_taken}");
}

#[test]
fn other_frames_are_left_to_the_library() {
    let data = record(64, 1);
    let len = data.len();
    let good = compress(&data, 3).unwrap();
    let mut decoder = PairDecoder::default();
    assert!(agrees(&mut decoder, [&good, &good], [len; 2]));
    let with = |parameter| {
        let mut compressor = Compressor::new(3).unwrap();
        compressor.set_parameter(parameter).unwrap();
        compressor.compress(&data).unwrap()
    };
    let long = mixture(200_000, 1, 1);
    for (other, other_len) in [
        (with(CParameter::ChecksumFlag(true)), len),
        (with(CParameter::ContentSizeFlag(false)), len),
        (compress(&long, 3).unwrap(), long.len()),
        (compress(&[], 3).unwrap(), 0),
        (compress(&[7; 1000], 3).unwrap(), 1000),
        (compress(&data[..100], 3).unwrap(), 100),
        (Vec::new(), len),
        (good[..good.len() - 1].to_vec(), len),
        ([&good[..], &[0]].concat(), len),
        ([&good[..], &good[..]].concat(), len),
        (good.clone(), len - 1),
        (good.clone(), len + 1),
        (good.clone(), 0),
    ] {
        assert!(!agrees(&mut decoder, [&good, &other], [len, other_len]), "{other:?}");
        assert!(!agrees(&mut decoder, [&other, &good], [other_len, len]), "{other:?}");
    }
    // What was left undone spoils nothing.
    assert!(agrees(&mut decoder, [&good, &good], [len; 2]));
}

#[test]
fn the_scratch_of_a_thread_keeps_a_decoder() {
    let data = [record(30, 1), record(31, 2)];
    let frames = data.each_ref().map(|data| compress(data, 3).unwrap());
    let mut scratch = Scratch::default();
    for _ in 0..2 {
        let mut out = data.each_ref().map(|data| vec![0; data.len()]);
        let [first, second] = &mut out;
        assert!(zstd_pair([&frames[0], &frames[1]], &mut scratch, [first, second]));
        assert_eq!(out, data);
    }
}

/// Bytes of which some are more frequent than others, and which do not repeat.
fn literals(n: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..n).map(|_| (random.next() & random.next()) as u8).collect()
}

#[test]
fn every_way_to_say_how_many_sequences() {
    // One literal and three bytes that repeat the last one, again and again: three tables of one code each need no bits.
    const ONE_CODE_EACH: [u8; 5] = [0b0101_0100, 1, 0, 0, 1];
    let n_literals = 33_000;
    let good = compress(&literals(n_literals, 1), 1).unwrap();
    assert!(good[4] == 0x60 && good.last() == Some(&0), "a size of two bytes, and no sequences");
    let mut decoder = PairDecoder::default();
    for n in [1, 2, 127, 128, 255, 0x7eff, 0x7f00, 0x7f01, 32_600] {
        let count = match n {
            0..=127 => vec![n as u8],
            128..0x7f00 => vec![(n >> 8) as u8 + 128, n as u8],
            _ => [&[255], &((n - 0x7f00) as u16).to_le_bytes()[..]].concat(),
        };
        let len = n_literals + 3 * n;
        let body = [&good[10..good.len() - 1], &count, &ONE_CODE_EACH].concat();
        let block = ((body.len() << 3 | 0b101) as u32).to_le_bytes();
        let frame = [&good[..4], &[0xa0], &(len as u32).to_le_bytes(), &block[..3], &body].concat();
        assert!(agrees(&mut decoder, [&frame, &good], [len, n_literals]), "{n}");
    }
}

#[test]
fn repeats_of_all_kinds() {
    let mut decoder = PairDecoder::default();
    let unit = literals(40, 1);
    // The same codes for all lengths.
    let same = (2..22).flat_map(|seed| [&literals(16, seed), &unit[..20]].concat());
    let same = literals(600, 30).into_iter().chain(same).collect();
    // From as far back as a block goes, and from several distances in turn.
    let far = literals(100_000, 31);
    let far = [&far[..], &far[5..900], &far[70_000..70_800], &far[1000..2000], &far[70_800..71_000]].concat();
    // Runs of one byte, and repeats one behind the other.
    let near = [literals(400, 32), vec![7; 3000], literals(50, 33), unit.repeat(30), literals(300, 34)].concat();
    let frames = [same, far, near].map(|data: Vec<u8>| (compress(&data, 3).unwrap(), data.len()));
    for (first, first_len) in &frames {
        for (second, second_len) in &frames {
            assert!(agrees(&mut decoder, [first, second], [*first_len, *second_len]), "{first_len} {second_len}");
        }
    }
}

#[test]
fn a_table_that_names_a_weight_of_twelve_is_refused() {
    // It gives it to no literal, and all else is right.
    let frame = [
        0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x70, 0x35, 0x01, 0x00, 0xaa, 0x00, 0x48, 0x00, 0x07, 0x41, 0x1f, 0xd5, 0x02,
        0x00, 0x2b, 0x08, 0x01, 0x00, 0x01, 0x00, 0x01, 0x00, 0x0b, 0x0e, 0x08, 0x02, 0x02, 0x98, 0x10, 0xf8, 0x01,
        0x00, 0x41, 0x04, 0xff, 0xff, 0xff, 0xf7, 0x03, 0xe0, 0x02, 0x3f,
    ];
    assert!(by_the_library(&frame, 112).is_none());
    assert!(!agrees(&mut PairDecoder::default(), [&frame, &frame], [112; 2]));
}

/// Changes bits of a frame, more of them in its first 100 bytes, where headers and tables are.
fn damage(frame: &mut [u8], changes: &[(u16, u8)]) {
    for &(at, to) in changes {
        let limit = if at & 1 == 0 { frame.len() } else { frame.len().min(100) };
        frame[usize::from(at >> 1) % limit] ^= to;
    }
}

#[test]
fn damaged_frames_are_taken_only_if_the_library_takes_them() {
    // One decoder for all, so that what damage leaves behind in it is seen.
    let mut decoder = PairDecoder::default();
    let mut random = Random(77);
    let mut n_taken = 0;
    for seed in 0..6000 {
        let n = 12 + random.next() as usize % 80;
        let data = if seed % 2 == 0 { record(n, seed) } else { mixture(n * 30, (seed % 3) as u32, seed) };
        let good = compress(&data, (random.next() % 13) as i32 - 1).unwrap();
        let mut bad = good.clone();
        let changes: Vec<_> = (0..=random.next() % 3).map(|_| (random.next() as u16, random.next() as u8)).collect();
        damage(&mut bad, &changes);
        let frames = [[&good, &bad], [&bad, &good], [&bad, &bad]][seed as usize % 3].map(Vec::as_slice);
        n_taken += usize::from(agrees(&mut decoder, frames, [data.len(); 2]));
    }
    assert!((300..5000).contains(&n_taken), "{n_taken}");
}
