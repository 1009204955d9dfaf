//! How much memory there is: of the machine, and of the control groups this process is in.

use std::fs;
use std::path::Path;

/// The smaller of the machine's memory and the limits of all control groups above this process, in bytes. `None` if the system
/// does not tell.
#[must_use]
pub fn available_bytes() -> Option<u64> {
    let ram = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_of_meminfo(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = groups.lines().filter_map(|line| limit_of_group(line, Path::new("/sys/fs/cgroup")));
    limits.chain(ram).min()
}

fn total_of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The smallest limit on the way from a group to the root, for one line of `/proc/self/cgroup`: version 2 (`0::/path`) or the memory
/// controller of version 1 (`n:memory:/path`).
fn limit_of_group(line: &str, root: &Path) -> Option<u64> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let (base, file) = match controllers {
        "" => (root.to_owned(), "memory.max"),
        c if c.split(',').any(|c| c == "memory") => (root.join("memory"), "memory.limit_in_bytes"),
        _ => return None,
    };
    let group = base.join(path.trim_start_matches('/'));
    let above = group.ancestors().take_while(|dir| dir.starts_with(&base));
    above.filter_map(|dir| fs::read_to_string(dir.join(file)).ok()?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo() {
        assert_eq!(total_of_meminfo("MemTotal:       24554972 kB\nMemFree: 1 kB\n"), Some(24_554_972 * 1024));
        assert!(available_bytes().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn the_smallest_limit_above_counts() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("a/b");
        fs::create_dir_all(&deep).unwrap();
        fs::write(root.path().join("a/memory.max"), "1000\n").unwrap();
        fs::write(deep.join("memory.max"), "max\n").unwrap();
        assert_eq!(limit_of_group("0::/a/b", root.path()), Some(1000));
        let v1 = root.path().join("memory/x");
        fs::create_dir_all(&v1).unwrap();
        fs::write(v1.join("memory.limit_in_bytes"), "77").unwrap();
        assert_eq!(limit_of_group("4:memory:/x", root.path()), Some(77));
        assert_eq!(limit_of_group("5:cpu,cpuacct:/x", root.path()), None);
    }
}
