"""The guided searcher: starts from the cost model, corrects it by each measurement, and after an error prunes only what
is certain.

The next trial is the first layout in the plan's order that the measurements do not pass over (of several that are
predicted alike, one that compiles soonest): its expected saving over the planned run per device second, weighted by the
probability that it fits, pays for the trial and is at least a small share (`PASSED_OVER`) of the largest. Choosing the
largest saving would trust differences that the regression extrapolates from a few trials more than the plan's order;
for the same reason only one layout is tried ahead of the plan's first (`guidance/plan_order.py`). Recipes take turns,
since each has its own winner. An earlier study's measurements correct the predictions too, but are neither picked nor
incumbents; the largest saving decides then. Where the cost model does not know the devices, nothing is predicted: the
first trials are spread over the values of the axes, and regressions learn times and what fits from the measurements
alone. Where a model stands in for a user's own training, times are predicted, and what fits is learned from the
measurements.

Where trials run side by side, each point whose result is not there yet counts as measured at its believed time, the
posterior's mean (the kriging believer of Ginsbourger et al. 2010): what is suggested beside it must pay even then.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Generic

import numpy as np
import numpy.typing as npt

from platform.cost_model.columns import Array
from platform.cost_model.gp_inputs import Index
from platform.cost_model.linear_algebra import one_thread
from platform.cost_model.regression import Learned
from platform.searchers.guidance.fitting import Fitting
from platform.searchers.guidance.plan_order import PlanOrder
from platform.searchers.guidance.planned_run import PlannedRun
from platform.searchers.guidance.points import make_points
from platform.searchers.guidance.pruning import Pruning
from platform.searchers.guidance.spread import spread
from platform.searchers.guidance.step_times import UNKNOWN_LEAD, StepTimes
from platform.searchers.guidance.worth import expected_saving, rungs_worth_it
from platform.searchers.problem import TRIED, C, Observation, Problem
from trainers.records.measurement import ENDS_LADDER, TIMED, Outcome

FRONT = 2048
"""Number of points whose exact posterior is computed: the best of the space by the posterior's linear part."""
PASSED_OVER = 0.05
"""Points below this share of the largest expected saving per device second are passed over. On random parts of recorded
tables, 0.02 to 0.1 serve equally well, and 0.2 to 1 need 4 to 7 % more trials (`benchmarks.passed_over`).
"""

SPREAD = 4
"""Trials of a recipe that are spread over the values of its axes where nothing is predicted: the regression would begin
with the ends of all axes, where it knows least and where good layouts are rare. On tables whose times scatter most it
does no better than chance by then (`benchmarks.without_predictions`).
"""
RESOLUTION = 0.005
"""Log lead over the incumbent that does not count against a trial's cost, because it could not be shown. Points shared
by two studies of docs/measurements differ by 1.2 % in the median, a quarter of them by less than 0.6.
`benchmarks.guided_stop` shows the cost of a larger value.
"""


class Guided(Generic[C]):
    """The guided searcher (see the module). It draws no random numbers, so the seed has no effect."""

    def __init__(self, problem: Problem[C]) -> None:
        self._problem = problem
        self._points = points = make_points(problem)
        rows = problem.rows
        # A prediction of a foreign script's memory rules out nothing and delays nothing: it counts in the plan's order
        # alone. What fits is learned as without predictions, from what ran.
        of_memory = make_points(dataclasses.replace(problem, columns=None)) if problem.stands_in else points
        self._pruning = Pruning(rows, of_memory)
        first = np.searchsorted(points.owner, np.arange(len(rows)))
        self._first: Index = first
        further_s = problem.compile_s or [0.0] * len(problem.candidates)
        self._start_gpu_s = problem.costs.num_devices * (problem.costs.start_s + np.array(further_s))
        """Device seconds before a trial's first step, by candidate."""
        self._place = {candidate.key: place for place, candidate in enumerate(problem.candidates)}
        heard = len(problem.candidates) + len(problem.earlier)
        self._place_elsewhere = {candidate.key: place for place, candidate in enumerate(rows[heard:], start=heard)}
        """Row of each candidate of other searches, by key."""
        self._run = PlannedRun(problem, points)
        self._alive = np.ones(len(points), dtype=bool)
        self._alive[points.owner >= heard] = False
        self._order = PlanOrder(problem, points)
        self._timing = StepTimes(problem, points)
        self._fitting = Fitting(of_memory)
        self._turns: Counter[int] = Counter()
        """Number of trials, by group."""
        self._num_pruned = 0
        self._suggestion: C | None = None
        self._suggested_beside: tuple[tuple[str, tuple[int, ...]], ...] | None = None
        """The running trials beside which `_suggestion` was picked; None without a suggestion."""
        self._num_running: Counter[int] = Counter()
        """Number of running trials, by group."""
        self._running: tuple[int, ...] = ()
        """The running candidates."""
        self.stopped_reason = ""
        self._recall()
        self._earlier_groups = self._timing.groups()
        """Groups with measurements of an earlier study."""

    def suggest(self, running: Sequence[C] = ()) -> C | None:
        """Returns the next trial (see the module); None if none is worth its cost."""
        beside = tuple((candidate.key, candidate.micro_batches) for candidate in running)
        if self._suggested_beside != beside:
            self._suggested_beside = beside
            with one_thread():
                self._suggestion = self._pick_beside(running)
        return self._suggestion

    def _pick_beside(self, running: Sequence[C]) -> C | None:
        """Returns the next trial beside the `running` ones, whose layouts are not suggested meanwhile."""
        owners = [self._place[candidate.key] for candidate in running if candidate.key in self._place]
        if not owners:
            return self._pick()
        rungs = {candidate.key: candidate.micro_batches for candidate in running}
        of_running = np.flatnonzero(np.isin(self._points.owner, owners))
        climbed = [
            point
            for point in of_running.tolist()
            if self._alive[point]
            and int(self._points.micro_batch[point])
            in rungs[self._problem.candidates[int(self._points.owner[point])].key]
        ]
        alive = self._alive
        self._alive = alive.copy()
        self._alive[of_running] = False
        self._num_running = Counter(int(self._points.group[self._first[owner]]) for owner in owners)
        self._running = tuple(owners)
        index = np.array(climbed, dtype=np.int64)
        try:
            with self._timing.believing(index, self._fitting.chances(index)):
                return self._pick()
        finally:
            self._alive, self._num_running, self._running = alive, Counter(), ()

    def update(self, candidate: C, measurements: Sequence[Observation]) -> None:
        """Learns from the measurements; the rungs of `candidate` are settled, whatever their outcome."""
        self._suggested_beside, self._suggestion = None, None
        owner = self._place.get(candidate.key)
        if owner is None:
            return
        first = int(self._first[owner])
        group = int(self._points.group[first])
        self._turns[group] += 1
        self._order.add(group, owner)
        rungs = self._problem.candidates[owner].micro_batches
        point = {rung: first + place for place, rung in enumerate(rungs)}
        for rung in candidate.micro_batches:
            if rung in point:
                self._alive[point[rung]] = False
        for measurement in measurements:
            if (
                measurement.batch.micro_batch not in point
            ):  # between two rungs: no point to learn, but it may be the best
                self._timing.lead(group, measurement, candidate.tokens_per_step)
            elif measurement.outcome is not Outcome.SKIPPED:
                self._learn(point[measurement.batch.micro_batch], measurement, candidate.tokens_per_step)
                if measurement.outcome in ENDS_LADDER:
                    above = [place for rung, place in point.items() if rung >= measurement.batch.micro_batch]
                    self._alive[above] = False

    def overhear(self, candidate: C, measurements: Sequence[Observation]) -> None:
        """Learns from the measurements of a candidate of another search."""
        owner = self._place_elsewhere.get(candidate.key)
        if owner is None:
            return
        self._suggested_beside, self._suggestion = None, None
        first, rungs = int(self._first[owner]), self._problem.rows[owner].micro_batches
        for measurement in measurements:
            if measurement.batch.micro_batch in rungs and measurement.outcome is not Outcome.SKIPPED:
                point = first + rungs.index(measurement.batch.micro_batch)
                self._regress(point, measurement, candidate.tokens_per_step)

    def deferred(self, candidate: C) -> tuple[int, ...]:
        """Returns the candidate's rungs that are likelier to run out of memory than to run, ascending."""
        owner = self._place[candidate.key]
        with one_thread():
            held = np.flatnonzero(self._held() & (self._points.owner == owner))
        return tuple(int(rung) for rung in self._points.micro_batch[held])

    def _recall(self) -> None:
        """Adds earlier studies' measurements as separate points that are never suggested; only the regression learns
        from them.

        So a point that an earlier study measured can still be suggested here, with a good prediction.
        """
        for owner, earlier in enumerate(self._problem.earlier, start=len(self._problem.candidates)):
            place = self._place.get(earlier.candidate.key)
            rungs = () if place is None else self._problem.candidates[place].micro_batches
            for point, result in enumerate(earlier.results, start=int(self._first[owner])):
                self._alive[point] = False
                self._regress(point, result, earlier.candidate.tokens_per_step)
                rung = result.batch.micro_batch
                if place is not None and rung in rungs and result.outcome in TIMED:
                    self._fitting.ran_before(int(self._first[place]) + rungs.index(rung))

    def _learn(self, point: int, result: Observation, tokens_per_step: int) -> None:
        self._alive[point] = False
        self._timing.lead(int(self._points.group[point]), result, tokens_per_step)
        self._regress(point, result, tokens_per_step)
        if result.outcome is Outcome.OOM:
            out = self._pruning.ruled_out(point, on_host=result.ran_out_on_host)
            self._num_pruned += int(self._alive[out].sum())
            self._alive[out] = False

    def _regress(self, point: int, result: Observation, tokens_per_step: int) -> None:
        """Adds the point's measurement to the regressions."""
        timed = self._timing.learn(point, result, tokens_per_step)
        self._fitting.learn(point, result, timed=timed)

    def _pick(self) -> C | None:
        held = self._held()
        self.stopped_reason = self._all_tried(int(held.sum()))
        pick = self._pick_among(np.flatnonzero(self._alive & ~held))
        if pick is None and self._problem.tokens is not None:
            # No point that likely fits is worth its cost any more. An out-of-memory error costs only seconds, so a
            # point that saves enough of the planned run, weighted by its chance of fitting, is tried anyway.
            stopped = self.stopped_reason
            pick = self._pick_among(np.flatnonzero(held))
            self.stopped_reason = stopped
        return pick

    def _pick_among(self, index: Index) -> C | None:
        if not len(index):
            return None
        # Recipes take turns: the common model learns from each, and a budget that ends early has served all equally.
        times = self._timing.posterior()
        groups = self._points.group[index]
        for group in sorted(
            dict.fromkeys(groups.tolist()), key=lambda group: self._turns[group] + self._num_running[group]
        ):
            pick = self._pick_of(group, index[groups == group], times)
            if pick is not None:
                return pick
        return None

    def _held(self) -> npt.NDArray[np.bool_]:
        """Returns for every point whether it must wait.

        A recipe with an incumbent tries a likely out-of-memory error only after all points that likely fit.
        """
        led = np.isin(self._points.group, list(self._timing.incumbents))
        return self._alive & led & self._fitting.too_large() if led.any() else led

    def _all_tried(self, num_held: int) -> str:
        others = {
            "needs more memory than one that ran out of it": self._num_pruned,
            "is predicted to run out of it": num_held,
        }
        reasons = [f"{why} ({num} batch points)" for why, num in others.items() if num]
        return ", or ".join([TRIED, *reasons])

    def _pick_of(self, group: int, index: Index, times: Learned) -> C | None:
        """Returns the group's next point of `index` (see the module), with further rungs to climb."""
        problem, points, timing = self._problem, self._timing.points, self._timing
        costs = problem.costs
        turn = self._turns[group] + self._num_running[group]
        if not points.predicted and turn < SPREAD and group not in self._earlier_groups:
            owners = np.unique(points.owner[index]).tolist()
            owner = owners[spread([problem.candidates[place].axes for place in owners], turn)]
            return self._judged(owner, group, index[points.owner[index] == owner], saving=1.0, cost_gpu_s=0.0)
        roughly = -(points.log_step_s + times.roughly())[index]
        ahead = roughly - timing.reference(group, roughly)
        front = _foremost(index, ahead + points.sigma[index], FRONT)
        mean, sigma = times.each(front)
        surprise = timing.surprise(times)
        speed = -(points.log_step_s[front] + mean)
        reference = timing.reference(group, speed)
        # A step that stalls saves nothing.
        fits = self._fitting.chances(front) * (1 - times.stall_chance(front))
        # Before any measurement the error common to all points changes no comparison: only the prediction's own
        # deviation counts.
        measured = group in timing.incumbents or group in self._earlier_groups
        sigma = math.sqrt(surprise) * sigma if measured else points.sigma[front]
        rung_cost = costs.num_devices * (costs.rung_s + costs.steps * np.exp(-speed))
        start = self._start_gpu_s[points.owner[front]]
        rate = expected_saving(speed - reference, sigma) * fits / (start + rung_cost)
        shown = expected_saving(speed - reference - RESOLUTION, sigma) * fits
        ordered = points.predicted and group not in self._earlier_groups
        pays = shown / (start + rung_cost) >= self._run.paying_rate(group, reference)
        worth = _worth(rate, pays) if measured else np.ones(len(front), bool)
        rank = points.log_rank[front]
        if problem.stands_in:  # of memory this order has the prediction alone, not what ran out of it
            rank = rank + np.log(np.maximum(fits, 1e-12))
        chosen = _first(np.where(worth, rank, -np.inf), start) if ordered else int(np.argmax(rate))
        if ordered and measured:
            # At learned rates of links the first layout of the plan may be hopeless.
            near = np.flatnonzero(pays & (-points.log_step_s[front] > reference - UNKNOWN_LEAD))
            running = [owner for owner in self._running if self._points.group[self._first[owner]] == group]
            due = self._order.due(group, front[near], running)
            chosen = chosen if due is None else int(near[due])
        owner = int(points.owner[front[chosen]])
        others = points.owner[front] != owner
        # The next trial will compete with this trial's best. Before any measurement the error common to all points
        # counts for the others but cancels within the ladder: the first trial climbs few rungs rather than many.
        then = max(reference, float(speed[chosen]))
        rates = expected_saving(speed[others] - then, sigma[others]) * fits[others] / (start + rung_cost)[others]
        elsewhere = max(float(rates.max(initial=0.0)), self._run.paying_rate(group, then))
        ladder = index[points.owner[index] == owner]
        mean, covariance = times.at(ladder)
        speed, fits = -(points.log_step_s[ladder] + mean), self._fitting.chances(ladder)
        cost = costs.num_devices * (costs.rung_s + costs.steps * np.exp(-speed))
        # Where memory is not predicted the whole ladder is climbed: only the extrapolation of its own measured memory
        # can end it.
        climbed = (
            rungs_worth_it(speed, surprise * covariance, fits, reference, cost, float(start[chosen]), elsewhere)
            if points.predicted
            else list(range(len(ladder)))
        )
        cost_gpu_s = float((start + rung_cost)[chosen])
        return self._judged(owner, group, ladder[climbed], float(shown[chosen]), cost_gpu_s)

    def _judged(self, owner: int, group: int, rungs: Index, saving: float, cost_gpu_s: float) -> C | None:
        """Returns the candidate with these `rungs`; None if its best rung saves less than its trial costs.

        `stopped_reason` then gives the reason. Further rungs are only included if they pay for themselves.
        """
        problem = self._problem
        candidate = problem.candidates[owner]
        micro_batches = tuple(int(rung) for rung in self._points.micro_batch[rungs])
        climbed: Any = candidate
        if micro_batches != candidate.micro_batches:
            climbed = dataclasses.replace(candidate, micro_batches=micro_batches)  # type: ignore[type-var]
        if problem.tokens is not None and group in self._timing.incumbents:
            refusal = self._run.refusal(group, self._timing.incumbents[group], saving, cost_gpu_s)
            if refusal:
                self.stopped_reason = refusal
                return None
        return climbed


def _worth(rate: Array, pays: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Returns the points among which the plan's order decides: those that pay and are not passed over.

    `rate` is their expected saving per device second. If none pays, only the best one.
    """
    worth = pays & (rate >= PASSED_OVER * rate.max())
    return worth if worth.any() else rate >= rate.max()


def _first(log_rank: Array, start_gpu_s: Array) -> int:
    """Returns the plan's first point, or one less than `RESOLUTION` behind it that starts sooner."""
    near = np.flatnonzero(log_rank >= log_rank.max() - RESOLUTION)
    soonest = near[start_gpu_s[near] <= start_gpu_s[near].min()]
    return int(soonest[np.argmax(log_rank[soonest])])


def _foremost(index: Index, score: Array, limit: int) -> Index:
    """Returns the `limit` elements of `index` with the highest scores, in their own order."""
    if len(index) <= limit:
        return index
    return np.sort(index[np.argpartition(-score, limit)[:limit]])
