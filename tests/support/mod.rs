//! A mount in a process of its own, over an engine without sources.
//!
//! The process is this test binary again, running only its ignored test `helper`: readers that map a file must not be in the
//! process that serves it.
#![allow(dead_code)] // each test program uses a part

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, UNIX_EPOCH};

use nix::mount::{MntFlags, umount2};
use shufflefs::mount::{self, Built, IoMode, Log, LogConfig, MountConfig, MountError};
use shufflefs::order::{Blocks, Order, OrderConfig, Pass, RankPolicy, SourceRows, Tail};
use shufflefs::store::ReadError;
use shufflefs::view::{Statics, Tree, TreeConfig};
use shufflefs::window::{BatchError, BatchId, Batches, Image, OpenReply};

/// Nothing here takes longer than this unless it hangs.
pub const LONG: Duration = Duration::from_secs(60);

/// In this epoch, batches misbehave: see [`Fake::open`].
pub const BAD_EPOCH: &str = "epoch-00009";
pub const BLOCKED: u64 = 0;
pub const CORRUPT: u64 = 1;
pub const PANICS: u64 = 2;
pub const DROPPED: u64 = 3;
pub const STALE: u64 = 4;

/// Even batches are large enough for direct I/O.
pub fn size_of(batch: u64) -> u64 {
    if batch.is_multiple_of(2) { 300_000 + batch % 5_000 } else { 10_000 + batch % 5_000 }
}

pub fn bytes_of(batch: u64) -> Vec<u8> {
    (0..size_of(batch)).map(|i| ((i / 7 + i * 31 + batch) % 251) as u8).collect()
}

pub fn batch_name(batch: u64) -> String {
    format!("batch-{batch:07}.safetensors")
}

struct Fake {
    go: PathBuf,
    n_opens: AtomicU64,
    n_alive: Arc<AtomicU64>,
}

/// An image that says when it is gone.
struct Counted(Vec<u8>, Arc<AtomicU64>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Relaxed);
    }
}

impl Batches for Fake {
    fn size_bytes(&self, id: BatchId) -> u64 {
        size_of(id.batch)
    }

    fn open(&self, id: BatchId, reply: OpenReply) {
        self.n_opens.fetch_add(1, Relaxed);
        let file = PathBuf::from("data.h5ad");
        match (id.pass, id.batch) {
            (Pass::Epoch(9), BLOCKED) => {
                let go = self.go.clone();
                std::thread::spawn(move || {
                    while !go.exists() {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    reply(Ok(Image::new(Arc::new(bytes_of(id.batch)))));
                });
            }
            (Pass::Epoch(9), CORRUPT) => {
                let (element, reason) = ("X/data".to_owned(), "deflate: checksum does not match".to_owned());
                reply(Err(BatchError::Read(ReadError::Corrupt { file, element, chunk: 3, reason })));
            }
            (Pass::Epoch(9), PANICS) => panic!("told to"),
            (Pass::Epoch(9), DROPPED) => drop(reply),
            (Pass::Epoch(9), STALE) => reply(Err(BatchError::Read(ReadError::Stale { file }))),
            _ => {
                self.n_alive.fetch_add(1, Relaxed);
                let n_alive = Arc::clone(&self.n_alive);
                let image = move || Image::new(Arc::new(Counted(bytes_of(id.batch), n_alive)));
                std::thread::spawn(move || reply(Ok(image())));
            }
        }
    }

    fn status_json(&self) -> serde_json::Value {
        let (n_opens, n_alive) = (self.n_opens.load(Relaxed), self.n_alive.load(Relaxed));
        serde_json::json!({ "fake": true, "opens": n_opens, "images": n_alive })
    }

    fn failures(&self) -> Vec<shufflefs::window::Failure> {
        Vec::new()
    }
}

fn build(n_rows: u64, backing_bytes: u64, go: PathBuf, log: &Log) -> Result<Built, String> {
    let source = SourceRows { rows: 0..n_rows, first_rows: None, x_bytes: 0 };
    let order = Order::new(OrderConfig {
        n_rows,
        blocks: Blocks::fixed(8, &[source]).map_err(|e| e.to_string())?,
        batch_size: 10,
        fetch_factor: 16,
        seed: 0,
        tail: Tail::Keep,
    });
    let log = log.clone();
    let tree = Tree::new(TreeConfig {
        order: Arc::new(order.map_err(|e| e.to_string())?),
        batches: Arc::new(Fake { go, n_opens: AtomicU64::default(), n_alive: Arc::default() }),
        extension: "safetensors".to_owned(),
        statics: Statics { readme: b"# fake\n".to_vec(), dataset_json: b"{}\n".to_vec(), ..Statics::default() },
        list_epochs: 2,
        world_size: Some(4),
        rank_policy: RankPolicy::Drop,
        uid: nix::unistd::getuid().as_raw(),
        gid: nix::unistd::getgid().as_raw(),
        mtime: UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        log: Arc::new(move || log.text()),
        max_open: 64,
    });
    let summary = Box::new(move |_: &str| format!("{n_rows} rows"));
    Ok(Built { tree: tree.map_err(|e| e.to_string())?, summary, backing_bytes })
}

/// How the helper mounts.
#[derive(Clone, Copy)]
pub struct Options {
    pub n_rows: u64,
    pub io: &'static str,
    pub grace_s: u64,
    pub background: bool,
    /// For `--io passthrough`.
    pub backing_bytes: u64,
}

pub const OPTIONS: Options =
    Options { n_rows: 1_003, io: "auto", grace_s: 0, background: false, backing_bytes: 64 << 20 };

/// The body of the test `helper`: mounts as the environment says, and never returns.
pub fn helper() {
    let Some(dir) = std::env::var_os("MOUNT_FAKE_DIR").map(PathBuf::from) else { return };
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let log = Log::start(&LogConfig { file: Some(dir.join("log")), verbosity: 0 }).unwrap();
    let config = MountConfig {
        mount_point: dir.join("mnt"),
        foreground: number("MOUNT_FAKE_BACKGROUND") == 0,
        allow_other: false,
        io: std::env::var("MOUNT_FAKE_IO").unwrap().parse::<IoMode>().unwrap(),
        grace: Duration::from_secs(number("MOUNT_FAKE_GRACE")),
        n_loop_threads: mount::DEFAULT_LOOP_THREADS,
        log: Some(log.clone()),
    };
    let n_rows = number("MOUNT_FAKE_ROWS");
    let ready = dir.join("ready");
    let build = || build(n_rows, number("MOUNT_FAKE_BACKING"), dir.join("go"), &log);
    let result = mount::run(&config, build, |summary| std::fs::write(&ready, summary).unwrap());
    let code = match result {
        Ok(()) => 0,
        Err(error) => {
            std::fs::write(dir.join("error"), error.to_string()).unwrap();
            1
        }
    };
    std::process::exit(code);
}

/// A directory with `mnt` in it, and what is mounted there.
pub struct Place {
    pub dir: tempfile::TempDir,
    pub child: Option<Child>,
}

impl Place {
    /// `None`, with a loud message, where nothing can be mounted; a failure in CI.
    pub fn new() -> Option<Self> {
        if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
            assert!(std::env::var_os("CI").is_none(), "/dev/fuse: {error}: mount tests must run in CI");
            eprintln!("SKIPPED: /dev/fuse cannot be opened ({error}): nothing is mounted, nothing is tested");
            return None;
        }
        Some(Self { dir: tempfile::tempdir().unwrap(), child: None })
    }

    /// A place with a mount.
    pub fn mounted(options: Options) -> Option<Self> {
        let mut place = Self::new()?;
        place.mount(options);
        Some(place)
    }

    pub fn mnt(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("mnt")
    }

    /// A number in `status.json`, by its JSON pointer.
    pub fn status(&self, pointer: &str) -> u64 {
        let text = std::fs::read(self.mnt().join(".shufflefs/status.json")).unwrap();
        let status: serde_json::Value = serde_json::from_slice(&text).unwrap();
        status.pointer(pointer).and_then(serde_json::Value::as_u64).unwrap_or_else(|| panic!("{pointer}: {status:#}"))
    }

    pub fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    pub fn start(&self, options: Options) -> Child {
        for left in ["ready", "error"] {
            let _ = std::fs::remove_file(self.dir.path().join(left));
        }
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "helper", "--ignored", "--nocapture", "--test-threads=1"])
            .env("MOUNT_FAKE_DIR", self.dir.path())
            .env("MOUNT_FAKE_ROWS", options.n_rows.to_string())
            .env("MOUNT_FAKE_IO", options.io)
            .env("MOUNT_FAKE_GRACE", options.grace_s.to_string())
            .env("MOUNT_FAKE_BACKING", options.backing_bytes.to_string())
            .env("MOUNT_FAKE_BACKGROUND", u8::from(options.background).to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Mounts in the foreground of a child, and waits until it is there.
    pub fn mount(&mut self, options: Options) {
        let mut child = self.start(options);
        let ready = self.dir.path().join("ready");
        let ended = wait_for(|| ready.exists().then_some(None).or_else(|| child.try_wait().unwrap().map(Some)));
        assert!(ended.is_none(), "the helper ended: {ended:?}, {}", self.file("error"));
        self.child = Some(child);
    }

    pub fn kill(&self, signal: nix::sys::signal::Signal) {
        let pid = self.child.as_ref().unwrap().id();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.try_into().unwrap()), signal).unwrap();
    }

    /// Waits for the end of the child.
    pub fn ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().unwrap();
        let status = wait_for_or(LONG, || child.try_wait().unwrap());
        if status.is_none() {
            let _ = child.kill();
        }
        status.expect("the daemon did not end")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mnt = self.mnt();
        while is_mounted(&mnt) && umount2(&mnt, MntFlags::MNT_DETACH).is_ok() {}
        let _ = Command::new("fusermount3").args(["-u", "-z", "-q", "--"]).arg(&mnt).output();
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub fn is_mounted(mnt: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == mnt.to_str())
}

/// Polls until there is a value.
pub fn wait_for<T>(f: impl FnMut() -> Option<T>) -> T {
    wait_for_or(LONG, f).expect("waited too long")
}

pub fn wait_for_or<T>(limit: Duration, mut f: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limit;
    loop {
        match f() {
            Some(value) => return Some(value),
            None if Instant::now() > deadline => return None,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Runs a client program, with a limit on its time.
pub fn client(program: &str, args: &[&str]) -> Output {
    Command::new("timeout").arg("60").arg(program).args(args).output().unwrap()
}

pub fn lazy_umount(mnt: &Path) -> Result<(), MountError> {
    mount::umount(mnt, true)
}
