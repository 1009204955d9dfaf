//! Opening files beneath a folder, and nowhere else.
//!
//! A store may come from anywhere, and its names and links are not to be trusted: nothing outside its folder is ever opened. The kernel
//! resolves the whole path under that rule (`openat2` with `RESOLVE_BENEATH`): `..` and links may be used inside, but what leads out
//! fails with `EXDEV`. Before Linux 5.6, and where a sandbox forbids the call, paths are opened name by name and no link is followed.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::Mode;

/// Tries of a path that is being renamed meanwhile.
const MAX_TRIES: u32 = 8;

/// False once the kernel refused `openat2` as such.
static HAS_OPENAT2: AtomicBool = AtomicBool::new(true);

/// Opens the folder `path`, as a place to open files beneath.
///
/// # Errors
/// What the operating system says.
pub fn folder(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(nix::fcntl::open(path, flags, Mode::empty())?)
}

/// Opens the file `path` beneath `folder` for reading. It may be of any kind; a pipe does not block.
///
/// # Errors
/// `EXDEV` or `ELOOP` if the path leads out of the folder, else what the operating system says.
pub fn file(folder: BorrowedFd<'_>, path: &Path) -> io::Result<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    Ok(File::from(open(folder, path, flags)?))
}

/// Opens the folder `path` beneath `folder`, for listing or as a place.
///
/// # Errors
/// As [`file()`].
pub fn subfolder(folder: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    Ok(open(folder, path, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)?)
}

/// True if `error` says that a path leads out of the folder.
#[must_use]
pub fn leads_out(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EXDEV | libc::ELOOP))
}

/// True if `error` says that there is nothing at a path.
#[must_use]
pub fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR))
}

fn open(folder: BorrowedFd<'_>, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    if !HAS_OPENAT2.load(Ordering::Relaxed) {
        return name_by_name(folder, path, flags);
    }
    let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    for _ in 0..MAX_TRIES {
        match openat2(folder, path, how) {
            // Something was renamed at the same time, so that the kernel cannot tell.
            Err(Errno::EAGAIN) => {}
            Err(Errno::ENOSYS | Errno::EPERM) => {
                let opened = name_by_name(folder, path, flags);
                if opened.is_ok() {
                    HAS_OPENAT2.store(false, Ordering::Relaxed);
                }
                return opened;
            }
            other => return other,
        }
    }
    Err(Errno::EAGAIN)
}

/// As [`open`] without `openat2`: every name is opened for itself, and none of them may be a link.
fn name_by_name(folder: BorrowedFd<'_>, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => names.push(name),
            Component::CurDir => {}
            _ => return Err(Errno::EXDEV),
        }
    }
    let Some((last, folders)) = names.split_last() else { return Err(Errno::ENOENT) };
    let mut at: Option<OwnedFd> = None;
    for name in folders {
        let step = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        at = Some(without_link(at.as_ref().map_or(folder, AsFd::as_fd), name, step)?);
    }
    without_link(at.as_ref().map_or(folder, AsFd::as_fd), last, flags)
}

/// Opens the entry `name` of a folder; `ELOOP` if it is a link.
fn without_link(folder: BorrowedFd<'_>, name: &OsStr, flags: OFlag) -> nix::Result<OwnedFd> {
    match openat(folder, name, flags | OFlag::O_NOFOLLOW, Mode::empty()) {
        // A link is no folder, which is how the kernel tells it where a folder is asked for.
        Err(Errno::ENOTDIR) => {
            let found = nix::sys::stat::fstatat(folder, name, nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW)?;
            let is_link = found.st_mode & libc::S_IFMT == libc::S_IFLNK;
            Err(if is_link { Errno::ELOOP } else { Errno::ENOTDIR })
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn nothing_leads_out() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        fs::create_dir_all(store.join("a/b")).unwrap();
        fs::write(dir.path().join("secret"), "secret").unwrap();
        fs::write(store.join("a/b/file"), "inside").unwrap();
        symlink("../../secret", store.join("a/out")).unwrap();
        symlink(dir.path().join("secret"), store.join("a/absolute")).unwrap();
        symlink("b/file", store.join("a/inward")).unwrap();
        symlink("../..", store.join("a/up")).unwrap();
        symlink("/proc/self/root", store.join("a/magic")).unwrap();
        let root = folder(&store).unwrap();
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let both = |path: &str| {
            let path = Path::new(path);
            [open(root.as_fd(), path, flags), name_by_name(root.as_fd(), path, flags)]
        };
        for opened in both("a/b/file") {
            let text = io::read_to_string(File::from(opened.unwrap())).unwrap();
            assert_eq!(text, "inside");
        }
        for path in
            ["a/out", "a/absolute", "a/up/secret", "../secret", "a/../../secret", "a/magic/etc/hostname", "/etc"]
        {
            for opened in both(path) {
                let error = io::Error::from(opened.expect_err(path));
                assert!(leads_out(&error), "{path}: {error}");
            }
        }
        let [first, second] = both("a/inward");
        assert!(first.is_ok());
        assert!(leads_out(&second.unwrap_err().into()), "no link is followed where the kernel cannot tell");
        for path in ["a/nothing", "nothing/at/all", "a/b/file/below"] {
            for opened in both(path) {
                assert!(is_absent(&opened.unwrap_err().into()), "{path}");
            }
        }
        assert!(file(root.as_fd(), Path::new("a/b/file")).is_ok());
        assert!(subfolder(root.as_fd(), Path::new("a/b")).is_ok());
        assert!(subfolder(root.as_fd(), Path::new("a/b/file")).is_err());
    }
}
