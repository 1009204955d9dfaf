//! Real mounts over an engine without sources: what the kernel makes of the tree.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use nix::sys::signal::Signal;
use shufflefs::mount::{self, MountError, MountState};
use support::{
    BAD_EPOCH, BLOCKED, CORRUPT, DROPPED, OPTIONS, Options, PANICS, Place, STALE, batch_name, bytes_of, client,
    is_mounted, lazy_umount, size_of, wait_for,
};

#[test]
#[ignore = "the process that the other tests mount with"]
fn helper() {
    support::helper();
}

fn errno_of<T>(result: std::io::Result<T>) -> i32 {
    result.map(drop).unwrap_err().raw_os_error().unwrap()
}

#[test]
fn batches_read_and_map_like_their_bytes() {
    for io in ["auto", "cached"] {
        let Some(place) = Place::mounted(Options { io, ..OPTIONS }) else { return };
        let epoch = place.mnt().join("epoch-00001");
        for batch in [6, 7] {
            let path = epoch.join(batch_name(batch));
            let whole = bytes_of(batch);
            let meta = fs::metadata(&path).unwrap();
            assert_eq!((meta.len(), meta.blocks()), (size_of(batch), size_of(batch).div_ceil(512)));
            assert_eq!(
                (meta.mode() & 0o7777, meta.modified().unwrap()),
                (0o444, UNIX_EPOCH + Duration::from_secs(1_700_000_000))
            );
            assert!(fs::read(&path).unwrap() == whole);
            check_ranges(&path, &whole);
            check_mappings(&path, &whole);
        }
        // The same file by two names, from two threads at once.
        let readers: Vec<_> = ["", "rank-2-of-4"]
            .map(|dir| {
                let path = epoch.join(dir).join(batch_name(6));
                std::thread::spawn(move || (0..20).all(|_| fs::read(&path).unwrap() == bytes_of(6)))
            })
            .into();
        assert!(readers.into_iter().all(|reader| reader.join().unwrap()));
        let expected = if io == "cached" { "batches served cached" } else { "batches served" };
        assert!(place.file("log").contains(expected));
    }
}

fn check_ranges(path: &Path, whole: &[u8]) {
    let file = File::open(path).unwrap();
    let seams = [0, 1, 4095, 4096, 4097, 131_071, 131_072, 131_073, whole.len() - 1, whole.len(), whole.len() + 5];
    for start in seams {
        for len in [1, 4096, 131_073] {
            let mut buf = vec![0; len];
            let mut n = 0;
            while n < len {
                match file.read_at(&mut buf[n..], (start + n) as u64).unwrap() {
                    0 => break,
                    more => n += more,
                }
            }
            let expected = &whole[start.min(whole.len())..(start + len).min(whole.len())];
            assert!(&buf[..n] == expected, "{len} bytes at {start}");
        }
    }
}

#[allow(unsafe_code)]
fn check_mappings(path: &Path, whole: &[u8]) {
    let file = File::open(path).unwrap();
    // SAFETY: a mounted batch never changes.
    let (shared, private) =
        unsafe { (memmap2::Mmap::map(&file).unwrap(), memmap2::MmapOptions::new().map_copy(&file).unwrap()) };
    drop(file);
    // The content must stay after the file is closed.
    assert!(shared[..] == *whole && private[..] == *whole);
}

#[test]
fn a_hundred_thousand_names_are_listed() {
    let Some(place) = Place::mounted(Options { n_rows: 1_000_003, ..OPTIONS }) else { return };
    let epoch = place.mnt().join("epoch-00000");
    let mut names: Vec<_> =
        fs::read_dir(&epoch).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names.len(), 100_001 + 2 + 4);
    let listed: String = names.iter().filter(|n| n.starts_with("batch-")).map(|n| format!("{n}\n")).collect();
    assert!(fs::read_to_string(epoch.join("batches.txt")).unwrap() == listed);

    // numpy reads the same: header, then the order's rows, every one once.
    let npy = fs::read(epoch.join("rows.npy")).unwrap();
    let dict = String::from_utf8(npy[10..128].to_vec()).unwrap();
    assert!(npy.starts_with(b"\x93NUMPY\x01\x00") && dict.contains("(1000003,)"), "{dict}");
    let mut rows: Vec<i64> = npy[128..].chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect();
    assert!(!rows.is_sorted());
    rows.sort_unstable();
    assert!(rows.into_iter().eq(0..1_000_003));
}

#[test]
fn du_counts_every_batch_once_and_a_walk_sees_a_constant_tree() {
    let Some(place) = Place::mounted(OPTIONS) else { return };
    let epoch = place.mnt().join("epoch-00000");
    let mut n_blocks = 0;
    for name in ["batches.txt", "rows.npy"] {
        for dir in ["", "rank-0-of-4", "rank-1-of-4", "rank-2-of-4", "rank-3-of-4"] {
            n_blocks += fs::metadata(epoch.join(dir).join(name)).unwrap().len().div_ceil(512);
        }
    }
    n_blocks += (0..101).map(|batch| size_of(batch).div_ceil(512)).sum::<u64>();
    let du = client("du", &["-s", "-B512", epoch.to_str().unwrap()]);
    assert_eq!(String::from_utf8(du.stdout).unwrap().split_whitespace().next(), Some(&*n_blocks.to_string()));

    let links = |path: &str| fs::metadata(place.mnt().join(path)).unwrap().nlink();
    assert_eq!(links("epoch-00000/batch-0000099.safetensors"), 2);
    assert_eq!(links("epoch-00000/batch-0000100.safetensors"), 1);
    assert_eq!((links(""), links("epoch-00000"), links("epoch-00000/rank-0-of-4")), (2 + 3, 2 + 4, 2));

    let found = client("find", &[place.mnt().to_str().unwrap(), "-printf", "%P %s %i\n"]);
    assert!(found.status.success());
    let found = String::from_utf8(found.stdout).unwrap();
    // The root, two files, and three passes: 101 batches, five directories, two files in each, four shares of 25 batches.
    assert_eq!(found.lines().count(), 1 + 2 + 3 * (101 + 5 + 5 * 2 + 4 * 25));
    assert!(!found.contains(".shufflefs"));
    // The walk opened nothing.
    let status: serde_json::Value =
        serde_json::from_slice(&fs::read(place.mnt().join(".shufflefs/status.json")).unwrap()).unwrap();
    assert_eq!((status["fake"].as_bool(), status["open_files"].as_u64()), (Some(true), Some(1)));
}

#[test]
fn a_blocked_open_delays_nobody() {
    let Some(place) = Place::mounted(OPTIONS) else { return };
    let blocked = place.mnt().join(BAD_EPOCH).join(batch_name(BLOCKED));
    // More waiting opens than loop threads.
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let path = blocked.clone();
            std::thread::spawn(move || fs::read(path).unwrap() == bytes_of(BLOCKED))
        })
        .collect();
    let status = || fs::read_to_string(place.mnt().join(".shufflefs/status.json")).unwrap();
    wait_for(|| status().contains("\"open_files\": 5").then_some(()));
    assert_eq!(fs::metadata(&blocked).unwrap().len(), size_of(BLOCKED));
    assert_eq!(fs::read_dir(place.mnt().join("epoch-00012")).unwrap().count(), 107);
    assert!(fs::read(place.mnt().join("inorder").join(batch_name(3))).unwrap() == bytes_of(3));
    assert!(waiting.iter().all(|reader| !reader.is_finished()));
    fs::write(place.dir.path().join("go"), "").unwrap();
    assert!(waiting.into_iter().all(|reader| reader.join().unwrap()));
}

#[test]
fn one_bad_batch_fails_alone_and_the_mount_lives_on() {
    let Some(place) = Place::mounted(OPTIONS) else { return };
    let epoch = place.mnt().join(BAD_EPOCH);
    for _ in 0..5 {
        for (batch, errno) in [(CORRUPT, libc::EIO), (PANICS, libc::EIO), (DROPPED, libc::EIO), (STALE, libc::ESTALE)] {
            assert_eq!(errno_of(File::open(epoch.join(batch_name(batch)))), errno, "batch {batch}");
        }
    }
    assert!(fs::read(epoch.join(batch_name(5))).unwrap() == bytes_of(5));
    assert_eq!(errno_of(fs::metadata(epoch.join("batch-1.safetensors"))), libc::ENOENT);
    let log = fs::read_to_string(place.mnt().join(".shufflefs/log")).unwrap();
    assert!(
        log.contains("epoch-00009/batch-0000001.safetensors") && log.contains("data.h5ad: X/data: chunk 3"),
        "{log}"
    );
    // 25 failures (the panic counts twice), but no more than ten of them in the log.
    assert_eq!(log.lines().filter(|line| line.contains("open: ")).count(), 10, "{log}");
    assert_eq!(fs::read_to_string(place.mnt().join(".shufflefs/errors.tsv")).unwrap(), "unix_seconds\tpath\terror\n");
}

#[test]
fn everything_is_read_only() {
    let Some(place) = Place::mounted(OPTIONS) else { return };
    let (root, batch) = (place.mnt(), place.mnt().join("epoch-00000").join(batch_name(0)));
    for (what, errno) in [
        ("create", errno_of(File::create(root.join("new")))),
        ("truncate", errno_of(File::create(&batch))),
        ("open for writing", errno_of(File::options().write(true).open(&batch))),
        ("open for reading and writing", errno_of(File::options().read(true).write(true).open(&batch))),
        ("remove", errno_of(fs::remove_file(&batch))),
        ("mkdir", errno_of(fs::create_dir(root.join("dir")))),
        ("rmdir", errno_of(fs::remove_dir(root.join("inorder")))),
        ("rename", errno_of(fs::rename(&batch, root.join("other")))),
        ("link", errno_of(fs::hard_link(&batch, root.join("other")))),
        ("symlink", errno_of(std::os::unix::fs::symlink("x", root.join("other")))),
        ("chmod", errno_of(fs::set_permissions(&batch, fs::metadata(&batch).unwrap().permissions()))),
    ] {
        assert_eq!(errno, libc::EROFS, "{what}");
    }
}

#[test]
fn files_of_the_control_directory_are_made_at_each_open() {
    let Some(place) = Place::mounted(OPTIONS) else { return };
    let status = place.mnt().join(".shufflefs/status.json");
    let open_files =
        || serde_json::from_slice::<serde_json::Value>(&fs::read(&status).unwrap()).unwrap()["open_files"].as_u64();
    assert_eq!(open_files(), Some(1));
    let held = File::open(place.mnt().join("epoch-00000").join(batch_name(0))).unwrap();
    assert_eq!(open_files(), Some(2));
    drop(held);
    wait_for(|| (open_files() == Some(1)).then_some(()));
    // The limit counts open files, whatever they are.
    let held: Vec<_> = (0..64).map(|_| File::open(place.mnt().join("README.md")).unwrap()).collect();
    assert_eq!(errno_of(File::open(place.mnt().join("dataset.json"))), libc::ENFILE);
    drop(held);
    wait_for(|| File::open(place.mnt().join("dataset.json")).ok());
}

#[test]
fn sigterm_with_an_open_file_ends_at_once() {
    let Some(mut place) = Place::mounted(OPTIONS) else { return };
    let held = File::open(place.mnt().join("epoch-00000").join(batch_name(0))).unwrap();
    place.kill(Signal::SIGTERM);
    assert_eq!(place.ended().code(), Some(0));
    assert!(!is_mounted(&place.mnt()));
    // The directory was made for the mount.
    assert!(!place.mnt().exists());
    assert!(errno_of(held.read_at(&mut [0], 0)) == libc::ENOTCONN || cfg!(not(target_os = "linux")));
}

#[test]
fn grace_lets_readers_finish() {
    let Some(mut place) = Place::mounted(Options { grace_s: 600, ..OPTIONS }) else { return };
    let mut held = File::open(place.mnt().join("epoch-00000").join(batch_name(0))).unwrap();
    place.kill(Signal::SIGINT);
    wait_for(|| (!is_mounted(&place.mnt())).then_some(()));
    let mut bytes = Vec::new();
    held.read_to_end(&mut bytes).unwrap();
    assert!(bytes == bytes_of(0));
    drop(held);
    assert_eq!(place.ended().code(), Some(0));
}

#[test]
fn umount_from_outside_ends_the_daemon() {
    let Some(mut place) = Place::mounted(OPTIONS) else { return };
    let held = File::open(place.mnt().join("README.md")).unwrap();
    assert!(matches!(mount::umount(&place.mnt(), false), Err(MountError::Busy { .. })));
    drop(held);
    wait_for(|| mount::umount(&place.mnt(), false).ok());
    assert_eq!(place.ended().code(), Some(0));
    assert!(matches!(mount::umount(&place.mnt(), false), Err(MountError::NotOurs { .. })));

    place.mount(OPTIONS);
    assert!(client("umount", &[place.mnt().to_str().unwrap()]).status.success());
    assert_eq!(place.ended().code(), Some(0));
}

#[test]
fn a_dead_mount_is_recognised_and_repaired() {
    let Some(mut place) = Place::mounted(OPTIONS) else { return };
    let state = |place: &Place| {
        let mounts = mount::list_mounts().unwrap();
        mounts.into_iter().find(|m| m.mount_point == place.mnt()).map(|m| m.state)
    };
    assert_eq!(state(&place), Some(MountState::Serving));
    // A second mount is refused while the first one lives.
    let mut second = place.start(OPTIONS);
    assert_eq!(second.wait().unwrap().code(), Some(1));
    assert!(place.file("error").contains("mounted there already"), "{}", place.file("error"));

    place.kill(Signal::SIGKILL);
    place.ended();
    assert_eq!(state(&place), Some(MountState::Dead));
    assert_eq!(errno_of(fs::read_dir(place.mnt())), libc::ENOTCONN);
    place.mount(OPTIONS);
    assert_eq!(state(&place), Some(MountState::Serving));
    assert!(fs::read(place.mnt().join("epoch-00000").join(batch_name(1))).unwrap() == bytes_of(1));

    place.kill(Signal::SIGKILL);
    place.ended();
    lazy_umount(&place.mnt()).unwrap();
    assert_eq!(state(&place), None);
}
