#!/usr/bin/env python3
"""Reads finished batches again and again: one process and two, and eight threads on one file.

usage: read_again.py SHUFFLEFS FILE.h5ad [--io passthrough,direct,cached] [--files 64] [--seconds 3] [--memory 2G]
The files are opened first and kept open, so that nothing is assembled while it is measured. Per serving mode: bytes per second by pread and
by mmap (every byte is added up), and the daemon's CPU seconds meanwhile. One JSON line per mode.
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import os
import threading
import time
from pathlib import Path

import numpy as np

from read_mount import Server, private_memory


def add_up(data) -> int:
    words = len(data) // 8
    return int(np.frombuffer(data, np.uint64, words).sum())


def by_pread(paths: list[str], until: float) -> int:
    done, buffer = 0, private_memory(max(os.stat(p).st_size for p in paths))
    view = memoryview(buffer)
    while True:
        for path in paths:
            with open(path, "rb", buffering=0) as f:
                n = f.readinto(view)
            add_up(view[:n])
            done += n
            if time.perf_counter() > until:
                return done


def by_mmap(paths: list[str], until: float) -> int:
    done = 0
    while True:
        for path in paths:
            with open(path, "rb", buffering=0) as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
                words = np.frombuffer(m, np.uint64, len(m) // 8)
                int(words.sum())
                done += len(m)
                del words
            if time.perf_counter() > until:
                return done


def worker(read, paths, seconds, barrier, results) -> None:
    read(paths, 0)  # the first pass warms up
    barrier.wait()
    results.put(read(paths, time.perf_counter() + seconds))


def rate(read, paths: list[str], seconds: float, n: int, server: Server) -> tuple[float, float]:
    """(bytes per second of all n processes, CPU seconds of the daemon)."""
    barrier, results = multiprocessing.Barrier(n + 1), multiprocessing.Queue()
    workers = [multiprocessing.Process(target=worker, args=(read, paths, seconds, barrier, results)) for _ in range(n)]
    for w in workers:
        w.start()
    barrier.wait()
    cpu = server.cpu_seconds()
    done = sum(results.get() for _ in workers)
    for w in workers:
        w.join()
    return done / seconds, server.cpu_seconds() - cpu


def threads_on_one_file(path: str, n: int, seconds: float) -> float:
    """Bytes per second of n threads that pread one open file in pieces of 1 MiB."""
    with open(path, "rb", buffering=0) as f:
        size, until, done = os.fstat(f.fileno()).st_size, time.perf_counter() + seconds, [0] * n

        def read(i: int) -> None:
            buffer = private_memory(1 << 20)
            offset = i * size // n
            while time.perf_counter() < until:
                got = os.preadv(f.fileno(), [buffer], offset)
                done[i] += got
                offset = offset + got if got else 0

        threads = [threading.Thread(target=read, args=(i,)) for i in range(n)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    return sum(done) / seconds


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("binary")
    p.add_argument("file")
    p.add_argument("--io", default="passthrough,direct,cached")
    p.add_argument("--files", type=int, default=64)
    p.add_argument("--seconds", type=float, default=3)
    p.add_argument("--memory", default="2G")
    a = p.parse_args()
    for io in a.io.split(","):
        with Server(a.binary, a.file, ["--memory", a.memory, "--io", io, "--obs", "none"]) as server:
            folder = f"{server.mnt}/epoch-00000"
            paths = [f"{folder}/{n}" for n in Path(folder, "batches.txt").read_text().split()[: a.files]]
            held = [os.open(path, os.O_RDONLY) for path in paths]
            time.sleep(1)
            result = {"data": os.path.basename(a.file), "io": io, "bytes": sum(os.fstat(f).st_size for f in held)}
            for name, read in [("pread", by_pread), ("mmap", by_mmap)]:
                for n in [1, 2]:
                    gbs, cpu = rate(read, paths, a.seconds, n, server)
                    result[f"{name}_{n}_gb_s"], result[f"{name}_{n}_daemon_cpu_s"] = round(gbs / 1e9, 2), round(cpu, 2)
                result[f"{name}_ratio"] = round(result[f"{name}_2_gb_s"] / result[f"{name}_1_gb_s"], 2)
            for n in [1, 8]:
                result[f"one_file_{n}_threads_gb_s"] = round(threads_on_one_file(paths[0], n, a.seconds) / 1e9, 2)
            result["load1"] = round(os.getloadavg()[0], 2)
            print(json.dumps(result), flush=True)
            for f in held:
                os.close(f)


if __name__ == "__main__":
    main()
