//! The safetensors format (<https://github.com/huggingface/safetensors>, "Format").
//!
//! ```text
//! u64 le  N                      header length; 8 + N is a multiple of 4096
//! N bytes JSON                   padded with spaces at the end
//! buffer                         tensors back to back in offset order
//! ```
//!
//! The format allows no holes, so the gap before a tensor that is to start at a multiple of 64 is a tensor of its own, `__pad0`,
//! `__pad1`, ... The same covers what gene selection leaves unused behind a compacted tensor. The header is sized once, for
//! the largest numbers that any batch can need, so every batch has its data at the same offset.

use std::fmt::Write as _;

use crate::batch::Entry;
use crate::dtype::DType;
use crate::num::to_usize;

/// Tensors start at multiples of this, so that any reader can view them in place.
pub const TENSOR_ALIGN: u64 = 64;

/// The buffer starts at a multiple of this: a page, so that a mapping of it is aligned too.
const DATA_ALIGN: u64 = 4096;

/// Room in the header for what varies from batch to batch: 20 digits for each of up to four numbers, and the JSON around
/// them. A test holds the header of the largest numbers against it.
pub const ENTRY_BYTES: usize = 160;

/// Where the first tensor starts in files with tensors of these names. `metadata_bytes` is what the metadata may take, without the identity.
pub fn data_start<'a>(names: impl Iterator<Item = &'a str>, metadata_bytes: usize) -> u64 {
    let (mut n, mut name_bytes) = (0, 0);
    for name in names {
        n += 1;
        name_bytes += json(name).len();
    }
    // One gap before and one behind every tensor, and the identity.
    let entries = 3 * n + 8;
    let header = metadata_bytes + name_bytes + entries * ENTRY_BYTES;
    crate::num::align_up(8 + header as u64, DATA_ALIGN).unwrap_or(u64::MAX)
}

/// Writes the header: one entry per tensor and per gap, in file order, then `metadata` (what stands between the braces of
/// `__metadata__`). Gaps are zeroed on the way.
pub fn write(data_start: u64, size_bytes: u64, entries: &[Entry<'_>], metadata: &str, buffer: &mut [u8]) {
    let mut text = String::with_capacity(to_usize(data_start));
    text.push('{');
    let (mut at, mut n_pads) = (data_start, 0);
    let mut pad_to = |at: u64, start: u64, text: &mut String, buffer: &mut [u8]| {
        if at < start {
            buffer[to_usize(at)..to_usize(start)].fill(0);
            let (from, to) = (at - data_start, start - data_start);
            let _ = write!(
                text,
                "\"__pad{n_pads}\":{{\"dtype\":\"U8\",\"shape\":[{}],\"data_offsets\":[{from},{to}]}},",
                to - from
            );
            n_pads += 1;
        }
    };
    for Entry { name, dtype, dims, start } in entries {
        pad_to(at, *start, &mut text, buffer);
        let len = dims.iter().product::<u64>() * dtype.size_bytes() as u64;
        let from = start - data_start;
        let _ = write!(
            text,
            "{}:{{\"dtype\":\"{}\",\"shape\":{dims:?},\"data_offsets\":[{from},{}]}},",
            json(name),
            dtype_name(*dtype),
            from + len
        );
        at = start + len;
    }
    pad_to(at, size_bytes, &mut text, buffer);
    let _ = write!(text, "\"__metadata__\":{{{metadata}}}}}");
    let header = &mut buffer[..to_usize(data_start)];
    header[..8].copy_from_slice(&(data_start - 8).to_le_bytes());
    let (json, spaces) = header[8..].split_at_mut(text.len());
    json.copy_from_slice(text.as_bytes());
    spaces.fill(b' ');
}

/// `text` as a JSON string, quotes included.
pub fn json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The format's name of a type.
fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "BOOL",
        DType::U8 => "U8",
        DType::I8 => "I8",
        DType::U16 => "U16",
        DType::I16 => "I16",
        DType::F16 => "F16",
        DType::U32 => "U32",
        DType::I32 => "I32",
        DType::F32 => "F32",
        DType::U64 => "U64",
        DType::I64 => "I64",
        DType::F64 => "F64",
    }
}
