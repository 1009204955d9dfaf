"""What a dataset holds, in plain arrays: the common ground of sources (read by h5py, or made by the generator) and batches."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Csr:
    """Sparse rows exactly as stored: entries may be unsorted, repeated or zero."""

    data: np.ndarray
    indices: np.ndarray
    indptr: np.ndarray
    n_cols: int

    @property
    def n_rows(self) -> int:
        return len(self.indptr) - 1

    def check(self) -> None:
        assert self.indptr[0] == 0 and self.indptr[-1] == len(self.data) == len(self.indices)
        assert np.all(np.diff(self.indptr.astype(np.int64)) >= 0)
        if len(self.indices):
            assert self.indices.min() >= 0 and self.indices.max() < self.n_cols

    def row(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        s = slice(int(self.indptr[i]), int(self.indptr[i + 1]))
        return self.indices[s], self.data[s]

    def take(self, rows: np.ndarray) -> Csr:
        """The given rows, one after the other."""
        starts, ends = self.indptr[:-1].astype(np.int64)[rows], self.indptr[1:].astype(np.int64)[rows]
        at = np.concatenate([np.arange(s, e) for s, e in zip(starts, ends)]) if len(rows) else np.zeros(0, np.int64)
        indptr = np.concatenate([[0], np.cumsum(ends - starts)]).astype(np.int64)
        return Csr(self.data[at], self.indices[at], indptr, self.n_cols)


Matrix = Csr | np.ndarray


@dataclass
class Numbers:
    """Numbers or booleans."""

    values: np.ndarray


@dataclass
class Nullable:
    """Numbers or booleans, some of them missing (mask true)."""

    values: np.ndarray
    mask: np.ndarray


@dataclass
class Category:
    """Codes into labels (text, numbers or booleans); -1 is missing."""

    codes: np.ndarray
    categories: list
    ordered: bool = False

    def labels(self) -> list:
        return [self.categories[c] if c >= 0 else None for c in self.codes.tolist()]


@dataclass
class Text:
    """Strings; None is missing."""

    labels: list


Column = Numbers | Nullable | Category | Text


@dataclass
class Truth:
    """A whole dataset in source order."""

    obs_names: list[str]
    var_names: list[str]
    x: Matrix | None
    obs: dict[str, Column] = field(default_factory=dict)
    layers: dict[str, Matrix] = field(default_factory=dict)
    obsm: dict[str, Matrix] = field(default_factory=dict)
    raw: Matrix | None = None
    raw_var_names: list[str] | None = None

    @property
    def n_rows(self) -> int:
        return len(self.obs_names)


def native(values: np.ndarray) -> np.ndarray:
    """The same values in little-endian byte order."""
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
