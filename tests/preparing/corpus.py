"""Inputs of `platform.prepare` for tests, and what a folder that it wrote holds."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "uint16": 8}


def texts(count: int, seed: int = 0) -> list[str]:
    """Documents of some bytes to some kilobytes, some with letters of several bytes, none empty."""
    generator = np.random.default_rng(seed)
    words = np.array(["alpha", "beta", "gämma", "δelta", "\U0001d4d4psilon", "zeta\n", "eta"])
    return [" ".join(words[generator.integers(0, 7, size)]) for size in generator.integers(1, 700, count)]


def write_megatron(
    path: Path, documents: Sequence[Sequence[Sequence[int]]], kind: str = "uint16", *, reverse: bool = False
) -> Path:
    """The pair of `documents`, each of some sequences, by the layout that Megatron-LM writes.

    With `reverse` the sequences lie in the .bin from the last to the first.
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
    """The token ids of every document of a folder, in its order."""
    return [ids for file in sorted(folder.glob("*.parquet")) for ids in pq.read_table(file)["tokens"].to_pylist()]


def as_bytes(documents: Sequence[str]) -> list[list[int]]:
    """The documents, a token a byte."""
    return [list(text.encode()) for text in documents]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, hidden ones too."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
