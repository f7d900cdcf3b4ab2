"""The floor under peak memory: never above a measured peak, and close enough to be of use."""

import dataclasses
import itertools
from typing import Any

import pytest

from platform.cost_model.memory import lower_bound, lower_bound_gib
from trainers.values.batch import BatchPoint
from trainers.values.layout import Layout
from trainers.values.recipe import Recipe
from trainers.values.spec import ModelSpec

BLOOM_7B1 = ModelSpec(
    name="bloom-7b1", architecture="bloom", num_layers=30, hidden_size=4096, num_heads=32, vocab_size=250880
)
RECIPE = Recipe(model=BLOOM_7B1, seq_len=2048, global_batch=64)


def fsdp(**changes: object) -> Layout:
    return Layout(engine="fsdp", zero_stage=3, **changes)  # type: ignore[arg-type]


# FSDPMemTracker (torch 2.13) on one rank, and FSDP2 on four H200 with flex attention and a chunked loss.
MEASURED = [
    (fsdp(), 1, 1, 117.7),
    (fsdp(), 1, 2, 144.0),
    (fsdp(checkpointing="full"), 1, 1, 110.9),
    (fsdp(checkpointing="full"), 1, 2, 114.7),
    (fsdp(attention="sdpa"), 2, 1, 111.8),
    (fsdp(attention="sdpa"), 4, 1, 137.9),
    (fsdp(attention="sdpa"), 5, 1, 152.2),
    (fsdp(dp_shard=4, attention="flex", loss="chunked", compile="block", grad_sync="every"), 4, 1, 65.8),
    (fsdp(dp_shard=4, attention="flex", loss="chunked", compile="block", grad_sync="every"), 8, 1, 96.0),
    (fsdp(dp_shard=4, attention="flex", loss="chunked", compile="block", grad_sync="every"), 8, 2, 102.6),
    (Layout(engine="deepspeed", zero_stage=1, checkpointing="full"), 1, 1, 132.0),
    (Layout(engine="deepspeed", zero_stage=2, checkpointing="full", grad_sync="every"), 1, 1, 132.0),
]


@pytest.mark.parametrize(("layout", "micro_batch", "grad_accum", "peak_gib"), MEASURED)
def test_floor_is_below_the_measured_peak_and_above_half_of_it(
    layout: Layout, micro_batch: int, grad_accum: int, peak_gib: float
) -> None:
    floor = lower_bound_gib(RECIPE, layout, BatchPoint(micro_batch=micro_batch, grad_accum=grad_accum))
    assert 0.55 * peak_gib < floor <= peak_gib


def test_states_of_bloom_7b1_on_one_rank() -> None:
    floor = lower_bound(RECIPE, Layout(engine="ddp"), BatchPoint(micro_batch=1, grad_accum=2))
    assert floor.states_gib + floor.gradients_gib == pytest.approx(105.3, abs=0.1)
    assert floor.sentence.startswith(f"at least {floor.total_gib:.1f} GiB a rank: states 79.0, gradients 26.3")


@pytest.mark.parametrize(
    ("layout", "changes"),
    [
        (Layout(engine="ddp"), {"optimizer": "adafactor"}),
        (Layout(engine="deepspeed", zero_stage=0), {"optimizer": "adafactor"}),
        (Layout(engine="ddp"), {"state_precision": "bf16"}),
        (fsdp(), {"state_precision": "bf16"}),
        (Layout(engine="deepspeed", zero_stage=1), {"state_precision": "bf16"}),
        (Layout(engine="deepspeed", zero_stage=3, grad_sync="every"), {"state_precision": "bf16"}),
    ],
)
def test_lighter_states_are_at_most_eight_bytes_a_parameter(layout: Layout, changes: dict[str, Any]) -> None:
    recipe = dataclasses.replace(RECIPE, **changes)
    floor = lower_bound(recipe, layout, BatchPoint(micro_batch=1, grad_accum=2))
    assert 0 < floor.states_gib + floor.gradients_gib <= 8 * BLOOM_7B1.num_parameters / 2**30


def test_memory_grows_with_micro_batch_and_accumulation() -> None:
    layouts = [
        Layout(engine=engine, zero_stage=stage, checkpointing=checkpointing, grad_sync=sync)  # type: ignore[arg-type]
        for (engine, stage, sync), checkpointing in itertools.product(
            [("ddp", 0, "last"), ("fsdp", 3, "every"), ("deepspeed", 1, "last"), ("deepspeed", 3, "every")],
            ["none", "full"],
        )
    ]
    for layout in layouts:
        sizes = [lower_bound_gib(RECIPE, layout, BatchPoint(micro_batch=b, grad_accum=2)) for b in (1, 2, 8, 64)]
        assert sizes == sorted(sizes) and sizes[-1] > sizes[0]
        once = lower_bound_gib(RECIPE, layout, BatchPoint(micro_batch=8, grad_accum=1))
        assert once <= sizes[2]


def test_sharding_and_offload_lower_the_floor() -> None:
    point = BatchPoint(micro_batch=1, grad_accum=2)
    whole = lower_bound_gib(RECIPE, fsdp(grad_sync="every", checkpointing="full"), point)
    eighth = lower_bound_gib(RECIPE, fsdp(dp_shard=8, grad_sync="every", checkpointing="full"), point)
    assert eighth < whole / 4
    kept = lower_bound(RECIPE, Layout(engine="deepspeed", zero_stage=2, grad_sync="every"), point)
    away = lower_bound(RECIPE, Layout(engine="deepspeed", zero_stage=2, grad_sync="every", offload="optimizer"), point)
    assert away.states_gib < kept.states_gib / 5
