//! Going to the background. A process forks only while it has one thread, and the usual harness runs tests on threads: this one
//! has a `main` of its own, which speaks as much of the harness's language as runners need.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::fs;
use std::path::Path;

use shufflefs::mount;
use support::{OPTIONS, Options, Place, batch_name, bytes_of, wait_for};

const TESTS: [(&str, fn()); 1] =
    [("a_daemon_is_ready_when_its_parent_returns", a_daemon_is_ready_when_its_parent_returns)];

fn main() {
    if std::env::var_os("MOUNT_FAKE_DIR").is_some() {
        support::helper();
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let filter = args.iter().find(|arg| !arg.starts_with('-') && *arg != "terse");
    for (name, test) in TESTS.iter().filter(|(name, _)| filter.is_none_or(|filter| name.contains(filter.as_str()))) {
        match (has("--list"), has("--ignored")) {
            (true, false) => println!("{name}: test"),
            (false, false) => {
                test();
                println!("test {name} ... ok");
            }
            (_, true) => {}
        }
    }
}

fn a_daemon_is_ready_when_its_parent_returns() {
    let Some(place) = Place::new() else { return };
    let background = Options { background: true, ..OPTIONS };
    assert_eq!(place.start(background).wait().unwrap().code(), Some(0), "{}", place.file("error"));
    assert_eq!(place.file("ready"), "1003 rows");
    assert!(fs::read(place.mnt().join("epoch-00000").join(batch_name(0))).unwrap() == bytes_of(0));
    let status: serde_json::Value =
        serde_json::from_slice(&fs::read(place.mnt().join(".shufflefs/status.json")).unwrap()).unwrap();
    let daemon = Path::new("/proc").join(status["pid"].to_string());
    assert_eq!(fs::read_link(daemon.join("cwd")).unwrap(), Path::new("/"));
    for stream in ["fd/0", "fd/1", "fd/2"] {
        assert_eq!(fs::read_link(daemon.join(stream)).unwrap(), Path::new("/dev/null"));
    }
    // `umount` returns when the daemon is gone (or dead and not yet reaped), and the directory with it.
    wait_for(|| mount::umount(&place.mnt(), false).ok());
    assert!(!place.mnt().exists());
    let stat = fs::read_to_string(daemon.join("stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z"), "{stat}");

    // A daemon that cannot start says why, through its parent.
    let refused = place.start(Options { n_rows: 0, ..background }).wait().unwrap();
    assert_eq!(refused.code(), Some(1));
    assert!(place.file("error").contains("row"), "{}", place.file("error"));
    assert!(!place.mnt().exists());
}
