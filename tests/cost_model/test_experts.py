"""Costs of experts: bounds that any device obeys, and what grouped products save."""

# pyright: reportPrivateUsage=false

import dataclasses
import itertools
import math

import numpy as np
import pytest

from platform.cost_model.blocks.experts import COSTS, _of_experts_s
from platform.cost_model.columns import Columns
from platform.cost_model.compute import matmul_s
from platform.cost_model.degrees.ep import rows_of_token
from platform.cost_model.features import from_points
from platform.cost_model.hardware import BANDWIDTH_SHARE, find_cluster
from platform.cost_model.layer_time import layer_seconds
from platform.cost_model.lower_bound import lower_bound
from platform.cost_model.memory import peak_memory, peak_parts
from platform.cost_model.mesh import context_s
from platform.cost_model.predict import predict
from platform.cost_model.step_time import step_time
from search_spaces.qwen3 import QWEN3_30B_A3B
from tests.cost_model.points import changed, point
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

GROUPED = Layout(
    engine="fsdp", zero_stage=3, dp_shard=16, attention="sdpa", loss="chunked", compile="block", experts="grouped"
)
LOOP = dataclasses.replace(GROUPED, compile="none", experts="loop")
EAGER = dataclasses.replace(LOOP, experts="grouped")
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
RECIPE = Recipe(model=QWEN3_30B_A3B, seq_len=4096, global_batch=64, routing="balanced")
BATCH = BatchPoint(micro_batch=1, grad_accum=4)
CLUSTER = find_cluster("2x8xH100")


def columns_of(layout: Layout, micro_batch: int, seq_len: int = 4096, num_experts: int = 128) -> Columns:
    model = dataclasses.replace(QWEN3_30B_A3B, num_experts=num_experts, config="")
    return point(layout, cluster="2x8xH100", model=model, micro_batch=micro_batch, seq_len=seq_len)


@pytest.mark.parametrize("layout", [GROUPED, EAGER, LOOP], ids=lambda layout: layout.label)
@pytest.mark.parametrize("micro_batch", MICRO_BATCHES)
def test_a_step_takes_its_active_flops_and_the_weights_of_all_experts(layout: Layout, micro_batch: int) -> None:
    c = columns_of(layout, micro_batch)
    step = step_time(c)
    flops = QWEN3_30B_A3B.flops_per_token(4096) * micro_batch * 4096
    assert step.compute_s + step.attention_s > flops / c.peak_flops
    # The forward pass and both products of the backward pass read or write each of them.
    experts = 48 * 128 * 3 * 2048 * 768
    assert step.compute_s > 3 * experts * 2 / (c.bandwidth * BANDWIDTH_SHARE)
    assert predict(c).sigma >= 0.3, "nothing was measured yet"


def test_few_rows_an_expert_take_longer_for_a_flop_and_more_experts_no_less() -> None:
    by_rows = [float(COSTS.products_s(columns_of(GROUPED, m), np.array([m * 4096.0]))[0][0]) / m for m in MICRO_BATCHES]
    assert all(later <= before * (1 + 1e-9) for before, later in itertools.pairwise(by_rows))
    of_experts = [float(step_time(columns_of(GROUPED, 1, num_experts=number)).compute_s[0]) for number in (8, 32, 128)]
    assert of_experts == sorted(of_experts) and of_experts[0] < of_experts[-1]


def test_a_grouped_product_of_full_tiles_is_slower_than_one_product_of_as_many_rows() -> None:
    c = columns_of(GROUPED, 8)
    rows, experts = np.array([8 * 4096 * 8.0]), 128.0
    grouped = _of_experts_s(c, rows, np.array(4096.0), np.array(2048.0), np.array(experts))
    assert float((matmul_s(c, rows, np.array(4096.0), np.array(2048.0)) / grouped).item()) == pytest.approx(
        0.96, abs=0.01
    )
    others = _of_experts_s(changed(c, own_mesh=0.0), rows, np.array(4096.0), np.array(2048.0), np.array(experts))
    assert others < grouped, "rates of other software contain their own grouped products"


def test_recomputed_experts_sort_their_rows_again() -> None:
    again, dense = (
        float((layer_seconds(c).again / COSTS.passes_s(c, c.tokens)[0]).item())
        for c in (
            columns_of(dataclasses.replace(GROUPED, checkpointing="selective"), 8),
            point(dataclasses.replace(GROUPED, checkpointing="selective"), cluster="2x8xH100"),
        )
    )
    assert again == pytest.approx(0.73) and dense < 0.5


def test_routers_of_this_project_multiply_in_fp32_and_those_of_others_as_all_products_do() -> None:
    c = changed(columns_of(GROUPED, 8), grouped_experts=0.0)
    tokens, experts, hidden = 8 * 4096, 128, 2048
    in_fp32 = np.add(*COSTS.products_s(c, c.tokens))
    in_bf16 = np.add(*COSTS.products_s(changed(c, own_mesh=0.0), c.tokens))
    flops = 6 * tokens * experts * hidden
    by_flops = flops / c.plain_flops - flops / c.matmul_flops
    assert 0.9 * by_flops < in_fp32 - in_bf16 < 2 * by_flops
    assert COSTS.products_s(changed(c, plain_flops=1e18), c.tokens)[0] < COSTS.products_s(c, c.tokens)[0]


@pytest.mark.parametrize("micro_batch", MICRO_BATCHES)
def test_the_loop_is_never_faster_than_grouped_products(micro_batch: int) -> None:
    grouped, loop = (step_time(columns_of(layout, micro_batch)) for layout in (EAGER, LOOP))
    assert grouped.total_s < loop.total_s
    assert loop.host_s > grouped.host_s


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
@pytest.mark.parametrize("layout", [GROUPED, LOOP], ids=lambda layout: layout.label)
def test_memory_counts_all_experts_and_the_rows_of_those_that_tokens_visit(layout: Layout, checkpointing: str) -> None:
    layout = dataclasses.replace(layout, checkpointing=checkpointing)
    c = columns_of(layout, 2)
    recipe = Recipe(model=QWEN3_30B_A3B, seq_len=4096, global_batch=32, routing="balanced")
    floor = lower_bound(recipe, layout, BatchPoint(micro_batch=2, grad_accum=1)).total_gib
    assert floor < peak_memory(c).allocated_gib
    assert peak_parts(c).states == pytest.approx(12 * QWEN3_30B_A3B.num_parameters / 16 / 2**30, rel=1e-6)
    few, many = (
        peak_parts(point(layout, cluster="2x8xH100", model=model, micro_batch=2, seq_len=4096)).activations
        for model in (
            dataclasses.replace(QWEN3_30B_A3B, experts_per_token=4, config=""),
            dataclasses.replace(QWEN3_30B_A3B, config=""),
        )
    )
    # Where blocks are made again, the peak may be at the loss.
    assert few <= many if checkpointing == "full" else few < many


def shared_out(ep: int, **changes: object) -> Layout:
    return dataclasses.replace(EAGER, ep=ep, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("micro_batch", MICRO_BATCHES)
@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
def test_exchanged_rows_take_at_least_their_bytes_over_the_links(micro_batch: int, checkpointing: str) -> None:
    layout = shared_out(8, checkpointing=checkpointing)
    c, without = columns_of(layout, micro_batch), columns_of(dataclasses.replace(layout, ep=1), micro_batch)
    seconds = context_s(c, c.tokens, c.full_checkpointing > 0)
    # With 8 of 128 experts a token goes to 5.3 of 8 ranks.
    ranks = 8 * (1 - math.comb(112, 8) / math.comb(128, 8))
    rows = micro_batch * 4096 * ranks * 2048 * 2
    assert 5.3 < ranks < 5.4 and rows_of_token(c) == pytest.approx(ranks)
    passes = 4 if checkpointing == "none" else 6
    assert seconds > passes * rows * 7 / 8 / c.intra_bandwidth
    assert context_s(without, without.tokens, without.full_checkpointing > 0) == 0
    # Twice the rows take at most twice the time.
    twice = columns_of(layout, 2 * micro_batch)
    assert seconds < context_s(twice, twice.tokens, twice.full_checkpointing > 0) < 2 * seconds


def test_a_group_across_nodes_is_bound_by_the_network_of_a_node() -> None:
    inside, across = (columns_of(shared_out(ep), 4) for ep in (8, 16))
    near, far = (context_s(c, c.tokens, c.full_checkpointing > 0) for c in (inside, across))
    # Half of what eight devices send leaves the node, over ports that they share.
    sent = 4 * (8 / 16) * 8 * 4 * 4096 * 16 * (1 - math.comb(120, 8) / math.comb(128, 8)) * 2048 * 2
    assert far > sent / across.inter_bandwidth and far > 2 * near
    for c in (inside, across):
        assert predict(c).sigma >= 0.3, "nothing was measured yet"


@pytest.mark.parametrize("ep", [2, 4, 8, 16])
def test_ranks_that_share_experts_out_exchange_fewer_parameters_and_hold_as_many_states(ep: int) -> None:
    for micro_batch in (1, 8):
        undivided, shared = (columns_of(shared_out(degree), micro_batch) for degree in (1, ep))
        assert step_time(shared).data_s < step_time(undivided).data_s
        assert peak_parts(shared).states == pytest.approx(peak_parts(undivided).states)
        experts = 128 * 3 * 2048 * 768
        assert shared.gathered_block == pytest.approx(undivided.gathered_block - experts * (1 - 1 / ep))


@pytest.mark.parametrize("changes", [{"zero_stage": 2}, {"grad_sync": "last"}, {"checkpointing": "full"}], ids=str)
@pytest.mark.parametrize("ep", [1, 2, 8, 16])
def test_the_bound_stays_below_what_ranks_hold_that_share_experts_out(ep: int, changes: dict[str, object]) -> None:
    layout = shared_out(ep, **changes)
    c = from_points([(RECIPE, layout, BATCH)], CLUSTER)
    assert 0 < lower_bound(RECIPE, layout, BATCH).total_gib < peak_memory(c).allocated_gib


@pytest.mark.parametrize("changes", [{"zero_stage": 2}, {"grad_sync": "last", "zero_stage": 3}], ids=str)
def test_whole_copies_of_experts_shrink_with_the_ranks_that_share_them_out(changes: dict[str, object]) -> None:
    peaks = [
        float(peak_memory(from_points([(RECIPE, shared_out(ep, **changes), BATCH)], CLUSTER)).allocated_gib[0])
        for ep in (1, 2, 4, 8, 16)
    ]
    assert peaks == sorted(peaks, reverse=True)
    # Experts are 95 % of 30.5 billion parameters, of two bytes as gathered parameters, of four as summed gradients.
    assert peaks[0] - peaks[-1] > 0.9 * 0.95 * 30.5e9 * 2 / 2**30


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_an_uneven_choice_costs_ranks_that_share_experts_out_and_no_others(checkpointing: str) -> None:
    for ep, layout in ((ep, shared_out(ep, checkpointing=checkpointing)) for ep in (1, 8)):
        columns = [columns_of(layout, 4).with_fullest(fullest) for fullest in (1.0, 1.3, 2.0)]
        seconds = [float(step_time(c).total_s[0]) for c in columns]
        gib = [float(peak_memory(c).allocated_gib[0]) for c in columns]
        assert seconds == sorted(seconds) and gib == sorted(gib)
        if ep == 1:
            assert seconds[0] == seconds[-1] and gib[0] == gib[-1]
        else:
            assert seconds[0] < seconds[1] < seconds[2] < 2 * seconds[0]


def test_a_layout_is_predicted_alike_beside_others_that_share_experts_out() -> None:
    layouts = [
        shared_out(ep, **changes) for ep in (1, 2, 8) for changes in ({}, {"zero_stage": 2, "grad_sync": "every"})
    ]
    together = predict(from_points([(RECIPE, layout, BATCH) for layout in layouts], CLUSTER))
    for row, layout in enumerate(layouts):
        alone = predict(from_points([(RECIPE, layout, BATCH)], CLUSTER))
        assert together.step.total_s[row] == pytest.approx(alone.step.total_s[0], rel=1e-12)
        assert together.memory.needed_gib[row] == pytest.approx(alone.memory.needed_gib[0], rel=1e-12)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_a_balance_loss_takes_a_forward_pass_more_where_a_step_has_several_micro_batches(checkpointing: str) -> None:
    layout = shared_out(8, checkpointing=checkpointing)
    recipes = [dataclasses.replace(RECIPE, routing="learned", balance_loss=kind) for kind in ("none", "aux", "bias")]

    def exchanged_s(c: Columns) -> float:
        return float(context_s(c, c.tokens, c.full_checkpointing > 0)[0])

    def busy_s(recipe: Recipe, grad_accum: int) -> float:
        c = from_points([(recipe, layout, BatchPoint(micro_batch=1, grad_accum=grad_accum))], CLUSTER)
        return float(layer_seconds(c).backward[0]) + exchanged_s(c)

    none, aux, bias = (busy_s(recipe, 4) for recipe in recipes)
    plain = from_points([(recipes[0], layout, BATCH)], CLUSTER)
    forward = float(layer_seconds(plain).forward[0])
    assert none == bias and none + forward < aux < none + forward + exchanged_s(plain)
    assert len({busy_s(recipe, 1) for recipe in recipes}) == 1
