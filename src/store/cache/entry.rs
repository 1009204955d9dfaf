//! One file of the cache folder.
//!
//! ```text
//!     0   8  magic
//!     8   4  format version
//!    12   4  a number that tells the byte order of the machine
//!    16   8  size of the file
//!    24   8  size of the facts
//!    32  32  identity: hash of path, stamp and piece
//!    64  32  checksum: BLAKE3 of the file without these 32 bytes
//!    96  32  zero
//!   128      facts, as JSON
//!            sections, each aligned to 64 bytes: arrays as they lie in memory
//! ```
//!
//! Every byte is covered by the checksum, which is computed from `pread` when the entry is opened, so that checking does not
//! make the file resident. Only then is it mapped.

use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Cacheable;
use crate::num::{to_u64, to_usize};
use crate::store::array::{Array, Item};

const MAGIC: [u8; 8] = *b"SHFLFS\x00i";
/// To be raised whenever the content of any piece changes its meaning.
const VERSION: u32 = 1;
const BYTE_ORDER: u32 = 0x0102_0304;
const HEADER_BYTES: usize = 128;
const CHECKSUM_AT: usize = 64;
const CHECKSUM_BYTES: usize = 32;
const SECTION_ALIGN: u64 = 64;
/// Most bytes of facts: labels and warnings, never one per row.
const MAX_FACTS_BYTES: u64 = 64 << 20;
/// Bytes hashed at a time: the hash is fastest on long runs, and this much stays in the processor's cache.
const RUN_BYTES: usize = 256 << 10;

/// Which piece of which source an entry holds.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Name of its file, without an extension: the same for all stamps of a source, so that a newer entry replaces an older one.
    pub file_stem: String,
    content: [u8; 32],
}

impl Identity {
    /// The identity of the piece `name` of the source at `path` with this `stamp`.
    pub fn new(path: &[u8], stamp: &[u8; 32], name: &str) -> Self {
        let mut hash = blake3::Hasher::new();
        hash.update(&VERSION.to_le_bytes());
        for part in [path, name.as_bytes()] {
            hash.update(&to_u64(part.len()).to_le_bytes());
            hash.update(part);
        }
        let place = hash.finalize().to_hex();
        hash.update(stamp);
        let file_stem = place.get(..32).unwrap_or_default().to_owned();
        Self { file_stem, content: *hash.finalize().as_bytes() }
    }

    /// The identity as text.
    pub fn hex(&self) -> String {
        blake3::Hash::from_bytes(self.content).to_hex().to_string()
    }
}

#[derive(Serialize, Deserialize)]
struct Facts<F> {
    /// What the entry holds, for people.
    label: String,
    /// Offset and size of each section.
    sections: Vec<(u64, u64)>,
    facts: F,
}

/// The arrays of an entry, taken in order.
pub struct Sections<'a> {
    map: &'a Arc<Mmap>,
    places: std::slice::Iter<'a, (u64, u64)>,
}

impl Sections<'_> {
    /// The next array, which must have `len` items.
    pub fn array<T: Item>(&mut self, len: usize) -> Option<Array<T>> {
        self.any().filter(|array| array.len() == len)
    }

    /// Offset and size of the next section, which is not mapped.
    pub fn place(&mut self) -> Option<(u64, u64)> {
        self.places.next().copied()
    }

    /// The next array, of any length.
    pub fn any<T: Item>(&mut self) -> Option<Array<T>> {
        let &(offset, len) = self.places.next()?;
        Array::mapped(self.map, to_usize(offset)..to_usize(offset.checked_add(len)?))
    }
}

/// Size of the entry of a piece.
pub fn size_bytes(sections: &[&[u8]]) -> u64 {
    sections.iter().map(|section| to_u64(section.len()).saturating_add(SECTION_ALIGN)).sum::<u64>() + (64 << 10)
}

/// How an entry begins, and where everything behind that lies.
pub struct Front {
    /// Header and facts; the checksum is not in it yet.
    pub bytes: Vec<u8>,
    /// Offset and size of each section.
    pub sections: Vec<(u64, u64)>,
    /// Size of the file.
    pub file_bytes: u64,
}

impl Front {
    /// The front of an entry with `facts` and sections of `lens` bytes.
    ///
    /// # Errors
    /// If the facts cannot be written as JSON.
    pub fn new<F: Serialize>(identity: &Identity, label: &str, facts: F, lens: &[u64]) -> io::Result<Self> {
        // The facts hold the offsets behind them: leave room as for the largest ones.
        let widest = lens.iter().map(|&len| (u64::MAX, len)).collect();
        let mut facts = Facts { label: label.to_owned(), sections: widest, facts };
        let facts_bytes = serde_json::to_vec(&facts)?.len();
        let mut end = to_u64(HEADER_BYTES + facts_bytes);
        let mut sections = Vec::new();
        for &len in lens {
            let start = end.next_multiple_of(SECTION_ALIGN);
            sections.push((start, len));
            end = start + len;
        }
        facts.sections.clone_from(&sections);
        let mut text = serde_json::to_vec(&facts)?;
        text.resize(facts_bytes, b' ');
        let mut bytes = Vec::with_capacity(HEADER_BYTES + facts_bytes);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(BYTE_ORDER.to_ne_bytes());
        bytes.extend(end.to_le_bytes());
        bytes.extend(to_u64(facts_bytes).to_le_bytes());
        bytes.extend(identity.content);
        bytes.resize(HEADER_BYTES, 0);
        bytes.extend(text);
        Ok(Self { bytes, sections, file_bytes: end })
    }
}

/// Writes an entry to `out`, a new file.
///
/// # Errors
/// What the operating system says.
pub fn write<F: Serialize>(
    out: &mut File,
    identity: &Identity,
    label: &str,
    facts: F,
    arrays: &[&[u8]],
) -> io::Result<()> {
    let lens: Vec<u64> = arrays.iter().map(|array| to_u64(array.len())).collect();
    let front = Front::new(identity, label, facts, &lens)?;
    let mut hash = blake3::Hasher::new();
    hash.update(front.bytes.get(..CHECKSUM_AT).unwrap_or_default());
    hash.update(front.bytes.get(CHECKSUM_AT + CHECKSUM_BYTES..).unwrap_or_default());
    out.write_all(&front.bytes)?;
    let mut at = to_u64(front.bytes.len());
    for (&(start, _), array) in front.sections.iter().zip(arrays) {
        let gap = vec![0; to_usize(start - at)];
        out.write_all(&gap)?;
        hash.update(&gap);
        for run in array.chunks(RUN_BYTES) {
            out.write_all(run)?;
            hash.update(run);
        }
        at = start + to_u64(array.len());
    }
    out.write_all_at(hash.finalize().as_bytes(), to_u64(CHECKSUM_AT))
}

/// Writes the checksum into a file that is an entry but for that. Calls `progress` with the bytes read so far.
///
/// # Errors
/// What the operating system says.
pub fn seal(file: &File, file_bytes: u64, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
    let (_, sum) = sums(file, file_bytes, progress)?;
    file.write_all_at(&sum, to_u64(CHECKSUM_AT))
}

/// An entry of the right source in the right state; its content is not checked yet.
pub struct Entry {
    file: File,
    metadata: Metadata,
    facts_bytes: usize,
}

impl Entry {
    /// Finds the entry at `path`. `None` if there is none, or it is that of another state of the source.
    ///
    /// # Errors
    /// Why the entry is not used: foreign, of another format, of another size.
    pub fn find(path: &Path, identity: &Identity) -> Result<Option<Self>, String> {
        let file = match File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC).open(path) {
            Ok(file) => file,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(error.to_string()),
        };
        let metadata = file.metadata().map_err(|e| e.to_string())?;
        // Somebody else's file could change while it is mapped.
        if !is_ours(&metadata) {
            return Err("is not a file that only this user can write".to_owned());
        }
        let facts_bytes = check_header(&file, metadata.len(), identity)?;
        Ok(facts_bytes.map(|facts_bytes| Self { file, metadata, facts_bytes }))
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// What the system said of the file when it was opened.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Reads every byte and compares the checksum. Calls `progress` with the bytes read so far.
    ///
    /// # Errors
    /// That it is damaged, or cannot be read.
    pub fn check_sum(&self, progress: &mut dyn FnMut(u64)) -> Result<(), String> {
        let (found, sum) = sums(&self.file, self.metadata.len(), progress).map_err(|e| e.to_string())?;
        if sum == found { Ok(()) } else { Err("is damaged (checksum)".to_owned()) }
    }

    /// Maps the file and makes of its facts and sections what `make` makes of them.
    ///
    /// # Errors
    /// If they are not what they should be.
    pub fn content<F: DeserializeOwned, P>(
        &self,
        make: impl FnOnce(F, &mut Sections<'_>) -> Option<P>,
    ) -> Result<P, String> {
        // SAFETY: a file of ours, never modified after it was renamed to its name; who removes or replaces it leaves this inode alone.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(&self.file) }.map_err(|e| e.to_string())?;
        let map = Arc::new(map);
        let text = map.get(HEADER_BYTES..HEADER_BYTES + self.facts_bytes).ok_or("is too short")?;
        let Facts { sections, facts, .. } = serde_json::from_slice::<Facts<F>>(text).map_err(|e| e.to_string())?;
        let made = make(facts, &mut Sections { map: &map, places: sections.iter() });
        made.ok_or_else(|| "does not hold what it says".to_owned())
    }
}

/// Opens the entry at `path`. `None` if there is none, or it is that of another state of the source.
///
/// # Errors
/// Why the entry is not used: damaged, foreign, of another format.
pub fn open<T: Cacheable>(path: &Path, identity: &Identity) -> Result<Option<T>, String> {
    let Some(entry) = Entry::find(path, identity)? else { return Ok(None) };
    entry.check_sum(&mut |_| ())?;
    let piece = entry.content(T::from_entry)?;
    // The age of an entry is the time of its last use. Where that cannot be set, it is only removed earlier.
    let _ = entry.file.set_modified(std::time::SystemTime::now());
    Ok(Some(piece))
}

/// True for a file that only this user can write.
pub fn is_ours(metadata: &Metadata) -> bool {
    metadata.is_file() && metadata.uid() == nix::unistd::geteuid().as_raw() && metadata.mode() & 0o022 == 0
}

/// Size of the facts; `None` if the entry is that of another state of the source.
fn check_header(file: &File, file_bytes: u64, identity: &Identity) -> Result<Option<usize>, String> {
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0).map_err(|_| "is too short".to_owned())?;
    let number = |at: usize| header.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    let mut expected = MAGIC.to_vec();
    expected.extend(VERSION.to_le_bytes());
    expected.extend(BYTE_ORDER.to_ne_bytes());
    if !header.starts_with(&expected) {
        return Err("is of another format".to_owned());
    }
    let (size, facts_bytes) = (number(16), number(24));
    if size != file_bytes || facts_bytes > MAX_FACTS_BYTES.min(file_bytes) {
        return Err(format!("has {file_bytes} bytes, not {size}"));
    }
    if header.get(32..64) != Some(&identity.content) {
        return Ok(None);
    }
    Ok(Some(to_usize(facts_bytes)))
}

/// The checksum that a file holds, and the one that it should hold.
fn sums(
    file: &File,
    file_bytes: u64,
    progress: &mut dyn FnMut(u64),
) -> io::Result<([u8; CHECKSUM_BYTES], [u8; CHECKSUM_BYTES])> {
    let mut hash = blake3::Hasher::new();
    let mut buffer = vec![0; RUN_BYTES];
    let mut found = [0; CHECKSUM_BYTES];
    let mut at = 0;
    while at < file_bytes {
        let len = to_usize((file_bytes - at).min(to_u64(RUN_BYTES)));
        let Some(run) = buffer.get_mut(..len) else { break };
        file.read_exact_at(run, at)?;
        if at == 0 {
            let parts =
                run.split_at_checked(CHECKSUM_AT).map(|(head, rest)| (head, rest.split_at_checked(CHECKSUM_BYTES)));
            let Some((head, Some((sum, rest)))) = parts else { return Err(io::ErrorKind::UnexpectedEof.into()) };
            found.copy_from_slice(sum);
            hash.update(head);
            hash.update(rest);
        } else {
            hash.update(run);
        }
        at += to_u64(len);
        progress(at);
    }
    Ok((found, *hash.finalize().as_bytes()))
}
