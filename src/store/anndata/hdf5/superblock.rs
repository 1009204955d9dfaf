//! The superblock of an HDF5 file, read by ourselves before the library sees the file.
//!
//! It lies at offset 0, 512, 1024, 2048, ... (what precedes it is the user block) and says where the file ends. Reading it here
//! tells a truncated download, with both sizes, from a damaged file, and anything that is not HDF5 by its first bytes.
//! Layout: HDF5 File Format Specification, section II.A, versions 0 to 3.

use crate::store::error::OpenError;
use crate::store::file::SourceFile;

const SIGNATURE: [u8; 8] = *b"\x89HDF\r\n\x1a\n";

/// What the superblock says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// Absolute offset to which addresses inside the file are relative.
    pub base: u64,
    /// Absolute offset of the first byte behind the data.
    pub end_of_file: u64,
    /// Size of addresses and of lengths, in bytes.
    pub sizes: (u8, u8),
    /// Version 3 only: a writer has the file open, or died with it.
    pub being_written: bool,
}

/// Offset of the signature.
fn find(file: &SourceFile) -> Option<u64> {
    let mut at = 0_u64;
    while at.checked_add(8)? <= file.stamp().size {
        let mut bytes = [0_u8; 8];
        file.read_at(at, &mut bytes).ok()?;
        if bytes == SIGNATURE {
            return Some(at);
        }
        at = if at == 0 { 512 } else { at.checked_mul(2)? };
    }
    None
}

/// Reads and checks the superblock.
///
/// # Errors
/// [`OpenError::Refused`] if the file is not HDF5, is shorter than the superblock says, or is being written.
pub fn read(file: &SourceFile) -> Result<Superblock, OpenError> {
    let refused = |reason: String, remedy: &str| OpenError::refused(file.path(), "file", reason, remedy);
    let Some(at) = find(file) else { return Err(not_hdf5(file)) };
    let mut bytes = [0_u8; 64];
    let room = usize::try_from(file.stamp().size - at).unwrap_or(64).min(64);
    let readable = bytes.get_mut(..room).unwrap_or_default();
    file.read_at(at, readable).map_err(|e| refused(e.to_string(), "check the storage"))?;
    let Some(superblock) = parse(&bytes) else {
        let reason = format!("superblock version {} is unknown", bytes[8]);
        return Err(refused(reason, "write it again with a current HDF5 library"));
    };
    let size = file.stamp().size;
    if superblock.end_of_file > size {
        let reason = format!("truncated: has {size} bytes, needs {}", superblock.end_of_file);
        return Err(refused(reason, "copy or download it again"));
    }
    if superblock.being_written {
        return Err(refused(
            "is open in a writer, or its writer crashed".to_owned(),
            "close the writer, or run h5clear -s on a copy",
        ));
    }
    Ok(superblock)
}

fn parse(bytes: &[u8; 64]) -> Option<Superblock> {
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let (sizes, base_at, end_at, flags) = match bytes[8] {
        0 => ((bytes[13], bytes[14]), 24, 40, 0),
        1 => ((bytes[13], bytes[14]), 28, 44, 0),
        2 => ((bytes[9], bytes[10]), 12, 28, 0),
        3 => ((bytes[9], bytes[10]), 12, 28, bytes[11]),
        _ => return None,
    };
    Some(Superblock { base: word(base_at)?, end_of_file: word(end_at)?, sizes, being_written: flags & 1 != 0 })
}

/// Says what a file is that is not HDF5.
fn not_hdf5(file: &SourceFile) -> OpenError {
    let mut head = [0_u8; 12];
    let room = usize::try_from(file.stamp().size).unwrap_or(12).min(12);
    let readable = head.get_mut(..room).unwrap_or_default();
    let head = if file.read_at(0, readable).is_ok() { &head[..room] } else { &[] };
    let (reason, remedy) = match head {
        [] => ("is empty".to_owned(), "copy or download it again"),
        [b'P', b'K', 3 | 5, ..] => ("not HDF5 but a zip archive".to_owned(), "unzip it and give what is inside"),
        [0x1f, 0x8b, ..] => ("not HDF5 but gzip".to_owned(), "gunzip it and give what is inside"),
        _ => {
            let start = String::from_utf8_lossy(head).escape_debug().to_string();
            (format!("not HDF5 (starts with \"{start}\")"), "download it again, or give an .h5ad file")
        }
    };
    OpenError::refused(file.path(), "file", reason, remedy)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn source(bytes: &[u8]) -> (tempfile::NamedTempFile, SourceFile) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        let source = SourceFile::open(file.path()).unwrap();
        (file, source)
    }

    #[test]
    fn both_sizes_of_a_truncated_file_are_named() {
        let mut bytes = vec![0_u8; 512 + 100];
        bytes[512..520].copy_from_slice(&SIGNATURE);
        bytes[512 + 8] = 2;
        bytes[512 + 9..512 + 11].copy_from_slice(&[8, 8]);
        bytes[512 + 12..512 + 20].copy_from_slice(&512_u64.to_le_bytes());
        bytes[512 + 28..512 + 36].copy_from_slice(&5000_u64.to_le_bytes());
        let (_keep, file) = source(&bytes);
        let text = read(&file).unwrap_err().to_string();
        assert!(text.contains("612") && text.contains("5000"), "{text}");
    }

    #[test]
    fn other_files_are_named_for_what_they_are() {
        for (bytes, word) in [
            (&b"<!DOCTYPE html>"[..], "<!DOCTYPE"),
            (b"PK\x03\x04rest", "zip"),
            (b"\x1f\x8b\x08", "gzip"),
            (b"", "empty"),
        ] {
            let (_keep, file) = source(bytes);
            let text = read(&file).unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        }
    }
}
