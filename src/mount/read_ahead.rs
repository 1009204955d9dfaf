//! How far the kernel reads ahead in a mount.
//!
//! Who maps a batch, as `safetensors.load_file` does, faults its pages in, and around each fault the kernel asks for as much as the
//! read-ahead of the file system says: 128 KiB, so a batch of 4 MiB takes thirty requests. A file system may ask for less than that in
//! its first message, but not for more; root can, for this mount alone, by the `read_ahead_kb` of its backing device information
//! (`Documentation/ABI/testing/sysfs-class-bdi` of Linux). Measured (docs/PERFORMANCE.md): `load_file` of numpy and of PyTorch is 1.05
//! times as fast with 1 MiB; with 4 MiB the first gains more, and the second loses.

use super::mountinfo::Mount;

/// The longest request that the kernel makes.
const READ_AHEAD_KB: u32 = 1024;

/// Asks for more read-ahead in this mount, where that is allowed.
pub(super) fn widen(mount: &Mount) {
    let path = format!("/sys/class/bdi/{}/read_ahead_kb", mount.device);
    if let Err(error) = std::fs::write(&path, READ_AHEAD_KB.to_string()) {
        tracing::debug!("{path} stays as it is: {error}");
    }
}
