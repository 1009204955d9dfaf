"""What the clients share: a meter, eviction, peak memory, the entropy of a label in small batches, one JSON line per result."""

from __future__ import annotations

import json
import os
import resource
import time

import numpy as np

QUALITY_BATCH = 64


class Meter:
    """Counts rows, and adds up every value of X that arrived, so that none is a promise only."""

    def __init__(self) -> None:
        self.rows = self.nnz = self.index_sum = 0
        self.value_sum = 0.0
        self.first_batch_s: float | None = None
        self.labels: list[np.ndarray] = []
        self.start, self.cpu = time.perf_counter(), time.process_time()

    def add(self, data: np.ndarray, indices: np.ndarray, labels: np.ndarray) -> None:
        """One batch: the values and the indices of X, and the codes of one column, one per row."""
        self.value_sum += float(np.sum(data))
        self.index_sum += int(np.sum(indices))
        self.nnz += data.size
        self.rows += labels.size
        self.labels.append(np.array(labels))
        if self.first_batch_s is None:
            self.first_batch_s = time.perf_counter() - self.start

    def elapsed(self) -> float:
        return time.perf_counter() - self.start

    def own_cpu(self) -> float:
        return time.process_time() - self.cpu


def entropy(labels: list[np.ndarray]) -> dict:
    """Mean and standard deviation, in bits, of the entropy of the label in batches of QUALITY_BATCH rows.

    Larger batches are cut: rows of a window are shuffled among each other, so a part of a batch is a smaller batch.
    """
    parts = [batch[i : i + QUALITY_BATCH] for batch in labels for i in range(0, batch.size, QUALITY_BATCH)]
    full = np.array([part for part in parts if part.size == QUALITY_BATCH], dtype=np.int64)
    counts = np.zeros((len(full), int(full.max()) + 1))
    np.add.at(counts, (np.arange(len(full))[:, None], full), 1)
    p = counts / QUALITY_BATCH
    bits = -(p * np.log2(p, out=np.zeros_like(p), where=p > 0)).sum(1)
    return {"entropy": round(float(bits.mean()), 4), "entropy_sd": round(float(bits.std()), 4), "entropy_n": len(bits)}


def evict(path: str) -> None:
    """Drops a file from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def own_peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def emit(bench: str, version: str, data: str, config: dict, meter: Meter, rows: int, seconds: float, cpu_s: float,
         open_s: float, rss_gb: float) -> None:
    """The field names are those of `shufflefs bench --json`."""
    assert meter.first_batch_s is not None, "no batch arrived"
    print(json.dumps({
        "bench": bench, "peer_version": version, "data": os.path.basename(data), "config": config, "rows": rows,
        "seconds": round(seconds, 3), "rows_per_s": round(rows / seconds, 1), "cpu_s": round(cpu_s, 3),
        "rows_per_cpu_s": round(rows / cpu_s, 1), "first_batch_s": round(meter.first_batch_s, 4), "open_s": round(open_s, 3),
        "rss_gb": round(rss_gb, 3), "nnz_seen": meter.nnz, "index_sum": meter.index_sum, **entropy(meter.labels),
        "cpus": os.cpu_count(), "load1": round(os.getloadavg()[0], 2),
    }), flush=True)
