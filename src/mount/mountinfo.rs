//! `/proc/self/mountinfo`, as far as it is needed to recognise our own mounts.
//!
//! The format is that of `proc_pid_mountinfo(5)`: `id parent dev root mountpoint options [tags ...] - type source options`,
//! with space, tab, newline and backslash in paths written as octal escapes. Mounts that lie on top of each other appear in the
//! order in which they were made, so the last line of a mount point is the one that paths reach.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// What our mounts name as their source. The type does not tell: a mount made by root is plain `fuse`.
pub(super) const SOURCE: &str = "shufflefs";

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    /// Number of this mount, unique while it exists.
    pub id: u64,
    /// The number of its file system, as `major:minor`.
    pub device: String,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Type of the file system: `fuse`, `fuse.shufflefs`, `ext4`.
    pub fs_type: String,
    /// Its source.
    pub source: String,
}

impl Mount {
    /// True if it is one of ours.
    pub fn is_ours(&self) -> bool {
        self.source == SOURCE && (self.fs_type == "fuse" || self.fs_type.starts_with("fuse."))
    }
}

/// All mounts this process sees.
pub(super) fn read() -> io::Result<Vec<Mount>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// The mount that a path reaches at `mount_point`, if something is mounted there.
pub(super) fn top_at(mount_point: &Path) -> io::Result<Option<Mount>> {
    Ok(read()?.into_iter().rfind(|mount| mount.mount_point == mount_point))
}

fn parse(table: &[u8]) -> Vec<Mount> {
    table.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let device = String::from_utf8_lossy(fields.nth(1)?).into_owned();
    let mount_point = PathBuf::from(unescape(fields.nth(1)?));
    // Optional tags follow, as many as there are, up to a lone hyphen.
    fields.by_ref().find(|field| *field == b"-")?;
    let mut text = || fields.next().map(|field| unescape(field).to_string_lossy().into_owned());
    Some(Mount { id, device, mount_point, fs_type: text()?, source: text()? })
}

/// Undoes `\040` and the like.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| first == b'\\');
        let value =
            octal.and_then(|digits| std::str::from_utf8(digits).ok()).and_then(|d| u8::from_str_radix(d, 8).ok());
        bytes.push(value.unwrap_or(first));
        rest = tail.get(if value.is_some() { 3.. } else { 0.. }).unwrap_or_default();
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = r"22 27 0:21 / /proc rw,relatime - proc proc rw
90 27 0:50 / /mnt/a\040b\134c ro,nosuid,nodev,noexec shared:7 master:1 - fuse shufflefs ro,user_id=0
91 27 0:51 / /mnt/x ro - fuse.shufflefs shufflefs ro
92 27 0:52 / /mnt/x rw - tmpfs shufflefs rw
93 27 0:53 / /mnt/y ro - fuse.sshfs host:/ ro
garbage
";

    #[test]
    fn lines_are_taken_apart() {
        let mounts = parse(TABLE.as_bytes());
        assert_eq!(mounts.len(), 5);
        assert_eq!(mounts[1].mount_point, Path::new("/mnt/a b\\c"));
        let first = &mounts[1];
        assert_eq!((first.id, first.device.as_str(), first.fs_type.as_str()), (90, "0:50", "fuse"));
        let ours: Vec<_> = mounts.iter().filter(|m| m.is_ours()).map(|m| m.id).collect();
        assert_eq!(ours, [90, 91]);
    }

    #[test]
    fn the_table_of_this_process_is_readable() {
        let proc = top_at(Path::new("/proc")).unwrap().unwrap();
        assert_eq!(proc.fs_type, "proc");
        assert!(!proc.is_ours());
    }
}
