//! Going to the background.
//!
//! The process forks while it still has one thread, and before anything is opened: threads, locks and open HDF5 files do not
//! survive a fork. The parent waits on a pipe. The child stays attached to the terminal, its process group and its standard
//! streams while it opens the dataset, so that warnings and progress are seen and Ctrl-C ends both; when it is ready it says so
//! through the pipe, and only then leaves the session, the terminal and the working directory. If it fails instead, its
//! message goes through the pipe, and if it dies without a word the parent tells how.
//!
//! In the foreground the same [`Ready`] is used, without a pipe.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;

use nix::fcntl::OFlag;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stderr, dup2_stdin, dup2_stdout, fork, pipe2, setsid};

use parking_lot::Mutex;

use super::MountError;

/// First byte of what the child sends.
const READY: u8 = b'R';
const FAILED: u8 = b'E';

/// How the one who mounts tells that the mount is there.
pub(super) struct Ready<'a> {
    to: To<'a>,
}

enum To<'a> {
    Parent(Arc<Mutex<Option<File>>>),
    Terminal(Box<dyn FnOnce(&str) + 'a>),
}

impl<'a> Ready<'a> {
    /// For the foreground: `announce` is called with the summary.
    pub fn in_foreground(announce: impl FnOnce(&str) + 'a) -> Self {
        Self { to: To::Terminal(Box::new(announce)) }
    }

    /// Hands over the summary. In the background, also leaves the terminal.
    ///
    /// # Errors
    /// If the parent is gone: whoever started the mount does not want it any more.
    pub fn announce(self, summary: &str) -> io::Result<()> {
        match self.to {
            To::Terminal(announce) => announce(summary),
            To::Parent(pipe) => {
                leave_terminal()?;
                if let Some(mut pipe) = pipe.lock().take() {
                    pipe.write_all(&[READY])?;
                    pipe.write_all(summary.as_bytes())?;
                }
            }
        }
        Ok(())
    }
}

/// Forks. In the child, runs `body` and exits with 0, or with 1 if it fails; in the parent, returns the summary that the child
/// announced.
///
/// # Errors
/// [`MountError::Background`] if there are threads already or the fork fails, [`MountError::Daemon`] with the message of a
/// child that failed, [`MountError::DaemonDied`] if it ended without a message.
pub(super) fn in_background(body: impl FnOnce(Ready<'static>) -> Result<(), MountError>) -> Result<String, MountError> {
    let n_threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if n_threads != 1 {
        return Err(MountError::Background { reason: format!("{n_threads} threads are running") });
    }
    let refused = |error: nix::Error| MountError::Background { reason: error.to_string() };
    let (from_child, to_parent) = pipe2(OFlag::O_CLOEXEC).map_err(refused)?;
    match fork_single_threaded().map_err(refused)? {
        ForkResult::Parent { child } => {
            drop(to_parent);
            wait_until_ready(File::from(from_child), child)
        }
        ForkResult::Child => {
            drop(from_child);
            std::process::exit(run_child(File::from(to_parent), body))
        }
    }
}

/// Forks a process that has one thread.
#[allow(unsafe_code)]
fn fork_single_threaded() -> nix::Result<ForkResult> {
    // SAFETY: the caller checked that no other thread exists, so none can hold a lock (of the allocator, say) that the child
    // would find taken for ever.
    unsafe { fork() }
}

/// The child: runs `body`, and reports its failure through the pipe if it was not ready yet. Returns the exit code.
fn run_child(pipe: File, body: impl FnOnce(Ready<'static>) -> Result<(), MountError>) -> i32 {
    let pipe = Arc::new(Mutex::new(Some(pipe)));
    let ready = Ready { to: To::Parent(Arc::clone(&pipe)) };
    let message = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(ready))) {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => error.to_string(),
        Err(payload) => format!("internal error: {}", crate::view::errno::panic_text(&*payload)),
    };
    // The parent prints it; this is for the log file.
    tracing::info!("not mounted: {message}");
    if let Some(mut pipe) = pipe.lock().take() {
        // A parent that is gone needs no message.
        let _ = pipe.write_all(&[FAILED]).and_then(|()| pipe.write_all(message.as_bytes()));
    }
    1
}

/// The parent: reads until the child closes its end.
fn wait_until_ready(mut pipe: File, child: Pid) -> Result<String, MountError> {
    let mut message = Vec::new();
    pipe.read_to_end(&mut message).map_err(|error| MountError::Background { reason: error.to_string() })?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match message.split_first() {
        Some((&READY, summary)) => Ok(text(summary)),
        Some((_, reason)) => Err(MountError::Daemon { message: text(reason) }),
        None => {
            let how = match waitpid(child, None) {
                Ok(WaitStatus::Exited(_, code)) => format!("exit code {code}"),
                Ok(WaitStatus::Signaled(_, signal, _)) => format!("signal {signal}"),
                other => format!("{other:?}"),
            };
            Err(MountError::DaemonDied { how })
        }
    }
}

/// Leaves the terminal: own session, standard streams to `/dev/null`, no working directory that would be kept busy.
fn leave_terminal() -> io::Result<()> {
    setsid()?;
    std::env::set_current_dir("/")?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)?;
    Ok(())
}
