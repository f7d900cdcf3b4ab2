"""The remaining confirmation of one recipe: runs of its fastest points, the winner's run at length, and its gate."""

import functools
import math
import sys
from collections.abc import Collection, Sequence

from platform.search.confirmation.confirmation_costs import ConfirmationCosts
from platform.search.confirmation.confirmation_trial import ConfirmationTrial
from platform.search.confirmation.held_runs import held_run
from platform.search.confirmation.run_order import ConfirmationRun, contenders_run, last_run, repeats_left
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.study.history import History
from platform.study.node_paces import Paces
from platform.study.result import gate as gates
from platform.study.result.ranking import PointRuns, by_speed, points, rank, ranked, winner
from platform.study.result.tie_break import contenders_of, stopped_of, unresolved_of
from search_spaces.candidate import Candidate
from trainers.records.journal import TrialStart
from trainers.records.measurement import TRAINING_STATE, Measurement
from trainers.records.search_state import SearchState
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

MOST_REFERENCES = 3
"""Layouts tried as the numerics gate's reference before a winner stays without one."""
MOST_ROUNDS = 6
"""Rounds of the contenders' runs in a session without a budget. A further session has as many."""
SURE_ROUNDS = 3
"""Rounds that only a budget cuts short: intervals over pairs take three or four to separate layouts 10 % apart. Without
a budget, a further round begins only if all rounds together take no longer than the search's own trials.
"""


class RecipeConfirmation:
    """The remaining confirmation of one recipe by a study's history at one moment. Each answer is computed once."""

    def __init__(
        self,
        recipe: Recipe,
        measured: Sequence[Measurement],
        history: History,
        *,
        candidates: Sequence[Candidate],
        rules: ConfirmationRules,
        attempted: Sequence[TrialStart],
        running: Sequence[TrialStart],
        expected: Measurement | None,
        is_compared: bool,
    ) -> None:
        """`attempted` are the confirmation trials that must not be repeated, `running` those among them in flight,
        `expected` the predicted winner. If `is_compared`, the gate also shows the change of loss by FP8.
        """
        self.recipe, self.measured, self.expected = recipe, measured, expected
        self._history, self._candidates, self._rules = history, candidates, rules
        self._attempted, self._running, self._is_compared = attempted, running, is_compared
        self._attempted_runs = frozenset(
            (trial.layout.id, micro_batch, trial.repeat) for trial in attempted for micro_batch in trial.micro_batches
        )

    @functools.cached_property
    def best(self) -> Measurement | None:
        """The run that represents the fastest point; None before any ran."""
        return winner(self.measured, self._paces)

    @functools.cached_property
    def contenders(self) -> list[PointRuns]:
        """The points that may be fastest because the machine was disturbed."""
        return contenders_of(self._ranking, stopped_of(self._points))

    @functools.cached_property
    def unresolved(self) -> list[PointRuns]:
        """The contenders whose order is open; empty if the winner is known."""
        return unresolved_of(self._ranking, stopped_of(self._points))

    @functools.cached_property
    def _ranking(self) -> list[PointRuns]:
        return rank(self._points)

    @functools.cached_property
    def repeats_left(self) -> list[ConfirmationRun]:
        """The remaining runs of the finalists, the next one first."""
        rules = self._rules
        return repeats_left(self._points, repeats=rules.repeats, limit=rules.finalists, attempted=self._attempted_runs)

    @property
    def is_running(self) -> bool:
        """Whether a point's run is in flight, which may change the winner."""
        return any(trial.micro_batches for trial in self._running)

    @property
    def breaks_ties(self) -> bool:
        """Whether contenders' runs are under way, and none of another point."""
        states = {trial.state for trial in self._running if trial.micro_batches}
        return states == {SearchState.BREAKING_TIES}

    @functools.cached_property
    def free_repeats(self) -> list[ConfirmationRun]:
        """The runs of `repeats_left` whose round has no run in flight, because runs of a round follow each other."""
        return [run for run in self.repeats_left if run.repeat not in self._running_rounds]

    @functools.cached_property
    def held(self) -> ConfirmationRun | None:
        """The held run of a faster point that had no head-room; None without one."""
        return held_run(self._points, self.best, attempted=self._attempted_runs)

    @functools.cached_property
    def unprofiled(self) -> Measurement | None:
        """The winner if its profile is requested and missing."""
        best = self.best if self._rules.profile and not self.unresolved else None
        return best if best and self._history.profile_of(best) is None else None

    @functools.cached_property
    def _points(self) -> list[PointRuns]:
        return points(self.measured, self._paces)

    @functools.cached_property
    def _paces(self) -> Paces:
        return self._history.paces

    def next_repeats(self) -> list[ConfirmationRun]:
        """Returns the next finalist's run, or a new round's first two, because one alone compares nothing."""
        if not self.free_repeats:
            return []
        number = self.free_repeats[0].repeat
        has_begun = any(measurement.repeat == number for measurement in self.measured)
        return [run for run in self.free_repeats if run.repeat == number][: 1 if has_begun else 2]

    def tie_break(
        self, left_s: float, costs: ConfirmationCosts, new_trials: Collection[str]
    ) -> ConfirmationTrial | None:
        """Returns the contenders' next run, where `left_s` holds it; while some run, one of another of the first
        rounds. Without a budget, `left_s` infinite, the rounds of this session's `new_trials` (ids) are few, and take
        no longer than the search did.
        """
        after = self._rules.repeats + 1  # the number of the winner's run at length
        runs = [run for point in self.contenders for run in point.runs]
        before = max((run.repeat for run in runs if run.trial_id not in new_trials), default=0)
        is_unlimited = math.isinf(left_s)
        most_rounds = MOST_ROUNDS + max(0, before - after) if is_unlimited else sys.maxsize - after - 1
        run = contenders_run(
            self.contenders, after=after, most_rounds=most_rounds, attempted=self._attempted_runs,
            running=self._running_rounds, current=self._current_rounds(after),
        )  # fmt: skip
        if run is None or left_s < costs.repeat_s(run.point):
            return None
        rounds = range(max(before, after) + 1, run.repeat)
        if self._running_rounds and len(rounds) >= SURE_ROUNDS:
            return None
        begins = all(other.repeat != run.repeat for other in runs)
        if begins and is_unlimited and len(rounds) >= SURE_ROUNDS:
            round_s = sum(costs.repeat_s(point.search or point.main_run) for point in self.contenders)
            if self._history.trials_s(self.recipe, rounds) + round_s > self.searched_s:
                return None
        return run.trial(SearchState.BREAKING_TIES)

    @functools.cached_property
    def _running_rounds(self) -> frozenset[int]:
        return frozenset(trial.repeat for trial in self._running if trial.micro_batches)

    def _current_rounds(self, after: int) -> set[int]:
        """Returns the rounds above `after` of which a run was under way when the last of them began, or is now."""
        rounds: dict[int, set[str]] = {}
        for trial in self._history.trials:
            if trial.repeat > after and trial.recipe == self.recipe and trial.micro_batches:
                rounds.setdefault(trial.repeat, set()).add(trial.trial_id)
        if not rounds:
            return set()
        last = rounds[max(rounds)]
        ends = {number: [self._history.trial_end(trial) for trial in trials] for number, trials in rounds.items()}
        beside = {number for number, of_round in ends.items() if any(end and last & {*end.beside} for end in of_round)}
        return beside | (self._running_rounds & rounds.keys())

    @property
    def searched_s(self) -> float:
        return self._history.trials_s(self.recipe, range(1))

    @property
    def tie_breaks_s(self) -> float:
        return self._history.trials_s(self.recipe, range(self._rules.repeats + 2, sys.maxsize))

    def closing_trial(self, *, gated: bool = True, run: bool = True) -> ConfirmationTrial | None:
        """Returns the winner's next trial: its run at length with its gate, then the reference's gate.

        Gates are left out unless `gated`, the run unless `run`. Without repeats no other point was confirmed. If this
        run puts the winner behind another point's search figure, that point also runs at length.
        """
        best, gate, recipe = self.best, self._rules.gate if gated else None, self.recipe
        if best is None:
            return None
        if gate and gates.has_curves(best, self._history.gates) and (reference := self.reference_trial()):
            return reference
        leading = [*self._ranking[:1], *(by_speed(self._points)[:1] if not self._rules.repeats else ())]
        for point in leading if run else ():
            last = last_run(point, repeats=self._rules.repeats, attempted=self._attempted_runs)
            needed_gate = gate if gate and self._needs_gate(point.main_run) else None
            if last is not None and (needed_gate or self._needs_timing(point.main_run)):
                return last.trial(SearchState.MEASURING_WINNER, gate=needed_gate)
        if gate is None or not self._needs_gate(best) or self._was_gated_alone(best):
            return None
        repeat = self._rules.repeats + 1
        return ConfirmationTrial(state=SearchState.GATING, recipe=recipe, layout=best.layout, repeat=repeat, gate=gate)

    def reference_trial(self) -> ConfirmationTrial | None:
        """Returns the gate of the best point's reference; None if none has to run."""
        best, gate = self.best, self._rules.gate
        layout = self._next_reference(best) if best and gate and self._can_have_gate(best) else None
        if layout is None:
            return None
        return ConfirmationTrial(state=SearchState.GATING, recipe=self.recipe, layout=layout, gate=gate)

    def need_s(self, costs: ConfirmationCosts, *, for_new_winner: bool = False) -> tuple[float, float]:
        """Returns the estimated seconds of the winner's remaining run at length, and of its gate with the reference's.

        All of them count for another winner (`for_new_winner`), and if the winner is only expected.
        """
        best = self.best or self.expected
        if best is None:
            return 0.0, 0.0
        if for_new_winner or self.best is None:
            closing, runs = None, self._needs_timing(best)
            gate = self._rules.gate if self._can_have_gate(best) else None
        else:
            closing, runs = self.closing_trial(), self.closing_trial(gated=False) is not None
            gate = closing and closing.gate
        run_s = costs.run_s(best) if runs else 0.0
        if not gate:
            return run_s, 0.0
        reference_s = self.reference_s(best, costs)
        if closing and not closing.is_winner_run:
            return run_s, reference_s
        winner_gate_s = costs.winner_gate_s(gate, best)
        if not runs:  # no other trial's time includes it
            winner_gate_s += costs.ready_s(best) if closing and not closing.rungs else costs.run_s(best)
        return run_s, winner_gate_s + reference_s

    def reference_s(self, best: Measurement, costs: ConfirmationCosts) -> float:
        """Returns the estimated seconds of the reference's gate; 0 if none has to run."""
        layout = self._next_reference(best)
        if self._rules.gate is None or layout is None:
            return 0.0
        reference_points = ranked(measurement for measurement in self.measured if measurement.layout == layout)
        reference_run = reference_points[0].main_run if reference_points else None
        return costs.reference_gate_s(self._rules.gate, best, reference_run)

    def _needs_timing(self, best: Measurement) -> bool:
        """Returns whether a winner must be timed once more, apart from gates."""
        return self._rules.repeats > 0 or best.step_time_derived

    def _needs_gate(self, best: Measurement) -> bool:
        """Returns whether the winner's curves are missing and can be compared with something."""
        return not gates.has_curves(best, self._history.gates) and self._can_have_gate(best)

    def _can_have_gate(self, best: Measurement) -> bool:
        if best.conditions is not None and TRAINING_STATE in best.conditions.engine_lacks:
            return False
        return self._is_compared or bool(self._references(best))

    def _was_gated_alone(self, best: Measurement) -> bool:
        return any(trial.repeat and trial.layout == best.layout for trial in self._attempted if trial.is_gate)

    def _references(self, best: Measurement) -> list[Layout]:
        """Returns the layouts that may be the winner's reference, the plainest first.

        The winner itself and layouts that failed a gate are left out.
        """
        failed = {measurement.layout for measurement in self.measured if measurement.phase == "gate"}
        return [layout for layout in self._plainest if layout != best.layout and layout not in failed]

    @functools.cached_property
    def _plainest(self) -> list[Layout]:
        return gates.references(self.recipe, self._candidates, self.measured)

    def _next_reference(self, best: Measurement) -> Layout | None:
        """Returns the layout whose gate must run as the winner's reference; None without one, and while one runs."""
        gate = self._rules.gate
        finished_gates = {
            (curves.steps, curves.sequences)
            for curves in self._history.gates
            if curves.recipe == self.recipe and curves.is_reference and curves.layout != best.layout
        }
        is_under_way = any(trial.is_gate and not trial.repeat for trial in self._running)
        if gate is None or is_under_way or (gate.steps, gate.sequences) in finished_gates:
            return None
        tried = {trial.layout for trial in self._attempted if trial.is_gate and not trial.repeat}
        untried = [layout for layout in self._references(best) if layout not in tried]
        return untried[0] if untried and len(tried) < MOST_REFERENCES else None
