#!/usr/bin/env bash
# shufflefs and scDataset on the same files in one run, in turn, and a table of both.
#
# usage: scripts/bench.sh [--write] [DATA_DIR]
#   --write    put the tables into docs/PERFORMANCE.md instead of printing them
#   DATA_DIR   where the files are, or are made: about 7 GB, and 5 GB for scDataset's environment (torch)
#
# Reads a folder of peer benchmarks beside the checkout, ../shared/bench or $SHUFFLEFS_BENCH: gen_data.py makes the files (Python with
# numba, 4 minutes, 5 GB of memory), requirements-scdataset.txt says what scDataset needs.
#
#   BENCH_ROUNDS    rounds (5)                           BENCH_VARIANTS  files (gzip,none,lzf)
#   BENCH_SECONDS   per measurement of scDataset (8)     BENCH_CELLS     cells per file (200000)
#   BENCH_ENV       environments (DATA_DIR/env)          BENCH_PYTHON    an interpreter that has all packages, safetensors too
#   SHUFFLEFS_BIN   the binary (built from this checkout, release)
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

write=()
if [ "${1:-}" = --write ]; then
    write=(--write docs/PERFORMANCE.md)
    shift
fi
data=$(realpath -m "${1:-${SHUFFLEFS_BENCH_DATA:-$dev_cache/bench}}")
peers=${SHUFFLEFS_BENCH:-$root/../shared/bench}
rounds=${BENCH_ROUNDS:-5} seconds=${BENCH_SECONDS:-8} cells=${BENCH_CELLS:-200000}
variants=${BENCH_VARIANTS:-gzip,none,lzf}
env_dir=${BENCH_ENV:-$data/env}
export PYTHONDONTWRITEBYTECODE=1
note() { say "$@" >&2; }

[ -e "$peers/gen_data.py" ] || die "no peer benchmarks at $peers: without them there are neither files nor peers (SHUFFLEFS_BENCH names their folder)"
mkdir -p "$data"

# The environment is the one that the peers' own script makes, and is kept.
if [ -n "${BENCH_PYTHON:-}" ]; then
    python=$BENCH_PYTHON
else
    python=$env_dir/scdataset/bin/python
    if [ ! -e "$env_dir/scdataset/ready" ]; then
        note "install scDataset (some minutes: torch is large)"
        rm -rf "$env_dir/scdataset"
        "$(base_python)" -m venv "$env_dir/scdataset"
        "$env_dir/scdataset/bin/pip" install -q -r "$peers/requirements-scdataset.txt" >&2
        touch "$env_dir/scdataset/ready"
    fi
    "$python" -c 'import safetensors' 2>/dev/null || "$env_dir/scdataset/bin/pip" install -q "$torch_pins" >&2
fi
note "files in $data"
"$python" "$peers/gen_data.py" --out "$data" --cells "$cells" --variants "$variants" >&2
bin=${SHUFFLEFS_BIN:-$target_dir/release/shufflefs}
if [ -z "${SHUFFLEFS_BIN:-}" ]; then
    note "build"
    cargo build --release --locked >&2
fi

# What scDataset is fastest with, of all its shuffled settings with 64 rows per batch: block, fetch factor.
declare -A best=([gzip]="256 64" [none]="256 256" [lzf]="64 64")

results=$data/results-$(date +%Y%m%d-%H%M%S).jsonl
# measure CASE COMMAND...: runs it and keeps the lines it prints
measure() {
    local case=$1 lines
    shift
    lines=$("$@") || die "$case: failed"
    printf '%s\n' "$lines" | CASE=$case ROUND=$round FILE=$variant "$python" -c '
import json, os, sys
for line in sys.stdin:
    result = json.loads(line)
    case = os.environ["CASE"] or "bench " + result["config"]["mode"]
    print(json.dumps({"round": int(os.environ["ROUND"]), "file": os.environ["FILE"], "case": case, **result}))
    rate = result["rows_per_s"]
    print(f"{case:24} {rate:>10,.0f} cells/s", file=sys.stderr)' >>"$results"
}
scdataset() { "$python" scripts/bench/read_scdataset.py "$file" --block "$1" --fetch "$2" --batch 64 --seconds "$seconds"; }

for ((round = 1; round <= rounds; round++)); do
    for variant in ${variants//,/ }; do
        file=$data/synth${cells}_$variant.h5ad
        note "round $round of $rounds: $variant"
        cat "$file" >/dev/null
        measure readinto "$python" scripts/bench/read_mount.py "$bin" "$file" --reader readinto
        # shellcheck disable=SC2086 # two numbers
        measure "scDataset best" scdataset ${best[$variant]:-256 64}
        measure load_file "$python" scripts/bench/read_mount.py "$bin" "$file" --reader load_file
        measure "scDataset b=16 f=256" scdataset 16 256
        measure "" "$bin" bench "$file" --mount --json --memory 2G --obs plate,drug,cell_line
    done
done
note "results in $results"
"$python" scripts/bench/table.py "$results" "${write[@]}"
