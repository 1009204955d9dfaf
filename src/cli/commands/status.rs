//! `shufflefs status`.

use std::io::Write as _;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::cli::args::StatusArgs;
use crate::cli::text::{bytes, count};
use crate::mount::{MountState, list_mounts};

/// Prints the state of one mount, or the list of all.
pub fn run(args: &StatusArgs) -> anyhow::Result<()> {
    let text = match &args.mount_point {
        Some(mount_point) => {
            let path = mount_point.join(".shufflefs/status.json");
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("{}: no shufflefs mount answers there", mount_point.display()))?;
            if args.json { text } else { one(&serde_json::from_str(&text).context("status.json")?) }
        }
        None => all(args.json)?,
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

fn all(as_json: bool) -> anyhow::Result<String> {
    // Mounts of other users do not answer us.
    let mounts: Vec<_> = list_mounts()?.into_iter().filter(|m| m.state != MountState::Denied).collect();
    if as_json {
        let list: Vec<Value> = mounts
            .iter()
            .map(|m| json!({"mount_point": m.mount_point.display().to_string(), "state": state(m.state)}))
            .collect();
        return Ok(format!("{}\n", serde_json::to_string_pretty(&list)?));
    }
    if mounts.is_empty() {
        return Ok("no shufflefs mount\n".to_owned());
    }
    Ok(mounts.iter().map(|m| format!("{:8} {}\n", state(m.state), m.mount_point.display())).collect())
}

fn state(state: MountState) -> &'static str {
    match state {
        MountState::Serving => "serving",
        MountState::Dead => "dead",
        MountState::Hanging => "hanging",
        MountState::Denied => "denied",
    }
}

/// The state of a mount in a few lines.
fn one(status: &Value) -> String {
    let number = |path: &str| status.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    let ratio = |path: &str| status.pointer(path).and_then(Value::as_f64).map_or("-".to_owned(), |v| format!("{v:.2}"));
    let seconds = |path: &str| number(path) as f64 / 1e9;
    let mut lines = vec![
        format!(
            "batches   {} assembled, {} failed, {} opened ({} found ready, hit rate {}), {} waiting",
            count(number("/counters/batches")),
            count(number("/counters/batches_failed")),
            count(number("/counters/opens")),
            count(number("/counters/opens_ready")),
            ratio("/hit_rate"),
            count(number("/opens_waiting"))
        ),
        format!(
            "reads     {} reads, {}; {} decoded, decoded/needed {}",
            count(number("/counters/reads")),
            bytes(number("/counters/bytes_read")),
            bytes(number("/counters/bytes_decoded")),
            ratio("/decoded_per_needed")
        ),
        format!(
            "memory    {} of {} in batches (most so far {}), {} ready",
            bytes(number("/images/used_bytes")),
            bytes(number("/images/limit_bytes")),
            bytes(number("/images/peak_bytes")),
            count(number("/images/ready"))
        ),
        format!(
            "time      read {:.1} s, decode {:.1} s, scatter {:.1} s in {} threads; readers waited {:.1} s",
            seconds("/counters/read_ns"),
            seconds("/counters/decode_ns"),
            seconds("/counters/scatter_ns"),
            number("/threads"),
            seconds("/counters/open_wait_ns")
        ),
    ];
    lines.extend(io_line(status));
    let jumping = status.pointer("/read_out_of_order").and_then(Value::as_array).map_or(0, Vec::len);
    if jumping > 0 {
        lines.push(
            "warning   names are opened out of order, which is slow: read them as in batches.txt, shuffle=False"
                .to_owned(),
        );
    }
    lines.join("\n") + "\n"
}

/// How batches reach their readers.
fn io_line(status: &Value) -> Option<String> {
    let io = status.get("io")?;
    let word = |name: &str| io.get(name).and_then(Value::as_str).unwrap_or("?");
    let number = |path: &str| io.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    let mut line =
        format!("served    {} ({}), {} reads answered", word("mode"), word("reason"), count(number("/reads")));
    if io.get("backing").is_some() {
        line.push_str(&format!(
            "; {} of {} in {} files, {} opens copied, {} found a file, {} direct",
            bytes(number("/backing/used_bytes")),
            bytes(number("/backing/limit_bytes")),
            count(number("/backing/files")),
            count(number("/backing/opens_filled")),
            count(number("/backing/opens_shared")),
            count(number("/backing/opens_direct"))
        ));
    }
    Some(line)
}
