"""Writes a `Truth` as `.h5ad` with h5py, with control over everything that anndata decides by itself: layouts, filters,
types, byte order, and the encodings of earlier and later generations.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from truth import Category, Column, Csr, Matrix, Nullable, Numbers, Text, Truth

STRINGS = h5py.string_dtype()


def write(path: Path, truth: Truth, *, file: dict | None = None, generation: str = "0.8", index: str = "_index",
          string_form: str = "variable", everywhere: dict | None = None, **storage) -> Truth:
    """`storage` goes to the arrays of X, layers, obsm and raw (see `_array`); `everywhere` to create_dataset of all
    columns; `string_form` is variable, fixed or nullable; `generation` 0.7 or 0.8 (the current one)."""
    with h5py.File(path, "w", **(file or {})) as f:
        if generation == "0.8":
            encode(f, "anndata", "0.1.0")
        frames = _Frames(generation, index, string_form, everywhere or {})
        frames.write(f, "obs", truth.obs_names, truth.obs)
        frames.write(f, "var", truth.var_names, {})
        if truth.x is not None:
            write_matrix(f, "X", truth.x, **storage)
        for kind, members in (("layers", truth.layers), ("obsm", truth.obsm)):
            if members:
                encode(f.create_group(kind), "dict", "0.1.0")
                for name, matrix in members.items():
                    write_matrix(f[kind], name, matrix, **storage)
        if truth.raw is not None:
            encode(f.create_group("raw"), "raw", "0.1.0")
            write_matrix(f["raw"], "X", truth.raw, **storage)
            frames.write(f["raw"], "var", truth.raw_var_names, {})
    return truth


def encode(node, kind: str, version: str) -> None:
    node.attrs["encoding-type"], node.attrs["encoding-version"] = kind, version


def write_matrix(group, name: str, matrix: Matrix, *, index_dtype: str = "i4", indptr_dtype: str = "i4", **storage) -> None:
    if not isinstance(matrix, Csr):
        encode(_array(group, name, matrix, **storage), "array", "0.2.0")
        return
    g = group.create_group(name)
    encode(g, "csr_matrix", "0.1.0")
    g.attrs["shape"] = np.array([matrix.n_rows, matrix.n_cols])
    _array(g, "data", matrix.data, **storage)
    _array(g, "indices", matrix.indices.astype(index_dtype), **storage)
    plain = {k: storage[k] for k in ("big_endian", "compact") if k in storage}
    _array(g, "indptr", matrix.indptr.astype(indptr_dtype), **plain)


def _array(group, name: str, values: np.ndarray, *, chunks=None, compact=False, big_endian=False, early_allocation=False,
           **filters) -> h5py.Dataset:
    """One stored array. `chunks`: a shape, "whole" (one chunk), "rows" (16 rows, or 100 values), or None for contiguous."""
    if big_endian:
        values = values.astype(values.dtype.newbyteorder(">"))
    if compact or early_allocation:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if compact:
            plist.set_layout(h5py.h5d.COMPACT)
        else:
            plist.set_chunk(chunks)
            plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        dtype = h5py.h5t.py_create(values.dtype, logical=True)
        made = h5py.h5d.create(group.id, name.encode(), dtype, h5py.h5s.create_simple(values.shape), plist)
        h5py.Dataset(made)[...] = values
        return group[name]
    if chunks == "whole":
        chunks = values.shape
    elif chunks == "rows":
        chunks = (100,) if values.ndim == 1 else (16, values.shape[1])
    if chunks is None or values.size == 0:
        return group.create_dataset(name, data=values)
    chunks = tuple(min(c, s) for c, s in zip(chunks[: values.ndim], values.shape))
    return group.create_dataset(name, data=values, chunks=chunks, **filters)


class _Frames:
    """Writes obs and var."""

    def __init__(self, generation: str, index: str, string_form: str, storage: dict):
        self.generation, self.index, self.string_form, self.storage = generation, index, string_form, storage

    def write(self, parent, name: str, names: list[str], columns: dict[str, Column]) -> None:
        g = parent.create_group(name)
        encode(g, "dataframe", "0.2.0" if self.generation == "0.8" else "0.1.0")
        g.attrs["_index"] = self.index
        # anndata writes an empty list as float64.
        g.attrs["column-order"] = np.array(list(columns), dtype=STRINGS) if columns else np.zeros(0)
        self._strings(g, self.index, names)
        for key, column in columns.items():
            self._column(g, key, column)

    def _plain(self, group, name: str, values: np.ndarray) -> h5py.Dataset:
        d = group.create_dataset(name, data=values, **(self.storage if values.ndim and len(values) > 17 else {}))
        if self.generation == "0.8":
            encode(d, "array", "0.2.0")
        return d

    def _strings(self, group, name: str, labels: list) -> None:
        texts = [v or "" for v in labels]
        if self.string_form == "nullable":
            g = group.create_group(name)
            encode(g, "nullable-string-array", "0.1.0")
            g.attrs["na-value"] = "NaN"
            encode(g.create_dataset("values", data=texts, dtype=STRINGS), "string-array", "0.2.0")
            self._plain(g, "mask", np.array([v is None for v in labels]))
            return
        if self.string_form == "fixed":
            d = group.create_dataset(name, data=np.array(texts, "S"))
        else:
            storage = self.storage if len(texts) > 17 else {}
            d = group.create_dataset(name, data=np.array(texts, dtype=object), dtype=STRINGS, **storage)
        if self.generation == "0.8":
            encode(d, "string-array", "0.2.0")

    def _labels(self, group, name: str, labels: list) -> None:
        if isinstance(labels[0], str):
            self._strings(group, name, labels)
        else:
            self._plain(group, name, np.array(labels))

    def _column(self, group, key: str, column: Column) -> None:
        match column:
            case Numbers():
                self._plain(group, key, column.values)
            case Text():
                self._strings(group, key, column.labels)
            case Nullable():
                g = group.create_group(key)
                encode(g, "nullable-boolean" if column.values.dtype == bool else "nullable-integer", "0.1.0")
                self._plain(g, "values", column.values)
                self._plain(g, "mask", column.mask)
            case Category():
                self._category(group, key, column)

    def _category(self, group, key: str, column: Category) -> None:
        codes = column.codes.astype("i1" if len(column.categories) < 128 else "i2")
        if self.generation == "0.7":
            self._labels(group.require_group("__categories"), key, column.categories)
            group[f"__categories/{key}"].attrs["ordered"] = column.ordered
            group.create_dataset(key, data=codes).attrs["categories"] = group[f"__categories/{key}"].ref
            return
        g = group.create_group(key)
        encode(g, "categorical", "0.2.0")
        g.attrs["ordered"] = column.ordered
        self._plain(g, "codes", codes)
        self._labels(g, "categories", column.categories)


def write_compound(path: Path, truth: Truth, **storage) -> Truth:
    """Before anndata 0.7: obs and var are compound datasets, labels stand in uns, nothing has encoding attributes."""
    with h5py.File(path, "w") as f:
        uns = f.create_group("uns")
        for name, names, columns in (("obs", truth.obs_names, truth.obs), ("var", truth.var_names, {})):
            fields = [("index", np.array([n.encode() for n in names]))]
            for key, column in columns.items():
                fields.append((key, column.codes.astype("i1") if isinstance(column, Category) else column.values))
                if isinstance(column, Category):
                    labels = np.array([v.encode() for v in column.categories])
                    # A single label was written as a scalar.
                    uns.create_dataset(f"{key}_categories", data=labels if len(labels) > 1 else labels[0])
            table = np.zeros(len(names), [(key, values.dtype) for key, values in fields])
            for key, values in fields:
                table[key] = values
            f.create_dataset(name, data=table)
        write_matrix(f, "X", truth.x, **storage)
        if isinstance(truth.x, Csr):
            f["X"].attrs["h5sparse_format"], f["X"].attrs["h5sparse_shape"] = "csr", f["X"].attrs["shape"]
        strip_encoding(f)
        if isinstance(truth.x, Csr):
            del f["X"].attrs["shape"]
    return truth


def strip_encoding(f: h5py.File) -> None:
    def strip(_, node):
        for name in ("encoding-type", "encoding-version"):
            if name in node.attrs:
                del node.attrs[name]
    strip("", f)
    f.visititems(strip)


def replace(group, name: str, values: np.ndarray, **kwargs) -> h5py.Dataset:
    """The dataset anew with other values or storage; its attributes stay."""
    attributes = dict(group[name].attrs)
    del group[name]
    d = group.create_dataset(name, data=values, **kwargs)
    d.attrs.update(attributes)
    return d


def make_hole(group, name: str, fill, *holes) -> None:
    """The chunked dataset anew with the fill value `fill` and without ever writing the regions `holes` (whole chunks)."""
    old = group[name]
    values, attributes, chunks = old[()], dict(old.attrs), old.chunks
    del group[name]
    d = group.create_dataset(name, shape=values.shape, dtype=values.dtype, chunks=chunks, fillvalue=fill, compression="gzip")
    d.attrs.update(attributes)
    for at in np.ndindex(*(-(-s // c) for s, c in zip(values.shape, chunks))):
        region = tuple(slice(i * c, min((i + 1) * c, s)) for i, c, s in zip(at, chunks, values.shape))
        if not any(_inside(region, hole if isinstance(hole, tuple) else (hole,)) for hole in holes):
            d[region] = values[region]


def _inside(region, hole) -> bool:
    return all(h.start <= r.start < h.stop for r, h in zip(region, hole))
