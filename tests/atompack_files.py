"""Reads and writes `.atp` files without shufflefs code and without atompack: written from the description of the format.

The reader is the oracle where atompack refuses or invents; `test_molecules.py` holds it against atompack where that reads. The writer makes
files that atompack would not: damaged, contradictory, or with keys that nobody would choose.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numcodecs
import numpy as np

SLOT = 4096
FIRST_RECORD = 8192
ARRAYS = {0: "<f8", 1: "<i8", 3: "<f8", 4: "<f4", 5: "<i8", 6: "<f4", 7: "<f8", 8: "<i4", 9: "?", 10: "<f8", 11: "<f4", 12: "<f4"}
TENSORS = {14: "<f4", 15: "<f8", 16: "<i4", 17: "<i8"}
ENTRY_SHAPE = {4: (3,), 7: (3,), 9: (3,), 10: (3, 3), 12: (3, 3)}
SCALARS = {0, 1, 11}
MATRICES = {9, 10, 12}
PER_ATOM = {(0, "charges"), (0, "forces"), (0, "velocities")}
TEXT, NULL = 2, 13


@dataclass
class Molecule:
    """Positions, atomic numbers, and the sections by field name: arrays, text, or None for null."""

    positions: np.ndarray
    atomic_numbers: np.ndarray
    fields: dict[str, object] = field(default_factory=dict)


def field_name(kind: int, key: str) -> str:
    return {0: "", 1: "atom_properties.", 2: "properties."}[kind] + key


# -------------------------------------------------------------------------------------------------------------------- reading
def atp_files(source: Path) -> list[Path]:
    """The files of a source; those of a directory by their paths as text."""
    if source.is_file():
        return [source]
    found = [Path(folder) / name for folder, _, names in os.walk(source) for name in names if name.endswith(".atp")]
    return sorted(found, key=lambda path: path.as_posix())


def read_molecules(source: Path) -> list[Molecule]:
    return [molecule for path in atp_files(source) for molecule in read_file(path.read_bytes())]


def read_file(image: bytes) -> list[Molecule]:
    slots = [image[at : at + SLOT] for at in (0, SLOT)]
    good = [s for s in slots if len(s) == SLOT and s[:4] == b"ATPK" and zlib.adler32(s[:4092]) == int.from_bytes(s[4092:], "little")]
    slot = max(good, key=lambda s: int.from_bytes(s[8:16], "little"))
    _, _, index_offset, _, n = struct.unpack_from("<5Q", slot, 8)
    codec, record_format = slot[48], struct.unpack_from("<I", slot, 56)[0]
    schema_offset = struct.unpack_from("<Q", slot, 60)[0]
    wide = record_format == 3 and image[schema_offset + 4] == 7
    molecules = []
    for i in range(n):
        offset, stored, raw, n_atoms = struct.unpack_from("<QIII", image, index_offset + 8 + 20 * i)
        molecules.append(read_record(decompress(codec, image[offset : offset + stored], raw), wide, n_atoms))
    return molecules


def decompress(codec: int, stored: bytes, raw: int) -> bytes:
    if codec == 1:
        stored = numcodecs.lz4.decompress(struct.pack("<I", raw) + stored)
    elif codec == 2:
        stored = numcodecs.zstd.decompress(stored)
    assert len(stored) == raw
    return bytes(stored)


def read_record(record: bytes, wide: bool, expected_atoms: int) -> Molecule:
    (n,) = struct.unpack_from("<I", record)
    assert n == expected_atoms
    item = 8 if wide else 4
    positions = np.frombuffer(record, f"<f{item}", 3 * n, 4).reshape(n, 3)
    at = 4 + 3 * n * item
    numbers = np.frombuffer(record, "u1", n, at)
    (n_sections,) = struct.unpack_from("<H", record, at + n)
    at += n + 2
    molecule = Molecule(positions, numbers)
    for _ in range(n_sections):
        kind, key_len = record[at], record[at + 1]
        key = record[at + 2 : at + 2 + key_len].decode()
        at += 2 + key_len
        tag, length = record[at], struct.unpack_from("<I", record, at + 1)[0]
        at += 5
        molecule.fields[field_name(kind, key)] = value_of(kind, key, tag, record[at : at + length])
        at += length
    assert at == len(record)
    return molecule


def value_of(kind: int, key: str, tag: int, payload: bytes):
    if tag == TEXT:
        return payload.decode()
    if tag == NULL:
        return None
    if tag in TENSORS:
        dims = struct.unpack_from(f"<{payload[0]}I", payload, 1)
        return np.frombuffer(payload[1 + 4 * payload[0] :], TENSORS[tag]).reshape(dims)
    values = np.frombuffer(payload, ARRAYS[tag]).reshape(-1, *ENTRY_SHAPE.get(tag, ()))
    return values[0] if tag in SCALARS | MATRICES else values


# -------------------------------------------------------------------------------------------------------------------- writing
@dataclass
class Section:
    """One section of a record, as it is written: `payload` may be anything."""

    kind: int
    key: str | bytes
    tag: int
    payload: bytes

    @property
    def raw_key(self) -> bytes:
        return self.key if isinstance(self.key, bytes) else self.key.encode()


def text(key: str, value: str, kind: int = 2) -> Section:
    return Section(kind, key, TEXT, value.encode())


def array(key: str, tag: int, values, kind: int = 2) -> Section:
    return Section(kind, key, tag, np.asarray(values, ARRAYS[tag]).tobytes())


def tensor(key: str, tag: int, values, kind: int = 2) -> Section:
    values = np.asarray(values, TENSORS[tag])
    return Section(kind, key, tag, struct.pack(f"<B{values.ndim}I", values.ndim, *values.shape) + values.tobytes())


def record(n_atoms: int, sections: list[Section], *, wide: bool = False, seed: int = 0) -> bytes:
    rng = np.random.default_rng(seed)
    positions = rng.normal(size=(n_atoms, 3)).astype("<f8" if wide else "<f4")
    out = struct.pack("<I", n_atoms) + positions.tobytes() + rng.integers(1, 90, n_atoms, "u1").tobytes()
    out += struct.pack("<H", len(sections))
    for s in sections:
        out += struct.pack("<BB", s.kind, len(s.raw_key)) + s.raw_key + struct.pack("<BI", s.tag, len(s.payload)) + s.payload
    return out


def schema(sections: list[Section], *, positions_type: int = 4) -> bytes:
    """The union of the sections, each (kind, key) once."""
    union = {(s.kind, s.raw_key): s for s in reversed(sections)}
    out = struct.pack("<IBI", 1, positions_type, len(union))
    for (kind, key), s in sorted(union.items()):
        element = np.dtype(ARRAYS.get(s.tag) or TENSORS.get(s.tag) or "V0").itemsize * int(np.prod(ENTRY_SHAPE.get(s.tag, ())))
        per_atom = kind == 1 or (kind, s.key) in PER_ATOM
        slot = 0 if s.tag in TENSORS or s.tag in (TEXT, NULL) else element if per_atom else len(s.payload)
        out += struct.pack("<BBBHII", kind, s.tag, per_atom, len(key), element, slot) + key
    return out


def slot(**fields) -> bytes:
    f = dict(generation=1, data_start=FIRST_RECORD, index_offset=0, index_len=0, n=0, codec=0, level=0, record_format=2,
             schema_offset=0, schema_len=0) | fields
    out = b"ATPK" + struct.pack("<I5QB3xiIQQ", 2, f["generation"], f["data_start"], f["index_offset"], f["index_len"], f["n"],
                                f["codec"], f["level"], f["record_format"], f["schema_offset"], f["schema_len"])
    out = out.ljust(4092, b"\0")
    return out + struct.pack("<I", zlib.adler32(out))


def compress(codec: int, raw: bytes) -> bytes:
    if codec == 1:
        return bytes(numcodecs.lz4.compress(raw))[4:]
    return bytes(numcodecs.zstd.compress(raw, 3)) if codec == 2 else raw


def file_of(molecules: list[tuple[int, list[Section]]], *, codec: int = 0, wide: bool = False, record_format: int | None = None,
            change_index=None, change_record=None, blob: bytes | None = None, **header) -> bytes:
    """A file of (atoms, sections) pairs. `change_record(i, stored) -> stored` and `change_index(i, [offset, stored, raw, atoms])` damage it."""
    body, index = b"", []
    for i, (n_atoms, sections) in enumerate(molecules):
        raw = record(n_atoms, sections, wide=wide, seed=i)
        stored = compress(codec, raw)
        if change_record is not None:
            stored = change_record(i, stored)
            raw = stored if codec == 0 else raw
        index.append([FIRST_RECORD + len(body), len(stored), len(raw), n_atoms])
        body += stored
    if blob is None:
        blob = schema([s for _, sections in molecules for s in sections], positions_type=7 if wide else 4)
    for i, entry in enumerate(index):
        if change_index is not None:
            change_index(i, entry)
    table = struct.pack("<Q", len(index)) + b"".join(struct.pack("<QIII", *entry) for entry in index)
    at = FIRST_RECORD + len(body)
    fields = dict(index_offset=at + len(blob), index_len=len(table), n=len(index), codec=codec, level=3 if codec == 2 else 0,
                  record_format=record_format or (3 if wide else 2), schema_offset=at if blob else 0, schema_len=len(blob)) | header
    return slot(generation=0) + slot(**fields) + body + blob + table
