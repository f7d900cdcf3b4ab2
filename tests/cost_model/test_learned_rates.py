"""Rates that measured steps imply, on synthetic truths: the model itself with slower links or devices."""

import dataclasses

import numpy as np
import pytest

from platform.cost_model.columns import Array, Columns
from platform.cost_model.features import from_points
from platform.cost_model.hardware import ClusterSpec, find_cluster
from platform.cost_model.learned_rates import RateFactors, TimedRows, learned_factors
from platform.cost_model.predict import predict
from tests.cost_model.points import BLOOM_7B1
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

RECIPE = Recipe(model=BLOOM_7B1, seq_len=2048, global_batch=512, state_precision="bf16")
DEGREES = (
    {"zero_stage": 2, "dp_shard": 4, "grad_sync": "last"},
    {"zero_stage": 3, "dp_shard": 4, "grad_sync": "every"},
    {"zero_stage": 2, "dp_shard": 2, "dp_replicate": 2, "grad_sync": "last"},
    {"zero_stage": 2, "dp_shard": 2, "pp": 2, "grad_sync": "last"},
    {"zero_stage": 2, "dp_shard": 2, "tp": 2, "grad_sync": "last"},
    {"zero_stage": 2, "dp_shard": 1, "pp": 4, "grad_sync": "last"},
)
LAYOUTS = [Layout(engine="fsdp", checkpointing="selective", **degrees) for degrees in DEGREES]  # type: ignore[arg-type]
POINTS = [(RECIPE, layout, BatchPoint.of(RECIPE, layout, size)) for layout in LAYOUTS for size in (1, 4)]
TWO_NODES, ONE_NODE = find_cluster("2x2xH200"), find_cluster("1x4xH200")
CLUSTERS = {"between": TWO_NODES, "inside": ONE_NODE}
WHOLE = np.full(len(POINTS), np.nan)


def slower(cluster: ClusterSpec, link: str, factor: float) -> ClusterSpec:
    """Returns the cluster whose links are slower, by name: "between" nodes or "inside" them."""
    if link == "inside":
        rates = {"intra_gb_per_s": cluster.intra_gb_per_s / factor, "intra_latency_s": cluster.intra_latency_s * factor}
    else:
        rates = {
            "inter_gb_per_s": cluster.inter_gb_per_s / factor,
            "inter_latency_s": cluster.inter_latency_s * factor,
            "inter_hop_s": cluster.inter_hop_s * factor,
        }
    return dataclasses.replace(cluster, **rates)


def times(columns: Columns) -> tuple[Array, Array]:
    """Returns the seconds (of each step, of one further micro-step)."""
    longer = Columns.of({**columns.arrays(), "grad_accum": columns.grad_accum + 1})
    step_s = predict(columns).step.total_s
    return step_s, predict(longer).step.total_s - step_s


def learned(columns: Columns, rows: list[int], step_s: Array, micro_s: Array) -> RateFactors:
    """Returns what measurements of these rows teach."""
    index = np.array(rows)
    return learned_factors(TimedRows(columns=columns.take(index), step_s=step_s[index], micro_s=micro_s[index]))


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
@pytest.mark.parametrize("is_split", [True, False])
def test_a_truth_equal_to_the_model_moves_nothing(cluster: ClusterSpec, is_split: bool) -> None:
    columns = from_points(POINTS, cluster)
    step_s, micro_s = times(columns)
    for rows in ([0], [3], [6], list(range(len(POINTS)))):
        factors = learned(columns, rows, step_s, micro_s if is_split else WHOLE)
        assert factors == RateFactors() and factors.on(columns) is columns


def test_usual_errors_move_nothing() -> None:
    columns, dice = from_points(POINTS, TWO_NODES), np.random.default_rng(7)
    step_s, micro_s = times(columns)
    for _ in range(8):
        errors = np.exp(dice.normal(0.0, 0.08) + dice.normal(0.0, 0.06, len(POINTS)))
        assert not learned(columns, list(range(len(POINTS))), step_s * errors, micro_s * errors)


@pytest.mark.parametrize("link", CLUSTERS)
@pytest.mark.parametrize("factor", [10.0, 25.0, 50.0])
def test_one_trial_over_a_slow_link_gives_the_order_of_the_truth(link: str, factor: float) -> None:
    """Checks every first trial that takes 2.2 times as long as predicted."""
    cluster = CLUSTERS[link]
    columns, truth = from_points(POINTS, cluster), from_points(POINTS, slower(cluster, link, factor))
    before_s, (true_s, micro_s) = predict(columns).step.total_s, times(truth)
    telling = np.flatnonzero(true_s > 2.2 * before_s)
    assert len(telling)
    for row in telling:
        factors = learned(columns, [int(row)], true_s, micro_s)
        assert getattr(factors, link) == pytest.approx(np.log(factor), abs=0.5), POINTS[row]
        after_s = predict(factors.on(columns)).step.total_s
        differ = true_s[:, None] > 1.3 * true_s[None, :]
        assert (after_s[:, None] > after_s[None, :])[differ].all(), POINTS[row]


def test_the_part_that_a_step_has_once_shows_a_slow_exchange_that_accumulation_hides() -> None:
    """Checks FSDP2 at stage 2 with 128 micro-steps: the step is a third longer, which could be compute."""
    columns = from_points(POINTS, TWO_NODES)
    true_s, micro_s = times(from_points(POINTS, slower(TWO_NODES, "between", 50.0)))
    assert 1.2 < true_s[0] / predict(columns).step.total_s[0] < 1.4
    assert not learned(columns, [0], true_s, WHOLE)
    assert learned(columns, [0], true_s, micro_s).between == pytest.approx(np.log(50), abs=0.5)


def test_slow_devices_are_not_taken_for_slow_links() -> None:
    columns = from_points(POINTS, TWO_NODES)
    scaled = {name: columns.arrays()[name] / 2 for name in ("matmul_flops", "plain_flops", "flash_flops", "bandwidth")}
    step_s, micro_s = times(Columns.of({**columns.arrays(), **scaled}))
    factors = learned(columns, list(range(len(POINTS))), step_s, micro_s)
    assert factors == RateFactors()


def test_errors_of_engines_and_kernels_are_not_taken_for_slow_links() -> None:
    """Checks errors of 1.5 and of 1.4 times a step, each of half of the layouts, which no rate explains."""
    columns, dice = from_points(POINTS, TWO_NODES), np.random.default_rng(3)
    step_s, micro_s = times(columns)
    for _ in range(6):
        halves = [1 + 0.5 * (dice.permutation(len(POINTS)) % 2), 1 + 0.4 * (dice.permutation(len(POINTS)) % 2)]
        errors = halves[0] * halves[1]
        assert not learned(columns, list(range(len(POINTS))), step_s * errors, WHOLE)
        assert not learned(columns, list(range(len(POINTS))), step_s * errors, micro_s * errors)


def test_one_stalled_step_among_several_moves_nothing() -> None:
    columns = from_points(POINTS, TWO_NODES)
    step_s, _ = times(columns)
    step_s[3] *= 3.0
    assert not learned(columns, list(range(len(POINTS))), step_s, WHOLE)


def test_a_corrected_link_is_known_as_well_as_it_was_measured() -> None:
    unknown = dataclasses.replace(TWO_NODES, link_sigma=1.0)
    columns = from_points(POINTS, unknown)
    true_s, micro_s = times(from_points(POINTS, slower(unknown, "between", 50.0)))
    corrected = learned(columns, list(range(len(POINTS))), true_s, micro_s).on(columns)
    assert corrected.link_sigma.max() < 0.5


def test_one_device_has_no_link_to_learn() -> None:
    alone = Layout(engine="ddp")
    columns = from_points([(RECIPE, alone, BatchPoint.of(RECIPE, alone, 1))], find_cluster("1xH200"))
    assert not learned(columns, [0], 5 * predict(columns).step.total_s, np.array([np.nan]))
