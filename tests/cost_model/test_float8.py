"""Predictions of FP8 recipes beside bf16's."""

import dataclasses
from typing import Any

import pytest

from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.lower_bound import lower_bound_gib
from platform.cost_model.predict import predict
from search_spaces import load
from trainers.values.batch import BatchPoint
from trainers.values.layout import Layout

BF16 = load("bloom7b").recipe
COMPILED = Layout(engine="fsdp", zero_stage=3, dp_shard=8, attention="flex", loss="chunked", compile="block")
EAGER = dataclasses.replace(COMPILED, compile="none")


def _seconds(precision: Any, layout: Layout, cluster: str = "8xH200") -> float:
    recipe = dataclasses.replace(BF16, compute_precision=precision)
    rows = from_points([(recipe, layout, BatchPoint.of(recipe, layout, 4))], find_cluster(cluster))
    return float(predict(rows).step.total_s[0])


@pytest.mark.parametrize("precision", ["fp8_tensorwise", "fp8_rowwise"])
def test_compiled_fp8_is_predicted_faster_than_bf16_and_uncompiled_slower_than_compiled(precision: str) -> None:
    bf16, compiled, eager = _seconds("bf16", COMPILED), _seconds(precision, COMPILED), _seconds(precision, EAGER)
    assert 1.1 < bf16 / compiled < 1.8, "8 B are published 10 to 25 % faster, of products that are half as long"
    assert eager / compiled > _seconds("bf16", EAGER) / bf16, "what compiling saves is more with casts"


def test_attention_and_head_stay_at_the_rate_of_bf16() -> None:
    float8 = dataclasses.replace(BF16, compute_precision="fp8_tensorwise")
    batch = BatchPoint.of(BF16, COMPILED, 4)
    row, plain = (from_points([(each, COMPILED, batch)], find_cluster("8xH200")) for each in (float8, BF16))
    assert row.flash_flops == pytest.approx(plain.flash_flops)
    assert row.matmul_flops / row.head_slowdown == pytest.approx(plain.matmul_flops)
    assert row.matmul_flops / plain.matmul_flops == pytest.approx(2 * 0.9, rel=0.01)


@pytest.mark.parametrize(
    ("precision", "layout", "micro_batch", "peak_gib"),
    [
        ("bf16", {"engine": "ddp"}, 2, 136.4),
        ("fp8_tensorwise", {"engine": "ddp"}, 1, 89.1),
        ("fp8_tensorwise", {"engine": "ddp", "checkpointing": "selective"}, 2, 114.4),
        ("fp8_tensorwise", {"engine": "fsdp", "zero_stage": 2}, 1, 102.9),
    ],
)
def test_the_floor_is_below_what_an_h200_measured(
    precision: Any, layout: dict[str, Any], micro_batch: int, peak_gib: float
) -> None:
    """Llama-3 8B at length 8,192 with bf16 states (docs/lab/2026-11-24.md)."""
    recipe = dataclasses.replace(load("llama3_8b").recipe, state_precision="bf16", compute_precision=precision)
    chosen = Layout(**layout, loss="chunked", compile="block")
    floor = lower_bound_gib(recipe, chosen, BatchPoint(micro_batch=micro_batch, grad_accum=128 // micro_batch))
    assert 0.5 * peak_gib < floor < peak_gib
