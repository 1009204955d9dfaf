"""Chosen genes and dense rows: what depends on values is settled after the size of a file was told."""

from __future__ import annotations

from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from batches import Batch, Pass
from mounting import Mount, refusal

pytestmark = pytest.mark.usefixtures("fuse")

N_ROWS, N_GENES = 300, 80


@pytest.fixture(scope="module")
def cells(tmp_path_factory) -> tuple[Path, sp.csr_matrix]:
    """Sparse counts with an empty row, a row of one chosen gene only, and a boolean column of var."""
    rng = np.random.default_rng(3)
    dense = rng.integers(1, 50, (N_ROWS, N_GENES)) * (rng.random((N_ROWS, N_GENES)) < 0.2)
    dense[5] = 0
    dense[6] = 0
    dense[6, 17] = 9
    x = sp.csr_matrix(dense.astype("f4"))
    var = pd.DataFrame({"hv": np.arange(N_GENES) % 5 == 2}, index=[f"gene{j}" for j in range(N_GENES)])
    a = anndata.AnnData(x, obs=pd.DataFrame(index=[f"c{i}" for i in range(N_ROWS)]), var=var, layers={"twice": x * 2})
    a.obsm["pca"] = rng.random((N_ROWS, 4))
    path = tmp_path_factory.mktemp("genes") / "cells.h5ad"
    a.write_h5ad(path, compression="gzip")
    return path, x


@pytest.fixture(scope="module")
def dense_cells(cells, tmp_path_factory) -> tuple[Path, sp.csr_matrix]:
    path = tmp_path_factory.mktemp("genes-dense") / "cells.h5ad"
    a = anndata.read_h5ad(cells[0])
    a.X = a.X.toarray()
    a.write_h5ad(path)
    return path, cells[1]


def as_csr(batch: Batch, name: str) -> sp.csr_matrix:
    m = batch.matrix(name)
    return sp.csr_matrix(m) if isinstance(m, np.ndarray) else sp.csr_matrix((m.data, m.indices, m.indptr), (m.n_rows, m.n_cols))


def check(mnt: Path, x: sp.csr_matrix, columns: list[int | None], layers: bool) -> None:
    """Every row of an epoch: the chosen columns in their order, a column of zeros for None, and sums over all genes."""
    picked = sp.hstack([x[:, [j]] if j is not None else sp.csr_matrix((N_ROWS, 1), dtype=x.dtype) for j in columns]).tocsr()
    epoch = Pass(mnt / "epoch-00000")
    seen = []
    for name in epoch.batch_names:
        path = epoch.folder / name
        size = path.stat().st_size
        image = path.read_bytes()
        assert len(image) == size, "the size that was told before the values were seen"
        batch = Batch(image)
        got = as_csr(batch, "X")
        assert got.shape == (len(batch.rows), len(columns))
        assert (got != picked[batch.rows]).nnz == 0, name
        np.testing.assert_array_equal(batch.tensors["X.total"], np.asarray(x[batch.rows].sum(1, dtype="f8")).ravel())
        if layers:
            assert (as_csr(batch, "layers.twice") != picked[batch.rows] * 2).nnz == 0
            assert batch.tensors["obsm.pca"].shape == (len(batch.rows), 4), "components are no genes"
        seen += batch.rows.tolist()
    assert sorted(seen) == list(range(N_ROWS))
    names = (mnt / "var_names.txt").read_text().split()
    assert len(names) == len(columns)
    assert all(j is None or name == f"gene{j}" for name, j in zip(names, columns))


@pytest.mark.parametrize("dense", [[], ["--dense"]], ids=["csr", "dense"])
@pytest.mark.parametrize("columns", [[2, 17, 40, 41], [41, 0, 79, 17], list(range(N_GENES))[::-1]], ids=["kept", "permuted", "reversed"])
def test_genes_of_a_file(cells, tmp_path, columns, dense):
    path, x = cells
    genes = tmp_path / "genes.txt"
    genes.write_text("\n".join(f"gene{j}" for j in columns) + "\n\n")
    options = ["--batch-size", "32", "--genes", genes, "--layers", "twice", "--obsm", "pca", *dense]
    with Mount(path, options=options) as mnt:
        check(mnt, x, columns, layers=True)
        batch = Batch((mnt / "epoch-00000/batch-0000000.safetensors").read_bytes())
        m = batch.matrix("X")
        if not dense:
            assert all(np.all(np.diff(m.row(i)[0]) > 0) for i in range(m.n_rows)), "rows are sorted by the new columns"


def test_genes_of_a_column(cells):
    path, x = cells
    with Mount(path, options=["--batch-size", "32", "--genes", "var:hv"]) as mnt:
        check(mnt, x, [j for j in range(N_GENES) if j % 5 == 2], layers=False)


def test_genes_of_a_dense_matrix(dense_cells, tmp_path):
    path, x = dense_cells
    genes = tmp_path / "genes.txt"
    genes.write_text("gene9\ngene3\n")
    with Mount(path, options=["--batch-size", "32", "--genes", genes]) as mnt:
        check(mnt, x, [9, 3], layers=False)


def test_missing_genes(cells, tmp_path):
    path, x = cells
    genes = tmp_path / "genes.txt"
    genes.write_text("gene9\nnot-there\ngene3\n")
    code, line = refusal("--genes", genes, path)
    assert code == 1 and "not-there" in line and "--genes-missing zero" in line
    with Mount(path, options=["--batch-size", "32", "--genes", genes, "--genes-missing", "zero"]) as mnt:
        check(mnt, x, [9, None, 3], layers=False)
        assert (mnt / "var_names.txt").read_text() == "gene9\nnot-there\ngene3\n"


def test_genes_that_make_no_sense(cells, tmp_path):
    path, _ = cells
    for text, word in [("", "names no gene"), ("gene1\ngene1\n", "twice"), ("x\ny\n", "not in the dataset")]:
        genes = tmp_path / "genes.txt"
        genes.write_text(text)
        code, line = refusal("--genes", genes, path)
        assert code == 1 and word in line, line
    code, line = refusal("--genes", "var:nothing", path)
    assert code == 1 and "nothing" in line


def test_the_order_does_not_depend_on_what_is_served(cells, tmp_path):
    """Genes, layers, dense rows and columns do not move a row to another batch."""
    path, _ = cells
    genes = tmp_path / "genes.txt"
    genes.write_text("gene9\n")
    rows = []
    for options in ([], ["--dense"], ["--genes", genes], ["--layers", "twice"], ["--obs", "none", "--names", "no"]):
        with Mount(path, options=["--batch-size", "32", *options]) as mnt:
            rows.append(Pass(mnt / "epoch-00001").rows.tolist())
    assert all(r == rows[0] for r in rows)


# ------------------------------------------------------------------------------------------------------------- narrow types
@pytest.mark.parametrize("x_dtype,index_dtype", [("uint8", "uint8"), ("uint16", "uint16"), ("int64", "int64"), ("float16", "int16"), ("float64", "int32")])
def test_values_in_other_types(cells, x_dtype, index_dtype):
    path, x = cells
    options = ["--batch-size", "32", "--x-dtype", x_dtype, "--index-dtype", index_dtype, "--layers", "twice"]
    with Mount(path, options=options) as mnt:
        epoch = Pass(mnt / "epoch-00000")
        for name in epoch.batch_names:
            t = Batch((epoch.folder / name).read_bytes()).tensors
            assert (t["X.data"].dtype, t["X.indices"].dtype) == (np.dtype(x_dtype), np.dtype(index_dtype))
            assert (t["layers.twice.data"].dtype, t["layers.twice.indices"].dtype) == (np.dtype("f4"), np.dtype(index_dtype))
            got = sp.csr_matrix((t["X.data"].astype("f4"), t["X.indices"].astype("i4"), t["X.indptr"]), tuple(t["X.shape"]))
            assert (got != x[t["row"]]).nnz == 0


def test_narrow_types_with_chosen_genes(cells, tmp_path):
    path, x = cells
    genes = tmp_path / "genes.txt"
    genes.write_text("gene41\ngene0\ngene17\n")
    for dense in ([], ["--dense"]):
        with Mount(path, options=["--batch-size", "32", "--genes", genes, "--x-dtype", "uint8", "--index-dtype", "uint8", *dense]) as mnt:
            for name in Pass(mnt / "inorder").batch_names:
                t = Batch((mnt / "inorder" / name).read_bytes()).tensors
                want = x[t["row"]][:, [41, 0, 17]].toarray()
                got = t["X"] if dense else sp.csr_matrix((t["X.data"], t["X.indices"], t["X.indptr"]), tuple(t["X.shape"])).toarray()
                np.testing.assert_array_equal(got, want)


def test_a_value_that_does_not_fit_fails_its_batch(cells, tmp_path):
    a = anndata.read_h5ad(cells[0])
    a.X[100, 3] = 300.0
    a.X[200, 4] = 0.5
    path = tmp_path / "cells.h5ad"
    a.write_h5ad(path)
    with Mount(path, options=["--batch-size", "16", "--x-dtype", "uint8"]) as mnt:
        epoch = Pass(mnt / "epoch-00000")
        rows = np.array_split(epoch.rows, range(16, N_ROWS, 16))
        for name, want in zip(epoch.batch_names, rows, strict=True):
            if {100, 200} & set(want.tolist()):
                with pytest.raises(OSError) as caught:
                    (epoch.folder / name).read_bytes()
                assert caught.value.errno == 5
            else:
                assert Batch((epoch.folder / name).read_bytes()).rows.tolist() == want.tolist()
        errors = (mnt / ".shufflefs/errors.tsv").read_text()
        assert "row 100" in errors and "300" in errors and "row 200" in errors and "0.5" in errors


def test_types_that_cannot_be(cells):
    path, _ = cells
    code, line = refusal("--index-dtype", "float32", path)
    assert code == 2 and "--index-dtype" in line and "uint16" in line
    code, line = refusal("--x-dtype", "bool", path)
    assert code == 2 and "--x-dtype" in line
