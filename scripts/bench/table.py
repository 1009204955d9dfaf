#!/usr/bin/env python3
"""Makes markdown tables of the results of a run of scripts/bench.sh.

usage: table.py RESULTS.jsonl... [--write FILE.md]      several: of different files, each with its own peers
With --write the tables replace what stands between the two marker comments of the file.
Each line of RESULTS has `round`, `file` and `case` beside the fields that the clients print.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path
from statistics import median

BEGIN, END = "<!-- bench.sh: begin -->", "<!-- bench.sh: end -->"
# Who is compared, and with whom.
OURS, PEERS = ["readinto", "ahead", "load_file", "narrow"], ["scDataset best", "scDataset b=16 f=256", "annbatch best", "annbatch README", "annbatch mixed"]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("results", type=Path, nargs="+")
    p.add_argument("--write", type=Path)
    a = p.parse_args()
    results = [json.loads(line) for path in a.results for line in path.read_text().splitlines()]
    text = "\n\n".join([machine(results), rates(results), ratios(results), cpu(results), quality(results)])
    publish(text, a.write, BEGIN, END)


def publish(text: str, page: Path | None, begin: str, end: str) -> None:
    """Prints the text, or replaces with it what stands between two lines of a page."""
    if page is None:
        print(text)
        return
    old = page.read_text()
    if old.count(begin) != 1 or old.count(end) != 1:
        raise SystemExit(f"{page}: expected one line {begin} and one line {end}")
    before, after = old.split(begin)[0], old.split(end)[1]
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def in_order(results: list[dict], key: str) -> list[str]:
    return list(dict.fromkeys(r[key] for r in results))


def of(results: list[dict], file: str, case: str) -> list[dict]:
    return [r for r in results if r["file"] == file and r["case"] == case]


def spread(values: list[float], form: str) -> str:
    low, middle, high = (format(v, form) for v in (min(values), median(values), max(values)))
    return middle if low == high else f"{middle} ({low}-{high})"


def machine_name() -> str:
    cpuinfo = Path("/proc/cpuinfo").read_text()
    cpu = next((line.split(":", 1)[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name")), platform.machine())
    memory = int(Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]) / 2**20
    return f"{cpu}, {os.cpu_count()} cores, {memory:.0f} GiB, Linux {platform.release().split('-')[0]}"


def machine(results: list[dict]) -> str:
    loads = [r["load1"] for r in results]
    versions = sorted({f"{r['bench']} {r['peer_version']}" for r in results})
    n_rounds = len(in_order(results, "round"))
    return (
        f"{machine_name()}; load {min(loads):.1f}-{max(loads):.1f}; "
        f"{', '.join(versions)}; page cache warm but where it says cold. {n_rounds} round{'s' * (n_rounds > 1)}: median (low-high)."
    )


def rates(results: list[dict]) -> str:
    lines = [
        "| file | reader | cells/s | cells per CPU-s | first batch, s | peak GB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for file in in_order(results, "file"):
        for case in in_order(results, "case"):
            found = of(results, file, case)
            if not found:
                continue
            first = [r["first_batch_s"] for r in found if r["first_batch_s"] is not None]
            lines.append(
                f"| {file} | {label(found[0])} | {spread([r['rows_per_s'] for r in found], ',.0f')} "
                f"| {spread([r['rows_per_cpu_s'] for r in found], ',.0f')} | {spread(first, '.2f') if first else '-'} "
                f"| {spread([r['rss_gb'] for r in found], '.2f')} |"
            )
    return "\n".join(lines)


def label(result: dict) -> str:
    c = result["config"]
    if result["bench"] == "scdataset":
        return f"scDataset b={c['block']} f={c['fetch_factor']} m={c['batch']}"
    if result["bench"] == "annbatch":
        return f"annbatch chunk={c['block']} preload={c['preload']} m={c['batch']}"
    if c.get("options"):
        return "shufflefs, `readinto` of uint16 values and indices, widened"
    if result["case"] == "client":
        return "the client alone, files on a tmpfs"
    names = {"readinto": "**shufflefs, `readinto`**", "ahead": "shufflefs, `readinto`, one ahead", "load_file": "shufflefs, `load_file`"}
    return names.get(c["mode"], f"`shufflefs bench`, {c['mode']}")


def ratios(results: list[dict]) -> str:
    """Of rates of the same round."""
    lines = ["| file | shufflefs reader | " + " | ".join(f"times {p}" for p in PEERS) + " |", "| --- " * (2 + len(PEERS)) + "|"]
    for file in in_order(results, "file"):
        for ours in OURS:
            mine = {r["round"]: r["rows_per_s"] for r in of(results, file, ours)}
            if not mine:
                continue
            cells = []
            for peer in PEERS:
                theirs = {r["round"]: r["rows_per_s"] for r in of(results, file, peer)}
                both = sorted(mine.keys() & theirs.keys())
                cells.append(spread([mine[r] / theirs[r] for r in both], ".1f") if both else "-")
            lines.append(f"| {file} | `{ours}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cpu(results: list[dict]) -> str:
    """What mount and client take together, and what decoding and the client take each by itself, in one round."""
    lines = [
        "| file | mount and client, CPU us per cell | the same, per cell assembled | decoding alone | client alone | ratio to both |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for file in in_order(results, "file"):
        cases = [of(results, file, case) for case in ("readinto", "bench decode", "client")]
        together, decode, client = ({r["round"]: 1e6 / r["rows_per_cpu_s"] for r in found} for found in cases)
        assembled = {r["round"]: together[r["round"]] - ahead_us(r) for r in cases[0]}
        rounds = sorted(together.keys() & decode.keys() & client.keys())
        if rounds:
            cells = [spread([us[r] for r in rounds], ".1f") for us in (together, assembled, decode, client)]
            ratio = spread([assembled[r] / (decode[r] + client[r]) for r in rounds], ".2f")
            lines.append(f"| {file} | {' | '.join(cells)} | {ratio} |")
    return "\n".join(lines)


def ahead_us(result: dict) -> float:
    """The share per cell read of what the mount spent on cells of the next epoch, which it assembled by the end of this one."""
    c = result["config"]
    per_cell = 1e6 * c.get("mount_cpu_s", 0) / result["rows"]
    return per_cell - per_cell / (1 + c.get("assembled_ahead", 0))


def quality(results: list[dict]) -> str:
    """The entropy of the label does not depend on the round for us (one order), hardly for peers (how far they got)."""
    lines = [
        "| file | order | mean entropy of `plate`, batches of 64, bits | sd | batches |",
        "| --- | --- | --- | --- | --- |",
    ]
    for file in in_order(results, "file"):
        for case in ["readinto", *PEERS]:
            found = of(results, file, case)
            if found:
                longest = max(found, key=lambda r: r["entropy_n"])
                c = longest["config"]
                order = label(longest) if longest["bench"] != "shufflefs" else f"**shufflefs**, {c['blocks_per_window']:.0f} blocks per window"
                lines.append(f"| {file} | {order} | {longest['entropy']:.3f} | {longest['entropy_sd']:.3f} | {longest['entropy_n']:,} |")
    return "\n".join([*lines, "", *verdicts(results)])


def verdicts(results: list[dict]) -> list[str]:
    """Whether batches are as mixed as those of the peer's best shuffle, up to two standard errors of the difference."""
    lines = []
    for file in in_order(results, "file"):
        pair = [max(found, key=lambda r: r["entropy_n"]) for case in ("readinto", PEERS[1]) if (found := of(results, file, case))]
        if len(pair) == 2:  # annbatch's fastest settings are not its best shuffle, and a shuffled store mixes by itself
            ours, peer = pair
            error = sum(r["entropy_sd"] ** 2 / r["entropy_n"] for r in pair) ** 0.5
            is_reached = ours["entropy"] >= peer["entropy"] - 2 * error
            lines.append(
                f"{file}: shufflefs {ours['entropy']:.3f}, {label(peer)} {peer['entropy']:.3f}, standard error of the difference "
                f"{error:.3f}: {'as well mixed or better' if is_reached else '**mixed less**'}.  "
            )
    return lines


if __name__ == "__main__":
    main()
