"""Links of rings, of boundaries between stages and of tied ends on several nodes, by hand."""

import dataclasses

import numpy as np
import pytest

from platform.cost_model.columns import Array, Columns
from platform.cost_model.hardware import find_cluster
from platform.cost_model.links import Boundaries
from platform.cost_model.mesh import tied_ends_s
from platform.cost_model.predict import between_nodes_s
from platform.cost_model.step_time import residual_bytes, step_time
from tests.cost_model.points import BLOOM_7B1, GPT2, changed, fsdp, point
from trainers.spec.layout import Layout

GBPS = 1e9 / 8


def _link(columns: Columns) -> float:
    """Returns the bytes per second of one rank across the slowest boundary between stages."""
    boundaries = Boundaries.of(columns)
    return _single(np.where(boundaries.spans, boundaries.bandwidth, columns.intra_bandwidth))


def _single(values: Array) -> float:
    return float(np.ravel(values)[0])


def test_the_boundary_between_nodes_is_priced_where_stages_share_a_node() -> None:
    """Checks pipelines of which each node has two stages: once, neighbouring ranks of one boundary decided for all."""
    shared = point(Layout(engine="ddp", dp_replicate=4, pp=4), cluster="2x8xH100", grad_accum=8)
    assert _link(shared) == _single(shared.inter_bandwidth) / 4  # four replicas send at once
    assert float(Boundaries.of(shared).share[0]) == pytest.approx(1 / 3)
    alone = point(Layout(engine="ddp", dp_replicate=8, pp=2), cluster="2x8xH100", grad_accum=8)
    assert _link(alone) == _single(alone.inter_bandwidth) / 8
    within = point(Layout(engine="ddp", dp_replicate=2, pp=4), cluster="8xH100", grad_accum=8)
    assert _link(within) == _single(within.intra_bandwidth)
    around = point(fsdp(dp_shard=4, pp=4, schedule="interleaved", virtual=2), cluster="2x8xH100", grad_accum=8)
    assert float(Boundaries.of(around).share[0]) == pytest.approx(1 / 2)  # the last stage sends to the first


def _further_micro_batch_s(layout: Layout, *, grad_accum: int = 32) -> tuple[float, float, float]:
    """Returns (seconds of transfers that a further micro-batch adds, seconds of one message over the boundary between
    nodes, seconds of one inside a node).
    """
    cluster = "2x8xH100"
    columns, longer = (
        point(layout, cluster=cluster, grad_accum=accum, micro_batch=4) for accum in (grad_accum, grad_accum + 1)
    )
    sent = _single(residual_bytes(columns)) / layout.tp
    between_s = sent / _link(columns) + _single(columns.inter_latency)
    inside_s = sent / _single(columns.intra_bandwidth) + _single(columns.intra_latency)
    return _single(step_time(longer).pipeline_s - step_time(columns).pipeline_s), between_s, inside_s


def test_a_boundary_carries_activations_and_gradients_at_once() -> None:
    """Checks one message a micro-batch where two stages exchange both, as torch's 1F1B does: measured over 10 Gbit/s it
    added 0.0995 s, of which 0.080 are one way (docs/lab/networks.csv#links-first-trial-gpus.5).
    DeepSpeed's instructions send both in turn.
    """
    step_s, between_s, _ = _further_micro_batch_s(Layout(engine="ddp", dp_replicate=8, pp=2))
    assert step_s == pytest.approx(between_s)


def test_a_stage_waits_for_both_of_its_neighbours() -> None:
    """Checks stages of half a node, each with one boundary inside, and more nodes, of which the middle ones have two
    boundaries.
    """
    step_s, between_s, inside_s = _further_micro_batch_s(Layout(engine="ddp", dp_replicate=4, pp=4))
    assert step_s == pytest.approx(between_s + inside_s)
    wide = point(Layout(engine="ddp", dp_replicate=8, pp=4), cluster="4x8xH100", grad_accum=8)
    assert bool(np.ravel(Boundaries.of(wide).adjacent)[0])


def test_tied_ends_of_a_pipeline_add_up_between_nodes() -> None:
    tied, untied = (
        step_time(
            point(
                fsdp(dp_shard=8, pp=2),
                cluster="2x8xH100",
                model=dataclasses.replace(BLOOM_7B1, tied_embeddings=is_tied),
                grad_accum=8,
            )
        )
        for is_tied in (True, False)
    )
    # Each of 8 ranks has an eighth of the table's gradient in fp32, and an eighth of the ports.
    table = 250880 * 4096 * 4 / 8
    assert float((tied.data_s - untied.data_s)[0]) > table / (find_cluster("2x8xH100").inter_gb_per_s * 1e9 / 8)
    inside = point(fsdp(dp_shard=4, pp=2), cluster="8xH100", grad_accum=8)
    assert float(tied_ends_s(inside, inside.shard)[0]) == 0


def test_hybrid_sharding_reduces_the_embedding_between_nodes() -> None:
    """Checks that replicas of shards in a node exchange the gradients of all parameters, of the blocks' and others."""
    layout = fsdp(dp_replicate=2, dp_shard=8)
    slow, fast = (
        step_time(changed(point(layout, cluster="2x8xH100", grad_accum=1), inter_bandwidth=speed, layers=1.0))
        for speed in (GBPS, 1e18)
    )
    table = 250880 * 4096 * 4
    assert float((slow.data_s - fast.data_s)[0]) > table / GBPS


def test_an_unknown_network_widens_only_what_crosses_it() -> None:
    layout = Layout(engine="ddp", dp_replicate=4, pp=4)
    columns = point(
        layout, cluster="2x8xL40S", grad_accum=8, model=dataclasses.replace(BLOOM_7B1, tied_embeddings=False)
    )
    step = step_time(columns)
    assert float(between_nodes_s(columns, step)[0]) == float(step.pipeline_s[0])
    split = point(fsdp(cp=16), cluster="2x8xL40S", grad_accum=1)
    assert float((between_nodes_s(split, step_time(split)) - step_time(split).data_s)[0]) > 0


@pytest.mark.parametrize(("grad_sync", "times"), [("last", 1), ("every", 8)])
def test_replicas_of_shards_reduce_beside_the_backward_passes_that_reduce(grad_sync: str, times: int) -> None:
    """Checks what a slow network between replicas adds to a step: as often as gradients are reduced, all that one
    backward pass does not cover, and no less where other micro-steps compute.
    """

    blocks_alone = dataclasses.replace(BLOOM_7B1, vocab_size=1024)

    def added_s(grad_accum: int) -> float:
        layout = fsdp(zero_stage=2, dp_replicate=2, dp_shard=8, grad_sync=grad_sync)
        usual = point(layout, cluster="2x8xH100", grad_accum=grad_accum, model=blocks_alone)
        slow = changed(usual, inter_bandwidth=10 * GBPS, group_bandwidth=10 * GBPS)
        return _single(step_time(slow).data_s - step_time(usual).data_s)

    assert added_s(8) > 1
    assert added_s(8) == pytest.approx(times * added_s(1), rel=0.05)


def test_steps_of_replicas_over_a_slow_network_as_measured() -> None:
    """Compares with FSDP2 at stage 2, two replicas of two H200 each as two hosts
    (docs/lab/networks.csv#links-first-trial-gpus).
    """
    layout = fsdp(
        zero_stage=2, dp_replicate=2, dp_shard=2, grad_sync="last", attention="sdpa", loss="chunked", compile="block"
    )
    for gbps, grad_accum, measured_s in ((2.5, 1, 1.721), (10, 1, 0.457), (10, 8, 0.818)):
        usual = point(layout, cluster="2x2xH200", model=GPT2, micro_batch=16, grad_accum=grad_accum, seq_len=1024)
        columns = changed(usual, inter_bandwidth=gbps * GBPS, group_bandwidth=gbps * GBPS)
        assert _single(step_time(columns).total_s) == pytest.approx(measured_s, rel=0.15), (gbps, grad_accum)
