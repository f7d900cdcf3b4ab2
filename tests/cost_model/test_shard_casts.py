"""Casts of FSDP2's shards before they are gathered."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from platform.cost_model.engines.fsdp import Fsdp
from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.validate.published_run import interpret
from platform.validate.rows import read_rows
from search_spaces import load
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

STUDY = Path(__file__).parents[2] / "docs" / "measurements" / "llama3_8b-2xH200.csv"


def _moved(recipe: Recipe, shard: int) -> float:
    """Returns the bytes per parameter that stage 3 moves besides products, where `shard` ranks share parameters."""
    layout = Layout(engine="fsdp", zero_stage=3, dp_shard=shard, grad_sync="last")
    columns = from_points([(recipe, layout, BatchPoint.of(recipe, layout, 1))], find_cluster(f"{shard}xH200"))
    return float(Fsdp().weight_traffic(columns, np.zeros(1))[0])


@pytest.mark.parametrize(
    ("compute", "states", "cast_bytes"),
    [
        ("bf16", "fp32", 4 + 2),
        ("bf16", "bf16", 0),
        ("fp8_tensorwise", "fp32", 8 + 8 + 5),
        ("fp8_tensorwise", "bf16", 6 + 8 + 8 + 5),
        ("fp8_rowwise", "fp32", 4 + 2),
    ],
)
def test_a_shard_is_cast_for_each_of_two_gathers(compute: str, states: str, cast_bytes: float) -> None:
    types = {"compute_precision": compute, "state_precision": states}
    recipe = dataclasses.replace(load("llama3_8b").recipe, **types)  # type: ignore[arg-type]
    assert _moved(recipe, 2) - _moved(recipe, 4) == pytest.approx(2 * cast_bytes * (1 / 2 - 1 / 4))


def test_rows_of_this_project_gather_what_their_precision_says() -> None:
    rows = read_rows(STUDY)
    assert {row["precision"]: interpret(row).values["gathered_bytes"] for row in rows} == {
        "fp8_tensorwise": 1.0,
        "bf16": 2.0,
    }
    assert interpret({**rows[0], "engine": ""}).values["gathered_bytes"] == 2.0
