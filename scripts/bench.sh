#!/usr/bin/env bash
# shufflefs and the loaders that people use (scDataset on .h5ad, annbatch on zarr) on the same files in one run, in turn, and a table of all.
#
# usage: scripts/bench.sh [--write] [DATA_DIR]
#   --write    put the tables into docs/PERFORMANCE.md instead of printing them
#   DATA_DIR   where the files are, or are made: about 9 GB, and 8 GB for the environments of the peers (torch)
#
# Reads a folder of peer benchmarks beside the checkout, ../shared/bench or $SHUFFLEFS_BENCH: gen_data.py makes the files (Python with
# numba, 4 minutes, 5 GB of memory), make_annbatch.py annbatch's collection (13 GB of memory), and requirements-*.txt say what peers need.
#
#   BENCH_ROUNDS    rounds (5)                           BENCH_VARIANTS  files (gzip,none,lzf,annbatch,zarr3)
#   BENCH_SECONDS   per measurement of a peer (8)        BENCH_CELLS     cells per file (200000)
#   BENCH_ENV       environments (DATA_DIR/env)          BENCH_PYTHON    an interpreter that has all packages, safetensors too
#   BENCH_PYTHON312 base of annbatch's environment, 3.12 or newer (python3.13, python3.12); without one the zarr files are left out
#   SHUFFLEFS_BIN   the binary (built from this checkout, release)
#   BENCH_SHM       a folder on a tmpfs with 4 GB free, for files that the client reads alone (/dev/shm); without it, that line is left out
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

write=()
if [ "${1:-}" = --write ]; then
    write=(--write docs/PERFORMANCE.md)
    shift
fi
data=$(realpath -m "${1:-${SHUFFLEFS_BENCH_DATA:-$dev_cache/bench}}")
peers=${SHUFFLEFS_BENCH:-$root/../shared/bench}
rounds=${BENCH_ROUNDS:-5} seconds=${BENCH_SECONDS:-8} cells=${BENCH_CELLS:-200000}
variants=${BENCH_VARIANTS:-gzip,none,lzf,annbatch,zarr3}
env_dir=${BENCH_ENV:-$data/env}
export PYTHONDONTWRITEBYTECODE=1
note() { say "$@" >&2; }

[ -e "$peers/gen_data.py" ] || die "no peer benchmarks at $peers: without them there are neither files nor peers (SHUFFLEFS_BENCH names their folder)"
mkdir -p "$data"

# annbatch_python: prints an interpreter that has annbatch; its environment is made once and kept. Fails without a new Python.
annbatch_python() {
    local base folder=$env_dir/annbatch
    if [ ! -e "$folder/ready" ]; then
        for base in "${BENCH_PYTHON312:-}" python3.14 python3.13 python3.12 ''; do
            [ -z "$base" ] || ! "$base" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null || break
        done
        [ -n "$base" ] || return 1
        note "install annbatch"
        rm -rf "$folder"
        "$base" -m venv "$folder" >&2
        "$folder/bin/pip" install -q -r "$peers/requirements-annbatch.txt" >&2
        touch "$folder/ready"
    fi
    echo "$folder/bin/python"
}

# The environments are those that the peers' own script makes, and are kept.
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
h5ad=$(tr ',' '\n' <<<"$variants" | grep -xE 'gzip|none|lzf' | paste -sd, || true)
zarr=$(tr ',' '\n' <<<"$variants" | grep -xE 'annbatch|zarr3' | paste -sd, || true)
if [ -n "$zarr" ]; then
    # Zarr files are made of the uncompressed one, by the environment that has a new enough anndata.
    "$python" "$peers/gen_data.py" --out "$data" --cells "$cells" --variants "${h5ad:+$h5ad,}none" >&2
    if ! zarr_python=$(annbatch_python); then
        note "no Python 3.12 or newer (BENCH_PYTHON312): $zarr left out"
        variants=$h5ad zarr=
    fi
else
    "$python" "$peers/gen_data.py" --out "$data" --cells "$cells" --variants "$h5ad" >&2
fi
for variant in ${zarr//,/ }; do
    case $variant in
    annbatch) "$zarr_python" "$peers/make_annbatch.py" "$data/synth${cells}_annbatch.zarr" "$data/synth${cells}_none.h5ad" >&2 ;;
    zarr3) "$zarr_python" scripts/bench/make_zarr.py "$data/synth${cells}_none.h5ad" "$data/synth${cells}_zarr3.zarr" >&2 ;;
    esac
done
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
    printf '%s\n' "$lines" | CASE=$case ROUND=$round FILE=$label "$python" -c '
import json, os, sys
for line in sys.stdin:
    result = json.loads(line)
    case = os.environ["CASE"] or "bench " + result["config"]["mode"]
    print(json.dumps({"round": int(os.environ["ROUND"]), "file": os.environ["FILE"], "case": case, **result}))
    rate = result["rows_per_s"]
    print(f"{case:24} {rate:>10,.0f} cells/s", file=sys.stderr)' >>"$results"
}
# scdataset BLOCK FETCH [OPTION...]
scdataset() { "$python" scripts/bench/read_scdataset.py "$file" --block "$1" --fetch "$2" --batch 64 --seconds "$seconds" "${@:3}"; }
annbatch() { "$zarr_python" scripts/bench/read_annbatch.py "$file" --seconds "$seconds" "$@"; }
# measure_client: reads the files of an epoch from a tmpfs, without a mount: what the client alone takes.
measure_client() {
    local shm=${BENCH_SHM:-/dev/shm} out
    [ -d "$shm" ] && [ "$(df --output=avail -B1 "$shm" | tail -1)" -gt 4000000000 ] || return 0
    out=$(mktemp -d "$shm/shufflefs-bench-XXXXXX")
    # shellcheck disable=SC2064 # the folder of now
    trap "rm -rf '$out'" EXIT
    for part in dataset.json epoch-00000; do
        "$bin" export "$file" --out "$out" --path "$part" --obs plate,drug,cell_line >/dev/null
    done
    measure client "$python" scripts/bench/read_mount.py "$bin" "$file" --exported "$out"
    rm -r "$out"
}

for ((round = 1; round <= rounds; round++)); do
    for variant in ${variants//,/ }; do
        note "round $round of $rounds: $variant"
        label=$variant
        file=$data/synth${cells}_$variant.h5ad
        [ -e "$file" ] || file=${file%.h5ad}.zarr
        find "$file" -type f -exec cat {} + >/dev/null
        measure readinto "$python" scripts/bench/read_mount.py "$bin" "$file" --reader readinto
        case $file in
        *.h5ad)
            # shellcheck disable=SC2086 # two numbers
            measure "scDataset best" scdataset ${best[$variant]:-256 64}
            measure "scDataset b=16 f=256" scdataset 16 256
            ;;
        # Its fastest settings; those of its README; and, where the store is not shuffled, the fastest that mix as well as ours.
        *)
            measure "annbatch best" annbatch
            measure "annbatch README" annbatch --chunk 32 --preload 256
            [ "$variant" != zarr3 ] || measure "annbatch mixed" annbatch --chunk 64 --preload 512
            ;;
        esac
        measure ahead "$python" scripts/bench/read_mount.py "$bin" "$file" --reader ahead
        measure load_file "$python" scripts/bench/read_mount.py "$bin" "$file" --reader load_file
        measure narrow "$python" scripts/bench/read_mount.py "$bin" "$file" -o x-dtype=uint16 -o index-dtype=uint16
        measure "" "$bin" bench "$file" --mount --json --memory 2G --obs plate,drug,cell_line
        case $variant in gzip | lzf) measure_client ;; esac
        if [ "$variant" = gzip ]; then
            label="gzip, cold"
            measure readinto "$python" scripts/bench/read_mount.py "$bin" "$file" --reader readinto --cold
            # shellcheck disable=SC2086 # two numbers
            measure "scDataset best" scdataset ${best[$variant]} --cold
        fi
    done
done
note "results in $results"
"$python" scripts/bench/table.py "$results" "${write[@]}"
