"""Where FP8 weights may be kept over a step, and what is said elsewhere."""

import dataclasses
from typing import Any

import pytest

from tests.spec.support_cases import DDP, FLOAT8, GPUS, LAYOUT, ZERO_1
from trainers.spec.support import refusal

KEPT: dict[str, Any] = {**DDP, "fp8_weights": "kept"}


@pytest.mark.parametrize("split", [{}, {"dp_replicate": 1, "pp": 2}, {"dp_replicate": 1, "cp": 2}])
def test_they_are_kept_wherever_ddp_casts_them(split: dict[str, Any]) -> None:
    assert refusal(FLOAT8, dataclasses.replace(LAYOUT, **{**KEPT, **split}), GPUS) is None


@pytest.mark.parametrize(
    ("recipe", "layout", "sentence"),
    [
        (
            {"compute_precision": "bf16"},
            {},
            "only an FP8 recipe casts weights to FP8, got fp8_weights kept with bf16: choose cast, or fp8_tensorwise",
        ),
        (
            {"compute_precision": "fp8_rowwise"},
            {},
            "weights with a scale for each row are cast along rows for one pass and along columns for the other, got"
            " fp8_weights kept with fp8_rowwise: choose cast, or fp8_tensorwise",
        ),
        ({}, {"cuda_graphs": "on"}, "CUDA graphs were not tried with fp8_tensorwise compute: choose cuda_graphs off"),
    ],
)
def test_where_they_are_not_kept_the_reason_is_said(
    recipe: dict[str, Any], layout: dict[str, Any], sentence: str
) -> None:
    chosen = dataclasses.replace(LAYOUT, **{**KEPT, **layout})
    assert refusal(dataclasses.replace(FLOAT8, **recipe), chosen, GPUS) == sentence


def test_an_engine_that_keeps_them_otherwise_says_how() -> None:
    with pytest.raises(ValueError) as refused:
        dataclasses.replace(LAYOUT, fp8_weights="kept")
    assert str(refused.value) == (
        "fp8_weights is an axis of ddp, got fp8_weights kept with fsdp at stage 3: choose cast, since FSDP2 gathers"
        " weights in FP8, and at zero_stage 2 keeps them until the optimizer's step"
    )
    with pytest.raises(ValueError, match="fp8_weights is an axis of ddp, got fp8_weights kept with deepspeed at stage"):
        dataclasses.replace(LAYOUT, **ZERO_1, fp8_weights="kept")
