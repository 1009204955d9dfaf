"""Runs the binary: commands with timeouts, and mounts that are gone afterwards whatever happens.

A reader of a FUSE mount can hang for good when the server does. So every command has a timeout, and every mount has a
watchdog: after its time it kills the server and takes the mount away, which ends any blocked reader with an error.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

COMMAND_TIMEOUT_S = 90
MOUNT_LIMIT_S = 150
ROOT = Path(__file__).resolve().parent.parent
MNT_DETACH = 2

# Caches and temporary files of the binary go to a folder of this test run, so that runs do not see each other.
_scratch = tempfile.TemporaryDirectory(prefix="shufflefs-tests-")
ENV = {**os.environ, "XDG_CACHE_HOME": f"{_scratch.name}/cache", "NO_COLOR": "1"}
ENV.pop("RUST_LOG", None)


def find_binary() -> Path | None:
    """$SHUFFLEFS_BIN, else the newer one of the debug and release builds."""
    if given := os.environ.get("SHUFFLEFS_BIN"):
        return Path(given).resolve()
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = [p for p in (target / "debug/shufflefs", target / "release/shufflefs") if p.exists()]
    return max(built, key=lambda p: p.stat().st_mtime).resolve() if built else None


BINARY = find_binary()


def run(*args, timeout: float = COMMAND_TIMEOUT_S, text: bool = True, **kwargs) -> subprocess.CompletedProcess:
    """A client process with a timeout and no standard input; its output is captured."""
    return subprocess.run(
        [str(a) for a in args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        timeout=timeout, text=text, env=ENV, **kwargs,
    )


def shufflefs(*args, **kwargs) -> subprocess.CompletedProcess:
    """A command of the binary that ends by itself."""
    return run(BINARY, *args, **kwargs)


def python_client(code: str, *args, interpreter: str | Path = sys.executable, **kwargs) -> str:
    """Runs Python code in a process of its own and returns what it prints; a failure fails the test with its output."""
    p = run(interpreter, "-c", code, *args, **kwargs)
    assert p.returncode == 0, f"client failed ({p.returncode}):\n{p.stdout}\n{p.stderr}"
    return p.stdout


# Starts a command and prints the peak of its resident memory in KiB as the last line. A process of its own, because Linux
# counts the memory of the process that forks into the peak of the one that is forked, and pytest is fat.
_PEAK = """
import os, subprocess, sys, time
start = time.monotonic()
p = subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL)
import resource
print("PEAK", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, time.monotonic() - start, p.returncode, flush=True)
"""


def run_measured(*args, cwd: Path | None = None) -> tuple[int, str, int, float]:
    """Runs `shufflefs ARGS`: (exit code, standard error, peak resident KiB, seconds)."""
    p = run(sys.executable, "-I", "-S", "-c", _PEAK, BINARY, *args, cwd=cwd)
    peak, seconds, code = p.stdout.rsplit("PEAK", 1)[1].split()
    return int(code), p.stderr, int(peak), float(seconds)


def is_mounted(mnt: Path) -> bool:
    """True if something is mounted there, alive or dead. Reads the mount table: `stat` would ask the server."""
    wanted = os.fsencode(os.path.realpath(mnt.parent) + "/" + mnt.name).replace(b" ", b"\\040")
    with open("/proc/self/mountinfo", "rb") as table:
        return any(line.split(b" ")[4] == wanted for line in table)


def detach(mnt: Path) -> None:
    """Takes the mount away without asking the server."""
    if os.geteuid() == 0:
        ctypes.CDLL(None, use_errno=True).umount2(os.fsencode(mnt), MNT_DETACH)
    else:
        subprocess.run(["fusermount3", "-u", "-z", "--", str(mnt)], stdin=subprocess.DEVNULL, capture_output=True, timeout=20)


def server_pids(mnt: Path) -> list[int]:
    """Processes of the binary whose command line names the mount point."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if os.readlink(entry / "exe").split(" (deleted)")[0] != str(BINARY):
                continue
            if os.fsencode(mnt) in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def take_away(mnt: Path) -> None:
    """Kills the server and detaches the mount: blocked readers get an error."""
    for pid in server_pids(mnt):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for _ in range(100):
        if not is_mounted(mnt):
            return
        detach(mnt)
        time.sleep(0.05)
    raise RuntimeError(f"{mnt} cannot be unmounted")


def wait_until(condition, seconds: float) -> bool:
    """Polls until the condition holds; False if it does not within the time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


class MountFailed(Exception):
    """`shufflefs mount` ended with an exit code other than 0."""

    def __init__(self, code: int, stderr: str, stdout: str = ""):
        super().__init__(f"mount failed with exit code {code}:\n{stderr}{stdout}")
        self.code, self.stderr = code, stderr


class Mount:
    """`with Mount(source, options=[...]) as mnt:` a mounted dataset, `mnt` its path.

    In the background as users do it, or with `foreground=True` as a child whose pid is `self.process.pid`.
    """

    def __init__(self, *sources, options=(), foreground: bool = False, cwd: Path | None = None, mnt: Path | None = None):
        self.sources, self.options, self.foreground, self.cwd = sources, options, foreground, cwd
        self._folder = None if mnt else Path(tempfile.mkdtemp(prefix="mnt-", dir=_scratch.name))
        self.mnt = mnt or self._folder / "mnt"
        self.process: subprocess.Popen | None = None
        self.summary = ""
        self._watchdog = threading.Timer(MOUNT_LIMIT_S, self._give_up)
        self._watchdog.daemon = True
        self._expired = False

    def __enter__(self) -> Path:
        self.mount()
        return self.mnt

    def __exit__(self, *_) -> None:
        self.unmount()
        assert not self._expired, f"the mount was taken away after {MOUNT_LIMIT_S} s"

    def mount(self) -> None:
        # Not pathlib's exist_ok: it asks a dead mount what it is.
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.mnt)
        self._watchdog.start()
        try:
            if self.foreground:
                self._mount_in_foreground()
            else:
                self._mount_in_background()
        except BaseException:
            self.unmount()
            raise

    def _arguments(self) -> list[str]:
        flags = ["--foreground"] if self.foreground else []
        return [str(a) for a in ["mount", *flags, *self.options, *self.sources, self.mnt]]

    def _mount_in_background(self) -> None:
        p = shufflefs(*self._arguments(), cwd=self.cwd)
        if p.returncode != 0:
            raise MountFailed(p.returncode, p.stderr, p.stdout)
        self.summary = p.stdout + p.stderr
        assert is_mounted(self.mnt), f"exit code 0, but nothing is mounted at {self.mnt}:\n{self.summary}"

    def _mount_in_foreground(self) -> None:
        with tempfile.TemporaryFile("w+") as err:
            self.process = subprocess.Popen(
                [str(BINARY), *self._arguments()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err,
                env=ENV, cwd=self.cwd,
            )
            ready = wait_until(lambda: self.process.poll() is not None or is_mounted(self.mnt), COMMAND_TIMEOUT_S)
            if self.process.poll() is not None:
                err.seek(0)
                raise MountFailed(self.process.returncode, err.read())
            assert ready, "not mounted in time"

    def unmount(self) -> None:
        """Unmounts in the orderly way if that works within its time, else by force."""
        self._watchdog.cancel()
        try:
            if is_mounted(self.mnt):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    shufflefs("umount", self.mnt, timeout=20)
            if is_mounted(self.mnt):
                take_away(self.mnt)
            if self.process is not None and self.process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(10)
                if self.process.poll() is None:
                    self.process.kill()
                    self.process.wait()
        finally:
            if self._folder is not None and not is_mounted(self.mnt):
                shutil.rmtree(self._folder, ignore_errors=True)

    def _give_up(self) -> None:
        self._expired = True
        take_away(self.mnt)


def refusal(*args, cwd: Path | None = None, **kwargs) -> tuple[int, str]:
    """`shufflefs mount ARGS MNT` that must not succeed: exit code, and the one line on standard error."""
    mnt = Path(tempfile.mkdtemp(prefix="mnt-", dir=_scratch.name)) / "mnt"
    try:
        p = shufflefs("mount", *args, mnt, cwd=cwd, **kwargs)
        assert p.returncode != 0, "mounted, but must be refused"
        assert not is_mounted(mnt)
        return p.returncode, one_line_error(p.stderr)
    finally:
        take_away(mnt)


def one_line_error(stderr: str) -> str:
    """The single line of an error message; fails if there is more or less, or if it looks like a crash."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    assert "panicked" not in stderr and "backtrace" not in stderr.lower(), stderr
    assert len(lines) == 1, f"expected one line, got:\n{stderr}"
    return lines[0]
