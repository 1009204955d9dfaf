//! What processes used: CPU time, memory, the load of the machine.

use std::fs;

use anyhow::Context as _;
use nix::sys::resource::{UsageWho, getrusage};
use nix::unistd::{SysconfVar, sysconf};

/// User and system time of this process so far, in seconds.
pub(super) fn own_cpu_seconds() -> anyhow::Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// Makes the peak of this process's memory start anew. Where the kernel does not allow it, the peak of an earlier measurement stays.
pub(super) fn reset_peak_memory() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// What `/proc` says of a process.
pub(super) struct ProcessUsage {
    /// The most memory that was ever resident.
    pub(super) peak_bytes: u64,
    /// User and system time in seconds, in steps of 10 ms.
    pub(super) cpu_s: f64,
}

impl ProcessUsage {
    /// Of the process `pid`, or of `self`.
    pub(super) fn of(pid: &str) -> anyhow::Result<Self> {
        let read = |name: &str| {
            let path = format!("/proc/{pid}/{name}");
            fs::read_to_string(&path).with_context(|| path.clone())
        };
        let ticks_per_s = sysconf(SysconfVar::CLK_TCK)?.unwrap_or(100);
        let cpu_ticks = cpu_ticks(&read("stat")?).with_context(|| format!("/proc/{pid}/stat: no times in it"))?;
        Ok(Self { peak_bytes: peak_bytes(&read("status")?).unwrap_or(0), cpu_s: cpu_ticks as f64 / ticks_per_s as f64 })
    }
}

/// Fields 14 and 15 of `/proc/PID/stat`; the second one, a name in parentheses, may hold anything.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    next()?.checked_add(next()?)
}

fn peak_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Processes that wanted to run in the last minute, on average.
pub(super) fn load1() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files() {
        let stat = "7 (a ) b) S 1 2 3 0 -1 4194560 10 20 30 40 150 25 1 1 20 0 9 0";
        assert_eq!(cpu_ticks(stat), Some(175));
        assert_eq!(cpu_ticks("7 (a) S 1"), None);
        assert_eq!(peak_bytes("VmPeak:\t 9 kB\nVmHWM:\t  2048 kB\n"), Some(2 << 20));
        let own = ProcessUsage::of("self").unwrap();
        assert!(own.peak_bytes > 1 << 20 && load1().is_some());
    }
}
