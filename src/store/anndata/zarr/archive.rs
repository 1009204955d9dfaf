//! A zarr store in a zip archive.
//!
//! Only the central directory at the end of the archive is believed: of two members of one name the last one counts, as writers that
//! update a member append it again. Members that are stored are read in place, as extents of the archive; compressed ones are inflated,
//! documents at once and chunks when their batch is assembled. The directory is limited by the size of the archive, and every extent must
//! lie inside it. Format: PKWARE APPNOTE 6.3.10, sections 4.3 to 4.5.

use std::collections::BTreeSet;
use std::collections::HashMap;

use super::store::{StoredChunk, member_chunk};
use crate::codec::{Filter, Scratch, decode_unsized};
use crate::num::{to_u64, to_usize};
use crate::store::anndata::node::SourceFiles;
use crate::store::error::{OpenError, ReadError};
use crate::store::file::SourceFile;

/// Size of the record at the end, without its comment.
const END_BYTES: u64 = 22;
/// The longest comment.
const MAX_COMMENT_BYTES: u64 = 65_535;
/// Size of the record that points to the one of zip64.
const LOCATOR_BYTES: u64 = 20;
/// Size of the record of zip64.
const END64_BYTES: u64 = 56;
/// Size of a directory entry without its name, extra fields and comment.
const ENTRY_BYTES: usize = 46;
/// Size of the header before a member's name.
const LOCAL_BYTES: u64 = 30;
/// Largest directory.
const MAX_DIRECTORY_BYTES: u64 = 1 << 30;

const END: u32 = 0x0605_4b50;
const END64: u32 = 0x0606_4b50;
const LOCATOR: u32 = 0x0706_4b50;
const ENTRY: u32 = 0x0201_4b50;
const LOCAL: u32 = 0x0403_4b50;
/// Tag of the extra field with sizes of 64 bits.
const EXTRA64: u16 = 1;
/// Flag of an encrypted member.
const ENCRYPTED: u16 = 1;

/// One member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Where its header begins.
    header_at: u64,
    /// Bytes as stored.
    pub stored: u64,
    /// Bytes of its content.
    pub size: u64,
    /// True if it is compressed.
    pub deflated: bool,
    /// What is wrong with it, if anything.
    fault: Option<&'static str>,
}

/// An open archive.
#[derive(Debug)]
pub struct Archive {
    file: SourceFile,
    members: HashMap<String, Member>,
    /// What every name begins with: the name of the folder that was zipped, or nothing.
    prefix: String,
}

impl Archive {
    /// Reads the directory of the archive `file`.
    ///
    /// # Errors
    /// [`OpenError::Refused`] if it is damaged, cut, or in several parts.
    pub fn open(file: SourceFile) -> Result<Self, OpenError> {
        let members = match read_directory(&file) {
            Ok(members) => members,
            Err(reason) => {
                let remedy = "copy or download it again, or unzip it and give the folder";
                return Err(OpenError::refused(file.path(), "zip archive", reason, remedy));
            }
        };
        let prefix = common_prefix(&members);
        Ok(Self { file, members, prefix })
    }

    /// Its file.
    pub fn file(&self) -> &SourceFile {
        &self.file
    }

    /// Size of the archive.
    pub fn size_bytes(&self) -> u64 {
        self.file.stamp().size
    }

    /// See [`SourceFiles::state`].
    ///
    /// # Errors
    /// As there.
    pub fn state(&self) -> Result<[u8; 32], ReadError> {
        SourceFiles::state(&self.file, &[])
    }

    /// Compares the archive with what it was when it was opened.
    ///
    /// # Errors
    /// [`OpenError::Refused`].
    pub fn check_unchanged(&self) -> Result<(), OpenError> {
        self.file.check_unchanged().map_err(|_| {
            let reason = "changed while it was opened";
            OpenError::refused(self.file.path(), "file", reason, "try again when its writer is done")
        })
    }

    /// The member `key`; `None` if there is none.
    ///
    /// # Errors
    /// [`OpenError::Refused`] if it is stored in a way that cannot be read.
    pub fn member(&self, key: &str) -> Result<Option<Member>, OpenError> {
        let found = match self.prefix.is_empty() {
            true => self.members.get(key),
            false => self.members.get(&format!("{}{key}", self.prefix)),
        };
        match found {
            Some(Member { fault: Some(fault), .. }) => Err(self.refused(key, fault)),
            found => Ok(found.copied()),
        }
    }

    /// Names of the folders below `key`, sorted.
    pub fn folders(&self, key: &str) -> Vec<String> {
        let prefix = if key.is_empty() { self.prefix.clone() } else { format!("{}{key}/", self.prefix) };
        let mut names = BTreeSet::new();
        for name in self.members.keys() {
            if let Some((folder, _)) = name.strip_prefix(&prefix).and_then(|rest| rest.split_once('/'))
                && !matches!(folder, "" | "." | "..")
            {
                names.insert(folder.to_owned());
            }
        }
        names.into_iter().collect()
    }

    /// Where the stored bytes of a member lie.
    ///
    /// # Errors
    /// [`OpenError::Refused`] if its header is damaged or it lies outside the archive.
    pub fn locate(&self, key: &str, member: &Member) -> Result<StoredChunk, OpenError> {
        let mut header = [0; 30];
        self.read_at(member.header_at, &mut header).map_err(|e| self.refused(key, &e.to_string()))?;
        if word32(&header, 0) != Some(LOCAL) {
            return Err(self.refused(key, "the header of the member is damaged"));
        }
        let lens = u64::from(word16(&header, 26).unwrap_or(0)) + u64::from(word16(&header, 28).unwrap_or(0));
        let address = member.header_at + LOCAL_BYTES + lens;
        if address.checked_add(member.stored).is_none_or(|end| end > self.size_bytes()) {
            return Err(self.refused(key, "the member lies outside the archive"));
        }
        Ok(member_chunk(member, address))
    }

    /// The content of a member, whose size was checked.
    ///
    /// # Errors
    /// [`OpenError::Refused`] if it is damaged.
    pub fn read(&self, key: &str, member: &Member) -> Result<Vec<u8>, OpenError> {
        let chunk = self.locate(key, member)?;
        let mut stored = vec![0; to_usize(chunk.len)];
        self.read_at(chunk.address, &mut stored).map_err(|e| self.refused(key, &e.to_string()))?;
        if !member.deflated {
            return Ok(stored);
        }
        let limit = to_usize(member.size);
        decode_unsized(&[Filter::ZipDeflate], 0, &stored, limit, &mut Scratch::default())
            .map_err(|e| self.refused(key, &e.to_string()))
    }

    /// Fills `buf` from the archive at `offset`.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), ReadError> {
        self.file.read_at(offset, buf)
    }

    fn refused(&self, key: &str, reason: &str) -> OpenError {
        OpenError::refused(self.file.path(), key, reason, "unzip the archive and give the folder")
    }
}

/// The folder in which the whole store lies, with its slash, if the archive holds a folder and not its content.
fn common_prefix(members: &HashMap<String, Member>) -> String {
    let is_root = |prefix: &str| {
        let has = |name: &str| members.contains_key(&format!("{prefix}{name}"));
        has("zarr.json") || has(".zgroup") || has(".zarray")
    };
    if is_root("") {
        return String::new();
    }
    let mut tops: BTreeSet<&str> = members.keys().map(|name| name.split('/').next().unwrap_or_default()).collect();
    tops.remove("__MACOSX");
    let mut tops = tops.into_iter();
    match (tops.next(), tops.next()) {
        (Some(top), None) if is_root(&format!("{top}/")) => format!("{top}/"),
        _ => String::new(),
    }
}

fn read_directory(file: &SourceFile) -> Result<HashMap<String, Member>, String> {
    let size = file.stamp().size;
    let (start, len, n) = find_directory(file, size)?;
    if len > MAX_DIRECTORY_BYTES || start.checked_add(len).is_none_or(|end| end > size) {
        return Err(format!("the directory at {start}+{len} lies outside the archive of {size} bytes"));
    }
    let mut bytes = vec![0; to_usize(len)];
    file.read_at(start, &mut bytes).map_err(|e| e.to_string())?;
    let mut members = HashMap::new();
    let mut rest = bytes.as_slice();
    for i in 0..n {
        let Some((name, member, after)) = read_entry(rest) else {
            return Err(format!("entry {i} of the directory is damaged"));
        };
        // Folders have members of their own, which say nothing.
        if let Some(name) = name.filter(|name| !name.ends_with('/')) {
            members.insert(name, member);
        }
        rest = after;
    }
    Ok(members)
}

/// Where the directory lies: first byte, size, number of entries.
fn find_directory(file: &SourceFile, size: u64) -> Result<(u64, u64, u64), String> {
    let read = |at: u64, len: u64| -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; to_usize(len)];
        file.read_at(at, &mut bytes).map_err(|e| e.to_string())?;
        Ok(bytes)
    };
    let tail_len = size.min(END_BYTES + MAX_COMMENT_BYTES);
    let tail = read(size - tail_len, tail_len)?;
    let ends_here = |at: &usize| {
        let comment = word16(&tail, at + 20).map(u64::from);
        word32(&tail, *at) == Some(END) && comment == Some(tail_len - to_u64(*at) - END_BYTES)
    };
    let last = tail.len().checked_sub(to_usize(END_BYTES)).ok_or("is too short for a zip archive")?;
    let at = (0..=last).rev().find(ends_here).ok_or("has no end of directory: is it cut off?")?;
    let field = |offset: usize| word32(&tail, at + offset).map_or(0, u64::from);
    let n = word16(&tail, at + 10).map_or(0, u64::from);
    let end_at = size - tail_len + to_u64(at);
    let found = (field(16), field(12), n);
    let is_64 = n == u64::from(u16::MAX) || field(12) == u64::from(u32::MAX) || field(16) == u64::from(u32::MAX);
    let Some(locator_at) = end_at.checked_sub(LOCATOR_BYTES).filter(|_| is_64) else { return Ok(found) };
    let locator = read(locator_at, LOCATOR_BYTES)?;
    if word32(&locator, 0) != Some(LOCATOR) {
        return Ok(found);
    }
    let end64_at = word64(&locator, 8).unwrap_or(0);
    if end64_at.checked_add(END64_BYTES).is_none_or(|end| end > size) {
        return Err("the end of its directory lies outside".to_owned());
    }
    let end64 = read(end64_at, END64_BYTES)?;
    match (word32(&end64, 0), word64(&end64, 48), word64(&end64, 40), word64(&end64, 32)) {
        (Some(END64), Some(start), Some(len), Some(n)) => Ok((start, len, n)),
        _ => Err("the end of its directory is damaged".to_owned()),
    }
}

/// One entry of the directory (its name is `None` if it is not UTF-8), and what follows it.
fn read_entry(bytes: &[u8]) -> Option<(Option<String>, Member, &[u8])> {
    let entry = bytes.get(..ENTRY_BYTES)?;
    if word32(entry, 0)? != ENTRY {
        return None;
    }
    let len = |at: usize| word16(entry, at).map(usize::from);
    let (name_len, extra_len, comment_len) = (len(28)?, len(30)?, len(32)?);
    let rest = bytes.get(ENTRY_BYTES..)?;
    let (name, rest) = rest.split_at_checked(name_len)?;
    let (extra, rest) = rest.split_at_checked(extra_len)?;
    let after = rest.get(comment_len..)?;
    let sizes = [word32(entry, 24)?, word32(entry, 20)?, word32(entry, 42)?];
    let [size, stored, header_at] = wide_sizes(sizes, extra)?;
    let method = word16(entry, 10)?;
    let fault = match (word16(entry, 8)? & ENCRYPTED, method) {
        (0, 0) if stored != size => Some("the member has two sizes"),
        (0, 0 | 8) => None,
        (0, _) => Some("the member is compressed by an unknown method"),
        _ => Some("the member is encrypted"),
    };
    let name = String::from_utf8(name.to_vec()).ok();
    Some((name, Member { header_at, stored, size, deflated: method == 8, fault }, after))
}

/// Size, stored size and header offset; those that do not fit 32 bits stand in an extra field, in this order.
fn wide_sizes(sizes: [u32; 3], mut extra: &[u8]) -> Option<[u64; 3]> {
    let mut wide = sizes.map(u64::from);
    if !sizes.contains(&u32::MAX) {
        return Some(wide);
    }
    while let (Some(tag), Some(len)) = (word16(extra, 0), word16(extra, 2)) {
        let field = extra.get(4..4 + usize::from(len))?;
        if tag == EXTRA64 {
            let mut at = 0;
            for value in wide.iter_mut().filter(|value| **value == u64::from(u32::MAX)) {
                *value = word64(field, at)?;
                at += 8;
            }
            return Some(wide);
        }
        extra = extra.get(4 + usize::from(len)..)?;
    }
    Some(wide)
}

fn word16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn word64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}
