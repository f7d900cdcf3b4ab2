"""Inputs of `platform.prepare` for tests, and the content of the folders that it wrote."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "uint16": 8}


def texts(count: int, seed: int = 0) -> list[str]:
    """Returns non-empty documents of some bytes to some kilobytes, some with multi-byte letters."""
    generator = np.random.default_rng(seed)
    words = np.array(["alpha", "beta", "gämma", "δelta", "\U0001d4d4psilon", "zeta\n", "eta"])
    return [" ".join(words[generator.integers(0, 7, size)]) for size in generator.integers(1, 700, count)]


def write_megatron(
    path: Path, documents: Sequence[Sequence[Sequence[int]]], kind: str = "uint16", *, reverse: bool = False
) -> Path:
    """Writes `documents`, lists of sequences, as the pair of files that Megatron-LM writes; returns `path`, the .bin
    file.

    With `reverse` the sequences are stored in the .bin file from the last to the first.
    """
    sequences = [sequence for document in documents for sequence in document]
    size = np.dtype(kind).itemsize
    lengths = np.array([len(sequence) for sequence in sequences], "<i4")
    places = np.cumsum(lengths.astype("<i8")) - lengths
    if reverse:
        places = lengths.sum() - np.cumsum(lengths.astype("<i8"))
    bounds = np.cumsum([0, *(len(document) for document in documents)])
    stored = sequences[::-1] if reverse else sequences
    path.write_bytes(b"".join(np.array(sequence, kind).tobytes() for sequence in stored))
    path.with_suffix(".idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, CODES[kind], len(sequences), len(bounds))
        + lengths.tobytes()
        + (places * size).astype("<i8").tobytes()
        + bounds.astype("<i8").tobytes()
    )
    return path


def documents_of(folder: Path) -> list[list[int]]:
    """Returns the token ids of every document of a folder, in the order of its files."""
    return [ids for file in sorted(folder.glob("*.parquet")) for ids in pq.read_table(file)["tokens"].to_pylist()]


def as_bytes(documents: Sequence[str]) -> list[list[int]]:
    """Returns the documents as token ids, one token per byte."""
    return [list(text.encode()) for text in documents]


def contents(folder: Path) -> dict[str, bytes]:
    """Returns the bytes of every file of a folder, including hidden ones, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
