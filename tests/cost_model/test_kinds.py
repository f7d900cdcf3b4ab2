"""Offload, prefetch, reshard, overlap and hybrid sharding: the sign and size of each one's gain and cost."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from platform.cost_model.compute import optimizer_s
from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.lower_bound import lower_bound
from platform.cost_model.memory import peak_memory
from platform.cost_model.offload import staging_bytes
from platform.cost_model.step_time import step_time
from tests.cost_model.points import BLOOM_7B1, point
from trainers.spec.batch import BatchPoint
from trainers.spec.host_moments import LEAST_SLICES, SLICE_VALUES, STAGED_SLICES
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

FSDP = Layout(engine="fsdp", zero_stage=3, dp_shard=8)
DDP = Layout(engine="ddp", dp_replicate=8)
ZERO_3 = Layout(engine="deepspeed", zero_stage=3, dp_shard=8, grad_sync="every")
ZERO_2 = dataclasses.replace(ZERO_3, zero_stage=2)
ZERO_1 = dataclasses.replace(ZERO_3, zero_stage=1, grad_sync="last")
TWO_H200 = find_cluster("2xH200")
SLOW_LINK, ONE_NODE = "4x2xA100-80GB", "1x8xH200"
BLOCK_GIB = BLOOM_7B1.parameters_per_layer * 2 / 2**30


def gib(layout: Layout, micro_batch: int = 1, **changes: Any) -> float:
    columns = point(dataclasses.replace(layout, **changes), cluster=ONE_NODE, micro_batch=micro_batch, grad_accum=4)
    return float(peak_memory(columns).allocated_gib[0])


def step_s(layout: Layout, cluster: str, **changes: Any) -> float:
    return float(step_time(point(dataclasses.replace(layout, **changes), cluster=cluster, grad_accum=4)).total_s[0])


def test_what_lies_on_the_host_is_not_on_the_device() -> None:
    states_gib = BLOOM_7B1.num_parameters * 12 / 8 / 2**30
    assert gib(FSDP, grad_sync="every") - gib(FSDP, grad_sync="every", offload="all") > 0.9 * states_gib
    assert gib(ZERO_3) - gib(ZERO_3, offload="optimizer") > 0.9 * states_gib
    assert gib(ZERO_3, offload="all") < gib(ZERO_3, offload="optimizer") < gib(ZERO_3)
    for layout in (FSDP, ZERO_3):
        assert step_s(layout, ONE_NODE, offload="all") > 1.1 * step_s(layout, ONE_NODE)


@pytest.mark.parametrize("micro_batch", (1, 4))
@pytest.mark.parametrize(
    "layout", (FSDP, dataclasses.replace(FSDP, zero_stage=2), DDP), ids=lambda layout: layout.label
)
def test_moments_on_the_host_leave_the_device_their_buffers_alone(layout: Layout, micro_batch: int) -> None:
    away = dataclasses.replace(layout, offload="moments")
    moments_gib = BLOOM_7B1.num_parameters * 8 / layout.dp_shard / 2**30
    buffers_gib = STAGED_SLICES * SLICE_VALUES * 8 / 2**30
    assert gib(layout, micro_batch) - gib(away, micro_batch) == pytest.approx(moments_gib - buffers_gib, rel=1e-6)
    recipe = Recipe(model=BLOOM_7B1, seq_len=2048, global_batch=4 * micro_batch * layout.data_parallel)
    batch = BatchPoint(micro_batch=micro_batch, grad_accum=4)
    floors = [lower_bound(recipe, of, batch) for of in (layout, away)]
    assert floors[0].states_gib - floors[1].states_gib == pytest.approx(moments_gib, rel=0.01)
    assert floors[1].total_gib < gib(away, micro_batch)


@pytest.mark.parametrize("layout", (FSDP, DDP), ids=lambda layout: layout.label)
def test_a_step_waits_for_the_slower_of_the_update_and_the_link(layout: Layout) -> None:
    """Compares with the two moments' bytes over three quarters of PCIe 5's 64 GB/s, with one slice more at each end."""
    away = dataclasses.replace(layout, offload="moments")
    plain, streamed = (
        float(step_time(point(of, cluster=ONE_NODE, grad_accum=4)).optimizer_s[0]) for of in (layout, away)
    )
    per_value = 8 / (64e9 * 0.75)
    copied = BLOOM_7B1.num_parameters / layout.dp_shard * per_value
    assert copied > plain
    columns = point(layout, cluster=ONE_NODE, grad_accum=4)
    update = float(optimizer_s(columns, np.asarray(BLOOM_7B1.num_parameters / layout.dp_shard))[0])
    assert streamed - plain == pytest.approx(copied - update + 2 * SLICE_VALUES * per_value, rel=1e-6)
    others = [float(step_time(point(of, cluster=ONE_NODE, grad_accum=4)).total_s[0]) for of in (layout, away)]
    assert others[1] - others[0] == pytest.approx(streamed - plain, rel=1e-3)


def test_small_models_have_small_slices() -> None:
    columns = point(dataclasses.replace(DDP, offload="moments"), cluster=ONE_NODE)
    for parameters in (1e6, 1e8, 1e9):
        buffers = float(staging_bytes(columns, np.asarray(parameters))[0])
        assert buffers == STAGED_SLICES * min(SLICE_VALUES, parameters / LEAST_SLICES) * 8 < parameters * 8


@pytest.mark.parametrize(
    "layout",
    [FSDP, dataclasses.replace(FSDP, grad_sync="every"), ZERO_3, ZERO_2, ZERO_1],
    ids=lambda layout: layout.label,
)
def test_the_floor_stays_below_with_offload(layout: Layout) -> None:
    recipe = Recipe(model=BLOOM_7B1, seq_len=2048, global_batch=32)
    offload = "optimizer" if layout.zero_stage < 3 else "all"
    away = dataclasses.replace(layout, offload=offload)
    assert lower_bound(recipe, away, BatchPoint(micro_batch=1, grad_accum=4)).total_gib < gib(away)


def test_zero_2_reduces_whole_buckets_at_each_micro_step() -> None:
    """Compares ZeRO-2 and ZeRO-1 in `bloom7b_kinds` on two H200 with 128 micro-steps, where a step took 57.7 s and 45.6
    s.
    """
    lean: dict[str, Any] = {"dp_shard": 2, "attention": "flex", "loss": "chunked", "compile": "block"}
    recipe, batch = Recipe(model=BLOOM_7B1, seq_len=2048, global_batch=512), BatchPoint(micro_batch=2, grad_accum=128)
    first, two = (
        float(step_time(from_points([(recipe, dataclasses.replace(layout, **lean), batch)], TWO_H200)).total_s[0])
        for layout in (ZERO_1, ZERO_2)
    )
    assert two - first == pytest.approx(57.7 - 45.6, rel=0.2)


@pytest.mark.parametrize(
    ("layout", "step_s", "gib"),
    [
        (Layout(engine="deepspeed", zero_stage=1, offload="optimizer", compile="block"), 46.2, 66.1),
        (Layout(engine="deepspeed", zero_stage=2, grad_sync="every", offload="optimizer", compile="block"), 60.3, 51.1),
        (Layout(engine="deepspeed", zero_stage=3, grad_sync="every", offload="optimizer"), 133, 35.1),
        (Layout(engine="deepspeed", zero_stage=3, grad_sync="every", offload="all"), 149, 28.6),
        (Layout(engine="fsdp", zero_stage=3, grad_sync="every", offload="all", compile="block"), 1260, 25.2),
    ],
    ids=lambda value: value.label if isinstance(value, Layout) else "",
)
def test_offloaded_bloom_on_two_h200(layout: Layout, step_s: float, gib: float) -> None:
    """Compares `bloom7b_kinds` at 2 x 128 with its measurements (docs/lab/cost-model.csv#cost-offload)."""
    layout = dataclasses.replace(layout, dp_shard=2, attention="flex", loss="chunked")
    recipe, batch = Recipe(model=BLOOM_7B1, seq_len=2048, global_batch=512), BatchPoint(micro_batch=2, grad_accum=128)
    columns = from_points([(recipe, layout, batch)], TWO_H200)
    assert float(step_time(columns).total_s[0]) == pytest.approx(step_s, rel=0.13)
    assert float(peak_memory(columns).allocated_gib[0]) == pytest.approx(gib, rel=0.1)
    assert lower_bound(recipe, layout, batch).total_gib < gib


def test_blocks_gathered_ahead_stand_in_memory() -> None:
    """Checks that each block gathered ahead adds its size to the peak, which is a block's backward pass where the
    scores of eager attention are recomputed.
    """
    lean = {"loss": "chunked", "checkpointing": "full", "grad_sync": "every"}
    first, four = (gib(FSDP, 16, prefetch=prefetch, **lean) for prefetch in (1, 4))
    assert four - first == pytest.approx(3 * BLOCK_GIB, rel=0.01)
    assert gib(ZERO_3, prefetch=1) < gib(ZERO_3, prefetch=8)


def test_a_slow_link_asks_for_hybrid_sharding_or_for_resharding_inside_the_node() -> None:
    slower = "4x2xV100"  # on A100 the casts of a half model's shards cost what the gathers over the network do
    plain = step_s(FSDP, slower)
    hybrid = step_s(FSDP, slower, dp_replicate=4, dp_shard=2)
    inside = step_s(FSDP, slower, reshard=2)
    assert max(hybrid, inside) < plain
    assert gib(FSDP, dp_replicate=4, dp_shard=2) > gib(FSDP, reshard=2) > gib(FSDP)


def test_overlap_hides_what_deepspeed_exchanges() -> None:
    assert step_s(ZERO_2, SLOW_LINK, overlap="on") < step_s(ZERO_2, SLOW_LINK)
    assert step_s(ZERO_3, SLOW_LINK, overlap="off") > step_s(ZERO_3, SLOW_LINK)
    assert step_s(ZERO_3, SLOW_LINK, overlap="on") == step_s(ZERO_3, SLOW_LINK)
