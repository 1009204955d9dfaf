//! The mount point: what may be mounted over, what is repaired, what is refused.
//!
//! A missing directory is made (and removed at the end). A directory that holds something is refused, since the mount would hide
//! it without a word. After the death of a daemon its mount stays in the table and answers every call with `ENOTCONN`; such a
//! mount of our own is taken away, a living one and anybody else's are refused.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::MountError;
use super::mountinfo;
use super::unmount::{MountState, state_of, unmount_if_top};

/// A directory to mount at.
#[derive(Debug)]
pub(super) struct MountPoint {
    path: PathBuf,
    made: bool,
    /// Held from just before the mount is made: of two that start at the same time, one is refused.
    lock: Option<Flock<File>>,
}

impl MountPoint {
    /// Checks what is at `path` and repairs a dead mount of our own. Makes nothing yet, so that it can be called before the long
    /// work of opening a dataset.
    pub fn check(path: &Path) -> Result<Self, MountError> {
        let path = canonical(path).map_err(|source| MountError::Io { mount_point: path.to_owned(), source })?;
        if let Some(mount) = mountinfo::top_at(&path).map_err(MountError::Table)? {
            if !mount.is_ours() {
                return Err(MountError::ForeignMount {
                    mount_point: path,
                    fs_source: mount.source,
                    fs_type: mount.fs_type,
                });
            }
            if state_of(&path) != MountState::Dead {
                return Err(MountError::AlreadyMounted { mount_point: path });
            }
            match unmount_if_top(&path, mount.id, true) {
                Ok(()) => tracing::warn!("{}: took away the mount of a daemon that is gone", path.display()),
                // It went away by itself in the meantime.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(source) => return Err(MountError::Io { mount_point: path, source }),
            }
            return Self::check(&path);
        }
        match std::fs::read_dir(&path).map(|mut entries| entries.next().is_some()) {
            Ok(false) => Ok(Self { path, made: false, lock: None }),
            Ok(true) => Err(MountError::NotEmpty { mount_point: path }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::check_parent(path),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                Err(MountError::NotDirectory { mount_point: path })
            }
            Err(source) => Err(MountError::Io { mount_point: path, source }),
        }
    }

    fn check_parent(path: PathBuf) -> Result<Self, MountError> {
        match path.parent().map(Path::is_dir) {
            Some(true) => Ok(Self { path, made: false, lock: None }),
            _ => Err(MountError::NoParent { mount_point: path }),
        }
    }

    /// The path, absolute and without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the directory if it is missing.
    pub fn make(&mut self) -> Result<(), MountError> {
        match std::fs::create_dir(&self.path) {
            Ok(()) => self.made = true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(MountError::Io { mount_point: self.path.clone(), source }),
        }
        self.take()
    }

    /// Locks the directory below the mount, and looks again whether somebody else was faster.
    fn take(&mut self) -> Result<(), MountError> {
        let failed = |source| MountError::Io { mount_point: self.path.clone(), source };
        let taken = || MountError::AlreadyMounted { mount_point: self.path.clone() };
        if mountinfo::top_at(&self.path).map_err(MountError::Table)?.is_some() {
            return Err(taken());
        }
        let dir = File::open(&self.path).map_err(failed)?;
        match Flock::lock(dir, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => self.lock = Some(lock),
            Err((_, Errno::EAGAIN)) => return Err(taken()),
            // A directory that cannot be locked (some network file systems) is mounted over all the same.
            Err(_) => {}
        }
        match mountinfo::top_at(&self.path).map_err(MountError::Table)? {
            Some(_) => Err(taken()),
            None => Ok(()),
        }
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        if self.made {
            // Whoever put something there, or mounted there, keeps it: only an empty directory goes.
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

/// `path` made absolute, with the links of its parents resolved, and of itself if it is one. A dead mount cannot be resolved
/// by the system, so the last component is left alone otherwise.
pub(super) fn canonical(path: &Path) -> io::Result<PathBuf> {
    // Collecting the components drops a slash at the end, which would make the system follow a link.
    let path: PathBuf = std::path::absolute(path)?.components().collect();
    if std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_symlink()) {
        return path.canonicalize();
    }
    // A path that ends in `..` has no name to keep.
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.canonicalize().unwrap_or_else(|_| parent.to_owned()).join(name)),
        _ => path.canonicalize(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_empty_or_missing_directories_are_taken() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let empty = root.join("empty");
        std::fs::create_dir(&empty).unwrap();
        std::fs::write(root.join("file"), "x").unwrap();
        std::os::unix::fs::symlink(&empty, root.join("link")).unwrap();

        assert_eq!(MountPoint::check(&empty).unwrap().path(), empty);
        assert_eq!(MountPoint::check(&root.join("link/")).unwrap().path(), empty);
        assert_eq!(MountPoint::check(&root.join("empty/../empty/.")).unwrap().path(), empty);
        assert!(matches!(MountPoint::check(&root), Err(MountError::NotEmpty { .. })));
        assert!(matches!(MountPoint::check(&root.join("file")), Err(MountError::NotDirectory { .. })));
        assert!(matches!(MountPoint::check(&root.join("no/such")), Err(MountError::NoParent { .. })));
        let foreign = MountPoint::check(Path::new("/proc"));
        assert!(
            matches!(foreign, Err(MountError::ForeignMount { ref fs_type, .. }) if fs_type == "proc"),
            "{foreign:?}"
        );
    }

    #[test]
    fn a_missing_directory_is_made_and_removed_unless_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join("mnt");
        let mut point = MountPoint::check(&path).unwrap();
        assert!(!path.exists());
        point.make().unwrap();
        assert!(path.is_dir());
        drop(point);
        assert!(!path.exists());

        let mut point = MountPoint::check(&path).unwrap();
        point.make().unwrap();
        std::fs::write(path.join("kept"), "x").unwrap();
        drop(point);
        assert!(path.join("kept").exists());
    }
}
