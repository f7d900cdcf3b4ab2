"""The numerics gate: its verdict, and the layouts that serve as its reference."""

import base64
import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from platform.study.result.gate import compare, references, verdict_on
from search_spaces.candidate import Candidate
from tests.samples import RECIPE, layout, measurement, oom
from trainers.records.journal import GateCurves, GateSketch
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

PLAIN = layout(engine="ddp", zero_stage=0, dp_shard=1, dp_replicate=4)
FUSED = layout(attention="flex", loss="chunked", compile="block")
LOSSES, NORMS = (12.5, 12.0, 11.0), (3.0, 2.0, 1.0)
FP32 = dataclasses.replace(RECIPE, compute_precision="fp32")
FP16 = dataclasses.replace(RECIPE, compute_precision="fp16")


def curves(on: Layout = FUSED, *, recipe: Recipe = RECIPE, is_reference: bool = False, **fields: object) -> GateCurves:
    """Returns the curves of a layout's gate."""
    defaults: dict[str, object] = {"losses": LOSSES, "grad_norms": NORMS, "steps": 3, "sequences": 32}
    return GateCurves(
        trial_id="t1",
        recipe=recipe,
        layout=on,
        is_reference=is_reference,
        **{**defaults, **fields},  # type: ignore[reportArgumentType]
    )


REFERENCE = curves(PLAIN, is_reference=True)


@pytest.mark.parametrize(
    ("recipe", "fields", "passed"),
    [
        (RECIPE, {}, True),
        (RECIPE, {"losses": (12.5, 12.05, 11.0)}, True),
        (RECIPE, {"losses": (12.5, 12.1, 11.0)}, False),
        (RECIPE, {"grad_norms": (3.05, 2.0, 1.0)}, True),
        (RECIPE, {"grad_norms": (3.0, 2.0, 1.04)}, False),
        (RECIPE, {"losses": (12.5, math.nan, 11.0)}, False),
        (RECIPE, {"grad_norms": (math.inf, 2.0, 1.0)}, False),
        (FP16, {"grad_norms": (math.inf, 2.0, 1.0)}, False),
        (FP32, {"losses": (12.5, 12.05, 11.0)}, False),
        (FP32, {"losses": (12.5, 12.001, 11.0)}, True),
    ],
)
def test_curves_must_stay_within_the_precision_s_tolerance(
    recipe: Recipe, fields: dict[str, Any], passed: bool
) -> None:
    verdict = compare(curves(PLAIN, recipe=recipe, is_reference=True), curves(recipe=recipe, **fields))
    assert verdict.passed is passed
    assert ("passed" if passed else "failed") in verdict.sentence


def test_norms_of_fp16_s_skipped_steps_are_left_out_where_neither_is_finite() -> None:
    skipped: dict[str, Any] = {"recipe": FP16, "grad_norms": (math.inf, 2.0, 1.0)}
    assert compare(curves(PLAIN, **skipped), curves(**skipped)).passed
    in_bf16: dict[str, Any] = {**skipped, "recipe": RECIPE}
    assert not compare(curves(PLAIN, **in_bf16), curves(**in_bf16)).passed
    of_none: dict[str, Any] = {"recipe": FP16, "grad_norms": (math.inf,) * 3}
    assert not compare(curves(PLAIN, **of_none), curves(**of_none)).passed, "no norm was compared"


NAMES = ("a", "b", "c", "d")


def sketch_of(*scales: float, of: str = "gradients of step 1") -> GateSketch:
    """Returns sketches of four parameters that are a vector of ones times these numbers."""
    sums = np.outer(scales, np.ones(8)).astype("<f4")
    return GateSketch(of=of, values=base64.b64encode(sums.tobytes()).decode())


APART, LONGER = "gradients of step 1", "length of gradients of step 1"


def tensors(*sketches: GateSketch, **fields: Any) -> dict[str, Any]:
    return {"tensors": NAMES, "sketches": sketches, "clip_error": 0.0, "update_error": 0.0, **fields}


@pytest.mark.parametrize(
    ("recipe", "fields", "failed"),
    [
        (RECIPE, tensors(sketch_of(1, 2, 3, 4)), []),
        (RECIPE, tensors(sketch_of(1, 2, 3, 5)), []),
        (RECIPE, tensors(sketch_of(1, 2, 3, 6)), [LONGER]),
        (RECIPE, tensors(sketch_of(1, 2, 3, -4)), [APART]),
        (RECIPE, tensors(sketch_of(1, 2, 3, 12)), [APART, LONGER]),
        (RECIPE, tensors(sketch_of(1, 2, 3, math.nan)), [APART, LONGER]),
        (RECIPE, tensors(sketch_of(1.7, 3.4, 5.1, 6.8)), [LONGER, f"{APART} in the median"]),
        (FP32, tensors(sketch_of(1, 2, 3, 4.1)), [APART, LONGER]),
        (RECIPE, tensors(sketch_of(1, 2, 3, 4), update_error=0.1), ["optimizer step"]),
        (RECIPE, tensors(sketch_of(1, 2, 3, 4), clip_error=1.0), ["clipped length"]),
        (
            RECIPE,
            tensors(sketch_of(1, 2, 3, 4), tensors=("a", "b", "c", "e")),
            ["gradients of step 1, of other parameters than the reference's:"],
        ),
    ],
)
def test_tensors_must_stay_within_tolerances(recipe: Recipe, fields: dict[str, Any], failed: list[str]) -> None:
    plain = curves(PLAIN, recipe=recipe, is_reference=True, **tensors(sketch_of(1, 2, 3, 4)))
    verdict = compare(plain, curves(recipe=recipe, **fields))
    assert [check.of for check in verdict.checks if not check.passed] == failed
    assert "tensor by tensor" not in verdict.sentence and verdict.passed == (not failed)


def test_numbers_are_compared_together_and_have_no_lengths() -> None:
    def sketches(*numbers: float) -> dict[str, Any]:
        sums = np.zeros((4, 8), "<f4")
        sums[:2], sums[2, 5], sums[3, 1] = 1.0, *numbers
        return tensors(GateSketch(of=APART, values=base64.b64encode(sums.tobytes()).decode()))

    def failed(*numbers: float) -> list[str]:
        plain = curves(PLAIN, recipe=FP32, is_reference=True, **sketches(1.0, 0.01))
        return [
            check.of for check in compare(plain, curves(recipe=FP32, **sketches(*numbers))).checks if not check.passed
        ]

    assert failed(1.0005, 0.01) == failed(1.0, 0.0105) == []
    for numbers in ((1.002, 0.01), (1.0, 0.012), (-1.0, 0.01), (math.nan, 0.01)):
        assert APART in failed(*numbers) and LONGER not in failed(*numbers)


def test_powersgd_is_compared_before_its_factors_are_sent() -> None:
    recipe = dataclasses.replace(FP32, compression="powersgd_4")
    first, second = sketch_of(1, 2, 3, 4), sketch_of(1, 2, 3, 9, of="gradients of step 2")
    plain = curves(PLAIN, recipe=recipe, is_reference=True, **tensors(first, sketch_of(1, 1, 1, 1, of=second.of)))
    assert compare(plain, curves(recipe=recipe, **tensors(first, second))).passed
    assert not compare(plain, curves(recipe=recipe, **tensors(sketch_of(1, 2, 3, 5), second))).passed


def test_an_older_journal_s_verdict_says_what_was_not_compared() -> None:
    assert "gradients were not compared tensor by tensor" in compare(REFERENCE, curves()).sentence


def test_a_verdict_wants_both_curves_of_one_recipe_and_size() -> None:
    assert verdict_on(FUSED, RECIPE, [curves()]) is None
    assert verdict_on(FUSED, RECIPE, [REFERENCE]) is None
    assert verdict_on(FUSED, FP32, [REFERENCE, curves()]) is None
    assert verdict_on(FUSED, RECIPE, [curves(PLAIN, is_reference=True, sequences=8), curves()]) is None
    shown = verdict_on(FUSED, RECIPE, [curves(losses=(9.0, 9.0, 9.0)), REFERENCE, curves()])
    assert shown is not None and shown.passed, "the last curves of a layout count"


def candidates(*layouts: Layout) -> list[Candidate]:
    return [Candidate(recipe=RECIPE, layout=candidate_layout, micro_batches=(1,)) for candidate_layout in layouts]


def test_the_reference_has_the_plainest_kernels_that_fit() -> None:
    sdpa = layout(attention="sdpa")
    frugal = layout(checkpointing="full")
    pool = candidates(FUSED, sdpa, layout(), frugal, PLAIN)
    ran: list[Measurement] = [measurement(on=FUSED), measurement(on=sdpa)]
    assert references(RECIPE, pool, ran)[0] == frugal, "nothing plain ran: what surely fits comes first"
    assert references(RECIPE, pool, [*ran, measurement(on=layout())])[0] == layout()
    assert references(RECIPE, pool, [*ran, measurement(on=layout()), measurement(on=PLAIN)])[0] == PLAIN
    assert PLAIN not in references(RECIPE, pool, [*ran, oom(on=PLAIN)])
    slow = measurement(on=PLAIN, outcome=Outcome.SLOW)
    assert references(RECIPE, pool, [*ran, slow, oom(on=PLAIN, micro_batch=2)])[0] == PLAIN, "it ran at micro-batch 1"
