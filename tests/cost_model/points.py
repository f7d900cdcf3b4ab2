"""Small helpers of the cost model's tests."""

import csv
from pathlib import Path

import numpy as np

from platform.cost_model.columns import Columns
from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.validate.facts import normalized
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

TABLES = Path(__file__).parent / "tables"
GPT2 = ModelSpec(
    name="gpt2", architecture="gpt2", num_layers=12, hidden_size=768, num_heads=12, vocab_size=50257, max_positions=1024
)
BLOOM_7B1 = ModelSpec(
    name="bloom-7b1", architecture="bloom", num_layers=30, hidden_size=4096, num_heads=32, vocab_size=250880
)
GPT_39B = ModelSpec(
    name="gpt-39b",
    architecture="gpt2",
    num_layers=48,
    hidden_size=8192,
    num_heads=64,
    vocab_size=51200,
    max_positions=2048,
)
with (TABLES / "megatron_ten_rows.csv").open(newline="", encoding="utf-8") as _file:
    _header, _first, *_ = csv.reader(_file)
PRINTED_ROW = dict(zip(_header[: _header.index("notes") + 1], _first, strict=False))
"""GPT 1.7B of Megatron-LM's table as printed in its source, without columns derived from its prose."""
HOP = np.asarray(14e-6)
"""Seconds of one step of a ring between nodes."""


def fsdp(**changes: object) -> Layout:
    """Returns a layout of FSDP2 at stage 3 with `changes`."""
    return Layout(**{"engine": "fsdp", "zero_stage": 3, **changes})  # type: ignore[arg-type]


def point(
    layout: Layout,
    *,
    cluster: str,
    model: ModelSpec = BLOOM_7B1,
    micro_batch: int = 1,
    grad_accum: int = 1,
    **recipe: object,
) -> Columns:
    """Returns the columns of a single row."""
    values = {"seq_len": 2048, "global_batch": micro_batch * grad_accum * layout.data_parallel, **recipe}
    built = Recipe(model=model, **values)  # type: ignore[arg-type]
    batch = BatchPoint(micro_batch=micro_batch, grad_accum=grad_accum)
    return from_points([(built, layout, batch)], find_cluster(cluster))


def printed_row(**changes: str) -> dict[str, str]:
    """Returns `PRINTED_ROW` without its notes and with `changes`, as read from a table."""
    return dict(normalized({**PRINTED_ROW, "notes": "", **changes}))


def changed(columns: Columns, **values: float) -> Columns:
    """Returns the rows with other values in these columns."""
    return Columns.of({**columns.arrays(), **{name: np.array([value]) for name, value in values.items()}})
