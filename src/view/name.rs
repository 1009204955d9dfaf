//! Names: what a node is called, and what a name means.
//!
//! A number has one spelling. A name is parsed loosely and then spelled again; only if that gives the same name does it
//! resolve, so `epoch-0`, `batch-12.safetensors` and `rank-00-of-04` are nobody's names.

use std::fmt::Write;

/// Digits of an epoch number, at least.
const EPOCH_DIGITS: usize = 5;
/// Digits of a batch number, at least.
const BATCH_DIGITS: usize = 7;

/// Puts `epoch-00000` in the place of `out`.
pub(super) fn epoch(out: &mut String, epoch: u32) {
    put(out, format_args!("epoch-{epoch:0EPOCH_DIGITS$}"));
}

/// Puts `rank-1-of-4` (or `host-...`) in the place of `out`.
pub(super) fn part(out: &mut String, what: &str, (part, parts): (u32, u32)) {
    put(out, format_args!("{what}-{part}-of-{parts}"));
}

/// The epoch of an epoch directory's name.
pub(super) fn parse_epoch(name: &str) -> Option<u32> {
    let number = parse_digits(name.strip_prefix("epoch-")?)?;
    let number = u32::try_from(number).ok()?;
    is_spelled(name, |out| epoch(out, number)).then_some(number)
}

/// The pair of `rank-r-of-R`, with `what` = `rank`; `r < R` is not checked.
pub(super) fn parse_part(name: &str, what: &str) -> Option<(u32, u32)> {
    let (part_, parts) = name.strip_prefix(what)?.strip_prefix('-')?.split_once("-of-")?;
    let pair = (u32::try_from(parse_digits(part_)?).ok()?, u32::try_from(parse_digits(parts)?).ok()?);
    is_spelled(name, |out| part(out, what, pair)).then_some(pair)
}

/// How the batches of one pass are called: all names have the same length.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchNames<'a> {
    n_digits: usize,
    extension: &'a str,
}

impl<'a> BatchNames<'a> {
    /// Names of a pass of `n_batches` batches.
    pub(super) fn new(n_batches: u64, extension: &'a str) -> Self {
        let last = n_batches.saturating_sub(1);
        let n_digits = last.checked_ilog10().map_or(1, |log| crate::num::to_usize(u64::from(log)) + 1);
        Self { n_digits: n_digits.max(BATCH_DIGITS), extension }
    }

    /// Length of every name, in bytes.
    pub(super) fn len_bytes(self) -> usize {
        "batch-".len() + self.n_digits + ".".len() + self.extension.len()
    }

    /// Puts the name of a batch in the place of `out`.
    pub(super) fn write(self, out: &mut String, batch: u64) {
        let Self { n_digits, extension } = self;
        put(out, format_args!("batch-{batch:0n_digits$}.{extension}"));
    }

    /// The number of the batch that has this name.
    pub(super) fn parse(self, name: &str) -> Option<u64> {
        let digits = name.strip_prefix("batch-")?.strip_suffix(self.extension)?.strip_suffix('.')?;
        let number = parse_digits(digits)?;
        is_spelled(name, |out| self.write(out, number)).then_some(number)
    }
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.clear();
    // Writing to a string does not fail.
    let _ = out.write_fmt(text);
}

/// Decimal digits only: `parse` alone would take a plus sign.
fn parse_digits(text: &str) -> Option<u64> {
    if text.is_empty() || text.len() > 20 || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

fn is_spelled(name: &str, spell: impl FnOnce(&mut String)) -> bool {
    let mut spelled = String::with_capacity(name.len());
    spell(&mut spelled);
    spelled == name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_spelling_is_a_name() {
        assert_eq!(parse_epoch("epoch-00012"), Some(12));
        assert_eq!(parse_epoch("epoch-123456"), Some(123_456));
        for bad in ["epoch-12", "epoch-000012", "epoch-", "epoch-+0012", "epoch-0001 ", "Epoch-00012", "epoch--0012"] {
            assert_eq!(parse_epoch(bad), None, "{bad}");
        }
        assert_eq!(parse_part("rank-3-of-16", "rank"), Some((3, 16)));
        for bad in ["rank-03-of-16", "rank-3-of-016", "rank-3-of", "rank-3-of-", "rank3-of-4", "host-3-of-16"] {
            assert_eq!(parse_part(bad, "rank"), None, "{bad}");
        }
    }

    #[test]
    fn batch_names_have_one_length_and_sort_like_their_numbers() {
        for (n_batches, n_digits) in [(0, 7), (1, 7), (10_000_000, 7), (10_000_001, 8), (1 << 32, 10)] {
            let names = BatchNames::new(n_batches, "npz");
            let mut previous = String::new();
            for batch in [0, 9, 10, 99_999, n_batches.saturating_sub(1).max(100_000)] {
                let mut name = String::new();
                names.write(&mut name, batch);
                assert_eq!(name.len(), 6 + n_digits + 4);
                assert_eq!(name.len(), names.len_bytes());
                assert_eq!(names.parse(&name), Some(batch));
                assert!(name > previous);
                previous = name;
            }
        }
        let names = BatchNames::new(12, "safetensors");
        for bad in [
            "batch-000001.safetensors",
            "batch-00000001.safetensors",
            "batch-0000001.npz",
            "batch-0000001safetensors",
            "batch-0000001.safetensors.safetensors",
            "batch-.safetensors",
            "batch-99999999999999999999999.safetensors",
        ] {
            assert_eq!(names.parse(bad), None, "{bad}");
        }
    }
}
