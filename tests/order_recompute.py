#!/usr/bin/env python3
"""Recomputes orders from their definition and compares them with recorded ones. Standard library only.

    python3 tests/order_recompute.py tests/data/order/golden.json

Exits with 0 if every recorded order is right, else with 1 after naming what differs. The two regions between "begin" and
"end" are the code that docs/ORDER.md prints; the rest reads and compares.
"""
import json
import sys

# begin order
M = 0xFFFFFFFF  # 32-bit words


def words(seed, epoch, domain, index):
    """ChaCha8 as a stream of 32-bit words. The key is four little-endian u64; counter (64 bits) and nonce begin at 0."""
    key = [part >> shift & M for part in (seed, epoch, domain, index) for shift in (0, 32)]
    quarters = [[4 * row + (column + row * turn) % 4 for row in range(4)] for turn in (0, 1) for column in range(4)]
    for counter in range(1 << 64):
        start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *key, counter & M, counter >> 32, 0, 0]
        x = start[:]
        for a, b, c, d in quarters * 4:
            for i, j, k, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[i] = (x[i] + x[j]) & M
                x[k] ^= x[i]
                x[k] = (x[k] << bits | x[k] >> 32 - bits) & M
        yield from ((u + v) & M for u, v in zip(x, start))


def draw(stream, n):
    """A uniform integer in [0, n), n <= 2**32."""
    while True:
        product = next(stream) * n
        if product & M >= 2**32 % n:
            return product >> 32


def shuffle(items, stream):
    for i in range(len(items) - 1, 0, -1):
        j = draw(stream, i + 1)
        items[i], items[j] = items[j], items[i]


def epoch_batches(blocks, sources, m, f, seed, epoch, tail):
    """blocks: blocks.npy as a list; sources: (first row, end, b) with b = 0 where a source is cut along its chunks."""
    cuts = [block for block in blocks for first, end, b in sources if first <= block < end and b == 0]
    for s, (first, end, b) in enumerate(sources):
        if b and first < end:
            cuts += {first, *range(first + draw(words(seed, epoch, 3, s), b), end, b)}
    cuts = sorted(cuts) + [sources[-1][1]]
    order = list(range(len(cuts) - 1))
    shuffle(order, words(seed, epoch, 1, 0))
    rows = [row for block in order for row in range(cuts[block], cuts[block + 1])]
    for w, at in enumerate(range(0, len(rows), m * f)):
        window = rows[at : at + m * f]
        shuffle(window, words(seed, epoch, 2, w))
        rows[at : at + m * f] = window
    if tail == "drop":
        rows = rows[: len(rows) // m * m]
    if tail == "pad":
        rows = [rows[i % len(rows)] for i in range(-(-len(rows) // m) * m)]
    return [rows[at : at + m] for at in range(0, len(rows), m)]
# end order


# begin shares
def given(items, parts, policy, again):
    """What of a list is given to so many parts, and how much to each."""
    each = len(items) // parts if policy == "drop" else -(-len(items) // parts)
    items = items + [again[i % len(again)] for i in range(each * parts - len(items))]
    return items[: each * parts], each


def share(lengths, m, f, policy, host=None, rank=None):
    """Batch numbers of host-h-of-H, host = (h, H), and rank-r-of-R, rank = (r, R). lengths: rows of every batch."""
    every = list(range(len(lengths)))
    full = [k for k in every if lengths[k] == m]
    items = every if policy == "repeat" or not (host or rank) else full
    if host:
        windows = [full[at : at + f] for at in range(0, len(full) // f * f, f)]
        windows = windows[: len(windows) // host[1] * host[1]]
        rest, run = given(items[len(windows) * f :], host[1], policy, every)
        items = [k for window in windows[host[0] :: host[1]] for k in window]
        items += rest[host[0] * run : (host[0] + 1) * run]
    if rank:
        items = given(items, rank[1], policy, items)[0][rank[0] :: rank[1]]
    return items
# end shares


def largest_window(sources):
    """W_max: rows in 768 MiB of X as stored, at most 2^24, at least 1."""
    n_rows, x_bytes = sources[-1]["rows"][1], sum(source["x_bytes"] for source in sources)
    return max(1, min(1 << 24, (3 << 28) * n_rows // x_bytes)) if x_bytes else 1 << 24


def automatic_blocks(sources, block_size):
    """First rows of the blocks, and rows of a block per source (0 along chunks), from what the stores say."""
    n_rows, x_bytes = sources[-1]["rows"][1], sum(source["x_bytes"] for source in sources)
    b = block_size or next(b for b in (1, 2, 4, 8, 16, 32, 64) if b == 64 or b * x_bytes >= n_rows * 256 * 1024)
    longest = max(1, largest_window(sources) // 256)
    first_rows, block_rows = [], []
    for source in sources:
        (first, end), chunks = source["rows"], source["chunk_first_rows"]
        if block_size or chunks is None:
            first_rows += range(first, end, b)
            block_rows.append(b)
            continue
        k = 1
        while k < len(chunks) and (end - first) < 16 * len(chunks[::k]):
            k += 1
        for start, stop in zip(chunks[::k], chunks[::k][1:] + [end]):
            parts = -(-(stop - start) // longest)
            first_rows += [start + part * (stop - start) // parts for part in range(parts)]
        block_rows.append(0)
    return first_rows, block_rows


def default_fetch_factor(sources, n_blocks, m, n_wanted):
    n_rows = sources[-1]["rows"][1]
    f = next(f for f in range(1, 1 << 24) if f * m * n_blocks >= n_wanted * n_rows or f * m >= largest_window(sources))
    return max(1, min(f, largest_window(sources) // m))


def folded(rows):
    """One number that depends on every row and its place."""
    total = 0
    for row in rows:
        total = (total * 6364136223846793005 + row + 1) % (1 << 64)
    return total


def differences(case):
    """Yields what is recorded wrongly in one case."""
    sources, m, f = case["sources"], case["batch_size"], case["fetch_factor"]
    blocks, block_rows = automatic_blocks(sources, case["block_size"])
    if (blocks, block_rows) != (case["blocks"], case["block_rows"]):
        yield "blocks"
    found = [default_fetch_factor(sources, len(blocks), m, n_wanted) for n_wanted in (1024, 256)]
    if found != case["default_fetch_factors"]:
        yield f"default fetch factors {found}"
    ranges = [(*source["rows"], b) for source, b in zip(sources, case["block_rows"])]
    for recorded in case["epochs"]:
        batches = epoch_batches(case["blocks"], ranges, m, f, case["seed"], recorded["epoch"], case["tail"])
        if [len(batch) for batch in batches] != recorded["lengths"]:
            yield f"lengths of the batches of epoch {recorded['epoch']}"
        if folded(row for batch in batches for row in batch) != recorded["folded"]:
            yield f"rows of epoch {recorded['epoch']}"
        if "batches" in recorded and recorded["batches"] != batches:
            yield f"batches of epoch {recorded['epoch']}"
    for recorded in case["shares"]:
        lengths, policy = case["epochs"][0]["lengths"], recorded["policy"]
        if share(lengths, m, f, policy, recorded["host"], recorded["rank"]) != recorded["batches"]:
            yield f"host {recorded['host']} rank {recorded['rank']} {policy}"


def main(path):
    with open(path, encoding="utf-8") as file:
        cases = json.load(file)
    wrong = [f"{case['name']}: {what}" for case in cases for what in differences(case)]
    for line in wrong:
        print(f"{path}: {line} differs", file=sys.stderr)
    if not cases:
        print(f"{path}: no cases", file=sys.stderr)
    return 1 if wrong or not cases else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: order_recompute.py GOLDEN.json")
    sys.exit(main(sys.argv[1]))
