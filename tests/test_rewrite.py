"""Matrices that are rewritten by rows: CSC, and dense ones whose compressed chunks cut rows. What comes out is what was put in, the
order is that of the source, and whatever happens to the cache folder the next mount is right.

`SHUFFLEFS_REWRITE_MEMORY` makes small matrices as large, for the rewriter, as files that do not fit the memory.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.sparse as sp

import gen_stores
import h5ad_writer
import mounting
from batches import Pass, load_dataset
from compare import check_pass
from mounting import BINARY, ENV, Mount, refusal, run_measured, shufflefs, wait_until
from sources import read_h5ad
from truth import Csr, Truth

pytestmark = pytest.mark.usefixtures("fuse")

OLD = 1_700_000_000
SMALL_MEMORY = 1 << 16
N_ROWS, N_VARS = 500, 300


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """A cache folder of its own for every test."""
    monkeypatch.setitem(ENV, "XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/shufflefs"


@pytest.fixture
def little_memory(monkeypatch) -> None:
    monkeypatch.setitem(ENV, "SHUFFLEFS_REWRITE_MEMORY", str(SMALL_MEMORY))


def aged(path: Path, at: int = OLD) -> Path:
    """What was written a moment ago is waited for."""
    os.utime(path, (at, at))
    return path


def put_csc(group, name: str, data, rows, indptr, shape, *, index_dtype="i4", indptr_dtype="i8", swap=False, **storage) -> None:
    if name in group:
        del group[name]
    g = group.create_group(name)
    h5ad_writer.encode(g, "csc_matrix", "0.1.0")
    g.attrs["shape"] = np.array(shape)
    rows = np.asarray(rows).astype(index_dtype)
    if swap:
        data, rows = data.astype(data.dtype.newbyteorder(">")), rows.astype(rows.dtype.newbyteorder(">"))
    for key, values in (("data", data), ("indices", rows)):
        # Different chunks, so that the two streams are cut at different places.
        extent = dict(chunks=(min(len(values), 700 if key == "data" else 450),)) if storage.get("chunks", True) and len(values) else {}
        g.create_dataset(key, data=values, **extent, **{k: v for k, v in storage.items() if k != "chunks" and extent})
    g.create_dataset("indptr", data=np.asarray(indptr).astype(indptr_dtype))


def columns(n_rows=N_ROWS, n_vars=N_VARS, dtype="f4", seed=3, density=0.2, odd=True) -> tuple:
    """Data, rows and indptr of a CSC matrix: empty columns and rows; with `odd`, rows in no order, some twice, and stored zeros."""
    rng = np.random.default_rng(seed)
    data, rows, indptr = [], [], [0]
    lively = np.flatnonzero(np.arange(n_rows) % 7 != 3)
    for j in range(n_vars):
        n = 0 if j in (0, 5, 6, n_vars - 1) else rng.binomial(len(lively), density * (2 if j % 3 else 0.2))
        mine = rng.choice(lively, n, replace=False)
        if odd and n > 4:
            mine[1] = mine[3]
        rows.append(mine if odd else np.sort(mine))
        values = rng.integers(0 if odd else 1, 100, n)
        data.append(values + rng.random(n) if np.dtype(dtype).kind == "f" else values)
        indptr.append(indptr[-1] + n)
    return np.concatenate(data).astype(dtype), np.concatenate(rows), np.array(indptr), (n_rows, n_vars)


def write_csc(path: Path, *args, **storage) -> Path:
    args = args or columns()
    n_rows, n_vars = args[3]
    h5ad_writer.write(path, gen_stores.dataset(gen_stores.random_dense(n_rows=n_rows, n_vars=n_vars)))
    with h5py.File(path, "a") as f:
        put_csc(f, "X", *args, **storage)
    return aged(path)


def check(path: Path, truth: Truth, batch_size: int = 16, options=(), **kwargs) -> None:
    with Mount(path, options=["--batch-size", str(batch_size), *options]) as mnt:
        dataset = load_dataset(mnt)
        check_pass(Pass(mnt / "epoch-00000", dataset), truth, batch_size, shuffled=True, **kwargs)
        check_pass(Pass(mnt / "inorder", dataset), truth, batch_size, shuffled=False, **kwargs)


def rewritten(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.rows"))


def leftovers(cache: Path) -> list[str]:
    return [p.name for p in cache.glob("*") if p.suffix in (".part", ".journal", ".journal-new")]


# -------------------------------------------------------------------------------------------------------------------- values
STORED = {
    "gzip": dict(compression="gzip"),
    "none": {},
    "contiguous": dict(chunks=False),
    "lzf-shuffle": dict(compression="lzf", shuffle=True),
    "big-endian": dict(compression="gzip", swap=True),
    "uint16-rows": dict(compression="gzip", index_dtype="u2", indptr_dtype="i4"),
    "int64-rows": dict(compression="gzip", index_dtype="i8"),
}


@pytest.mark.parametrize("memory", ["plenty", "little"])
@pytest.mark.parametrize("name", STORED)
def test_csc_storage(name, memory, tmp_path, cache, request):
    if memory == "little":
        request.getfixturevalue("little_memory")
    path = write_csc(tmp_path / "csc.h5ad", **STORED[name])
    truth = read_h5ad(path)
    check(path, truth)
    made = rewritten(cache)
    assert len(made) == 1 and not leftovers(cache)
    inode = made[0].stat()
    check(path, truth)
    assert rewritten(cache)[0].stat().st_ino == inode.st_ino and rewritten(cache)[0].stat().st_ctime_ns == inode.st_ctime_ns


@pytest.mark.parametrize("dtype", ["u1", "u2", "i4", "i8", "f2", "f8", "?"])
def test_csc_types(dtype, tmp_path, little_memory):
    path = write_csc(tmp_path / "csc.h5ad", *columns(dtype=dtype), compression="gzip")
    check(path, read_h5ad(path))


def test_csc_equals_scipy(tmp_path, little_memory):
    """What scipy makes of the same columns, value by value."""
    data, rows, indptr, shape = columns(odd=False)
    path = write_csc(tmp_path / "csc.h5ad", data, rows, indptr, shape, compression="gzip")
    want = sp.csc_matrix((data, rows, indptr), shape=shape).tocsr()
    truth = read_h5ad(path)
    truth.x = Csr(want.data, want.indices.astype(np.int64), want.indptr.astype(np.int64), shape[1])
    check(path, truth)


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (64, 1), (65, 2), (129, 3)])
@pytest.mark.parametrize("filled", [True, False])
def test_csc_small_shapes(shape, filled, tmp_path, little_memory):
    n_rows, n_vars = shape
    x = sp.csc_matrix(np.arange(1, n_rows * n_vars + 1, dtype="f4").reshape(shape) if filled else np.zeros(shape, "f4"))
    path = write_csc(tmp_path / "csc.h5ad", x.data, x.indices, x.indptr, shape)
    check(path, read_h5ad(path))


def test_layers_and_raw(tmp_path, little_memory, cache):
    """A CSC layer beside a CSR X, and a CSC raw/X with genes of its own."""
    csr = gen_stores.random_csr(n_rows=N_ROWS, n_vars=N_VARS)
    truth = gen_stores.dataset(csr)
    truth.raw, truth.raw_var_names = gen_stores.random_dense(n_rows=N_ROWS, n_vars=400), [f"RAW{j}" for j in range(400)]
    truth.layers = {"dense": gen_stores.random_dense(n_rows=N_ROWS, n_vars=N_VARS)}
    path = tmp_path / "layers.h5ad"
    h5ad_writer.write(path, truth, chunks="rows", compression="gzip")
    with h5py.File(path, "a") as f:
        put_csc(f["layers"], "counts", *columns(dtype="i4"), compression="gzip")
        put_csc(f["raw"], "X", *columns(n_vars=400, seed=8), compression="gzip")
    aged(path)
    truth = read_h5ad(path)
    check(path, truth, options=["--layers", "counts,dense"], layers=["counts", "dense"])
    assert len(rewritten(cache)) == 1
    check(path, Truth(truth.obs_names, truth.raw_var_names, truth.raw, truth.obs), options=["--x", "raw/X"])
    check(path, Truth(truth.obs_names, truth.var_names, truth.layers["counts"], truth.obs), options=["--x", "layers/counts"])
    assert len(rewritten(cache)) == 2, "X and layers/counts are the same rows"


def test_genes_and_dense(tmp_path):
    path = write_csc(tmp_path / "csc.h5ad", *columns(odd=False), compression="gzip")
    truth = read_h5ad(path)
    dense = np.zeros((N_ROWS, N_VARS), "f4")
    dense[np.repeat(np.arange(N_ROWS), np.diff(truth.x.indptr)), truth.x.indices] = truth.x.data
    check(path, Truth(truth.obs_names, truth.var_names, dense, truth.obs), options=["--dense"])


@pytest.mark.parametrize("container", ["zarr-2", "zarr-3", "zip"])
def test_csc_in_zarr(container, tmp_path, little_memory, cache):
    """Arrays of many chunk files: read back, found again, and stale or rewritten when any of the files changes."""
    h5ad = write_csc(tmp_path / "csc.h5ad", *columns(seed=5))
    truth, path = read_h5ad(h5ad), tmp_path / "csc.zarr"
    put_zarr(h5ad, path, int(container[5:] or 2) if container != "zip" else 2)
    assert len([p for p in path.glob("X/indices/**/*") if p.is_file()]) > 20
    if container == "zip":
        shutil.make_archive(str(tmp_path / "csc.zarr"), "zip", path)
        path = tmp_path / "csc.zarr.zip"
    check(path, truth)
    made = [p.stat().st_ino for p in rewritten(cache)]
    check(path, truth)
    assert [p.stat().st_ino for p in rewritten(cache)] == made and len(made) == 1
    changed = path if container == "zip" else next(p for p in path.glob("X/indices/**/7") if p.is_file())
    with Mount(path, options=["--batch-size", "16", "--fetch-factor", "1"]) as mnt:
        (mnt / "epoch-00000/batch-0000000.safetensors").read_bytes()
        aged(changed, OLD + 9)
        # Of many files a few are looked at each time, and what was found once is not forgotten. What was assembled before is right.
        codes = []
        for name in Pass(mnt / "epoch-00002").batch_names * 2:
            try:
                (mnt / "epoch-00002" / name).read_bytes()
                codes.append(0)
            except OSError as error:
                codes.append(error.errno)
        assert set(codes) <= {0, errno.ESTALE} and set(codes[-16:]) == {errno.ESTALE}, codes
    check(path, truth)
    assert [p.stat().st_ino for p in rewritten(cache)] != made


def put_zarr(h5ad: Path, to: Path, version: int) -> None:
    """The same arrays in zarr, in chunks of 700 values."""
    import zarr

    def copy(source, target) -> None:
        target.attrs.update({k: attribute(v) for k, v in source.attrs.items()})
        for name, node in source.items():
            if isinstance(node, h5py.Group):
                copy(node, target.create_group(name))
                continue
            text = h5py.check_string_dtype(node.dtype) is not None
            values = np.array(node.asstr()[()], dtype=object) if text else node[()]
            if text and version == 2:
                from numcodecs import VLenUTF8
                a = target.create_array(name, shape=values.shape, dtype=str, filters=[VLenUTF8()], chunks=values.shape)
            else:
                a = target.create_array(name, shape=values.shape, dtype=str if text else values.dtype,
                                        chunks=tuple(min(n, 700) for n in values.shape))
            a[...] = values
            a.attrs.update({k: attribute(v) for k, v in node.attrs.items()})

    with h5py.File(h5ad) as f:
        copy(f, zarr.open_group(to, mode="w", zarr_format=version))


def attribute(value):
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


# ---------------------------------------------------------------------------------------------------- dense, cut along genes
CUT_SHAPE, CUT_CHUNK = (1000, 16_000), (400, 500)


@pytest.fixture(scope="module")
def cut_along_genes(tmp_path_factory) -> tuple[Path, Truth]:
    """Every row lies in 32 chunks of 400 rows: a block decodes 25.6 MB."""
    x = np.zeros(CUT_SHAPE, "f4")
    rng = np.random.default_rng(4)
    x[rng.integers(0, CUT_SHAPE[0], 200_000), rng.integers(0, CUT_SHAPE[1], 200_000)] = rng.random(200_000)
    path = tmp_path_factory.mktemp("dense") / "dense.h5ad"
    truth = h5ad_writer.write(path, gen_stores.dataset(x), chunks=CUT_CHUNK, compression="gzip", compression_opts=1)
    return aged(path), truth


@pytest.mark.parametrize("memory", ["plenty", "little"])
def test_dense_cut_along_genes(cut_along_genes, memory, monkeypatch, cache):
    path, truth = cut_along_genes
    if memory == "little":
        monkeypatch.setitem(ENV, "SHUFFLEFS_REWRITE_MEMORY", str(12 << 20))
    before = json.loads(shufflefs("plan", path, "--json").stdout)
    assert any("chunks of 400x500" in w and "64000000 bytes" in w for w in before["warnings"]) and not cache.exists()
    with Mount(path) as mnt:
        assert load_dataset(mnt) == before["dataset"]
        # The order cuts where the source is cut, into equal parts of at most 1/256 of 768 MiB: 49 rows of 64,000 bytes.
        parts = [start + k * n // 9 for start, n in ((0, 400), (400, 400)) for k in range(9)] + [800 + k * 200 // 5 for k in range(5)]
        np.testing.assert_array_equal(np.load(mnt / ".shufflefs/blocks.npy"), parts)
        check_pass(Pass(mnt / "epoch-00000", load_dataset(mnt)), truth, 256, shuffled=True)
    assert [p.stat().st_size // 1_000_000 for p in rewritten(cache)] == [64]
    assert not json.loads(shufflefs("plan", path, "--json").stdout)["warnings"]


# ----------------------------------------------------------------------------------------------------- order, plan and inspect
@pytest.mark.parametrize("index_dtype", ["i4", "i8"])
def test_order_before_and_after(index_dtype, tmp_path, cache, little_memory):
    """Fixed blocks by the bytes that the source stores per row; `plan` knows them without rewriting anything."""
    args = columns(n_rows=2000, n_vars=3200, density=0.5)
    path = write_csc(tmp_path / "csc.h5ad", *args, index_dtype=index_dtype)
    plan = json.loads(shufflefs("plan", path, "--json").stdout)
    assert not cache.exists() and len([w for w in plan["warnings"] if "csc" in w and str(cache) in w]) == 1
    row_bytes = len(args[0]) * (4 + int(index_dtype[1])) / 2000
    b = next(b for b in (1, 2, 4, 8, 16, 32, 64) if b == 64 or b * row_bytes >= 256 * 1024)
    assert b == {"i4": 32, "i8": 16}[index_dtype], row_bytes
    seen = []
    for _ in range(2):
        with Mount(path) as mnt:
            assert load_dataset(mnt) == plan["dataset"]
            blocks = np.load(mnt / ".shufflefs/blocks.npy")
            np.testing.assert_array_equal(blocks, np.arange(0, 2000, b))
            seen.append((Pass(mnt / "epoch-00003").rows.tolist(), Pass(mnt / "epoch-00003").digests()))
    assert seen[0] == seen[1]
    after = json.loads(shufflefs("plan", path, "--json").stdout)
    assert after["dataset"] == plan["dataset"] and not [w for w in after["warnings"] if "csc" in w]


def test_inspect_tells_the_cost(tmp_path, cache):
    args = columns()
    path = write_csc(tmp_path / "csc.h5ad", *args)
    matrix = json.loads(shufflefs("inspect", path, "--json").stdout)[0]["content"]["matrices"][0]
    assert (matrix["encoding"], matrix["rewritten_bytes"], matrix["refused"]) == ("csc", 8 * len(args[0]), None)
    text = shufflefs("inspect", path).stdout
    assert "once" in text and str(cache) in text and "free" in text
    assert not cache.exists()


# ------------------------------------------------------------------------------------------- interrupted, damaged, changed
def digests(path: Path, *options) -> dict[str, str]:
    with Mount(path, options=["--batch-size", "64", *options]) as mnt:
        return Pass(mnt / "epoch-00000").digests()


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """Large enough that rewriting it in little memory takes a while; and what it reads as."""
    folder = tmp_path_factory.mktemp("large")
    path = write_csc(folder / "csc.h5ad", *columns(n_rows=20_000, n_vars=400, density=0.15, odd=False), compression="gzip")
    return path, digests(path, "--cache-dir", folder / "cache")


@contextlib.contextmanager
def interrupted(path: Path, folder: Path, when, sent: int, tmp_path: Path):
    """A mount that gets a signal when `when(journal)` holds."""
    p = subprocess.Popen([str(BINARY), "mount", "-f", "--cache-dir", str(folder), str(path), str(tmp_path / "mnt")],
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENV)
    try:
        def reached():
            assert p.poll() is None, "ended by itself"
            return any(when(state(j)) for j in folder.glob("*.journal"))
        assert wait_until(reached, 60)
        p.send_signal(sent)
        start = time.monotonic()
        assert p.wait(10) != 0 and time.monotonic() - start < 5
        yield
    finally:
        p.kill()
        p.wait()


def state(journal: Path) -> dict:
    try:
        return json.loads(journal.read_text().split("\n")[0])["state"]
    except (OSError, ValueError):
        return {}


PHASES = {
    "counted": lambda s: "Scatter" in s,
    "scattering": lambda s: s.get("Scatter", {}).get("done", 0) > 100_000,
    "ordering": lambda s: s.get("Order", {}).get("done", 0) > 2,
}


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT], ids=["kill", "int"])
@pytest.mark.parametrize("phase", PHASES)
def test_killed_halfway(phase, sent, large, tmp_path, monkeypatch):
    """The next mount goes on where the last one was, with as little memory or with more; the bytes are those of one that was not killed."""
    path, want = large
    folder = tmp_path / "rows"
    for memory in (str(SMALL_MEMORY), str(1 << 22)):
        monkeypatch.setitem(ENV, "SHUFFLEFS_REWRITE_MEMORY", str(SMALL_MEMORY))
        with interrupted(path, folder, PHASES[phase], sent, tmp_path):
            assert sorted(leftovers(folder))[0].endswith(".journal") and not rewritten(folder)
        monkeypatch.setitem(ENV, "SHUFFLEFS_REWRITE_MEMORY", memory)
        log = tmp_path / f"log-{memory}"
        assert digests(path, "--cache-dir", folder, "--log-file", log) == want
        assert "going on" in log.read_text()
        assert len(rewritten(folder)) == 1 and not leftovers(folder)
        for file in folder.iterdir():
            file.unlink()


@pytest.mark.parametrize("harm", ["draft", "journal", "no-journal", "short"])
def test_harmed_while_unfinished(harm, large, tmp_path, little_memory):
    """A draft or journal that is not what was written is not gone on with."""
    path, want = large
    folder = tmp_path / "rows"
    with interrupted(path, folder, PHASES["scattering"], signal.SIGKILL, tmp_path):
        (draft,), (journal,) = folder.glob("*.part"), folder.glob("*.journal")
        match harm:
            case "draft":
                flip(draft, 2000)  # among the row lengths
            case "journal":
                flip(journal, journal.read_bytes().index(b'"done":') + 8)
            case "no-journal":
                journal.unlink()
            case "short":
                os.truncate(draft, draft.stat().st_size // 2)
        log = tmp_path / "log"
        assert digests(path, "--cache-dir", folder, "--log-file", log) == want
        assert "going on" not in log.read_text()


def flip(path: Path, at: int) -> None:
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 4]))


def test_damaged_rows_are_made_again(large, tmp_path):
    path, want = large
    folder = tmp_path / "rows"
    options = ["--cache-dir", folder]
    assert digests(path, *options) == want
    made = rewritten(folder)[0]
    content = made.read_bytes()
    for at in (9, 300, 5000, len(content) // 3, len(content) - 1):
        flip(made, at)
        assert digests(path, *options) == want
        assert made.read_bytes() == content, f"byte {at}"
    for length in (0, 100, len(content) - 1):
        os.truncate(made, length)
        assert digests(path, *options) == want
        assert made.read_bytes() == content, f"cut at {length}"
    # A mark that is gone costs a check and nothing else.
    inode = made.stat().st_ino
    made.with_suffix(".used").unlink()
    assert digests(path, *options) == want and made.stat().st_ino == inode


def test_a_changed_source_is_rewritten(tmp_path, cache):
    path = write_csc(tmp_path / "csc.h5ad", *columns(seed=1))
    check(path, read_h5ad(path))
    first = rewritten(cache)[0].stat().st_ino
    write_csc(path, *columns(seed=2))
    aged(path, OLD + 1)
    check(path, read_h5ad(path))
    assert [p.stat().st_ino for p in rewritten(cache)] != [first], "the new one replaces the old one"


def test_the_mounted_source_changes(tmp_path, cache):
    """The rows come from the cache folder, and are stale all the same."""
    path = write_csc(tmp_path / "csc.h5ad")
    with Mount(path, options=["--batch-size", "16", "--fetch-factor", "1"]) as mnt:
        epoch = mnt / "epoch-00000"
        (epoch / "batch-0000000.safetensors").read_bytes()
        aged(path, OLD + 5)
        with pytest.raises(OSError) as caught:
            (mnt / "epoch-00001/batch-0000020.safetensors").read_bytes()
        assert caught.value.errno == errno.ESTALE


def test_the_folder_is_removed_under_a_mount(tmp_path, cache):
    path = write_csc(tmp_path / "csc.h5ad")
    truth = read_h5ad(path)
    with Mount(path, options=["--batch-size", "16"]) as mnt:
        for file in cache.iterdir():
            file.unlink()
        cache.rmdir()
        check_pass(Pass(mnt / "epoch-00000", load_dataset(mnt)), truth, 16, shuffled=True)


@pytest.mark.parametrize("bad", ["row", "negative", "indptr"])
def test_damaged_columns_are_refused(bad, tmp_path):
    data, rows, indptr, shape = columns()
    rows, indptr = rows.astype(np.int64), indptr.copy()
    if bad == "indptr":
        indptr[100] = indptr[101] + 1
    else:
        rows[1234] = N_ROWS if bad == "row" else -1
    path = write_csc(tmp_path / "csc.h5ad", data, rows, indptr, shape)
    code, line = refusal(path)
    assert code == 1 and str(path) in line
    assert ("X/indptr" in line and "column 100" in line) if bad == "indptr" else ("X/indices" in line and str(rows[1234]) in line)


# ------------------------------------------------------------------------------------------------------------------ the disk
@pytest.fixture(scope="module")
def giant(tmp_path_factory) -> Path:
    """Says that it has 2^40 values, all of them in holes of the file."""
    path = tmp_path_factory.mktemp("giant") / "giant.h5ad"
    n_rows, n_vars, n = 1 << 20, 1 << 12, 1 << 40
    h5ad_writer.write(path, gen_stores.dataset(gen_stores.random_dense(n_rows=4, n_vars=4)))
    with h5py.File(path, "a") as f:
        for name, length in (("obs", n_rows), ("var", n_vars)):
            del f[name]
            g = f.create_group(name)
            h5ad_writer.encode(g, "dataframe", "0.2.0")
            g.attrs["_index"], g.attrs["column-order"] = "i", np.zeros(0)
            g.create_dataset("i", data=np.arange(length).astype("S7"))
        put_csc(f, "X", np.zeros(4, "f4"), np.zeros(4, "i4"), np.arange(n_vars + 1) * (n // n_vars), (n_rows, n_vars))
        for key, dtype in (("data", "u1"), ("indices", "u1")):
            del f["X"][key]
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            h5py.h5d.create(f["X"].id, key.encode(), h5py.h5t.py_create(np.dtype(dtype)), h5py.h5s.create_simple((n,)), plist)
    return aged(path)


def test_too_large_for_the_disk(giant, tmp_path, cache):
    """Refused before anything is read or written: the bytes needed, the bytes free, and the option."""
    needed = str(5 << 40)
    code, line = refusal("--names", "no", giant)
    assert code == 1 and needed in line and "a fifth" in line and f"--cache-dir {cache}" in line
    code, line = refusal("--names", "no", "--cache-dir", tmp_path / "named", giant)
    assert code == 1 and needed in line and "free" in line and "make room" in line
    p = shufflefs("plan", "--names", "no", giant)
    assert p.returncode == 1 and needed in p.stderr
    assert not cache.exists() and not (tmp_path / "named").exists()
    text = shufflefs("inspect", giant).stdout
    assert "5.0 TiB" in text and "--cache-dir must name" in text


def test_no_folder(tmp_path, monkeypatch):
    path = write_csc(tmp_path / "csc.h5ad")
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delitem(ENV, name, raising=False)
    code, line = refusal(path)
    assert code == 1 and "--cache-dir DIR" in line and "csc" in line
    check(path, read_h5ad(path), options=["--cache-dir", tmp_path / "named"])
    blocked = tmp_path / "file"
    blocked.touch()
    code, line = refusal("--cache-dir", blocked / "below", path)
    assert code == 1 and "--cache-dir" in line and str(blocked) in line
    # Without X nothing has to be rewritten.
    truth = read_h5ad(path)
    check(path, Truth(truth.obs_names, truth.var_names, None, truth.obs), options=["--x", "none"])


@pytest.fixture
def small_disk(tmp_path) -> Path:
    """A file system of 40 MiB."""
    if os.geteuid() != 0:
        pytest.skip("needs root to make a small file system")
    at = tmp_path / "disk"
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", at], check=True, timeout=20)
    yield at
    subprocess.run(["umount", "-l", at], check=True, timeout=20)


def test_room_on_a_small_disk(small_disk, tmp_path, monkeypatch):
    """A fifth of the disk is taken without asking, all of it if the folder is named; what was not used for longest makes room, unless a
    mount uses it; a full disk is told in one line and leaves nothing behind."""
    sources = [write_csc(tmp_path / f"{i}.h5ad", *columns(n_rows=8000, n_vars=400, seed=i, odd=False)) for i in range(3)]
    size = 8 * int(columns(n_rows=8000, n_vars=400, seed=0, odd=False)[2][-1])
    monkeypatch.setitem(ENV, "XDG_CACHE_HOME", str(small_disk))
    folder = small_disk / "shufflefs"
    filler = small_disk / "filler"
    filler.write_bytes(bytes((40 << 20) - int(2.5 * size)))
    code, line = refusal(sources[0])
    assert code == 1 and "a fifth" in line and not folder.exists()
    options = ["--cache-dir", folder]
    want = [digests(s, "--cache-dir", tmp_path / "elsewhere") for s in sources]
    assert digests(sources[0], *options) == want[0] and digests(sources[1], *options) == want[1]
    old, new = sorted(rewritten(folder), key=lambda p: p.with_suffix(".used").stat().st_mtime_ns)
    assert digests(sources[0], *options) == want[0], "used again, so that the other one is older now"
    with Mount(sources[0], options=[*options, "--batch-size", "64"]) as mnt:
        assert digests(sources[2], *options) == want[2]
        assert old.exists() and not new.exists(), "the one that was not used for longest makes room"
        with Mount(sources[2], options=[*options, "--batch-size", "64"]) as other:
            code, line = refusal(*options, sources[1])
            assert code == 1 and "make room" in line and str(folder) in line
            assert Pass(mnt / "epoch-00000").digests() == want[0] and Pass(other / "epoch-00000").digests() == want[2]
    assert not leftovers(folder)


def test_two_mounts_at_once(large, tmp_path, little_memory):
    """One rewrites, the other waits and finds it done."""
    path, want = large
    folder = tmp_path / "rows"
    mounts = [tmp_path / name for name in ("a", "b")]
    run = [str(BINARY), "mount", "--batch-size", "64", "--cache-dir", str(folder), "--log-file"]
    started = []
    try:
        for mnt in mounts:
            words = [*run, f"{mnt}.log", str(path), str(mnt)]
            started.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=ENV))
            assert wait_until(lambda: list(folder.glob("*.journal")), 60)
        assert [p.wait(90) for p in started] == [0, 0]
        assert [Pass(mnt / "epoch-00000").digests() for mnt in mounts] == [want, want]
    finally:
        for mnt in mounts:
            mounting.take_away(mnt)
    logs = [Path(f"{mnt}.log").read_text() for mnt in mounts]
    assert ["writing its rows" in log for log in logs] == [True, False] and "waiting" in logs[1]
    assert len(rewritten(folder)) == 1 and not leftovers(folder)


# -------------------------------------------------------------------------------------------------------------------- memory
def test_memory_of_a_hundred_thousand_cells(tmp_path):
    """Rewriting takes no more memory than mounting the same cells by rows."""
    rng = np.random.default_rng(1)
    n_rows, n_vars, per_column = 100_000, 1000, 8000
    rows = np.concatenate([np.sort(rng.choice(n_rows, per_column, replace=False)) for _ in range(n_vars)])
    csc = sp.csc_matrix((rng.integers(1, 50, len(rows)).astype("f4"), rows, np.arange(n_vars + 1) * per_column), (n_rows, n_vars))
    csr = csc.tocsr()
    by_columns, by_rows = tmp_path / "csc.h5ad", tmp_path / "csr.h5ad"
    for path, x, kind in ((by_columns, csc, "csc_matrix"), (by_rows, csr, "csr_matrix")):
        h5ad_writer.write(path, gen_stores.dataset(np.zeros((4, 4), "f4")))
        with h5py.File(path, "a") as f:
            for name, length in (("obs", n_rows), ("var", n_vars)):
                del f[name]
                g = f.create_group(name)
                h5ad_writer.encode(g, "dataframe", "0.2.0")
                g.attrs["_index"], g.attrs["column-order"] = "i", np.zeros(0)
                g.create_dataset("i", data=np.arange(length).astype("S6"))
            put_csc(f, "X", x.data, x.indices, x.indptr, x.shape, compression="gzip", compression_opts=1)
            f["X"].attrs["encoding-type"] = kind
        aged(path)
    peaks = []
    for path in (by_rows, by_columns, by_columns):
        code, stderr, peak_kib, _ = run_measured("export", "--memory", "48M", "--path", "epoch-00000/batches.txt", "--out",
                                                 tmp_path / "out", "--cache-dir", tmp_path / "cache-dir", path)
        assert code == 0, stderr
        peaks.append(peak_kib)
        subprocess.run(["rm", "-rf", tmp_path / "out"], check=True, timeout=20)
    assert max(peaks) < (48 + 24) * 1024 and max(peaks) < peaks[0] + 24 * 1024, f"{peaks} KiB for 61 MiB of rows"
    check_rows(by_columns, csr, tmp_path / "cache-dir")


def check_rows(path: Path, csr: sp.csr_matrix, folder: Path) -> None:
    """Some batches against scipy."""
    with Mount(path, options=["--cache-dir", folder, "--memory", "48M"]) as mnt:
        epoch = Pass(mnt / "epoch-00000")
        for name in epoch.batch_names[::40]:
            batch = epoch.batch(name)
            want, got = csr[batch.rows], batch.matrix("X")
            np.testing.assert_array_equal(got.indptr, want.indptr)
            np.testing.assert_array_equal(got.indices, want.indices)
            np.testing.assert_array_equal(got.data, want.data)


# --------------------------------------------------------------------------------------------------------- several sources
def test_with_other_sources(tmp_path, cache, little_memory):
    """A matrix stored by columns beside one stored by rows, with genes in another order: the rows of `anndata.concat`."""
    import anndata
    parts = []
    for i, kind in enumerate((sp.csc_matrix, sp.csr_matrix, sp.csc_matrix)):
        data, rows, indptr, shape = columns(n_rows=150 + i, n_vars=80, seed=i, odd=False)
        a = anndata.AnnData(kind(sp.csc_matrix((data, rows, indptr), shape)))
        a.obs_names, a.var_names = [f"{i}-{r}" for r in range(shape[0])], [f"g{(j * 7 + i) % 90}" for j in range(80)]
        a.write_h5ad(tmp_path / f"{i}.h5ad")
        aged(tmp_path / f"{i}.h5ad")
        parts.append(a)
    want = anndata.concat(parts, join="inner")
    with Mount(*[tmp_path / f"{i}.h5ad" for i in range(3)], options=["--batch-size", "32"]) as mnt:
        genes = (mnt / "var_names.txt").read_text().split()
        dense = want[:, genes].X.toarray()
        for folder in ("epoch-00000", "inorder"):
            for batch in Pass(mnt / folder, load_dataset(mnt)):
                x = batch.matrix("X")
                np.testing.assert_array_equal(sp.csr_matrix((x.data, x.indices, x.indptr), (len(batch.rows), x.n_cols)).toarray(), dense[batch.rows])
                assert batch.names == want.obs_names[batch.rows].tolist()
    assert len(rewritten(cache)) == 2
