#!/usr/bin/env python3
"""Reads a collection of annbatch, or one zarr store, through annbatch.Loader for some seconds and adds up every value. One JSON line.

usage: read_annbatch.py STORE.zarr [--chunk 512] [--preload 32] [--batch 4096] [--seconds 8] [--columns plate,drug,cell_line]
The rate counts whole preloads, from the first one on. Rows are CSR with the asked columns, decoded by the zarrs pipeline, on one
process with its threads. Needs Python >= 3.12.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings

warnings.filterwarnings("ignore")

import anndata  # noqa: E402
import annbatch  # noqa: E402
import numpy as np  # noqa: E402
import zarr  # noqa: E402
import zarrs  # noqa: E402, F401

from measuring import Meter, emit, own_peak_gb  # noqa: E402


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("store")
    p.add_argument("--chunk", type=int, default=512)
    p.add_argument("--preload", type=int, default=32)
    p.add_argument("--batch", type=int, default=4096)
    p.add_argument("--seconds", type=float, default=8)
    p.add_argument("--columns", default="plate,drug,cell_line")
    a = p.parse_args()
    columns = a.columns.split(",")
    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})

    def load(group: zarr.Group) -> anndata.AnnData:
        obs = anndata.io.read_elem(group["obs"])[columns]
        return anndata.AnnData(X=anndata.io.sparse_dataset(group["X"]), obs=obs)

    start = time.perf_counter()
    loader = annbatch.Loader(
        chunk_size=a.chunk, preload_nchunks=a.preload, batch_size=a.batch, shuffle=True, preload_to_gpu=False, to=None,
        rng=np.random.default_rng(0),
    )
    if zarr.open_group(a.store, mode="r").attrs.get("encoding-type") == "annbatch-preshuffled":
        loader.use_collection(annbatch.DatasetCollection(a.store, mode="r"), load_adata=load)
    else:
        loader.add_adata(load(zarr.open_group(a.store, mode="r")))
    open_s = time.perf_counter() - start
    meter = Meter()
    done = (0, 0.0, 0.0)
    while done[1] < a.seconds:
        before = meter.rows
        for batch in loader:
            codes = [batch["obs"][c].cat.codes.to_numpy() for c in columns]
            meter.add(batch["X"].data, batch["X"].indices, codes[0])
            for column in codes[1:]:
                column.sum()
            if (meter.rows - before) % (a.chunk * a.preload) == 0:
                done = (meter.rows, meter.elapsed(), meter.own_cpu())
                if done[1] >= a.seconds:
                    break
        else:
            done = (meter.rows, meter.elapsed(), meter.own_cpu())
    config = {"block": a.chunk, "preload": a.preload, "batch": a.batch}
    emit("annbatch", annbatch.__version__, a.store, config, meter, *done, open_s, own_peak_gb())
    os._exit(0)


if __name__ == "__main__":
    main()
