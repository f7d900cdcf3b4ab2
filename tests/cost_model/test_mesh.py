"""Tensor-parallel groups and pipelines: collectives, transfers, stages and the bubble, by hand."""

# pyright: reportPrivateUsage=false

import dataclasses
from typing import Any

import numpy as np
import pytest

from platform.cost_model.collectives import all_reduce_s, ring_bandwidth
from platform.cost_model.columns import Columns
from platform.cost_model.compute import matmul_s
from platform.cost_model.engines import ENGINES
from platform.cost_model.engines.deepspeed import INSTRUCTIONS_S
from platform.cost_model.engines.exchange import slowdown
from platform.cost_model.links import Ring
from platform.cost_model.memory import _activations
from platform.cost_model.mesh import context_s, stages_of, vocabulary_s
from platform.cost_model.step_time import step_time
from tests.cost_model.points import BLOOM_7B1, GPT_39B, HOP, changed, fsdp, point
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.spec.stages import stages_of_rank


def _gather_s(columns: Columns, num_bytes: float) -> float:
    """Returns the seconds in which tensor-parallel ranks of a node gather or scatter so many bytes."""
    return float(Ring.of(columns, columns.tp, stride=1.0).gather_s(np.array([float(num_bytes)]))[0])


def test_groups_share_a_nodes_ports() -> None:
    links = np.array([235e9]), np.array([160e9])
    free, port = np.array([np.inf]), np.array([40e9])
    assert float(ring_bandwidth(np.array([1.0]), *links, free)[0]) == 160e9
    assert float(ring_bandwidth(np.array([8.0]), *links, free)[0]) == 20e9
    # A group that NCCL gives one of four ports has no more, however much of it lies in a node.
    assert float(ring_bandwidth(np.array([1.0]), *links, port)[0]) == 40e9
    assert float(ring_bandwidth(np.array([8.0]), *links, port)[0]) == 20e9
    # No faster network carries more than a rank's own link does.
    assert float(ring_bandwidth(np.array([1.0]), np.array([20e9]), np.array([160e9]), free)[0]) == 20e9


def test_stages_send_each_value_once_there_and_back() -> None:
    """Checks that values which tensor-parallel ranks have in common are sent in parts and gathered, and that a slot
    sends as much in deeper pipelines.
    """
    layout = Layout(engine="deepspeed", zero_stage=1, dp_shard=8, pp=8)
    alone = point(layout, cluster="8x8xA100", model=GPT_39B, grad_accum=64)
    sent = 2048 * 8192 * 2 / (160e9 / 8)
    instructions = (64 + 7) * INSTRUCTIONS_S
    expected = 2 * (64 + 7) * (sent + 40e-6) + instructions
    assert float(step_time(alone).pipeline_s[0]) == pytest.approx(expected)
    megatron = changed(alone, engine=float(ENGINES.index("megatron")))
    assert float(step_time(megatron).pipeline_s[0]) == pytest.approx(expected - instructions)
    split = point(dataclasses.replace(layout, tp=8, dp_shard=1), cluster="8x8xA100", model=GPT_39B, grad_accum=64)
    parts = 2 * (64 + 7) * (sent / 8 + 40e-6) + instructions
    assert float(step_time(split).pipeline_s[0]) == pytest.approx(parts)
    gathering = float(step_time(changed(split, sequence_parallel=0.0)).pipeline_s[0])
    assert parts < gathering < expected
    under_ddp = changed(split, own_mesh=1.0, engine=float(ENGINES.index("ddp")))  # autocast leaves them in fp32
    doubled = 2 * (64 + 7) * (2 * sent / 8 + 40e-6)
    assert float(step_time(under_ddp).pipeline_s[0]) == pytest.approx(doubled)


def test_the_bubble_is_the_papers_and_virtual_stages_divide_it() -> None:
    layout = Layout(engine="deepspeed", zero_stage=0, tp=8, pp=8)
    columns = point(layout, cluster="8x8xA100", model=GPT_39B, grad_accum=64)
    # Without head: (p - 1) / m of the compute (arXiv 2104.04473, section 2.2). The last stage still all-reduces the
    # gradient of the head's input, which leaves the others a slightly shorter bubble.
    columns = changed(columns, vocab=128.0, inter_bandwidth=1e18, inter_latency=0.0)
    step = step_time(columns)
    busy = step.compute_s + step.attention_s + step.tensor_s + step.exchanges_s + step.host_s
    assert float((step.bubble_s / busy)[0]) == pytest.approx(7 / 64, rel=0.02)
    halved = step_time(changed(columns, virtual=2.0))
    assert float(halved.bubble_s[0]) == pytest.approx(float(step.bubble_s[0]) / 2)


@pytest.mark.parametrize(
    ("layers", "pp", "largest", "ends"), [(72, 12, 6, 6), (70, 12, 6, 5), (78, 12, 7, 6), (24, 1, 24, 24)]
)
def test_blocks_of_the_stages_of_published_runs(layers: int, pp: int, largest: int, ends: int) -> None:
    columns = changed(point(fsdp(), cluster="8xA100"), layers=layers, pp=pp, largest_blocks=0)
    stages = stages_of(columns)
    assert (stages.largest[0], stages.first[0], stages.last[0]) == (largest, ends, ends)


def test_blocks_of_ranks_are_those_that_trainers_give_them() -> None:
    """Checks that the last rank has fewer blocks, because BLOOM's head is as much work as five of its blocks."""
    layout = fsdp(pp=4, schedule="interleaved", virtual=2)
    recipe = Recipe(model=BLOOM_7B1, seq_len=2048, global_batch=8)
    cut = [sum(len(stage.blocks) for stage in stages_of_rank(recipe, layout, rank)) for rank in range(4)]
    stages = stages_of(point(layout, cluster="8xA100", grad_accum=8))
    assert cut[-1] < min(cut[:-1])
    assert (stages.largest[0], stages.first[0], stages.last[0]) == (max(cut), cut[0], cut[-1])


def test_tensor_parallelism_costs_four_all_reduces_a_block_six_with_recomputation() -> None:
    layout = Layout(engine="deepspeed", tp=8)
    plain = point(layout, cluster="8xA100", model=GPT_39B)
    full = point(dataclasses.replace(layout, checkpointing="full"), cluster="8xA100", model=GPT_39B)
    each_s = all_reduce_s(
        np.array([2048 * 8192 * 2.0]), np.array([8.0]), np.array([8.0]), np.array([235e9]), np.array([45e-6]), HOP
    )
    hidden = np.array([2048 * 8192 * 2.0])
    ends_s = float(vocabulary_s(plain, hidden, hidden)[0])
    assert float(step_time(plain).tensor_s[0]) == pytest.approx(48 * 4 * float(each_s[0]) + ends_s)
    assert float(step_time(full).tensor_s[0]) == pytest.approx(48 * 6 * float(each_s[0]) + ends_s)


@pytest.mark.parametrize("bandwidth", [1e9, 235e9, 1e15])
def test_inputs_that_are_gathered_again_are_hidden_as_far_as_their_products_last(bandwidth: float) -> None:
    """Checks two more gathers a block, which hide behind two products with two of the scatters."""
    usual = point(Layout(engine="deepspeed", tp=8), cluster="8xA100", model=GPT_39B)
    usual = changed(usual, sequence_parallel=1.0, intra_bandwidth=bandwidth)
    again = changed(usual, gathers_again=1.0)
    half_s = float(Ring.along(usual, "tp").all_reduce_s(np.array([2048 * 8192 * 2.0]))[0]) / 2
    hidden_s = sum(
        2 * min(half_s, float(matmul_s(usual, usual.tokens, np.array([width / 8]), np.array([8192.0]))[0]))
        for width in (3 * 8192.0, 4 * 8192.0)
    )
    more_s = 48 * (2 * half_s - hidden_s * (1 - float(slowdown(usual, Ring.along(usual, "tp"))[0])))
    assert float(step_time(again).tensor_s[0] - step_time(usual).tensor_s[0]) == pytest.approx(more_s, rel=1e-6)
    assert float(step_time(changed(again, sequence_parallel=0.0)).tensor_s[0]) == pytest.approx(
        float(step_time(changed(usual, sequence_parallel=0.0)).tensor_s[0])
    )


@pytest.mark.parametrize(
    ("checkpointing", "collectives"), [("none", 8), ("selective", 10), ("every_2", 9.5), ("full", 11)]
)
def test_own_blocks_gather_and_scatter_one_by_one(checkpointing: Any, collectives: float) -> None:
    layout = fsdp(tp=8, checkpointing=checkpointing)
    columns = point(layout, cluster="8xA100", model=GPT_39B)
    hidden = np.array([2048 * 8192 * 2.0])
    ends_s = float(vocabulary_s(columns, hidden, hidden)[0])
    by_hand = 48 * collectives * _gather_s(columns, 2048 * 8192 * 2) + ends_s
    assert float(step_time(columns).tensor_s[0]) == pytest.approx(by_hand)


@pytest.mark.parametrize("tp", [1, 2])
def test_own_ranks_gather_keys_and_values_of_their_heads(tp: int) -> None:
    columns = point(fsdp(tp=tp, cp=2, checkpointing="selective"), cluster="8xA100", model=GPT_39B)
    gathered = _gather_s(changed(columns, tp=2.0), 2048 * 2 * 8192 / tp * 2)
    seconds = context_s(columns, columns.micro_batch * columns.seq_len / columns.cp, columns.full_checkpointing > 0)
    assert float(seconds[0]) == pytest.approx(3 * gathered)


def test_a_stage_keeps_what_its_rank_sends() -> None:
    layout = Layout(engine="ddp", pp=4)
    alone, split = (
        point(dataclasses.replace(layout, tp=tp), cluster="32xA100", model=GPT_39B, grad_accum=8) for tp in (1, 8)
    )
    sent = 2048 * 8192 * 4  # under autocast
    held = (float(np.ravel(_activations(c).of_stage)[0]) - float(np.ravel(c.mask_bytes)[0]) for c in (alone, split))
    assert list(held) == pytest.approx([sent, sent / 8])
