#!/usr/bin/env python3
"""Makes the fixtures of the codec tests: stored chunks as h5py and hdf5plugin write them.

Every case is one chunk, taken with `read_direct_chunk`, so that the bytes are those of the reference implementations.
`chunks.bin` holds all stored chunks one after another, `plain.bin` the decoded ones (cases of the same data share them),
`index.tsv` one line per case:

    name  filters  mask  elem_size  stored_at  stored_len  plain_at  plain_len

`filters` are separated by `;`, each `id:value,value,...` as in the creation property list, in encode order. `plain.bin`
is a zlib stream. The blosc2 package writes the frames that the HDF5 plugin never does: of several chunks.

Needs numpy, h5py, hdf5plugin, blosc2. Usage: make.py [FOLDER]
"""

import pathlib
import sys
import tempfile
import zlib

import blosc2
import h5py
import hdf5plugin
import numpy as np

rng = np.random.default_rng(20240607)


def counts(n, dtype):
    """Counts as in single-cell data: small, rarely large."""
    values = rng.geometric(0.4, n)
    large = rng.random(n) < 0.01
    values[large] = rng.integers(100, 120, large.sum())
    return values.astype(dtype)


def indices(n, dtype, n_genes=250):
    """Sorted column indices of successive rows."""
    rows = []
    while sum(map(len, rows)) < n:
        rows.append(np.flatnonzero(rng.random(n_genes) < 0.2))
    return np.concatenate(rows)[:n].astype(dtype)


PLAIN = {
    "f4": counts(1503, "<f4"),
    "i4": indices(1503, "<i4"),
    "u2": indices(1503, "<u2"),
    "u1": counts(1503, "u1"),
    "f8": counts(1005, "<f8"),
    "be": indices(1005, ">i4"),
    "zero": np.zeros(1503, "<f4"),
    "nan": np.full(1503, np.nan, "<f4"),
    "seven": np.full(1503, 7, "<f4"),
    "noise": rng.integers(0, 256, 2000).astype("u1"),
    "dense": counts(45 * 37, "<f4").reshape(45, 37),
    "cube": counts(9 * 10 * 11, "<i2").reshape(9, 10, 11),
    # Larger than one block of zstd, of blosc (forced by level 1), of bitshuffle.
    "long": (np.arange(40_000) % 251 + np.arange(40_000) // 977 * 3).astype("<i4"),
}


def cases():
    """(name, data key, arguments of create_dataset)"""
    for key in ("f4", "i4", "u2", "u1", "f8", "be"):
        yield f"gzip-{key}", key, {"compression": "gzip", "compression_opts": 4}
    for key in ("f4", "u2", "f8", "u1"):
        yield f"shuffle-gzip-{key}", key, {"compression": "gzip", "shuffle": True}
        yield f"lzf-{key}", key, {"compression": "lzf"}
    yield "shuffle-f4", "f4", {"shuffle": True}
    yield "fletcher-f4", "f4", {"fletcher32": True}
    yield "fletcher-noise", "noise", {"fletcher32": True}
    yield "gzip-fletcher-i4", "i4", {"compression": "gzip", "fletcher32": True}
    yield "shuffle-gzip-fletcher-f4", "f4", {"compression": "gzip", "shuffle": True, "fletcher32": True}
    yield "shuffle-lzf-fletcher-u2", "u2", {"compression": "lzf", "shuffle": True, "fletcher32": True}
    yield "lzf-noise-masked", "noise", {"compression": "lzf"}
    yield "gzip-long", "long", {"compression": "gzip"}
    yield "lzf-long", "long", {"compression": "lzf"}
    yield "zstd-long", "long", hdf5plugin.Zstd(3)
    for key in ("f4", "u2"):
        yield f"zstd-{key}", key, hdf5plugin.Zstd(3)
        yield f"shuffle-zstd-{key}", key, {**hdf5plugin.Zstd(9), "shuffle": True}
        yield f"lz4-{key}", key, hdf5plugin.LZ4()
        yield f"lz4-blocks-{key}", key, hdf5plugin.LZ4(nbytes=500)
    yield "lz4-noise", "noise", hdf5plugin.LZ4()
    yield "lz4-long", "long", hdf5plugin.LZ4(nbytes=30000)
    for key in ("f4", "u2", "u1"):
        yield f"bitshuffle-{key}", key, hdf5plugin.Bitshuffle(cname="none")
    for key in ("f4", "u2", "u1", "f8"):
        yield f"bitshuffle-lz4-{key}", key, hdf5plugin.Bitshuffle(cname="lz4")
        yield f"bitshuffle-zstd-{key}", key, hdf5plugin.Bitshuffle(nelems=512, cname="zstd")
    yield "bitshuffle-lz4-long", "long", hdf5plugin.Bitshuffle(cname="lz4")
    for cname in ("blosclz", "lz4", "zlib", "zstd"):
        for shuffle in (0, 1, 2):
            yield f"blosc-{cname}-{shuffle}", "f4", hdf5plugin.Blosc(cname=cname, clevel=5, shuffle=shuffle)
            yield f"blosc2-{cname}-{shuffle}", "f4", hdf5plugin.Blosc2(cname=cname, clevel=5, filters=shuffle)
        yield f"blosc-{cname}-long", "long", hdf5plugin.Blosc(cname=cname, clevel=1, shuffle=1)
        yield f"blosc2-{cname}-long", "long", hdf5plugin.Blosc2(cname=cname, clevel=1, filters=1)
    for key in ("u2", "u1", "f8", "noise", "zero", "nan", "seven"):
        yield f"blosc-{key}", key, hdf5plugin.Blosc(cname="lz4", clevel=9, shuffle=1)
        yield f"blosc2-{key}", key, hdf5plugin.Blosc2(cname="lz4", clevel=9, filters=1)
    yield "blosc-level0", "u2", hdf5plugin.Blosc(cname="lz4", clevel=0)
    yield "blosc2-level0", "u2", hdf5plugin.Blosc2(cname="lz4", clevel=0)
    yield "blosc-bits-long", "long", hdf5plugin.Blosc(cname="lz4", clevel=1, shuffle=2)
    yield "blosc2-delta-i4", "i4", hdf5plugin.Blosc2(cname="zstd", clevel=3, filters=3)
    yield "blosc2-delta-long", "long", hdf5plugin.Blosc2(cname="lz4", clevel=1, filters=3)
    for key in ("dense", "cube"):
        yield f"gzip-{key}", key, {"compression": "gzip", "shuffle": True}
        yield f"blosc-{key}", key, hdf5plugin.Blosc(cname="lz4")
        yield f"blosc2-{key}", key, hdf5plugin.Blosc2(cname="lz4", clevel=1)
        yield f"bitshuffle-{key}", key, hdf5plugin.Bitshuffle(cname="lz4")


def frames():
    """(name, data, frame): frames of several chunks."""
    filters = {
        "delta-shuffle": [blosc2.Filter.DELTA, blosc2.Filter.SHUFFLE],
        "trunc-bits": [blosc2.Filter.TRUNC_PREC, blosc2.Filter.BITSHUFFLE],
        "bits-shuffle": [blosc2.Filter.BITSHUFFLE, blosc2.Filter.SHUFFLE],
    }
    data = np.concatenate([PLAIN["f4"], np.zeros(1000, "<f4"), PLAIN["f4"][::-1], np.full(1000, np.nan, "<f4")])
    for name, chain in filters.items():
        cparams = {"typesize": 4, "codec": blosc2.Codec.LZ4, "filters": chain, "blocksize": 1600, "nthreads": 1}
        # Bits of the mantissa that rounding keeps.
        cparams["filters_meta"] = [10 if f == blosc2.Filter.TRUNC_PREC else 0 for f in chain]
        chunks = blosc2.SChunk(chunksize=4000, contiguous=True, data=data, cparams=cparams)
        plain = np.empty_like(data)
        chunks.get_slice(0, len(data), out=plain)
        yield f"blosc2-frame-{name}", plain, chunks.to_cframe()
    for name, special in (("zero", blosc2.SpecialValue.ZERO), ("nan", blosc2.SpecialValue.NAN)):
        chunks = blosc2.SChunk(chunksize=4000, contiguous=True, cparams={"typesize": 4, "nthreads": 1})
        chunks.fill_special(2500, special)
        plain = np.empty(2500, "<f4")
        chunks.get_slice(0, 2500, out=plain)
        yield f"blosc2-frame-{name}", plain, chunks.to_cframe()


def main(folder):
    plain_at, plain_bytes = {}, bytearray()
    for key, data in PLAIN.items():
        plain_at[key] = len(plain_bytes)
        plain_bytes += data.tobytes()
    stored_bytes, lines = bytearray(), []
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "chunks.h5"
        with h5py.File(path, "w") as file:
            for name, key, options in cases():
                file.create_dataset(name, data=PLAIN[key], chunks=PLAIN[key].shape, **options)
        with h5py.File(path, "r") as file:
            for name, key, _ in cases():
                data = file[name]
                creation = data.id.get_create_plist()
                filters = [creation.get_filter(i) for i in range(creation.get_nfilters())]
                text = ";".join(f"{f[0]}:{','.join(map(str, f[2]))}" for f in filters)
                mask, stored = data.id.read_direct_chunk((0,) * data.ndim)
                # What the library decodes: differs from the source where a filter rounds.
                plain = data[...].astype(data.dtype).tobytes()
                at = plain_at[key]
                if plain != bytes(plain_bytes[at:at + len(plain)]):
                    at = len(plain_bytes)
                    plain_bytes += plain
                fields = (name, text, mask, data.dtype.itemsize, len(stored_bytes), len(stored), at, len(plain))
                lines.append("\t".join(map(str, fields)))
                stored_bytes += stored
    for name, data, frame in frames():
        fields = (name, "32026:1,0,4", 0, 4, len(stored_bytes), len(frame), len(plain_bytes), data.nbytes)
        lines.append("\t".join(map(str, fields)))
        stored_bytes += frame
        plain_bytes += data.tobytes()
    folder.joinpath("chunks.bin").write_bytes(stored_bytes)
    folder.joinpath("plain.bin").write_bytes(zlib.compress(plain_bytes, 9))
    folder.joinpath("index.tsv").write_text("\n".join(lines) + "\n")
    print(len(lines), "cases,", len(stored_bytes), "bytes stored,", len(plain_bytes), "bytes plain")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
