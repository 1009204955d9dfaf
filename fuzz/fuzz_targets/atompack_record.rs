//! A record, decoded and taken apart by a schema: both are arbitrary.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shufflefs::codec::{Scratch, lz4_block, zstd_frame};
use shufflefs::store::atompack::record::Record;
use shufflefs::store::atompack::scatter::{FilePlan, check};
use shufflefs::store::atompack::schema::FileSchema;

/// Largest decoded record here.
const MAX_RAW_BYTES: usize = 1 << 16;

fuzz_target!(|data: &[u8]| {
    let Some((&[how, raw_size, schema_len], rest)) = data.split_first_chunk::<3>() else { return };
    let (schema, stored) = rest.split_at(usize::from(schema_len).min(rest.len()));
    let mut out = vec![0; (usize::from(raw_size) * 16).min(MAX_RAW_BYTES)];
    let record = match how % 3 {
        0 => stored,
        1 if lz4_block(stored, &mut out).is_ok() => &out,
        2 if zstd_frame(stored, &mut Scratch::default(), &mut out).is_ok() => &out,
        _ => return,
    };
    let schema = FileSchema::parse(schema).unwrap_or(FileSchema { positions: None, sections: Vec::new() });
    let plan = FilePlan::new(&schema, &[], Default::default());
    if let Ok(record) = Record::parse(record, if how & 128 == 0 { 4 } else { 8 }) {
        let _ = check(&plan, &record, &mut Vec::new());
    }
});
