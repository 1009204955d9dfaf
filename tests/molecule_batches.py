"""Takes batches of molecules of every format apart, and compares them with what the source holds."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from urllib.parse import unquote

import numpy as np

from atompack_files import Molecule, read_file
from batches import parse, same_bytes

ALWAYS = {"row", "n_atoms", "ptr"}


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors or npz batch."""
    image = path.read_bytes()
    assert len(image) == path.stat().st_size, "st_size is not the number of bytes"
    if path.suffix == ".safetensors":
        return parse(image)[0]
    with zipfile.ZipFile(io.BytesIO(image)) as archive:
        assert archive.testzip() is None
        for info in archive.infolist():
            assert info.compress_type == zipfile.ZIP_STORED and info.date_time == (1980, 1, 1, 0, 0, 0)
    with np.load(path, allow_pickle=False) as file:
        arrays = {unquote(name): file[name] for name in file.files}
    identity = json.loads(bytes(arrays.pop("shufflefs")).rstrip(b"\0"))
    assert {"order", "seed", "epoch", "batch", "fingerprint", "pad_rows"} == identity.keys()
    return arrays


def check_flat(arrays: dict[str, np.ndarray], molecules: list[Molecule], rows, dataset: dict, where: str, chosen=None) -> None:
    """Every value of every molecule, bit for bit; what a molecule lacks is marked, and NaN or 0."""
    wanted = [molecules[r] for r in rows]
    assert arrays["row"].tolist() == list(rows), f"{where}: row"
    counts = [len(m.atomic_numbers) for m in wanted]
    assert arrays["n_atoms"].dtype == np.uint32 and arrays["n_atoms"].tolist() == counts, f"{where}: n_atoms"
    ptr = arrays["ptr"]
    assert ptr.dtype == np.int64 and ptr.tolist() == [0, *np.cumsum(counts, dtype=int).tolist()], f"{where}: ptr"
    names = {f["name"] for f in dataset["fields"] if f["optional"]}
    assert names == {name for m in molecules for name in m.fields} | (names - {n for m in molecules for n in m.fields})
    seen = set(ALWAYS) | ({"source"} & arrays.keys())
    for name in ("positions", "atomic_numbers"):
        if chosen is None or name in chosen:
            parts = [getattr(m, name) for m in wanted]
            assert same_bytes(arrays[name], np.concatenate(parts)), f"{where}: {name}"
            seen.add(name)
    for name in names if chosen is None else names & set(chosen):
        seen |= check_field(arrays, name, wanted, ptr, where)
    assert seen == arrays.keys(), f"{where}: {sorted(seen ^ arrays.keys())}"


def check_field(arrays: dict, name: str, wanted: list[Molecule], ptr: np.ndarray, where: str) -> set[str]:
    where = f"{where}: {name}"
    present = arrays[f"{name}.present"]
    assert present.dtype == np.bool_ and present.tolist() == [name in m.fields for m in wanted], f"{where}.present"
    seen = {f"{name}.present"}
    values = [m.fields.get(name) for m in wanted]
    if f"{name}.bytes" in arrays:
        starts = check_offsets(arrays, name, [len((v or "").encode()) for v in values], where)
        text = arrays[f"{name}.bytes"].tobytes()
        assert [text[a:b].decode() for a, b in zip(starts, starts[1:])] == [v or "" for v in values], where
        return seen | {f"{name}.bytes", f"{name}.offsets"}
    if f"{name}.values" in arrays:
        starts = check_offsets(arrays, name, [0 if v is None else v.size for v in values], where)
        dims = arrays[f"{name}.dims"]
        assert dims.dtype == np.int64
        for value, dim, a, b in zip(values, dims, starts, starts[1:]):
            shape = () if value is None else value.shape
            assert dim.tolist() == list(shape) + [-1] * (dims.shape[1] - len(shape)), f"{where}.dims"
            assert value is None or same_bytes(arrays[f"{name}.values"][a:b], value.ravel()), where
        return seen | {f"{name}.values", f"{name}.offsets", f"{name}.dims"}
    if name not in arrays:
        assert all(v is None for v in values), where
        return seen
    got = arrays[name]
    per_atom = name.startswith("atom_properties.") or name in ("forces", "velocities", "charges")
    assert len(got) == (ptr[-1] if per_atom else len(wanted)), where
    for i, value in enumerate(values):
        mine = got[ptr[i] : ptr[i + 1]] if per_atom else got[i]
        if value is None:
            assert (np.isnan(mine) if got.dtype.kind == "f" else mine == 0).all(), f"{where}: invented"
        else:
            assert got.dtype == value.dtype and np.asarray(mine).tobytes() == value.tobytes(), f"{where}: {mine} {value}"
            assert np.shape(mine) == value.shape, f"{where}: {np.shape(mine)} {value.shape}"
    return seen | {name}


def check_offsets(arrays: dict, name: str, lengths: list[int], where: str) -> list[int]:
    offsets = arrays[f"{name}.offsets"]
    assert offsets.dtype == np.int64 and offsets.tolist() == [0, *np.cumsum(lengths, dtype=int).tolist()], f"{where}.offsets"
    return offsets.tolist()


def check_atp(path: Path, molecules: list[Molecule], rows, where: str) -> None:
    """An Atompack database with equal records, for the reader here and for atompack."""
    import atompack

    got = read_file(path.read_bytes())
    assert len(got) == len(rows)
    for mine, row in zip(got, rows):
        assert equal(mine, molecules[row]), f"{where}: row {row}"
    db = atompack.Database.open(str(path))
    assert len(db) == len(rows)
    for i, row in enumerate(rows):
        check_upstream(db[i], molecules[row], f"{where}: row {row}")


def equal(a: Molecule, b: Molecule) -> bool:
    if not (same_bytes(a.positions, b.positions) and same_bytes(a.atomic_numbers, b.atomic_numbers) and a.fields.keys() == b.fields.keys()):
        return False
    pairs = [(a.fields[k], b.fields[k]) for k in a.fields]
    return all(x.tobytes() == y.tobytes() and x.shape == y.shape if hasattr(x, "shape") else x == y for x, y in pairs)


def check_upstream(theirs, molecule: Molecule, where: str) -> None:
    """What atompack's own reader says of a molecule."""
    assert np.asarray(theirs.positions).tobytes() == molecule.positions.tobytes(), where
    assert np.asarray(theirs.atomic_numbers).tobytes() == molecule.atomic_numbers.tobytes(), where
    fields = dict(molecule.fields)
    # Atompack shows the name in flat batches only.
    fields.pop("name", None)
    for key in ("energy", "forces", "charges", "velocities", "cell", "stress", "pbc"):
        mine, value = getattr(theirs, key), fields.pop(key, None)
        assert (mine is None) == (value is None), f"{where}: {key}"
        assert value is None or np.array_equal(np.asarray(mine), value, equal_nan=True), f"{where}: {key}"
    for scope, prefix in (("atom", "atom_properties."), ("molecule", "properties.")):
        keys = {name.removeprefix(prefix) for name in fields if name.startswith(prefix)}
        assert set(theirs.property_keys(scope=scope)) == keys, where
        for key in keys:
            value = fields[prefix + key]
            try:
                mine = theirs.get_property(key)
            except ValueError:
                # A type that its getter does not know, or a key that is in both scopes.
                continue
            if hasattr(value, "shape"):
                assert np.asarray(mine).tobytes() == value.tobytes(), f"{where}: {key}"
            else:
                assert mine == value, f"{where}: {key}"


# ------------------------------------------------------------------------------------------------------------------ extxyz
def check_extxyz(path: Path, molecules: list[Molecule], rows, dataset: dict, where: str) -> None:
    """Every frame through ASE: positions, calculator, info and arrays. ASE makes doubles of everything; in its own type each value is the same."""
    from ase.io import read

    left_out = {entry["name"] for entry in dataset["left_out"]}
    frames = read(path, ":", format="extxyz")
    assert len(frames) == len(rows), where
    for atoms, row in zip(frames, rows):
        check_frame(atoms, molecules[row], row, left_out, f"{where}: row {row}")


def check_frame(atoms, molecule: Molecule, row: int, left_out: set[str], where: str) -> None:
    assert same_bytes(atoms.get_positions().astype(molecule.positions.dtype), molecule.positions), f"{where}: positions"
    assert atoms.numbers.tolist() == molecule.atomic_numbers.tolist(), f"{where}: numbers"
    assert atoms.info.pop("row") == row, where
    fields, results = dict(molecule.fields), dict(atoms.calc.results) if atoms.calc else {}
    cell, pbc = fields.pop("cell", None), fields.pop("pbc", None)
    cell = np.zeros((3, 3)) if cell is None else cell
    assert np.array_equal(atoms.cell.array.astype(cell.dtype), cell), f"{where}: cell"
    assert atoms.pbc.tolist() == (pbc.tolist() if pbc is not None else [False] * 3), f"{where}: pbc"
    arrays = {k: v for k, v in atoms.arrays.items() if k not in ("numbers", "positions")}
    for name, value in fields.items():
        key = name.removeprefix("atom_properties.").removeprefix("properties.")
        if name in left_out or value is None:
            continue
        per_atom = name.startswith("atom_properties.") or name in ("forces", "velocities", "charges")
        places = (arrays, results) if per_atom else (atoms.info, results)
        found = next((place.pop(key) for place in places if key in place), None)
        assert found is not None, f"{where}: {name} is missing; {sorted(results)} {sorted(atoms.info)}"
        if isinstance(found, str) and key == "uid":
            # ASE leaves it as text.
            found = float(found)
        if isinstance(value, str):
            assert found == value, f"{where}: {name}: {found!r} {value!r}"
        elif name == "stress":
            s = value
            voigt = [s[0, 0], s[1, 1], s[2, 2], s[1, 2], s[0, 2], s[0, 1]]
            assert np.array_equal(np.asarray(found, s.dtype), voigt), f"{where}: stress"
        else:
            got = np.asarray(found)
            if value.dtype == np.float32:
                got = got.astype("f4")
            assert got.size == value.size, f"{where}: {name}"
            assert np.array_equal(got.reshape(value.shape), value, equal_nan=value.dtype.kind == "f"), f"{where}: {name}"
    rest = {**arrays, **atoms.info, **results}
    assert not rest, f"{where}: invented {rest}"
