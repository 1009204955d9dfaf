#!/usr/bin/env python3
"""Reads epoch 0 of a fresh mount as training loops do, and adds up every value in the consuming process. One JSON line per mode and round.

usage: read_loader.py SHUFFLEFS FILE.h5ad [--modes 0,1,2,4,ahead,kept,kept-ahead] [--memory 2G] [--rounds 3]
  0, 1, 2, 4   torch's DataLoader with so many workers, and safetensors.torch.load_file
  ahead        load_file by one thread that reads ahead
  kept         into one buffer that is kept, tensors as views of it
  kept-ahead   the same with two buffers and a thread that reads ahead
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader, Dataset

from read_mount import Server, batches_of, one_ahead


class Files(Dataset):
    """One batch file per item."""

    def __init__(self, paths: list[str]):
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return load_file(self.paths[i])


def batches(mode: str, paths: list[str]):
    if mode == "ahead":
        return one_ahead(load_file, paths)
    if mode.startswith("kept"):
        kept = batches_of("ahead" if mode == "kept-ahead" else "readinto", paths, max(os.stat(path).st_size for path in paths))
        return ({name: torch.from_numpy(array) for name, array in batch.items()} for batch in kept)
    return DataLoader(Files(paths), batch_size=None, shuffle=False, num_workers=int(mode))


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("binary")
    p.add_argument("file")
    p.add_argument("--modes", default="0,1,2,4,ahead,kept,kept-ahead")
    p.add_argument("--memory", default="2G")
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    torch.set_num_threads(1)
    for round_ in range(1, a.rounds + 1):
        for mode in a.modes.split(","):
            with Server(a.binary, a.file, ["--memory", a.memory, "--obs", "plate,drug,cell_line"]) as server:
                folder = f"{server.mnt}/epoch-00000"
                paths = [f"{folder}/{name}" for name in Path(folder, "batches.txt").read_text().split()]
                rows, total, start = 0, 0.0, time.perf_counter()
                for t in batches(mode, paths):
                    total += float(t["X.data"].sum()) + int(t["X.indices"].sum())
                    rows += len(t["row"])
                seconds = time.perf_counter() - start
                print(json.dumps({
                    "data": os.path.basename(a.file), "mode": mode, "round": round_, "rows": rows, "sum": total,
                    "rows_per_s": round(rows / seconds, 1), "load1": round(os.getloadavg()[0], 2),
                }), flush=True)


if __name__ == "__main__":
    main()
