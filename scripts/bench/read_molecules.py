#!/usr/bin/env python3
"""Reads molecules through one program and adds up every value that arrives. One JSON line.

usage: read_molecules.py PROGRAM FILE.atp [--molecules N] [--seconds S] [--cold] [--binary SHUFFLEFS] [--block-size auto]
  shufflefs    a mount of its own, epoch after epoch, batches of 4,096, each read into one reused buffer at a page boundary
  flat256, flat4096   atompack's get_molecules_flat over a random order, its fastest call (RAYON_NUM_THREADS says with how many threads)
  ase          ase.db, rows in random order; the database of the first 20,000 molecules is made beside the file, once
  --molecules  stop after so many; --seconds: stop then (the peers: at the latest after all of them); --cold: evict the file before
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

from measuring import evict
from read_mount import Server, readinto

ASE_MOLECULES = 20_000
FIELDS = ("positions", "forces", "energy", "atomic_numbers")


class Meter:
    """Counts molecules and adds up their values."""

    def __init__(self, molecules: int, seconds: float):
        self.molecules, self.seconds = molecules, seconds
        self.rows, self.sum, self.start = 0, 0.0, time.perf_counter()

    def add(self, arrays, rows: int) -> bool:
        """One batch; false if it is enough."""
        for array in arrays:
            self.sum += float(np.sum(array))
        self.rows += rows
        return self.rows < self.molecules and self.elapsed() < self.seconds

    def elapsed(self) -> float:
        return time.perf_counter() - self.start


def read_shufflefs(a, meter_of) -> Meter:
    with Server(a.binary, a.file, ["--memory", "2G", "--batch-size", "4096", "--block-size", a.block_size]) as server:
        names = Path(f"{server.mnt}/epoch-00000/batches.txt").read_text().split()
        largest = max(os.stat(f"{server.mnt}/epoch-00000/{name}").st_size for name in names)
        # Another epoch has other batches, of about the same size.
        load = readinto(2 * largest)
        meter = meter_of()
        for path in (f"{server.mnt}/epoch-{epoch:05}/{name}" for epoch in itertools.count() for name in names):
            views = load(path)
            if not meter.add((views[k] for k in FIELDS if k in views), len(views["n_atoms"])):
                break
        return meter


def read_flat(a, meter_of, size: int) -> Meter:
    import atompack

    db = atompack.Database.open(a.file)
    order = np.random.default_rng(1).permutation(len(db)).tolist()
    meter = meter_of()
    for start in range(0, len(order), size):
        index = order[start : start + size]
        flat = db.get_molecules_flat(index)
        if not meter.add((flat[k] for k in FIELDS if k in flat), len(index)):
            break
    return meter


def read_ase(a, meter_of) -> Meter:
    import ase.db

    path = Path(a.file + ".ase.db")
    if not path.exists():
        make_ase(a.file, path)
    with ase.db.connect(path) as db:
        order = np.random.default_rng(1).permutation(len(db)) + 1
        meter = meter_of()
        for i in order.tolist():
            row = db.get(i)
            arrays = [row.positions, row.numbers] + [row[k] for k in ("forces", "energy") if k in row]
            if not meter.add(arrays, 1):
                break
        return meter


def make_ase(source: str, path: Path) -> None:
    import ase.db
    import atompack
    from ase import Atoms
    from ase.calculators.singlepoint import SinglePointCalculator

    molecules = atompack.Database.open(source)
    part = path.with_suffix(".part.db")
    part.unlink(missing_ok=True)
    with ase.db.connect(part) as db:
        for i in range(min(ASE_MOLECULES, len(molecules))):
            m = molecules[i]
            atoms = Atoms(numbers=m.atomic_numbers, positions=m.positions)
            results = {k: getattr(m, k) for k in ("energy", "forces") if getattr(m, k) is not None}
            atoms.calc = SinglePointCalculator(atoms, **results)
            db.write(atoms)
    part.rename(path)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program", choices=["shufflefs", "flat256", "flat4096", "ase"])
    p.add_argument("file")
    p.add_argument("--molecules", type=int, default=1 << 62)
    p.add_argument("--seconds", type=float, default=float("inf"))
    p.add_argument("--cold", action="store_true")
    p.add_argument("--binary", default="shufflefs")
    p.add_argument("--block-size", default="auto", help="of the mount")
    a = p.parse_args()
    if a.cold:
        evict(a.file)
    meter_of = lambda: Meter(a.molecules, a.seconds)  # noqa: E731
    match a.program:
        case "shufflefs":
            meter = read_shufflefs(a, meter_of)
            found = subprocess.run([a.binary, "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
        case "ase":
            meter, found = read_ase(a, meter_of), version("ase")
        case _:
            meter, found = read_flat(a, meter_of, int(a.program.removeprefix("flat"))), version("atompack-db")
    seconds = meter.elapsed()
    print(json.dumps({
        "program": a.program, "version": found, "data": os.path.basename(a.file), "threads": os.environ.get("RAYON_NUM_THREADS"),
        "cold": a.cold, "rows": meter.rows, "seconds": round(seconds, 3), "rows_per_s": round(meter.rows / seconds, 1),
        "sum": meter.sum, "cpus": os.cpu_count(), "load1": round(os.getloadavg()[0], 2),
    }), flush=True)


if __name__ == "__main__":
    main()
