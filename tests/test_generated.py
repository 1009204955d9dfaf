"""One small store per kind of encoding, made here: what comes out of a mount is what was put in. Needs no shared data.

Entries of the list of bug reports keep their ids in the test names (s1, s2, ...).
"""

from __future__ import annotations

import json
import os
import re

import h5py
import numpy as np
import pytest

import gen_stores
import h5ad_writer
from batches import Batch, Pass, load_dataset
from compare import check_pass
from mounting import Mount, MountFailed, one_line_error, refusal, shufflefs
from truth import Category, Csr, Numbers, Truth

pytestmark = pytest.mark.usefixtures("fuse")


def check_mount(path, truth, options, batch_size, **kwargs) -> None:
    with Mount(path, options=["--batch-size", str(batch_size), *options]) as mnt:
        dataset = load_dataset(mnt)
        check_pass(Pass(mnt / "epoch-00000", dataset), truth, batch_size, shuffled=True, **kwargs)
        check_pass(Pass(mnt / "inorder", dataset), truth, batch_size, shuffled=False, **kwargs)
        assert (mnt / "var_names.txt").read_text() == "".join(f"{name}\n" for name in truth.var_names)


@pytest.mark.parametrize("name", gen_stores.STORES)
def test_s2_s6_every_encoding(store, name):
    path, truth = store(name)
    check_mount(path, truth, ["--obs", "all"], 7, strings=True)


@pytest.mark.parametrize("name", ["csr.gzip", "dense.gzip", "rows.one", "rows.all-empty", "obs.kinds", "old.0.6-csr"])
def test_default_options(store, name):
    path, truth = store(name)
    with Mount(path) as mnt:
        check_pass(Pass(mnt / "epoch-00000"), truth, 256, shuffled=True)


@pytest.mark.parametrize("name", ["coded", "coded-dense"])
@pytest.mark.parametrize("more", [
    [], ["--fetch-factor", "2"], ["--block-size", "1"], ["--block-size", "16", "--fetch-factor", "3"],
], ids=lambda more: " ".join(more) or "auto")
def test_columns_stay_aligned(store, name, more):
    """X, layers, obsm, obs and names all encode the row."""
    path, truth = store(name)
    options = ["--obs", "all", "--layers", "sparse,dense", "--obsm", "pair,wide", *more]
    check_mount(path, truth, options, 16, strings=True, layers=["sparse", "dense"], obsm=["pair", "wide"])


@pytest.mark.parametrize("batch_size", [1, 199, 200, 201])
def test_s3_degenerate_batches(store, batch_size):
    """Batches of one row, a last batch of one row, one batch for all."""
    path, truth = store("coded")
    check_mount(path, truth, [], batch_size)


def test_s8_choose_what_is_x(store):
    """Counts are often only in raw/X or in a layer; genes are then those of raw."""
    path, truth = store("coded")
    for option, x, genes in (("raw/X", truth.raw, truth.raw_var_names), ("layers/dense", truth.layers["dense"], truth.var_names)):
        check_mount(path, Truth(truth.obs_names, genes, x, truth.obs), ["--x", option], 32)


def test_x_none(store):
    """`--x none` serves rows without X."""
    path, truth = store("coded")
    check_mount(path, Truth(truth.obs_names, truth.var_names, None, truth.obs), ["--x", "none"], 32)


def test_choice_of_columns(store):
    path, truth = store("obs.kinds")
    with Mount(path, options=["--obs", "text,int8"]) as mnt:
        assert Pass(mnt / "inorder").batch("batch-0000000.safetensors").column_names == {"text", "int8"}
    with Mount(path, options=["--obs", "none", "--names", "no"]) as mnt:
        batch = Pass(mnt / "inorder").batch("batch-0000000.safetensors")
        assert set(batch.tensors) == {"X.data", "X.indices", "X.indptr", "X.shape", "row"}
    code, line = refusal("--obs", "no_such_column", path)
    assert code in (1, 2) and "no_such_column" in line


def test_provenance_and_metadata(store):
    """What identifies the bytes is in every batch; paths and times are not."""
    path, _ = store("coded")
    with Mount(path, options=["--batch-size", "32", "--seed", "5"]) as mnt:
        first = Pass(mnt / "epoch-00001").batch("batch-0000002.safetensors")
        fingerprint = load_dataset(mnt)["fingerprint"]
    provenance = first.provenance
    assert (provenance["order"], int(provenance["seed"]), int(provenance["epoch"]), int(provenance["batch"])) == ("v1", 5, 1, 2)
    assert provenance["fingerprint"] == fingerprint
    assert first.metadata["X.encoding"] == "csr" and json.loads(first.metadata["X.shape"]) == [32, gen_stores.N_VARS]
    assert first.metadata["obs_names.encoding"] == "utf8-nul-padded"
    assert str(path) not in str(first.metadata) and str(mnt) not in str(first.metadata)


def test_equal_data_begins_at_equal_offsets(store):
    """The header has one size per mount, so that the data of every batch begin at the same place."""
    path, _ = store("coded")
    with Mount(path, options=["--batch-size", "8"]) as mnt:
        epoch = Pass(mnt / "epoch-00000")
        sizes = {int.from_bytes((epoch.folder / n).read_bytes()[:8], "little") for n in epoch.batch_names}
    assert len(sizes) == 1


# --------------------------------------------------------------------------------------------------------- several sources
def test_s9_codes_are_global(tmp_path):
    """Two files whose equal codes mean different labels: either labels come out right, or the mount is refused."""
    truths = []
    for k, categories in enumerate((["a", "b"], ["b", "a", "c"])):
        n = 20
        label = Category(np.arange(n) % len(categories), categories)
        truth = gen_stores.dataset(gen_stores.random_csr(n_rows=n, seed=k), label=label)
        truth.obs_names = [f"file {k} cell {i}" for i in range(n)]
        truths.append(h5ad_writer.write(tmp_path / f"{k}.h5ad", truth))
    try:
        with Mount(tmp_path / "0.h5ad", tmp_path / "1.h5ad", options=["--batch-size", "7"]) as mnt:
            labels, names, sources = [], [], []
            for batch in Pass(mnt / "inorder", load_dataset(mnt)):
                labels += batch.column("label").labels()
                names += batch.names
                sources += batch.tensors["source"].tolist()
    except MountFailed as error:
        assert error.code in (1, 2)
        one_line_error(error.stderr)
        return
    assert labels == [v for t in truths for v in t.obs["label"].labels()]
    assert names == [v for t in truths for v in t.obs_names]
    assert sources == [0] * 20 + [1] * 20


# --------------------------------------------------------------------------------------------------------------- refusals
def test_s7_unknown_filter(tmp_path):
    path = tmp_path / "filter.h5ad"
    h5ad_writer.write(path, gen_stores.dataset(gen_stores.random_csr()), chunks=(300,))
    with h5py.File(path, "a") as f:
        values = f["X/data"][()]
        del f["X/data"]
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((len(values),))
        plist.set_filter(31999, h5py.h5z.FLAG_OPTIONAL, ())
        made = h5py.h5d.create(f["X"].id, b"data", h5py.h5t.NATIVE_FLOAT, h5py.h5s.create_simple(values.shape), plist)
        made.write_direct_chunk((0,), values.tobytes(), 0)
    code, line = refusal(path)
    assert code == 1 and "X/data" in line and "31999" in line and path.name in line


def test_s3_no_rows(tmp_path):
    path = tmp_path / "empty.h5ad"
    empty = Csr(np.zeros(0, "f4"), np.zeros(0, np.int64), np.zeros(1, np.int64), 10)
    h5ad_writer.write(path, gen_stores.dataset(empty, label=Category(np.zeros(0, np.int64), ["a"])))
    code, line = refusal(path)
    assert code == 1 and path.name in line


def test_name_clash(tmp_path):
    """A column `x` of categories and a column `x.codes` of numbers would have one name in a batch."""
    path = tmp_path / "clash.h5ad"
    truth = gen_stores.dataset(gen_stores.random_csr(), **{"x": gen_stores.cell_type(90), "x.codes": Numbers(np.arange(90))})
    h5ad_writer.write(path, truth)
    code, line = refusal(path)
    assert code == 1 and "x.codes" in line


def test_links_out_of_the_file(tmp_path):
    """External links and virtual datasets are never followed (promise 8)."""
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as f:
        f.create_dataset("X", data=np.full((90, 160), 1234567, "f4"))
    for kind in ("link", "virtual"):
        path = tmp_path / f"{kind}.h5ad"
        h5ad_writer.write(path, gen_stores.dataset(gen_stores.random_dense()), chunks=(16, 160))
        with h5py.File(path, "a") as f:
            del f["X"]
            if kind == "link":
                f["X"] = h5py.ExternalLink("secret.h5", "X")
            else:
                layout = h5py.VirtualLayout((90, 160), "f4")
                layout[...] = h5py.VirtualSource("secret.h5", "X", (90, 160))
                f.create_virtual_dataset("X", layout)
        for cwd in (None, tmp_path):
            code, line = refusal(path.name if cwd else path, cwd=cwd)
            assert code == 1 and path.name in line and "X" in line


def test_usage_errors(store, tmp_path):
    path, _ = store("coded")
    for args in (["mount", "--no-such-option"], ["mount", "--batch-size", "0"], ["nonsense"]):
        assert shufflefs(*args, path, tmp_path / "m").returncode == 2, args
    missing = shufflefs("mount", tmp_path / "missing.h5ad", tmp_path / "m")
    assert missing.returncode == 1 and "missing.h5ad" in one_line_error(missing.stderr)
    forgotten = shufflefs("mount", path)
    assert forgotten.returncode in (1, 2) and "mount point" in forgotten.stderr


def test_batch_too_large_for_memory(store):
    """What can never fit is refused at mount with the number that would."""
    path, _ = store("dense.gzip")
    code, line = refusal("--memory", "4KiB", path)
    assert code in (1, 2) and re.search(r"\d", line) and "memory" in line


# ------------------------------------------------------------------------------------------------------ more than 2^31 values
def test_s2_more_than_2_31_values(tmp_path):
    """Three thousand million entries, nearly all of them holes: positions beyond 2^31 (and 2^32 bytes) are right."""
    n_rows, n_vars, chunk = 3000, 1_000_000, 250_000
    path = tmp_path / "holes.h5ad"
    with h5py.File(path, "w") as f:
        h5ad_writer.encode(f, "anndata", "0.1.0")
        for name, n in (("obs", n_rows), ("var", n_vars)):
            g = f.create_group(name)
            h5ad_writer.encode(g, "dataframe", "0.2.0")
            g.attrs["_index"], g.attrs["column-order"] = "_index", np.zeros(0)
            g.create_dataset("_index", data=np.arange(n).astype("S7"))
            h5ad_writer.encode(g["_index"], "string-array", "0.2.0")
        g = f.create_group("X")
        h5ad_writer.encode(g, "csr_matrix", "0.1.0")
        g.attrs["shape"] = np.array([n_rows, n_vars])
        for name, dtype, fill in (("data", "f4", 0), ("indices", "i4", 5)):
            g.create_dataset(name, shape=(n_rows * n_vars,), dtype=dtype, chunks=(chunk,), compression="gzip", fillvalue=fill)
        g.create_dataset("indptr", data=np.arange(n_rows + 1) * n_vars)
        # Only one chunk of the last row is there.
        at = (n_rows - 1) * n_vars + chunk
        g["data"][at : at + chunk] = np.arange(chunk, dtype="f4") + 1
        g["indices"][at : at + chunk] = np.arange(chunk) + 7
    with Mount(path, options=["--batch-size", "2", "--fetch-factor", "1", "--memory", "256MiB"]) as mnt:
        folder = mnt / "inorder"
        assert os.stat(folder / "batch-0000000.safetensors").st_size > 2 * n_vars * 8
        batch = Batch((folder / f"batch-{n_rows // 2 - 1:07d}.safetensors").read_bytes())
    assert batch.rows.tolist() == [n_rows - 2, n_rows - 1]
    x = batch.matrix("X")
    indices, values = x.row(1)
    want = np.zeros(n_vars, "f4")
    want[chunk : 2 * chunk] = np.arange(chunk) + 1
    np.testing.assert_array_equal(values, want)
    np.testing.assert_array_equal(indices[chunk : 2 * chunk], np.arange(chunk) + 7)
    assert (indices[:chunk] == 5).all() and (x.row(0)[1] == 0).all()
