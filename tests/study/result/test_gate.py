"""The numerics gate: its verdict, and the layouts that serve as its reference."""

import dataclasses
import math
from typing import Any

import pytest

from platform.study.result.gate import compare, references, verdict_on
from search_spaces.candidate import Candidate
from tests.samples import RECIPE, layout, measurement, oom
from trainers.records.journal import GateCurves
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

PLAIN = layout(engine="ddp", zero_stage=0, dp_shard=1, dp_replicate=4)
FUSED = layout(attention="flex", loss="chunked", compile="block")
LOSSES, NORMS = (12.5, 12.0, 11.0), (3.0, 2.0, 1.0)
FP32 = dataclasses.replace(RECIPE, compute_precision="fp32")


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
        (RECIPE, {"grad_norms": (math.inf, 2.0, 1.0)}, True),
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
