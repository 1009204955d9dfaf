"""What programs do to a mounted tree: list, copy, map, fork, kill. Ids (s4, m1, ...) are those of the list of bug reports."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gen_stores
import h5ad_writer
from batches import Batch, Pass, load_dataset
from compare import check_batch, check_pass
from mounting import COMMAND_TIMEOUT_S, Mount, is_mounted, python_client, run, shufflefs, wait_until
from truth import Csr, Truth

pytestmark = pytest.mark.usefixtures("fuse")

N_ROWS = 4000
SMALL = ["--batch-size", "64", "--fetch-factor", "4"]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> tuple[Path, Truth]:
    """Larger than the stores of one encoding each: 63 batches in 16 windows under SMALL."""
    path = tmp_path_factory.mktemp("tools") / "cells.h5ad"
    truth = gen_stores.dataset(gen_stores.random_csr(n_rows=N_ROWS, n_vars=1000, seed=9))
    h5ad_writer.write(path, truth, chunks=(4000,), compression="gzip")
    return path, truth


@pytest.fixture(scope="module")
def shared_mount(source) -> Path:
    """One mount for the tests that only read."""
    with Mount(source[0], options=SMALL) as mnt:
        yield mnt


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def counters(mnt: Path) -> dict[str, int]:
    return json.loads((mnt / ".shufflefs/status.json").read_text())["counters"]


# ------------------------------------------------------------------------------------------------------- looking and copying
def test_m4_m5_looking_costs_nothing(source):
    """`ls -lR`, `find`, `du`, names and sizes of every file: no value of the source is read."""
    with Mount(source[0], options=SMALL) as mnt:
        for command in (["ls", "-lR"], ["find", "-printf", "%s\\n"], ["du", "-sh"], ["du", "-sh", "--apparent-size"]):
            program, *flags = command
            p = run(program, mnt, *flags) if program == "find" else run(program, *flags, mnt)
            assert p.returncode == 0 and not p.stderr, p.stderr
        for entry in os.scandir(mnt / "epoch-00000"):
            entry.stat()
        for name in ("dataset.json", "var_names.txt", "README.md", "epoch-00000/batches.txt", "epoch-00000/rows.npy"):
            (mnt / name).read_bytes()
        assert counters(mnt)["reads"] == 0
        Pass(mnt / "inorder").batch("batch-0000000.safetensors")
        assert counters(mnt)["reads"] > 0, "the counter does not count"


def test_tree(shared_mount):
    top = sorted(os.listdir(shared_mount))
    assert top == ["README.md", "dataset.json", "epoch-00000", "epoch-00001", "inorder", "var_names.txt"]
    # Resolves, but is not listed; any epoch resolves; only the canonical spelling does.
    assert (shared_mount / ".shufflefs/status.json").exists() and (shared_mount / "epoch-00777/batches.txt").exists()
    for name in ("epoch-0", "epoch-000000", "epoch-x", "epoch-00000/batch-0.safetensors", "epoch-00000/batch-0009999.safetensors",
                 "epoch-00000/rank-4-of-4", "epoch-00000/batch-0000000.npz", "nothing"):
        assert not (shared_mount / name).exists(), name
    for path in shared_mount.rglob("*"):
        assert not path.stat().st_mode & 0o222, f"{path} looks writable"
    batch = (shared_mount / "epoch-00000/batch-0000000.safetensors").stat()
    assert batch.st_blocks * 512 >= batch.st_size and batch.st_nlink >= 1
    assert (shared_mount / "epoch-00000/rank-0-of-4/batch-0000000.safetensors").stat().st_ino == batch.st_ino
    assert json.loads((shared_mount / "dataset.json").read_text())


def test_copies_are_equal(shared_mount, tmp_path):
    """cp -r, tar and tar -S give the bytes that a plain read gives."""
    epoch = shared_mount / "epoch-00000"
    want = Pass(epoch).digests()
    assert run("cp", "-r", epoch, tmp_path / "cp").returncode == 0
    assert {name: sha(tmp_path / "cp" / name) for name in want} == want
    for flag in ("-cf", "-Scf"):
        archive = tmp_path / f"x{flag}.tar"
        p = run("tar", flag, archive, "-C", shared_mount, "epoch-00000")
        assert p.returncode == 0, p.stderr
        (tmp_path / flag).mkdir()
        assert run("tar", "-xf", archive, "-C", tmp_path / flag).returncode == 0
        assert {name: sha(tmp_path / flag / "epoch-00000" / name) for name in want} == want


def test_every_way_of_reading(shared_mount):
    """Any offset and length, mappings, sendfile, reads past the end: always the bytes of the whole file."""
    path = shared_mount / "epoch-00000/batch-0000003.safetensors"
    image = path.read_bytes()
    rng = np.random.default_rng(1)
    fd = os.open(path, os.O_RDONLY)
    try:
        edges = [0, 1, 4095, 4096, 4097, 131071, 131072, len(image) - 1, len(image), len(image) + 1]
        for offset in [*edges, *rng.integers(0, len(image), 200).tolist()]:
            length = int(rng.integers(1, 20000))
            assert os.pread(fd, length, offset) == image[offset : offset + length]
        assert os.lseek(fd, 0, os.SEEK_END) == len(image) and os.lseek(fd, 0, os.SEEK_SET) == 0
        for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
            with mmap.mmap(fd, 0, flags=flags, prot=mmap.PROT_READ) as m:
                assert bytes(m) == image
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        with open(os.devnull, "wb") as null:
            assert os.sendfile(null.fileno(), fd, 0, 1000) == 1000
        fcntl.flock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)
    assert sha(path) == hashlib.sha256(image).hexdigest()


def test_m1_libraries_map_batches(shared_mount):
    """safe_open maps; np.memmap and np.load map."""
    from safetensors import safe_open
    path = shared_mount / "epoch-00001/batch-0000001.safetensors"
    batch = Batch(path.read_bytes())
    with safe_open(path, framework="numpy") as f:
        assert set(f.keys()) - {k for k in f.keys() if k.startswith("__pad")} == set(batch.tensors)
        assert f.metadata() == batch.metadata
        for name, values in batch.tensors.items():
            np.testing.assert_array_equal(f.get_tensor(name), values)
            if values.ndim and len(values) > 3:
                np.testing.assert_array_equal(f.get_slice(name)[1:3], values[1:3])
    assert bytes(np.memmap(path, np.uint8, "r")) == batch.image
    rows = np.load(shared_mount / "epoch-00001/rows.npy", mmap_mode="r")
    assert rows[64:128].tolist() == batch.rows.tolist()


def test_m2_interleaved_readers_of_one_batch(shared_mount):
    """Two processes read one batch in small pieces, forwards and backwards."""
    path = shared_mount / "epoch-00000/batch-0000005.safetensors"
    code = """
import os, sys, hashlib
fd, size, step = os.open(sys.argv[1], os.O_RDONLY), os.stat(sys.argv[1]).st_size, 5000
at = range(0, size, step) if sys.argv[2] == "up" else reversed(range(0, size, step))
parts = {o: os.pread(fd, step, o) for o in at}
print(hashlib.sha256(b"".join(parts[o] for o in sorted(parts))).hexdigest())
"""
    outputs = in_parallel(code, [[path, "up"], [path, "down"]])
    assert {out.strip() for out in outputs} == {sha(path)}


def in_parallel(code: str, arguments: list[list]) -> list[str]:
    """Runs the Python code once per list of arguments, all at the same time; what each process printed."""
    running = [subprocess.Popen([sys.executable, "-c", code, *map(str, args)], stdout=subprocess.PIPE, text=True) for args in arguments]
    try:
        outputs = [p.communicate(timeout=COMMAND_TIMEOUT_S)[0] for p in running]
    finally:
        for p in running:
            p.kill()
    assert all(p.returncode == 0 for p in running)
    return outputs


# --------------------------------------------------------------------------------------------------- many readers at once
_FORK = """
import hashlib, json, os, sys
mnt, names = sys.argv[1], sys.argv[2:]
read = lambda n: hashlib.sha256(open(f"{mnt}/{n}", "rb").read()).hexdigest()
held = [open(f"{mnt}/{n}", "rb") for n in names[:3]]        # handles that cross the fork
want = {n: read(n) for n in names[:3]}
pipes = []
for child in range(8):
    r, w = os.pipe()
    if os.fork() == 0:
        mine = names[:3] + names[3 + child :: 8]
        got = {n: read(n) for n in mine}
        assert all(got[n] == want[n] for n in names[:3])
        os.pread(held[child % 3].fileno(), 100, 0)
        os.write(w, json.dumps(got).encode())
        os._exit(0)
    os.close(w)
    pipes.append(r)
all_ = {}
for r in pipes:
    all_.update(json.loads(open(r, "rb").read()))
while True:
    try: pid, status = os.wait()
    except ChildProcessError: break
    assert status == 0
print(json.dumps(all_))
"""


def test_s4_forked_readers(shared_mount):
    """The parent opens batches and forks 8 readers: the same bytes everywhere."""
    epoch = Pass(shared_mount / "epoch-00000")
    out = json.loads(python_client(_FORK, epoch.folder, *epoch.batch_names))
    assert out == epoch.digests()


_RANK = """
import json, sys
from safetensors.numpy import load_file
folder = sys.argv[1]
rows = [load_file(f"{folder}/{n}")["row"].tolist() for n in open(f"{folder}/batches.txt").read().split()]
print(json.dumps(rows))
"""


@pytest.fixture(scope="module")
def wide_source(tmp_path_factory) -> tuple[Path, Truth]:
    """8,000 cells with about 400 values each: 26 MB of values and indices."""
    rng = np.random.default_rng(12)
    stored = rng.random((8000, 2000)) < 0.2
    indptr = np.concatenate([[0], np.cumsum(stored.sum(1))])
    indices = np.nonzero(stored)[1]
    truth = gen_stores.dataset(Csr(rng.integers(1, 1000, len(indices)).astype("f4"), indices, indptr, 2000))
    path = tmp_path_factory.mktemp("wide") / "cells.h5ad"
    h5ad_writer.write(path, truth, chunks=(16384,), compression="gzip", compression_opts=1)
    return path, truth


def test_readers_make_progress(wide_source):
    """Eight readers of their own rank directories, in memory that holds a few windows but not the epoch: disjoint, equal
    in number, the right rows, and nobody waits for ever."""
    path, truth = wide_source
    m = 32
    with Mount(path, options=["--batch-size", str(m), "--fetch-factor", "16", "--memory", "22MiB"]) as mnt:
        epoch = Pass(mnt / "epoch-00003")
        folders = [epoch.folder / f"rank-{r}-of-8" for r in range(8)]
        ranks = [json.loads(out) for out in in_parallel(_RANK, [[f] for f in folders])]
        assert [len(batches) for batches in ranks] == [len(epoch.batch_names) // 8] * 8
        for r, batches in enumerate(ranks):
            want = [epoch.rows[i * m : (i + 1) * m].tolist() for i in range(r, len(epoch.batch_names) // 8 * 8, 8)]
            assert batches == want, f"rank {r}"
            assert np.load(folders[r] / "rows.npy").tolist() == [row for batch in want for row in batch]
        for name in epoch.batch_names[::25]:
            check_batch(epoch.batch(name), truth, where=name)


_LOADER = """
import json, sys, warnings
warnings.filterwarnings("ignore")
import torch
from safetensors.torch import load_file
from torch.utils.data import DataLoader, Dataset

class Batches(Dataset):
    def __init__(self, folder):
        self.folder, self.names = folder, open(f"{folder}/batches.txt").read().split()
    def __len__(self):
        return len(self.names)
    def __getitem__(self, i):
        t = load_file(f"{self.folder}/{self.names[i]}")
        x = torch.sparse_csr_tensor(t["X.indptr"], t["X.indices"], t["X.data"], size=tuple(t["X.shape"].tolist()))
        return t["row"], (x @ torch.ones(x.shape[1], 1)).ravel().double(), t["obs.cell_type.codes"]

if __name__ == "__main__":
    folder, workers, shuffle = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "shuffle"
    loader = DataLoader(Batches(folder), batch_size=None, num_workers=workers, shuffle=shuffle)
    rows, sums, codes = zip(*((r.tolist(), s.tolist(), c.tolist()) for r, s, c in loader))
    print(json.dumps([sum(v, []) for v in (rows, sums, codes)]))
"""


@pytest.mark.parametrize("workers", [0, 2, 4])
@pytest.mark.parametrize("shuffle", ["in-order", "shuffle"])
def test_pytorch_data_loader(source, shared_mount, torch_python, workers, shuffle):
    """DataLoader over names with worker processes, also in random order: every row once, with its own sum and label."""
    truth = source[1]
    epoch = Pass(shared_mount / "epoch-00001")
    rows, sums, codes = json.loads(python_client(_LOADER, epoch.folder, workers, shuffle, interpreter=torch_python))
    assert sorted(rows) == list(range(N_ROWS))
    assert shuffle == "shuffle" or rows == epoch.rows.tolist()
    want = np.add.reduceat(np.append(truth.x.data, 0), truth.x.indptr[:-1]) * (np.diff(truth.x.indptr) > 0)
    np.testing.assert_allclose(sums, want[rows], rtol=1e-4)
    assert codes == truth.obs["cell_type"].codes[rows].tolist()


# ----------------------------------------------------------------------------------------------------- bytes never change (1)
def test_bytes_never_change(source):
    """Threads, memory, order of reading and a new mount change no byte; the epochs differ from each other."""
    path, _ = source
    want: dict[str, dict] = {}
    variations = ("", "--threads 1", "--threads 2", "--threads 8", "--memory 24MiB", "--memory 64MiB --threads 3")
    for more in map(str.split, variations):
        with Mount(path, options=[*SMALL, *more]) as mnt:
            got = {e: Pass(mnt / e).digests() for e in ("epoch-00000", "epoch-00001", "inorder")}
        want = want or got
        assert got == want, f"other bytes with {more}"
    assert want["epoch-00000"] != want["epoch-00001"]
    with Mount(path, options=SMALL) as mnt:  # backwards, and going on in the middle (resume)
        epoch = Pass(mnt / "epoch-00001")
        assert {n: sha(epoch.folder / n) for n in reversed(epoch.batch_names)} == want["epoch-00001"]


def test_o3_seeds_and_epochs_differ(source):
    path, _ = source
    orders = {}
    for seed in (0, 1):
        with Mount(path, options=[*SMALL, "--seed", str(seed)]) as mnt:
            for epoch in (0, 1, 2, 1_000_000):
                orders[seed, epoch] = tuple(Pass(mnt / f"epoch-{epoch:05d}").rows)
    assert len(set(orders.values())) == len(orders)
    assert all(sorted(rows) == list(range(N_ROWS)) for rows in orders.values())


def test_hosts_and_ranks_are_disjoint(shared_mount):
    epoch = Pass(shared_mount / "epoch-00000")
    for shares in ([f"host-{h}-of-3" for h in range(3)], [f"rank-{r}-of-5" for r in range(5)],
                   [f"host-{h}-of-2/rank-{r}-of-2" for h in range(2) for r in range(2)]):
        parts = [Pass(epoch.folder / share) for share in shares]
        names = [name for part in parts for name in part.batch_names]
        assert len(set(names)) == len(names) and set(names) <= set(epoch.batch_names)
        assert len({len(part.batch_names) for part in parts}) == 1, "shares of different length"
        full = N_ROWS // 64
        assert len(names) > full - len(shares), "more is left over than one round"
        rows = np.concatenate([part.rows for part in parts])
        assert len(set(rows.tolist())) == len(rows) == 64 * len(names)
        assert sha(parts[0].folder / parts[0].batch_names[0]) == sha(epoch.folder / parts[0].batch_names[0])


def test_every_row_once(source):
    path, truth = source
    with Mount(path, options=["--batch-size", "100"]) as mnt:
        for epoch in (0, 5):
            check_pass(Pass(mnt / f"epoch-{epoch:05d}", load_dataset(mnt)), truth, 100, shuffled=True)


# ------------------------------------------------------------------------------------------- read-only, untouched (promise 8)
def attempts(mnt: Path) -> dict:
    file, new = mnt / "epoch-00000/batch-0000000.safetensors", mnt / "new"
    calls = {
        "mkdir": lambda: os.mkdir(new), "mknod": lambda: os.mknod(new), "symlink": lambda: os.symlink("x", new),
        "link": lambda: os.link(file, new), "rename": lambda: os.rename(file, new), "unlink": lambda: os.unlink(file),
        "rmdir": lambda: os.rmdir(mnt / "inorder"), "chmod": lambda: os.chmod(file, 0o644), "chown": lambda: os.chown(file, 1, 1),
        "truncate": lambda: os.truncate(file, 0), "utime": lambda: os.utime(file),
        "setxattr": lambda: os.setxattr(file, "user.a", b"b"), "removexattr": lambda: os.removexattr(file, "user.a"),
        "create": lambda: os.open(new, os.O_CREAT | os.O_WRONLY), "write": lambda: os.open(file, os.O_WRONLY),
        "read-write": lambda: os.open(file, os.O_RDWR), "trunc": lambda: os.open(file, os.O_RDONLY | os.O_TRUNC),
        "append": lambda: os.open(file, os.O_WRONLY | os.O_APPEND), "rmtree": lambda: shutil.rmtree(mnt / "epoch-00000"),
    }
    return calls


def test_every_change_is_refused(shared_mount):
    """EROFS from each modifying call; EACCES only where the mode bits of an ordinary user answer first."""
    allowed = {errno.EROFS} if os.geteuid() == 0 else {errno.EROFS, errno.EACCES, errno.EPERM}
    for name, call in attempts(shared_mount).items():
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno in allowed, f"{name}: {caught.value}"


def test_sources_untouched(source, tmp_path):
    """Sources are only opened for reading and never locked; a lock that others hold does not matter."""
    path = Path(shutil.copy(source[0], tmp_path / "copy.h5ad"))
    path.chmod(0o444)
    before, digest = path.stat(), sha(path)
    with open(path, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        mount = Mount(path, options=SMALL, foreground=True)
        with mount as mnt:
            Pass(mnt / "epoch-00000").digests()
            pid = mount.process.pid
            for fd in os.listdir(f"/proc/{pid}/fd"):
                if os.path.realpath(f"/proc/{pid}/fd/{fd}") == str(path.resolve()):
                    flags = int(re.search(r"flags:\s+(\d+)", Path(f"/proc/{pid}/fdinfo/{fd}").read_text())[1], 8)
                    assert flags & os.O_ACCMODE == os.O_RDONLY
            locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
            assert not [f for f in locks if f[4] == str(pid) and f[5].endswith(f":{before.st_ino}")]
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
    assert sha(path) == digest and os.listdir(tmp_path) == ["copy.h5ad"], "something was written beside the source"


def _shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _overwrite(path: Path) -> None:
    with open(path, "r+b") as f:
        f.write(b"\0" * path.stat().st_size)


def _append(path: Path) -> None:
    with open(path, "ab") as f:
        f.write(b"more")


def _replace(path: Path) -> None:
    other = path.with_suffix(".new")
    h5ad_writer.write(other, gen_stores.dataset(gen_stores.random_csr(n_rows=N_ROWS, n_vars=1000, seed=10)), chunks=(4000,))
    other.rename(path)


@pytest.mark.parametrize("change", [_shorten, _overwrite, _append, _replace])
def test_right_bytes_or_error(source, tmp_path, change):
    """A batch is right, byte by byte, or ESTALE; never a mixture, never a hang; the server lives on."""
    path = Path(shutil.copy(source[0], tmp_path / "changing.h5ad"))
    options = ["--batch-size", "8", "--fetch-factor", "2"]
    with Mount(path, options=options) as mnt:
        want = Pass(mnt / "epoch-00000").digests()
    mount = Mount(path, options=options, foreground=True)
    with mount as mnt:
        epoch = Pass(mnt / "epoch-00000")
        assert sha(epoch.folder / epoch.batch_names[0]) == want[epoch.batch_names[0]]
        change(path)
        stale = 0
        for name in epoch.batch_names:
            try:
                assert sha(epoch.folder / name) == want[name], f"{name}: other bytes after the change"
            except OSError as error:
                assert error.errno == errno.ESTALE, f"{name}: {error}"
                stale += 1
        # A replaced file may go on being served from the one that is still open.
        assert stale or change is _replace, "no batch noticed the change"
        assert mount.process.poll() is None and (mnt / "dataset.json").exists()


# ---------------------------------------------------------------------------------------------------------- life and death (m6)
def test_m6_killed_server_is_replaced(source, tmp_path):
    """After kill -9 the path is dead; mounting there again repairs it and gives the same bytes."""
    mnt = tmp_path / "mnt"
    mount = Mount(source[0], options=SMALL, foreground=True, mnt=mnt)
    name = "epoch-00000/batch-0000002.safetensors"
    with mount:
        want = sha(mnt / name)
        mount.process.kill()
        mount.process.wait()
        with pytest.raises(OSError) as caught:
            os.stat(mnt / "epoch-00009")
        assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
        with Mount(source[0], options=SMALL, mnt=mnt):
            assert sha(mnt / name) == want
        assert not is_mounted(mnt)


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_m6_signal_with_an_open_file(source, which):
    """The mount is gone within two seconds and the server ends with exit code 0, although a batch is open."""
    mount = Mount(source[0], options=[*SMALL, "--grace", "0"], foreground=True)
    with mount as mnt:
        held = os.open(mnt / "epoch-00000/batch-0000001.safetensors", os.O_RDONLY)
        os.read(held, 10)
        mount.process.send_signal(which)
        assert wait_until(lambda: not is_mounted(mnt), 2), "still mounted"
        assert wait_until(lambda: mount.process.poll() is not None, 5), "the server does not end"
        assert mount.process.returncode == 0
        with contextlib.suppress(OSError):  # ENOTCONN: nobody is there to be told
            os.close(held)


def test_unmount_by_others_ends_the_server(source):
    mount = Mount(source[0], options=SMALL, foreground=True)
    with mount as mnt:
        (mnt / "dataset.json").read_bytes()
        p = run("umount", mnt) if os.geteuid() == 0 else run("fusermount3", "-u", mnt)
        assert p.returncode == 0, p.stderr
        assert wait_until(lambda: mount.process.poll() is not None, 5), "the server does not end"
        assert mount.process.returncode == 0


def test_background_mount_lets_go_of_its_terminal(source):
    """`$(shufflefs mount ...)` returns: the server in the background holds no inherited pipe. (Mount reads both pipes.)"""
    mount = Mount(source[0], options=SMALL)
    with mount as mnt:
        assert str(mnt) in mount.summary, "the summary does not say where"
        assert "safetensors" in mount.summary, "the summary shows no snippet"


def test_two_mounts_and_a_created_mount_point(source, tmp_path):
    """A missing mount point is created and removed again; two mounts do not disturb each other."""
    with Mount(source[0], options=SMALL) as a, Mount(source[0], options=[*SMALL, "--seed", "1"]) as b:
        assert (a / "epoch-00000/rows.npy").read_bytes() != (b / "epoch-00000/rows.npy").read_bytes()
    missing = tmp_path / "made" / "mnt"
    missing.parent.mkdir()
    p = shufflefs("mount", *SMALL, source[0], missing)
    try:
        assert p.returncode == 0 and is_mounted(missing), p.stderr
    finally:
        Mount(source[0], mnt=missing).unmount()
    assert wait_until(lambda: not missing.exists(), 5), "the created mount point is still there"

