"""Bugs that were found by using the program: each leaves its right behaviour here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import gen_stores
import h5ad_writer
from batches import Pass
from mounting import BINARY, ENV, Mount, refusal, run, shufflefs, take_away
from truth import Csr

pytestmark = pytest.mark.usefixtures("fuse")

N_ROWS = 600


@pytest.fixture(scope="module")
def cells(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("regressions") / "cells.h5ad"
    truth = gen_stores.dataset(gen_stores.random_csr(n_rows=N_ROWS, n_vars=400, seed=21))
    truth.layers = {"doubled": type(truth.x)(truth.x.data * 2, truth.x.indices, truth.x.indptr, truth.x.n_cols)}
    h5ad_writer.write(path, truth, chunks=(2000,), compression="gzip")
    return path


def export(path: Path, out: Path, *options) -> subprocess.CompletedProcess:
    return shufflefs("export", path, "--out", out, "--path", "epoch-00000", "--batch-size", "50", *options)


def test_an_export_is_not_continued_with_other_data(cells, tmp_path):
    """The same shapes, names and sizes do not make it the same export."""
    path = tmp_path / "cells.h5ad"
    path.write_bytes(cells.read_bytes())
    names = [n.decode() if isinstance(n, bytes) else n for n in h5py.File(path)["var"]["_index"][:5]]
    files = []
    for i, order in enumerate((names, names[::-1])):
        files.append(tmp_path / f"genes{i}.txt")
        files[i].write_text("\n".join(order))
    for i, (first, second) in enumerate([(["--x", "X"], ["--x", "layers/doubled"]), (["--genes", files[0]], ["--genes", files[1]])]):
        out = tmp_path / f"out{i}"
        assert export(path, out, *first).returncode == 0
        (out / "epoch-00000/batch-0000001.safetensors").unlink()
        p = export(path, out, *second)
        assert p.returncode == 1 and "other options" in p.stderr, p.stderr
        assert export(path, out, *first).returncode == 0, "the export it is of goes on"
    out = tmp_path / "changed"
    assert export(path, out).returncode == 0
    with h5py.File(path, "r+") as f:
        f["X/data"][:] = f["X/data"][:] * 3
    p = export(path, out)
    assert p.returncode == 1 and "changed" in p.stderr, p.stderr


def test_two_exports_into_one_folder(cells, tmp_path):
    command = [str(BINARY), "export", str(cells), "--out", str(tmp_path / "out"), "--path", "epoch-00000", "--batch-size", "20"]
    both = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=ENV) for _ in range(2)]
    assert [(p.wait(60), p.stderr.read()) for p in both] == [(0, b""), (0, b"")]


def test_a_damaged_chunk_stays_damaged(cells, tmp_path):
    """A name that failed does not open later, although the part of the chunk that it needs could be decoded."""
    path = tmp_path / "flipped.h5ad"
    path.write_bytes(cells.read_bytes())
    with h5py.File(path, "r") as f:
        chunk = f["X/data"].id.get_chunk_info(3)
    with open(path, "r+b") as f:
        f.seek(chunk.byte_offset + chunk.size - 2)
        byte = f.read(1)[0]
        f.seek(-1, 1)
        f.write(bytes([byte ^ 1]))
    with Mount(path, options=["--batch-size", "30"]) as mnt:
        epoch = Pass(mnt / "epoch-00000")

        def failed() -> set[str]:
            names = set()
            for name in epoch.batch_names:
                try:
                    (epoch.folder / name).read_bytes()
                except OSError as error:
                    assert error.errno == 5
                    names.add(name)
            return names

        first = failed()
        assert first
        assert failed() >= first


def test_the_memory_that_is_advised_is_enough(cells):
    check_advice(cells, "4K", 256)
    check_advice(cells, "1M", 256)
    check_advice(cells, "2M", 256)


def test_kept_chunks_do_not_take_the_place_of_a_batch(tmp_path):
    """One long row makes a batch of the longest rows much larger than all chunks decoded, which are then not kept."""
    lengths = np.full(20_000, 20)
    lengths[7] = 400
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.concatenate([np.arange(n) for n in lengths])
    path = tmp_path / "long.h5ad"
    truth = gen_stores.dataset(Csr(np.ones(len(indices), "f4"), indices, indptr, 400))
    h5ad_writer.write(path, truth, chunks=(20_000,), compression="gzip")
    check_advice(path, "1M", 20_000)


def check_advice(path: Path, given: str, batch_size: int) -> None:
    options = ["--batch-size", str(batch_size)]
    code, line = refusal("--memory", given, *options, path)
    assert code == 1
    advised = re.search(r"use --memory (\w+) or more", line)[1]
    with Mount(path, options=["--memory", advised, *options]) as mnt:
        epoch = Pass(mnt / "epoch-00000")
        assert len(epoch.digests()) == -(-len(epoch.rows) // batch_size)


def test_of_two_mounts_on_one_place_one_is_refused(cells, tmp_path):
    for attempt in range(3):
        mnt = tmp_path / f"mnt{attempt}"
        mnt.mkdir()
        command = [str(BINARY), "mount", "-q", str(cells), str(mnt)]
        try:
            both = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=ENV) for _ in range(2)]
            results = [(p.wait(60), p.stderr.read().decode()) for p in both]
            assert sorted(code for code, _ in results) == [0, 1], results
            assert any("already" in text for _, text in results)
        finally:
            take_away(mnt)


def test_gene_lists_that_are_no_lists(cells, tmp_path):
    code, line = refusal("--genes", "/dev/zero", cells)
    assert code == 1 and "/dev/zero" in line and "text file" in line
    name = h5py.File(cells)["var"]["_index"][7]
    marked = tmp_path / "marked.txt"
    marked.write_bytes(b"\xef\xbb\xbf" + (name if isinstance(name, bytes) else name.encode()) + b"\n")
    with Mount(cells, options=["--genes", marked]) as mnt:
        assert len((mnt / "var_names.txt").read_text().split()) == 1


def test_the_printed_snippet_runs_wherever_the_mount_is(cells, tmp_path):
    mnt = tmp_path / 'a "quoted" é name'
    mount = Mount(cells, mnt=mnt)
    with mount:
        code = mount.summary.split("\n\n", 1)[1].split("Unmount with")[0]
        p = run(sys.executable, "-c", code)
        assert p.returncode == 0 and "X.indptr" in p.stdout, p.stderr


def test_the_readme_of_a_mount_speaks_of_what_is_there(cells):
    with Mount(cells, options=["--dense", "--names", "no"]) as mnt:
        text = (mnt / "README.md").read_text()
        assert "indptr" not in text and "obs_names\"]" not in text
    with Mount(cells) as mnt:
        text = (mnt / "README.md").read_text()
        assert "X.indptr" in text and "cell_type" in text


def test_directories_are_no_files_to_cat(cells):
    p = shufflefs("cat", cells, "--path", "epoch-00000")
    assert p.returncode == 1 and "epoch-00000" in p.stderr and "directory" in p.stderr
    p = shufflefs("mount", cells)
    assert p.returncode == 2 and "mount point" in p.stderr
    assert np.frombuffer(shufflefs("cat", cells, text=False).stdout[:8], "<u8")[0] > 0
