//! A tmpfs that nobody sees: made by the mount system calls (`fsopen`, `fsconfig`, `fsmount`) and never attached to the tree of
//! names, so it is in no mount table, and it is gone, pages and all, when the last descriptor and the last mapping are.
//!
//! Its files have no names (`O_TMPFILE`). With `huge=within_size`, and the size set before anything is written, whole 2 MiB pieces of a
//! file are huge pages and the rest are small ones, so a file takes its size rounded up to 4 KiB. `fallocate` of the whole size
//! comes first: a full tmpfs is then a clean `ENOSPC` that leaves nothing behind, and the pages are not zeroed before they are
//! written.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::fcntl::{FallocateFlags, fallocate};

/// Constants of `linux/mount.h` that `libc` does not have for every target.
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;
const FSCONFIG_SET_FLAG: libc::c_uint = 0;
const FSCONFIG_SET_STRING: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
const MOUNT_ATTR_NOSUID: libc::c_uint = 2;
const MOUNT_ATTR_NODEV: libc::c_uint = 4;
const MOUNT_ATTR_NOEXEC: libc::c_uint = 8;

/// A detached tmpfs.
#[derive(Debug)]
pub(super) struct Tmpfs {
    mount: OwnedFd,
    limit_bytes: u64,
}

impl Tmpfs {
    /// A tmpfs of at most `limit_bytes`, which must not be 0 (the kernel takes that as "no limit").
    ///
    /// # Errors
    /// What the kernel says: `EPERM` without `CAP_SYS_ADMIN`, `ENOSYS` before Linux 5.2.
    pub fn new(limit_bytes: u64) -> io::Result<Self> {
        let context = Context::open(c"tmpfs")?;
        let size = std::ffi::CString::new(limit_bytes.max(1).to_string())?;
        context.set(c"size", &size)?;
        context.set(c"mode", c"0700")?;
        // Kernels without huge pages, user namespaces and kernels before 6.4 refuse these; everything works without them.
        for refused in [context.set(c"huge", c"within_size"), context.flag(c"noswap")] {
            if let Err(error) = refused {
                tracing::debug!("tmpfs: an option is refused: {error}");
            }
        }
        Ok(Self { mount: context.mount()?, limit_bytes })
    }

    /// A nameless file of `size_bytes`, all of its memory allocated, none of it written.
    ///
    /// # Errors
    /// `ENOSPC` if the tmpfs is full.
    pub fn file(&self, size_bytes: u64) -> io::Result<File> {
        let flags = libc::O_TMPFILE | libc::O_EXCL | libc::O_RDWR | libc::O_CLOEXEC;
        // SAFETY: `mount` is an open descriptor and the path a string with its end; the result is checked.
        #[allow(unsafe_code)]
        let fd = unsafe { libc::openat(self.mount.as_raw_fd(), c".".as_ptr(), flags, 0o600) };
        let file = File::from(owned(fd.into())?);
        let len = libc::off_t::try_from(size_bytes).map_err(|_| io::Error::from_raw_os_error(libc::ENOSPC))?;
        fallocate(&file, FallocateFlags::empty(), 0, len)?;
        Ok(file)
    }

    /// The most bytes that all files take together.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Bytes that files take now, those included that are only mapped any more.
    pub fn used_bytes(&self) -> u64 {
        nix::sys::statfs::fstatfs(&self.mount).map_or(0, |stat| {
            let block = u64::try_from(stat.block_size()).unwrap_or(0);
            stat.blocks().saturating_sub(stat.blocks_free()).saturating_mul(block)
        })
    }
}

/// A file system that is being configured.
struct Context(OwnedFd);

impl Context {
    fn open(fs_type: &CStr) -> io::Result<Self> {
        // SAFETY: the string has its end and outlives the call; the result is checked.
        #[allow(unsafe_code)]
        let fd = unsafe { libc::syscall(libc::SYS_fsopen, fs_type.as_ptr(), FSOPEN_CLOEXEC) };
        owned(fd).map(Self)
    }

    fn set(&self, key: &CStr, value: &CStr) -> io::Result<()> {
        self.config(FSCONFIG_SET_STRING, key.as_ptr(), value.as_ptr())
    }

    fn flag(&self, key: &CStr) -> io::Result<()> {
        self.config(FSCONFIG_SET_FLAG, key.as_ptr(), std::ptr::null())
    }

    fn mount(self) -> io::Result<OwnedFd> {
        self.config(FSCONFIG_CMD_CREATE, std::ptr::null(), std::ptr::null())?;
        let attributes = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
        // SAFETY: no pointer is passed; the result is checked.
        #[allow(unsafe_code)]
        let fd = unsafe { libc::syscall(libc::SYS_fsmount, self.0.as_raw_fd(), FSMOUNT_CLOEXEC, attributes) };
        owned(fd)
    }

    /// Both pointers are null or those of a [`CStr`] that the caller holds.
    fn config(&self, command: libc::c_uint, key: *const libc::c_char, value: *const libc::c_char) -> io::Result<()> {
        // SAFETY: the kernel reads the strings up to their ends during the call, see the contract above.
        #[allow(unsafe_code)]
        let result = unsafe { libc::syscall(libc::SYS_fsconfig, self.0.as_raw_fd(), command, key, value, 0) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// The descriptor that a system call returned.
fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    let Ok(fd @ 0..) = libc::c_int::try_from(fd) else { return Err(io::Error::last_os_error()) };
    // SAFETY: the kernel has just made the descriptor for this call, so nothing else owns it.
    #[allow(unsafe_code)]
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    /// `None`, with a loud message, without root.
    fn tmpfs(limit_bytes: u64) -> Option<Tmpfs> {
        match Tmpfs::new(limit_bytes) {
            Ok(tmpfs) => Some(tmpfs),
            Err(error) => {
                assert!(!nix::unistd::geteuid().is_root() || std::env::var_os("CI").is_none(), "root, but {error}");
                eprintln!("SKIPPED: no detached tmpfs ({error})");
                None
            }
        }
    }

    #[test]
    fn memory_is_bounded_and_comes_back_with_the_last_mapping() {
        let Some(tmpfs) = tmpfs(8 << 20) else { return };
        let size = (5 << 20) + 5;
        let file = tmpfs.file(size).unwrap();
        assert_eq!(file.metadata().unwrap().len(), size);
        assert_eq!(tmpfs.used_bytes(), size.next_multiple_of(4096));
        assert_eq!(tmpfs.file(size).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(tmpfs.used_bytes(), size.next_multiple_of(4096), "a refused file leaves nothing behind");
        file.write_all_at(&[7; 4096], size - 4096).unwrap();
        // SAFETY: nobody changes the file below.
        #[allow(unsafe_code)]
        let mapped = unsafe { memmap2::Mmap::map(&file) }.unwrap();
        drop(file);
        assert_eq!(tmpfs.used_bytes(), size.next_multiple_of(4096), "pages that are mapped are counted");
        assert_eq!((mapped[0], mapped[mapped.len() - 1]), (0, 7));
        drop(mapped);
        assert_eq!(tmpfs.used_bytes(), 0);
    }

    #[test]
    fn no_mount_table_shows_it() {
        let table = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let before = table();
        let Some(tmpfs) = tmpfs(1 << 20) else { return };
        let _file = tmpfs.file(1000).unwrap();
        assert_eq!(table().lines().count(), before.lines().count());
    }
}
