//! The header slots and the schema of an Atompack file, from arbitrary bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shufflefs::store::atompack::header::{SLOT_BYTES, Slot, choose, seal};
use shufflefs::store::atompack::schema::FileSchema;

fuzz_target!(|data: &[u8]| {
    if let Ok(schema) = FileSchema::parse(data) {
        // What was understood comes back, unless sections of later versions were left out.
        assert_eq!(FileSchema::parse(&schema.encode()), Ok(schema));
    }
    let Some((size, rest)) = data.split_first_chunk::<8>() else { return };
    let file_bytes = u64::from_le_bytes(*size);
    // Both slots from the same bytes, with right checksums, so that what lies behind the checksum is reached.
    let mut head = rest.to_vec();
    head.resize(2 * SLOT_BYTES, 0);
    let middle = (rest.len() / 2).min(SLOT_BYTES - 100);
    head.copy_within(middle..middle + 100, SLOT_BYTES);
    let _ = choose(&head, file_bytes);
    for slot in head.chunks_exact_mut(SLOT_BYTES) {
        seal(slot);
    }
    if let Ok(chosen) = choose(&head, file_bytes) {
        assert!(chosen.slot.needed_bytes().is_some_and(|needed| needed <= file_bytes));
        assert_eq!(Slot::parse(&chosen.slot.encode()), Some(chosen.slot));
    }
});
