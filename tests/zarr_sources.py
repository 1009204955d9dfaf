"""Reads zarr stores of every generation into a `Truth` with zarr-python alone, node by node: the oracle for stores that others wrote.

A store is never opened as a whole, since `uns` may hold what zarr-python cannot open.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import zarr
from zarr.storage import LocalStore, ZipStore

from truth import Category, Column, Csr, Matrix, Nullable, Numbers, Text, Truth, native


def read_zarr(path: Path, group: str = "") -> Truth:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = ZipStore(path, mode="r") if path.is_file() else LocalStore(path, read_only=True)
        try:
            return _read(store, f"{group}/" if group else "")
        finally:
            store.close()


def _read(store, prefix: str) -> Truth:
    def node(name: str):
        try:
            return zarr.open(store, path=prefix + name, mode="r", use_consolidated=False)
        except (FileNotFoundError, KeyError, ValueError):
            return None

    obs_names, obs = read_frame(node("obs"))
    var_names, _ = read_frame(node("var"))
    truth = Truth(obs_names, var_names, read_matrix(node("X")), obs)
    layers, obsm = node("layers"), node("obsm")
    truth.layers = {k: read_matrix(layers[k]) for k in (layers.keys() if layers is not None else ())}
    found = {k: obsm[k] for k in (obsm.keys() if obsm is not None else ())}
    truth.obsm = {k: read_matrix(v) for k, v in found.items() if isinstance(v, zarr.Array) and v.ndim == 2}
    raw = node("raw")
    if isinstance(raw, zarr.Group) and "X" in raw:
        truth.raw, truth.raw_var_names = read_matrix(raw["X"]), read_frame(raw["var"])[0]
    return truth


def values_of(array: zarr.Array) -> np.ndarray | list[str]:
    values = array[...]
    if values.dtype.kind in "OTUS":
        values = np.atleast_1d(values)
        return [v.decode() if isinstance(v, bytes) else str(v) for v in values.tolist()]
    return native(np.asarray(values))


def read_matrix(node) -> Matrix | None:
    if node is None or node.attrs.get("encoding-type") == "null":
        return None
    if isinstance(node, zarr.Array):
        return values_of(node)
    assert node.attrs["encoding-type"].startswith("csr")
    data, indices, indptr = (values_of(node[k]) for k in ("data", "indices", "indptr"))
    return Csr(data, indices.astype(np.int64), indptr.astype(np.int64), int(node.attrs["shape"][1]))


def read_frame(node) -> tuple[list[str], dict[str, Column]]:
    if isinstance(node, zarr.Array):  # before anndata 0.7: records, of which the first field holds the names
        table = node[...]
        names, *fields = table.dtype.names
        as_text = lambda values: [v.decode() if isinstance(v, bytes) else str(v) for v in values.tolist()]  # noqa: E731
        is_text = {f: table[f].dtype.kind in "SU" for f in fields}
        columns = {f: Text(as_text(table[f])) if is_text[f] else Numbers(native(table[f])) for f in fields}
        return as_text(table[names]), columns
    index = node.attrs.get("_index", "_index")
    names = _column(node, index)
    labels = names.labels if isinstance(names, Text) else [str(v) for v in names.values.tolist()]
    order = node.attrs.get("column-order")
    order = sorted(set(node.keys()) - {index, "__categories"}) if order is None else order
    return [n or "" for n in labels], {c: _column(node, c) for c in order}


def _column(frame: zarr.Group, name: str) -> Column:
    node = frame[name]
    if isinstance(node, zarr.Array):
        link, values = node.attrs.get("categories"), values_of(node)
        if link:
            labels = frame[link]
            return Category(values.astype(np.int64), values_of(labels), bool(labels.attrs.get("ordered", False)))
        return Text(values) if isinstance(values, list) else Numbers(values)
    if "codes" in node:
        labels = node["categories"]
        values = values_of(labels["values"] if isinstance(labels, zarr.Group) else labels)
        values = values if isinstance(values, list) else values.tolist()
        return Category(values_of(node["codes"]).astype(np.int64), values, bool(node.attrs.get("ordered", False)))
    values, mask = values_of(node["values"]), np.asarray(node["mask"][...], bool)
    return Text([None if m else v for v, m in zip(values, mask)]) if isinstance(values, list) else Nullable(values, mask)
