#!/usr/bin/env python3
"""Writes an .h5ad again as zarr v3, as anndata does by itself from 0.13 on (sharded, zstd).

usage: make_zarr.py IN.h5ad OUT.zarr        an existing store is kept
"""

from __future__ import annotations

import os
import sys

import anndata


def main() -> None:
    source, target = sys.argv[1:]
    if os.path.exists(target):
        return
    version = tuple(int(n) for n in anndata.__version__.split(".")[:2])
    assert version >= (0, 13), f"anndata {anndata.__version__} writes other zarr stores by itself"
    anndata.read_h5ad(source).write_zarr(f"{target}.part")
    os.rename(f"{target}.part", target)


if __name__ == "__main__":
    main()
