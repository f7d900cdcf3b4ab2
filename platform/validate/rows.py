"""Reads a measured table into rows with facts as columns (`facts`)."""

import collections
import csv
import os
import pathlib

from platform.common.errors import InputError
from platform.validate.cells import Row
from platform.validate.facts import normalized
from trainers.records.plain_files import open_plain

NEEDED = (
    "model", "layers", "hidden", "heads", "vocab", "seq_len", "gpu", "gpus", "tp", "pp", "strategy", "micro_batch",
    "activation_ckpt", "precision", "status",
)  # fmt: skip
_CODES = (
    "strategy", "activation_ckpt", "flash_attention", "seq_parallel", "status", "software", "attention_kernel", "fused",
    "tp_overlap", "dp_overlap", "cp_comm", "matmul_precision", "gradient_precision", "eager", "launch_blocking",
    "checkpoint_inputs", "float8_scaling",
    "regathers", "schedule", "bucket_sizes", "bare_loop", "flops", "node", "architecture",
)  # fmt: skip
"""Columns of fixed words, in which upper and lower case are equal."""
_MOST_BYTES = 2**30
"""Largest size of a readable table, bytes."""


def read_rows(path: pathlib.Path) -> list[Row]:
    """Returns the rows of a table, with the facts in their prose as columns.

    Raises:
        InputError: the file does not exist, or it lacks columns that the model needs.
    """
    try:
        table = open_plain(path, links=True, most_bytes=_MOST_BYTES)
        with os.fdopen(table, newline="", encoding="utf-8-sig") as file:  # spreadsheets begin with a byte order mark
            reader = csv.DictReader(file)
            rows, wide = [], 0
            for row in reader:
                rows.append(row)
                wide = wide or (None in row) * reader.line_num
            header = reader.fieldnames or ()
    except InputError as error:
        raise InputError(f"cannot read table: {error}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"cannot read table {path}: {cause}") from None
    twice = [name for name, count in collections.Counter(header).items() if name and count > 1]
    if twice:
        raise InputError(f"table {path} has the columns {', '.join(twice)} more than once: keep one of each")
    parted = [mark for mark in (";", "\t", "|") if len(header) == 1 and mark in header[0]]
    if parted:
        raise InputError(f"table {path} parts its columns by {parted[0]!r}: save it with commas")
    missing = [name for name in NEEDED if name not in header]
    if missing:
        raise InputError(
            f"table {path} lacks the columns {', '.join(missing)}; docs/reference/columns.md has the whole header"
        )
    if wide:
        raise InputError(
            f"line {wide} of table {path} has more cells than its header: put quotes around a cell with a comma, and"
            " write decimals with a point"
        )
    return [normalized({name: _cell(name, value) for name, value in row.items()}) for row in rows]


def _cell(name: str, value: str | None) -> str:
    text = (value or "").strip()
    return text.lower() if name in _CODES else text
