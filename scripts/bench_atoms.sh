#!/usr/bin/env bash
# shufflefs, atompack and ASE's database on the same molecules in one run, in turn, and a table of them.
#
# usage: scripts/bench_atoms.sh [--write] [DATA_DIR]
#   --write    put the table into docs/PERFORMANCE.md instead of printing it
#   DATA_DIR   where the files are, or are made: 4 GB for a million molecules, 7 GB for the file that is read cold
#
# Reads a folder of peer benchmarks beside the checkout, ../shared/bench or $SHUFFLEFS_BENCH: gen_atoms.py makes the files,
# requirements-atompack.txt says what the peers need.
#
#   BENCH_ROUNDS     rounds (5)                       BENCH_MOLECULES  molecules of 64 atoms per file (1000000)
#   BENCH_SECONDS    per measurement (5)              BENCH_QM9        an .atp file of small molecules (QM9 of the test data)
#   BENCH_COLD       molecules read from a cold file (65536)        BENCH_COLD_FILE  molecules in it (4000000): far more
#   BENCH_PYTHON     an interpreter with atompack-db, ase and numpy (an environment is made)
#   SHUFFLEFS_BIN    the binary (built from this checkout, release)
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

write=()
if [ "${1:-}" = --write ]; then
    write=(--write docs/PERFORMANCE.md)
    shift
fi
data=$(realpath -m "${1:-${SHUFFLEFS_BENCH_DATA:-$dev_cache/bench}}")
peers=${SHUFFLEFS_BENCH:-$root/../shared/bench}
rounds=${BENCH_ROUNDS:-5} seconds=${BENCH_SECONDS:-5} molecules=${BENCH_MOLECULES:-1000000} cold=${BENCH_COLD:-65536}
cold_file=${BENCH_COLD_FILE:-4000000}
qm9=${BENCH_QM9:-${SHUFFLEFS_TEST_DATA:-$root/../shared/data}/atp/qm9_20k.atp}
export PYTHONDONTWRITEBYTECODE=1
note() { say "$@" >&2; }

[ -e "$peers/gen_atoms.py" ] || die "no peer benchmarks at $peers (SHUFFLEFS_BENCH names their folder)"
[ -e "$qm9" ] || die "no QM9 at $qm9 (BENCH_QM9 names the file)"
mkdir -p "$data"
python=${BENCH_PYTHON:-$data/env/atompack/bin/python}
if [ -z "${BENCH_PYTHON:-}" ] && [ ! -e "$data/env/atompack/ready" ]; then
    note "install atompack and ASE"
    rm -rf "$data/env/atompack"
    "$(base_python)" -m venv "$data/env/atompack"
    "$data/env/atompack/bin/pip" install -q -r "$peers/requirements-atompack.txt" "$(grep '^ase==' tests/requirements.txt)" >&2
    touch "$data/env/atompack/ready"
fi
note "files in $data"
"$python" "$peers/gen_atoms.py" --out "$data" --molecules "$molecules" --variants none,zstd >&2
"$python" "$peers/gen_atoms.py" --out "$data" --molecules "$cold_file" --variants none >&2
bin=${SHUFFLEFS_BIN:-$target_dir/release/shufflefs}
if [ -z "${SHUFFLEFS_BIN:-}" ]; then
    note "build"
    cargo build --release --locked >&2
fi

results=$data/results-atoms-$(date +%Y%m%d-%H%M%S).jsonl
# measure CASE PROGRAM FILE OPTIONS...: runs it and keeps the line it prints
measure() {
    local case=$1 line
    shift
    line=$("$python" scripts/bench/read_molecules.py "$@" --binary "$bin") || die "$case: failed"
    printf '%s\n' "$line" | CASE=$case ROUND=$round "$python" -c '
import json, os, sys
result = json.loads(sys.stdin.read())
case = os.environ["CASE"]
print(json.dumps({"round": int(os.environ["ROUND"]), "case": case, **result}))
print("{:8} {:10} {:>10,.0f} molecules/s".format(case, result["program"], result["rows_per_s"]), file=sys.stderr)' >>"$results"
}
# measure_peers CASE FILE: atompack with one thread and with all
measure_peers() {
    local threads
    for threads in 1 "$(nproc)"; do
        RAYON_NUM_THREADS=$threads measure "$1" flat256 "$2" --seconds "$seconds"
        RAYON_NUM_THREADS=$threads measure "$1" flat4096 "$2" --seconds "$seconds"
    done
}

for ((round = 1; round <= rounds; round++)); do
    note "round $round of $rounds"
    for case in none zstd qm9; do
        file=$data/mol${molecules}x64_$case.atp
        [ "$case" != qm9 ] || file=$qm9
        cat "$file" >/dev/null
        measure "$case" shufflefs "$file" --seconds "$seconds"
        measure_peers "$case" "$file"
    done
    file=$data/mol${cold_file}x64_none.atp
    measure cold shufflefs "$file" --cold --molecules "$cold"
    measure cold flat256 "$file" --cold --molecules "$cold"
    file=$data/mol${molecules}x64_none.atp
    cat "$file" >/dev/null
    measure single shufflefs "$file" --seconds "$seconds" --block-size 1
    measure ase ase "$file" --seconds "$seconds"
done
note "results in $results"
"$python" scripts/bench/table_atoms.py "$results" "${write[@]}"
