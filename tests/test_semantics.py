"""The promises of docs/SEMANTICS.md: each has a test of the same name, here or in the file whose subject it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mounting import ROOT, Mount
from test_tools import _RANK, in_parallel, wide_source  # noqa: F401  (a fixture)


def test_every_heading_of_the_document_is_a_test():
    text = (ROOT / "docs/SEMANTICS.md").read_text().split("\n# As a file system")[0]
    promises = {"test_" + heading.lower().replace(" ", "_") for heading in re.findall(r"^## (.+)$", text, re.M)}
    assert len(promises) == 9
    sources = "\n".join(p.read_text() for p in Path(__file__).parent.glob("test_*.py"))
    tests = set(re.findall(r"^def (test_\w+)\(", sources, re.M))
    assert promises <= tests, f"promised, but not tested: {sorted(promises - tests)}"


@pytest.mark.usefixtures("fuse")
def test_memory_within_budget(wide_source):  # noqa: F811
    """Eight readers in memory for a part of the dataset: images stay within their share, the process within the budget and
    what a program takes anyway."""
    budget, program = 22 << 20, 100 << 20
    mount = Mount(wide_source[0], options=["--batch-size", "32", "--fetch-factor", "16", "--memory", str(budget)], foreground=True)
    with mount as mnt:
        in_parallel(_RANK, [[mnt / f"epoch-00000/rank-{r}-of-8"] for r in range(8)])
        images = json.loads((mnt / ".shufflefs/status.json").read_text())["images"]
        assert 0 < images["peak_bytes"] <= images["limit_bytes"] < budget
        status = Path(f"/proc/{mount.process.pid}/status").read_text()
        assert int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024 < budget + program
