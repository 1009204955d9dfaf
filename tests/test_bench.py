"""`shufflefs bench`: what it prints is counted right, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

import gen_stores
import h5ad_writer
from batches import Pass
from mounting import BINARY, ENV, Mount, is_mounted, one_line_error, shufflefs, wait_until

N_ROWS = 3000
OPTIONS = ["--batch-size", "64", "--fetch-factor", "8", "--seed", "5"]
# Of ../shared/bench/README.md, "Output".
FIELDS = {
    "bench", "peer_version", "data", "config", "rows", "seconds", "rows_per_s", "cpu_s", "rows_per_cpu_s", "first_batch_s",
    "open_s", "rss_gb", "nnz_seen", "cpus", "load1",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "cells.h5ad"
    truth = gen_stores.dataset(gen_stores.random_csr(n_rows=N_ROWS, n_vars=1000, seed=3))
    h5ad_writer.write(path, truth, chunks=(1000,), compression="gzip")
    return path, truth


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """Where the binary makes temporary files."""
    monkeypatch.setitem(ENV, "TMPDIR", str(tmp_path))
    return tmp_path


def bench(*args) -> dict[str, dict]:
    """Results by mode."""
    p = shufflefs("bench", "--json", *args)
    assert p.returncode == 0 and not p.stderr, p.stderr
    lines = [json.loads(line) for line in p.stdout.splitlines()]
    return {line["config"]["mode"]: line for line in lines}


def sum_words(image: bytes) -> int:
    words = np.frombuffer(image + bytes(-len(image) % 8), "<u8")
    return int(np.sum(words, dtype=np.uint64))


def test_results_are_counted_right(source, fuse, temporary):
    """Rows, values and checksum against what another mount of the same options serves."""
    path, truth = source
    results = bench(path, *OPTIONS, "--mount", "--epochs", "2")
    assert list(results) == ["decode", "engine", "mount"]
    with Mount(path, options=OPTIONS) as mnt:
        images = [f.read_bytes() for e in (0, 1) for f in sorted((mnt / f"epoch-0000{e}").glob("batch-*"))]
    checksum = sum(map(sum_words, images)) % 2**64
    for mode, r in results.items():
        assert r.keys() >= FIELDS, f"{mode} lacks {FIELDS - r.keys()}"
        assert (r["bench"], r["data"], r["rows"], r["nnz_seen"]) == ("shufflefs", "cells.h5ad", 2 * N_ROWS, 2 * len(truth.x.data))
        assert r["seconds"] > 0 and r["cpu_s"] >= 0 and r["open_s"] > 0 and 0.001 < r["rss_gb"] < 1
        assert r["config"]["batch"] == 64 and r["config"]["fetch_factor"] == 8 and r["config"]["seed"] == 5
        assert 1 <= r["decoded_per_needed"] < 2
        assert r["read_per_stored"] >= 1
        if mode == "decode":
            assert (r["checksum"], r["first_batch_s"], r["copies_per_value"]) == (None, None, None)
            assert r["counters"]["bytes_copied"] == 0
        else:
            assert int(r["checksum"], 16) == checksum
            assert 0 < r["first_batch_s"] <= r["seconds"] + 0.001
            assert r["copies_per_value"] == 1
    assert not list(temporary.iterdir()), "left behind"


def test_stored_bytes_are_those_of_the_file(source):
    """Over an epoch, bytes read times read/stored is what h5py says the chunks take."""
    import h5py

    path, _ = source
    with h5py.File(path) as f:
        arrays = [f["X/data"], f["X/indices"]]
        stored = sum(a.id.get_storage_size() for a in arrays)
        # The last chunk is stored in full and used in part.
        slack = sum(a.id.get_chunk_info(a.id.get_num_chunks() - 1).size for a in arrays)
    r = bench(path, *OPTIONS)["decode"]
    found = r["counters"]["bytes_read"] / r["read_per_stored"]
    assert (stored - slack) * 0.99 <= found <= stored * 1.01


def test_limits_end_with_a_window(source):
    path, _ = source
    window = 64 * 8
    for limit, rows in ((1, window), (window, window), (window + 1, 2 * window), (10**9, N_ROWS)):
        assert {r["rows"] for r in bench(path, *OPTIONS, "--rows", limit).values()} == {rows}
    assert {r["rows"] for r in bench(path, *OPTIONS, "--seconds", "0.000001").values()} <= {0, window}
    text = shufflefs("bench", path, *OPTIONS).stdout
    assert f"{N_ROWS:,}" in text and "decoded/needed" in text


def test_damage_is_told(source, tmp_path):
    """A chunk that cannot be decoded fails the measurement that only decodes, and is named."""
    import h5py

    damaged = tmp_path / "damaged.h5ad"
    damaged.write_bytes(source[0].read_bytes())
    with h5py.File(damaged) as f:
        info = f["X/data"].id.get_chunk_info(4)
    with open(damaged, "r+b") as f:
        f.seek(info.byte_offset + info.size // 2)
        f.write(b"\xff" * 16)
    p = shufflefs("bench", damaged, *OPTIONS)
    line = one_line_error(p.stderr)
    assert p.returncode == 1 and str(damaged) in line and "X/data" in line


@pytest.mark.parametrize("args", [["--epochs", "0"], ["--seconds", "-1"]])
def test_senseless_limits_are_refused(source, args):
    p = shufflefs("bench", source[0], *args)
    assert p.returncode == 2, p.stderr


def test_interrupt_leaves_nothing_behind(source, fuse, temporary):
    command = [str(BINARY), "bench", str(source[0]), *OPTIONS, "--mount", "--epochs", "100000"]
    # Only the mount is to take long: the limit of time ends the others.
    command += ["--seconds", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV) as p:
        try:
            folders: list[Path] = []

            def mounted() -> bool:
                folders[:] = temporary.glob("shufflefs-bench.*")
                return bool(folders) and is_mounted(folders[0] / "mnt")

            assert wait_until(mounted, 60)
            assert os.stat(folders[0]).st_mode & 0o777 == 0o700
            time.sleep(0.2)
            p.send_signal(signal.SIGINT)
            _, stderr = p.communicate(timeout=60)
        finally:
            p.kill()
    assert p.returncode == 1 and one_line_error(stderr) == "shufflefs: interrupted"
    assert not is_mounted(folders[0] / "mnt") and not folders[0].exists()
