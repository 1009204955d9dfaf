//! Text of variable length: the codec `vlen-utf8`.
//!
//! A chunk is a count (u32), then every text as its length (u32) and its bytes, all little-endian, compressed like any other chunk. How long
//! it is decoded nobody says, so that what it may take is limited by what the files of the store justify.

use super::layout::{self, Chunks};
use super::metadata::ArrayMeta;
use super::node::ZarrNode;
use crate::codec::{Scratch, decode_unsized};
use crate::num::{to_u64, to_usize};
use crate::store::anndata::node::{MAX_TEXT_BYTES, Node};
use crate::store::chunk_map::UNALLOCATED;
use crate::store::column::Strings;
use crate::store::error::OpenError;

/// Reads all `n` texts of an array of one dimension. `Err(reason)` inside if one is not UTF-8 or too long.
///
/// # Errors
/// [`OpenError`] if the array is damaged, cannot be read, or takes more memory than its store justifies.
pub fn variable(node: &ZarrNode, meta: &ArrayMeta, n: usize) -> Result<Result<Strings, String>, OpenError> {
    let Chunks { chunk, files, entries, filters, .. } = layout::find(node, meta, None)?;
    let source = node.source();
    source.charge(node.path(), to_u64(n).saturating_mul(8))?;
    let damaged = |number: usize, reason: &str| {
        node.refused(&format!("chunk {number}: {reason}"), "the store is damaged: copy or write it again")
    };
    let fill = meta.fill.as_str().unwrap_or_default();
    let mut strings = Strings::with_capacity(n);
    let (mut scratch, mut stored) = (Scratch::default(), Vec::new());
    for (number, entry) in entries.iter().enumerate() {
        let wanted = to_usize(chunk[0]).min(n - strings.len());
        if entry.address == UNALLOCATED {
            source.charge(node.path(), to_u64(fill.len()).saturating_mul(to_u64(wanted)))?;
            (0..wanted).for_each(|_| strings.push(fill));
            continue;
        }
        let len = u64::from(entry.stored_len);
        if len > source.limit_bytes() {
            return Err(damaged(number, "is larger than its store"));
        }
        stored.resize(to_usize(len), 0);
        let file = files.of(to_u64(number), 1);
        source.read_at(file, entry.address, &mut stored).map_err(|e| damaged(number, &e.to_string()))?;
        let limit = to_usize(source.limit_bytes());
        let decoded = decode_unsized(&filters, entry.mask, &stored, limit, &mut scratch)
            .map_err(|e| damaged(number, &e.to_string()))?;
        source.charge(node.path(), to_u64(decoded.len()))?;
        if let Err(fault) = parse(&decoded, wanted, &mut strings) {
            return match fault {
                Fault::Damaged(reason) => Err(damaged(number, reason)),
                Fault::Text(reason) => Ok(Err(reason)),
            };
        }
    }
    Ok(Ok(strings))
}

/// What is wrong with a chunk of text.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    Damaged(&'static str),
    Text(String),
}

/// Appends the first `wanted` texts of a decoded chunk; edge chunks are stored full-size.
fn parse(bytes: &[u8], wanted: usize, strings: &mut Strings) -> Result<(), Fault> {
    let word = |at: usize| {
        let bytes = bytes.get(at..at.checked_add(4)?)?;
        bytes.try_into().ok().map(u32::from_le_bytes).map(|n| to_usize(u64::from(n)))
    };
    let count = word(0).ok_or(Fault::Damaged("ends too early"))?;
    if count < wanted {
        return Err(Fault::Damaged("holds too few texts"));
    }
    let mut at = 4;
    for _ in 0..wanted {
        let len = word(at).ok_or(Fault::Damaged("ends too early"))?;
        if len > MAX_TEXT_BYTES {
            return Err(Fault::Text(format!("text {} has {len} bytes", strings.len())));
        }
        at += 4;
        let text = bytes.get(at..at + len).ok_or(Fault::Damaged("ends too early"))?;
        match std::str::from_utf8(text) {
            Ok(text) => strings.push(text),
            Err(_) => return Err(Fault::Text(format!("text {} is not UTF-8", strings.len()))),
        }
        at += len;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_text() {
        let mut bytes = 3_u32.to_le_bytes().to_vec();
        for text in ["a", "", "é"] {
            bytes.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        let read = |bytes: &[u8], wanted: usize| {
            let mut strings = Strings::default();
            parse(bytes, wanted, &mut strings).map(|()| strings.iter().map(str::to_owned).collect::<Vec<_>>())
        };
        assert_eq!(read(&bytes, 3).unwrap(), ["a", "", "é"]);
        assert_eq!(read(&bytes, 1).unwrap(), ["a"]);
        assert_eq!(read(&bytes, 4), Err(Fault::Damaged("holds too few texts")));
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len], 3).is_err(), "{len}");
        }
        let last = bytes.len() - 1;
        bytes[last] = 0xff;
        assert!(matches!(read(&bytes, 3), Err(Fault::Text(_))));
        bytes[4..8].fill(0xff);
        assert!(matches!(read(&bytes, 3), Err(Fault::Text(_))));
    }
}
