"""The published order: recomputed from blocks.npy and dataset.json by the script of docs/ORDER.md, and its tails."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import gen_stores
import h5ad_writer
from batches import Pass, load_dataset
from mounting import Mount, refusal, run

N_ROWS = 3000

pytestmark = pytest.mark.usefixtures("fuse")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("order") / "cells.h5ad"
    truth = gen_stores.dataset(gen_stores.random_csr(n_rows=N_ROWS, n_vars=500, seed=4))
    h5ad_writer.write(path, truth, chunks=(1500,), compression="gzip")
    return path


def test_blocks_are_borders(source):
    with Mount(source, options=["--batch-size", "32"]) as mnt:
        blocks = np.load(mnt / ".shufflefs/blocks.npy")
    assert blocks.dtype == np.int64 and blocks[0] == 0 and blocks[-1] < N_ROWS and (np.diff(blocks) > 0).all()
    assert len(blocks) > 10


def test_rows_of_a_block_stay_in_its_windows(source):
    """A block of consecutive rows lies in one window, or in two neighbours where a border splits it."""
    m, f = 32, 4
    with Mount(source, options=["--batch-size", str(m), "--fetch-factor", str(f)]) as mnt:
        blocks, rows = np.load(mnt / ".shufflefs/blocks.npy"), Pass(mnt / "epoch-00000").rows
    window = np.empty(N_ROWS, int)
    window[rows] = np.arange(N_ROWS) // (m * f)
    for start, stop in zip(blocks, [*blocks[1:], N_ROWS]):
        found = np.unique(window[start:stop])
        assert len(found) <= 1 + -(-(stop - start) // (m * f)) and found.max() - found.min() == len(found) - 1


OPTIONS = [
    [],
    ["--seed", "7"],
    ["--batch-size", "32", "--fetch-factor", "3"],
    ["--batch-size", "7", "--block-size", "16", "--seed", "18446744073709551615"],
    ["--batch-size", "100", "--block-size", "1", "--tail", "drop"],
    ["--batch-size", "64", "--fetch-factor", "2", "--tail", "pad"],
]


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_recomputed_order(source, options):
    """The script of the published text, from blocks.npy and dataset.json alone, gets the same row ids."""
    order_recompute = pytest.importorskip("order_recompute")
    with Mount(source, options=options) as mnt:
        dataset, blocks = load_dataset(mnt), np.load(mnt / ".shufflefs/blocks.npy").tolist()
        m, f, seed, tail = (dataset["order"][key] for key in ("batch_size", "fetch_factor", "seed", "tail"))
        sources = [(*s["rows"], s["block_rows"] or 0) for s in dataset["sources"]]
        for epoch in (0, 1, 123456):
            batches = order_recompute.epoch_batches(blocks, sources, m, f, seed, epoch, tail)
            got = Pass(mnt / f"epoch-{epoch:05d}")
            assert [row for batch in batches for row in batch] == got.rows.tolist(), f"epoch {epoch}"
            assert len(batches) == len(got.batch_names)
            shares = {f"rank-{r}-of-3": dict(rank=(r, 3)) for r in range(3)}
            shares["host-1-of-2/rank-0-of-2"] = dict(host=(1, 2), rank=(0, 2))
            for name, who in shares.items():
                numbers = order_recompute.share([len(b) for b in batches], m, f, "drop", **who)
                want = [row for k in numbers for row in batches[k]]
                assert Pass(got.folder / name).rows.tolist() == want, f"epoch {epoch} {name}"


def test_golden_vectors():
    """The script recomputes the recorded orders that the Rust tests compare with too."""
    folder = Path(__file__).parent
    if not (folder / "order_recompute.py").exists():
        pytest.skip("no order_recompute.py")
    p = run(sys.executable, folder / "order_recompute.py", folder / "data/order/golden.json")
    assert p.returncode == 0, p.stdout + p.stderr


def test_tails(source):
    """3,000 rows in batches of 64: 46 full ones and one of 56."""
    batches = {}
    for tail in ("keep", "drop", "pad"):
        with Mount(source, options=["--batch-size", "64", "--tail", tail]) as mnt:
            epoch = Pass(mnt / "epoch-00000", load_dataset(mnt))
            batches[tail] = [epoch.batch(n).rows for n in epoch.batch_names]
            last = epoch.batch(epoch.batch_names[-1])
            assert int(last.provenance.get("pad_rows", 0)) == (8 if tail == "pad" else 0)
            assert len(Pass(mnt / "inorder").batch_names) == 47, "inorder always keeps its short last batch"
    keep, drop, pad = batches["keep"], batches["drop"], batches["pad"]
    assert [len(b) for b in keep] == [64] * 46 + [56]
    for other in (drop, pad):
        assert [b.tolist() for b in other[:46]] == [b.tolist() for b in keep[:46]]
    assert len(drop) == 46 and len(pad) == 47
    assert pad[46].tolist() == [*keep[46], *keep[0][:8]], "padded with the first rows of the epoch"


def test_drop_that_leaves_nothing_is_refused(source):
    code, line = refusal("--tail", "drop", "--batch-size", "3001", source)
    assert code in (1, 2) and "3001" in line
