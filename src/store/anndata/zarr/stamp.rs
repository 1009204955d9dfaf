//! What identifies the content of a store in a folder: names, inodes, sizes and modification times of everything in it.
//!
//! It is only taken when something is looked up in the cache folder, which is worth it for large stores alone.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::num::to_u64;
use crate::store::cache::Taken;

/// Stores of more files than this are not worth asking for the stamp of each.
const MAX_FILES: u64 = 1 << 20;
/// Deepest folder.
const MAX_DEPTH: u32 = 32;

/// The stamp of the folder `root`; `None` if it cannot be read, or holds too many files.
pub fn of_folder(root: &Path) -> Option<Taken> {
    let mut walk = Walk::new();
    walk.folder(root, 0)?;
    Some(Taken { hash: *walk.hash.finalize().as_bytes(), modified: walk.modified })
}

/// Bytes of all files in the folder `root`; of those that could be asked, if there are too many.
pub fn size_of_folder(root: &Path) -> u64 {
    let mut walk = Walk::new();
    // What was seen counts, however far it got.
    let _ = walk.folder(root, 0);
    walk.bytes
}

struct Walk {
    hash: blake3::Hasher,
    /// The newest modification time, in seconds.
    modified: i64,
    n_files: u64,
    bytes: u64,
}

impl Walk {
    fn new() -> Self {
        Self { hash: blake3::Hasher::new(), modified: i64::MIN, n_files: 0, bytes: 0 }
    }

    fn folder(&mut self, path: &Path, depth: u32) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(path).ok()? {
            names.push(entry.ok()?.file_name());
        }
        names.sort();
        for name in names {
            self.n_files += 1;
            let path = path.join(&name);
            // Links are not followed: what they may lead to is in the store itself.
            let found = fs::symlink_metadata(&path).ok()?;
            self.hash.update(&to_u64(name.len()).to_le_bytes());
            self.hash.update(name.as_bytes());
            self.hash.update(&[u8::from(found.is_dir())]);
            self.modified = self.modified.max(found.mtime());
            if found.is_dir() {
                self.folder(&path, depth + 1)?;
                // Where the content of a folder ends.
                self.hash.update(&u64::MAX.to_le_bytes());
            } else {
                self.bytes = self.bytes.saturating_add(found.size());
                for number in [found.ino(), found.size()] {
                    self.hash.update(&number.to_le_bytes());
                }
                for number in [found.mtime(), found.mtime_nsec()] {
                    self.hash.update(&number.to_le_bytes());
                }
            }
            if self.n_files > MAX_FILES {
                return None;
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_shows() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/x"), "1").unwrap();
        fs::write(at("a/b/y"), "2").unwrap();
        let stamp = || of_folder(dir.path()).unwrap().hash;
        assert_eq!(size_of_folder(dir.path()), 2);
        let mut seen = vec![stamp()];
        assert_eq!(stamp(), seen[0]);
        fs::write(at("a/x"), "22").unwrap();
        seen.push(stamp());
        fs::write(at("a/new"), "").unwrap();
        seen.push(stamp());
        fs::rename(at("a/new"), at("a/b/new")).unwrap();
        seen.push(stamp());
        fs::remove_file(at("a/b/y")).unwrap();
        seen.push(stamp());
        fs::write(at("other"), "22").unwrap();
        fs::rename(at("other"), at("a/x")).unwrap();
        seen.push(stamp());
        let n = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), n);
        assert!(of_folder(&at("nothing")).is_none());
    }
}
