//! The entries of an index: whatever passes lies inside the records.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shufflefs::store::atompack::header::{RecordCodec, Slot};
use shufflefs::store::atompack::index::{IndexBuilder, IndexEntry};

fuzz_target!(|data: &[u8]| {
    let Some((&[codec, wide], entries)) = data.split_first_chunk::<2>() else { return };
    let slot = Slot {
        generation: 1,
        data_start: 8192,
        index_offset: 1 << 40,
        index_len: 8,
        n_molecules: 0,
        codec: [RecordCodec::None, RecordCodec::Lz4, RecordCodec::Zstd][usize::from(codec % 3)],
        level: 0,
        record_format: 3,
        schema_offset: 0,
        schema_len: 0,
    };
    let mut builder = IndexBuilder::new(&slot, if wide & 1 == 1 { 8 } else { 4 });
    if builder.push(entries).is_ok() {
        let index = builder.finish();
        for (row, bytes) in entries.chunks_exact(20).enumerate() {
            let entry = IndexEntry::parse(bytes).unwrap();
            let place = index.place(row);
            assert_eq!((place.start, place.end - place.start), (entry.offset, u64::from(entry.stored_size)));
            assert!(place.start >= slot.data_start && place.end <= slot.index_offset);
            assert_eq!((index.raw_size(row), index.atoms.len(row)), (entry.raw_size, entry.n_atoms));
        }
    }
});
