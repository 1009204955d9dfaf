"""Reads `.h5ad` files of every generation into a `Truth` with h5py alone: the oracle for files that others wrote."""

from __future__ import annotations

from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401  (registers the filters)
import numpy as np

from truth import Category, Column, Csr, Matrix, Nullable, Numbers, Text, Truth, native


def read_h5ad(path: Path) -> Truth:
    with h5py.File(path, "r") as f:
        return read_nodes(f)


def read_nodes(f: h5py.Group) -> Truth:
    """An AnnData object at a group of a file."""
    uns = f.get("uns")
    obs_names, obs = read_frame(f["obs"], uns)
    var_names, _ = read_frame(f["var"], uns)
    shape = (len(obs_names), len(var_names))
    truth = Truth(obs_names, var_names, read_matrix(f.get("X"), shape), obs)
    truth.layers = {k: read_matrix(f["layers"][k], shape) for k in f.get("layers", {})}
    truth.obsm = _read_obsm(f.get("obsm"), len(obs_names))
    raw = f["raw"] if isinstance(f.get("raw"), h5py.Group) and "X" in f["raw"] else None
    if raw is not None:
        truth.raw_var_names = read_frame(raw["var"], uns)[0]
        truth.raw = read_matrix(raw["X"], (shape[0], len(truth.raw_var_names)))
    return truth


def text(value) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def attribute(node, name: str, default=None):
    value = node.attrs.get(name, default)
    if isinstance(value, h5py.Empty):
        return default
    if isinstance(value, np.ndarray):
        return [text(v) if isinstance(v, (str, bytes)) else v for v in value.tolist()]
    return text(value) if isinstance(value, (bytes, np.bytes_, str)) else value


def values_of(dataset: h5py.Dataset) -> np.ndarray | list[str]:
    values = dataset[()]
    if h5py.check_string_dtype(dataset.dtype) is not None:
        return [text(v) for v in np.atleast_1d(values)]
    return native(np.asarray(values))


def read_matrix(node, shape: tuple[int, int]) -> Matrix | None:
    """None where X is absent or null. CSC is turned into CSR with ascending genes."""
    if node is None or (isinstance(node, h5py.Dataset) and node.shape in (None, ())):
        return None
    if isinstance(node, h5py.Dataset):
        return values_of(node)
    form = attribute(node, "encoding-type") or attribute(node, "h5sparse_format")
    data, indices, indptr = (values_of(node[k]) for k in ("data", "indices", "indptr"))
    if form.startswith("csc"):
        indptr = indptr.astype(np.int64)
        genes = np.repeat(np.arange(shape[1]), np.diff(indptr))
        order = np.argsort(indices, kind="stable")
        counts = np.bincount(indices.astype(np.int64), minlength=shape[0])
        return Csr(data[order], genes[order], np.concatenate([[0], np.cumsum(counts)]), shape[1])
    return Csr(data, indices.astype(np.int64), indptr.astype(np.int64), shape[1])


def read_frame(node, uns) -> tuple[list[str], dict[str, Column]]:
    if isinstance(node, h5py.Dataset):
        return _read_compound(node, uns)
    index = attribute(node, "_index") or "_index"
    names = _column(node, index)
    labels = names.labels if isinstance(names, Text) else [str(v) for v in names.values]
    order = attribute(node, "column-order") or []
    columns = {c: _column(node, c) for c in order if c in node and c != index and "/" not in c}
    return [n or "" for n in labels], columns


def _read_compound(node: h5py.Dataset, uns) -> tuple[list[str], dict[str, Column]]:
    """Before anndata 0.7: one compound dataset; the first field (or `index`) holds the names."""
    table = node[()]
    fields = list(table.dtype.names)
    index = "index" if "index" in fields else fields[0]
    columns: dict[str, Column] = {}
    for name in fields:
        if name == index:
            continue
        values, labels = table[name], f"{name}_categories"
        if uns is not None and labels in uns and values.dtype.kind in "iu":
            columns[name] = Category(values.astype(np.int64), values_of(uns[labels]))
        elif values.dtype.kind in "SUO":
            columns[name] = Text([text(v) for v in values])
        else:
            columns[name] = Numbers(native(values))
    return [text(v) for v in table[index]], columns


def _column(frame: h5py.Group, name: str) -> Column:
    node = frame[name]
    if isinstance(node, h5py.Group):
        return _column_group(node)
    link = node.attrs.get("categories")
    values = values_of(node)
    if isinstance(link, h5py.Reference):  # anndata 0.7: an object reference into __categories
        target = node.file[link]
        return Category(_codes(values), _labels(target), bool(attribute(target, "ordered", False)))
    return Text(values) if isinstance(values, list) else Numbers(values)


def _column_group(node: h5py.Group) -> Column:
    if "codes" in node:
        return Category(_codes(values_of(node["codes"])), _labels(node["categories"]), bool(attribute(node, "ordered", False)))
    values, mask = values_of(node["values"]), np.asarray(node["mask"][()], bool)
    if isinstance(values, list):
        return Text([None if m else v for v, m in zip(values, mask)])
    return Nullable(values, mask)


def _codes(values: np.ndarray) -> np.ndarray:
    """Codes as int64; the all-ones value of an unsigned type means missing."""
    codes = values.astype(np.int64)
    if values.dtype.kind == "u":
        codes[values == np.iinfo(values.dtype).max] = -1
    return codes


def _labels(node) -> list:
    """Category labels: text (perhaps as a values + mask group), numbers or booleans."""
    values = values_of(node["values"] if isinstance(node, h5py.Group) else node)
    return values if isinstance(values, list) else values.tolist()


def _read_obsm(node, n_rows: int) -> dict[str, Matrix]:
    """Elements that are matrices; data frames in obsm are left out."""
    if node is None:
        return {}
    if isinstance(node, h5py.Dataset):
        table = node[()]
        return {k: native(table[k].reshape(n_rows, -1)) for k in table.dtype.names}
    return {k: values_of(v) for k, v in node.items() if isinstance(v, h5py.Dataset) and v.ndim == 2}
