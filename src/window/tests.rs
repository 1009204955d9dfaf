//! The engine over a store in memory.

mod fake_store;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::*;
use crate::batch::safetensors::Safetensors;
use crate::batch::{BatchSpec, Encoder};
use crate::order::{Blocks, Order, OrderConfig, Share, SourceRows, Tail};
use crate::store::Store;
use fake_store::FakeStore;

/// A rig: 500 rows in batches of 8, 6 batches a window.
struct Rig {
    store: Arc<FakeStore>,
    order: Arc<Order>,
    engine: Engine,
}

fn rig(store: FakeStore, image_bytes: u64, threads: usize) -> Rig {
    rig_with(store, image_bytes, threads, Duration::from_secs(20))
}

fn rig_with(store: FakeStore, image_bytes: u64, threads: usize, timeout: Duration) -> Rig {
    rig_keeping(store, image_bytes, threads, timeout, false)
}

fn rig_keeping(store: FakeStore, image_bytes: u64, threads: usize, timeout: Duration, keep_chunks: bool) -> Rig {
    rig_reading(store, image_bytes, [threads, 2, 2], timeout, keep_chunks)
}

fn rig_reading(
    store: FakeStore,
    image_bytes: u64,
    [threads, io_depth, read_ahead]: [usize; 3],
    timeout: Duration,
    keep_chunks: bool,
) -> Rig {
    let n_rows = store.schema.n_rows;
    let blocks = Blocks::fixed(5, &[SourceRows { rows: 0..n_rows, first_rows: None, x_bytes: 0 }]).unwrap();
    let config = OrderConfig { n_rows, blocks, batch_size: 8, fetch_factor: 6, seed: 1, tail: Tail::Keep };
    let order = Arc::new(Order::new(config).unwrap());
    let store = Arc::new(store);
    let spec = BatchSpec { schema: Arc::new(store.schema.clone()), dense: false, seed: 1, fingerprint: "f".into() };
    let encoder = Arc::new(Safetensors::new(spec).unwrap());
    let config = EngineConfig {
        image_bytes,
        threads,
        io_depth,
        read_ahead,
        timeout,
        world_size: None,
        populate_bytes: image_bytes,
        populate_within: Duration::ZERO,
        keep_chunks,
    };
    let engine =
        Engine::start(Arc::clone(&store) as Arc<dyn Store>, Arc::clone(&order), encoder as Arc<dyn Encoder>, config);
    Rig { store, order, engine: engine.unwrap() }
}

fn id(pass: Pass, batch: u64) -> BatchId {
    BatchId { pass, batch }
}

const EPOCH: Pass = Pass::Epoch(0);

/// Compares a batch file with what its rows hold.
fn check(rig: &Rig, id: BatchId, image: &Image) {
    assert_eq!(image.bytes().len() as u64, rig.engine.size_bytes(id), "{id:?}");
    let t = safetensors::SafeTensors::deserialize(image.bytes()).unwrap();
    let ints = |name: &str, width: usize| -> Vec<u64> {
        let tensor = t.tensor(name).unwrap();
        let words = tensor.data().chunks_exact(width);
        words.map(|w| w.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte))).collect()
    };
    let (data, indices, indptr) = (ints("X.data", 4), ints("X.indices", 4), ints("X.indptr", 4));
    let rows = ints("row", 8);
    assert_eq!(rows, rig.order.batch_rows(id.pass, id.batch));
    for (i, &row) in rows.iter().enumerate() {
        let range = indptr[i] as usize..indptr[i + 1] as usize;
        assert_eq!(range.len(), rig.store.rows.len(row as usize) as usize);
        for (k, at) in range.enumerate() {
            assert_eq!((data[at], indices[at]), (row * 100 + k as u64, k as u64), "{id:?} row {row}");
        }
    }
}

fn read_epoch(rig: &Rig, pass: Pass) {
    let mut seen = HashSet::new();
    for batch in 0..rig.order.n_batches(pass) {
        let image = rig.engine.open_blocking(id(pass, batch)).unwrap();
        check(rig, id(pass, batch), &image);
        seen.extend(rig.order.batch_rows(pass, batch));
    }
    assert_eq!(seen.len() as u64, rig.store.schema.n_rows);
}

#[test]
fn an_epoch_comes_out_whatever_the_chunks_memory_and_threads() {
    for filtered in [false, true] {
        for chunk in [1, 7, 64, 100_000] {
            for (memory, threads) in [(1 << 20, 2), (9 * 4096, 1), (3 * 4096, 4)] {
                let rig = rig(FakeStore::new(500, chunk, filtered), memory, threads);
                read_epoch(&rig, EPOCH);
                read_epoch(&rig, Pass::InOrder);
                assert!(rig.engine.image_memory().1 <= memory);
            }
        }
    }
}

#[test]
fn each_chunk_of_a_window_is_decoded_once() {
    let rig = rig(FakeStore::new(500, 64, true), 1 << 20, 2);
    let image = rig.engine.open_blocking(id(EPOCH, 0)).unwrap();
    drop(image);
    rig.engine.wait_idle();
    let rows = rig.order.window_rows(EPOCH, 0).into_iter().chain(rig.order.window_rows(EPOCH, 1));
    let values: u64 = rows.map(|r| u64::from(rig.store.rows.len(r as usize))).sum();
    let chunks = |window| {
        let rows = rig.order.window_rows(EPOCH, window);
        rows.iter().flat_map(|&r| rig.store.rows.range(r as usize)).map(|at| at / 64).collect::<HashSet<_>>().len()
            as u64
    };
    let counters = rig.engine.counters();
    // The window that was asked for, and the one after it; two parts each.
    assert_eq!(counters.chunks, 2 * (chunks(0) + chunks(1)));
    assert_eq!(counters.bytes_copied, values * 8, "one copy per value");
    assert_eq!((counters.plans, counters.batches), (2, 12));
}

#[test]
fn with_room_for_one_window_and_a_half_no_chunk_is_decoded_twice() {
    let chunks_of = |rig: &Rig, pass, window| {
        let rows = rig.order.window_rows(pass, window);
        rows.iter().flat_map(|&r| rig.store.rows.range(r as usize)).map(|at| at / 64).collect::<HashSet<_>>().len()
    };
    // A window has six batches of two pages.
    let rig = rig(FakeStore::new(500, 64, true), 18 * 4096, 2);
    let n = rig.order.n_batches(EPOCH);
    for batch in 0..n {
        check(&rig, id(EPOCH, batch), &rig.engine.open_blocking(id(EPOCH, batch)).unwrap());
        rig.engine.wait_idle();
    }
    let windows = (0..rig.order.n_windows(EPOCH)).map(|window| (EPOCH, window)).chain([(Pass::Epoch(1), 0)]);
    let once: usize = windows.map(|(pass, window)| chunks_of(&rig, pass, window)).sum();
    // Batches differ in length, so that one may be left over; assembled in two parts, windows cost half as much again.
    let decoded = rig.engine.counters().chunks;
    assert!(decoded <= 2 * once as u64 * 11 / 10, "{decoded} instead of twice {once}");
}

#[test]
fn an_isolated_open_costs_its_own_batch() {
    let rig = rig(FakeStore::new(500, 64, true), 1 << 20, 2);
    check(&rig, id(EPOCH, 20), &rig.engine.open_blocking(id(EPOCH, 20)).unwrap());
    rig.engine.wait_idle();
    let counters = rig.engine.counters();
    assert_eq!((counters.batches, counters.opens_isolated), (1, 1));
    // Its neighbour makes it a stream: the window, and the next one.
    rig.engine.open_blocking(id(EPOCH, 21)).unwrap();
    rig.engine.wait_idle();
    assert_eq!(rig.engine.counters().batches, 12);
}

#[test]
fn the_next_window_and_the_next_epoch_are_there_before_they_are_opened() {
    let rig = rig(FakeStore::new(500, 64, false), 1 << 20, 2);
    let n = rig.order.n_batches(EPOCH);
    for batch in 0..n {
        rig.engine.open_blocking(id(EPOCH, batch)).unwrap();
        rig.engine.wait_idle();
    }
    rig.engine.open_blocking(id(Pass::Epoch(1), 0)).unwrap();
    let counters = rig.engine.counters();
    assert_eq!((counters.opens, counters.opens_ready), (n + 1, n), "only the very first waited");
}

#[test]
fn an_epoch_that_nobody_reads_yet_leaves_a_worker_free() {
    let mut store = FakeStore::new(200_000, 64, true);
    store.delay = Duration::from_millis(3);
    // Nothing is read ahead, so reads under way are workers.
    let rig = rig_reading(store, 1 << 20, [3, 16, 0], Duration::from_secs(20), false);
    let most = &rig.store.reading[1];
    let last = rig.order.window_batches(EPOCH, rig.order.n_windows(EPOCH) - 1);
    for batch in last {
        rig.engine.open_blocking(id(EPOCH, batch)).unwrap();
    }
    assert_eq!(most.swap(0, Ordering::Relaxed), 3, "all workers for a reader that waits");
    rig.engine.wait_idle();
    assert!(most.swap(0, Ordering::Relaxed) <= 2);
    let next = Pass::Epoch(1);
    let opens_ready = rig.engine.counters().opens_ready;
    rig.engine.open_blocking(id(next, 0)).unwrap();
    assert_eq!(rig.engine.counters().opens_ready, opens_ready + 1);
    // Now somebody does.
    rig.engine.wait_idle();
    assert_eq!(most.load(Ordering::Relaxed), 3);
}

#[test]
fn a_host_assembles_its_own_share_only() {
    let rig = rig(FakeStore::new(500, 64, true), 1 << 20, 2);
    rig.engine.expect_hosts(3, RankPolicy::Drop);
    // 62 full batches: three windows of six for each host, and from batch 54 on two in a row.
    let share = Share::new(Some((2, 3)), None).unwrap();
    let list: Vec<u64> = (0..rig.order.share_len(EPOCH, share, RankPolicy::Drop))
        .map(|i| rig.order.share_batch(EPOCH, share, RankPolicy::Drop, i))
        .collect();
    assert_eq!(list[17..], [53, 58, 59]);
    for (i, &batch) in list.iter().enumerate() {
        rig.engine.open_blocking(id(EPOCH, batch)).unwrap();
        rig.engine.wait_idle();
        assert_eq!(rig.engine.counters().opens_ready, i as u64, "only the very first waited");
    }
    // Its list, and the window that its next epoch begins with.
    assert_eq!(rig.engine.counters().batches, 20 + 6);
    rig.engine.open_blocking(id(Pass::Epoch(1), 12)).unwrap();
    assert_eq!(rig.engine.counters().opens_ready, 20);
}

#[test]
fn one_bad_chunk_fails_the_batches_that_need_it_and_no_other() {
    let store = FakeStore::new(500, 64, true);
    store.bad_byte.store(64 * 4 * 5 + 8, Ordering::Relaxed);
    let rig = rig(store, 1 << 20, 2);
    let mut failed = 0;
    for batch in 0..rig.order.n_batches(EPOCH) {
        let rows = rig.order.batch_rows(EPOCH, batch);
        let needs = rows.iter().flat_map(|&r| rig.store.rows.range(r as usize)).any(|at| at / 64 == 5);
        match rig.engine.open_blocking(id(EPOCH, batch)) {
            Ok(image) => {
                assert!(!needs, "batch {batch}");
                check(&rig, id(EPOCH, batch), &image);
            }
            Err(error) => {
                // The chunk may be read as a prefix that ends before the bad byte.
                assert!(needs, "batch {batch}: {error}");
                assert!(error.to_string().contains("injected"), "{error}");
                failed += 1;
            }
        }
    }
    assert!(failed > 0);
    assert_eq!(rig.engine.failures().len(), failed);
    // And when the source is whole again, so are the batches.
    rig.store.bad_byte.store(-1, Ordering::Relaxed);
    read_epoch(&rig, EPOCH);
}

#[test]
fn an_index_out_of_range_fails_the_batch_of_its_row_only() {
    let store = FakeStore::new(500, 64, false);
    store.bad_index_row.store(123, Ordering::Relaxed);
    let rig = rig(store, 1 << 20, 2);
    for batch in 0..rig.order.n_batches(EPOCH) {
        let holds = rig.order.batch_rows(EPOCH, batch).contains(&123);
        match rig.engine.open_blocking(id(EPOCH, batch)) {
            Ok(_) => assert!(!holds),
            Err(error) => {
                assert!(holds);
                let text = error.to_string();
                assert!(text.contains("row 123") && text.contains("column index 50"), "{text}");
            }
        }
    }
}

#[test]
fn a_changed_source_is_stale_and_nothing_of_it_is_served() {
    let rig = rig(FakeStore::new(500, 64, false), 1 << 20, 2);
    rig.store.stale.store(true, Ordering::Relaxed);
    let error = rig.engine.open_blocking(id(EPOCH, 0)).err().unwrap();
    assert!(matches!(error, BatchError::Read(ReadError::Stale { .. })), "{error}");
}

#[test]
fn a_panic_costs_its_batches_and_not_the_engine() {
    let rig = rig(FakeStore::new(500, 64, false), 1 << 20, 2);
    rig.store.panic_on_read.store(true, Ordering::Relaxed);
    let error = rig.engine.open_blocking(id(EPOCH, 0)).err().unwrap();
    assert!(matches!(error, BatchError::Internal { .. }), "{error}");
    // What was assembled ahead fails as well.
    rig.engine.wait_idle();
    rig.store.panic_on_read.store(false, Ordering::Relaxed);
    read_epoch(&rig, EPOCH);
}

#[test]
fn no_more_reads_are_under_way_than_the_depth() {
    for (threads, io_depth, delay_ms) in [(4, 1, 2), (8, 2, 2), (8, 2, 0)] {
        let mut store = FakeStore::new(500, 64, false);
        store.delay = Duration::from_millis(delay_ms);
        let rig = rig_reading(store, 1 << 20, [threads, io_depth, io_depth], Duration::from_secs(20), false);
        read_epoch(&rig, EPOCH);
        assert!(rig.store.reading[1].load(Ordering::Relaxed) as usize <= io_depth);
    }
}

#[test]
fn a_defect_while_reading_ahead_costs_its_batches_and_no_thread() {
    let mut store = FakeStore::new(500, 64, true);
    store.delay = Duration::from_millis(2);
    let rig = rig_reading(store, 1 << 20, [1, 1, 1], Duration::from_secs(20), false);
    // Reads are known to be slow by then.
    read_epoch(&rig, EPOCH);
    rig.store.panic_on_read.store(true, Ordering::Relaxed);
    for batch in 0..12 {
        assert!(rig.engine.open_blocking(id(Pass::Epoch(7), batch)).is_err());
    }
    rig.engine.wait_idle();
    rig.store.panic_on_read.store(false, Ordering::Relaxed);
    read_epoch(&rig, Pass::Epoch(7));
}

#[test]
fn readers_that_hold_all_memory_make_others_wait_and_then_fail_in_time() {
    let rig = rig_with(FakeStore::new(500, 64, false), 4 * 8192, 2, Duration::from_millis(300));
    let mut held = Vec::new();
    let error = (0..20)
        .find_map(|batch| match rig.engine.open_blocking(id(EPOCH, batch)) {
            Ok(image) => {
                held.push(image);
                None
            }
            Err(error) => Some(error),
        })
        .unwrap();
    assert!(matches!(error, BatchError::NoMemory { .. }), "{error}");
    held.clear();
    read_epoch(&rig, EPOCH);
}

#[test]
fn a_waiting_open_goes_on_when_a_reader_closes() {
    let rig = rig(FakeStore::new(500, 64, false), 4 * 8192, 2);
    let mut held: Vec<Image> = (0..3).map(|batch| rig.engine.open_blocking(id(EPOCH, batch)).unwrap()).collect();
    let (send, receive) = std::sync::mpsc::channel();
    for batch in 10..14 {
        let send = send.clone();
        rig.engine.open(id(EPOCH, batch), Box::new(move |result| send.send((batch, result)).unwrap()));
    }
    std::thread::sleep(Duration::from_millis(50));
    held.clear();
    for _ in 0..4 {
        let (batch, result) = receive.recv_timeout(Duration::from_secs(10)).unwrap();
        check(&rig, id(EPOCH, batch), &result.unwrap());
    }
}

#[test]
fn many_readers_at_once_in_little_memory_all_get_their_batches() {
    let rig = rig(FakeStore::new(500, 64, true), 12 * 4096, 2);
    let n = rig.order.n_batches(EPOCH);
    std::thread::scope(|scope| {
        for rank in 0..8 {
            let rig = &rig;
            scope.spawn(move || {
                for batch in (rank..n).step_by(8) {
                    check(rig, id(EPOCH, batch), &rig.engine.open_blocking(id(EPOCH, batch)).unwrap());
                }
            });
        }
    });
}

#[test]
fn a_dataset_that_fits_is_decoded_once() {
    for chunk in [7, 64, 100_000] {
        let rig = rig_keeping(FakeStore::new(500, chunk, true), 1 << 20, 2, Duration::from_secs(20), true);
        read_epoch(&rig, EPOCH);
        read_epoch(&rig, Pass::InOrder);
        read_epoch(&rig, Pass::Epoch(1));
        rig.engine.wait_idle();
        let counters = rig.engine.counters();
        // Two windows may decode a chunk at the same time, and no more than that.
        let n_chunks = 2 * rig.store.n_chunks(0);
        assert!((n_chunks..=2 * n_chunks).contains(&counters.chunks), "{} of {n_chunks}", counters.chunks);
        assert!(counters.chunks_kept > counters.chunks);
        // What is kept is not served for a source that changed.
        rig.store.stale.store(true, Ordering::Relaxed);
        let error = rig.engine.open_blocking(id(Pass::Epoch(9), 0)).err().unwrap();
        assert!(matches!(error, BatchError::Read(ReadError::Stale { .. })), "{error}");
    }
}

#[test]
fn slow_reads_are_done_ahead_and_several_at_a_time() {
    let mut store = FakeStore::new(500, 64, false);
    store.delay = Duration::from_millis(4);
    let rig = rig(store, 1 << 20, 1);
    read_epoch(&rig, EPOCH);
    // One worker and two I/O threads, but a depth of two.
    assert_eq!(rig.store.reading[1].load(Ordering::Relaxed), 2, "reads were under way at one time");
    assert!(rig.engine.counters().hints > 0);
    // The last hint is of the last window: it names every byte that its rows need.
    let hinted = std::mem::take(&mut *rig.store.hinted.lock());
    for row in rig.order.window_rows(EPOCH, rig.order.n_windows(EPOCH) - 1) {
        for (part, at) in
            [0, 1].into_iter().flat_map(|part| rig.store.rows.range(row as usize).map(move |at| (part, at)))
        {
            let is_named =
                |&(file, offset, len): &(u32, u64, u64)| file == part && (offset..offset + len).contains(&(at * 4));
            assert!(hinted.iter().any(is_named), "row {row}, value {at} of part {part}");
        }
    }
}

#[test]
fn fast_reads_are_not_hinted() {
    let rig = rig(FakeStore::new(500, 64, false), 1 << 20, 1);
    read_epoch(&rig, EPOCH);
    assert_eq!((rig.engine.counters().hints, rig.store.hinted.lock().len()), (0, 0));
}

#[test]
fn ending_answers_who_waits() {
    let mut store = FakeStore::new(500, 64, false);
    store.delay = Duration::from_millis(50);
    let rig = rig(store, 1 << 20, 1);
    let (send, receive) = std::sync::mpsc::channel();
    rig.engine.open(id(EPOCH, 0), Box::new(move |result| send.send(result.err()).unwrap()));
    drop(rig.engine);
    assert!(matches!(receive.recv().unwrap(), None | Some(BatchError::ShuttingDown)));
}
