"""The closing trials of a winner: its last run, its numerics gate, the gate's reference, and how long each may take."""

from collections.abc import Mapping, Sequence

from platform.search.confirmation.confirmation_costs import ConfirmationCosts
from platform.search.confirmation.confirmation_trial import ConfirmationTrial
from platform.search.confirmation.run_order import AttemptedRuns, last_run
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.study.history import History
from platform.study.keys import of_recipe
from platform.study.result import gate as gates
from platform.study.result.float8_price import compared
from platform.study.result.gate import has_curves
from platform.study.result.ranking import by_speed, ranked, winner
from search_spaces.candidate import Candidate
from trainers.records.measurement import TRAINING_STATE, Measurement
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

MOST_REFERENCES = 3
"""Number of layouts tried as the numerics gate's reference before a winner goes without one."""


class WinnerRuns:
    """The closing trials of each recipe's winner; `started` are those that this session has run, whatever their
    outcome, and `expected` by recipe id the winners that are predicted before any was measured.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        rules: ConfirmationRules,
        started: Mapping[tuple[object, ...], ConfirmationTrial],
        expected: Mapping[str, Measurement],
    ) -> None:
        self._candidates = candidates
        self._compared = compared({candidate.recipe for candidate in candidates})
        self._rules = rules
        self._started = started
        self._expected = expected

    def next(
        self, recipe: Recipe, history: History, *, gated: bool = True, run: bool = True
    ) -> ConfirmationTrial | None:
        """Returns the winner's next closing trial: its last run with its gate, then the gate's reference; without gates
        where not `gated`, without the last run where not `run`.

        Without repeats no other point has run again: if the last run puts the winner behind the figure that the search
        has of another point, that point has its last run too.
        """
        measured = of_recipe(recipe, history.measurements)
        best, gate = winner(measured), self._rules.gate if gated else None
        if best is None:
            return None
        if gate and has_curves(best, history.gates) and (layout := self._reference(best, history)) is not None:
            return ConfirmationTrial(recipe=recipe, layout=layout, rungs=(), gate=gate)
        leading = [*ranked(measured)[:1], *(by_speed(measured)[:1] if not self._rules.repeats else ())]
        for point in leading if run else ():
            last = last_run(point, repeats=self._rules.repeats, attempted=self.attempted_runs(recipe))
            needed_gate = gate if gate and self._needs_gate(point.main_run, history) else None
            if last is not None and (needed_gate or self._needs_timing(point.main_run)):
                return ConfirmationTrial(
                    recipe=recipe,
                    layout=last.point.layout,
                    rungs=(last.point.batch,),
                    repeat=last.repeat,
                    is_winner_run=True,
                    gate=needed_gate,
                )
        gate_trial = ConfirmationTrial(
            recipe=recipe, layout=best.layout, rungs=(), repeat=self._rules.repeats + 1, is_winner_run=True, gate=gate
        )
        return gate_trial if gate and self._needs_gate(best, history) and gate_trial.key not in self._started else None

    def need_s(
        self, recipe: Recipe, history: History, costs: ConfirmationCosts, *, for_new_winner: bool = False
    ) -> tuple[float, float]:
        """Returns the estimated seconds of the winner's remaining closing trials: of its last run, and of what its gate
        and the reference's add. With `for_new_winner`, of all of them, since another winner may take its place; so they
        are where the winner is only expected.
        """
        best = winner(of_recipe(recipe, history.measurements))
        if best is None:
            best, for_new_winner = self._expected.get(recipe.id), True
        if best is None:
            return 0.0, 0.0
        closing = None if for_new_winner else self.next(recipe, history)
        runs = self._needs_timing(best) if for_new_winner else self.next(recipe, history, gated=False) is not None
        run_s = costs.run_s(best) if runs else 0.0
        if for_new_winner:
            gate = self._rules.gate if self._can_have_gate(best, history) else None
        else:
            gate = closing and closing.gate
        if not gate:
            return run_s, 0.0
        reference_s = self.reference_s(best, history, costs)
        if closing and not closing.is_winner_run:
            return run_s, reference_s
        winner_gate_s = costs.winner_gate_s(gate, best)
        if not runs:  # its trial is counted nowhere else
            winner_gate_s += costs.ready_s(best) if closing and not closing.rungs else costs.run_s(best)
        return run_s, winner_gate_s + reference_s

    def reference_s(self, best: Measurement, history: History, costs: ConfirmationCosts) -> float:
        """Returns the estimated seconds of the reference's gate, 0 where none is to run."""
        layout = self._reference(best, history)
        if self._rules.gate is None or layout is None:
            return 0.0
        reference_points = ranked(
            measurement for measurement in of_recipe(best.recipe, history.measurements) if measurement.layout == layout
        )
        reference_run = reference_points[0].main_run if reference_points else None
        return costs.ready_s(reference_run or best) + costs.gate_s(self._rules.gate, best, measurement=reference_run)

    def attempted_runs(self, recipe: Recipe) -> AttemptedRuns:
        """Returns the recipe's closing runs that this session has run."""
        trials = [trial for trial in self._started.values() if trial.recipe == recipe and trial.rungs]
        return frozenset((trial.layout.id, trial.rungs[0], trial.repeat) for trial in trials)

    def _needs_timing(self, best: Measurement) -> bool:
        """Returns whether a winner is timed once more, leaving gates aside."""
        return self._rules.repeats > 0 or best.step_time_derived

    def _needs_gate(self, best: Measurement, history: History) -> bool:
        """Returns whether the winner's curves are still missing, where another layout can be its reference or they show
        what FP8 costs in loss.
        """
        return not has_curves(best, history.gates) and self._can_have_gate(best, history)

    def _can_have_gate(self, best: Measurement, history: History) -> bool:
        if best.conditions is not None and TRAINING_STATE in best.conditions.engine_lacks:
            return False
        return best.recipe in self._compared or bool(self._references(best, history))

    def _references(self, best: Measurement, history: History) -> list[Layout]:
        """Returns the layouts that may serve as the winner's reference, the best one first: the plainest, and where
        that is the winner itself the next. One that failed a gate is none.
        """
        failed = {
            measurement.layout
            for measurement in of_recipe(best.recipe, history.measurements)
            if measurement.phase == "gate"
        }
        order = gates.references(best.recipe, self._candidates, history.measurements)
        return [layout for layout in order if layout != best.layout and layout not in failed]

    def _reference(self, best: Measurement, history: History) -> Layout | None:
        """Returns the layout whose gate must still run as the winner's reference; None where there is none."""
        gate, recipe = self._rules.gate, best.recipe
        finished_gates = {
            (curves.steps, curves.sequences)
            for curves in history.gates
            if curves.recipe == recipe and curves.is_reference and curves.layout != best.layout
        }
        if gate is None or (gate.steps, gate.sequences) in finished_gates:
            return None
        tried_layouts = {
            trial.layout
            for trial in self._started.values()
            if trial.recipe == recipe and trial.gate and not trial.is_winner_run
        }
        untried_layouts = [layout for layout in self._references(best, history) if layout not in tried_layouts]
        return untried_layouts[0] if untried_layouts and len(tried_layouts) < MOST_REFERENCES else None
