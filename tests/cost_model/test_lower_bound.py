"""The lower bound of peak memory: never above a measured peak, and close enough to be of use."""

import dataclasses
import itertools
from typing import Any

import pytest

from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.memory import lower_bound, peak_memory
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe
from trainers.spec.stages import stages_of

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
    floor = lower_bound(RECIPE, layout, BatchPoint(micro_batch=micro_batch, grad_accum=grad_accum)).total_gib
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
        sizes = [lower_bound(RECIPE, layout, BatchPoint(micro_batch=b, grad_accum=2)).total_gib for b in (1, 2, 8, 64)]
        assert sizes == sorted(sizes) and sizes[-1] > sizes[0]
        single_gib = lower_bound(RECIPE, layout, BatchPoint(micro_batch=8, grad_accum=1)).total_gib
        assert single_gib <= sizes[2]


def test_sharding_and_offload_lower_the_floor() -> None:
    point = BatchPoint(micro_batch=1, grad_accum=2)
    unsharded_gib = lower_bound(RECIPE, fsdp(grad_sync="every", checkpointing="full"), point).total_gib
    eighth = lower_bound(RECIPE, fsdp(dp_shard=8, grad_sync="every", checkpointing="full"), point).total_gib
    assert eighth < unsharded_gib / 4
    on_device = lower_bound(RECIPE, Layout(engine="deepspeed", zero_stage=2, grad_sync="every"), point)
    away = lower_bound(RECIPE, Layout(engine="deepspeed", zero_stage=2, grad_sync="every", offload="optimizer"), point)
    assert away.states_gib < on_device.states_gib / 5


def test_the_first_rank_of_a_pipeline_holds_the_activations_of_all_that_is_under_way() -> None:
    layout = fsdp(pp=4, tp=2, dp_shard=1, attention="sdpa", loss="chunked", compile="block")
    parts = [lower_bound(RECIPE, layout, BatchPoint(micro_batch=2, grad_accum=count)) for count in (4, 8)]
    alone = lower_bound(RECIPE, fsdp(tp=2, attention="sdpa", loss="chunked"), BatchPoint(micro_batch=2, grad_accum=4))
    # Four micro-batches of the first of four ranks: as many blocks' as one micro-batch has without a pipeline, less
    # what the cut leaves to other ranks because of BLOOM's head.
    first = stages_of(RECIPE, layout)[0]
    assert parts[1].activations_gib == pytest.approx(alone.activations_gib * 4 * len(first.blocks) / 30)
    assert parts[1].gradients_gib > 0
    assert parts[0].total_gib <= parts[1].total_gib


def test_an_interleaved_pipeline_holds_more_activations() -> None:
    batch = BatchPoint(micro_batch=2, grad_accum=8)
    plain = fsdp(pp=2, attention="sdpa", loss="chunked", compile="block")
    interleaved = dataclasses.replace(plain, schedule="interleaved", virtual=2)
    assert lower_bound(RECIPE, interleaved, batch).total_gib > lower_bound(RECIPE, plain, batch).total_gib


@pytest.mark.parametrize("virtual", [1, 2])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_the_floor_of_a_pipeline_is_below_what_is_predicted(checkpointing: str, virtual: int) -> None:
    """Checks that the lower bound does not exceed the prediction, which adds what an engine might free or fuse and is
    of the same rank or of one that holds more.
    """
    changes: dict[str, Any] = {"schedule": "interleaved", "virtual": 2} if virtual == 2 else {}
    for pp, tp, stage in itertools.product((2, 4), (1, 2), (2, 3)):
        layout = Layout(
            engine="fsdp", zero_stage=stage, dp_shard=2, pp=pp, tp=tp, checkpointing=checkpointing, **changes  # type: ignore[arg-type]
        )  # fmt: skip
        batch = BatchPoint(micro_batch=1, grad_accum=8)
        predicted = peak_memory(from_points([(RECIPE, layout, batch)], find_cluster("2x8xH100"))).allocated_gib[0]
        assert 0.3 * predicted < lower_bound(RECIPE, layout, batch).total_gib <= predicted
