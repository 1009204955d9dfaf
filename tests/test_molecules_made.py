"""Molecules that nobody else writes: fields that only some have, shards that differ, odd keys, and every way a file can lie."""

from __future__ import annotations

import errno
import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest

import atompack_files as atp
from atompack_files import Section, array, file_of, read_molecules, tensor, text
from batches import load_dataset
from molecule_batches import arrays_of, check_atp, check_extxyz, check_flat, check_upstream
from mounting import Mount, one_line_error, shufflefs
from test_molecules import FORMATS, check_folder

pytestmark = pytest.mark.usefixtures("fuse")

ENERGY = array("energy", 0, -1.5, kind=0)


def forces(n: int, tag: int = 4) -> Section:
    return array("forces", tag, np.arange(3 * n).reshape(n, 3) / 8, kind=0)


def write(folder: Path, name: str, *args, **kwargs) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file_of(*args, **kwargs))
    return path


def refused(*sources, options=()) -> str:
    out = shufflefs("plan", *options, *sources)
    assert out.returncode == 1, out.stdout + out.stderr
    return one_line_error(out.stderr)


def heterogeneous() -> list[tuple[int, list[Section]]]:
    """Optional energy, forces, tags, cell; texts; tensors of one shape and of several; molecules without atoms; both kinds of scalars."""
    molecules = []
    for i in range(24):
        n = i % 5
        sections = [Section(0, "charges", 3, np.full(n, i / 2).tobytes())] if i % 4 == 0 else []
        sections += [array("cell", 10, np.arange(9) + i, kind=0)] if i % 3 == 0 else []
        sections += [ENERGY] if i % 2 else []
        sections += [forces(n)] if i % 5 else []
        sections += [text("name", f"mölecule {i}", kind=0)] if i % 3 else []
        sections += [array("pbc", 9, [i % 2, 1, 0], kind=0)] if i % 4 == 1 else []
        sections += [array("tags", 5, np.arange(n) - 2, kind=1)] if i % 2 == 0 else []
        sections += [tensor("desc", 14, np.full((n, 2, 2), i), kind=1)] if i % 3 != 1 else []
        sections += [tensor("moving", 15, np.arange(i % 4 * n).reshape(n, i % 4), kind=1)] if i % 2 else []
        sections += [array("count", 1, 2**60 + i)] if i % 7 else []
        sections += [array("half", 11, i / 2), array("vector", 6, [i, -i, 0.5])]
        sections += [Section(2, "nothing", 13, b"")] if i % 2 else []
        sections += [text("remark", ["12", "T", "a b", '"quoted"\\', "line\nbreak"][i % 5])]
        sections += [tensor("same", 16, [[i, 1], [2, 3]])] if i % 3 else []
        sections += [tensor("shape", 17, np.arange(i % 4).reshape([(i % 4,), (1, i % 4)][i % 2]))]
        molecules.append((n, sections))
    return molecules


@pytest.mark.parametrize("codec", [0, 1, 2])
@pytest.mark.parametrize("batch_format", FORMATS)
def test_heterogeneous_fields(tmp_path, batch_format, codec):
    source = write(tmp_path, "mixed.atp", heterogeneous(), codec=codec)
    molecules = read_molecules(source)
    options = ["--format", batch_format, "--batch-size", "5", "--block-size", "2", "--fetch-factor", "2"]
    with Mount(source, options=options) as mnt:
        dataset = load_dataset(mnt)
        for folder in ("epoch-00000", "inorder"):
            check_folder(mnt / folder, molecules, 5, batch_format, dataset)
        if batch_format == "safetensors":
            a = arrays_of(mnt / "inorder/batch-0000000.safetensors")
            assert a["atom_properties.desc"].shape == (int(a["ptr"][-1]), 2, 2) and a["properties.same"].shape == (5, 2, 2)
            assert {"atom_properties.moving.dims", "properties.shape.dims"} <= a.keys()
            assert next(f for f in dataset["fields"] if f["name"] == "properties.nothing")["null"]
        if batch_format == "extxyz":
            assert {e["name"] for e in dataset["left_out"]} == {"atom_properties.moving", "properties.shape"}


@pytest.mark.parametrize("batch_format", FORMATS)
@pytest.mark.parametrize("level", [1, 3, 19])
def test_compressed_records_of_all_sizes(tmp_path, level, batch_format):
    """As atompack writes them, from a few bytes, which it stores as they are, to more than a block of the compressor."""
    import atompack

    rng = np.random.default_rng(level)
    source = tmp_path / "c.atp"
    db = atompack.Database(str(source), compression="zstd", level=level)
    for n_atoms, n in ((1, 9), (12, 9), (30, 30), (64, 40), (65, 41), (300, 9), (6000, 3)):
        positions, forces = (rng.random((n, n_atoms, 3), dtype=np.float32) * scale for scale in (10, 0.1))
        numbers = rng.choice(np.array([1, 6, 7, 8], dtype=np.uint8), (n, n_atoms))
        # What repeats within a record and what does not.
        db.add_arrays_batch(np.round(positions, n % 4), numbers, energy=np.arange(n) / 4, forces=forces)
    db.flush()
    del db
    molecules = read_molecules(source)
    upstream = atompack.Database.open(str(source))
    for i, molecule in enumerate(molecules):
        check_upstream(upstream[i], molecule, f"{i}")
    with Mount(source, options=["--format", batch_format, "--batch-size", "16"]) as mnt:
        check_folder(mnt / "epoch-00000", molecules, 16, batch_format, load_dataset(mnt))


@pytest.mark.parametrize("batch_format", FORMATS)
def test_shards_of_different_fields(tmp_path, batch_format):
    """The union of the fields; what a whole shard lacks is missing in each of its molecules."""
    write(tmp_path, "d/a.atp", [(2, [ENERGY])] * 3)
    write(tmp_path, "d/b.atp", [(3, [forces(3), text("smiles", "CO")])] * 4)
    write(tmp_path, "d/c.atp", [])
    write(tmp_path, "d/deep/a.atp", [(1, [array("gap", 0, 2.0)])] * 2, codec=2)
    molecules = read_molecules(tmp_path / "d")
    assert len(molecules) == 9
    with Mount(tmp_path / "d", options=["--format", batch_format, "--batch-size", "4"]) as mnt:
        dataset = load_dataset(mnt)
        assert [Path(f["path"]).name for f in dataset["files"]] == ["a.atp", "b.atp", "c.atp", "a.atp"]
        check_folder(mnt / "epoch-00000", molecules, 4, batch_format, dataset)


def test_conflicts_name_both_files_and_the_field(tmp_path):
    a = write(tmp_path, "a.atp", [(2, [ENERGY, array("k", 3, [1, 2])])])
    for name, sections, field in (("b.atp", [array("energy", 11, 1.0, kind=0)], "energy"), ("c.atp", [array("k", 3, [1, 2, 3])], "properties.k"),
                                  ("d.atp", [array("k", 1, 1)], "properties.k")):
        line = refused(a, write(tmp_path, name, [(2, sections)]))
        assert name in line and "a.atp" in line and f"{field}:" in line, line
    wide = write(tmp_path, "wide.atp", [(2, [ENERGY])], wide=True)
    for batch_format in ("safetensors", "atp"):
        line = refused(a, wide, options=["--format", batch_format])
        assert "positions" in line and "a.atp" in line and "wide.atp" in line and "float64" in line, line
    line = refused(a, Path(os.devnull))
    assert "molecules" in line


def test_several_sources(tmp_path):
    a, b = (write(tmp_path, f"{c}.atp", [(i + 1, [ENERGY]) for i in range(n)]) for c, n in (("a", 5), ("b", 7)))
    molecules = read_molecules(a) + read_molecules(b)
    with Mount(a, b, options=["--batch-size", "4"]) as mnt:
        dataset = load_dataset(mnt)
        check_folder(mnt / "epoch-00001", molecules, 4, "safetensors", dataset)
        batch = arrays_of(mnt / "epoch-00001/batch-0000001.safetensors")
        assert batch["source"].dtype == np.int32 and batch["source"].tolist() == (batch["row"] >= 5).astype(int).tolist()


def test_mixed_precision(tmp_path):
    """Record format 3 with double forces over single positions, and the reverse."""
    for name, wide, tag in (("a.atp", False, 7), ("b.atp", True, 4)):
        source = write(tmp_path, name, [(3, [forces(3, tag), array("energy", 11, 0.25, kind=0)])] * 5, wide=wide, record_format=3)
        for batch_format in FORMATS:
            with Mount(source, options=["--format", batch_format]) as mnt:
                check_folder(mnt / "inorder", read_molecules(source), 256, batch_format, load_dataset(mnt))


def test_formats_2_and_3_in_one_database(tmp_path):
    """Records of both are copied into one batch, which says 3."""
    a = write(tmp_path, "a.atp", [(3, [forces(3)])] * 3)
    b = write(tmp_path, "b.atp", [(2, [forces(2)])] * 3, record_format=3)
    with Mount(a, b, options=["--format", "atp"]) as mnt:
        path = mnt / "epoch-00000/batch-0000000.atp"
        check_atp(path, read_molecules(a) + read_molecules(b), np.load(mnt / "epoch-00000/rows.npy").tolist(), "mixed")
        assert struct.unpack_from("<I", path.read_bytes(), 56)[0] == 3


def test_a_cut_batch_is_no_database(tmp_path):
    """Both headers are the same, so atompack does not open a part of a batch as an empty database; whole, it can be appended to."""
    import atompack

    source = write(tmp_path, "a.atp", [(3, [ENERGY])] * 8)
    out = tmp_path / "out"
    assert shufflefs("export", source, "--format", "atp", "--out", out, "--path", "epoch-00000").returncode == 0
    batch = next(out.rglob("*.atp"))
    cut = tmp_path / "cut.atp"
    cut.write_bytes(batch.read_bytes()[:-30])
    with pytest.raises(Exception, match="header"):
        atompack.Database.open(str(cut))
    os.chmod(batch, 0o644)
    assert len(atompack.Database.open(str(batch), mmap=False)) == 8


def test_fields_are_chosen(tmp_path):
    source = write(tmp_path, "a.atp", [(2, [ENERGY, forces(2), text("smiles", "CO")])] * 6)
    molecules = read_molecules(source)
    for chosen in (["energy"], ["positions", "forces"], ["properties.smiles"]):
        with Mount(source, options=["--fields", ",".join(chosen), "--batch-size", "4"]) as mnt:
            dataset = load_dataset(mnt)
            assert {f["name"] for f in dataset["fields"] if f["served"]} == set(chosen)
            check_folder(mnt / "epoch-00000", molecules, 4, "safetensors", dataset, chosen)
    assert "energy, forces, properties.smiles" in refused(source, options=["--fields", "Energy"])
    for options, words in ((["--format", "atp", "--fields", "energy"], "as they are"), (["--genes", "x"], "--genes"), (["--format", "csv"], "extxyz"),
                           (["--obs", "a"], "--obs"), (["--fields", "energy,energy"], "twice")):
        out = shufflefs("plan", *options, source)
        assert out.returncode == 2 and words in one_line_error(out.stderr), out.stderr


ODD_KEYS = ["a/b", "..", "a.present", "quote\"d", "tab\there", "new\nline", "ümlaut", "100%", "with blank", "a=b", "{x}", "uid", "energy", "x" * 255]


@pytest.mark.parametrize("batch_format", FORMATS)
def test_odd_keys(tmp_path, batch_format):
    sections = [array(key, 0, i) for i, key in enumerate(ODD_KEYS)] + [array(key, 3, [i, i], kind=1) for i, key in enumerate(ODD_KEYS)]
    source = write(tmp_path, "odd.atp", [(2, sections)] * 3)
    with Mount(source, options=["--format", batch_format]) as mnt:
        check_folder(mnt / "inorder", read_molecules(source), 256, batch_format, load_dataset(mnt))


def test_clashing_names_are_refused(tmp_path):
    source = write(tmp_path, "a.atp", [(1, [array("x", 0, 1), array("x.present", 0, 2)])])
    assert "properties.x.present" in refused(source)


@pytest.mark.parametrize("batch_format", FORMATS)
def test_elements_without_a_symbol(tmp_path, batch_format):
    """Atomic numbers that no element has come out as they are."""
    image = bytearray(file_of([(2, [ENERGY])]))
    at = atp.FIRST_RECORD + 4 + 24
    image[at : at + 2] = [0, 200]
    source = tmp_path / "a.atp"
    source.write_bytes(image)
    with Mount(source, options=["--format", batch_format]) as mnt:
        check_folder(mnt / "inorder", read_molecules(source), 256, batch_format, load_dataset(mnt))


def test_padding_repeats_molecules(tmp_path):
    source = write(tmp_path, "a.atp", [(i % 3, [ENERGY]) for i in range(10)])
    molecules = read_molecules(source)
    for batch_format in FORMATS:
        with Mount(source, options=["--format", batch_format, "--batch-size", "4", "--tail", "pad"]) as mnt:
            rows = np.load(mnt / "epoch-00000/rows.npy").tolist()
            assert len(rows) == 12 and rows[10:] == rows[:2]
            path, where = mnt / f"epoch-00000/batch-0000002.{batch_format}", batch_format
            match batch_format:
                case "atp":
                    check_atp(path, molecules, rows[8:], where)
                case "extxyz":
                    check_extxyz(path, molecules, rows[8:], load_dataset(mnt), where)
                case _:
                    check_flat(arrays_of(path), molecules, rows[8:], load_dataset(mnt), where)


# ------------------------------------------------------------------------------------------------------- files that lie
def test_files_that_are_refused(tmp_path):
    good = [(2, [ENERGY])] * 4

    def is_refused(words: str, image: bytes) -> None:
        path = tmp_path / "lie.atp"
        path.write_bytes(image)
        line = refused(path)
        assert words in line and "lie.atp" in line, line

    never_flushed = atp.slot(generation=0) * 2 + atp.record(2, [ENERGY])
    is_refused("no committed molecules", never_flushed)
    image = file_of(good)
    is_refused("not an Atompack file", image[:100] + b"x" + image[101:5000] + b"x" + image[5001:])
    is_refused("not an Atompack file", b"")
    is_refused("needs", image[:-1])
    is_refused("entry 2: ", file_of(good, change_index=lambda i, e: e.__setitem__(0, e[0] + (i == 2) * 10**6)))
    is_refused("entry 0: ", file_of(good, change_index=lambda i, e: e.__setitem__(0, 8000)))
    is_refused("without compression", file_of(good, change_index=lambda i, e: e.__setitem__(2, e[2] + 1)))
    is_refused("atoms need", file_of(good, change_index=lambda i, e: e.__setitem__(3, 2**32 - 1)))
    is_refused("4294967295 bytes", file_of(good, codec=2, change_index=lambda i, e: e.__setitem__(2, 2**32 - 1)))
    is_refused("record format 4", file_of(good, record_format=4))
    is_refused("of what type positions are", file_of(good, record_format=3, blob=b"", schema_offset=0))
    is_refused("schema", file_of(good, blob=b"\1\0\0\0\4\1\0\0\0"))
    is_refused("contradicts itself", atp.slot(index_offset=9000, index_len=3, n=1) * 2 + b"\0" * 5000)
    short = bytearray(image)
    short[struct.unpack_from("<Q", image, 4096 + 24)[0]] = 3
    is_refused("3 entries", bytes(short))


def lies(i: int) -> dict[str, dict]:
    """Damage to record `i` that shows when it is read."""
    def at(record: bytes, offset: int, new: bytes) -> bytes:
        return record[:offset] + new + record[offset + len(new) :]

    def only(change):
        return {"change_record": lambda k, record: change(record) if k == i else record}

    behind_atoms = 4 + 2 * 12 + 2
    section = behind_atoms + 2
    return {
        "one atom more": only(lambda r: at(r, 0, b"\3")),
        "one atom less": only(lambda r: at(r, 0, b"\1")),
        "atoms": only(lambda r: at(r, 0, b"\xff\xff\xff\xff")),
        "index": {"change_index": lambda k, e: e.__setitem__(3, e[3] - (k == i))},
        "more sections": only(lambda r: at(r, behind_atoms, b"\xff\xff")),
        "fewer sections": only(lambda r: at(r, behind_atoms, b"\0\0")),
        "key length": only(lambda r: at(r, section + 1, b"\xff")),
        "another key": only(lambda r: at(r, section, b"\2")),
        "another type": only(lambda r: at(r, section + 8, b"\1")),
        "payload length": only(lambda r: at(r, section + 9, b"\xff\xff\xff\xff")),
        "cut": {"change_index": lambda k, e: e.__setitem__(slice(1, 3), [e[1] - (k == i), e[2] - (k == i)])},
    }


@pytest.mark.parametrize("batch_format", FORMATS)
@pytest.mark.parametrize("lie", lies(0))
def test_one_lying_record_fails_alone(tmp_path, lie, batch_format):
    good = [(2, [ENERGY])] * 12
    source = write(tmp_path, "lie.atp", good, **lies(5)[lie])
    check_one_fails(source, batch_format, 5, read_molecules(write(tmp_path, "good.atp", good)))


def check_one_fails(source: Path, batch_format: str, bad: int, molecules: list) -> None:
    with Mount(source, options=["--format", batch_format, "--batch-size", "3", "--fetch-factor", "2"]) as mnt:
        dataset = load_dataset(mnt)
        rows = np.load(mnt / "epoch-00000/rows.npy").tolist()
        for k in range(0, len(rows), 3):
            path, mine = mnt / f"epoch-00000/batch-{k // 3:07}.{batch_format}", rows[k : k + 3]
            if bad in mine:
                with pytest.raises(OSError) as caught:
                    path.read_bytes()
                assert caught.value.errno == errno.EIO
            elif batch_format == "atp":
                check_atp(path, molecules, mine, str(path))
            elif batch_format == "extxyz":
                check_extxyz(path, molecules, mine, dataset, str(path))
            else:
                check_flat(arrays_of(path), molecules, mine, dataset, str(path))
        log = (mnt / ".shufflefs/errors.tsv").read_text()
        assert f"row {bad}" in log and source.name in log, log


@pytest.mark.parametrize("codec", [1, 2])
@pytest.mark.parametrize("damage", ["longer", "shorter", "garbage", "bomb"])
def test_compressed_records_that_lie(tmp_path, damage, codec):
    """A stream that decodes to more or less than the index says, that is none, or that claims 2^60 bytes."""
    def change(i: int, stored: bytes) -> bytes:
        if i != 5:
            return stored
        raw = atp.record(2, [ENERGY], seed=5)
        bomb = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 60) + b"\1\0\0\0"
        return {"longer": atp.compress(codec, raw + b"\0"), "shorter": atp.compress(codec, raw[:-1]), "garbage": b"\xff" * 40, "bomb": bomb}[damage]

    good = [(2, [ENERGY])] * 12
    source = write(tmp_path, "lie.atp", good, codec=codec, change_record=change)
    check_one_fails(source, "safetensors", 5, read_molecules(write(tmp_path, "good.atp", good)))


def test_tensors_that_lie(tmp_path):
    """Dimensions whose product overflows, or is not the size: the record fails, also where lengths are measured at mount."""
    for payload in (struct.pack("<B3I", 3, *[2**32 - 1] * 3) + b"\0" * 8, struct.pack("<BI", 1, 3) + b"\0" * 8, b"", b"\xff"):
        good = [(1, [tensor("t", 15, [1.0] * (k % 2))]) for k in range(12)]
        bad = [*good[:5], (1, [Section(2, "t", 15, payload)]), *good[6:]]
        source = write(tmp_path, "lie.atp", bad)
        check_one_fails(source, "safetensors", 5, read_molecules(write(tmp_path, "good.atp", good)))


def test_sections_of_later_versions_are_skipped(tmp_path):
    later = [Section(0, "later", 77, b"xyz"), Section(9, "kind", 200, b"")]
    source = write(tmp_path, "a.atp", [(2, [ENERGY, *later])] * 3, blob=atp.schema([ENERGY]))
    molecules = read_molecules(write(tmp_path, "b.atp", [(2, [ENERGY])] * 3))
    with Mount(source) as mnt:
        check_folder(mnt / "inorder", molecules, 256, "safetensors", load_dataset(mnt))


def test_a_flipped_byte_in_values_is_served(tmp_path):
    """Records have no checksum: what the structure does not tell is not detected, as docs/SEMANTICS.md says."""
    image = bytearray(file_of([(2, [ENERGY])] * 3))
    image[atp.FIRST_RECORD + 6] ^= 1
    source = tmp_path / "a.atp"
    source.write_bytes(image)
    with Mount(source) as mnt:
        check_folder(mnt / "inorder", read_molecules(source), 256, "safetensors", load_dataset(mnt))


def test_a_source_that_grows_is_stale(tmp_path):
    source = write(tmp_path, "a.atp", [(2, [ENERGY])] * 300)
    with Mount(source, options=["--batch-size", "16"]) as mnt:
        with open(source, "ab") as f:
            f.write(b"more")
        with pytest.raises(OSError) as caught:
            (mnt / "epoch-00000/batch-0000000.safetensors").read_bytes()
        assert caught.value.errno == errno.ESTALE


def test_lengths_are_kept_in_the_cache(tmp_path, monkeypatch):
    """The second mount finds the index, the collected schema and the lengths, and serves the same bytes."""
    source = write(tmp_path, "a.atp", heterogeneous(), blob=b"", schema_offset=0)
    old = source.stat().st_mtime - 60
    os.utime(source, (old, old))
    monkeypatch.setitem(__import__("mounting").ENV, "SHUFFLEFS_CACHE_MIN_ROWS", "1")
    options = ["--cache-dir", tmp_path / "cache", "--batch-size", "5"]
    images = [shufflefs("cat", *options, source, text=False).stdout for _ in range(2)]
    assert images[0] == images[1] and len(images[0]) > 4096
    assert len(list((tmp_path / "cache").glob("*.idx"))) == 3
    assert json.loads(shufflefs("plan", "--json", *options, source).stdout)["dataset"]["n_rows"] == 24


def test_an_epoch_is_one_file_for_mace(tmp_path):
    """What README says: batches one behind the other are a training file, with energies, forces and stresses where MACE looks for them."""
    from ase.io import read

    sections = [ENERGY, forces(3), array("stress", 10, np.eye(3), kind=0), array("cell", 10, 4 * np.eye(3), kind=0)]
    source = write(tmp_path, "a.atp", [(3, sections)] * 10)
    with Mount(source, options=["--format", "extxyz", "--batch-size", "4"]) as mnt:
        train = tmp_path / "train.extxyz"
        train.write_bytes(b"".join(path.read_bytes() for path in sorted((mnt / "epoch-00000").glob("batch-*.extxyz"))))
    frames = read(train, ":", format="extxyz")
    assert sorted(frame.info["row"] for frame in frames) == list(range(10))
    for frame in frames:
        assert frame.get_potential_energy() == -1.5 and frame.get_stress().tolist() == [1, 1, 1, 0, 0, 0]
        assert frame.get_forces().tolist() == (np.arange(9).reshape(3, 3) / 8).tolist()


def test_mace_and_graph_snippets_are_in_the_mount(tmp_path):
    source = write(tmp_path, "a.atp", [(3, [ENERGY])] * 3)
    for batch_format, words in (("safetensors", "repeat_interleave"), ("npz", "np.load"), ("atp", "atompack.Database.open"), ("extxyz", "mace_run_train")):
        text = shufflefs("cat", source, "--format", batch_format, "--path", "README.md").stdout
        assert words in text and f"batch-0000000.{batch_format}" in text
