"""The ways of serving: the same bytes in each, what only passthrough does, and where reads are answered."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import shutil
import signal
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import gen_stores
import h5ad_writer
import mounting
from batches import Pass
from conftest import unavailable
from mounting import ROOT, Mount, is_mounted, python_client, refusal, run, shufflefs, wait_until

pytestmark = pytest.mark.usefixtures("fuse")
SMALL = ["--batch-size", "64", "--fetch-factor", "4"]
CPUS = sorted(os.sched_getaffinity(0))


def can_pass() -> bool:
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return os.geteuid() == 0 and (int(release[1]), int(release[2])) >= (6, 9)


@pytest.fixture
def passthrough() -> None:
    """Under CI, root on a new kernel must not be refused; anything else is skipped, and said."""
    if not can_pass():
        pytest.skip(f"passthrough needs root and Linux 6.9, this is {os.uname().release} as uid {os.geteuid()}")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("serving") / "cells.h5ad"
    truth = gen_stores.dataset(gen_stores.random_csr(n_rows=2000, n_vars=1000, seed=12))
    h5ad_writer.write(path, truth, chunks=(4000,), compression="gzip")
    return path


def io(mnt: Path) -> dict:
    return json.loads((mnt / ".shufflefs/status.json").read_text())["io"]


def counters(mnt: Path) -> dict:
    return json.loads((mnt / ".shufflefs/status.json").read_text())["counters"]


def test_every_way_of_serving_gives_the_same_bytes(source):
    modes = ["auto", "direct", "cached", *(["passthrough"] if can_pass() else [])]
    want = None
    for mode in modes:
        # 24 MiB: an epoch does not fit, so files are given up and batches assembled again.
        for memory in ("24MiB", "256MiB"):
            m = Mount(source, options=[*SMALL, "--io", mode, "--memory", memory])
            with m as mnt:
                got = [Pass(mnt / e).digests() for e in ("epoch-00000", "inorder", "epoch-00000")]
                assert got[0] == got[2]
                want = want or got
                assert got == want, f"other bytes with --io {mode} --memory {memory}"
                assert mode in ("auto", io(mnt)["mode"])
                served = f"{io(mnt)['mode']} ({io(mnt)['reason']})"
                assert served in m.summary and served in shufflefs("status", mnt).stdout
                assert ("backing" in io(mnt)) == (mode == "passthrough")


def test_a_second_pass_costs_the_daemon_nothing(source, passthrough):
    with Mount(source, options=[*SMALL, "--io", "passthrough", "--memory", "256MiB"]) as mnt:
        epoch = Pass(mnt / "epoch-00000")
        first = epoch.digests()
        before, io_before = counters(mnt), io(mnt)
        assert epoch.digests() == first
        out = python_client(
            "import sys, mmap, hashlib\n"
            "f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n"
            "print(hashlib.sha256(m).hexdigest())", epoch.folder / epoch.batch_names[3])
        sha = run("sha256sum", epoch.folder / epoch.batch_names[3]).stdout.split()[0]
        assert out.strip() == sha
        after, io_after = counters(mnt), io(mnt)
        assert {k: after[k] for k in ("opens", "reads", "batches")} == {k: before[k] for k in ("opens", "reads", "batches")}
        backing, backing_before = io_after["backing"], io_before["backing"]
        assert backing["opens_filled"] == backing_before["opens_filled"] == len(epoch.batch_names)
        assert backing["opens_shared"] - backing_before["opens_shared"] == len(epoch.batch_names) + 2
        assert backing["opens_direct"] == 0


def test_mapped_batches_count_and_never_change(source, passthrough):
    """Readers map all batches of an epoch and close the files, in memory for a part of it: every mapping stays right, the files stay
    within their share, and other opens go on."""
    with Mount(source, options=[*SMALL, "--io", "passthrough", "--memory", "24MiB", "--timeout", "20"]) as mnt:
        paths = [p for e in ("epoch-00000", "epoch-00001") for p in sorted((mnt / e).glob("batch-*"))]
        mapped = []
        for path in paths[:8]:
            with open(path, "rb") as f:
                mapped.append(mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ))
        want = [m[:] for m in mapped]
        for path in paths[8:] * 2:
            path.read_bytes()
            assert io(mnt)["backing"]["used_bytes"] <= io(mnt)["backing"]["limit_bytes"] + 4095
        assert [m[:] for m in mapped] == want
        assert [path.read_bytes() for path in paths[:8]] == want


def test_open_files_outlive_a_killed_daemon(source, passthrough):
    m = Mount(source, options=[*SMALL, "--io", "passthrough"], foreground=True)
    with m as mnt:
        path = mnt / "epoch-00000" / "batch-0000001.safetensors"
        want = path.read_bytes()
        with open(path, "rb") as f:
            mapped = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
            m.process.send_signal(signal.SIGKILL)
            assert wait_until(lambda: m.process.poll() is not None, 20)
            assert f.read() == want
        assert mapped[:] == want


def test_without_root_passthrough_is_refused_in_one_line(source):
    # Where everybody may read it: pytest's own folders are for their owner only.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        check_refusal_without_root(shutil.copy(source, folder))


def check_refusal_without_root(source):
    args = ["--io", "passthrough", source]
    if os.geteuid() != 0:
        code, line = refusal(*args)
    else:
        if shutil.which("setpriv") is None:
            unavailable("no setpriv (util-linux)")
        p = run("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
                mounting.BINARY, "mount", *args, "/tmp/shufflefs-never-mounted")
        assert not is_mounted(Path("/tmp/shufflefs-never-mounted"))
        code, line = p.returncode, mounting.one_line_error(p.stderr)
    assert code == 1
    assert "--io passthrough: needs root" in line and "use --io auto" in line


def loop_cpus(pid: int) -> list[str]:
    """The CPUs that each thread that answers the kernel may run on."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        # Other threads come and go.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (task / "comm").read_text().strip() in ("fuser-0", "fuser-1"):
                found.append((task / "status").read_text().split("Cpus_allowed_list:")[1].split()[0])
    return found


def read_on(cpu: int, path: Path, end: threading.Event, turns: threading.Barrier | None = None) -> None:
    """Reads the start of a file again and again, on one CPU; between reads it waits for the others, if there are any."""
    os.sched_setaffinity(0, {cpu})
    with open(path, "rb", buffering=0) as f:
        while not end.is_set():
            assert len(os.pread(f.fileno(), 4096, 0)) == 4096
            if turns is not None:
                with contextlib.suppress(threading.BrokenBarrierError):
                    turns.wait(20)


@pytest.mark.skipif(len(CPUS) < 2, reason="one CPU only")
def test_loop_threads_are_where_their_only_reader_is(source):
    everywhere = Path("/proc/self/status").read_text().split("Cpus_allowed_list:")[1].split()[0]
    mount = Mount(source, options=["--batch-size", "1000", "--io", "direct"], foreground=True)
    with mount as mnt:
        epoch = Pass(mnt / "epoch-00000")
        path = epoch.folder / epoch.batch_names[0]
        assert path.stat().st_size >= 128 << 10, "smaller files are served through the page cache"
        pid = mount.process.pid
        assert wait_until(lambda: loop_cpus(pid) == [everywhere] * 2, 20)
        with ThreadPoolExecutor(2) as pool:
            for cpu in CPUS[:2]:
                end = threading.Event()
                reader = pool.submit(read_on, cpu, path, end)
                try:
                    assert wait_until(lambda: str(cpu) in loop_cpus(pid), 20)
                finally:
                    end.set()
                    reader.result()
            end, turns = threading.Event(), threading.Barrier(2)
            readers = [pool.submit(read_on, cpu, path, end, turns) for cpu in CPUS[:2]]
            try:
                assert wait_until(lambda: loop_cpus(pid) == [everywhere] * 2, 20)
            finally:
                end.set()
                turns.abort()
                for reader in readers:
                    reader.result()


def test_the_fastest_reader_of_the_readme_reads_what_load_file_reads(source):
    snippet = re.search(r"```python\n(# The fastest: .*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    names: dict = {}
    exec(snippet, names)
    with Mount(source, options=[*SMALL, "--obs", "all"]) as mnt:
        epoch = Pass(mnt / "epoch-00000")
        paths = [epoch.folder / name for name in epoch.batch_names]
        buffer = names["buffer_of"](2 * max(path.stat().st_size for path in paths))
        for path in paths[:3]:
            want = {k: v for k, v in load_file(path).items() if not k.startswith("__")}
            got = names["read"](path, buffer)
            assert list(got) == list(want)
            for name, array in want.items():
                assert got[name].dtype == array.dtype and np.array_equal(got[name], array, equal_nan=array.dtype.kind == "f"), name


def test_root_has_more_read_ahead(source):
    """For readers that map batches, in this mount only."""
    settings = Path("/sys/class/bdi")
    if os.geteuid() != 0 or os.statvfs("/sys").f_flag & os.ST_RDONLY:
        pytest.skip("this user may not change it")
    before = {p: p.read_text() for p in settings.glob("*/read_ahead_kb")}
    with Mount(source, options=SMALL) as mnt:
        device = os.stat(mnt).st_dev
        own = settings / f"{os.major(device)}:{os.minor(device)}/read_ahead_kb"
        if not os.access(own, os.W_OK):
            pytest.skip("this root may not change it")
        assert own not in before and own.read_text() == "1024\n"
        assert all(p.read_text() == text for p, text in before.items() if p.exists())
