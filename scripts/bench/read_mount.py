#!/usr/bin/env python3
"""Mounts a file afresh, reads all windows of epoch 0 in one process, adds up every value, unmounts. One JSON line.

usage: read_mount.py SHUFFLEFS FILE.h5ad --reader readinto|ahead|load_file [--memory 2G] [--columns plate,drug,cell_line] [--cold] [--exported DIR] [-o OPTION=VALUE ...]
  readinto   readinto() of one reused buffer at a page boundary, tensors as views of it: the reader that README.md recommends
  ahead      the same, with a thread that reads the next file into a second buffer meanwhile
  load_file  safetensors.numpy.load_file
  -o         another option of the mount, such as -o x-dtype=uint16; values are then widened to float32, indices to int32
  --cold     drops the file from the page cache before
  --exported DIR  reads files that `shufflefs export` wrote to DIR and mounts nothing: what the client alone takes
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import mmap
import os
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from measuring import Meter, emit, evict, own_peak_gb

DTYPES = {"F32": np.float32, "F64": np.float64, "I32": np.int32, "I64": np.int64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8}


class Server:
    """`with Server(...) as mnt`: a mount in the foreground of a child process."""

    def __init__(self, binary: str, source: str, options: list[str]):
        self.binary, self.source, self.options = binary, source, options
        self.folder = Path(tempfile.mkdtemp(prefix="shufflefs-bench-"))
        self.mnt = self.folder / "mnt"

    def __enter__(self) -> Server:
        start = time.perf_counter()
        command = [self.binary, "mount", "--foreground", *self.options, self.source, str(self.mnt)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        # The first line of the summary comes when the mount answers.
        if not self.process.stdout.readline():
            raise SystemExit(f"{self.source}: not mounted")
        self.open_s = time.perf_counter() - start
        return self

    def __exit__(self, *_) -> None:
        self.process.terminate()
        self.process.wait(30)
        with contextlib.suppress(OSError):
            self.mnt.rmdir()
        self.folder.rmdir()

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def values_copied(self) -> int:
        """Bytes of X that were put into batches."""
        return json.loads((self.mnt / ".shufflefs/status.json").read_text())["counters"]["bytes_copied"]

    def peak_gb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e9


class Exported:
    """A folder with the files of a mount, and nobody who serves them."""

    open_s = 0.0

    def __init__(self, folder: Path):
        self.mnt = folder

    def __enter__(self) -> Exported:
        return self

    def __exit__(self, *_) -> None:
        pass

    def cpu_seconds(self) -> float:
        return 0.0

    def values_copied(self) -> int:
        return 0

    def peak_gb(self) -> float:
        return 0.0


def private_memory(n_bytes: int) -> mmap.mmap:
    """Memory that begins at a page boundary."""
    return mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def readinto(n_bytes: int):
    """Reads files of at most so many bytes as README.md does: into one buffer that begins at a page boundary."""
    view = memoryview(private_memory(n_bytes))

    def load(path: str) -> dict[str, np.ndarray]:
        with open(path, "rb", buffering=0) as f:
            n = f.readinto(view)
        start = 8 + int.from_bytes(view[:8], "little")
        header = json.loads(bytes(view[8:start]))
        tensors = {k: t for k, t in header.items() if k[:2] != "__"}
        end = max(t["data_offsets"][1] for t in header.values() if "data_offsets" in t)
        assert n == start + end, f"{path}: {n} bytes, expected {start + end}"
        return {
            k: np.frombuffer(view[start + t["data_offsets"][0] : start + t["data_offsets"][1]], DTYPES[t["dtype"]])
            for k, t in tensors.items() if t["dtype"] in DTYPES
        }

    return load


def one_ahead(load, paths):
    """`load` of every path, by a thread that is one path ahead."""
    with ThreadPoolExecutor(1) as pool:
        before = None
        for path in paths:
            following = pool.submit(load, path)
            if before is not None:
                yield before.result()
            before = following
        if before is not None:
            yield before.result()


def batches_of(reader: str, paths: list[str], largest: int):
    """The batches of all paths, none of which is larger, by one of the readers."""
    match reader:
        case "readinto":
            return map(readinto(largest), paths)
        case "ahead":
            # The buffer of the batch in use, and that of the next one.
            loads = itertools.cycle([readinto(largest) for _ in range(2)])
            return one_ahead(lambda path: next(loads)(path), paths)
    from safetensors.numpy import load_file

    return map(load_file, paths)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("binary")
    p.add_argument("file")
    p.add_argument("--reader", choices=["readinto", "ahead", "load_file"], default="readinto")
    p.add_argument("--memory", default="2G")
    p.add_argument("--columns", default="plate,drug,cell_line")
    p.add_argument("-o", dest="options", action="append", default=[])
    p.add_argument("--cold", action="store_true")
    p.add_argument("--exported", type=Path)
    a = p.parse_args()
    if a.cold:
        evict(a.file)
    version = subprocess.run([a.binary, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    more = [word for option in a.options for word in ("--" + option).split("=", 1)]
    if a.exported:
        server = Exported(a.exported)
    else:
        server = Server(a.binary, a.file, ["--memory", a.memory, "--obs", a.columns, *more])
    with server:
        folder = f"{server.mnt}/epoch-00000"
        names = Path(folder, "batches.txt").read_text().split()
        dataset = json.loads((server.mnt / "dataset.json").read_text())
        largest = max(os.stat(f"{folder}/{name}").st_size for name in names)
        paths = [f"{folder}/{name}" for name in names]
        batches = batches_of(a.reader, paths, largest)
        columns = [f"obs.{c}.codes" for c in a.columns.split(",")]
        rows, served, cpu = [], 0, server.cpu_seconds()
        meter = Meter()
        for t in batches:
            data, indices = t["X.data"], t["X.indices"]
            served += data.nbytes + indices.nbytes
            if data.dtype.itemsize < 4:
                data, indices = data.astype(np.float32), indices.astype(np.int32)
            meter.add(data, indices, t[columns[0]])
            for column in columns[1:]:
                t[column].sum()
            rows.append(np.array(t["row"]))
        # The last window is read while the mount assembles the first one of the next epoch, which is not counted as read.
        seconds, own_cpu, copied = meter.elapsed(), meter.own_cpu(), server.values_copied()
        mount_cpu_s = server.cpu_seconds() - cpu
        cpu_s, ahead = own_cpu + mount_cpu_s, max(copied / served - 1, 0)
        rows = np.sort(np.concatenate(rows))
        assert np.array_equal(rows, np.arange(dataset["n_rows"])), "not every row exactly once"
        order = dataset["order"]
        config = {
            "mode": a.reader, "batch": order["batch_size"], "fetch_factor": order["fetch_factor"],
            "blocks_per_window": order["blocks_per_window"], "memory": a.memory, "options": a.options,
            "mount_cpu_s": round(mount_cpu_s, 3), "assembled_ahead": round(ahead, 4),
        }
        peak = own_peak_gb() + server.peak_gb()
        emit("shufflefs", version, a.file, config, meter, meter.rows, seconds, cpu_s, server.open_s, peak)


if __name__ == "__main__":
    main()
