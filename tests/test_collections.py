"""Several sources as one dataset: against `anndata.concat` of the same files, row by row."""

from __future__ import annotations

import resource
import shutil
import subprocess
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import mounting
from batches import Batch, Pass, load_dataset
from mounting import BINARY, ENV, Mount, one_line_error, refusal, shufflefs
from truth import Category, Csr, Nullable, Numbers, Text

PAIR = ["derived/pair_1.h5ad", "derived/pair_2.h5ad"]


# ------------------------------------------------------------------------------------------------------------- helpers
def export(tmp_path: Path, *sources, options=(), path: str = "inorder") -> Path:
    """Batches of one directory of the tree, without a mount."""
    out = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
    p = shufflefs("export", *options, *sources, "--out", out, "--path", path)
    assert p.returncode == 0, p.stderr
    for name in ("dataset.json", "var_names.txt"):
        p = shufflefs("cat", *options, *sources, "--path", name)
        assert p.returncode == 0, p.stderr
        (out / name).write_text(p.stdout)
    return out


def read_all(out: Path, folder: str = "inorder") -> tuple[list[Batch], dict, list[str]]:
    dataset = load_dataset(out)
    folder = out / folder if (out / folder).is_dir() else out
    names = sorted(p.name for p in folder.glob("batch-*"))
    assert names
    batches = [Batch((folder / name).read_bytes(), dataset) for name in names]
    return batches, dataset, (out / "var_names.txt").read_text().splitlines()


def dense(batches: list[Batch], name: str = "X") -> np.ndarray:
    def one(batch):
        m = batch.matrix(name)
        if isinstance(m, Csr):
            return sp.csr_matrix((m.data, m.indices, m.indptr), shape=(m.n_rows, m.n_cols)).toarray()
        return m
    return np.concatenate([one(b) for b in batches])


def is_sorted(batches: list[Batch]) -> bool:
    rows = (b.matrix("X").row(i)[0] for b in batches for i in range(len(b.rows)))
    return all(np.all(np.diff(r.astype(np.int64)) >= 0) for r in rows)


def labels(batches: list[Batch], name: str) -> list:
    out = []
    for batch in batches:
        column = batch.column(name)
        match column:
            case Category() | Text():
                out += column.labels() if isinstance(column, Category) else column.labels
            case Nullable():
                out += [None if m else v for v, m in zip(column.values.tolist(), column.mask)]
            case Numbers():
                out += column.values.tolist()
    return out


def concat(paths, **kwargs) -> ad.AnnData:
    return ad.concat([ad.read_h5ad(p) if str(p).endswith("h5ad") else ad.read_zarr(p) for p in paths], **kwargs)


def to_dense(x) -> np.ndarray:
    return x.toarray() if sp.issparse(x) else np.asarray(x)


def check_equal(batches, genes, expected: ad.AnnData, columns=()) -> None:
    """X, names and the labels of columns; anndata may promote to a wider type than what holds all values."""
    assert genes == expected.var_names.tolist()
    np.testing.assert_array_equal(np.concatenate([b.rows for b in batches]), np.arange(expected.n_obs))
    np.testing.assert_array_equal(dense(batches), to_dense(expected.X))
    assert [n for b in batches for n in b.names] == expected.obs_names.tolist()
    for name in columns:
        want = [None if pd.isna(v) else v for v in expected.obs[name].tolist()]
        assert labels(batches, name) == want, name


def make(path: Path, n: int, genes: list[str], /, seed: int = 0, dtype="f4", form="csr", **obs) -> Path:
    rng = np.random.default_rng(seed)
    x = (rng.integers(1, 50, (n, len(genes))) * (rng.random((n, len(genes))) < 0.3)).astype(dtype)
    a = ad.AnnData(sp.csr_matrix(x) if form == "csr" else x, obs=pd.DataFrame(obs, index=[f"{path.stem}-{i}" for i in range(n)]))
    a.var_names = genes
    a.write_zarr(path) if path.suffix == ".zarr" else a.write_h5ad(path, compression="gzip")
    return path


GENES = [f"g{i}" for i in range(60)]


# --------------------------------------------------------------------------------------------------------------- genes
@pytest.mark.parametrize("join", ["inner", "outer"])
def test_the_pair_equals_concat(data, tmp_path, join):
    paths = [data / p for p in PAIR]
    batches, dataset, genes = read_all(export(tmp_path, *paths, options=["--join", join, "--batch-size", 64]))
    expected = concat(paths, join=join)
    assert len(genes) == {"inner": 900, "outer": 1100}[join]
    outer_obs = concat(paths, join="outer").obs
    expected.obs["score"] = outer_obs["score"]
    check_equal(batches, genes, expected, ["lib", "cell_type", "score"])
    assert is_sorted(batches)
    assert np.concatenate([b.tensors["source"] for b in batches]).tolist() == [0] * 200 + [1] * 150
    assert dataset["join"] == {"how": join, "n_vars_all_sources": 1100, "n_vars_joined": len(genes)}
    assert not any("X.total" in b.tensors for b in batches)
    # Labels are united by name, those of the first source keep their codes.
    first = ad.read_h5ad(paths[0]).obs["cell_type"].cat.categories.tolist()
    column = next(c for c in dataset["columns"] if c["name"] == "cell_type")
    assert column["categories"][: len(first)] == first
    assert set(column["categories"]) == set(first) | set(ad.read_h5ad(paths[1]).obs["cell_type"].cat.categories)


def test_a_shuffled_mount_has_the_same_rows(data):
    paths = [data / p for p in PAIR]
    expected = to_dense(concat(paths, join="outer").X)
    with Mount(*paths, options=["--join", "outer", "--batch-size", 50]) as mnt:
        epoch = Pass(mnt / "epoch-00003", load_dataset(mnt))
        seen = []
        for batch in epoch:
            np.testing.assert_array_equal(dense([batch]), expected[batch.rows])
            seen += batch.rows.tolist()
        assert sorted(seen) == list(range(350))
        readme = (mnt / "README.md").read_text()
        assert "`source`" in readme


def test_exact_and_disjoint_and_repeated_genes(data, tmp_path):
    code, line = refusal("--join", "exact", *[data / p for p in PAIR])
    assert code == 1 and "pair_2.h5ad: var" in line and "differ in 200 genes" in line and "--join inner" in line
    a, b = make(tmp_path / "a.h5ad", 5, GENES), make(tmp_path / "b.h5ad", 5, [g.upper() for g in GENES])
    code, line = refusal(a, b)
    assert code == 1 and "b.h5ad: var: has no gene in common" in line and "g0" in line and "G0" in line
    same = make(tmp_path / "same.h5ad", 4, GENES, seed=3)
    repeated = make(tmp_path / "repeated.h5ad", 4, ["MATR3", "MATR3", *GENES[2:]])
    code, line = refusal(a, repeated)
    assert code == 1 and "repeated.h5ad: var: MATR3 occurs twice" in line
    # Equal lists need no names, so that repeats do no harm; the same genes in another order are no other genes.
    twin = tmp_path / "twin.h5ad"
    shutil.copy(repeated, twin)
    batches, _, genes = read_all(export(tmp_path, repeated, twin, options=["--join", "exact"]))
    assert genes[:2] == ["MATR3", "MATR3"] and len(np.concatenate([b.rows for b in batches])) == 8
    turned = make(tmp_path / "turned.h5ad", 6, GENES[::-1], seed=4)
    batches, _, genes = read_all(export(tmp_path, same, turned, options=["--join", "exact"]))
    check_equal(batches, genes, concat([same, turned]))
    assert is_sorted(batches)


def test_genes_are_chosen_from_the_joined_ones(data, tmp_path):
    paths = [data / p for p in PAIR]
    joined = concat(paths)
    wanted = [*joined.var_names[::-7], "not-there"]
    (tmp_path / "genes.txt").write_text("\n".join(wanted))
    options = ["--genes", tmp_path / "genes.txt", "--genes-missing", "zero"]
    for more in ([], ["--dense"]):
        batches, _, genes = read_all(export(tmp_path, *paths, options=[*options, *more]))
        assert genes == wanted
        np.testing.assert_array_equal(dense(batches)[:, :-1], to_dense(joined[:, wanted[:-1]].X))
        assert not dense(batches)[:, -1].any()
        totals = np.concatenate([b.tensors["X.total"] for b in batches])
        want = [v for p in paths for v in np.asarray(ad.read_h5ad(p).X.sum(axis=1), "f8").ravel()]
        np.testing.assert_allclose(totals, want)
    # A gene that only the outer join has.
    only = sorted(set(ad.read_h5ad(paths[0]).var_names) - set(joined.var_names))[0]
    (tmp_path / "genes.txt").write_text(only)
    code, line = refusal("--genes", tmp_path / "genes.txt", *paths)
    assert code == 1 and only in line
    batches, _, _ = read_all(export(tmp_path, *paths, options=["--genes", tmp_path / "genes.txt", "--join", "outer"]))
    np.testing.assert_array_equal(dense(batches), to_dense(concat(paths, join="outer")[:, [only]].X))


def test_a_column_of_genes_must_agree(tmp_path):
    def with_flags(name, genes, flags):
        path = make(tmp_path / name, 5, genes)
        a = ad.read_h5ad(path)
        a.var["hv"] = flags
        a.write_h5ad(path)
        return path
    a = with_flags("a.h5ad", ["x", "y", "z"], [True, False, True])
    b = with_flags("b.h5ad", ["z", "w", "y"], [True, True, False])
    _, _, genes = read_all(export(tmp_path, a, b, options=["--genes", "var:hv", "--join", "outer"]))
    assert genes == ["w", "x", "z"]
    c = with_flags("c.h5ad", ["y", "z"], [True, True])
    code, line = refusal("--genes", "var:hv", a, c)
    assert code == 1 and "c.h5ad" in line and "a.h5ad" in line and "gene y" in line


def test_the_same_genes_cost_nothing(tmp_path):
    a, b = (make(tmp_path / f"{n}.h5ad", 20, GENES, seed=i) for i, n in enumerate("ab"))
    batches, dataset, genes = read_all(export(tmp_path, a, b))
    check_equal(batches, genes, concat([a, b]))
    assert dataset["join"]["n_vars_all_sources"] == len(GENES)
    # Exactly the stored bytes: no room for what a join drops.
    assert not any(k.startswith("__pad") and v.size > 4096 for x in batches for k, v in x.tensors.items())


# -------------------------------------------------------------------------------------------------- kinds and types of X
@pytest.mark.parametrize("join", ["inner", "outer"])
@pytest.mark.parametrize("forms", ["dense dense", "csr dense", "dense csr csr dense"])
def test_dense_among_sparse(tmp_path, join, forms):
    rng = np.random.default_rng(5)
    paths = []
    for i, form in enumerate(forms.split()):
        genes = rng.permutation(GENES)[: 40 + i].tolist()
        paths.append(make(tmp_path / f"{i}.h5ad", 30, genes, seed=i, form=form))
    options = ["--join", join, "--batch-size", 16]
    expected = concat(paths, join=join, fill_value=0)
    for path in ("inorder", "epoch-00000"):
        batches, dataset, genes = read_all(export(tmp_path, *paths, options=options, path=path), path)
        assert genes == expected.var_names.tolist() and dataset["elements"][0]["encoding"] == "dense"
        rows = np.concatenate([b.rows for b in batches])
        np.testing.assert_array_equal(dense(batches), to_dense(expected.X)[rows])
    # And genes chosen from them, with the sums of the rows as stored.
    wanted = expected.var_names[::-3].tolist()
    (tmp_path / "genes.txt").write_text("\n".join(wanted))
    batches, _, genes = read_all(export(tmp_path, *paths, options=[*options, "--genes", tmp_path / "genes.txt"]))
    np.testing.assert_array_equal(dense(batches), to_dense(expected[:, wanted].X))
    totals = np.concatenate([b.tensors["X.total"] for b in batches])
    np.testing.assert_allclose(totals, np.concatenate([to_dense(ad.read_h5ad(p).X).sum(axis=1) for p in paths]))


def test_dense_with_the_same_genes_is_copied_as_it_is(tmp_path):
    paths = [make(tmp_path / f"{i}.h5ad", 20, GENES, seed=i, form=form) for i, form in enumerate(["dense", "csr", "dense"])]
    batches, _, genes = read_all(export(tmp_path, *paths, options=["--batch-size", 7]))
    check_equal(batches, genes, concat(paths))


@pytest.mark.parametrize("types, served", [
    ("i4 f4", "f8"), ("u1 u2", "u2"), ("f4 f8", "f8"), ("u2 f4", "f4"), ("i1 u1", "i2"), ("u4 i4", "i8"), ("f4 u1 i4", "f8"),
])
def test_types_widen(tmp_path, types, served):
    for form in ("csr", "dense"):
        paths = [make(tmp_path / f"{form}{i}.h5ad", 9, GENES, seed=i, dtype=t, form=form) for i, t in enumerate(types.split())]
        batches, dataset, genes = read_all(export(tmp_path, *paths))
        assert dense(batches).dtype == np.dtype(served) == np.dtype(dataset["elements"][0]["dtype"])
        check_equal(batches, genes, concat(paths))


def test_types_that_would_round_are_refused(tmp_path):
    a, b = make(tmp_path / "a.h5ad", 5, GENES, dtype="i8"), make(tmp_path / "b.h5ad", 5, GENES, dtype="f4", seed=1)
    code, line = refusal(a, b)
    assert code == 1 and "b.h5ad: X" in line and "a.h5ad" in line and "int64" in line and "--x-dtype" in line
    batches, _, genes = read_all(export(tmp_path, a, b, options=["--x-dtype", "float32"]))
    check_equal(batches, genes, concat([a, b]))
    assert dense(batches).dtype == np.float32


def test_index_types_of_sources_do_not_matter(tmp_path):
    import h5py
    paths = [make(tmp_path / f"{i}.h5ad", 12, GENES[i:], seed=i) for i in range(3)]
    expected = concat(paths)
    for path, dtype in zip(paths, ("u2", "i8", "u1")):
        with h5py.File(path, "a") as f:
            indices = f["X/indices"][()]
            del f["X/indices"]
            f["X"].create_dataset("indices", data=indices.astype(dtype), chunks=(50,), compression="gzip")
    batches, _, genes = read_all(export(tmp_path, *paths))
    check_equal(batches, genes, expected)
    for index in ("uint8", "int64"):
        out = export(tmp_path, *paths, options=["--index-dtype", index, "--join", "outer"])
        names = sorted((out / "inorder").glob("batch-*")) or sorted(out.glob("batch-*"))
        from batches import parse
        t = parse(names[0].read_bytes())[0]
        assert t["X.indices"].dtype == np.dtype(index)
        got = sp.csr_matrix((t["X.data"], t["X.indices"].astype("i8"), t["X.indptr"]), shape=tuple(t["X.shape"])).toarray()
        np.testing.assert_array_equal(got, to_dense(concat(paths, join="outer").X))


def test_layers_and_obsm(tmp_path):
    paths = []
    for i in range(2):
        path = make(tmp_path / f"{i}.h5ad", 10, GENES[i * 5 :], seed=i)
        a = ad.read_h5ad(path)
        a.layers["double"] = a.X * 2
        a.obsm["pca"] = np.arange(30, dtype="f4").reshape(10, 3) + i
        a.obsm["odd"] = np.zeros((10, 2 + i), "f4")
        if i == 0:
            a.layers["rare"] = a.X
        a.write_h5ad(path)
        paths.append(path)
    options = ["--layers", "double", "--obsm", "pca"]
    for join in ("inner", "outer"):
        batches, _, genes = read_all(export(tmp_path, *paths, options=[*options, "--join", join]))
        expected = concat(paths, join=join)
        check_equal(batches, genes, expected)
        np.testing.assert_array_equal(dense(batches, "layers.double"), to_dense(expected.layers["double"]))
        np.testing.assert_array_equal(dense(batches, "obsm.pca"), expected.obsm["pca"])
    code, line = refusal("--layers", "rare", *paths)
    assert code == 1 and "1.h5ad" in line and "rare" in line
    code, line = refusal("--obsm", "odd", *paths)
    assert code == 1 and "1.h5ad: obsm/odd: has 3 columns, 2 in" in line and "0.h5ad" in line


# ---------------------------------------------------------------------------------------------------------------- obs
def test_columns_are_united(tmp_path):
    cat = pd.Categorical
    a = make(tmp_path / "a.h5ad", 3, GENES, kind=cat(["u", "v", None], ["v", "u"]), n=np.array([1, 2, 3], "i8"),
             day=cat([1, 2, 2]), stage=cat(["e", "l", "e"], ["e", "l"], ordered=True), flag=[True, False, True])
    b = make(tmp_path / "b.h5ad", 2, GENES, seed=1, kind=cat(["w", "u"], ["u", "w"]), n=np.array([0.5, 4]),
             day=cat([3, 1]), stage=cat(["l", "e"], ["l", "e"], ordered=True), q=np.array([9, 8], "f4"))
    c = make(tmp_path / "c.h5ad", 2, GENES, seed=2, extra=pd.array([1, None], dtype="Int32"))
    batches, dataset, _ = read_all(export(tmp_path, a, b, c))
    columns = {column["name"]: column for column in dataset["columns"]}
    assert list(columns) == ["kind", "n", "day", "stage", "flag", "q", "extra"]
    assert labels(batches, "kind") == ["u", "v", None, "w", "u", None, None]
    assert columns["kind"]["categories"] == ["v", "u", "w"]
    assert labels(batches, "n") == [1, 2, 3, 0.5, 4, None, None] and columns["n"]["dtype"] == "float64"
    assert labels(batches, "day") == [1, 2, 2, 3, 1, None, None]
    assert labels(batches, "stage") == ["e", "l", "e", "l", "e", None, None] and not columns["stage"]["ordered"]
    assert labels(batches, "flag") == [True, False, True, None, None, None, None]
    assert labels(batches, "q") == [None] * 3 + [9, 8] + [None] * 2
    assert labels(batches, "extra") == [None] * 5 + [1, None]
    values = np.concatenate([x.column("q").values for x in batches])
    assert np.isnan(values[[0, 1, 2, 5, 6]]).all()
    # Named columns come as named; one that some source has is enough, one that none has is not.
    batches, dataset, _ = read_all(export(tmp_path, a, b, c, options=["--obs", "q,kind"]))
    assert [column["name"] for column in dataset["columns"]] == ["q", "kind"]
    code, line = refusal("--obs", "kind,nope", a, b)
    assert code == 1 and "nope" in line and "obs" in line


def test_kinds_that_differ_are_refused_by_name(tmp_path):
    a = make(tmp_path / "a.h5ad", 3, GENES, lane=pd.Categorical(["1", "2", "1"]))
    b = make(tmp_path / "b.h5ad", 3, GENES, seed=1, lane=[1, 2, 3])
    code, line = refusal(a, b)
    assert code == 1 and "b.h5ad: obs/lane" in line and "a.h5ad" in line and "text categories and int64" in line and "--obs" in line
    assert shufflefs("plan", "--obs", "none", a, b).returncode == 0


def test_text_beside_categories(tmp_path):
    a = make(tmp_path / "a.h5ad", 3, GENES, lab=pd.Categorical(["x", "y", "x"]))
    b = make(tmp_path / "b.h5ad", 3, GENES, seed=1, lab=["x", "z", "q"])
    import h5py
    with h5py.File(b, "a") as f:  # anndata turns repeated text into categories
        assert f["obs/lab"].attrs.get("encoding-type") in ("string-array", "nullable-string-array")
    # Text is not in --obs auto; a column that one source has and does not serve is not served as missing.
    _, dataset, _ = read_all(export(tmp_path, a, b))
    assert "lab" not in [c["name"] for c in dataset["columns"]]
    assert any(l["name"] == "obs/lab" and "b.h5ad" in l["reason"] for l in dataset["left_out"])
    batches, dataset, _ = read_all(export(tmp_path, a, b, options=["--obs", "lab"]))
    assert labels(batches, "lab") == ["x", "y", "x", "x", "z", "q"]
    assert dataset["columns"][0]["categories"] == ["x", "y", "z", "q"]


def test_a_file_at_the_end_changes_no_code(tmp_path):
    def part(i, names):
        values = pd.Categorical(np.random.default_rng(i).choice(names, 12), names)
        return make(tmp_path / f"p{i}.h5ad", 12, GENES, seed=i, kind=values)
    paths = [part(0, ["b", "a"]), part(1, ["c", "a"]), part(2, ["a", "z", "b"])]
    codes = []
    for n in (1, 2, 3):
        batches, dataset, _ = read_all(export(tmp_path, *paths[:n]))
        codes.append(np.concatenate([b.tensors["obs.kind.codes"] for b in batches]))
    assert codes[1][:12].tolist() == codes[0].tolist() and codes[2][:24].tolist() == codes[1].tolist()
    assert dataset["columns"][0]["categories"] == ["b", "a", "c", "z"]


# ------------------------------------------------------------------------------------------------------------- one as ten
def test_one_file_and_ten_have_the_same_rows(tmp_path):
    whole = make(tmp_path / "whole.h5ad", 300, GENES, kind=pd.Categorical(list("abc") * 100))
    a = ad.read_h5ad(whole)
    (tmp_path / "parts").mkdir()
    for i in range(10):
        a[i * 30 : i * 30 + 30].copy().write_h5ad(tmp_path / f"parts/dataset_{i}.h5ad", compression=[None, "lzf", "gzip"][i % 3])

    def rows(*sources):
        batches, dataset, _ = read_all(export(tmp_path, *sources, options=["--batch-size", 32], path="epoch-00001"), "epoch-00001")
        names = [n for b in batches for n in b.names]
        x = dense(batches)
        kinds = labels(batches, "kind")
        assert sum(len(b.rows) for b in batches) == 300
        return sorted((n, k, r.tobytes()) for n, k, r in zip(names, kinds, x)), dataset
    one, _ = rows(whole)
    ten, dataset = rows(tmp_path / "parts")
    assert one == ten
    assert [Path(s["path"]).name for s in dataset["sources"]] == [f"dataset_{i}.h5ad" for i in range(10)]


# ------------------------------------------------------------------------------------------------------ lists of sources
def test_lists_of_sources(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for i in (1, 2, 10):
        make(folder / f"dataset_{i}.h5ad", 4, GENES, seed=i)
    names = [f"dataset_{i}.h5ad" for i in (1, 2, 10)]

    def listed(*args, **kwargs):
        p = shufflefs("cat", *args, "--path", "dataset.json", **kwargs)
        assert p.returncode == 0, p.stderr
        import json
        return [Path(s["path"]).name for s in json.loads(p.stdout)["sources"]]
    assert listed(folder) == listed(folder / "dataset_*.h5ad") == listed("in", cwd=tmp_path) == names
    config = tmp_path / "all.toml"
    config.write_text("sources = ['in']\njoin = 'outer'\n")
    assert listed("--config", config, cwd=Path("/")) == names, "seen from the folder of the file"
    for twice in ((folder, folder / "dataset_2.h5ad"), (folder / "dataset_1.h5ad", folder / "../in/dataset_1.h5ad")):
        code, line = refusal(*twice)
        assert code == 1 and "among the sources already" in line, line
    with Mount(folder) as mnt:
        saved = mnt / ".shufflefs/config.toml"
        text = saved.read_text()
        first = (mnt / "epoch-00000/batch-0000000.safetensors").read_bytes()
        assert load_dataset(mnt)["sources"][2]["rows"] == [8, 12]
    (tmp_path / "saved.toml").write_text(text)
    p = shufflefs("cat", "--config", tmp_path / "saved.toml", text=False)
    assert p.returncode == 0 and p.stdout == first


# -------------------------------------------------------------------------------------------------------- faults and size
def test_faults_name_the_file(tmp_path):
    import h5py
    paths = [make(tmp_path / f"{i}.h5ad", 40, GENES[i:], seed=i) for i in range(3)]
    with h5py.File(paths[1], "a") as f:
        indices = f["X/indices"][()]
        del f["X/indices"]
        indices[f["X/indptr"][7]] = 59  # one past the 59 genes of this file, though other files have 60
        f["X"].create_dataset("indices", data=indices)
    with Mount(*paths, options=["--batch-size", 8, "--join", "outer"]) as mnt:
        bad = []
        for k in range(15):
            try:
                (mnt / f"inorder/batch-{k:07}.safetensors").read_bytes()
            except OSError as error:
                assert error.errno == 5
                bad.append(k)
        assert bad == [5]  # row 47
        errors = (mnt / ".shufflefs/errors.tsv").read_text()
        assert "1.h5ad" in errors and "X/indices" in errors and "47" in errors
    with Mount(*paths, options=["--batch-size", 8, "--join", "outer", "--memory", "64M"]) as mnt:
        paths[2].touch()
        with pytest.raises(OSError) as error:
            (mnt / "inorder/batch-0000014.safetensors").read_bytes()
        assert error.value.errno == 116
        assert "2.h5ad" in (mnt / ".shufflefs/errors.tsv").read_text()


def test_many_small_files_with_few_descriptors(tmp_path):
    """1,000 sources, 256 descriptors: every row once, and the values of its file."""
    template = make(tmp_path / "t.h5ad", 3, GENES[:8], kind=pd.Categorical(["a", "b", "a"]))
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(1000):
        shutil.copy(template, folder / f"s{i}.h5ad")
    x = to_dense(ad.read_h5ad(template).X)
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    out = tmp_path / "out"
    p = subprocess.run(
        [str(BINARY), "export", folder, "--out", str(out), "--path", "epoch-00000"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=mounting.COMMAND_TIMEOUT_S, env=ENV, preexec_fn=limit)
    assert p.returncode == 0, p.stderr
    folder = out / "epoch-00000" if (out / "epoch-00000").is_dir() else out
    rows = []
    for path in sorted(folder.glob("batch-*")):
        batch = Batch(path.read_bytes(), {})
        np.testing.assert_array_equal(dense([batch]), x[batch.rows % 3])
        np.testing.assert_array_equal(batch.tensors["source"], batch.rows // 3)
        rows += batch.rows.tolist()
    assert sorted(rows) == list(range(3000))
    p = shufflefs("plan", tmp_path / "many")
    assert p.returncode == 0 and "1,000 h5ad, csr" in p.stdout and len(p.stdout) < 3000


# ------------------------------------------------------------------------------------------------------ mixed containers
def tenx(path: Path, a: ad.AnnData) -> Path:
    """A 10x v3 file: genes x cells by columns."""
    import h5py
    csc = sp.csc_matrix(a.X.T)
    with h5py.File(path, "w") as f:
        m = f.create_group("matrix")
        m["data"], m["indices"], m["indptr"] = csc.data.astype("i4"), csc.indices.astype("i8"), csc.indptr.astype("i8")
        m["shape"] = np.array(csc.shape, "i4")
        m["barcodes"] = np.array(a.obs_names.tolist(), "S")
        features = m.create_group("features")
        features["id"] = np.array([f"ENS{g}" for g in a.var_names], "S")
        features["name"] = np.array(a.var_names.tolist(), "S")
        features["feature_type"] = np.array(["Gene Expression"] * a.n_vars, "S")
        features["genome"] = np.array(["G"] * a.n_vars, "S")
    return path


def sharded_zarr(path: Path, a: ad.AnnData) -> Path:
    """Zarr v3 with shards, as anndata writes it when told to."""
    import zarr
    g = zarr.open_group(path, mode="w", zarr_format=3)

    def callback(store, key, element, dataset_kwargs, **kwargs):
        extra = dict(dataset_kwargs)
        if key.endswith(("X/data", "X/indices")) or key in ("/X", "X"):
            pass
        return kwargs["iospec"], extra, None
    with ad.settings.override(zarr_write_format=3):
        a.write_zarr(path)
    g = zarr.open_group(path, mode="a")
    for member in ("data", "indices"):
        values = g[f"X/{member}"][:]
        attrs = dict(g[f"X/{member}"].attrs)
        del g[f"X/{member}"]
        array = g["X"].create_array(member, shape=values.shape, dtype=values.dtype, chunks=(64,), shards=(256,))
        array[:] = values
        array.attrs.update(attrs)
    zarr.consolidate_metadata(path)
    return path


@pytest.mark.parametrize("join", ["inner", "outer"])
def test_a_mixed_collection_equals_concat(data, tmp_path, join):
    """Two h5ad with different genes, a sharded zarr, a 10x file."""
    first, second = (ad.read_h5ad(data / p) for p in PAIR)
    rng = np.random.default_rng(8)
    third = first[rng.permutation(200)[:70], rng.permutation(1000)[:800]].copy()
    third.obs_names = [f"z-{n}" for n in third.obs_names]
    fourth = second[:60, rng.permutation(1000)[:700]].copy()
    fourth.obs_names = [f"t-{n}" for n in fourth.obs_names]
    fourth.obs = fourth.obs[[]]
    paths = [data / PAIR[0], data / PAIR[1], sharded_zarr(tmp_path / "z.zarr", third), tenx(tmp_path / "t.h5", fourth)]
    p = shufflefs("inspect", "--json", *paths[2:])
    assert p.returncode == 0, p.stderr
    by_id = "ENS" in p.stdout
    expected = ad.concat([first, second, third, fourth], join=join)
    expected.obs = ad.concat([first, second, third, fourth], join="outer").obs
    options = ["--join", join, "--batch-size", 64]
    if by_id:
        pytest.fail("genes of 10x files are joined by name")
    batches, dataset, genes = read_all(export(tmp_path, *paths, options=options))
    check_equal(batches, genes, expected, ["lib", "cell_type", "score"])
    with Mount(*paths, options=options) as mnt:
        x = to_dense(expected.X)
        for batch in Pass(mnt / "epoch-00000", load_dataset(mnt)):
            np.testing.assert_array_equal(dense([batch]), x[batch.rows])


def test_a_collection_of_annbatch_is_its_datasets(tmp_path):
    """The marker, `dataset_N` in numeric order, and rows that are known to be shuffled."""
    import zarr
    root = zarr.open_group(tmp_path / "c.zarr", mode="w", zarr_format=3)
    root.attrs.update({"encoding-type": "annbatch-preshuffled", "encoding-version": "0.1.0"})
    parts = []
    for i in (0, 1, 2, 10):
        path = make(tmp_path / f"p{i}.h5ad", 40, GENES, seed=i, kind=pd.Categorical(["a", "b"] * 20))
        with ad.settings.override(zarr_write_format=3):
            ad.read_h5ad(path).write_zarr(tmp_path / f"c.zarr/dataset_{i}")
        parts.append(path)
    batches, dataset, genes = read_all(export(tmp_path, tmp_path / "c.zarr", options=["--batch-size", 16]))
    check_equal(batches, genes, concat(parts), ["kind"])
    assert [s["path"].rsplit("::", 1)[1] for s in dataset["sources"]] == [f"dataset_{i}" for i in (0, 1, 2, 10)]
    plain = read_all(export(tmp_path, *parts, options=["--batch-size", 16]))[1]
    assert dataset["order"]["fetch_factor"] <= plain["order"]["fetch_factor"]


def test_many_small_zarr_stores(tmp_path):
    """A thousand zarr stores, opened with 256 descriptors."""
    template = make(tmp_path / "t.zarr", 3, GENES[:8], kind=pd.Categorical(["a", "b", "a"]))
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(1000):
        shutil.copytree(template, folder / f"s{i}.zarr")
    x = to_dense(ad.read_zarr(template).X)
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    p = subprocess.run(
        [str(BINARY), "export", folder, "--out", str(tmp_path / "out"), "--path", "epoch-00000"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=mounting.COMMAND_TIMEOUT_S, env=ENV, preexec_fn=limit)
    assert p.returncode == 0, p.stderr
    rows = []
    for path in sorted((tmp_path / "out").rglob("batch-*")):
        batch = Batch(path.read_bytes(), {})
        np.testing.assert_array_equal(dense([batch]), x[batch.rows % 3])
        rows += batch.rows.tolist()
    assert sorted(rows) == list(range(3000))
