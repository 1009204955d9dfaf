//! Mounting: the adapter between the kernel and the tree, the session, the daemon, and the mounts of this program.
//!
//! [`run`] is the whole life of a mount. The mount point is checked first, then the process goes to the background, then the
//! caller opens its dataset and builds the tree, then the kernel mounts it, and only when the mount answers does the waiting
//! parent print the summary and return. The rest is waiting for the end, see `session`.
//!
//! The module contains no logic of the tree: `adapter` translates requests, one for one. Nothing outside knows `fuser`.

mod adapter;
mod daemon;
mod follow;
mod io_mode;
mod log;
mod mountinfo;
mod passthrough;
mod point;
mod pool;
mod read_ahead;
mod session;
mod unmount;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub use io_mode::IoMode;
pub use log::{Log, LogConfig};
pub use unmount::{MountEntry, MountState, list_mounts, umount};

use crate::view::Tree;
use daemon::Ready;
use point::MountPoint;

/// Loop threads, if nothing else is said: two answer more steadily than one, and they never wait.
pub const DEFAULT_LOOP_THREADS: usize = 2;

/// A mount to be made.
#[derive(Clone)]
pub struct MountConfig {
    /// Where.
    pub mount_point: PathBuf,
    /// Stay in the foreground until the mount ends.
    pub foreground: bool,
    /// Let other users in.
    pub allow_other: bool,
    /// How batches reach their readers.
    pub io: IoMode,
    /// How long open files stay readable after a signal.
    pub grace: Duration,
    /// Threads that answer the kernel.
    pub n_loop_threads: usize,
    /// The log, which stops writing to the terminal when the mount goes to the background.
    pub log: Option<Log>,
}

/// What is to be mounted.
pub struct Built {
    /// The tree.
    pub tree: Tree,
    /// What is told when the mount is there; it gets the way that batches are served, as a few words.
    pub summary: Box<dyn FnOnce(&str) -> String>,
    /// Memory for files that the kernel reads by itself, in bytes. Used by [`IoMode::Passthrough`] only.
    pub backing_bytes: u64,
}

/// Why there is no mount, or no unmount.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point holds something.
    #[error("{}: the mount point is not empty; choose an empty or a new directory", mount_point.display())]
    NotEmpty {
        /// The mount point.
        mount_point: PathBuf,
    },
    /// The mount point is a file.
    #[error("{}: the mount point is not a directory; the last argument is the mount point", mount_point.display())]
    NotDirectory {
        /// The mount point.
        mount_point: PathBuf,
    },
    /// The mount point cannot be made.
    #[error("{}: neither the mount point nor the directory above it exists; make one of them", mount_point.display())]
    NoParent {
        /// The mount point.
        mount_point: PathBuf,
    },
    /// A living mount of this program is there.
    #[error("{0}: shufflefs is mounted there already; end it with: shufflefs umount {0}", mount_point.display())]
    AlreadyMounted {
        /// The mount point.
        mount_point: PathBuf,
    },
    /// Another mount is there.
    #[error("{}: {fs_source} ({fs_type}) is mounted there; choose another directory", mount_point.display())]
    ForeignMount {
        /// The mount point.
        mount_point: PathBuf,
        /// What is mounted.
        fs_source: String,
        /// Its type.
        fs_type: String,
    },
    /// `--io direct` on an old kernel.
    #[error("--io direct: this kernel cannot map files served that way (Linux 6.6 can); use --io cached")]
    NoDirect,
    /// `--io passthrough` where it cannot work.
    #[error("--io passthrough: {reason}; use --io auto")]
    NoPassthrough {
        /// Why not.
        reason: String,
    },
    /// The mount was taken away while it was made.
    #[error("{}: the mount was taken away at once", mount_point.display())]
    Vanished {
        /// The mount point.
        mount_point: PathBuf,
    },
    /// Nothing serves the mount any more.
    #[error("{}: the session ended by itself; see the log", mount_point.display())]
    SessionDied {
        /// The mount point.
        mount_point: PathBuf,
    },
    /// The dataset cannot be served: the message says why.
    #[error("{message}")]
    Build {
        /// What the builder of the tree said.
        message: String,
    },
    /// The daemon failed before it was ready.
    #[error("{message}")]
    Daemon {
        /// Its message.
        message: String,
    },
    /// The daemon ended before it was ready, without a message.
    #[error("the daemon ended before it was ready ({how}); try again with --foreground")]
    DaemonDied {
        /// Exit code or signal.
        how: String,
    },
    /// The process cannot go to the background.
    #[error("cannot go to the background: {reason}; use --foreground")]
    Background {
        /// Why.
        reason: String,
    },
    /// No mount of this program is there.
    #[error("{}: shufflefs is not mounted there", mount_point.display())]
    NotOurs {
        /// The mount point.
        mount_point: PathBuf,
    },
    /// The mount is in use.
    #[error("{}: the mount is in use; close its files, or use --lazy", mount_point.display())]
    Busy {
        /// The mount point.
        mount_point: PathBuf,
    },
    /// The mount table cannot be read.
    #[error("/proc/self/mountinfo: {0}")]
    Table(#[source] io::Error),
    /// The operating system said no.
    #[error("{}: {source}", mount_point.display())]
    Io {
        /// The mount point.
        mount_point: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

/// Mounts the tree that `build` makes.
///
/// In the foreground, `announce` is called with the summary when the mount answers, and the function returns when the mount has
/// ended. In the background, it returns as soon as the mount answers, after `announce` was called with the summary; the
/// daemon is a child that opens the dataset (`build` runs there) and never returns from here. The calling process must not
/// have started any thread then.
///
/// # Errors
/// [`MountError`]; nothing stays mounted, and a mount point that was made is removed.
pub fn run(
    config: &MountConfig,
    build: impl FnOnce() -> Result<Built, String>,
    announce: impl FnOnce(&str),
) -> Result<(), MountError> {
    if config.io == IoMode::Passthrough {
        passthrough::check()?;
    }
    let point = MountPoint::check(&config.mount_point)?;
    let serve = move |ready: Ready<'_>| {
        // Owned here, since a daemon exits at the end of this: the directory must be removed before.
        let mut point = point;
        let built = build().map_err(|message| MountError::Build { message })?;
        session::serve(config, &mut point, built, ready)
    };
    if config.foreground {
        return serve(Ready::in_foreground(announce));
    }
    let summary = daemon::in_background(serve)?;
    announce(&summary);
    Ok(())
}
