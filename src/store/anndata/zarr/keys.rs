//! The names of an array's chunks: they follow from the place of a chunk in the grid, so none is ever stored.
//!
//! Format 2 joins the numbers by `.` or `/`; format 3 puts a `c` before them, or does as format 2. No other rule is accepted: a rule that
//! takes text from the metadata could name any file.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::beneath;
use crate::num::to_u64;
use crate::store::files::Names;

/// How the chunks of an array are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// True if names begin with `c`.
    pub prefix: bool,
    /// `.` or `/`.
    pub separator: char,
    /// Number of dimensions, at most 2.
    pub rank: usize,
}

impl Keys {
    /// Name of the chunk `(i, j)`, relative to the array.
    #[must_use]
    pub fn of(&self, i: u64, j: u64) -> String {
        let s = self.separator;
        match (self.rank, self.prefix) {
            (0, true) => "c".to_owned(),
            (0, false) => "0".to_owned(),
            (1, true) => format!("c{s}{i}"),
            (1, false) => i.to_string(),
            (_, true) => format!("c{s}{i}{s}{j}"),
            (_, false) => format!("{i}{s}{j}"),
        }
    }
}

/// The chunk files of one array in a folder, numbered row by row through the grid.
#[derive(Debug)]
pub struct ChunkNames {
    /// The folder of the store.
    pub root: Arc<Path>,
    /// The array, relative to it.
    pub array: Box<str>,
    /// The rule.
    pub keys: Keys,
    /// Chunks along the second axis, at least 1.
    pub grid_cols: u32,
}

impl ChunkNames {
    /// Path of the chunk file `number`, relative to the store.
    fn relative(&self, number: u32) -> PathBuf {
        let (i, j) = (number / self.grid_cols.max(1), number % self.grid_cols.max(1));
        let key = self.keys.of(i.into(), j.into());
        if self.array.is_empty() { key.into() } else { format!("{}/{key}", self.array).into() }
    }
}

impl Names for ChunkNames {
    fn path(&self, number: u32) -> PathBuf {
        self.root.join(self.relative(number))
    }

    fn open(&self, number: u32) -> io::Result<File> {
        let root = beneath::folder(&self.root)?;
        beneath::file(root.as_fd(), &self.relative(number))
    }

    fn resident_bytes(&self) -> u64 {
        to_u64(size_of::<Self>() + self.array.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_both_formats() {
        let keys = |prefix, separator, rank| Keys { prefix, separator, rank }.of(3, 7);
        assert_eq!(keys(true, '/', 0), "c");
        assert_eq!(keys(false, '.', 0), "0");
        assert_eq!(keys(true, '/', 1), "c/3");
        assert_eq!(keys(true, '.', 1), "c.3");
        assert_eq!(keys(false, '/', 1), "3");
        assert_eq!(keys(true, '/', 2), "c/3/7");
        assert_eq!(keys(true, '.', 2), "c.3.7");
        assert_eq!(keys(false, '.', 2), "3.7");
        assert_eq!(keys(false, '/', 2), "3/7");
        let keys = Keys { prefix: true, separator: '/', rank: 2 };
        let names = ChunkNames { root: Path::new("/s").into(), array: "X".into(), keys, grid_cols: 5 };
        assert_eq!(names.path(13), PathBuf::from("/s/X/c/2/3"));
    }
}
