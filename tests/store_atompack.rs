//! Records through the engine: reads that fail, threads and memory that differ, and what the index costs.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use shufflefs::batch::molecules::flat::Flat;
use shufflefs::batch::{Encoder, MoleculeSpec};
use shufflefs::dtype::DType;
use shufflefs::order::{Blocks, Order, OrderConfig, Pass, SourceRows, Tail};
use shufflefs::store::atompack::header::{RecordCodec, Slot};
use shufflefs::store::atompack::index::{IndexBuilder, IndexEntry};
use shufflefs::store::atompack::schema::{FileSchema, Scope, Section, Tag};
use shufflefs::store::atompack::{AtompackStore, FieldsChoice, Serve};
use shufflefs::store::cache::CacheConfig;
use shufflefs::store::fault::{Fault, FaultyStore};
use shufflefs::store::{Extent, PartRole, RecordBuffers, RecordSink, Store, StoredRecord};
use shufflefs::window::{BatchError, BatchId, Batches as _, Engine, EngineConfig};

const N: u32 = 600;

fn slot(codec: RecordCodec) -> Slot {
    Slot {
        generation: 1,
        data_start: 8192,
        index_offset: 0,
        index_len: 8 + 20 * u64::from(N),
        n_molecules: u64::from(N),
        codec,
        level: 0,
        record_format: 2,
        schema_offset: 0,
        schema_len: 0,
    }
}

/// A file of molecules of 0 to 6 atoms, each second one with an energy. Every seventh record has a gap behind it.
fn write_file(folder: &tempfile::TempDir) -> PathBuf {
    write_molecules(folder, RecordCodec::None, 0)
}

/// As [`write_file`], with so many more atoms in each molecule, and compressed.
fn write_molecules(folder: &tempfile::TempDir, codec: RecordCodec, more_atoms: u32) -> PathBuf {
    let energy = Section::new(Scope::BuiltIn, "energy", Tag::new(0).unwrap(), 8).unwrap();
    let schema = FileSchema { positions: Some(DType::F32), sections: vec![energy] }.encode();
    let (mut body, mut index) = (Vec::new(), u64::from(N).to_le_bytes().to_vec());
    for row in 0..N {
        let n_atoms = row % 7 + more_atoms;
        let mut record = n_atoms.to_le_bytes().to_vec();
        record.extend((0..3 * n_atoms).flat_map(|i| (row as f32 * 1.37 + i as f32 / 7.0).to_le_bytes()));
        record.extend((0..n_atoms).map(|i| i as u8 + 1));
        record.extend((row % 2).to_le_bytes().get(..2).unwrap());
        if row % 2 == 1 {
            record.extend([0, 6]);
            record.extend(b"energy");
            record.push(0);
            record.extend(8_u32.to_le_bytes());
            record.extend(f64::from(row).to_le_bytes());
        }
        let raw_size = u32::try_from(record.len()).unwrap();
        if codec == RecordCodec::Zstd {
            record = zstd::bulk::compress(&record, 3).unwrap();
        }
        let stored_size = u32::try_from(record.len()).unwrap();
        let offset = 8192 + body.len() as u64;
        index.extend(IndexEntry { offset, stored_size, raw_size, n_atoms }.encode());
        body.extend(record);
        body.extend(vec![0xee; if row % 7 == 0 { 100_000 } else { 0 }]);
    }
    let schema_offset = 8192 + body.len() as u64;
    let schema_len = schema.len() as u64;
    let slot = Slot { schema_offset, schema_len, index_offset: schema_offset + schema_len, ..slot(codec) };
    let path = folder.path().join(format!("{}.atp", codec.name()));
    std::fs::write(&path, [&slot.encode()[..], &slot.encode(), &body, &schema, &index].concat()).unwrap();
    path
}

fn open(path: &PathBuf) -> AtompackStore {
    let serve = Serve::Fields(FieldsChoice::All);
    AtompackStore::open(std::slice::from_ref(path), &serve, &CacheConfig::off(), &mut ()).unwrap()
}

fn order(store: &dyn Store) -> Arc<Order> {
    let rows = 0..store.schema().n_rows;
    let blocks = Blocks::fixed(8, &[SourceRows { rows, first_rows: None, x_bytes: 0 }]).unwrap();
    let config = OrderConfig {
        n_rows: store.schema().n_rows,
        blocks,
        batch_size: 32,
        fetch_factor: 4,
        seed: 1,
        tail: Tail::Keep,
    };
    Arc::new(Order::new(config).unwrap())
}

fn engine(store: Arc<dyn Store>, threads: usize, image_bytes: u64) -> Engine {
    let schema = Arc::new(store.schema().clone());
    let encoder = Flat::safetensors(MoleculeSpec { schema, seed: 1, fingerprint: "f".into() }).unwrap();
    let order = order(&*store);
    let config = EngineConfig {
        image_bytes,
        threads,
        io_depth: 2,
        read_ahead: 2,
        timeout: Duration::from_secs(20),
        world_size: None,
        populate_bytes: 0,
        populate_within: Duration::ZERO,
        keep_chunks: false,
    };
    Engine::start(store, order, Arc::new(encoder) as Arc<dyn Encoder>, config).unwrap()
}

/// The batches of two epochs and of the source order.
fn ids() -> impl Iterator<Item = BatchId> {
    let passes = [Pass::Epoch(0), Pass::Epoch(1), Pass::InOrder];
    passes.into_iter().flat_map(|pass| (0..N.div_ceil(32)).map(move |b| BatchId { pass, batch: b.into() }))
}

/// All of them.
fn read_all(engine: &Engine) -> Vec<Result<Vec<u8>, BatchError>> {
    ids()
        .map(|id| {
            let size = engine.size_bytes(id);
            let image = engine.open_blocking(id)?;
            assert_eq!(image.bytes().len() as u64, size);
            Ok(image.bytes().to_vec())
        })
        .collect()
}

/// All of them, of a file that can be read.
fn served(path: &PathBuf, threads: usize, image_bytes: u64) -> Vec<Vec<u8>> {
    read_all(&engine(Arc::new(open(path)), threads, image_bytes)).into_iter().map(Result::unwrap).collect()
}

#[test]
fn threads_and_memory_change_no_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_file(&folder);
    let expected = served(&path, 1, 64 << 20);
    assert_eq!(served(&path, 3, 64 << 20), expected);
    assert_eq!(served(&path, 2, 3 * 16384), expected, "with memory for three batches");
}

#[test]
fn failed_reads_fail_batches_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_file(&folder);
    let expected = served(&path, 1, 64 << 20);
    let mut failed_once = false;
    for at in (0..).step_by(7) {
        // Two in a row: the read of a run, and the first record that is read alone after it.
        let store = Arc::new(FaultyStore::new(Arc::new(open(&path)), at..at + 2, Fault::Fail));
        let engine = engine(Arc::clone(&store) as Arc<dyn Store>, 2, 64 << 20);
        for (got, expected) in read_all(&engine).into_iter().zip(&expected) {
            match got {
                Ok(bytes) => assert!(bytes == *expected, "other bytes after a failed read"),
                Err(error) => {
                    failed_once = true;
                    assert!(error.to_string().contains("injected fault"), "{error}");
                }
            }
        }
        if store.reads() < at + 2 {
            break;
        }
        for (got, expected) in read_all(&engine).into_iter().zip(&expected) {
            assert!(got.unwrap() == *expected, "the next read is right");
        }
    }
    assert!(failed_once);
}

/// Where a record lies: file, first byte, bytes.
fn place(store: &AtompackStore, row: u32) -> (u32, u64, u32) {
    let records = store.schema().parts.iter().position(|part| part.role == PartRole::Records).unwrap();
    let Extent::File { file, address, len, .. } = store.extent(records, row, 0..0, false) else { panic!("no record") };
    (file, address, len)
}

/// A record as the engine reads it.
fn stored(store: &AtompackStore, row: u64) -> Vec<u8> {
    let (file, address, len) = place(store, row.try_into().unwrap());
    let mut bytes = vec![0; len as usize];
    store.read_at(file, address, &mut bytes).unwrap();
    bytes
}

#[test]
fn compressed_records_are_the_same_two_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let plain = write_molecules(&folder, RecordCodec::None, 60);
    let path = write_molecules(&folder, RecordCodec::Zstd, 60);
    let store = open(&path);
    let bytes = [1, 2].map(|row| stored(&store, row));
    let [first, second] = [(1, &bytes[0]), (2, &bytes[1])].map(|(row, bytes)| StoredRecord { row, bytes });
    let alone = [first, second].map(|record| positions(&store, record, None, &mut RecordBuffers::default()));
    let buffers = &mut RecordBuffers::default();
    assert!(positions(&store, first, Some(second), buffers) == alone[0]);
    assert_eq!(buffers.next.row(), Some(2), "the next one was decoded with it");
    assert!(positions(&store, second, None, buffers) == alone[1]);
    assert!(positions(&store, first, Some(second), buffers) == alone[0]);
    assert!(positions(&store, first, None, buffers) == alone[0], "another one than was announced");
    assert_eq!(buffers.next.row(), None);
    let expected = served(&plain, 1, 64 << 20);
    assert!(served(&path, 2, 64 << 20).iter().zip(&expected).all(|(got, expected)| values(got) == values(expected)));
}

/// A batch without its header, which names the store.
fn values(batch: &[u8]) -> &[u8] {
    let (len, rest) = batch.split_first_chunk::<8>().unwrap();
    &rest[usize::try_from(u64::from_le_bytes(*len)).unwrap()..]
}

/// The positions of a record.
fn positions(
    store: &AtompackStore,
    record: StoredRecord<'_>,
    next: Option<StoredRecord<'_>>,
    buffers: &mut RecordBuffers,
) -> Vec<u8> {
    struct Positions(Vec<u8>);
    impl RecordSink for Positions {
        fn place(&mut self, column: usize) -> Option<&mut [u8]> {
            (column == 0).then_some(&mut *self.0)
        }
    }
    let mut sink = Positions(vec![0; 12 * store.row_len(0, record.row) as usize]);
    store.record(record, next, buffers, &mut sink).unwrap();
    sink.0
}

#[test]
fn bytes_that_cannot_be_read_cost_the_batches_that_hold_them() {
    let folder = tempfile::tempdir().unwrap();
    for path in [write_file(&folder), write_molecules(&folder, RecordCodec::Zstd, 60)] {
        damaged_bytes_cost_their_batches(&path);
    }
}

fn damaged_bytes_cost_their_batches(path: &PathBuf) {
    let expected = served(path, 1, 64 << 20);
    let store = open(path);
    let order = order(&store);
    for row in [3, 250, N - 1] {
        let (_, address, len) = place(&store, row);
        // Of a compressed record: its header, the table of its literals, these, and what follows them.
        for at in [1, 20, 40, 200, u64::from(len) - 2].into_iter().filter(|&at| at < u64::from(len)) {
            let faulty = FaultyStore::new(Arc::new(open(path)), 0..u64::MAX, Fault::Damaged(address + at));
            let results = read_all(&engine(Arc::new(faulty), 2, 64 << 20));
            for ((id, result), expected) in ids().zip(results).zip(&expected) {
                let is_hit = order.batch_rows(id.pass, id.batch).contains(&u64::from(row));
                match result {
                    // Values that are others but possible cannot be told from the right ones.
                    Ok(bytes) => assert!(bytes == *expected || is_hit && at > 1, "{id:?}"),
                    Err(error) => assert!(is_hit, "{id:?}: {error}"),
                }
            }
        }
    }
}

#[test]
fn no_pair_of_two_files() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["a.atp", "b.atp"].map(|name| folder.path().join(name));
    for path in &paths {
        std::fs::rename(write_molecules(&folder, RecordCodec::Zstd, 60), path).unwrap();
    }
    let serve = Serve::Fields(FieldsChoice::All);
    let store = AtompackStore::open(&paths, &serve, &CacheConfig::off(), &mut ()).unwrap();
    let rows = [u64::from(N) - 2, u64::from(N) - 1, u64::from(N), u64::from(N) + 1];
    let bytes = rows.map(|row| stored(&store, row));
    let buffers = &mut RecordBuffers::default();
    for (pair, is_of_one) in [([0, 1], true), ([1, 2], false), ([2, 3], true)] {
        let [first, second] = pair.map(|i| StoredRecord { row: rows[i], bytes: &bytes[i] });
        let alone = positions(&store, first, None, &mut RecordBuffers::default());
        assert!(positions(&store, first, Some(second), buffers) == alone);
        assert_eq!(buffers.next.row(), is_of_one.then_some(second.row));
        buffers.next.forget();
    }
}

#[test]
fn a_changed_source_is_stale() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_file(&folder);
    let engine = engine(Arc::new(open(&path)), 1, 64 << 20);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(9000).unwrap();
    for result in read_all(&engine) {
        assert!(result.unwrap_err().to_string().contains("changed since it was mounted"));
    }
}

/// 100 million molecules take 2 GB of index in the file; they may take a quarter of it in memory.
#[test]
fn the_index_takes_five_bytes_a_molecule() {
    let slot = Slot { index_offset: 1 << 40, ..slot(RecordCodec::None) };
    let mut builder = IndexBuilder::new(&slot, 4);
    let n = 200_000_u64;
    for row in 0..n {
        let entry = IndexEntry { offset: 8192 + row * 1640, stored_size: 1640, raw_size: 1640, n_atoms: 64 };
        builder.push(&entry.encode()).unwrap();
    }
    let index = builder.finish();
    assert_eq!(index.place(199_999).start, 8192 + 199_999 * 1640);
    assert!(index.resident_bytes() <= 5 * n, "{} bytes", index.resident_bytes());
}
