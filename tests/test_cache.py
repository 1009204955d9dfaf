"""The cache folder: mounts with it and without it are the same, and nothing that happens to it is an error.

Small stores leave no entries; `SHUFFLEFS_CACHE_MIN_ROWS=1` makes every piece of every store worth one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

import gen_stores
import gen_zarr
from mounting import BINARY, run

COMMON = ["--obs", "all", "--batch-size", "16"]


def shufflefs(*args, min_rows: int | None = 1, env: tuple[str, ...] = ()):
    words = [*env] if min_rows is None else [*env, f"SHUFFLEFS_CACHE_MIN_ROWS={min_rows}"]
    p = run("env", *words, BINARY, *args)
    assert p.returncode == 0, p.stderr
    return p


def facts(source: Path, out: Path, *options, **kwargs) -> tuple[dict, list[str], dict[str, str]]:
    """dataset.json, warnings, and the digest of every file of an epoch."""
    plan = json.loads(shufflefs("plan", "--json", source, *COMMON, *options, **kwargs).stdout)
    shufflefs("export", source, *COMMON, *options, "--out", out, "--path", "epoch-00001", **kwargs)
    files = {str(p.relative_to(out)): hashlib.sha256(p.read_bytes()).hexdigest() for p in out.rglob("*") if p.is_file()}
    shutil.rmtree(out)
    assert len(files) > 1
    return plan["dataset"], plan["warnings"], files


def aged(path: Path) -> Path:
    """A copy would be as good: what was written a moment ago is not kept."""
    os.utime(path, (1_700_000_000, 1_700_000_000))
    return path


def aged_store(path: Path) -> Path:
    """The same for everything in a folder."""
    for file in path.rglob("*"):
        aged(file)
    return path


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*")) if folder.exists() else []


# How values are compressed makes no difference here; how frames, columns, row lengths and chunk tables are stored does.
NAMES = [n for n in gen_stores.STORES if n in ("csr.gzip", "dense.gzip", "user-block", "coded") or n.startswith(("obs.", "old.", "rows.", "latest."))]


@pytest.mark.parametrize("name", NAMES)
def test_cached_and_uncached_are_the_same(name, tmp_path):
    source, folder = tmp_path / "source.h5ad", tmp_path / "cache"
    gen_stores.STORES[name](source)
    aged(source)
    without = facts(source, tmp_path / "out", "--cache-dir", folder, min_rows=None)
    assert not entries(folder), "small stores leave nothing"
    first = facts(source, tmp_path / "out", "--cache-dir", folder)
    written = {path: path.stat().st_ino for path in entries(folder)}
    content = {path: path.read_bytes() for path in written}
    second = facts(source, tmp_path / "out", "--cache-dir", folder)
    assert len(written) > 1
    assert {path: path.stat().st_ino for path in entries(folder)} == written, "the entries were used"
    assert without == first == second
    for path in written:  # all of them damaged
        data = bytearray(content[path])
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
    assert facts(source, tmp_path / "out", "--cache-dir", folder) == without
    assert {path: path.read_bytes() for path in entries(folder)} == content, "all were written again"


def test_a_changed_source_is_read_again(tmp_path):
    source, folder = tmp_path / "source.h5ad", tmp_path / "cache"
    options = ("--cache-dir", folder)
    gen_stores.STORES["csr.none"](source)
    aged(source)
    before = facts(source, tmp_path / "out", *options)
    other = gen_stores.random_csr(seed=77)
    gen_stores.h5.write(source, gen_stores.dataset(other, cell_type=gen_stores.cell_type(gen_stores.N_ROWS)))
    os.utime(source, (1_700_000_001, 1_700_000_001))
    after = facts(source, tmp_path / "out", *options)
    assert after[2] != before[2]
    assert after == facts(source, tmp_path / "out", "--cache-dir", tmp_path / "empty")


def test_where_the_cache_is(tmp_path):
    source = tmp_path / "source.h5ad"
    gen_stores.STORES["csr.gzip"](source)
    aged(source)
    xdg, home = tmp_path / "xdg", tmp_path / "home"
    shufflefs("plan", source, env=(f"XDG_CACHE_HOME={xdg}", f"HOME={home}"))
    assert entries(xdg / "shufflefs") and not home.exists()
    shufflefs("plan", source, env=("-u", "XDG_CACHE_HOME", f"HOME={home}"))
    assert len(entries(home / ".cache/shufflefs")) == len(entries(xdg / "shufflefs"))
    p = shufflefs("plan", source, env=("-u", "XDG_CACHE_HOME", "-u", "HOME"))
    assert p.stdout.count("cache folder") == 1 and "--cache-dir" in p.stdout
    p = shufflefs("plan", source, env=("-u", "XDG_CACHE_HOME", "-u", "HOME"), min_rows=None)
    assert "cache folder" not in p.stdout, "nothing would have been kept"


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path):
    source, file = tmp_path / "source.h5ad", tmp_path / "file"
    gen_stores.STORES["csr.gzip"](source)
    aged(source)
    file.touch()
    want = facts(source, tmp_path / "out", min_rows=None)
    for folder in (file, file / "below", Path("/proc/nowhere")):
        dataset, warnings, files = facts(source, tmp_path / "out", "--cache-dir", folder)
        assert (dataset, files) == (want[0], want[2])
        assert [w for w in warnings if "cache folder" in w and str(folder) in w], warnings


@pytest.mark.parametrize("name", ["v3.sharded.zstd", "v3.sharded.index-at-start.none", "v2.blosc-lz4", "v3.pandas-3-index", "v2.records"])
@pytest.mark.parametrize("archive", [False, True], ids=["folder", "zip"])
def test_zarr_stores_are_kept_by_all_their_files(name, archive, tmp_path):
    """Every file of a store belongs to what an entry is for."""
    source, folder = tmp_path / "source.zarr", tmp_path / "cache"
    truth = gen_zarr.STORES[name](source)
    served = source

    def settle() -> None:
        nonlocal served
        aged_store(source)
        if archive:
            served = aged(gen_zarr.archive(source, tmp_path / "source.zarr.zip"))

    settle()
    without = facts(served, tmp_path / "out", "--cache-dir", folder, min_rows=None)
    assert not entries(folder)
    assert facts(served, tmp_path / "out", "--cache-dir", folder) == without
    kept = entries(folder)
    assert kept and facts(served, tmp_path / "out", "--cache-dir", folder) == without
    assert entries(folder) == kept
    # Another state of the store: the same shapes, other lengths of rows, other names.
    rows = gen_zarr.random_csr(seed=99)
    if name != "v2.records":
        other = gen_zarr.dataset(rows)
        other.obs_names = [f"other-{i}" for i in range(len(truth.obs_names))]
        layout = gen_zarr.Layout(3 if name.startswith("v3") else 2, sharded="sharded" in name)
        shutil.rmtree(source)
        gen_zarr.write(source, other, layout)
        settle()
        changed = facts(served, tmp_path / "out", "--cache-dir", folder, min_rows=None)
        assert changed != without
        assert facts(served, tmp_path / "out", "--cache-dir", folder) == changed
        assert facts(served, tmp_path / "out", "--cache-dir", folder) == changed
