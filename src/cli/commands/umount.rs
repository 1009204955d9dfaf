//! `shufflefs umount`.

use crate::cli::args::UmountArgs;

/// Unmounts and waits until the daemon has ended.
pub fn run(args: &UmountArgs) -> anyhow::Result<()> {
    Ok(crate::mount::umount(&std::path::absolute(&args.mount_point)?, args.lazy)?)
}
