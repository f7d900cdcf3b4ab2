"""What is read back from an engine is what runs: a tampered engine is found out, an fp16 overflow is counted."""

import dataclasses
import functools
import math

import pytest

from tests.contract.cases import BLOOM, recipe
from tests.contract.group import run_group
from tests.contract.reference import reference
from tests.contract.tampering import DDP, FSDP, TAMPERINGS, ZERO, mismatches_of, overflows
from trainers.layout import Layout

HALF = [
    dataclasses.replace(DDP, dp_replicate=2),
    dataclasses.replace(FSDP, dp_shard=2),
    Layout(engine="deepspeed", zero_stage=0, dp_replicate=2),
    Layout(engine="deepspeed", zero_stage=1, dp_shard=2),
    dataclasses.replace(ZERO, dp_shard=2),
    dataclasses.replace(ZERO, dp_shard=2, zero_stage=3),
]


@functools.cache
def found() -> dict[str, list[str]]:
    return run_group(mismatches_of, list(TAMPERINGS), 1)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TAMPERINGS)
def test_a_mismatch_is_named(name: str) -> None:
    expected = TAMPERINGS[name][2]
    sentences = found()[name]
    if not expected:
        assert sentences == []
    assert [sentence for sentence in sentences if not sentence.startswith(expected)] == []
    assert bool(sentences) == bool(expected)


@functools.cache
def half() -> list[dict[str, list[float]]]:
    return run_group(overflows, HALF, 2)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("index", range(len(HALF)), ids=[layout.label for layout in HALF])
def test_an_overflowing_fp16_step_is_skipped_and_counted(index: int) -> None:
    result = half()[index]
    assert result["mismatches"] == []
    assert result["skipped"] == [0, 1, 1, 1]
    assert result["kept"] == [False, True, False, False]
    assert [math.isfinite(norm) for norm in result["norms"]] == [True, False, True, True]
    expected = reference(recipe(BLOOM))
    assert result["losses"][0] == pytest.approx(expected.losses[0], rel=5e-3)
    assert result["norms"][0] == pytest.approx(expected.grad_norms[0], rel=3e-2)
    assert result["losses"][1] == result["losses"][2] > result["losses"][3]
