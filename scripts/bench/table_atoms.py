#!/usr/bin/env python3
"""Makes a markdown table of the results of a run of scripts/bench_atoms.sh.

usage: table_atoms.py RESULTS.jsonl [--write FILE.md]
With --write the table replaces what stands between the two marker comments of the file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median

from table import machine_name, publish, spread

BEGIN, END = "<!-- bench_atoms.sh: begin -->", "<!-- bench_atoms.sh: end -->"
CASES = {
    "none": "64 atoms, not compressed", "zstd": "64 atoms, zstd", "qm9": "QM9", "cold": "64 atoms, not compressed, cold",
}
# Cases that are compared with the peer's rates in another one: the same molecules.
SAME_MOLECULES = {"single": ("64 atoms, not compressed, `--block-size 1`", "none")}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("results", type=Path)
    p.add_argument("--write", type=Path)
    a = p.parse_args()
    results = [json.loads(line) for line in a.results.read_text().splitlines()]
    text = "\n\n".join([about(results), rates(results)])
    publish(text, a.write, BEGIN, END)


def about(results: list[dict]) -> str:
    loads = [r["load1"] for r in results]
    versions = sorted({f"{'atompack-db' if r['program'].startswith('flat') else r['program']} {r['version']}" for r in results})
    rounds = len({r["round"] for r in results})
    return f"{machine_name()}; load {min(loads):.1f}-{max(loads):.1f}; {', '.join(versions)}. {rounds} round{'s' * (rounds > 1)}: median (low-high)."


def rates(results: list[dict]) -> str:
    """Molecules per second, and the ratio to the peer's best setting, of rates of the same round."""
    lines = ["| molecules | shufflefs, molecules/s | atompack, its best | times |", "| --- | --- | --- | --- |"]
    for case, (label, peer_case) in ({k: (v, k) for k, v in CASES.items()} | SAME_MOLECULES).items():
        mine = {r["round"]: r["rows_per_s"] for r in results if r["case"] == case and r["program"] == "shufflefs"}
        peers: dict[tuple, dict[int, float]] = {}
        for r in results:
            if r["case"] == peer_case and r["program"].startswith("flat"):
                peers.setdefault((r["program"], r["threads"]), {})[r["round"]] = r["rows_per_s"]
        if not mine or not peers:
            continue
        (call, threads), best = max(peers.items(), key=lambda item: median(item[1].values()))
        ratios = [mine[k] / best[k] for k in sorted(mine.keys() & best.keys())]
        setting = f"{call.removeprefix('flat')} per call, {threads or 'all'} thread{'s' * (threads != '1')}"
        lines.append(
            f"| {label} | {spread(list(mine.values()), ',.0f')} | {spread(list(best.values()), ',.0f')} ({setting}) | {spread(ratios, '.1f')} |"
        )
    ase = {r["round"]: r["rows_per_s"] for r in results if r["program"] == "ase"}
    mine = {r["round"]: r["rows_per_s"] for r in results if r["case"] == "none" and r["program"] == "shufflefs"}
    if ase and mine:
        ratios = [mine[k] / ase[k] for k in sorted(mine.keys() & ase.keys())]
        lines += ["", f"ASE's database (SQLite, 20,000 of them): {spread(list(ase.values()), ',.0f')} molecules/s; shufflefs times {spread(ratios, ',.0f')}."]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
