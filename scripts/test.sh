#!/usr/bin/env bash
# All tests: Rust, then Python against the built binary on real mounts. Arguments go to pytest (for instance -k order).
#
# Test data beside the checkout is used when it is there: ../shared/data, or $SHUFFLEFS_TEST_DATA.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

scripts/setup.sh test
cargo build --locked
if command -v cargo-nextest >/dev/null; then
    cargo nextest run --locked
    cargo test --locked --doc --quiet
else
    cargo test --locked
fi
export SHUFFLEFS_BIN=${SHUFFLEFS_BIN:-$target_dir/debug/shufflefs}
python=$(test_venv "$(base_python)")/bin/python
if has_torch; then
    SHUFFLEFS_TORCH_PYTHON=$(torch_venv)/bin/python
    export SHUFFLEFS_TORCH_PYTHON
fi
# -p no:cacheprovider: nothing is written into the checkout.
PYTHONDONTWRITEBYTECODE=1 "$python" -m pytest tests -q -p no:cacheprovider "$@" </dev/null
