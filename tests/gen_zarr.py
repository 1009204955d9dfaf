"""Writes one small zarr store per kind of encoding, with zarr-python, and returns what each must read as.

`STORES` maps names to functions `write(path) -> Truth`. The truth comes from memory, not from reading the store back.
"""

from __future__ import annotations

import json
import warnings
import zipfile
from pathlib import Path

import numcodecs
import numpy as np
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.codecs import numcodecs as zarr_numcodecs

from gen_stores import N_ROWS, N_VARS, Writer, cell_type, random_csr, random_dense
from truth import Category, Column, Csr, Matrix, Nullable, Numbers, Text, Truth

STORES: dict[str, Writer] = {}
# Of an array of rank 1, of rank 2: small, so that rows straddle chunks, and the last ones are not full.
CHUNKS = {1: (97,), 2: (13, 50)}
SHARDS = {1: (97 * 4,), 2: (39, 100)}


def dataset(x: Matrix) -> Truth:
    """A truth with a column of every kind."""
    n = x.n_rows if isinstance(x, Csr) else len(x)
    rng = np.random.default_rng(7)
    mask = np.arange(n) % 5 == 2
    obs: dict[str, Column] = {
        "cell_type": cell_type(n),
        "dose": Category(np.arange(n) % 4 - 1, [0.5, 1.0, 2.0], ordered=True),
        "n_counts": Numbers(rng.integers(0, 1000, n)),
        "score": Numbers(rng.random(n).astype("f4")),
        "flag": Numbers(np.arange(n) % 3 == 0),
        "maybe": Nullable(np.arange(n, dtype="i4"), mask),
        "note": Text([f"né {i}" if i % 4 else "" for i in range(n)]),
    }
    n_cols = x.n_cols if isinstance(x, Csr) else x.shape[1]
    return Truth([f"cell-{i}" for i in range(n)], [f"gene-{i}" for i in range(n_cols)], x, obs)


class Layout:
    """How the arrays of a matrix are stored; `small` ones (columns, names) take the defaults of the format."""

    def __init__(self, zarr_format: int = 3, *, sharded: bool | str = False, chunked: bool = True, consolidate: bool = False,
                 index_type: str = "i4", value_type: str | None = None, **kwargs):
        self.zarr_format, self.sharded, self.chunked, self.consolidate = zarr_format, sharded, chunked, consolidate
        self.index_type, self.value_type, self.kwargs = index_type, value_type, kwargs

    def large(self, group: zarr.Group, name: str, values: np.ndarray, **kwargs) -> zarr.Array:
        """An array of a matrix, cut into chunks."""
        more = {"chunks": CHUNKS[values.ndim] if self.chunked else values.shape, **self.kwargs, **kwargs}
        if self.sharded:
            more["shards"] = SHARDS[values.ndim]
            if self.sharded == "start":
                more["shards"] = {"shape": SHARDS[values.ndim], "index_location": "start"}
        if values.ndim == 1:
            more.pop("order", None)
            more["filters"] = [f for f in more.get("filters") or [] if not isinstance(f, TransposeCodec)] or "auto"
        if more.get("filters") == "auto":
            more.pop("filters")
        array = group.create_array(name, shape=values.shape, dtype=values.dtype, **more)
        array[...] = values
        return array


def small(group: zarr.Group, name: str, values, **attributes) -> zarr.Array:
    """An array with the defaults of the format."""
    if isinstance(values, list):
        array = group.create_array(name, shape=(len(values),), dtype=str)
        array[...] = np.array(values, dtype=object)
    else:
        array = group.create_array(name, data=np.asarray(values))
    array.attrs.update(attributes)
    return array


def subgroup(group: zarr.Group, name: str, encoding: str, version: str = "0.1.0", **attributes) -> zarr.Group:
    made = group.create_group(name)
    made.attrs.update({"encoding-type": encoding, "encoding-version": version, **attributes})
    return made


def write_matrix(group: zarr.Group, name: str, x: Matrix, layout: Layout) -> None:
    if isinstance(x, Csr):
        matrix = subgroup(group, name, "csr_matrix", shape=[x.n_rows, x.n_cols])
        layout.large(matrix, "data", x.data)
        indices = x.indices.astype(layout.index_type)
        # A filter for elements of one type and size is none for others.
        own = {} if layout.index_type == "i4" or "filters" not in layout.kwargs else {"filters": None}
        layout.large(matrix, "indices", indices, **own)
        small(matrix, "indptr", x.indptr.astype("i4"))
    else:
        layout.large(group, name, x).attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})


def write_column(frame: zarr.Group, name: str, column: Column) -> None:
    match column:
        case Category():
            group = subgroup(frame, name, "categorical", "0.2.0", ordered=column.ordered)
            small(group, "codes", column.codes.astype("i1"))
            labels = column.categories
            small(group, "categories", labels if isinstance(labels[0], str) else np.array(labels))
        case Nullable():
            group = subgroup(frame, name, "nullable-integer")
            small(group, "values", column.values)
            small(group, "mask", column.mask)
        case Numbers():
            small(frame, name, column.values)
        case Text():
            small(frame, name, [v or "" for v in column.labels], **{"encoding-type": "string-array", "encoding-version": "0.2.0"})


def write_frame(root: zarr.Group, name: str, names: list[str], columns: dict[str, Column], nullable_index: bool = False) -> None:
    attributes = {"_index": "_index", "column-order": list(columns)}
    frame = subgroup(root, name, "dataframe", "0.2.0", **attributes)
    if nullable_index:  # what anndata writes with pandas 3
        index = subgroup(frame, "_index", "nullable-string-array", **{"na-value": "NaN"})
        small(index, "values", names)
        small(index, "mask", np.zeros(len(names), bool))
    else:
        small(frame, "_index", names, **{"encoding-type": "string-array", "encoding-version": "0.2.0"})
    for column, values in columns.items():
        write_column(frame, column, values)


def write(path: Path, truth: Truth, layout: Layout, nullable_index: bool = False, group: str = "") -> Truth:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = zarr.open_group(path, mode="a" if group else "w", zarr_format=layout.zarr_format)
        if group:
            root = root.create_group(group)
        root.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        write_frame(root, "obs", truth.obs_names, truth.obs, nullable_index)
        write_frame(root, "var", truth.var_names, {}, nullable_index)
        write_matrix(root, "X", truth.x, layout)
        for kind, members in (("layers", truth.layers), ("obsm", truth.obsm)):
            if members:
                made = subgroup(root, kind, "dict")
                for name, matrix in members.items():
                    write_matrix(made, name, matrix, layout)
        if layout.consolidate:
            zarr.consolidate_metadata(path)
    return truth


def register(name: str, x, layout: Layout, **kwargs) -> None:
    assert name not in STORES, name
    STORES[name] = lambda path: write(path, dataset(x()), layout, **kwargs)


def csr() -> Csr:
    return random_csr(N_ROWS, N_VARS)


def dense() -> np.ndarray:
    return random_dense(N_ROWS, N_VARS)


def counts() -> Csr:
    return random_csr(N_ROWS, N_VARS, dtype="i4")


V2 = {
    "none": dict(compressors=None),
    "gzip": dict(compressors=numcodecs.GZip(5)),
    "zlib": dict(compressors=numcodecs.Zlib(1)),
    "zstd": dict(compressors=numcodecs.Zstd(3)),
    "lz4": dict(compressors=numcodecs.LZ4()),
    "blosc-lz4": dict(compressors=numcodecs.Blosc("lz4", 5, numcodecs.Blosc.SHUFFLE)),
    "blosc-zstd-bitshuffle": dict(compressors=numcodecs.Blosc("zstd", 5, numcodecs.Blosc.BITSHUFFLE)),
    "blosc-zlib": dict(compressors=numcodecs.Blosc("zlib", 5, numcodecs.Blosc.NOSHUFFLE)),
    "shuffle-zlib": dict(filters=[numcodecs.Shuffle(4)], compressors=numcodecs.Zlib(1)),
    "shuffle": dict(filters=[numcodecs.Shuffle(4)], compressors=None),
    "fletcher32-zstd": dict(filters=[numcodecs.Fletcher32()], compressors=numcodecs.Zstd(3)),
}
V3 = {
    "none": dict(compressors=None),
    "gzip": dict(compressors=GzipCodec(level=5)),
    "zstd": dict(compressors=ZstdCodec(level=3)),
    "zstd-checksum": dict(compressors=ZstdCodec(level=3, checksum=True)),
    "blosc-lz4": dict(compressors=BloscCodec(cname="lz4", clevel=3, shuffle="shuffle")),
    "blosc-zstd": dict(compressors=BloscCodec(cname="zstd", clevel=5, shuffle="bitshuffle")),
    "crc32c": dict(compressors=Crc32cCodec()),
    "zstd-crc32c": dict(compressors=[ZstdCodec(level=3), Crc32cCodec()]),
    "big-endian": dict(serializer=BytesCodec(endian="big"), compressors=ZstdCodec(level=3)),
}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    V3 |= {
        "numcodecs-lz4": dict(compressors=zarr_numcodecs.LZ4(acceleration=1)),
        "numcodecs-zlib": dict(compressors=zarr_numcodecs.Zlib(level=1)),
        "numcodecs-shuffle": dict(compressors=[zarr_numcodecs.Shuffle(elementsize=4), ZstdCodec(level=3)]),
    }
    v3_delta = zarr_numcodecs.Delta(dtype="<i4")
for codec, options in V2.items():
    register(f"v2.{codec}", csr, Layout(2, **options))
    register(f"v2.dense.{codec}", dense, Layout(2, **options))
for codec, options in V3.items():
    register(f"v3.{codec}", csr, Layout(3, **options))
    register(f"v3.dense.{codec}", dense, Layout(3, **options))
    register(f"v3.sharded.{codec}", csr, Layout(3, sharded=True, **options))
    register(f"v3.sharded.dense.{codec}", dense, Layout(3, sharded=True, **options))
delta = dict(filters=[numcodecs.Delta("<i4"), numcodecs.Shuffle(4)], compressors=numcodecs.Zlib(1))
register("v2.delta", counts, Layout(2, **delta))
register("v3.delta", counts, Layout(3, filters=[v3_delta], compressors=ZstdCodec(level=1)))
register("v2.big-endian", lambda: random_csr(dtype=">f8"), Layout(2, index_type=">i8"))
register("v2.order-f", dense, Layout(2, order="F"))
register("v2.order-f.none", dense, Layout(2, order="F", compressors=None))
register("v2.order-f.shuffle", dense, Layout(2, order="F", filters=[numcodecs.Shuffle(4)], compressors=numcodecs.Zlib(1)))
transposed = dict(filters=[TransposeCodec(order=(1, 0))])
register("v3.transpose", dense, Layout(3, **transposed))
register("v3.transpose.none", dense, Layout(3, compressors=None, **transposed))
register("v3.transpose.sharded", dense, Layout(3, sharded=True, **transposed))
for separator in "./":
    for key in ("default", "v2"):
        encoding = dict(chunk_key_encoding={"name": key, "separator": separator})
        register(f"v3.keys.{key}{separator.replace('/', '-')}", dense, Layout(3, **encoding))
        register(f"v3.keys.sharded.{key}{separator.replace('/', '-')}", csr, Layout(3, sharded=True, **encoding))
    encoding = dict(chunk_key_encoding={"name": "v2", "separator": separator})
    register(f"v2.keys{separator.replace('/', '-')}", dense, Layout(2, **encoding))
    register(f"v2.keys.csr{separator.replace('/', '-')}", csr, Layout(2, **encoding))
register("v3.sharded.index-at-start", csr, Layout(3, sharded="start"))
register("v3.sharded.index-at-start.none", dense, Layout(3, sharded="start", compressors=None))
for index_type in ("u1", "u2", "u4", "u8", "i8"):
    register(f"v3.indices-{index_type}", csr, Layout(3, sharded=True, index_type=index_type))
register("v2.consolidated", csr, Layout(2, consolidate=True))
register("v3.consolidated", csr, Layout(3, consolidate=True))
register("v3.one-chunk", csr, Layout(3, chunked=False))
register("v2.pandas-3-index", csr, Layout(2), nullable_index=True)
register("v3.pandas-3-index", csr, Layout(3), nullable_index=True)
register("v3.empty-rows", lambda: Csr(np.zeros(0, "f4"), np.zeros(0, np.int64), np.zeros(N_ROWS + 1, np.int64), N_VARS), Layout(3, chunked=False))


def store(name: str):
    def add(function: Writer) -> Writer:
        assert name not in STORES, name
        STORES[name] = function
        return function
    return add


def _holes(path: Path, layout: Layout, fill: int) -> Truth:
    """Chunks that were never written read as the fill value: those of rows 13 to 38, and of the last columns."""
    x = random_dense(N_ROWS, N_VARS, dtype="i2")
    x[13:39] = fill
    x[:, 150:] = fill
    truth = write(path, dataset(x), Layout(layout.zarr_format))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = zarr.open_group(path, mode="a")
        del root["X"]
        array = layout.large(root, "X", x, fill_value=fill, config={"write_empty_chunks": False})
        array.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
    return truth


for zarr_format, sharded in ((2, False), (3, False), (3, True)):
    for fill in (0, 7, -3):
        name = f"v{zarr_format}.{'sharded.' if sharded else ''}holes.{fill}"
        layout_of_holes = Layout(zarr_format, sharded=sharded)
        STORES[name] = lambda path, layout=layout_of_holes, fill=fill: _holes(path, layout, fill)


@store("v3.layers-obsm")
def _layers(path: Path) -> Truth:
    truth = dataset(csr())
    truth.layers = {"sparse": random_csr(seed=3), "dense": random_dense(seed=4)}
    truth.obsm = {"X_pca": random_dense(n_vars=7, seed=5)}
    return write(path, truth, Layout(3, sharded=True))


@store("v2.fixed-text")
def _fixed_text(path: Path) -> Truth:
    """Names and columns of fixed length: bytes and code points, either byte order."""
    truth = dataset(csr())
    write(path, truth, Layout(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = zarr.open_group(path, mode="a", zarr_format=2)
        for node, name, dtype in (("obs", "_index", "S12"), ("var", "_index", ">U9"), ("obs", "note", "<U11")):
            labels = {"obs": truth.obs_names, "var": truth.var_names}[node] if name == "_index" else truth.obs["note"].labels
            del root[node][name]
            values = np.array(labels, dtype=dtype)
            array = root[node].create_array(name, shape=values.shape, dtype=values.dtype, chunks=(31,))
            array[...] = values
    return truth


@store("v2.records")
def _records(path: Path) -> Truth:
    """Before anndata 0.7: frames are arrays of records, labels of categoricals stand in `uns`."""
    truth = dataset(csr())
    truth.obs = {
        "cell_type": Category(truth.obs["cell_type"].codes, truth.obs["cell_type"].categories),
        "n_counts": truth.obs["n_counts"],
        "score": truth.obs["score"],
    }
    write(path, truth, Layout(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = zarr.open_group(path, mode="a", zarr_format=2)
        root.attrs.clear()
        del root["obs"], root["var"]
        table = np.zeros(N_ROWS, [("index", "S10"), ("cell_type", "i1"), ("n_counts", "<i8"), ("score", ">f4")])
        table["index"], table["cell_type"] = truth.obs_names, truth.obs["cell_type"].codes
        table["n_counts"], table["score"] = truth.obs["n_counts"].values, truth.obs["score"].values
        root.create_array("obs", shape=table.shape, dtype=table.dtype, chunks=(40,))[...] = table
        genes = np.zeros(N_VARS, [("index", "<U9")])
        genes["index"] = truth.var_names
        root.create_array("var", shape=genes.shape, dtype=genes.dtype)[...] = genes
        uns = root.create_group("uns")
        small(uns, "cell_type_categories", truth.obs["cell_type"].categories)
    return truth


def archive(folder: Path, path: Path, compression: int = zipfile.ZIP_STORED, prefix: str = "", zip64: bool = False) -> Path:
    """The store `folder` as a zip archive."""
    with zipfile.ZipFile(path, "w", compression) as out:
        out.comment = b"a comment"
        for file in sorted(p for p in folder.rglob("*") if p.is_file()):
            info = zipfile.ZipInfo(f"{prefix}{file.relative_to(folder)}")
            info.compress_type = compression
            with out.open(info, "w", force_zip64=zip64) as member:
                member.write(file.read_bytes())
    return path


def collection(path: Path, parts: list[Truth]) -> None:
    """What annbatch writes: `dataset_<i>` below a root with a marker."""
    root = zarr.open_group(path, mode="w", zarr_format=3)
    root.attrs.update({"encoding-type": "annbatch-preshuffled", "encoding-version": "0.1.0"})
    for i, truth in enumerate(parts):
        write(path, truth, Layout(3, sharded=True, index_type="u2"), group=f"dataset_{i}")


def edit_json(path: Path, change) -> None:
    """Rewrites a document of metadata."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
