"""Writes a synthetic .h5ad with very many rows and very few values: what start-up costs, without the disk of an atlas.

    make_atlas.py OUT.h5ad [--rows 100000000] [--gzip LEVEL]

Rows have 0 to 4 values (2 on average), 1,000 genes, int32 counts as float32. obs holds fixed-length names, categoricals
with int8 and int16 codes, and a float64. Everything is a function of the row number and written in pieces of a few million
rows, so that memory stays below 1 GiB; 100 million rows take some 4.5 GB of disk and two minutes.
"""

import argparse
from pathlib import Path

import h5py
import numpy as np

N_GENES = 1000
PIECE_ROWS = 2_000_000
CELL_TYPES = 50
DONORS = 2000
NAME_BYTES = 10


def row_lengths(rows: np.ndarray) -> np.ndarray:
    """Values of each row: 0 to 4, without a short period."""
    return ((rows * 2654435761) >> 16) % 5


def obs_of(rows: np.ndarray) -> dict[str, np.ndarray]:
    """The columns of obs, from the row numbers."""
    digits = rows[:, None] // 10 ** np.arange(NAME_BYTES - 1, -1, -1, dtype=np.int64) % 10 + ord("0")
    return {
        "_index": digits.astype(np.uint8).view(f"S{NAME_BYTES}")[:, 0],
        "cell_type": ((rows // 1000) % CELL_TYPES).astype(np.int8),
        "donor": ((rows // 100_000) % DONORS).astype(np.int16),
        "score": rows / 7.0,
    }


def values_of(rows: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Data and indices of the rows, from the row numbers: ascending genes, counts of at least 1."""
    owner = np.repeat(rows, lengths)
    starts = np.cumsum(lengths) - lengths
    slot = np.arange(owner.size) - np.repeat(starts, lengths)
    genes = (owner * 7919) % (N_GENES - 3 * 200) + slot * 200
    return (1 + (owner + slot) % 9).astype(np.float32), genes.astype(np.int32)


def encoded(group: h5py.Group | h5py.Dataset, kind: str, version: str) -> None:
    group.attrs["encoding-type"] = kind
    group.attrs["encoding-version"] = version


def text(group: h5py.Group, name: str, values: list[str]) -> None:
    encoded(group.create_dataset(name, data=values, dtype=h5py.string_dtype()), "string-array", "0.2.0")


def frame(root: h5py.Group, name: str, columns: list[str]) -> h5py.Group:
    group = root.create_group(name)
    encoded(group, "dataframe", "0.2.0")
    group.attrs["_index"] = "_index"
    group.attrs["column-order"] = np.array(columns, dtype=h5py.string_dtype())
    return group


def make(out: Path, n_rows: int, gzip: int | None) -> None:
    packed = {} if gzip is None else {"compression": "gzip", "compression_opts": gzip, "shuffle": True}
    with h5py.File(out, "w") as file:
        encoded(file, "anndata", "0.1.0")
        text(frame(file, "var", []), "_index", [f"gene{i}" for i in range(N_GENES)])
        obs = frame(file, "obs", ["cell_type", "donor", "score"])
        obs.create_dataset("_index", (n_rows,), f"S{NAME_BYTES}")
        encoded(obs["_index"], "string-array", "0.2.0")
        encoded(obs.create_dataset("score", (n_rows,), np.float64, **packed), "array", "0.2.0")
        codes = {}
        for column, dtype, n in (("cell_type", np.int8, CELL_TYPES), ("donor", np.int16, DONORS)):
            group = obs.create_group(column)
            encoded(group, "categorical", "0.2.0")
            group.attrs["ordered"] = False
            text(group, "categories", [f"{column}_{i}" for i in range(n)])
            codes[column] = group.create_dataset("codes", (n_rows,), dtype, **packed)
            encoded(codes[column], "array", "0.2.0")
        x = file.create_group("X")
        encoded(x, "csr_matrix", "0.1.0")
        x.attrs["shape"] = [n_rows, N_GENES]
        indptr = x.create_dataset("indptr", (n_rows + 1,), np.int64, **packed)
        chunked = {"shape": (0,), "maxshape": (None,), "chunks": (2048,), **packed}
        data, indices = x.create_dataset("data", dtype=np.float32, **chunked), x.create_dataset("indices", dtype=np.int32, **chunked)
        end = 0
        for first in range(0, n_rows, PIECE_ROWS):
            rows = np.arange(first, min(first + PIECE_ROWS, n_rows), dtype=np.int64)
            piece = slice(first, first + rows.size)
            for column, values in obs_of(rows).items():
                codes.get(column, obs.get(column))[piece] = values
            lengths = row_lengths(rows)
            indptr[first + 1 : first + rows.size + 1] = end + np.cumsum(lengths)
            new_end = end + int(lengths.sum())
            for array, values in zip((data, indices), values_of(rows, lengths), strict=True):
                array.resize((new_end,))
                array[end:new_end] = values
            end = new_end


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--gzip", type=int, metavar="LEVEL")
    args = parser.parse_args()
    make(args.out, args.rows, args.gzip)
