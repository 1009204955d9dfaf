"""Writes one small `.h5ad` per kind of encoding, with h5py alone, and returns what each must read as.

    gen_stores.py FOLDER [NAME...]      writes FOLDER/<name>.h5ad and FOLDER/<name>.pickle (the `Truth`)

`STORES` maps names to functions `write(path) -> Truth`. The truth comes from memory, not from reading the file back.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np

import h5ad_writer as h5
from truth import Category, Csr, Nullable, Numbers, Text, Truth

Writer = Callable[[Path], Truth]
STORES: dict[str, Writer] = {}
N_ROWS, N_VARS = 90, 160

FILTERS: dict[str, dict] = {
    "none": {},
    "gzip": dict(compression="gzip"),
    "gzip-shuffle": dict(compression="gzip", compression_opts=7, shuffle=True),
    "shuffle": dict(shuffle=True),
    "lzf": dict(compression="lzf"),
    "lzf-shuffle": dict(compression="lzf", shuffle=True),
    "fletcher32": dict(fletcher32=True),
    "gzip-shuffle-fletcher32": dict(compression="gzip", shuffle=True, fletcher32=True),
    "zstd": dict(hdf5plugin.Zstd(clevel=5)),
    "blosc-lz4": dict(hdf5plugin.Blosc(cname="lz4", clevel=5)),
    "blosc-zstd": dict(hdf5plugin.Blosc(cname="zstd", clevel=5)),
    "blosc-blosclz": dict(hdf5plugin.Blosc(cname="blosclz", clevel=5)),
    "blosc-zlib": dict(hdf5plugin.Blosc(cname="zlib", clevel=5)),
    "blosc-lz4-noshuffle": dict(hdf5plugin.Blosc(cname="lz4", clevel=5, shuffle=hdf5plugin.Blosc.NOSHUFFLE)),
    "blosc-zstd-bitshuffle": dict(hdf5plugin.Blosc(cname="zstd", clevel=5, shuffle=hdf5plugin.Blosc.BITSHUFFLE)),
    "blosc2": dict(hdf5plugin.Blosc2(cname="zstd", clevel=5)),
    "lz4": dict(hdf5plugin.LZ4()),
    "bitshuffle": dict(hdf5plugin.Bitshuffle()),
    "bitshuffle-plain": dict(hdf5plugin.Bitshuffle(cname="none")),
}
VALUE_TYPES = ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "?")
INDEX_TYPES = ("u1", "u2", "u4", "u8", "i4", "i8")
INDPTR_TYPES = ("i4", "u4", "i8", "u8")


def register(name: str) -> Callable[[Writer], Writer]:
    def add(function: Writer) -> Writer:
        assert name not in STORES, name
        STORES[name] = function
        return function
    return add


def random_csr(n_rows: int = N_ROWS, n_vars: int = N_VARS, dtype: str = "f4", seed: int = 1) -> Csr:
    """Rows of very different lengths, the first and the last one empty; counts of up to 100."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.geometric(0.04, n_rows), n_vars)
    lengths[[0, -1]] = 0
    indices = np.concatenate([np.sort(rng.choice(n_vars, k, replace=False)) for k in lengths]).astype(np.int64)
    data = rng.integers(1, 100, len(indices))
    values = data.astype(dtype) if dtype != "f4" and dtype != "f8" else (data + rng.random(len(data))).astype(dtype)
    return Csr(values, indices, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), n_vars)


def random_dense(n_rows: int = N_ROWS, n_vars: int = N_VARS, dtype: str = "f4", seed: int = 2) -> np.ndarray:
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 100, (n_rows, n_vars)) * (rng.random((n_rows, n_vars)) < 0.3)
    return counts.astype(dtype)


def cell_type(n_rows: int) -> Category:
    return Category(np.arange(n_rows, dtype=np.int64) * 7 % 5, ["B", "T", "NK", "α cell", "other"])


def dataset(x, /, **obs) -> Truth:
    """Names and, unless other columns are given, two columns of obs around a matrix."""
    n_rows, n_vars = (x.n_rows, x.n_cols) if isinstance(x, Csr) else x.shape
    columns = obs or {"cell_type": cell_type(n_rows), "depth": Numbers(np.arange(n_rows) / 8)}
    return Truth([f"cell-{i}-é" for i in range(n_rows)], [f"GENE{j}" for j in range(n_vars)], x, columns)


# ------------------------------------------------------------------------------------------- filters, types, index widths
def _storage_stores() -> None:
    for name, kwargs in FILTERS.items():
        STORES[f"csr.{name}"] = lambda p, kw=kwargs: h5.write(p, dataset(random_csr()), chunks=(300,), **kw)
        STORES[f"dense.{name}"] = lambda p, kw=kwargs: h5.write(p, dataset(random_dense()), chunks=(11, 70), **kw)
    for code in VALUE_TYPES:
        kw = dict(compression="gzip")
        name = np.dtype(code).name
        STORES[f"csr.{name}"] = lambda p, c=code, kw=kw: h5.write(p, dataset(random_csr(dtype=c)), chunks=(300,), **kw)
        STORES[f"dense.{name}"] = lambda p, c=code, kw=kw: h5.write(p, dataset(random_dense(dtype=c)), chunks=(16, 160), **kw)
    for index in INDEX_TYPES:
        for indptr in INDPTR_TYPES:
            STORES[f"index.{np.dtype(index).name}.{np.dtype(indptr).name}"] = lambda p, i=index, q=indptr: h5.write(
                p, dataset(random_csr()), index_dtype=i, indptr_dtype=q, chunks=(250,), compression="gzip")


_storage_stores()


# ---------------------------------------------------------------------------------------------------- layouts of the file
@register("csr.contiguous")
def _(path):
    return h5.write(path, dataset(random_csr()), chunks=None)


@register("dense.contiguous")
def _(path):
    return h5.write(path, dataset(random_dense()), chunks=None)


@register("csr.compact")
def _(path):
    return h5.write(path, dataset(random_csr(n_rows=30)), compact=True)


@register("csr.big-endian")
def _(path):
    truth = dataset(random_csr(), depth=Numbers(np.arange(N_ROWS) / 8), count=Numbers(np.arange(N_ROWS, dtype="i4")))
    return h5.write(path, truth, big_endian=True, chunks=(300,), compression="gzip", shuffle=True)


@register("dense.big-endian")
def _(path):
    return h5.write(path, dataset(random_dense(dtype="i2")), big_endian=True, chunks=(16, 50), compression="gzip")


@register("csr.filter-mask")
def _(path):
    """Chunks that were stored without some of their filters; h5py's own writes apply all of them."""
    truth = h5.write(path, dataset(random_csr()), chunks=(300,), compression="gzip", shuffle=True)
    with h5py.File(path, "a") as f:
        for member in ("data", "indices"):
            d = f["X"][member]
            values = np.zeros(-(-len(d) // 300) * 300, d.dtype)
            values[: len(d)] = d[()]
            d.id.write_direct_chunk((300,), values[300:600].tobytes(), filter_mask=3)
    return truth


@register("csr.unallocated")
def _(path):
    """Chunks that were never written read as the fill value."""
    csr = random_csr()
    csr.data[600:900], csr.indices[300:600] = 7, 3
    truth = h5.write(path, dataset(csr), chunks=(300,), compression="gzip")
    with h5py.File(path, "a") as f:
        h5.make_hole(f["X"], "data", 7, slice(600, 900))
        h5.make_hole(f["X"], "indices", 3, slice(300, 600))
    return truth


@register("dense.unallocated")
def _(path):
    x = random_dense()
    x[32:48, 0:50] = 3
    x[80:96, 100:150] = 3
    truth = h5.write(path, dataset(x), chunks=(16, 50), compression="gzip")
    with h5py.File(path, "a") as f:
        h5.make_hole(f, "X", 3, (slice(32, 48), slice(0, 50)), (slice(80, 96), slice(100, 150)))
    return truth


@register("user-block")
def _(path):
    truth = h5.write(path, dataset(random_csr()), chunks=(300,), compression="gzip", file=dict(userblock_size=2048))
    with open(path, "r+b") as f:
        f.write(b"any text may stand in the user block\n")
    return truth


def _latest(name: str, x, **kwargs) -> None:
    STORES[f"latest.{name}"] = lambda p: h5.write(p, dataset(x()), file=dict(libver="latest"), **kwargs)


# The chunk indexes of the newer file format (the older one has only version 1 B-trees).
_latest("fixed-array", random_csr, chunks=(300,), compression="gzip")
_latest("single-chunk", lambda: random_csr(n_rows=30), chunks="whole", compression="gzip")
_latest("extensible-array", random_csr, chunks=(300,), maxshape=(None,), compression="gzip")
_latest("b-tree-2", random_dense, chunks=(16, 50), maxshape=(None, None), compression="gzip")
_latest("implicit", random_dense, chunks=(16, 50), early_allocation=True)
_latest("contiguous", random_csr, chunks=None)


# ------------------------------------------------------------------------------------------------------- shapes of the data
@register("rows.empty-and-unsorted")
def _(path):
    """Indices out of order and repeated, explicit zeros, many empty rows."""
    csr, rng = random_csr(), np.random.default_rng(3)
    for i in range(csr.n_rows):
        s = slice(int(csr.indptr[i]), int(csr.indptr[i + 1]))
        order = rng.permutation(s.stop - s.start)
        csr.indices[s], csr.data[s] = csr.indices[s][order], csr.data[s][order]
        if len(order) > 2:
            csr.indices[s.start + 1] = csr.indices[s.start]
            csr.data[s.start] = 0
    keep = np.arange(csr.n_rows) % 3 != 1
    lengths = np.diff(csr.indptr) * keep
    at = np.repeat(keep, np.diff(csr.indptr))
    sparse = Csr(csr.data[at], csr.indices[at], np.concatenate([[0], np.cumsum(lengths)]), csr.n_cols)
    return h5.write(path, dataset(sparse), chunks=(100,), compression="gzip")


@register("rows.all-empty")
def _(path):
    empty = Csr(np.zeros(0, "f4"), np.zeros(0, np.int64), np.zeros(21, np.int64), N_VARS)
    return h5.write(path, dataset(empty), chunks=None)


@register("rows.one")
def _(path):
    one = Csr(np.array([1.5, 2], "f4"), np.array([3, 9]), np.array([0, 2]), N_VARS)
    return h5.write(path, dataset(one), chunks=(2,), compression="gzip")


@register("rows.one-dense")
def _(path):
    return h5.write(path, dataset(random_dense(n_rows=1)), chunks=(1, 160), compression="gzip")


@register("genes.one")
def _(path):
    return h5.write(path, dataset(random_dense(n_vars=1)), chunks=(16, 1), compression="gzip")


@register("values.special")
def _(path):
    """NaN with a payload, infinities, negative zero, subnormals: passed on bit by bit."""
    csr = random_csr(dtype="f4")
    bits = np.array([0x7FC00123, 0xFFC00001, 0x7F800000, 0xFF800000, 0x80000000, 0x00000001], "u4")
    csr.data[:60] = np.tile(bits, 10).view("f4")
    return h5.write(path, dataset(csr), chunks=(300,), compression="gzip")


@register("coded")
def _(path):
    return _coded(path, Csr)


@register("coded-dense")
def _(path):
    return _coded(path, np.ndarray)


def _coded(path: Path, form: type) -> Truth:
    """X, layers, obsm, obs and names all encode the row id, so that a mix-up of rows shows in any of them."""
    n = 200
    ids = np.arange(n)
    lengths = ids % 9
    sparse = Csr(np.repeat(ids + 1, lengths).astype("f4"), np.concatenate([np.arange(k) * 7 for k in lengths]).astype(np.int64),
                 np.concatenate([[0], np.cumsum(lengths)]), N_VARS)
    dense = np.broadcast_to((ids + 1).astype("f4")[:, None], (n, N_VARS)).copy()
    truth = dataset(
        sparse if form is Csr else dense, id=Numbers(ids.astype("i4")), label=Category(ids, [f"label {i}" for i in ids]),
        text=Text([f"text {i}" for i in ids]), maybe=Nullable(ids.astype("i2"), ids % 4 == 0),
    )
    truth.obs_names = [f"cell {i}" for i in ids]
    truth.layers = {"sparse": Csr(sparse.data * 2, sparse.indices, sparse.indptr, N_VARS), "dense": dense.astype("i4") * 3}
    truth.obsm = {"pair": np.stack([ids, -ids], 1).astype("f8"), "wide": np.repeat(ids[:, None], 50, 1).astype("f4")}
    truth.raw, truth.raw_var_names = dense[:, :40].astype("f8") * 5, [f"RAW{j}" for j in range(40)]
    return h5.write(path, truth, chunks="rows", compression="gzip")


# ------------------------------------------------------------------------------------------------------------- obs and names
def every_column(n: int) -> dict:
    k = np.arange(n)
    return {
        "ordered": Category(k % 4 - 1, ["low", "mid", "high"], ordered=True),
        "int_cat": Category(k % 5, [0, 10, 20, 30, 40]),
        "float_cat": Category(k % 3, [0.0, 0.5, 1.0]),
        "bool_cat": Category(k % 2, [False, True]),
        "one_cat": Category(k * 0, ["only"]),
        "unused_cat": Category(k % 2, ["a", "b", "never"]),
        "many_cat": Category(k * 2 % 300, [f"label-{i}" for i in range(300)]),
        "all_missing": Category(k * 0 - 1, ["x"]),
        "text": Text([f"é {i}" for i in k]),
        "empty text": Text([""] * n),
        "flag": Numbers(k % 3 == 0),
        "int8": Numbers((k % 100 - 50).astype("i1")),
        "uint32": Numbers((k + 4_000_000_000).astype("u4")),
        "int64": Numbers(k.astype("i8") - 2**60),
        "float16": Numbers((k / 4).astype("f2")),
        "float_nan": Numbers(np.where(k % 4 == 1, np.nan, k / 3)),
        "nullable_int": Nullable(k.astype("i4"), k % 5 == 0),
        "nullable_uint8": Nullable(k.astype("u1"), k % 5 == 1),
        "nullable_bool": Nullable(k % 2 == 0, k % 7 == 0),
    }


@register("obs.kinds")
def _(path):
    return h5.write(path, dataset(random_csr(), **every_column(N_ROWS)), chunks=(300,), compression="gzip")


@register("obs.filtered")
def _(path):
    truth = dataset(random_csr(), **every_column(N_ROWS))
    everywhere = dict(compression="gzip", shuffle=True, chunks=(17,))
    return h5.write(path, truth, chunks=(300,), compression="gzip", everywhere=everywhere)


@register("obs.nullable-strings")
def _(path):
    """pandas 3: the index and plain strings are values + mask groups."""
    note = Text([None if i % 7 == 0 else f"n{i}" for i in range(N_ROWS)])
    truth = dataset(random_csr(), note=note, cell_type=cell_type(N_ROWS))
    return h5.write(path, truth, chunks=(300,), string_form="nullable")


@register("obs.fixed-strings")
def _(path):
    labels = Category(np.arange(N_ROWS) % 2, ["one", "three"])
    truth = dataset(random_csr(), cell_type=labels, note=Text([f"n{i}" for i in range(N_ROWS)]))
    return h5.write(path, _ascii(truth), chunks=(300,), string_form="fixed")


@register("obs.none")
def _(path):
    truth = dataset(random_csr())
    truth.obs = {}
    return h5.write(path, truth, chunks=(300,))


@register("obs.no-ordered-attribute")
def _(path):
    truth = h5.write(path, dataset(random_csr()), chunks=(300,))
    with h5py.File(path, "a") as f:
        del f["obs/cell_type"].attrs["ordered"]
    return truth


@register("obs.code-types")
def _(path):
    """int64 codes as R writes them; unsigned codes, whose all-ones value means missing."""
    truth = dataset(random_csr(), r=cell_type(N_ROWS), unsigned=Category(np.arange(N_ROWS) % 4 - 1, ["a", "b", "c"]))
    h5.write(path, truth, chunks=(300,))
    with h5py.File(path, "a") as f:
        h5.replace(f["obs/r"], "codes", truth.obs["r"].codes.astype("i8"))
        h5.replace(f["obs/unsigned"], "codes", truth.obs["unsigned"].codes.astype("i1").view("u1"))
    return truth


@register("obs.no-encoding")
def _(path):
    """No encoding attributes anywhere; the kind of an element follows from its members."""
    maybe = Nullable(np.arange(N_ROWS), np.arange(N_ROWS) % 3 == 0)
    truth = h5.write(path, dataset(random_csr(), cell_type=cell_type(N_ROWS), maybe=maybe), chunks=(300,))
    with h5py.File(path, "a") as f:
        h5.strip_encoding(f)
    return truth


@register("obs.no-index-attribute")
def _(path):
    """`_index` and `column-order` are missing: the member `index` holds the names, the columns come sorted."""
    truth = h5.write(path, dataset(random_csr()), chunks=(300,), index="index")
    with h5py.File(path, "a") as f:
        for frame in ("obs", "var"):
            del f[frame].attrs["_index"], f[frame].attrs["column-order"]
    return truth


@register("x.no-shape-attribute")
def _(path):
    truth = h5.write(path, dataset(random_csr()), chunks=(300,))
    with h5py.File(path, "a") as f:
        del f["X"].attrs["shape"]
    return truth


@register("old.0.7")
def _(path):
    """anndata 0.7: categorical columns are integers that refer to a dataset in __categories."""
    columns = {k: v for k, v in every_column(N_ROWS).items() if isinstance(v, (Category, Numbers, Text))}
    return h5.write(path, dataset(random_csr(), **columns), chunks=(300,), compression="lzf", generation="0.7")


@register("old.0.6-csr")
def _(path):
    columns = dict(group=Category(np.arange(N_ROWS) % 2, ["a", "b"]), one=Category(np.zeros(N_ROWS, np.int64), ["only"]),
                   depth=Numbers(np.arange(N_ROWS) / 8))
    return h5.write_compound(path, _ascii(dataset(random_csr(), **columns)), chunks=(300,), compression="gzip")


@register("old.0.6-dense")
def _(path):
    truth = dataset(random_dense(), depth=Numbers(np.arange(N_ROWS) / 8))
    return h5.write_compound(path, _ascii(truth), chunks=(20, 160), compression="gzip")


def _ascii(truth: Truth) -> Truth:
    truth.obs_names = [f"cell-{i}" for i in range(truth.n_rows)]
    return truth


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or STORES:
        path = folder / f"{name}.h5ad"
        truth = STORES[name](path)
        path.with_suffix(".pickle").write_bytes(pickle.dumps(truth))
        print(f"{path}: {truth.n_rows} x {len(truth.var_names)}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
