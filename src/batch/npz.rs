//! The npz format: a zip archive of `.npy` members that are stored, not compressed.
//!
//! ```text
//! per array:  local header 30 B | name | extra field (pads) | .npy header | values
//! central directory: 46 B and the name per array
//! end record 22 B
//! ```
//!
//! The extra field makes the `.npy` header, and so the values, start at a multiple of 64. Sizes and checksums (CRC-32, over the `.npy` header and
//! the values) stand in the local headers too, so that readers need not begin at the end. Every length follows from names
//! and the number of dimensions alone, so the size of a file is known before a value is.
//!
//! Names may hold anything: what a path of a member could not hold is escaped as `%XX`.

use std::fmt::Write as _;

use super::Entry;
use crate::dtype::DType;
use crate::num::{align_up, to_usize};

/// `.npy` headers and values start at multiples of this.
const ALIGN: u64 = 64;
const LOCAL_HEADER_BYTES: u64 = 30;
const CENTRAL_HEADER_BYTES: u64 = 46;
const END_BYTES: u64 = 22;
/// Head of an extra field: its kind and its length.
const EXTRA_HEAD_BYTES: u64 = 4;
/// The kind, one that no program knows.
const EXTRA_KIND: u16 = 0x4d50;
/// Magic, version and length of a `.npy` header.
const NPY_HEAD_BYTES: usize = 10;
/// 1980-01-01, the first day that zip knows.
const DATE: u16 = 0x0021;
/// A name is UTF-8.
const UTF8: u16 = 1 << 11;
const VERSION: u16 = 20;
/// Sizes and offsets have 32 bits.
pub const MAX_FILE_BYTES: u64 = u32::MAX as u64;
/// Members are counted in 16 bits.
pub const MAX_MEMBERS: usize = u16::MAX as usize;
/// Digits of the largest dimension.
const WIDEST: u64 = u64::MAX;
/// Room for the identity: an array of no dimension, of text.
const IDENTITY_BYTES: u64 = 256;
const IDENTITY_NAME: &str = "shufflefs";

/// The members of a file.
#[derive(Debug, Clone)]
pub struct Members {
    members: Vec<Member>,
}

#[derive(Debug, Clone)]
struct Member {
    file_name: String,
    npy_bytes: u64,
}

impl Members {
    /// Members for arrays of these names, types and numbers of dimensions, and one for the identity of the batch.
    pub fn new<'a>(arrays: impl Iterator<Item = (&'a str, DType, usize)>) -> Self {
        let member = |name: &str, descr: &str, n_dims: usize| Member {
            file_name: file_name(name),
            npy_bytes: align_up((NPY_HEAD_BYTES + npy_text(descr, &vec![WIDEST; n_dims]).len() + 1) as u64, ALIGN)
                .unwrap_or(u64::MAX),
        };
        let mut members: Vec<Member> = arrays.map(|(name, dtype, n)| member(name, descr(dtype), n)).collect();
        members.push(member(IDENTITY_NAME, &identity_descr(), 0));
        Self { members }
    }

    /// Where the values of arrays of these many bytes start, and the size of the file.
    pub fn place(&self, array_bytes: &[u64]) -> (Vec<u64>, u64) {
        let mut starts = Vec::with_capacity(array_bytes.len());
        let mut at = 0;
        for (member, bytes) in self.members.iter().zip(array_bytes.iter().chain([&IDENTITY_BYTES])) {
            let start = member.values_start(at);
            starts.push(start);
            at = start.saturating_add(*bytes);
        }
        starts.pop();
        let names: u64 = self.members.iter().map(|m| CENTRAL_HEADER_BYTES + m.file_name.len() as u64).sum();
        (starts, at.saturating_add(names).saturating_add(END_BYTES))
    }

    /// Writes everything but the values, which are in `buffer` already at their places.
    pub(super) fn write(&self, entries: &[Entry<'_>], identity: &str, buffer: &mut [u8]) {
        let identity_descr = identity_descr();
        let mut central = Vec::new();
        let mut at = 0;
        let identity_entry = Entry { name: IDENTITY_NAME, dtype: DType::U8, dims: &[], start: 0 };
        for (i, (member, entry)) in self.members.iter().zip(entries.iter().chain([&identity_entry])).enumerate() {
            let is_identity = i == entries.len();
            let start = member.values_start(at);
            let (descr, len) = match is_identity {
                true => (identity_descr.as_str(), IDENTITY_BYTES),
                false => (descr(entry.dtype), entry.dims.iter().product::<u64>() * entry.dtype.size_bytes() as u64),
            };
            let (header, rest) = buffer[to_usize(at)..].split_at_mut(to_usize(start - at));
            let values = &mut rest[..to_usize(len)];
            if is_identity {
                let (text, zeros) = values.split_at_mut(identity.len().min(values.len()));
                text.copy_from_slice(&identity.as_bytes()[..text.len()]);
                zeros.fill(0);
            }
            member.write_headers(at, descr, entry.dims, header, values, &mut central);
            at = start + len;
        }
        let n = u16::try_from(self.members.len()).unwrap_or(u16::MAX);
        let central_bytes = size32(central.len() as u64);
        let (offset, out) = (at, &mut buffer[to_usize(at)..]);
        central.extend(b"PK\x05\x06");
        for field in [0, 0, n, n] {
            central.extend(field.to_le_bytes());
        }
        central.extend(central_bytes.to_le_bytes());
        central.extend(size32(offset).to_le_bytes());
        central.extend(0_u16.to_le_bytes());
        out[..central.len()].copy_from_slice(&central);
    }
}

impl Member {
    /// Where its values start if its local header is at `at`.
    fn values_start(&self, at: u64) -> u64 {
        let head = LOCAL_HEADER_BYTES + self.file_name.len() as u64 + EXTRA_HEAD_BYTES;
        let npy = at.checked_add(head).and_then(|end| align_up(end, ALIGN)).unwrap_or(u64::MAX);
        npy.saturating_add(self.npy_bytes)
    }

    /// Fills `header`, everything before the values, and appends to the central directory.
    fn write_headers(
        &self,
        at: u64,
        descr: &str,
        dims: &[u64],
        header: &mut [u8],
        values: &[u8],
        central: &mut Vec<u8>,
    ) {
        let (zip, npy) = header.split_at_mut(header.len() - to_usize(self.npy_bytes));
        let text = npy_text(descr, dims);
        npy.fill(b' ');
        npy[..8].copy_from_slice(b"\x93NUMPY\x01\x00");
        let text_bytes = u16::try_from(npy.len() - NPY_HEAD_BYTES).unwrap_or(u16::MAX);
        npy[8..NPY_HEAD_BYTES].copy_from_slice(&text_bytes.to_le_bytes());
        npy[NPY_HEAD_BYTES..NPY_HEAD_BYTES + text.len()].copy_from_slice(text.as_bytes());
        if let Some(last) = npy.last_mut() {
            *last = b'\n';
        }
        let mut hash = crc32fast::Hasher::new();
        hash.update(npy);
        hash.update(values);
        let size = size32(npy.len() as u64 + values.len() as u64);
        let flags = if self.file_name.is_ascii() { 0 } else { UTF8 };
        let mut common = Vec::with_capacity(26);
        for field in [VERSION, flags, 0, 0, DATE] {
            common.extend(field.to_le_bytes());
        }
        for field in [hash.finalize(), size, size] {
            common.extend(field.to_le_bytes());
        }
        common.extend(u16::try_from(self.file_name.len()).unwrap_or(u16::MAX).to_le_bytes());
        let extra = zip.len() - to_usize(LOCAL_HEADER_BYTES) - self.file_name.len();
        let mut local = b"PK\x03\x04".to_vec();
        local.extend(&common);
        local.extend(u16::try_from(extra).unwrap_or(u16::MAX).to_le_bytes());
        local.extend(self.file_name.as_bytes());
        local.extend(EXTRA_KIND.to_le_bytes());
        local.extend(u16::try_from(extra - to_usize(EXTRA_HEAD_BYTES)).unwrap_or(u16::MAX).to_le_bytes());
        let (head, zeros) = zip.split_at_mut(local.len());
        head.copy_from_slice(&local);
        zeros.fill(0);
        central.extend(b"PK\x01\x02");
        central.extend(VERSION.to_le_bytes());
        central.extend(&common);
        // No extra field, no comment, first disk, no attributes.
        central.extend([0; 12]);
        central.extend(size32(at).to_le_bytes());
        central.extend(self.file_name.as_bytes());
    }
}

/// Files that are larger are refused when the dataset is opened.
fn size32(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// The dictionary of a `.npy` header.
fn npy_text(descr: &str, dims: &[u64]) -> String {
    let mut shape = String::new();
    for dim in dims {
        let _ = write!(shape, "{dim},");
    }
    format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}")
}

fn identity_descr() -> String {
    format!("|S{IDENTITY_BYTES}")
}

/// The member of an array.
#[must_use]
pub fn file_name(array: &str) -> String {
    let mut name = String::with_capacity(array.len() + 4);
    for c in array.chars() {
        if c.is_control() || matches!(c, '/' | '\\' | '%') {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                let _ = write!(name, "%{byte:02X}");
            }
        } else {
            name.push(c);
        }
    }
    name + ".npy"
}

/// numpy's name of a type.
fn descr(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "|b1",
        DType::U8 => "|u1",
        DType::I8 => "|i1",
        DType::U16 => "<u2",
        DType::I16 => "<i2",
        DType::F16 => "<f2",
        DType::U32 => "<u4",
        DType::I32 => "<i4",
        DType::F32 => "<f4",
        DType::U64 => "<u8",
        DType::I64 => "<i8",
        DType::F64 => "<f8",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped() {
        assert_eq!(file_name("properties.a/b\u{1}%é"), "properties.a%2Fb%01%25é.npy");
    }

    #[test]
    fn the_size_is_known_before() {
        let arrays = [("a", DType::F32, 2), ("properties.ü", DType::Bool, 1)];
        let members = Members::new(arrays.into_iter());
        let (starts, size) = members.place(&[24, 5]);
        assert!(starts.iter().all(|start| start.is_multiple_of(ALIGN)));
        let mut buffer = vec![0xee; to_usize(size)];
        let entries = [
            Entry { name: "a", dtype: DType::F32, dims: &[2, 3], start: starts[0] },
            Entry { name: "properties.ü", dtype: DType::Bool, dims: &[5], start: starts[1] },
        ];
        members.write(&entries, "{}", &mut buffer);
        assert_eq!(buffer[buffer.len() - 22..][..4], *b"PK\x05\x06");
        assert_eq!(buffer[to_usize(starts[0])..][..24], [0xee; 24]);
        let text = String::from_utf8_lossy(&buffer[..to_usize(starts[0])]).into_owned();
        assert!(text.contains("{'descr': '<f4', 'fortran_order': False, 'shape': (2,3,), }"), "{text}");
    }
}
