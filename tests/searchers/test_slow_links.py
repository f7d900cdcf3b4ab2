"""The guided search where links are slower than assumed: the order of what comes after the first trial."""

import dataclasses
import math

import numpy as np
import pytest

from platform.cost_model.features import from_points
from platform.cost_model.hardware import ClusterSpec, find_cluster
from platform.cost_model.predict import predict
from platform.searchers.guided import Guided
from platform.searchers.problem import Problem, TrialCosts
from search_spaces import load
from search_spaces.candidate import Candidate
from tests.samples import measurement
from trainers.records.measurement import Measurement

SPACE = load("bloom7b").with_changes(
    ["attention=flex", "loss=chunked", "compile=block", "checkpointing=selective", "tp=1", "cp=1", "micro_batch=1"]
)
CANDIDATES = SPACE.candidates(4)[0]
CLUSTER = find_cluster("2x2xH200")


def points_on(cluster: ClusterSpec) -> Problem[Candidate]:
    """Returns the problem as predicted with the links of `cluster`."""
    points = [(candidate.recipe, candidate.layout, candidate.batch_points()[0]) for candidate in CANDIDATES]
    columns = from_points(points, cluster)
    return Problem(candidates=CANDIDATES, columns=columns, costs=TrialCosts(num_devices=4), tokens=1e12)


class Truth:
    """Steps as the model has them where links between nodes are slower by `factor`."""

    def __init__(self, factor: float) -> None:
        slow = dataclasses.replace(
            CLUSTER,
            inter_gb_per_s=CLUSTER.inter_gb_per_s / factor,
            inter_latency_s=CLUSTER.inter_latency_s * factor,
            inter_hop_s=CLUSTER.inter_hop_s * factor,
        )
        problem = points_on(slow)
        assert problem.columns is not None
        self.step_s = predict(problem.columns).step.total_s
        self.place = {candidate.key: place for place, candidate in enumerate(CANDIDATES)}

    def of(self, candidate: Candidate) -> float:
        """Returns the candidate's step in seconds."""
        return float(self.step_s[self.place[candidate.key]])

    def run(self, candidate: Candidate) -> list[Measurement]:
        """Returns the candidate's measurement, timed as a whole."""
        speed = candidate.tokens_per_step / self.of(candidate)
        return [measurement(recipe=candidate.recipe, on=candidate.layout, micro_batch=1, tokens_per_s=speed)]


@pytest.mark.parametrize("factor", [20.0, 50.0])
def test_after_one_trial_over_a_slow_link_the_next_is_nearly_the_best(factor: float) -> None:
    truth, searcher = Truth(factor), Guided(points_on(CLUSTER))
    crossing = [c for c in CANDIDATES if c.layout.dp_shard == 4 and c.layout.zero_stage == 3]
    searcher.update(crossing[0], truth.run(crossing[0]))
    second = searcher.suggest()
    assert second is not None
    assert truth.of(crossing[0]) > 2 * truth.step_s.min(), "the first was far from it"
    assert truth.of(second) < 1.1 * truth.step_s.min()
    assert searcher._timing.factors.between == pytest.approx(math.log(factor), abs=0.5)  # pyright: ignore[reportPrivateUsage]


def test_where_links_are_as_assumed_the_plan_keeps_its_order() -> None:
    truth, searcher = Truth(1.0), Guided(points_on(CLUSTER))
    points = searcher._timing.points  # pyright: ignore[reportPrivateUsage]
    for candidate in CANDIDATES[:6]:
        searcher.update(candidate, truth.run(candidate))
        assert searcher.suggest() is not None
    assert searcher._timing.points is points  # pyright: ignore[reportPrivateUsage]
    assert np.isfinite(points.log_rank).all()
