"""What every test gets: the binary, the shared data if it is there, the generated stores."""

from __future__ import annotations

import os
import signal
import subprocess
import warnings
from pathlib import Path

import pytest

import gen_stores
import mounting

CI = bool(os.environ.get("CI"))
DATA = Path(os.environ.get("SHUFFLEFS_TEST_DATA") or mounting.ROOT.parent / "shared" / "data")


def unavailable(what: str) -> None:
    """Skips loudly on a developer's machine; fails under CI, where nothing may go unnoticed."""
    if CI:
        pytest.fail(f"{what} (CI is set, so this is not skipped)")
    warnings.warn(f"SKIPPED: {what}", stacklevel=2)
    pytest.skip(what)


def pytest_sessionstart(session) -> None:
    if mounting.BINARY is None or not mounting.BINARY.exists():
        pytest.exit("no shufflefs binary: run scripts/test.sh, or build first, or set SHUFFLEFS_BIN", returncode=2)


def pytest_report_header() -> str:
    return f"binary: {mounting.BINARY}; data: {DATA if DATA.is_dir() else 'ABSENT'}"


@pytest.fixture(scope="session")
def fuse() -> None:
    """Needed by every test that mounts."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        unavailable(f"/dev/fuse: {error.strerror}")


@pytest.fixture(scope="session")
def data() -> Path:
    if not (DATA / "MANIFEST.tsv").exists():
        unavailable(f"no test data at {DATA}: set SHUFFLEFS_TEST_DATA")
    return DATA


@pytest.fixture(scope="session")
def store_folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("stores")


def written_at_first_use(folder: Path, stores: dict, ending: str):
    """A function: name -> (path, truth) of a generated store."""
    made: dict[str, tuple[Path, object]] = {}

    def get(name: str):
        if name not in made:
            path = folder / f"{name}{ending}"
            made[name] = (path, stores[name](path))
        return made[name]

    return get


@pytest.fixture(scope="session")
def store(store_folder):
    """`store(name)` -> (path, truth) of a generated store, written at first use."""
    return written_at_first_use(store_folder, gen_stores.STORES, ".h5ad")


@pytest.fixture(scope="session")
def torch_python() -> str:
    """An interpreter that imports torch and safetensors."""
    interpreter = os.environ.get("SHUFFLEFS_TORCH_PYTHON", "")
    probe = "import torch, safetensors.torch"
    if not interpreter or subprocess.run([interpreter, "-c", probe], capture_output=True, timeout=120).returncode != 0:
        unavailable("no PyTorch ($SHUFFLEFS_TORCH_PYTHON; scripts/setup.sh provides it)")
    return interpreter


def pytest_configure(config):
    # In the background of a script an interrupt is ignored, and so it would be in every server that is started here.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
