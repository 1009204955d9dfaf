"""Every AnnData source of the shared test data through a real mount, against h5py, zarr-python and the values in MANIFEST.tsv.

Hostile files are never opened by Python here: what a damaged one must still serve is known from the file it was made of.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest

import conftest
from batches import Batch, Pass, load_dataset
from compare import check_batch, check_matrix, check_pass
from mounting import Mount, MountFailed, one_line_error, run_measured, shufflefs, take_away
from sources import read_h5ad, read_nodes
from truth import Category, Csr, Nullable, Numbers, Text, Truth
from zarr_sources import read_zarr

pytestmark = pytest.mark.usefixtures("fuse")

MEMORY_GROWTH_KIB = 64 * 1024
SECRET = 1234567
# What the one line must say besides the file name.
REASONS = {
    "category_code_out_of_range": r"obs/cell_type.*\b99\b",
    "data_shorter_than_indptr": r"X/?.*(indptr|data)",
    "external_storage": r"\bX\b.*(external|outside)",
    "indptr_decreases": r"X/indptr.*\b30\b|X/indptr.*\b31\b",
    "indptr_wrapped_int32": r"X/indptr",
    "obs_column_one_row_short": r"obs/lib.*63",
    "truncated_at_half": r"31628.*[0-9]{5,}|[0-9]{5,}.*31628|29889.*14944",
    "web_page": r"not (an )?HDF5",
    "mudata_v0.2.4": r"(?i)mudata.*mod",
    "plain_hdf5": r"(?i)\bobs\b|anndata",
    "spatialdata_0.3": r"SpatialData with tables/table.*::tables/table",
    "chunk_key_suffix_leaves_store": r"\bX\b.*keys.*leave the store",
    "group_is_outward_link": r"\bX\b.*link out of the store",
    "chunk_is_outward_link": r"\bX\b.*link out of the store",
}
# Rows of the damaged part, for the files that may be mounted all the same.
DAMAGED_ROWS = {"gzip_bomb_chunk": range(32, 48), "index_beyond_n_vars": range(20, 21), "zstd_frame_lies": range(32, 48)}


def manifest() -> list[dict[str, str]]:
    path = conftest.DATA / "MANIFEST.tsv"
    if not path.exists():
        return []
    with open(path, newline="") as f:
        return list(csv.DictReader(f, delimiter="\t", quoting=csv.QUOTE_NONE))


def expectation_of(row: dict) -> str:
    """What the manifest says, but that matrices stored by columns are served."""
    return "ok" if row["expect"] == "refuse-or-ok:CSC X" else row["expect"].split(":")[0]


def rows_of(expectation: str, *prefixes: str) -> list:
    """Parameters: the manifest's rows whose kind begins with a prefix; without data one that skips or fails."""
    rows = [r for r in manifest() if expectation_of(r) == expectation and r["kind"].startswith(prefixes)]
    return [pytest.param(r, id=Path(r["path"]).name) for r in rows] or [pytest.param({}, id="no-data")]


# Where the links of the hostile stores lead: a copy of the test data may have lost them.
LINKS = {
    "chunk_is_outward_link": ("X/c/2/0", "../../../../outside/secret_chunk.f32"),
    "group_is_outward_link": ("X", "../outside/secret.zarr/X"),
}


def with_links(source: Path, tmp_path: Path) -> Path:
    """The hostile source, in a copy if its link has to be restored; what it leads to stays beside it."""
    place, target = LINKS.get(source.stem, ("", ""))
    if not place or (source / place).is_symlink():
        return source
    copy = tmp_path / "hostile" / source.name
    shutil.copytree(source.parent / "outside", copy.parent / "outside")
    shutil.copytree(source, copy)
    subprocess.run(["chmod", "-R", "u+w", copy], check=True)
    (copy / place).unlink()
    (copy / place).symlink_to(target)
    assert (copy / place).exists()
    return copy


@functools.lru_cache(maxsize=2)
def truth_of(path: Path) -> Truth:
    return read_zarr(path) if path.is_dir() or path.suffix == ".zip" else read_h5ad(path)


# ------------------------------------------------------------------------------------------------------- ok: every value
@pytest.mark.parametrize("row", rows_of("ok", "h5ad", "zarr"))
def test_every_value(data, row, tmp_path):
    """Epoch and `inorder`, small batches with all columns: equal to h5py, to the manifest, to `cat` and to `export`."""
    source = data / row["path"]
    options = ["--batch-size", "8", "--obs", "all"]
    with Mount(source, options=options) as mnt:
        epoch, inorder = passes(mnt)
        check_pass(epoch, truth_of(source), 8, shuffled=True, strings=True)
        check_pass(inorder, truth_of(source), 8, shuffled=False, strings=True)
        check_manifest(inorder, mnt, row)
        check_cat(source, mnt, options, [epoch, inorder])
        check_export(source, mnt, options, epoch, tmp_path)


@pytest.mark.parametrize("row", rows_of("ok", "h5ad", "zarr"))
def test_default_options(data, row, tmp_path):
    """The same at the default batch size and the default choice of columns."""
    source = data / row["path"]
    with Mount(source) as mnt:
        epoch, inorder = passes(mnt)
        check_pass(epoch, truth_of(source), 256, shuffled=True)
        check_pass(inorder, truth_of(source), 256, shuffled=False)
        check_export(source, mnt, [], epoch, tmp_path)


@pytest.mark.parametrize("row", [p for p in rows_of("ok", "h5ad", "zarr") if re.search("layers|obsm", p.values[0].get("extra", "layers"))])
def test_layers_and_obsm(data, row):
    """Layers (CSR, CSC and dense) and obsm matrices, of the same rows as X."""
    source, extra = data / row["path"], json.loads(row["extra"])
    truth = truth_of(source)
    layers = list(extra.get("layers", {}))
    obsm = list(truth.obsm)
    options = ["--batch-size", "16"]
    options += ["--layers", ",".join(layers)] if layers else []
    options += ["--obsm", ",".join(obsm)] if obsm else []
    with Mount(source, options=options) as mnt:
        for folder_pass, shuffled in zip(passes(mnt), (True, False)):
            check_pass(folder_pass, truth, 16, shuffled=shuffled, layers=layers, obsm=obsm)


def passes(mnt: Path) -> tuple[Pass, Pass]:
    dataset = load_dataset(mnt)
    return Pass(mnt / "epoch-00000", dataset), Pass(mnt / "inorder", dataset)


def check_cat(source: Path, mnt: Path, options: list, folder_passes: list[Pass]) -> None:
    """`cat` writes the bytes of the mounted file: the first and the last batch of each pass."""
    for p in folder_passes:
        for name in {p.batch_names[0], p.batch_names[-1]}:
            path = f"{p.folder.name}/{name}"
            out = shufflefs("cat", *options, source, "--path", path, text=False)
            assert out.returncode == 0, out.stderr
            assert out.stdout == (mnt / path).read_bytes(), f"cat {path} differs from the mount"


def check_export(source: Path, mnt: Path, options: list, epoch: Pass, tmp_path: Path) -> None:
    """`export` writes the same files with the same bytes."""
    out = shufflefs("export", *options, source, "--out", tmp_path / "out", "--path", epoch.folder.name)
    assert out.returncode == 0, out.stderr
    folder = next((tmp_path / "out").rglob("batches.txt")).parent
    assert sorted(p.name for p in folder.glob("batch-*")) == epoch.batch_names, "export does not hold the batches of the epoch"
    for name in [*epoch.batch_names, "batches.txt", "rows.npy"]:
        assert (folder / name).read_bytes() == (epoch.folder / name).read_bytes(), f"export of {name} differs from the mount"


# ------------------------------------------------------------------------------------------------ the manifest's own values
def row_sum(values: np.ndarray) -> float:
    """Double additions from left to right, from +0.0."""
    return float(np.add.accumulate(np.asarray(values, "f8"))[-1]) + 0.0 if len(values) else 0.0


def digest_sums(sums) -> str:
    bits = np.asarray(sums, "<f8").view("<u8").copy()
    bits[np.isnan(sums)] = 0x7FF8000000000000
    return hashlib.sha256(bits.tobytes()).hexdigest()


def digest_text(labels) -> str:
    return hashlib.sha256("\n".join(labels).encode()).hexdigest()


def check_manifest(inorder: Pass, mnt: Path, row: dict) -> None:
    """Sums, digests of names and checks of columns, computed from the batches of `inorder`."""
    batches = list(inorder)
    names = [name for batch in batches for name in batch.names]
    var_names = (mnt / "var_names.txt").read_text().split("\n")[:-1]
    assert (len(names), len(var_names)) == (int(row["n_rows"]), int(row["n_vars"]))
    assert (names[0], names[-1], digest_text(names)) == (row["obs_first"], row["obs_last"], row["obs_names_sha256"])
    assert digest_text(var_names) == row["var_names_sha256"]
    sums, nnz = [], 0
    for batch in batches:
        x = batch.matrix("X")
        for i in range(len(batch.rows)):
            values = x.row(i)[1] if isinstance(x, Csr) else x[i]
            sums.append(row_sum(values))
            nnz += len(values) if isinstance(x, Csr) else int(np.count_nonzero(values))
    assert repr(row_sum(np.array(sums))) == row["x_sum"]
    assert str(nnz) == row["x_nnz"]
    assert digest_sums(sums) == row["x_rows_sha256"]
    for name, dtype, n_categories, missing, check in json.loads(row["obs"]):
        assert column_summary([b.column(name) for b in batches], dtype) == [n_categories, missing, check], f"obs.{name}"


def column_summary(parts: list, dtype: str) -> list:
    """[number of categories, missing rows, check] as the manifest defines them."""
    first = parts[0]
    match first:
        case Category() if "[string]" in dtype:
            labels = [v for p in parts for v in p.labels()]
            return [len(first.categories), labels.count(None), digest_text([v or "" for v in labels])[:16]]
        case Category():
            codes = np.concatenate([p.codes for p in parts]).astype("<i4")
            return [len(first.categories), int((codes < 0).sum()), hashlib.sha256(codes.tobytes()).hexdigest()[:16]]
        case Text():
            labels = [v for p in parts for v in p.labels]
            return [None, labels.count(None), digest_text([v or "" for v in labels])[:16]]
        case Numbers() | Nullable():
            values = np.concatenate([p.values for p in parts])
            mask = np.concatenate([p.mask for p in parts]) if isinstance(first, Nullable) else np.zeros(len(values), bool)
            if values.dtype.kind == "f":
                mask = mask | np.isnan(values)
            return [None, int(mask.sum()), repr(row_sum(values[~mask]))]


# ------------------------------------------------------------------------------------------------------- refused at mount
@functools.cache
def baseline_peak_kib() -> int:
    return run_measured("--version")[2]


def check_refusal(source: Path, cwd: Path | None, tmp_path: Path) -> None:
    """Exit code 1 in under a second, one line, little memory."""
    argument, mnt = source.name if cwd else source, tmp_path / "mnt"
    for _ in range(3):
        code, stderr, peak_kib, seconds = run_measured("mount", argument, mnt, cwd=cwd)
        take_away(mnt)
        assert code == 1, f"exit code {code}: {stderr}"
        line = one_line_error(stderr)
        assert source.name in line, f"the file is not named: {line}"
        assert peak_kib - baseline_peak_kib() < MEMORY_GROWTH_KIB, f"{peak_kib} KiB"
        if pattern := REASONS.get(source.name.removesuffix(source.suffix)):
            assert re.search(pattern, line), f"element or reason not named: {line}"
        if seconds < 1:
            return
    pytest.fail(f"refused only after {seconds:.1f} s")  # three times, so not because the machine was busy


@pytest.mark.parametrize("row", rows_of("refuse", "h5ad", "hostile h5ad", "hostile zarr", "other mudata", "other decoy", "other spatialdata"))
def test_refused_at_mount(data, row, tmp_path):
    check_refusal(with_links(data / row["path"], tmp_path), None, tmp_path)


@pytest.mark.parametrize("row", rows_of("refuse", "hostile h5ad", "hostile zarr"))
def test_refused_from_inside_the_folder(data, row, tmp_path):
    """HDF5 resolves external files against the working directory."""
    source = with_links(data / row["path"], tmp_path)
    check_refusal(source, source.parent, tmp_path)


@pytest.mark.parametrize("row", rows_of("refuse-or-ok", "h5ad", "hostile h5ad", "10x", "zarr"))
def test_refused_or_right(data, row, tmp_path):
    source = data / row["path"]
    try:
        mount = Mount(source, options=["--batch-size", "8"])
        with mount as mnt:
            epoch, inorder = passes(mnt)
            if row["x_rows_sha256"]:
                check_manifest(inorder, mnt, {**row, "obs": "[]"} if "hostile" in row["kind"] else row)
            if not row["kind"].startswith(("hostile", "10x")):
                check_pass(epoch, truth_of(source), 8, shuffled=True)
            if row["kind"].startswith("10x"):
                check_10x(source, inorder)
            assert_no_secret(list(epoch))
    except MountFailed as refusal:
        assert refusal.code == 1 and not row["kind"].startswith(("10x", "zarr")), refusal.stderr
        line = one_line_error(refusal.stderr)
        assert source.name in line and re.search(r";|use |\buse\b|--|rewrite|convert", line), f"no way out: {line}"


def check_10x(source: Path, inorder: Pass) -> None:
    """Entry by entry as h5py reads them: columns of genes x cells are rows of cells x genes."""
    with h5py.File(source) as f:
        group = f["matrix"] if "matrix" in f else f[next(iter(f))]
        data, indices, indptr = (group[k][()] for k in ("data", "indices", "indptr"))
    x = Csr(data, indices.astype(np.int64), indptr.astype(np.int64), int(group_shape(source)[0]))
    for batch in inorder:
        check_matrix(batch.matrix("X"), x, batch.rows, source.name)


def group_shape(source: Path) -> np.ndarray:
    with h5py.File(source) as f:
        return (f["matrix"] if "matrix" in f else f[next(iter(f))])["shape"][()]


# ---------------------------------------------------------------------------------------------- AnnData inside something else
@pytest.mark.parametrize("modality", ["mod1", "mod2"])
def test_mudata(data, modality):
    """`SOURCE::mod/NAME` is that AnnData object."""
    source = data / "other/mudata_v0.2.4.h5mu"
    with h5py.File(source) as f:
        truth = read_nodes(f[f"mod/{modality}"])
    with Mount(f"{source}::mod/{modality}", options=["--batch-size", "8", "--obs", "all"]) as mnt:
        for folder_pass, shuffled in zip(passes(mnt), (True, False)):
            check_pass(folder_pass, truth, 8, shuffled=shuffled, strings=True)


def test_spatialdata(data):
    """The tables of SpatialData; those without any rows are refused."""
    source = data / "other/spatialdata_0.3.zarr"
    tables = sorted(p.name for p in (source / "tables").iterdir() if p.is_dir())
    served = 0
    for table in tables:
        truth = read_zarr(source, f"tables/{table}")
        options = ["--batch-size", "8", "--obs", "all", *(["--x", "none"] if truth.x is None else [])]
        try:
            with Mount(f"{source}::tables/{table}", options=options) as mnt:
                for folder_pass, shuffled in zip(passes(mnt), (True, False)):
                    check_pass(folder_pass, truth, 8, shuffled=shuffled, strings=True)
            served += 1
        except MountFailed as refusal:
            assert truth.n_rows == 0, refusal.stderr
    assert tables and served


# ------------------------------------------------------------------------------- one bad chunk or row fails alone (promise 6)
@pytest.mark.parametrize("inside", [False, True], ids=["", "from-inside"])
@pytest.mark.parametrize("row", rows_of("refuse-or-eio", "hostile h5ad", "hostile zarr"))
def test_one_bad_record_fails_alone(data, row, tmp_path, inside):
    source = with_links(data / row["path"], tmp_path)
    try:
        mount = Mount(source.name if inside else source, foreground=True, cwd=source.parent if inside else None,
                      options=["--batch-size", "4", "--fetch-factor", "2"])
        with mount as mnt:
            before = peak_rss_kib(mount.process.pid)
            check_damaged(mnt, source.name, DAMAGED_ROWS[source.stem], undamaged(data, source))
            assert peak_rss_kib(mount.process.pid) - before < MEMORY_GROWTH_KIB
            assert mount.process.poll() is None, "the server died"
    except MountFailed:
        check_refusal(source, source.parent if inside else None, tmp_path)


def peak_rss_kib(pid: int) -> int:
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1])


def undamaged(data: Path, source: Path) -> Truth:
    """What the hostile files were made of: cells 1000 to 1063 and the first 500 genes of the large file."""
    whole = truth_of(data / "h5ad/Baron_H1.csr.gzip.h5ad")
    rows = whole.x.take(np.arange(1000, 1064))
    keep = rows.indices < 500
    indptr = np.concatenate([[0], np.cumsum(keep)])[rows.indptr]
    x = Csr(rows.data[keep], rows.indices[keep], indptr, 500)
    if source.stem in ("gzip_bomb_chunk", "zstd_frame_lies"):
        dense = np.zeros((64, 500), "f4")
        dense[np.repeat(np.arange(64), np.diff(x.indptr)), x.indices] = x.data
        x = dense
    obs = {name: _labels_of(column, 1000, 1064) for name, column in whole.obs.items()}
    return Truth(whole.obs_names[1000:1064], whole.var_names[:500], x, obs)


def _labels_of(column: Category, start: int, stop: int) -> Text:
    return Text(Category(column.codes[start:stop], column.categories).labels())


def check_damaged(mnt: Path, source_name: str, damaged: range, truth: Truth) -> None:
    """EIO for exactly the batches that hold a damaged row, right values in all others, twice; each failure is on record."""
    failed = set()
    for folder_pass in (*passes(mnt), Pass(mnt / "epoch-00000"), Pass(mnt / "inorder")):
        rows = iter(np.array_split(folder_pass.rows, range(4, len(folder_pass.rows), 4)))
        for name, want in zip(folder_pass.batch_names, rows, strict=True):
            path = folder_pass.folder / name
            if set(want.tolist()) & set(damaged):
                with pytest.raises(OSError) as caught:
                    path.read_bytes()
                assert caught.value.errno == 5, f"{path}: {caught.value}"
                failed.add(f"{folder_pass.folder.name}/{name}")
                continue
            batch = Batch(path.read_bytes())
            assert_no_secret([batch])
            labels = {c: batch.column(c).labels() for c in batch.column_names}
            assert labels == {c: [truth.obs[c].labels[r] for r in want] for c in truth.obs}
            check_batch_without_obs(batch, truth, str(path))
    assert failed
    with open(mnt / ".shufflefs/errors.tsv", newline="") as f:
        recorded = list(csv.DictReader(f, delimiter="\t", quoting=csv.QUOTE_NONE))
    assert {line["path"] for line in recorded} == failed
    assert all(source_name in line["error"] for line in recorded)
    assert (mnt / ".shufflefs/log").read_text().strip(), "nothing in the log"


def check_batch_without_obs(batch: Batch, truth: Truth, where: str) -> None:
    """The categories of a slice differ from those of the whole, so obs is compared by label elsewhere."""
    batch.tensors = {k: v for k, v in batch.tensors.items() if not k.startswith("obs.")}
    batch.__dict__.pop("column_names", None)
    check_batch(batch, Truth(truth.obs_names, truth.var_names, truth.x), where=where)


def assert_no_secret(batches: list[Batch]) -> None:
    """The number of the folder that is out of bounds turns up nowhere: not as a value, not as text."""
    for batch in batches:
        for name, values in batch.tensors.items():
            assert not (values == SECRET).any(), f"{name} holds a byte from outside of the source"
        assert str(SECRET).encode() not in batch.image
