"""Every `.atp` of the shared test data through a real mount, in every format, against a reader of its own, against atompack, and against
the values recorded in MANIFEST.tsv."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest

from atompack_files import Molecule, atp_files, read_molecules
from batches import load_dataset
from molecule_batches import arrays_of, check_atp, check_extxyz, check_flat, check_upstream
from mounting import Mount, one_line_error, run_measured, shufflefs, take_away
from test_manifest import check_refusal, digest_sums, row_sum, rows_of

pytestmark = pytest.mark.usefixtures("fuse")

FORMATS = ["safetensors", "npz", "atp", "extxyz"]
# ASE takes a second for a thousand frames.
LARGE = 5000


@functools.lru_cache(maxsize=4)
def truth_of(source: Path) -> list[Molecule]:
    return read_molecules(source)


@pytest.mark.parametrize("row", rows_of("ok", "atp"))
def test_the_reader_of_the_tests_agrees_with_atompack(data, row):
    import atompack

    molecules = iter(truth_of(data / row["path"]))
    for path in atp_files(data / row["path"]):
        db = atompack.Database.open(str(path))
        for i in range(len(db)):
            check_upstream(db[i], next(molecules), f"{path.name}: {i}")
    assert next(molecules, None) is None


@pytest.mark.parametrize("batch_format", FORMATS)
@pytest.mark.parametrize("row", rows_of("ok", "atp"))
def test_every_molecule(data, row, batch_format):
    """An epoch and `inorder`: every value of every molecule, every row once; `cat` writes the same bytes."""
    source = data / row["path"]
    molecules = truth_of(source)
    batch_size = 512 if len(molecules) > LARGE else 16
    options = ["--format", batch_format, "--batch-size", str(batch_size)]
    with Mount(source, options=options) as mnt:
        dataset = load_dataset(mnt)
        assert dataset["n_rows"] == len(molecules) == int(row["n_rows"])
        folders = ["epoch-00000"] if batch_format == "extxyz" and len(molecules) > LARGE else ["epoch-00000", "inorder"]
        for folder in folders:
            check_folder(mnt / folder, molecules, batch_size, batch_format, dataset)
        if batch_format == "safetensors":
            check_manifest(mnt, row)
        check_cat(source, mnt, options)


def check_folder(folder: Path, molecules: list[Molecule], batch_size: int, batch_format: str, dataset: dict, chosen=None) -> None:
    rows = np.load(folder / "rows.npy").tolist()
    names = (folder / "batches.txt").read_text().split()
    assert sorted(rows) == list(range(len(molecules))), "not every row exactly once"
    if folder.name == "inorder":
        assert rows == sorted(rows)
    assert len(names) == -(-len(rows) // batch_size)
    for k, name in enumerate(names):
        batch_rows, path = rows[k * batch_size : (k + 1) * batch_size], folder / name
        where = f"{folder.name}/{name}"
        if batch_format == "atp":
            check_atp(path, molecules, batch_rows, where)
        elif batch_format == "extxyz":
            assert len(path.read_bytes()) == path.stat().st_size
            check_extxyz(path, molecules, batch_rows, dataset, where)
        else:
            check_flat(arrays_of(path), molecules, batch_rows, dataset, where, chosen)


def check_cat(source: Path, mnt: Path, options: list) -> None:
    path = f"epoch-00000/{(mnt / 'epoch-00000/batches.txt').read_text().split()[-1]}"
    out = shufflefs("cat", *options, source, "--path", path, text=False)
    assert out.returncode == 0, out.stderr
    assert out.stdout == (mnt / path).read_bytes(), f"cat {path} differs from the mount"


def check_manifest(mnt: Path, row: dict) -> None:
    """The sums and counts that atompack gave when the manifest was written."""
    folder = mnt / "inorder"
    sums, energies, n_atoms, present = [], [], 0, {}
    for name in (folder / "batches.txt").read_text().split():
        a = arrays_of(folder / name)
        n_atoms += int(a["ptr"][-1])
        sums += [row_sum(a["positions"][i:j].ravel()) for i, j in zip(a["ptr"], a["ptr"][1:])]
        if "energy" in a:
            energies += a["energy"][a["energy.present"]].tolist()
        for key, marks in a.items():
            if key.endswith(".present"):
                present[key.removesuffix(".present")] = present.get(key.removesuffix(".present"), 0) + int(marks.sum())
    assert (str(n_atoms), digest_sums(sums)) == (row["n_atoms"], row["x_rows_sha256"])
    assert repr(row_sum(np.array(sums))) == row["positions_sum"]
    assert repr(row_sum(np.array(energies))) == (row["energy_sum"] or "0.0")
    for key, count in json.loads(row["extra"])["fields"].items():
        name = key.split(":")[0]
        scope, _, rest = name.partition(".")
        name = {"atom": f"atom_properties.{rest}", "molecule": f"properties.{rest}"}.get(scope, name)
        if name not in ("positions", "name"):
            assert present[name] == count, f"{key}: {present[name]} present"


# ------------------------------------------------------------------------------------------------------------------- damaged
@pytest.mark.parametrize("row", rows_of("refuse", "atp", "hostile atp"))
def test_refused_at_mount(data, row, tmp_path):
    check_refusal(data / row["path"], None, tmp_path)


@pytest.mark.parametrize("row", rows_of("refuse", "atp", "hostile atp"))
def test_refusals_name_the_numbers(data, row):
    """A cut file: both sizes. An index that lies: the entry."""
    line = one_line_error(shufflefs("plan", data / row["path"]).stderr)
    if "truncated" in row["expect"]:
        assert str((data / row["path"]).stat().st_size) in line and "needs" in line, line
    else:
        entry = "17" if "17" in row["expect"] else "39"
        assert f"entry {entry}:" in line and "past the end" in line, line


@pytest.mark.parametrize("row", rows_of("refuse-or-ok", "atp"))
def test_no_molecules_are_refused(data, row):
    assert "no committed molecules" in one_line_error(shufflefs("plan", data / row["path"]).stderr)


@pytest.mark.parametrize("batch_format", FORMATS)
@pytest.mark.parametrize("row", rows_of("refuse-or-eio", "hostile atp"))
def test_damaged_records_fail_alone(data, row, batch_format, tmp_path):
    """EIO for exactly the batches that hold row 5, right values in all others."""
    source = data / row["path"]
    options = ["--format", batch_format, "--batch-size", "4", "--fetch-factor", "2"]
    code, stderr, peak_kib, _ = run_measured("plan", *options, source)
    assert peak_kib < 256 << 10
    if code != 0:
        assert "entry 5:" in one_line_error(stderr)
        return
    with Mount(source, options=options) as mnt:
        rows = np.load(mnt / "epoch-00000/rows.npy")
        names = (mnt / "epoch-00000/batches.txt").read_text().split()
        failed = []
        for k, name in enumerate(names):
            try:
                (mnt / "epoch-00000" / name).read_bytes()
            except OSError as error:
                assert error.errno == 5
                failed.append(k)
        assert failed == [int(np.flatnonzero(rows == 5)[0]) // 4]
        assert "row 5" in (mnt / ".shufflefs/errors.tsv").read_text()
    take_away(tmp_path / "mnt")


# --------------------------------------------------------------------------------------------------------------- warnings
def test_a_torn_header_is_told(data):
    out = shufflefs("plan", data / "derived/qm9_torn_header.atp")
    assert out.returncode == 0 and "generation 5" in out.stdout and "generation 4 is served" in out.stdout.replace("\n", " "), out.stdout


def test_an_uncommitted_tail_is_told(data):
    out = shufflefs("plan", data / "atp/tail_uncommitted.atp")
    assert out.returncode == 0 and "behind the last commit" in out.stdout, out.stdout


# ---------------------------------------------------------------------------------------------------------------- inspect
def test_inspect(data):
    out = shufflefs("inspect", data / "atp/v2_full_lz4.atp")
    for words in ("50 molecules in 1 file, lz4", "per molecule 1 to 39", "energy: float64 per molecule, may be missing",
                  "atom_properties.dip: float32 x 3 per atom", "properties.ten: tensor of float32", "bytes per molecule"):
        assert words in out.stdout, f"{words}:\n{out.stdout}"
    content = json.loads(shufflefs("inspect", "--json", data / "derived/qm9_shards.atpdir").stdout)[0]["content"]
    assert content["n_molecules"] == 900 and content["n_atoms"] == 11082
    assert [Path(f["path"]).parent.name for f in content["files"]] == ["a-b", "a", "qm9_shards.atpdir"]
    assert [f["codec"] for f in content["files"]] != []


def test_bench(data):
    out = shufflefs("bench", data / "atp/qm9_20k.atp", "--json", "--mount", "--rows", "4096")
    lines = [json.loads(line) for line in out.stdout.splitlines()]
    assert [line["config"]["mode"] for line in lines] == ["decode", "engine", "mount"], out.stderr
    assert all(line["rows"] >= 4096 and line["rows_per_s"] > 0 for line in lines)
