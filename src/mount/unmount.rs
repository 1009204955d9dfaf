//! Unmounting, from inside and from outside, and the list of our mounts.
//!
//! A mount is named by the number it has in the table, not by its path alone: whoever unmounts by path takes away what lies on
//! top there, which may be somebody else's by now. An ordinary user may not call `umount2`; the setuid helper `fusermount3`
//! does it for the owner of the mount.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::statvfs::statvfs;

use super::MountError;
use super::mountinfo::{self, Mount};

/// How long a mount may take to answer before it counts as hanging.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// How long `umount` waits for the daemon to end after the mount is gone.
const EXIT_TIME: Duration = Duration::from_secs(10);

/// How a mount behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountState {
    /// Its daemon answers.
    Serving,
    /// Its daemon is gone.
    Dead,
    /// Its daemon did not answer in time.
    Hanging,
    /// It cannot be asked: it belongs to another user.
    Denied,
}

/// One of our mounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Whether it answers.
    pub state: MountState,
}

/// All mounts of this program that are visible to this process, in the order in which they were made.
///
/// # Errors
/// If the mount table cannot be read.
pub fn list_mounts() -> Result<Vec<MountEntry>, MountError> {
    let mounts = mountinfo::read().map_err(MountError::Table)?;
    let ours = mounts.into_iter().filter(Mount::is_ours);
    Ok(ours.map(|m| MountEntry { state: state_of(&m.mount_point), mount_point: m.mount_point }).collect())
}

/// Asks the daemon behind a mount point. The attributes of its root may be cached; `statfs` never is.
pub(super) fn state_of(mount_point: &Path) -> MountState {
    let (to, from) = mpsc::sync_channel(1);
    let path = mount_point.to_owned();
    // A daemon that hangs keeps the thread, too: it is left behind.
    let asking = std::thread::Builder::new().name("ask-mount".to_owned()).spawn(move || {
        let answer = statvfs(&path).and_then(|_| match std::fs::metadata(path.join(".shufflefs")) {
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => Err(Errno::EACCES),
            _ => Ok(()),
        });
        let _ = to.send(answer);
    });
    if asking.is_err() {
        return MountState::Hanging;
    }
    match from.recv_timeout(ANSWER_TIME) {
        Ok(Ok(())) => MountState::Serving,
        Ok(Err(Errno::EACCES)) => MountState::Denied,
        Ok(Err(_)) => MountState::Dead,
        Err(_) => MountState::Hanging,
    }
}

/// Unmounts the mount `id` if it is the one that its path reaches.
///
/// # Errors
/// `ENOENT` if it is not there any more, `EBUSY` if it is in use (unless `lazy`) or covered by another mount.
pub(super) fn unmount_if_top(mount_point: &Path, id: u64, lazy: bool) -> io::Result<()> {
    match mountinfo::top_at(mount_point)? {
        Some(top) if top.id == id => unmount_path(mount_point, lazy),
        Some(_) if mountinfo::read()?.iter().any(|m| m.id == id) => Err(io::Error::from_raw_os_error(libc::EBUSY)),
        _ => Err(io::Error::from_raw_os_error(libc::ENOENT)),
    }
}

fn unmount_path(mount_point: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy { MntFlags::MNT_DETACH } else { MntFlags::empty() };
    match umount2(mount_point, flags | MntFlags::UMOUNT_NOFOLLOW) {
        Err(Errno::EPERM) => fusermount(mount_point, lazy),
        other => other.map_err(io::Error::from),
    }
}

/// The helper of the fuse package that unmounts for ordinary users.
fn fusermount(mount_point: &Path, lazy: bool) -> io::Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(mount_point);
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if said.contains("busy") { Err(io::Error::from_raw_os_error(libc::EBUSY)) } else { Err(io::Error::other(said)) }
}

/// Ends the mount at `mount_point` and waits until its daemon has exited. With `lazy`, a mount that is in use is taken out of the
/// tree of names at once, and files that are open stay readable until the daemon's grace time is over or they are closed.
///
/// # Errors
/// [`MountError::NotOurs`] if no mount of this program is there, [`MountError::Busy`] if it is in use.
pub fn umount(mount_point: &Path, lazy: bool) -> Result<(), MountError> {
    let path = super::point::canonical(mount_point).map_err(|source| io_error(mount_point, source))?;
    let top = mountinfo::top_at(&path).map_err(MountError::Table)?;
    let Some(mount) = top.filter(Mount::is_ours) else {
        return Err(MountError::NotOurs { mount_point: path });
    };
    let daemon = if state_of(&path) == MountState::Serving { daemon_pid(&path) } else { None };
    match unmount_if_top(&path, mount.id, lazy) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Err(MountError::Busy { mount_point: path }),
        Err(source) => return Err(io_error(&path, source)),
    }
    if let Some(pid) = daemon.filter(|_| !lazy) {
        wait_for_exit(pid);
    }
    Ok(())
}

fn io_error(mount_point: &Path, source: io::Error) -> MountError {
    MountError::Io { mount_point: mount_point.to_owned(), source }
}

/// The process behind a mount that answers, as its status says.
fn daemon_pid(mount_point: &Path) -> Option<u32> {
    let status = std::fs::read(mount_point.join(".shufflefs/status.json")).ok()?;
    let status: serde_json::Value = serde_json::from_slice(&status).ok()?;
    u32::try_from(status.get("pid")?.as_u64()?).ok()
}

/// Waits until a process is gone, or [`EXIT_TIME`] is over. A process that nobody has reaped yet counts as gone.
fn wait_for_exit(pid: u32) {
    let deadline = Instant::now() + EXIT_TIME;
    let is_alive = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // `pid (name) state ...`: the name may hold anything, also a parenthesis.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    };
    while is_alive() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
}
