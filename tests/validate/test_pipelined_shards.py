"""FSDP under a pipeline, as published rows have it: parameters stay gathered between micro-batches."""

from pathlib import Path

import pytest

from platform.cost_model.columns import from_rows
from platform.cost_model.predict import predict
from platform.validate.cells import Row
from platform.validate.facts import normalized
from platform.validate.published_run import interpret
from platform.validate.rows import read_rows

TABLE = Path(__file__).parents[1] / "cost_model" / "tables" / "published_bf16.csv"
LLAMA_405B = next(row for row in read_rows(TABLE) if row["model"] == "llama3-405b")
"""tp 8, pp 16, 64 shards, 32 micro-batches a step: 12.6 s."""


def of(**changes: str) -> tuple[object, object, float]:
    """Returns (stage, gradient sync, exposed seconds of data parallelism) of the row with `changes`."""
    row: Row = {**LLAMA_405B, "software": "torchtitan", "strategy": "fsdp"} | changes
    run = interpret(normalized(row))
    return run.layout["zero_stage"], run.layout["grad_sync"], float(predict(from_rows([run.values])).step.data_s[0])


@pytest.mark.parametrize("strategy", ["fsdp", "hsdp"])
def test_parameters_stay_gathered_and_gradients_are_reduced_once(strategy: str) -> None:
    stage, sync, data_s = of(strategy=strategy)
    assert (stage, sync) == (2, "last") and data_s < 3


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "zero3"},
        {"notes": "model FLOPs; reshard_after_forward: always"},
        {"notes": "model FLOPs; reshards parameters after every micro-batch"},
    ],
)
def test_a_row_may_state_that_they_are_gathered_anew(changes: dict[str, str]) -> None:
    stage, sync, data_s = of(**changes)
    assert (stage, sync) == (3, "last") and data_s > 1.5 * of()[2]


def test_without_a_pipeline_each_micro_batch_gathers_and_reduces() -> None:
    alone = {"pp": "1", "dp": "1024", "vp": "1", "grad_accum": "2"}
    assert of(**alone)[:2] == (3, "every")
    assert of(**alone, grad_sync="last")[:2] == (3, "last")


def test_a_stated_sync_stands() -> None:
    assert of(grad_sync="every")[:2] == (2, "every")
