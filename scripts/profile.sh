#!/usr/bin/env bash
# A flame graph of everything that happens on this machine while a command runs: the mount, the kernel and the reader.
#
# usage: scripts/profile.sh OUT.svg TITLE COMMAND...
#   for example: scripts/profile.sh gzip.svg 'gzip, one epoch' python3 scripts/bench/read_mount.py shufflefs cells.h5ad
#
# Needs perf (Debian: linux-perf) and inferno (cargo install inferno), and the rights to profile the whole machine. Threads of one kind are one
# tower; what else runs is left out. User stacks are unwound by their debug information, so the binary may be any release build.
here=$PWD
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

[ $# -ge 3 ] || die "usage: scripts/profile.sh OUT.svg TITLE COMMAND..."
cd "$here"
out=$(realpath -m "$1") title=$2
shift 2
for tool in perf inferno-collapse-perf inferno-flamegraph; do
    command -v "$tool" >/dev/null || die "no $tool: apt install linux-perf, cargo install inferno"
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
perf record -a -F 499 --call-graph dwarf,8192 -e cpu-clock -o "$work/perf.data" -- "$@" >&2
perf script --no-inline -i "$work/perf.data" 2>"$work/errors" | inferno-collapse-perf >"$work/folded" 2>>"$work/errors" ||
    die "$(tail -5 "$work/errors")"
grep -E '^(decode|fuser|read|populate|shufflefs|python|render)' "$work/folded" |
    sed -E 's/^(decode|fuser|read)-[0-9]+/\1/; s/^python[0-9.]*/reader/; s/;clone3;start_thread;.*__rust_begin_short_backtrace;/;/' |
    inferno-flamegraph --minwidth 0.2 --hash --title "$title" >"$out"
