//! How batches reach their readers: what was asked for, what the kernel allows, and what is in force.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// How batches reach their readers (`--io`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IoMode {
    /// [`IoMode::Direct`] where the kernel can map files that are served that way, [`IoMode::Cached`] elsewhere.
    #[default]
    Auto,
    /// As files of the kernel: no request per read, and mappings share their pages. Root only, Linux 6.9.
    Passthrough,
    /// Straight from the image: one copy, and nothing stays in the page cache.
    Direct,
    /// Through the page cache.
    Cached,
}

impl std::str::FromStr for IoMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "passthrough" => Ok(Self::Passthrough),
            "direct" => Ok(Self::Direct),
            "cached" => Ok(Self::Cached),
            other => Err(format!("{other}: expected auto, passthrough, direct or cached")),
        }
    }
}

/// The mode that the kernel and the user agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settled {
    Cached = 0,
    Direct = 1,
    Passthrough = 2,
}

/// The mode in force, and the reads that were answered.
#[derive(Debug)]
pub(super) struct IoState {
    wanted: IoMode,
    settled: AtomicU8,
    n_reads: AtomicU64,
    read_bytes: AtomicU64,
}

impl IoState {
    pub fn new(wanted: IoMode) -> Self {
        Self { wanted, settled: AtomicU8::default(), n_reads: AtomicU64::default(), read_bytes: AtomicU64::default() }
    }

    /// Settles the mode, once, when the kernel has said what it can. `can_map`: files served by direct I/O can be mapped;
    /// `can_pass`: it takes backing files. `None` if what was asked for is not to be had.
    pub fn settle(&self, can_map: bool, can_pass: bool) -> Option<Settled> {
        let settled = match self.wanted {
            IoMode::Passthrough if can_map && can_pass => Settled::Passthrough,
            IoMode::Auto | IoMode::Direct if can_map => Settled::Direct,
            IoMode::Auto | IoMode::Cached => Settled::Cached,
            IoMode::Passthrough | IoMode::Direct => return None,
        };
        self.settled.store(settled as u8, Relaxed);
        Some(settled)
    }

    pub fn wanted(&self) -> IoMode {
        self.wanted
    }

    pub fn settled(&self) -> Settled {
        match self.settled.load(Relaxed) {
            2 => Settled::Passthrough,
            1 => Settled::Direct,
            _ => Settled::Cached,
        }
    }

    /// Counts an answered read.
    pub fn count_read(&self, n_bytes: usize) {
        self.n_reads.fetch_add(1, Relaxed);
        self.read_bytes.fetch_add(crate::num::to_u64(n_bytes), Relaxed);
    }

    /// The mode as `--io` spells it.
    pub fn mode(&self) -> &'static str {
        match self.settled() {
            Settled::Cached => "cached",
            Settled::Direct => "direct",
            Settled::Passthrough => "passthrough",
        }
    }

    /// Why this mode.
    pub fn reason(&self) -> &'static str {
        match (self.wanted, self.settled()) {
            (IoMode::Auto, Settled::Cached) => {
                "auto: this kernel cannot map files that are served directly, Linux 6.6 can"
            }
            (IoMode::Auto, _) => "auto: the fastest where a batch is read once",
            _ => "asked for",
        }
    }

    /// The state as a JSON object, for `status.json`.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "mode": self.mode(),
            "reason": self.reason(),
            "reads": self.n_reads.load(Relaxed),
            "read_bytes": self.read_bytes.load(Relaxed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_or_nothing() {
        let settle = |wanted, can_map, can_pass| IoState::new(wanted).settle(can_map, can_pass);
        assert_eq!(settle(IoMode::Auto, true, true), Some(Settled::Direct));
        assert_eq!(settle(IoMode::Auto, false, false), Some(Settled::Cached));
        assert_eq!(settle(IoMode::Direct, false, true), None);
        assert_eq!(settle(IoMode::Cached, true, true), Some(Settled::Cached));
        assert_eq!(settle(IoMode::Passthrough, true, true), Some(Settled::Passthrough));
        assert_eq!(settle(IoMode::Passthrough, true, false), None);
        assert_eq!("passthrough".parse(), Ok(IoMode::Passthrough));
    }
}
