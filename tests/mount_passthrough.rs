//! Real mounts with `--io passthrough`: what the kernel serves by itself, and what the daemon still has to do.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use memmap2::{Mmap, MmapOptions};
use nix::sys::signal::Signal;
use support::{
    BAD_EPOCH, BLOCKED, CORRUPT, OPTIONS, Options, Place, STALE, batch_name, bytes_of, client, size_of, wait_for,
};

const PASSTHROUGH: Options = Options { io: "passthrough", ..OPTIONS };

#[test]
#[ignore = "the process that the other tests mount with"]
fn helper() {
    support::helper();
}

/// `None`, with a loud message, without root or before Linux 6.9; under CI with both, a failure.
fn mounted(options: Options) -> Option<Place> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if !nix::unistd::geteuid().is_root() || version < (6, 9) {
        eprintln!("SKIPPED: passthrough needs root and Linux 6.9, this is {release}");
        return None;
    }
    Place::mounted(options)
}

fn path_of(place: &Place, batch: u64) -> PathBuf {
    place.mnt().join("epoch-00001").join(batch_name(batch))
}

/// SAFETY of all mappings here: a mounted batch never changes.
#[allow(unsafe_code)]
fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: see above.
    unsafe { Mmap::map(file) }
}

#[allow(unsafe_code)]
fn map_privately(file: &File) -> std::io::Result<memmap2::MmapMut> {
    // SAFETY: see above.
    unsafe { MmapOptions::new().map_copy(file) }
}

#[test]
fn no_read_reaches_the_daemon_and_files_are_shared_and_kept() {
    let Some(place) = mounted(PASSTHROUGH) else { return };
    let small_and_large = [6, 7];
    for batch in small_and_large {
        let whole = bytes_of(batch);
        let file = File::open(path_of(&place, batch)).unwrap();
        assert!(fs::read(path_of(&place, batch)).unwrap() == whole);
        // The same batch by another name, while the first is open.
        let rank = place.mnt().join(format!("epoch-00001/rank-{}-of-4", batch % 4)).join(batch_name(batch));
        assert!(fs::read(rank).unwrap() == whole);
        let mut part = vec![0; 1000];
        file.read_exact_at(&mut part, 4090).unwrap();
        assert!(part == whole[4090..5090]);
        let (shared, private) = (map(&file).unwrap(), map_privately(&file).unwrap());
        drop(file);
        assert!(shared[..] == whole && private[..] == whole);
    }
    wait_for(|| (place.status("/io/backing/files_open") == 0).then_some(()));
    // The images went back to the engine.
    assert_eq!(place.status("/images"), 0);
    for _ in 0..3 {
        assert!(small_and_large.into_iter().all(|batch| fs::read(path_of(&place, batch)).unwrap() == bytes_of(batch)));
    }
    assert_eq!((place.status("/opens"), place.status("/io/backing/opens_filled")), (2, 2));
    assert_eq!(place.status("/io/backing/opens_shared"), 2 * (2 + 3));
    assert_eq!((place.status("/io/backing/files"), place.status("/io/backing/opens_direct")), (2, 0));
    // All reads that the daemon ever saw were those of `status.json`.
    let before = place.status("/io/reads");
    assert!(fs::read(path_of(&place, 6)).unwrap() == bytes_of(6));
    let after = place.status("/io/reads");
    let per_status = place.status("/io/reads") - after;
    assert_eq!(after - before, per_status);
    assert!(place.file("log").contains("batches served passthrough (asked for)"), "{}", place.file("log"));
}

#[test]
fn nothing_shows_in_a_mount_table() {
    // A size that nothing else has.
    let Some(place) = mounted(Options { backing_bytes: 63_487 << 10, ..PASSTHROUGH }) else { return };
    let _held = File::open(path_of(&place, 6)).unwrap();
    assert_eq!(place.status("/io/backing/files"), 1);
    let pid = place.child.as_ref().unwrap().id();
    for table in ["/proc/self/mountinfo".to_owned(), format!("/proc/{pid}/mountinfo")] {
        let lines = fs::read_to_string(table).unwrap();
        assert!(lines.contains(place.mnt().to_str().unwrap()));
        // How a mount of that size is shown: in kilobytes, or rounded up to pages.
        assert!(!lines.contains("size=6348"), "{lines}");
    }
}

/// Room for two large files.
const TWO: Options = Options { backing_bytes: 700_000, ..PASSTHROUGH };

#[test]
fn mappings_stay_while_their_files_are_given_up() {
    let Some(place) = mounted(TWO) else { return };
    let mappings: Vec<_> = (0..10)
        .map(|i| {
            let file = File::open(path_of(&place, 2 * i)).unwrap();
            (2 * i, map(&file).unwrap(), map_privately(&file).unwrap())
        })
        .collect();
    for batch in [30, 31, 32] {
        assert!(fs::read(path_of(&place, batch)).unwrap() == bytes_of(batch));
    }
    for (batch, shared, private) in &mappings {
        assert!(shared[..] == bytes_of(*batch) && private[..] == bytes_of(*batch), "batch {batch}");
    }
    // Two have files, whose pages count though they are closed; the others were answered directly.
    assert!(place.status("/io/backing/opens_direct") >= 8);
    assert!(place.status("/io/backing/used_bytes") > 600_000);
    assert!(place.status("/io/backing/used_bytes") <= place.status("/io/backing/limit_bytes") + 4095);
    drop(mappings);
    // The room is there again.
    wait_for(|| (place.status("/io/backing/files_open") == 0).then_some(()));
    let filled = place.status("/io/backing/opens_filled");
    assert!(fs::read(path_of(&place, 40)).unwrap() == bytes_of(40));
    assert_eq!(place.status("/io/backing/opens_filled"), filled + 1);
}

#[test]
fn the_least_recently_used_file_is_given_up() {
    let Some(place) = mounted(TWO) else { return };
    let read = |batch| assert!(fs::read(path_of(&place, batch)).unwrap() == bytes_of(batch));
    let closed = || wait_for(|| (place.status("/io/backing/files_open") == 0).then_some(()));
    for batch in [0, 2, 0, 4] {
        read(batch);
        closed();
    }
    assert_eq!((place.status("/opens"), place.status("/io/backing/evicted")), (3, 1));
    read(0);
    assert_eq!(place.status("/opens"), 3);
    closed();
    read(2);
    assert_eq!(place.status("/opens"), 4);
    assert_eq!(place.status("/io/backing/opens_direct"), 0);
}

#[test]
fn a_batch_that_is_open_directly_stays_so_and_can_be_mapped() {
    let Some(place) = mounted(TWO) else { return };
    let holders: Vec<_> = [0, 2].map(|batch| File::open(path_of(&place, batch)).unwrap()).into();
    let direct = File::open(path_of(&place, 4)).unwrap();
    assert_eq!(place.status("/io/backing/opens_direct"), 1);
    let mapped = map(&direct).unwrap();
    drop(holders);
    wait_for(|| (place.status("/io/backing/files_open") == 0).then_some(()));
    // There is room now, but a passthrough open beside a direct mapping would be EIO, and a mapping of the direct file beside a
    // passthrough open would be ENODEV.
    let again = File::open(path_of(&place, 4)).unwrap();
    assert_eq!(place.status("/io/backing/opens_direct"), 2);
    let both = (map(&again).unwrap(), map_privately(&direct).unwrap());
    assert!(mapped[..] == bytes_of(4) && both.0[..] == bytes_of(4) && both.1[..] == bytes_of(4));
    drop((mapped, both, direct, again));
    wait_for(|| {
        drop(File::open(path_of(&place, 4)).unwrap());
        (place.status("/io/backing/opens_filled") == 3).then_some(())
    });
}

#[test]
fn many_opens_of_the_same_and_of_other_batches_in_little_memory() {
    let Some(place) = mounted(TWO) else { return };
    let threads: Vec<_> = (0..8_u64)
        .map(|thread| {
            let paths: Vec<_> = (0..12).map(|batch| (batch, path_of(&place, batch))).collect();
            std::thread::spawn(move || {
                for round in 0..60 {
                    let (batch, path) = &paths[((thread * round / 3 + round) % 12) as usize];
                    let file = File::open(path).unwrap();
                    let mapped = if round % 2 == 0 { map(&file) } else { map(&File::open(path).unwrap()) }.unwrap();
                    let mut bytes = vec![0; size_of(*batch) as usize];
                    file.read_exact_at(&mut bytes, 0).unwrap();
                    assert!(bytes == mapped[..] && bytes == bytes_of(*batch), "batch {batch}");
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(place.status("/io/backing/evicted") > 0);
    assert!(place.status("/io/backing/used_bytes") <= place.status("/io/backing/limit_bytes") + 4095);
}

#[test]
fn two_processes_open_one_batch_at_once() {
    let Some(place) = mounted(PASSTHROUGH) else { return };
    let blocked = place.mnt().join(BAD_EPOCH).join(batch_name(BLOCKED));
    let clients: Vec<_> = (0..2)
        .map(|_| {
            let path = blocked.to_str().unwrap().to_owned();
            std::thread::spawn(move || client("cat", &[&path]).stdout == bytes_of(BLOCKED))
        })
        .collect();
    wait_for(|| (place.status("/opens") == 1).then_some(()));
    fs::write(place.dir.path().join("go"), "").unwrap();
    assert!(clients.into_iter().all(|client| client.join().unwrap()));
    assert_eq!((place.status("/opens"), place.status("/io/backing/opens_shared")), (1, 1));
}

#[test]
fn failures_are_told_to_all_who_wait() {
    let Some(place) = mounted(PASSTHROUGH) else { return };
    for (batch, errno) in
        [(CORRUPT, libc::EIO), (STALE, libc::ESTALE), (support::PANICS, libc::EIO), (support::DROPPED, libc::EIO)]
    {
        for _ in 0..2 {
            let error = File::open(place.mnt().join(BAD_EPOCH).join(batch_name(batch))).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(errno), "batch {batch}");
        }
    }
    assert_eq!(place.status("/io/backing/files"), 0);
    assert!(fs::read(path_of(&place, 6)).unwrap() == bytes_of(6));
}

#[test]
fn open_files_outlive_the_daemon() {
    let Some(mut place) = mounted(PASSTHROUGH) else { return };
    let file = File::open(path_of(&place, 8)).unwrap();
    let mapped = map(&file).unwrap();
    place.kill(Signal::SIGKILL);
    place.ended();
    let mut bytes = vec![0; size_of(8) as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == bytes_of(8) && mapped[..] == bytes_of(8));
    assert_eq!(File::open(path_of(&place, 9)).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    place.mount(PASSTHROUGH);
    assert!(fs::read(path_of(&place, 9)).unwrap() == bytes_of(9) && mapped[..] == bytes_of(8));
}
