"""Zarr stores of every encoding, made here with zarr-python: what comes out of a mount is what was put in. Needs no shared data."""

from __future__ import annotations

import errno
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

import gen_zarr
from batches import Batch, Pass, load_dataset
from compare import check_batch, check_pass
from conftest import written_at_first_use
from gen_stores import N_ROWS
from gen_zarr import Layout
from mounting import BINARY, Mount, refusal, run, shufflefs
from test_generated import check_mount
from truth import Truth
from zarr_sources import read_zarr

pytestmark = pytest.mark.usefixtures("fuse")


@pytest.fixture(scope="session")
def zarr_store(store_folder):
    """`zarr_store(name)` -> (path, truth) of a generated store, written at first use."""
    return written_at_first_use(store_folder, gen_zarr.STORES, ".zarr")


def copy_of(store: tuple[Path, Truth], tmp_path: Path) -> tuple[Path, Truth]:
    """A copy that may be changed."""
    path = tmp_path / store[0].name
    shutil.copytree(store[0], path)
    return path, store[1]


def status(mnt: Path) -> dict:
    return json.loads((mnt / ".shufflefs/status.json").read_text())


@pytest.mark.parametrize("name", gen_zarr.STORES)
def test_every_encoding(zarr_store, name):
    path, truth = zarr_store(name)
    check_mount(path, truth, ["--obs", "all"], 7, strings=True)


def test_layers_and_obsm(zarr_store):
    path, truth = zarr_store("v3.layers-obsm")
    options = ["--obs", "all", "--layers", "sparse,dense", "--obsm", "X_pca"]
    check_mount(path, truth, options, 16, strings=True, layers=["sparse", "dense"], obsm=["X_pca"])


# -------------------------------------------------------------------------------------------------------------- zip archives
@pytest.mark.parametrize("name", ["v2.gzip", "v2.order-f", "v3.sharded.zstd", "v3.none", "v3.holes.7", "v2.records"])
@pytest.mark.parametrize("more", [{}, {"prefix": "store.zarr/"}, {"zip64": True}], ids=["plain", "in-a-folder", "zip64"])
def test_stored_archives(zarr_store, tmp_path, name, more):
    path, truth = zarr_store(name)
    check_mount(gen_zarr.archive(path, tmp_path / "x.zarr.zip", **more), truth, ["--obs", "all"], 7, strings=True)


@pytest.mark.parametrize("name", ["v2.gzip", "v2.order-f.shuffle", "v2.shuffle-zlib", "v3.none", "v3.zstd-crc32c", "v3.holes.7"])
def test_compressed_archives(zarr_store, tmp_path, name):
    path, truth = zarr_store(name)
    archive = gen_zarr.archive(path, tmp_path / "x.zip", zipfile.ZIP_DEFLATED)
    check_mount(archive, truth, ["--obs", "all"], 7, strings=True)


def test_the_last_of_two_members_counts(zarr_store, tmp_path):
    """A member that is written again is appended; some chunks are compressed, some are not."""
    path, truth = zarr_store("v3.none")
    archive = gen_zarr.archive(path, tmp_path / "x.zip", zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(archive) as old:
        first = old.read("X/data/c/0")
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(archive, "a") as out:
        out.writestr("X/data/c/0", b"wrong")
        out.writestr("X/data/c/0", first, zipfile.ZIP_STORED)
        out.writestr("zarr.json", b"{}")
        out.writestr("zarr.json", (path / "zarr.json").read_bytes())
    check_mount(archive, truth, [], 7)


def test_archives_that_are_refused(zarr_store, tmp_path):
    path, _ = zarr_store("v3.sharded.zstd")
    archive = gen_zarr.archive(path, tmp_path / "deflated.zip", zipfile.ZIP_DEFLATED)
    assert "shard" in refusal(archive)[1]
    whole = gen_zarr.archive(path, tmp_path / "stored.zip").read_bytes()
    for name, content, word in (
        ("cut.zip", whole[:-100], "cut off"),
        ("other.zip", b"PK\5\6" + bytes(18), "no zarr store"),
        ("directory.zip", whole[:-40] + bytes(18) + whole[-22:], "zip"),
    ):
        (tmp_path / name).write_bytes(content)
        code, line = refusal(tmp_path / name)
        assert code == 1 and word in line and name in line, line


# ------------------------------------------------------------------------------------------------------ what is read, and what not
def test_only_the_needed_chunks_of_a_shard_are_read(zarr_store):
    """Of a shard its index (at mount) and the chunks that hold a batch's rows: never the shard."""
    path, truth = zarr_store("v3.sharded.none")
    with Mount(path, options=["--batch-size", "1", "--obs", "none"]) as mnt:
        before = status(mnt)["counters"]["bytes_read"]
        assert before == 0, "a chunk was read at mount"
        batch = Pass(mnt / "inorder").batch("batch-0000050.safetensors")
        n_values = int(np.diff(truth.x.indptr)[50])
        read = status(mnt)["counters"]["bytes_read"] - before
        assert batch.matrix("X").indptr[-1] == n_values > 0
        assert read <= n_values * 8 + 2 * 8, f"{read} bytes for {n_values} values"


def test_a_chunk_that_goes_is_stale(zarr_store, tmp_path):
    """ESTALE for the rows that need it, whether it was read before or not; never fill values; the server lives on."""
    path, truth = copy_of(zarr_store("v3.dense.zstd"), tmp_path)
    mount = Mount(path, options=["--batch-size", "13", "--fetch-factor", "1", "--memory", "64M"], foreground=True)
    with mount as mnt:
        inorder = Pass(mnt / "inorder")
        (path / "X/c/2/1").unlink()
        stale = []
        for k, name in enumerate(inorder.batch_names):
            try:
                check_batch(Batch((inorder.folder / name).read_bytes()), truth, where=name)
            except OSError as error:
                assert error.errno == errno.ESTALE, f"{name}: {error}"
                stale.append(k)
        assert stale == [2]
        (path / "X/c/4/0").unlink()
        epoch = Pass(mnt / "epoch-00000")
        for name, rows in zip(epoch.batch_names, np.array_split(epoch.rows, range(13, N_ROWS, 13)), strict=True):
            gone = bool(set((rows // 13).tolist()) & {2, 4})
            try:
                check_batch(Batch((epoch.folder / name).read_bytes()), truth, where=name)
                assert not gone
            except OSError as error:
                assert gone and error.errno == errno.ESTALE
        assert mount.process.poll() is None


def test_a_chunk_that_appears_later_is_not_served(zarr_store, tmp_path):
    """What was not there at mount is the fill value as long as the mount lives: batches never change."""
    path, truth = copy_of(zarr_store("v3.holes.7"), tmp_path)
    with Mount(path, options=["--batch-size", "13"]) as mnt:
        assert not (path / "X/c/1").exists()
        (path / "X/c/1").mkdir()
        shutil.copy(path / "X/c/0/0", path / "X/c/1/0")
        check_pass(Pass(mnt / "inorder", load_dataset(mnt)), truth, 13, shuffled=False)


def test_links_stay_inside(zarr_store, tmp_path):
    """Links inside the store are followed, links out of it are refused by name."""
    path, truth = copy_of(zarr_store("v3.zstd"), tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    chunk = path / "X/data/c/1"
    chunk.rename(path / "X/data/moved")
    chunk.symlink_to("../moved")
    check_mount(path, truth, [], 16)
    shutil.move(path / "X/data/moved", outside / "moved")
    chunk.unlink()
    for target in ("../../../../outside/moved", str(outside / "moved")):
        chunk.symlink_to(target)
        code, line = refusal(path)
        assert code == 1 and "link out of the store" in line and "X/data" in line, line
        chunk.unlink()
    shutil.move(outside / "moved", chunk)
    for part in ("X/data/zarr.json", "obs/_index", "var"):
        shutil.move(path / part, outside / "part")
        (path / part).symlink_to(outside / "part")
        code, line = refusal(path)
        assert code == 1 and "link out of the store" in line, line
        (path / part).unlink()
        shutil.move(outside / "part", path / part)
    check_mount(path, truth, [], 16)


def test_names_in_attributes_stay_inside(zarr_store, tmp_path):
    path, truth = copy_of(zarr_store("v3.zstd"), tmp_path)

    def change(attributes: dict):
        attributes["column-order"] = ["../var/_index", "/etc/passwd", *attributes["column-order"], "cell_type/codes"]

    gen_zarr.edit_json(path / "obs/zarr.json", lambda doc: change(doc["attributes"]))
    check_mount(path, truth, [], 16)
    gen_zarr.edit_json(path / "obs/zarr.json", lambda doc: doc["attributes"].update({"_index": "../var/_index"}))
    check_mount(path, truth, [], 16)


@pytest.mark.parametrize("document, change, words", [
    ("X/data", {"codecs": [{"name": "bytes"}, {"name": "zfp"}]}, ["X/data", "zfp"]),
    ("X/data", {"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "gzip"}, {"name": "zstd"}]}, ["X/data", "twice"]),
    ("X/data", {"chunk_key_encoding": {"name": "other"}}, ["X/data", "other"]),
    ("X/data", {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "/../"}}}, ["X/data", "separator"]),
    ("X/data", {"storage_transformers": [{"name": "x"}]}, ["X/data", "transformers"]),
    ("X/data", {"chunk_grid": {"name": "rectangular"}}, ["X/data", "rectangular"]),
    ("X/data", {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1 << 40]}}}, ["X/data", "smaller chunks"]),
    ("X/data", {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}}}, ["X/data", "dimensions"]),
    ("X/data", {"shape": [1 << 50]}, ["X/data", "limits"]),
    ("X/data", {"data_type": "complex64"}, ["X/data", "complex64"]),
    ("X/data", {"fill_value": "what"}, ["X/data", "fill value"]),
    ("X/data", {"zarr_format": 4}, ["X/data", "format 4"]),
    ("X/data", {"node_type": "table"}, ["X/data", "table"]),
    ("X/data", {"shape": [-3]}, ["X/data", "metadata"]),
    ("X", {"attributes": {"encoding-type": "csc_matrix", "shape": [90, 160]}}, ["X/indptr", "for 160 columns"]),
])
def test_what_cannot_be_read_is_named(zarr_store, tmp_path, document, change, words):
    path, _ = copy_of(zarr_store("v3.none"), tmp_path)
    gen_zarr.edit_json(path / document / "zarr.json", lambda doc: doc.update(change))
    code, line = refusal(path)
    assert code == 1 and all(word in line for word in [*words, str(path)]), line


def test_what_is_not_needed_does_no_harm(zarr_store, tmp_path):
    """`uns` is never opened, nor is a layer that nobody asked for; consolidated metadata are not believed."""
    path, truth = copy_of(zarr_store("v3.consolidated"), tmp_path)
    for broken in ("uns/x", "layers/y", "obsp"):
        (path / broken).mkdir(parents=True)
        (path / broken / "zarr.json").write_text("{")
    gen_zarr.edit_json(path / "zarr.json", lambda doc: doc["consolidated_metadata"]["metadata"]["X/data"].update({"shape": [3]}))
    check_mount(path, truth, [], 16)


def test_folders_that_are_no_store(tmp_path):
    (tmp_path / "empty").mkdir()
    code, line = refusal(tmp_path / "empty")
    assert code == 1 and "empty" in line and "name the files" in line, line


def test_inspect(zarr_store):
    path, truth = zarr_store("v3.sharded.blosc-lz4")
    out = shufflefs("inspect", "--json", path)
    assert out.returncode == 0, out.stderr
    [found] = json.loads(out.stdout)
    x = found["content"]["matrices"][0]
    assert found["content"]["container"].startswith("zarr v3 AnnData")
    assert (x["encoding"], x["shape"], x["chunk"], x["shard"], x["filters"]) == ("csr", [90, 160], [97], [388], ["blosc(lz4)"])
    assert x["n_values"] == len(truth.x.data) and x["stored_bytes"] > 0
    text = shufflefs("inspect", path).stdout
    assert "chunks of 97 in shards of 388" in text and "zarr v3" in text


# ---------------------------------------------------------------------------------------------------------- groups inside a source
def test_groups_of_one_store(tmp_path):
    """`SOURCE::GROUP` in folders and archives; without it what exists is listed."""
    path = tmp_path / "several.zarr"
    gen_zarr.collection(path, [])
    truths = [gen_zarr.dataset(gen_zarr.csr()), gen_zarr.dataset(gen_zarr.dense())]
    for name, truth in zip(("rna", "a b::c"), truths):
        gen_zarr.write(path, truth, Layout(3), group=f"mod/{name}")
    gen_zarr.edit_json(path / "zarr.json", lambda doc: doc.update({"attributes": {"encoding-type": "MuData"}}))
    code, line = refusal(path)
    assert code == 1 and "MuData with mod/a b::c, mod/rna" in line and f"{path}::mod/" in line, line
    archive = gen_zarr.archive(path, tmp_path / "several.zarr.zip")
    for source in (path, archive):
        for name, truth in zip(("rna", "a b::c"), truths):
            check_mount(f"{source}::mod/{name}", truth, ["--obs", "all"], 16, strings=True)
        code, line = refusal(f"{source}::mod/none")
        assert code == 1 and "has no none" in line and "rna" in line, line
    code, line = refusal(f"{path}::mod/../mod/rna")
    assert code == 1 and "has no .." in line, line


def test_a_collection_says_that_it_is_shuffled(tmp_path):
    """A member of annbatch's collection is a source; the collection as a whole has a smaller default window."""
    path = tmp_path / "collection.zarr"
    truth = gen_zarr.dataset(gen_zarr.csr())
    gen_zarr.collection(path, [truth])
    check_mount(f"{path}::dataset_0", truth, [], 16)
    check_mount(path, truth, [], 16)


def test_more_chunk_files_than_descriptors(tmp_path):
    """Chunks of one row each, with fewer descriptors than chunks."""
    truth = gen_zarr.dataset(gen_zarr.random_dense(600, 5))
    path = tmp_path / "many.zarr"
    gen_zarr.write(path, truth, Layout(3, chunks=(1, 5), compressors=None))
    command = f"ulimit -n 64; exec {BINARY} cat --batch-size 600 --path inorder/batch-0000000.safetensors {path}"
    out = run("bash", "-c", command, text=False)
    assert out.returncode == 0, out.stderr
    check_batch(Batch(out.stdout), truth, where="cat")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dense", [False, True], ids=["csr", "dense"])
def test_what_anndata_writes(tmp_path, zarr_format, dense):
    """Stores of anndata's own writer, against its own reader."""
    import anndata
    import pandas as pd
    from scipy import sparse

    rng = np.random.default_rng(3)
    x = sparse.random(60, 40, 0.2, format="csr", dtype="f4", rng=rng)
    obs = pd.DataFrame({
        "kind": pd.Categorical([("a", "b", None)[i % 3] for i in range(60)], categories=["b", "a"], ordered=True),
        "n": np.arange(60, dtype="i2"),
        "maybe": pd.array([None if i % 4 == 0 else i for i in range(60)], dtype="Int64"),
        "yes": pd.array([None if i % 5 == 0 else i % 2 == 0 for i in range(60)], dtype="boolean"),
    }, index=[f"cell {i}" for i in range(60)])
    made = anndata.AnnData(x.toarray() if dense else x, obs=obs, var=pd.DataFrame(index=[f"g{i}" for i in range(40)]))
    made.layers["twice"] = sparse.csr_matrix(2 * x)
    made.obsm["X_pca"] = rng.random((60, 3), "f4")
    made.uns["anything"] = {"a": [1, 2], "b": "text"}
    path = tmp_path / "made.zarr"
    with anndata.settings.override(zarr_write_format=zarr_format):
        made.write_zarr(path)
    truth = read_zarr(path)
    back = anndata.io.read_zarr(path)
    want = np.asarray(back.X if dense else back.X.todense())
    with Mount(path, options=["--batch-size", "60", "--layers", "twice", "--obsm", "X_pca", "--dense"]) as mnt:
        batch = Pass(mnt / "inorder").batch("batch-0000000.safetensors")
        np.testing.assert_array_equal(batch.matrix("X"), want)
        assert batch.column("kind").labels() == [None if v is pd.NA or v != v else v for v in back.obs["kind"].tolist()]
        assert batch.names == back.obs_names.tolist()
    options = ["--obs", "all", "--layers", "twice", "--obsm", "X_pca"]
    check_mount(path, truth, options, 16, strings=True, layers=["twice"], obsm=["X_pca"])
