//! Variable-length text: the global heap, read by ourselves.
//!
//! A variable-length string is stored as 16 bytes: its length (u32), the address of a heap collection (u64) and the number
//! of an object in it (u32). A collection is `GCOL`, version 1, its size (u64), and then objects: number (u16), reference count
//! (u16), 4 reserved bytes, size (u64), and the content, padded to 8 bytes; object 0 is the free rest. (HDF5 File Format
//! Specification, section III.E.) Reading it here is bounded by the file, needs no lock and no filter of the library, and
//! avoids the code in which a flipped byte used to kill the process.
//!
//! Strings that were written together lie together, so the last collections are kept, some 16 MiB of them. A file that sends
//! us back and forth is refused once four times its size was read.

use std::collections::HashMap;
use std::rc::Rc;

use crate::num::{to_u64, to_usize};
use crate::store::anndata::node::MAX_TEXT_BYTES;
use crate::store::file::SourceFile;

/// Size of a stored reference to a string.
pub const REFERENCE_BYTES: usize = 16;
const COLLECTION_HEADER: usize = 16;
const OBJECT_HEADER: usize = 16;
/// Collections hold 64 KiB, or one long object.
const MAX_COLLECTION_BYTES: u64 = 64 << 20;
const KEPT_BYTES: usize = 16 << 20;
const UNDEFINED: u64 = u64::MAX;

/// One collection with the places of its objects, by object number.
struct Collection {
    bytes: Vec<u8>,
    places: Vec<(usize, usize)>,
}

/// The heap collections of one file.
pub struct Heap {
    base: u64,
    kept: HashMap<u64, Rc<Collection>>,
    kept_bytes: usize,
    last: Option<(u64, Rc<Collection>)>,
    read_bytes: u64,
}

impl Heap {
    /// The heap of a file whose addresses are relative to `base`.
    #[must_use]
    pub fn new(base: u64) -> Self {
        Self { base, kept: HashMap::new(), kept_bytes: 0, last: None, read_bytes: 0 }
    }

    /// Calls `take` with the bytes of the string that `reference` stands for; a null reference is the empty string.
    ///
    /// # Errors
    /// A reason, if the reference leads nowhere.
    pub fn text<T>(
        &mut self,
        file: &SourceFile,
        reference: &[u8],
        take: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> Result<T, String> {
        let (len, address, index) = parse_reference(reference).ok_or("a reference to text is cut off")?;
        if len == 0 || address == 0 || address == UNDEFINED {
            return take(&[]);
        }
        if len > MAX_TEXT_BYTES {
            return Err(format!("a text of {len} bytes (limit {MAX_TEXT_BYTES})"));
        }
        let collection = self.collection(file, address)?;
        let missing = || format!("text object {index} of the heap at {address} does not exist");
        let &(at, size) = collection.places.get(index).ok_or_else(missing)?;
        if size < len {
            return Err(format!("text of {len} bytes in a heap object of {size}"));
        }
        take(collection.bytes.get(at..at + len).ok_or_else(missing)?)
    }

    fn collection(&mut self, file: &SourceFile, address: u64) -> Result<Rc<Collection>, String> {
        if let Some((last, collection)) = &self.last
            && *last == address
        {
            return Ok(Rc::clone(collection));
        }
        let collection = match self.kept.get(&address) {
            Some(collection) => Rc::clone(collection),
            None => self.load(file, address)?,
        };
        self.last = Some((address, Rc::clone(&collection)));
        Ok(collection)
    }

    fn load(&mut self, file: &SourceFile, address: u64) -> Result<Rc<Collection>, String> {
        let damaged = |what: &str| format!("the text heap at {address} is damaged ({what})");
        let at = address.checked_add(self.base).ok_or_else(|| damaged("address"))?;
        let mut header = [0_u8; COLLECTION_HEADER];
        file.read_at(at, &mut header).map_err(|e| damaged(&e.to_string()))?;
        let [b'G', b'C', b'O', b'L', 1, _, _, _, size @ ..] = header else { return Err(damaged("no signature")) };
        let size = u64::from_le_bytes(size);
        let file_bytes = file.stamp().size;
        if size < to_u64(COLLECTION_HEADER) || size > MAX_COLLECTION_BYTES || size > file_bytes.saturating_sub(at) {
            return Err(damaged(&format!("size {size}")));
        }
        self.read_bytes = self.read_bytes.saturating_add(size);
        if self.read_bytes > file_bytes.saturating_mul(4).max(KEPT_BYTES as u64) {
            return Err("its text is scattered over the whole file; write it again".to_owned());
        }
        let mut bytes = vec![0; to_usize(size)];
        file.read_at(at, &mut bytes).map_err(|e| damaged(&e.to_string()))?;
        let places = object_places(&bytes).ok_or_else(|| damaged("objects"))?;
        let collection = Rc::new(Collection { bytes, places });
        if self.kept_bytes + collection.bytes.len() > KEPT_BYTES {
            self.kept.clear();
            self.kept_bytes = 0;
        }
        self.kept_bytes += collection.bytes.len();
        self.kept.insert(address, Rc::clone(&collection));
        Ok(collection)
    }
}

/// Length, collection address and object number.
fn parse_reference(reference: &[u8]) -> Option<(usize, u64, usize)> {
    let len = u32::from_le_bytes(reference.get(..4)?.try_into().ok()?);
    let address = u64::from_le_bytes(reference.get(4..12)?.try_into().ok()?);
    let index = u32::from_le_bytes(reference.get(12..16)?.try_into().ok()?);
    Some((usize::try_from(len).ok()?, address, usize::try_from(index).ok()?))
}

/// Where the objects of a collection lie: offset and size, by number. `None` if they overlap the end.
fn object_places(bytes: &[u8]) -> Option<Vec<(usize, usize)>> {
    let mut places = Vec::new();
    let mut at = COLLECTION_HEADER;
    while let Some(header) = bytes.get(at..at + OBJECT_HEADER) {
        let index = usize::from(u16::from_le_bytes(header.get(..2)?.try_into().ok()?));
        let size = usize::try_from(u64::from_le_bytes(header.get(8..16)?.try_into().ok()?)).ok()?;
        if index == 0 {
            break; // the free rest
        }
        let content = at + OBJECT_HEADER;
        let end = content.checked_add(size)?;
        if end > bytes.len() {
            return None;
        }
        if places.len() <= index {
            places.resize(index + 1, (0, 0));
        }
        *places.get_mut(index)? = (content, size);
        at = end.checked_next_multiple_of(8)?;
    }
    Some(places)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn heap_file(base: u64, size: u64) -> tempfile::NamedTempFile {
        let mut bytes = vec![0_u8; to_usize(base)];
        bytes.extend_from_slice(b"GCOL\x01\0\0\0");
        bytes.extend_from_slice(&size.to_le_bytes());
        for (index, text) in [(1_u16, "one"), (3, "three"), (0, "")] {
            bytes.extend_from_slice(&index.to_le_bytes());
            bytes.extend_from_slice(&[0; 6]);
            bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        bytes.resize(to_usize(base) + 4096, 0);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        file
    }

    fn reference(len: u32, address: u64, index: u32) -> Vec<u8> {
        [&len.to_le_bytes()[..], &address.to_le_bytes(), &index.to_le_bytes()].concat()
    }

    fn read(file: &SourceFile, base: u64, reference: &[u8]) -> Result<String, String> {
        Heap::new(base).text(file, reference, |b| Ok(String::from_utf8_lossy(b).into_owned()))
    }

    #[test]
    fn objects_are_found_behind_a_user_block() {
        // An address of 0 would be a null reference, so the collection lies at 512 of a file whose base is 512.
        let keep = heap_file(1024, 4096);
        let file = SourceFile::open(keep.path()).unwrap();
        assert_eq!(read(&file, 512, &reference(3, 512, 1)).unwrap(), "one");
        assert_eq!(read(&file, 512, &reference(5, 512, 3)).unwrap(), "three");
        assert_eq!(read(&file, 512, &reference(0, 0, 0)).unwrap(), "");
    }

    #[test]
    fn references_that_lead_nowhere_are_refused() {
        let keep = heap_file(512, 4096);
        let file = SourceFile::open(keep.path()).unwrap();
        for bad in [
            reference(3, 512, 2),
            reference(3, 512, 9),
            reference(4, 512, 1),
            reference(3, 513, 1),
            reference(3, u64::MAX - 1, 1),
            reference(u32::MAX, 512, 1),
        ] {
            assert!(read(&file, 0, &bad).is_err(), "{bad:?}");
        }
        assert!(read(&file, 0, &[0; 5]).is_err());
    }

    #[test]
    fn a_collection_larger_than_the_file_is_refused() {
        let keep = heap_file(512, 1 << 40);
        let file = SourceFile::open(keep.path()).unwrap();
        assert!(read(&file, 0, &reference(3, 512, 1)).unwrap_err().contains("size"));
    }
}
