//! A mount for one measurement: a child process of this program, in a directory that nobody else may enter, gone afterwards.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::usage::ProcessUsage;
use crate::mount;

/// How long the child may take to end.
const END_TIME: Duration = Duration::from_secs(10);

/// A directory of this process, removed with what this module puts into it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> anyhow::Result<Self> {
        let template = std::env::temp_dir().join("shufflefs-bench.XXXXXX");
        Ok(Self(nix::unistd::mkdtemp(&template).with_context(|| template.display().to_string())?))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // File by file: nothing below a mount that is still there may ever be touched.
        for name in ["config.toml", "log"] {
            let _ = fs::remove_file(self.file(name));
        }
        let _ = fs::remove_dir(self.file("mnt"));
        let _ = fs::remove_dir(&self.0);
    }
}

/// The mount.
pub(super) struct PrivateMount {
    child: Child,
    mount_point: PathBuf,
    open_s: f64,
    /// Kept, so that the child can say what it wants.
    _stdout: BufReader<ChildStdout>,
    _folder: Folder,
}

impl PrivateMount {
    /// Mounts what a configuration file of this text says, and waits until the mount answers.
    pub(super) fn start(config: &str) -> anyhow::Result<Self> {
        let folder = Folder::new()?;
        let (config_file, log, mount_point) = (folder.file("config.toml"), folder.file("log"), folder.file("mnt"));
        fs::write(&config_file, config).with_context(|| config_file.display().to_string())?;
        let start = Instant::now();
        let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
        command.args(["mount", "--foreground", "--config"]).arg(&config_file).arg(&mount_point);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(fs::File::create(&log).with_context(|| log.display().to_string())?);
        // A group of its own: an interrupt from the terminal is for the reader, which ends the mount in good order.
        command.process_group(0);
        end_with_parent(&mut command);
        let mut child = command.spawn().context("cannot start the mount")?;
        let Some(stdout) = child.stdout.take() else { bail!("the mount has no output") };
        let mut this = Self { child, mount_point, open_s: 0.0, _stdout: BufReader::new(stdout), _folder: folder };
        // The summary comes when the mount answers, and the end of the output if it never will.
        if this._stdout.read_line(&mut String::new())? == 0 {
            let said = fs::read_to_string(&log).unwrap_or_default();
            let reason = said.lines().last().unwrap_or("it ended without a word");
            bail!("--mount: {}", reason.strip_prefix("shufflefs: ").unwrap_or(reason));
        }
        this.open_s = start.elapsed().as_secs_f64();
        Ok(this)
    }

    /// The root of the tree.
    pub(super) fn path(&self) -> &Path {
        &self.mount_point
    }

    /// Seconds from the start of the child until the mount answered.
    pub(super) fn open_s(&self) -> f64 {
        self.open_s
    }

    /// CPU seconds of the child so far.
    pub(super) fn cpu_seconds(&self) -> anyhow::Result<f64> {
        Ok(self.usage()?.cpu_s)
    }

    /// The most memory the child ever had.
    pub(super) fn peak_bytes(&self) -> anyhow::Result<u64> {
        Ok(self.usage()?.peak_bytes)
    }

    fn usage(&self) -> anyhow::Result<ProcessUsage> {
        ProcessUsage::of(&self.child.id().to_string())
    }
}

impl Drop for PrivateMount {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && start.elapsed() < END_TIME {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Nothing is there after an orderly end, and then this says so.
        let _ = mount::umount(&self.mount_point, true);
    }
}

/// Ends the child in good order when this process dies, whatever kills it.
fn end_with_parent(command: &mut Command) {
    // SAFETY: the closure runs between fork and exec and makes one system call, which allocates nothing and takes no lock.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(|| Ok(nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?));
    }
}
