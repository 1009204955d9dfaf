"""Compares what came out of a mount with what the source holds: every row once, and all parts of a row from the same row."""

from __future__ import annotations

import numpy as np

from batches import Batch, Pass, same_bytes
from truth import Category, Column, Csr, Matrix, Nullable, Numbers, Text, Truth, native


def check_pass(folder_pass: Pass, truth: Truth, batch_size: int, *, shuffled: bool, **kwargs) -> None:
    """A whole epoch (tail kept) or `inorder`: names, sizes, rows, and every value of every batch."""
    n, names = truth.n_rows, folder_pass.batch_names
    listed = sorted(p.name for p in folder_pass.folder.iterdir() if p.name.startswith("batch-"))
    assert listed == names, "batches.txt and the listing differ"
    assert len(names) == -(-n // batch_size)
    at = 0
    for k, batch in enumerate(folder_pass):
        rows = folder_pass.rows[at : at + batch_size]
        assert len(rows) == min(batch_size, n - k * batch_size)
        np.testing.assert_array_equal(batch.rows, rows, err_msg=f"{names[k]}: rows.npy and `row` differ")
        check_batch(batch, truth, where=f"{folder_pass.folder.name}/{names[k]}", **kwargs)
        at += len(rows)
    np.testing.assert_array_equal(np.sort(folder_pass.rows), np.arange(n), err_msg="not every row exactly once")
    if not shuffled:
        np.testing.assert_array_equal(folder_pass.rows, np.arange(n), err_msg="not in source order")


def check_batch(batch: Batch, truth: Truth, *, where: str, strings: bool = False, layers=(), obsm=()) -> None:
    """Every value of one batch. `strings`: string columns were asked for (`--obs all`)."""
    rows = batch.rows
    expected = {"row", "obs_names"} | set(_matrix_keys("X", truth.x))
    check_matrix(batch.matrix("X"), truth.x, rows, f"{where}: X")
    for kind, wanted, source in (("layers", layers, truth.layers), ("obsm", obsm, truth.obsm)):
        for name in wanted:
            expected |= set(_matrix_keys(f"{kind}.{name}", source[name]))
            check_matrix(batch.matrix(f"{kind}.{name}"), source[name], rows, f"{where}: {kind}.{name}")
    assert batch.names == [truth.obs_names[r] for r in rows], f"{where}: obs_names"
    must = {name for name, column in truth.obs.items() if strings or not isinstance(column, Text)}
    assert must <= batch.column_names <= set(truth.obs), f"{where}: columns {sorted(batch.column_names ^ must)}"
    for name in batch.column_names:
        check_column(batch.column(name), truth.obs[name], rows, f"{where}: obs.{name}")
    unknown = {k for k in batch.tensors if not k.startswith("obs.")} - expected
    assert not unknown, f"{where}: unexpected tensors {sorted(unknown)}"


def _matrix_keys(name: str, matrix: Matrix | None) -> list[str]:
    if matrix is None:
        return []
    return [f"{name}.{part}" for part in ("data", "indices", "indptr", "shape")] if isinstance(matrix, Csr) else [name]


def check_matrix(got: Matrix | None, source: Matrix | None, rows: np.ndarray, where: str) -> None:
    if source is None:
        assert got is None, where
        return
    if isinstance(source, Csr):
        want = source.take(rows)
        assert isinstance(got, Csr) and got.n_cols == want.n_cols, where
        np.testing.assert_array_equal(got.indptr, want.indptr, err_msg=f"{where}.indptr")
        np.testing.assert_array_equal(got.indices, want.indices, err_msg=f"{where}.indices")
        got, want = got.data, native(want.data)
    else:
        want = native(source[rows])
    assert isinstance(got, np.ndarray) and got.dtype == want.dtype and got.shape == want.shape, f"{where}: dtype or shape"
    # Bit for bit, so that NaN and -0.0 count too.
    assert same_bytes(got, want), f"{where}: values differ"


def check_column(got: Column, source: Column, rows: np.ndarray, where: str) -> None:
    match source:
        case Category():
            assert isinstance(got, Category), where
            assert list(got.categories) == list(source.categories), f"{where}: categories"
            assert got.ordered == source.ordered, f"{where}: ordered"
            np.testing.assert_array_equal(got.codes, np.asarray(source.codes)[rows], err_msg=where)
        case Text():
            assert isinstance(got, Text), where
            assert [v or "" for v in got.labels] == [source.labels[r] or "" for r in rows], where
        case Nullable():
            assert isinstance(got, Nullable), where
            mask = source.mask[rows]
            np.testing.assert_array_equal(got.mask, mask, err_msg=f"{where}: present")
            want = native(source.values[rows])
            want[mask] = np.nan if want.dtype.kind == "f" else 0
            assert same_bytes(got.values, want), f"{where}: values differ"
        case Numbers():
            assert isinstance(got, Numbers), where
            assert same_bytes(got.values, native(source.values[rows])), f"{where}: values differ"
