#!/usr/bin/env bash
# Runs every fuzz target for some seconds.
#
# usage: scripts/fuzz.sh [SECONDS]      default: 60 each
#
# Needs cargo-fuzz. On a stable toolchain without a sanitizer (what is looked for are panics, overflows and too much memory); with the address sanitizer
# where a nightly toolchain is installed and FUZZ_NIGHTLY is set. What was found before is in fuzz/corpus of the cache folder, and is where the next run
# starts; a finding is written to fuzz/artifacts there.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

seconds=${1:-60}
work=${FUZZ_DIR:-$dev_cache/fuzz}
toolchain=() sanitizer=none
if [ -n "${FUZZ_NIGHTLY:-}" ] && command -v rustup >/dev/null && rustup toolchain list | grep -q ^nightly; then
    toolchain=(+nightly) sanitizer=address
fi
command -v cargo-fuzz >/dev/null || die "no cargo-fuzz: cargo install --locked cargo-fuzz"
mkdir -p "$work"
for target in fuzz/fuzz_targets/*.rs; do
    name=$(basename "$target" .rs)
    mkdir -p "$work/corpus/$name" "$work/artifacts/$name"
    say "fuzz $name: $seconds s, sanitizer $sanitizer"
    CARGO_TARGET_DIR=$work/target cargo "${toolchain[@]}" fuzz run --dev --sanitizer "$sanitizer" "$name" "$work/corpus/$name" -- \
        -max_total_time="$seconds" -max_len=20000 -rss_limit_mb=512 -timeout=10 -verbosity=0 -print_final_stats=1 \
        -artifact_prefix="$work/artifacts/$name/"
done
