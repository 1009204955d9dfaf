#!/usr/bin/env python3
"""Reads a backed .h5ad through scDataset for some seconds and adds up every value. One JSON line.

usage: read_scdataset.py FILE.h5ad --block B --fetch F --batch M [--seconds 8] [--columns plate,drug,cell_line] [--cold]
The rate counts whole fetches, from the first one on. Rows are CSR with the asked columns, as fast as scDataset can give them:
materialised per fetch (`to_memory`), no workers, nothing made dense.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from importlib.metadata import version

warnings.filterwarnings("ignore")

import anndata  # noqa: E402
from scdataset import BlockShuffling, scDataset  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from measuring import Meter, emit, evict, own_peak_gb  # noqa: E402


class Rows:
    """What a fetch returns and is cut into batches. (scDataset's own container refuses sparse matrices.)"""

    def __init__(self, x, columns: dict):
        self.x, self.columns = x, columns

    def __getitem__(self, index) -> Rows:
        return Rows(self.x[index], {name: values[index] for name, values in self.columns.items()})


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("file")
    for name in ("block", "fetch", "batch"):
        p.add_argument(f"--{name}", type=int, required=True)
    p.add_argument("--seconds", type=float, default=8)
    p.add_argument("--columns", default="plate,drug,cell_line")
    p.add_argument("--cold", action="store_true", help="drop the file from the page cache before")
    a = p.parse_args()
    columns = a.columns.split(",")
    if a.cold:
        evict(a.file)

    def materialise(fetched) -> Rows:
        fetched = fetched.to_memory()
        return Rows(fetched.X, {c: fetched.obs[c].values for c in columns})

    start = time.perf_counter()
    data = anndata.read_h5ad(a.file, backed="r")
    open_s = time.perf_counter() - start
    dataset = scDataset(
        data, BlockShuffling(block_size=a.block), batch_size=a.batch, fetch_factor=a.fetch, fetch_transform=materialise, seed=0,
    )
    loader = DataLoader(dataset, batch_size=None, num_workers=0, collate_fn=lambda batch: batch)
    meter = Meter()
    done = (0, 0.0, 0.0)
    while done[1] < a.seconds:
        before = meter.rows
        for batch in loader:
            codes = [batch.columns[c].codes for c in columns]
            meter.add(batch.x.data, batch.x.indices, codes[0])
            for column in codes[1:]:
                column.sum()
            if (meter.rows - before) % (a.batch * a.fetch) == 0:
                done = (meter.rows, meter.elapsed(), meter.own_cpu())
                if done[1] >= a.seconds:
                    break
        else:
            done = (meter.rows, meter.elapsed(), meter.own_cpu())
    config = {"block": a.block, "fetch_factor": a.fetch, "batch": a.batch, "workers": 0}
    emit("scdataset", version("scDataset"), a.file, config, meter, *done, open_s, own_peak_gb())
    # Threads of torch and HDF5 have nothing left to say.
    os._exit(0)


if __name__ == "__main__":
    main()
