use std::cell::Cell;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::Barrier;

use super::*;
use crate::dtype::DType;
use crate::store::array::Array;
use crate::store::chunk_map::ChunkEntry;
use crate::store::column::{Categories, CodeValues, Codes};
use crate::store::{Column, ColumnData, RowLengths, Strings};

/// A source that was written long ago, and a folder of entries that does not exist yet.
struct Place {
    dir: tempfile::TempDir,
    config: CacheConfig,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let folder = Some(dir.path().join("a/cache"));
        let place = Self {
            config: CacheConfig { folder, min_rows: 1, max_bytes: 1 << 30, rewrite: RewriteConfig::default() },
            dir,
        };
        place.write_source(&[7; 20_000], 1000);
        place
    }

    fn source(&self) -> PathBuf {
        self.dir.path().join("source.h5ad")
    }

    /// Writes the source in place, modified `age` seconds ago.
    fn write_source(&self, bytes: &[u8], age: u64) {
        fs::write(self.source(), bytes).unwrap();
        let modified = SystemTime::now() - Duration::from_secs(age);
        File::options().write(true).open(self.source()).unwrap().set_modified(modified).unwrap();
    }

    /// Asks for a piece: what came, whether it had to be read, and what went wrong.
    fn ask<T: Cacheable>(&self, name: &str, read: impl FnOnce() -> T) -> (T, bool, Option<String>) {
        let cache = SourceCache::new(&self.config, &SourceFile::open(&self.source()).unwrap());
        let was_read = Cell::new(false);
        let read = || -> Result<T, ()> {
            was_read.set(true);
            Ok(read())
        };
        let piece = cache.rows(name, 10, read).unwrap();
        (piece, was_read.get(), cache.trouble())
    }

    fn lengths(&self) -> (Vec<u32>, bool, Option<String>) {
        let (found, was_read, trouble) = self.ask("lengths", || RowLengths::new(lens()).unwrap());
        ((0..found.n_rows()).map(|row| found.len(row)).collect(), was_read, trouble)
    }

    fn entries(&self) -> Vec<PathBuf> {
        let Ok(listing) = fs::read_dir(self.config.folder.as_ref().unwrap()) else { return Vec::new() };
        let mut entries: Vec<PathBuf> = listing.map(|file| file.unwrap().path()).collect();
        entries.sort();
        entries
    }
}

fn lens() -> Vec<u32> {
    (0..150).map(|i| i * 31 % 7).collect()
}

#[test]
fn what_was_read_once_is_not_read_again() {
    let place = Place::new();
    assert_eq!(place.lengths(), (lens(), true, None));
    assert_eq!(place.lengths(), (lens(), false, None));
    // Another piece of the same source.
    assert!(place.ask("other lengths", || RowLengths::new(vec![1]).unwrap()).1);
    assert_eq!((place.lengths().1, place.entries().len()), (false, 2));
}

#[test]
fn every_kind_of_piece_comes_back_as_it_was() {
    let place = Place::new();
    let shown = |text: String| text.replace("mapped", "heap");
    let strings: Strings = ["", "é", "", "long text", "x"].into_iter().collect();
    let values = [
        CodeValues::I8(vec![0, -1, 2, 2, 1].into()),
        CodeValues::I16(vec![0, -1, 2, 2, 1].into()),
        CodeValues::I32(vec![0, -1, 2, 2, 1].into()),
    ];
    let numeric = Categories::Numeric { dtype: DType::I16, bytes: vec![1, 0, 2, 0, 3, 0].into() };
    let text = Categories::Text(["a", "", "c"].into_iter().collect());
    let mut columns = vec![
        ColumnData::Numeric { dtype: DType::F64, bytes: (0..40).collect() },
        ColumnData::Numeric { dtype: DType::Bool, bytes: vec![0, 1, 1, 0, 1].into() },
        ColumnData::Strings(strings.clone()),
    ];
    for (values, ordered) in values.into_iter().zip([true, false, true]) {
        let codes = Codes::new(values, 3);
        assert_eq!((codes.counts(), codes.n_missing()), (&[1, 1, 2][..], 1));
        for categories in [&numeric, &text] {
            columns.push(ColumnData::Categorical { codes: codes.clone(), categories: categories.clone(), ordered });
        }
    }
    for (i, data) in columns.into_iter().enumerate() {
        for present in [None, Some(vec![1_u8, 0, 1, 1, 0].into())] {
            let column = Column { name: format!("c{i}"), data: data.clone(), present };
            let name = format!("{i} {}", column.present.is_some());
            assert!(place.ask(&name, || column.clone()).1);
            let (found, was_read, _) = place.ask::<Column>(&name, || panic!("is there"));
            assert!(!was_read);
            assert_eq!(shown(format!("{found:?}")), format!("{column:?}"));
            assert!(found.present.as_deref() == column.present.as_deref());
            match (&found.data, &column.data) {
                (ColumnData::Numeric { bytes: a, .. }, ColumnData::Numeric { bytes: b, .. }) => assert_eq!(a, b),
                (ColumnData::Strings(a), ColumnData::Strings(b)) => assert!(a.iter().eq(b.iter())),
                (ColumnData::Categorical { codes: a, .. }, ColumnData::Categorical { codes: b, .. }) => {
                    assert!((0..5).all(|row| a.get(row) == b.get(row)));
                    assert_eq!((a.counts(), a.len()), (b.counts(), b.len()));
                }
                _ => panic!("another kind"),
            }
        }
    }
    let table: Array<ChunkEntry> =
        (0..9).map(|i| ChunkEntry { address: u64::MAX - i, stored_len: 5, mask: 1 << i }).collect();
    place.ask("table", || table.clone());
    assert_eq!(place.ask::<Array<ChunkEntry>>("table", || panic!("is there")).0, table);
    // Long rows take four bytes.
    let long = || RowLengths::new(vec![70_000, 0, 3]).unwrap();
    place.ask("long", long);
    let found = place.ask::<RowLengths>("long", || panic!("is there")).0;
    assert_eq!((found.range(2), found.max(), found.total()), (70_000..70_003, 70_000, 70_003));
    assert_eq!(found.digest(), long().digest());
    // Nothing at all is a piece too.
    place.ask("none", Strings::default);
    assert_eq!(place.ask::<Strings>("none", || panic!("is there")).0.len(), 0);
}

#[test]
fn mapped_pieces_take_no_memory_and_can_still_be_changed() {
    let place = Place::new();
    let names = || (0..1000).map(|i| i.to_string()).collect::<Strings>();
    let (mut mapped, _, _) = place.ask("names", names);
    assert_eq!(mapped.resident_bytes(), 0, "mapped as soon as it is written");
    mapped.push("one more");
    assert_eq!((mapped.len(), mapped.get(999), mapped.get(1000)), (1001, "999", "one more"));
    assert_eq!(place.ask("names", names).0.len(), 1000);
}

#[test]
fn every_damaged_byte_is_noticed() {
    let place = Place::new();
    place.lengths();
    let entry = place.entries().pop().unwrap();
    let good = fs::read(&entry).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        fs::write(&entry, &bad).unwrap();
        assert_eq!(place.lengths(), (lens(), true, None), "byte {at}");
        assert_eq!(fs::read(&entry).unwrap(), good, "byte {at}: was written again");
    }
    for len in (0..good.len()).step_by(7).chain([good.len() - 1]) {
        fs::write(&entry, &good[..len]).unwrap();
        assert_eq!(place.lengths(), (lens(), true, None), "{len} bytes");
    }
    fs::write(&entry, [&good[..], &[0]].concat()).unwrap();
    assert_eq!(place.lengths(), (lens(), true, None));
    assert_eq!(place.lengths(), (lens(), false, None));
}

#[test]
fn a_piece_of_another_kind_is_not_used() {
    let place = Place::new();
    place.ask("piece", || ["a"].into_iter().collect::<Strings>());
    let (found, was_read, _) = place.ask("piece", || RowLengths::new(vec![1, 2]).unwrap());
    assert!(was_read && found.n_rows() == 2);
}

#[test]
fn foreign_files_are_not_used() {
    let place = Place::new();
    place.lengths();
    let entry = place.entries().pop().unwrap();
    fs::set_permissions(&entry, fs::Permissions::from_mode(0o620)).unwrap();
    assert!(place.lengths().1, "others can write it");
    assert_eq!(fs::metadata(&entry).unwrap().mode() & 0o777, 0o600);
    let elsewhere = place.dir.path().join("elsewhere");
    fs::rename(&entry, &elsewhere).unwrap();
    symlink(&elsewhere, &entry).unwrap();
    assert!(place.lengths().1, "a link");
    assert!(!place.lengths().1);
}

#[test]
fn another_state_of_the_source_is_another_piece() {
    let place = Place::new();
    let mut content = vec![7; 20_000];
    place.lengths();
    let changes: [fn(&mut Vec<u8>); 4] =
        [|_| (), |content| content.push(7), |content| content[0] = 1, |content| content[19_999] = 1];
    let modified = fs::metadata(place.source()).unwrap().modified().unwrap();
    for (i, change) in changes.into_iter().enumerate() {
        change(&mut content);
        place.write_source(&content, 999);
        if i > 0 {
            // Size or content, not the time.
            File::options().write(true).open(place.source()).unwrap().set_modified(modified).unwrap();
        }
        assert!(place.lengths().1, "change {i}");
        assert!(!place.lengths().1, "change {i}");
    }
    // The same content under another inode.
    let copy = place.dir.path().join("copy");
    fs::copy(place.source(), &copy).unwrap();
    File::options().write(true).open(&copy).unwrap().set_modified(modified).unwrap();
    fs::rename(&copy, place.source()).unwrap();
    assert!(place.lengths().1);
    assert_eq!(place.entries().len(), 1, "newer entries replace older ones");
}

#[test]
fn small_pieces_and_fresh_files_are_not_kept() {
    let mut place = Place::new();
    place.config.min_rows = 11;
    place.lengths();
    assert_eq!(place.lengths(), (lens(), true, None));
    place.config.min_rows = 10;
    place.write_source(&[7; 20_000], 0);
    place.lengths();
    assert_eq!(place.lengths(), (lens(), true, None));
    assert!(place.entries().is_empty());
    place.write_source(&[7; 20_000], 5);
    place.lengths();
    assert!(!place.lengths().1);
}

#[test]
fn without_a_folder_there_is_one_warning() {
    let mut place = Place::new();
    place.config.folder = None;
    let (found, was_read, trouble) = place.lengths();
    assert!(found == lens() && was_read && trouble.unwrap().contains("--cache-dir"));
    place.config.min_rows = 11;
    assert_eq!(place.lengths(), (lens(), true, None), "nothing would have been kept");
}

#[test]
fn a_folder_that_cannot_be_written_is_a_warning() {
    let mut place = Place::new();
    let file = place.dir.path().join("file");
    fs::write(&file, "").unwrap();
    for folder in [file.join("below"), file, PathBuf::from("/proc/nothing/here")] {
        place.config.folder = Some(folder);
        let (found, was_read, trouble) = place.lengths();
        assert!(found == lens() && was_read);
        let trouble = trouble.unwrap();
        assert!(trouble.contains("cannot be"), "{trouble}");
    }
}

#[test]
fn old_entries_make_room_for_new_ones() {
    let mut place = Place::new();
    // An entry is charged with 64 KiB and what it holds.
    let piece = |i: u32| move || RowLengths::new(vec![i; 100_000]).unwrap();
    place.config.max_bytes = 900_000;
    for i in 0..3 {
        place.ask(&i.to_string(), piece(i));
        std::thread::sleep(Duration::from_millis(20));
    }
    place.ask("0", piece(0)); // used again, so that 1 is the oldest
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(place.entries().len(), 3);
    place.ask("3", piece(3));
    assert_eq!(place.entries().len(), 3);
    let is_there = |i: u32| !place.ask(&i.to_string(), piece(i)).1;
    assert!(is_there(0) && is_there(2) && is_there(3));
    assert!(!is_there(1));
    place.config.max_bytes = 100_000;
    let (_, _, trouble) = place.ask("large", piece(9));
    assert!(trouble.unwrap().contains("more than may be used"));
}

#[test]
fn what_others_left_is_not_touched() {
    let place = Place::new();
    place.lengths();
    let folder = place.config.folder.clone().unwrap();
    fs::write(folder.join("notes.txt"), "mine").unwrap();
    let old = folder.join("x.1-0.tmp");
    fs::write(&old, "").unwrap();
    fs::write(folder.join("x.1-1.tmp"), "").unwrap();
    let past = SystemTime::now() - Duration::from_secs(48 * 3600);
    File::options().write(true).open(&old).unwrap().set_modified(past).unwrap();
    place.ask("other", Strings::default);
    let names: Vec<_> = place.entries().iter().map(|p| p.file_name().unwrap().to_owned()).collect();
    assert!(names.iter().any(|n| n == "notes.txt") && names.iter().any(|n| n == "x.1-1.tmp"));
    assert!(!old.exists(), "left behind by a process that died");
}

#[test]
fn only_the_user_can_read_entries() {
    let place = Place::new();
    place.lengths();
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&place.entries()[0]), 0o600);
    assert_eq!(mode(place.config.folder.as_ref().unwrap()), 0o700);
}

#[test]
fn two_may_write_at_once() {
    let place = Place::new();
    let barrier = Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let cache = SourceCache::new(&place.config, &SourceFile::open(&place.source()).unwrap());
                for round in 0..20 {
                    barrier.wait();
                    let read = || -> Result<RowLengths, ()> { Ok(RowLengths::new(vec![round; 5000]).unwrap()) };
                    let found = cache.rows(&round.to_string(), 5000, read).unwrap();
                    assert_eq!((found.n_rows(), found.len(4999)), (5000, round));
                    assert_eq!(cache.trouble(), None);
                }
            });
        }
    });
    assert_eq!(place.entries().len(), 20, "nothing unfinished is left");
}

#[test]
fn a_mapped_piece_outlives_its_entry() {
    let place = Place::new();
    place.lengths();
    let (found, was_read, _) = place.ask::<RowLengths>("lengths", || panic!("is there"));
    fs::remove_dir_all(place.config.folder.as_ref().unwrap()).unwrap();
    assert!(!was_read && (0..found.n_rows()).map(|row| found.len(row)).eq(lens()));
}

#[test]
fn the_default_folder_is_that_of_the_user() {
    let folder = |xdg: Option<&str>, home: Option<&str>| default_folder(xdg.map(Path::new), home.map(Path::new));
    assert_eq!(folder(Some("/x"), Some("/h")), Some("/x/shufflefs".into()));
    assert_eq!(folder(Some("x"), Some("/h")), Some("/h/.cache/shufflefs".into()));
    assert_eq!(folder(Some(""), Some("/h")), Some("/h/.cache/shufflefs".into()));
    assert_eq!(folder(None, Some("")), None);
    assert_eq!(folder(None, None), None);
}
