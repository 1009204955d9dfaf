//! One mount, from the first request to the end of the process.
//!
//! The session of `fuser` runs on its own threads. The main thread waits for one of three ends: the mount is taken away
//! from outside (`umount`, `fusermount3 -u`), a signal arrives, or the session dies. On a signal the mount is detached from the
//! tree of names at once, so the next mount finds the place free; what is open stays readable until it is closed, the grace
//! time is over, or a second signal says so.
//!
//! `fuser` 0.18 has traps here, and this module steps around them. `umount_and_join` fails when a file is open and leaves a dead
//! mount behind; dropping or joining the background session unmounts whatever is at the path, which after a detach is
//! somebody else's mount; and automatic unmounting hangs. So the mount is taken away by its own number in the mount table (see
//! [`super::unmount`]), and the background session is forgotten, never dropped.

use std::io;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use fuser::{BackgroundSession, Config, MountOption, Session, SessionACL};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::adapter::Adapter;
use super::daemon::Ready;
use super::io_mode::IoState;
use super::passthrough::{self, Passthrough};
use super::point::MountPoint;
use super::unmount::unmount_if_top;
use super::{Built, IoMode, MountConfig, MountError, mountinfo, read_ahead};
use crate::view::Tree;

/// What serves file systems from programs.
const FUSE_DEVICE: &str = "/dev/fuse";

/// How often the main thread looks at what it cannot be told of.
const POLL: Duration = Duration::from_millis(20);
/// How long the loop threads may take to end once nothing holds the mount.
const LOOP_TIME: Duration = Duration::from_secs(1);

/// What ends the wait.
enum Event {
    /// The session is over: the kernel said so.
    Ended,
    /// Somebody wants the mount to end.
    Signal(i32),
}

/// Mounts the tree, announces it, and returns when the mount is gone.
pub(super) fn serve(
    config: &MountConfig,
    point: &mut MountPoint,
    built: Built,
    ready: Ready<'_>,
) -> Result<(), MountError> {
    let tree = &Arc::new(built.tree);
    let serving = Serving::new(config, tree, built.backing_bytes)?;
    // Handlers first: a signal between here and the wait must not leave a dead mount.
    let (events, inbox) = mpsc::channel();
    watch_signals(events.clone()).map_err(|source| failed(point.path(), source))?;
    point.make()?;
    let mounted = Mounted::start(config, point.path(), &serving, move || {
        let _ = events.send(Event::Ended);
    })?;
    if let Some(log) = config.log.as_ref().filter(|_| !config.foreground) {
        log.leave_terminal();
    }
    if let Err(error) = ready.announce(&(built.summary)(&serving.words())) {
        tracing::error!("nobody waits for the mount any more ({error})");
        mounted.detach();
        return Err(failed(point.path(), error));
    }
    mounted.wait(&inbox, tree, config.grace)
}

fn failed(mount_point: &Path, source: io::Error) -> MountError {
    MountError::Io { mount_point: mount_point.to_owned(), source }
}

/// Turns signals into events. The thread lives as long as the process.
fn watch_signals(events: mpsc::Sender<Event>) -> io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let body = move || signals.forever().try_for_each(|signal| events.send(Event::Signal(signal)).map_err(drop));
    std::thread::Builder::new().name("signals".to_owned()).spawn(body)?;
    Ok(())
}

/// How the tree is served.
struct Serving {
    tree: Arc<Tree>,
    io: Arc<IoState>,
    passthrough: Option<Arc<Passthrough>>,
}

impl Serving {
    fn new(config: &MountConfig, tree: &Arc<Tree>, backing_bytes: u64) -> Result<Self, MountError> {
        let io = Arc::new(IoState::new(config.io));
        let passthrough = if config.io == IoMode::Passthrough {
            Some(Arc::new(Passthrough::new(backing_bytes, config.n_loop_threads)?))
        } else {
            None
        };
        let (state, backing) = (Arc::clone(&io), passthrough.clone());
        tree.set_io_status(Box::new(move || {
            let mut status = state.json();
            if let (Some(fields), Some(backing)) = (status.as_object_mut(), &backing) {
                fields.insert("backing".to_owned(), backing.json());
            }
            status
        }));
        Ok(Self { tree: Arc::clone(tree), io, passthrough })
    }

    /// The mode and why, in a few words.
    fn words(&self) -> String {
        format!("{} ({})", self.io.mode(), self.io.reason())
    }
}

/// A mount that is served by this process.
struct Mounted<'a> {
    mount_point: &'a Path,
    /// Its number in the mount table.
    id: u64,
    /// Never dropped: see the module's description.
    session: ManuallyDrop<BackgroundSession>,
}

impl<'a> Mounted<'a> {
    fn start(
        config: &MountConfig,
        mount_point: &'a Path,
        serving: &Serving,
        ended: impl FnOnce() + Send + Sync + 'static,
    ) -> Result<Self, MountError> {
        let Serving { tree, io, passthrough } = serving;
        let adapter = Adapter::new(Arc::clone(tree), Arc::clone(io), passthrough.clone(), ended)
            .map_err(|e| failed(mount_point, e))?;
        // The library names the mount point for this, which is not what is missing.
        if let Err(source) = std::fs::File::options().read(true).write(true).open(FUSE_DEVICE) {
            return Err(failed(std::path::Path::new(FUSE_DEVICE), source));
        }
        let session = Session::new(adapter, mount_point, &session_config(config)).map_err(|source| {
            take_away_leftover(mount_point);
            match (source.raw_os_error(), config.io) {
                (Some(libc::EOPNOTSUPP), IoMode::Direct) => MountError::NoDirect,
                (Some(libc::EOPNOTSUPP), IoMode::Passthrough) => passthrough::refused(&source),
                _ => failed(mount_point, source),
            }
        })?;
        // Nothing is open yet, so here dropping the session takes away this mount and no other.
        if let Some(passthrough) = passthrough {
            passthrough.probe(&session)?;
        }
        let session = ManuallyDrop::new(session.spawn().map_err(|source| {
            take_away_leftover(mount_point);
            failed(mount_point, source)
        })?);
        let Some(mount) = mountinfo::top_at(mount_point).map_err(MountError::Table)? else {
            // Somebody was faster and took it away again.
            return Err(MountError::Vanished { mount_point: mount_point.to_owned() });
        };
        read_ahead::widen(&mount);
        tracing::info!("mounted at {}, batches served {}", mount_point.display(), serving.words());
        Ok(Self { mount_point, id: mount.id, session })
    }

    /// Waits for the end, and ends the mount when a signal asks for it.
    fn wait(&self, inbox: &mpsc::Receiver<Event>, tree: &Tree, grace: Duration) -> Result<(), MountError> {
        loop {
            match inbox.recv_timeout(10 * POLL) {
                Ok(Event::Ended) => return self.after_the_session(),
                Ok(Event::Signal(signal)) => {
                    tracing::info!("signal {signal}: unmounting");
                    self.detach();
                    self.wait_for_readers(inbox, tree, grace);
                    return Ok(());
                }
                // A loop thread that died takes the others with it without a word.
                Err(_) if self.session.guard.is_finished() => return self.after_the_session(),
                Err(_) => {}
            }
        }
    }

    /// The session is over. Normally because the mount was taken away; if it is still there, nothing serves it any more.
    fn after_the_session(&self) -> Result<(), MountError> {
        let still_there = mountinfo::read().is_ok_and(|mounts| mounts.iter().any(|m| m.id == self.id));
        if still_there {
            self.detach();
            return Err(MountError::SessionDied { mount_point: self.mount_point.to_owned() });
        }
        tracing::info!("unmounted");
        Ok(())
    }

    /// After the detach: until nothing is open and the loops have ended, or the time is over, or a second signal comes.
    fn wait_for_readers(&self, inbox: &mpsc::Receiver<Event>, tree: &Tree, grace: Duration) {
        let detached = Instant::now();
        let mut closed = None;
        loop {
            let n_open = tree.n_open();
            if n_open == 0 {
                // Something else, a working directory for instance, may hold the mount: that is not waited for.
                let since = *closed.get_or_insert_with(Instant::now);
                if since.elapsed() >= LOOP_TIME {
                    break;
                }
            } else {
                closed = None;
                if detached.elapsed() >= grace {
                    tracing::warn!("ending with {n_open} open files");
                    break;
                }
            }
            match inbox.recv_timeout(POLL) {
                Err(mpsc::RecvTimeoutError::Timeout) if !self.session.guard.is_finished() => {}
                // The session's end, or a second signal.
                _ => break,
            }
        }
    }

    /// Takes the mount out of the tree of names, whoever uses it.
    fn detach(&self) {
        match unmount_if_top(self.mount_point, self.id, true) {
            Ok(()) => {}
            // Somebody else was faster.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => tracing::error!("cannot unmount {}: {error}", self.mount_point.display()),
        }
    }
}

/// A session that failed after the kernel had mounted it: the mount point was free before, so what is there now is ours.
fn take_away_leftover(mount_point: &Path) {
    let leftover = mountinfo::top_at(mount_point).ok().flatten().filter(mountinfo::Mount::is_ours);
    if let Some(Err(error)) = leftover.map(|mount| unmount_if_top(mount_point, mount.id, true)) {
        tracing::error!("cannot unmount {}: {error}", mount_point.display());
    }
}

fn session_config(config: &MountConfig) -> Config {
    let mut session = Config::default();
    session.mount_options = vec![
        MountOption::FSName(mountinfo::SOURCE.to_owned()),
        MountOption::Subtype(mountinfo::SOURCE.to_owned()),
        // The kernel answers EROFS to everything that would change something; without it, root could open for writing.
        MountOption::RO,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoExec,
        MountOption::NoAtime,
    ];
    if config.allow_other {
        session.acl = SessionACL::All;
        session.mount_options.push(MountOption::DefaultPermissions);
    }
    session.n_threads = Some(config.n_loop_threads.max(1));
    session
}
