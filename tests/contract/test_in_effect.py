"""The settings read back from an engine are those that run: tampering is detected, and an fp16 overflow is counted."""

import dataclasses
import functools
import math
from typing import Any

import pytest

from tests.contract.cases import BLOOM, recipe
from tests.contract.frugality import WHOLE_GIB, factors, frugality, gathers, steps_gib
from tests.contract.group import run_group
from tests.contract.reference import reference
from tests.contract.tampering import DDP, FSDP, TAMPERINGS, ZERO, mismatches_of, overflows
from trainers.spec.layout import Layout

pytestmark = pytest.mark.contract

HALF = [
    dataclasses.replace(DDP, dp_replicate=2),
    dataclasses.replace(FSDP, dp_shard=2),
    Layout(engine="deepspeed", zero_stage=0, dp_replicate=2),
    Layout(engine="deepspeed", zero_stage=1, dp_shard=2),
    dataclasses.replace(ZERO, dp_shard=2),
    dataclasses.replace(ZERO, dp_shard=2, zero_stage=3),
]


@functools.cache
def mismatches() -> dict[str, list[str]]:
    return run_group(mismatches_of, list(TAMPERINGS), 1)


@pytest.mark.parametrize("name", TAMPERINGS)
def test_a_mismatch_is_named(name: str) -> None:
    expected = TAMPERINGS[name][2]
    sentences = mismatches()[name]
    if not expected:
        assert sentences == []
    assert [sentence for sentence in sentences if not sentence.startswith(expected)] == []
    assert bool(sentences) == bool(expected)


GATHERING = {
    "stage 2": Layout(engine="fsdp", zero_stage=2, dp_shard=2),
    "stage 3": Layout(engine="fsdp", zero_stage=3, dp_shard=2),
    "stage 3, keep": Layout(engine="fsdp", zero_stage=3, dp_shard=2, after_backward="keep"),
}
SPARING = {
    # Layout and the most of the fp32 model that a rank's tensors may take while the engine is made. A half is FSDP2's
    # shards, beside one unit whole; the whole on every rank would be 1 and more.
    "fsdp": (dataclasses.replace(FSDP, dp_shard=2), 0.9),
    # A quarter are bf16 parameters, half fp32 masters, and DeepSpeed makes AdamW's states at once, which are a whole;
    # the whole model beside them would be 2.75.
    "zero_3": (dataclasses.replace(ZERO, dp_shard=2, zero_stage=3), 2.2),
    # DDP makes the gradients' buckets at once: two wholes.
    "ddp": (dataclasses.replace(DDP, dp_replicate=2, checkpointing="none"), 2.25),
}


@functools.cache
def two_ranks() -> dict[str, Any]:
    return run_group(_two_ranks, (HALF, [layout for layout, _ in SPARING.values()]), 2)


def _two_ranks(layouts: tuple[list[Layout], list[Layout]]) -> dict[str, Any]:
    """Runs all that takes two ranks in one group, so that the group's start is paid once."""
    return {
        "frugality": frugality(layouts[1]),
        "overflows": overflows(layouts[0]),
        "gathers": {name: gathers(layout) for name, layout in GATHERING.items()},
        "factors": factors(dataclasses.replace(FSDP, dp_shard=2)),
        "ddp_steps": steps_gib(dataclasses.replace(DDP, dp_replicate=2, checkpointing="none")),
    }


@pytest.mark.parametrize("index", range(len(HALF)), ids=[layout.label for layout in HALF])
def test_an_overflowing_fp16_step_is_skipped_and_counted(index: int) -> None:
    result = two_ranks()["overflows"][index]
    assert result["mismatches"] == []
    assert result["skipped"] == [0, 1, 1, 1]
    assert result["kept"][:4] == [False, True, False, False]
    assert all(result["kept"][4:])  # FSDP2: where one shard alone overflows
    assert [math.isfinite(norm) for norm in result["norms"]] == [True, False, True, True]
    expected = reference(recipe(BLOOM))
    assert result["losses"][0] == pytest.approx(expected.losses[0], rel=5e-3)
    assert result["norms"][0] == pytest.approx(expected.grad_norms[0], rel=3e-2)
    assert result["losses"][1] == result["losses"][2] > result["losses"][3]


@pytest.mark.parametrize("name", SPARING)
def test_no_rank_holds_the_model_twice_at_the_start_nor_waits_within_a_step(name: str) -> None:
    peak_gib, lines = two_ranks()["frugality"][list(SPARING).index(name)]
    assert 0.3 * WHOLE_GIB < peak_gib < SPARING[name][1] * WHOLE_GIB
    assert lines == []


def test_ddp_holds_its_gradients_once_also_while_it_orders_its_buckets_anew() -> None:
    """Checks for weights and gradients, two wholes, and what autocast and Adafactor hold beside; DDP's second set of
    gradients would be a third whole.
    """
    assert 2 * WHOLE_GIB < two_ranks()["ddp_steps"] < 2.75 * WHOLE_GIB


def test_what_is_whole_between_two_passes_stays_so_until_the_step() -> None:
    """Checks how often FSDP2 gathers a model of three units, of which stage 3 frees the two blocks after each pass, or
    after forward passes alone.
    """
    assert two_ranks()["gathers"] == {"stage 2": [3, 0, 0], "stage 3": [5, 4, 4], "stage 3, keep": [5, 2, 2]}


def test_gradients_in_bf16_are_clipped_in_one_launch() -> None:
    assert {len(set(types)) for types in two_ranks()["factors"]} == {1}
