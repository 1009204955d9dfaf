"""Reads batch files without shufflefs code: once with a parser written here from the safetensors specification, once with
the `safetensors` package, and both must agree.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors import numpy as safetensors_numpy

from truth import Category, Column, Csr, Nullable, Numbers, Text

DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4", "I32": "<i4", "F32": "<f4",
    "U64": "<u8", "I64": "<i8", "F64": "<f8",
}
PAGE = 4096
ALIGNMENT = 64


def parse(image: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Tensors and `__metadata__` of a safetensors image; checks the format's rules and ours (padding, alignment)."""
    n = int.from_bytes(image[:8], "little")
    assert (8 + n) % PAGE == 0, "data start is not padded to 4096"
    header = json.loads(image[8 : 8 + n], object_pairs_hook=_unique)
    metadata = header.pop("__metadata__", {})
    assert all(isinstance(v, str) for v in metadata.values())
    data, at, tensors = memoryview(image)[8 + n :], 0, {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        assert begin == at, f"{name}: hole or overlap, or not in file order"
        dtype = np.dtype(DTYPES[entry["dtype"]])
        assert end - begin == dtype.itemsize * int(np.prod(entry["shape"], dtype=object)), name
        if not name.startswith("__pad"):
            assert begin % ALIGNMENT == 0, f"{name} begins at {begin}"
            tensors[name] = np.frombuffer(data[begin:end], dtype).reshape(entry["shape"])
        at = end
    assert at == len(data), "bytes behind the last tensor"
    return tensors, metadata


def _unique(pairs):
    names = [k for k, _ in pairs]
    assert len(set(names)) == len(names), f"a key occurs twice: {names}"
    return dict(pairs)


def same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


class Batch:
    """One batch: tensors and metadata, decoded on demand into the types of `truth`."""

    def __init__(self, image: bytes, dataset: dict | None = None):
        self.image, self.dataset = image, dataset or {}
        self.tensors, self.metadata = parse(image)
        other = {k: v for k, v in safetensors_numpy.load(image).items() if not k.startswith("__pad")}
        assert other.keys() == self.tensors.keys()
        for name, array in other.items():
            assert same_bytes(array, self.tensors[name]), f"{name} differs between the two parsers"

    @property
    def rows(self) -> np.ndarray:
        assert self.tensors["row"].dtype == np.int64
        return self.tensors["row"]

    @cached_property
    def names(self) -> list[str] | None:
        return self._strings("obs_names") if "obs_names" in self.tensors else None

    def matrix(self, name: str) -> Csr | np.ndarray | None:
        """X, a layer or an obsm element."""
        t = self.tensors
        if name in t:
            assert t[name].ndim == 2 and len(t[name]) == len(self.rows)
            return t[name]
        if f"{name}.data" not in t:
            return None
        assert t[f"{name}.indices"].dtype == np.int32 and t[f"{name}.indptr"].dtype == np.int32
        shape = t[f"{name}.shape"]
        assert shape.dtype == np.int64 and shape.shape == (2,) and shape[0] == len(self.rows)
        csr = Csr(t[f"{name}.data"], t[f"{name}.indices"], t[f"{name}.indptr"], int(shape[1]))
        csr.check()
        return csr

    @cached_property
    def column_names(self) -> set[str]:
        names = {k.removeprefix("obs.") for k in self.tensors if k.startswith("obs.")}
        for name in list(names):
            for suffix in (".codes", ".present"):
                if name.endswith(suffix):
                    names.discard(name)
                    names.add(name.removesuffix(suffix))
        return names

    def column(self, name: str) -> Column:
        t, key = self.tensors, f"obs.{name}"
        if f"{key}.codes" in t:
            codes = t[f"{key}.codes"]
            assert codes.dtype == np.int64
            categories, ordered = self.categories(name)
            return Category(codes, categories, ordered)
        values = t[key]
        present = t.get(f"{key}.present")
        if present is not None:
            assert present.dtype == np.bool_ and len(present) == len(self.rows)
        if values.ndim == 2:
            labels = self._strings(key)
            return Text([v if present is None or p else None for v, p in zip(labels, present if present is not None else labels)])
        assert values.shape == (len(self.rows),)
        return Numbers(values) if present is None else Nullable(values, ~present)

    def categories(self, name: str) -> tuple[list, bool]:
        """Labels and order of a categorical column: from the batch itself, else from dataset.json."""
        key = f"obs.{name}"
        if f"{key}.categories" in self.metadata:
            return json.loads(self.metadata[f"{key}.categories"]), self.metadata[f"{key}.ordered"] == "true"
        found = next((c for c in self.dataset.get("columns", []) if c["name"] == name), None)
        assert found is not None, f"categories of {name} are neither in the batch nor in dataset.json"
        return found["categories"], bool(found["ordered"])

    def _strings(self, key: str) -> list[str]:
        raw = self.tensors[key]
        assert raw.dtype == np.uint8 and raw.ndim == 2 and len(raw) == len(self.rows)
        return [bytes(row).rstrip(b"\0").decode() for row in raw]

    @property
    def provenance(self) -> dict:
        """What identifies the bytes: order, seed, epoch, batch, fingerprint."""
        return json.loads(self.metadata["shufflefs"])


@dataclass
class Pass:
    """A directory of batches: an epoch, `inorder`, or a rank's share of an epoch."""

    folder: Path
    dataset: dict | None = None

    @cached_property
    def batch_names(self) -> list[str]:
        return (self.folder / "batches.txt").read_text().split()

    @cached_property
    def rows(self) -> np.ndarray:
        rows = np.load(self.folder / "rows.npy")
        assert rows.dtype == np.int64 and rows.ndim == 1
        return rows

    def batch(self, name: str) -> Batch:
        path = self.folder / name
        image = path.read_bytes()
        assert len(image) == path.stat().st_size, "st_size is not the number of bytes"
        return Batch(image, self.dataset)

    def __iter__(self):
        return (self.batch(name) for name in self.batch_names)

    def digests(self) -> dict[str, str]:
        import hashlib
        return {name: hashlib.sha256((self.folder / name).read_bytes()).hexdigest() for name in self.batch_names}


def load_dataset(mnt: Path) -> dict:
    return json.loads((mnt / "dataset.json").read_text())
