"""Plans what a search tries of a space on a cluster, and what it skips and why."""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np

from platform.cost_model.columns import Columns
from platform.cost_model.memory import lower_bound
from platform.cost_model.ordering import likely_best_first
from platform.cost_model.predict import predict
from platform.search.setup import guesses
from platform.search.setup.confirmation_rules import ConfirmationRules
from search_spaces.candidate import Candidate, RejectedLayout
from search_spaces.stand_in import StandIn
from trainers.host.failures import size
from trainers.measuring.ladder import timed_accum
from trainers.records.job import Timing
from trainers.records.measurement import Measurement, Outcome
from trainers.records.probe import Probe
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout
from trainers.spec.placement import reaches_across_nodes
from trainers.spec.recipe import Recipe
from trainers.spec.support import refusal

TRIAL_S = {"cuda": 18.0, "cpu": 16.0}
"""Seconds to start and end a trial: 13 to 25 on H200 hosts (docs/measurements.md), estimated on two CPU cores."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SearchPlan:
    """Candidates with the rungs that may fit, and skipped points."""

    candidates: tuple[Candidate, ...]
    skipped: tuple[Measurement, ...]
    """Layouts that cannot run and rungs that cannot fit, with outcome `skipped` and the reason."""
    columns: Columns | None = None
    """A row for each rung of each candidate, in order; None if the cost model does not know the devices."""
    stand_in: Columns | None = None
    """The same of the models that stand in for a user's own training: for the searcher alone."""

    @property
    def guide(self) -> Columns | None:
        """The columns that guide a searcher."""
        return self.columns if self.stand_in is None else self.stand_in

    def num_final(self, rules: ConfirmationRules) -> int:
        """Returns the number of confirmation trials if no winner is overtaken."""
        recipes = Counter(candidate.recipe for candidate in self.candidates for _ in candidate.micro_batches)
        return sum(rules.num_trials(num_points) for num_points in recipes.values())

    def expected_s(
        self, candidates: Sequence[Candidate], cluster: Cluster, timing: Timing, rules: ConfirmationRules
    ) -> float:
        """Returns the estimated seconds of the `candidates` and of all confirmation runs.

        They include each trial's start and each rung's warm-up and windows. A confirmation run takes the mean of all
        rungs. A winner's run at length may have the longest allowed steps: one to warm up, then the windows.
        """
        start_s, rungs_s = TRIAL_S[cluster.device_kind], self._rungs_s(timing)
        mean_s = sum(rungs_s.values()) / max(1, len(rungs_s))
        recipes = len({candidate.recipe for candidate in self.candidates})
        trying_s = len(candidates) * start_s + sum(rungs_s.get(rung, mean_s) for rung in _rungs(candidates))
        final_s = self.num_final(rules) * (start_s + mean_s)
        return trying_s + final_s + recipes * (timing.winner_s + timing.longest_step_s)

    def _rungs_s(self, timing: Timing) -> dict[tuple[str, int], float]:
        """Returns the estimated seconds of each rung's warm-up and windows, by candidate key and micro-batch."""
        rungs = _rungs(self.candidates)
        steps_s = [0.0] * len(rungs)
        if timing.fixes_steps and self.columns is not None:
            accums = [batch.grad_accum for candidate in self.candidates for batch in candidate.batch_points()]
            shares = [timed_accum(accum, all_micro_steps=timing.whole_steps) / accum for accum in accums]
            steps_s = (timing.num_steps * np.array(shares) * predict(self.columns).step.total_s).tolist()
        return {rung: 1.5 * timing.rung_s + seconds for rung, seconds in zip(rungs, steps_s, strict=True)}


def num_rungs(candidates: Sequence[Candidate]) -> int:
    return len(_rungs(candidates))


def _rungs(candidates: Sequence[Candidate]) -> list[tuple[str, int]]:
    return [(candidate.key, micro_batch) for candidate in candidates for micro_batch in candidate.micro_batches]


def make_plan(
    candidates: Sequence[Candidate],
    rejected: Sequence[RejectedLayout],
    cluster: Cluster,
    cap_gib: float | None,
    probe: Probe | None = None,
    *,
    spans_nodes: bool = False,
    stand_in: StandIn | None = None,
) -> SearchPlan:
    """Returns the plan for `cluster`, its candidates ordered by their predictions with the figures of `probe`.

    Points of a user's own training are ordered by the predictions of their `stand_in`, and none is skipped by them.
    Skipped are layouts that an engine refuses, tensor parallelism across nodes unless `spans_nodes`, and rungs whose
    lower bound of memory exceeds the device or cap.
    """
    planned: list[Candidate] = []
    skipped = [
        _skip(rejected_layout.recipe, rejected_layout.layout, 1, rejected_layout.reason, cap_gib)
        for rejected_layout in rejected
    ]
    limit_gib = min(cluster.device_memory_gib, cap_gib or cluster.device_memory_gib)
    for candidate in candidates:
        recipe, layout = candidate.recipe, candidate.layout
        reason = refusal(recipe, layout, cluster)
        if reason is None and not spans_nodes:
            reason = reaches_across_nodes(layout, cluster.devices_per_node)
        if reason is not None:
            skipped.append(_skip(recipe, layout, candidate.micro_batches[0], reason, cap_gib))
            continue
        fits: list[int] = []
        if not recipe.has_model:  # nothing is known of its memory or speed
            planned.append(candidate)
            continue
        for batch in candidate.batch_points():
            bound = lower_bound(recipe, layout, batch)
            if bound.total_gib > limit_gib:  # all larger ones need more
                reason = f"needs {bound.sentence}; a device has {size(limit_gib)}"
                skipped.append(_skip(recipe, layout, batch.micro_batch, reason, cap_gib))
                break
            fits.append(batch.micro_batch)
        if fits:
            planned.append(dataclasses.replace(candidate, micro_batches=tuple(fits)))
    if not all(candidate.recipe.has_model for candidate in planned):
        if stand_in is None:
            return SearchPlan(candidates=tuple(planned), skipped=tuple(skipped))
        ordered, columns = guesses.likely_best_first(stand_in, planned, cluster, cap_gib, probe)
        return SearchPlan(candidates=tuple(ordered), skipped=tuple(skipped), stand_in=columns)
    ordered, columns = likely_best_first(planned, cluster, cap_gib, probe)
    return SearchPlan(candidates=tuple(ordered), skipped=tuple(skipped), columns=columns)


def part_of(cluster: Cluster, num_devices: int) -> Cluster:
    """Returns `num_devices` of the cluster's devices on as few nodes as possible.

    Raises:
        ValueError: the cluster has fewer devices, or they do not fill whole nodes.
    """
    per_node = cluster.devices_per_node
    if num_devices > cluster.num_devices:
        raise ValueError(f"{num_devices} devices are asked for, the cluster has {cluster.num_devices}")
    if num_devices <= per_node:
        return dataclasses.replace(cluster, num_nodes=1, devices_per_node=num_devices)
    if num_devices % per_node:
        raise ValueError(f"{num_devices} devices do not fill nodes of {per_node}: give a multiple of {per_node}")
    return dataclasses.replace(cluster, num_nodes=num_devices // per_node)


def same_devices(first: Cluster, second: Cluster) -> bool:
    """Returns whether figures of two clusters are comparable: equal devices, number and placement."""
    return (first.device, first.num_nodes, first.devices_per_node) == (
        second.device,
        second.num_nodes,
        second.devices_per_node,
    )


def _skip(recipe: Recipe, layout: Layout, micro_batch: int, reason: str, cap_gib: float | None) -> Measurement:
    accum = recipe.grad_accum or max(1, recipe.global_batch // (micro_batch * layout.data_parallel))
    batch = BatchPoint(micro_batch=micro_batch, grad_accum=accum)
    return Measurement(
        recipe=recipe, layout=layout, batch=batch, outcome=Outcome.SKIPPED, reason=reason, cap_gib=cap_gib
    )
