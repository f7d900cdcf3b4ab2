"""The division of a session's budget: two layouts of each recipe come first, then final runs, then more layouts."""

import math
from collections import Counter
from collections.abc import Sequence

from platform.common.text import duration, plural
from platform.search.confirmation.confirmation_costs import ConfirmationCosts
from platform.search.confirmation.scheduler import RESERVE_MARGIN, ConfirmationScheduler
from platform.search.loop.budget import Spending
from platform.search.setup.forecast import Forecast
from platform.study.history import History
from search_spaces.candidate import Candidate
from trainers.records.job import Timing
from trainers.records.measurement import TIMED
from trainers.spec.recipe import Recipe

FIRST_SHARE = 1 / 3
"""Share of a budget in which the first layout may begin rungs: the rest is for others, without which there is nothing
to compare it with, and for final runs. Several recipes share it.
"""


class TimePlan:
    """The times of a session's trials, as far as they are known: predicted before the first, then measured."""

    def __init__(
        self,
        spending: Spending,
        confirmation: ConfirmationScheduler,
        candidates: Sequence[Candidate],
        timing: Timing,
        forecast: Forecast,
    ) -> None:
        self._spending = spending
        self._confirmation = confirmation
        self._num_layouts = Counter(candidate.recipe for candidate in candidates)
        self._timing = timing
        self._forecast = forecast

    def costs(self, history: History, *, begins: bool) -> ConfirmationCosts:
        """Returns the seconds of trials, of which the next one is its session's first where it `begins`."""
        forecast = self._forecast
        if not history.longest_rungs and forecast.winners:
            cold_s = forecast.first_start_s - forecast.start_s if begins else 0.0
            return ConfirmationCosts(
                start_s=forecast.start_s, trial_s=forecast.trial_s, cold_s=cold_s, timing=self._timing
            )
        cold_s = history.first_start_s - history.start_s if begins else 0.0
        return ConfirmationCosts(start_s=history.start_s, trial_s=history.trial_s, cold_s=cold_s, timing=self._timing)

    def lacks_comparison(self, history: History) -> bool:
        """Returns whether some recipe has neither two timed layouts nor all: nothing is worth more than a second."""
        return any(self._num_lacking(recipe, history) for recipe in self._num_layouts)

    def is_compared(self, recipe: Recipe, history: History) -> bool:
        """Returns whether two of the recipe's layouts were timed, or all, or time is no matter."""
        return math.isinf(self._spending.whole_s) or not self._num_lacking(recipe, history)

    def reserve_s(self, history: History, *, begins: bool, for_new_winner: bool) -> float:
        """Returns the seconds of the budget that are kept for final runs, after two layouts of each recipe."""
        whole_s = self._spending.whole_s
        if math.isinf(whole_s):
            return 0.0
        costs = self.costs(history, begins=begins)
        free_s = self._spending.time_left_s() - self._comparing_s(history, costs)
        return self._confirmation.reserve_s(history, costs, free_s, whole_s, for_new_winner=for_new_winner)

    def leave_s(self, recipe: Recipe, history: History, reserve_s: float) -> float:
        """Returns the seconds of the budget that must be left when a trial of the recipe begins a rung: `reserve_s`,
        what other trials take until two layouts of each recipe are timed, and after its first layout the others' share.
        """
        whole_s = self._spending.whole_s
        if math.isinf(whole_s):
            return 0.0
        costs = self.costs(history, begins=False)
        its_own_s = costs.trial_s if self._num_lacking(recipe, history) else 0.0
        leave_s = reserve_s + max(0.0, self._comparing_s(history, costs) - its_own_s)
        if self._num_layouts[recipe] < 2 or self._num_timed(recipe, history):
            return leave_s
        return max(leave_s, self._spending.time_left_s() - FIRST_SHARE * whole_s / len(self._num_layouts))

    def gated_s(self, history: History) -> float:
        """Returns the least seconds of a session with the winners' last runs and gates; 0 where no gate is to run, or
        nothing is known of its time.
        """
        costs = self.costs(history, begins=True)
        run_s, gate_s, profile_s = self._confirmation.closing_s(history, costs, for_new_winner=False)
        return self._comparing_s(history, costs) + run_s + RESERVE_MARGIN * gate_s + profile_s if gate_s else 0.0

    def holds_closing(self, history: History, *, begins: bool) -> bool:
        """Returns whether the time that is left holds the missing last runs of winners with their gates: a part of them
        is worth less than another layout.
        """
        costs = self.costs(history, begins=begins)
        run_s, gate_s, _ = self._confirmation.closing_s(history, costs, for_new_winner=False)
        return run_s + gate_s <= self._spending.time_left_s()

    def sentence(self, history: History) -> str:
        """Returns what the budget has time for, before a session's first trial; "" without a budget, and where no gate
        is to run or nothing is known of its time.
        """
        budget, whole_s, gated_s = self._spending.budget, self._spending.whole_s, self.gated_s(history)
        costs = self.costs(history, begins=True)
        if math.isinf(whole_s) or not gated_s or not costs.trial_s:
            return ""
        num_devices = self._spending.num_devices
        origin = "from the study's trials" if history.longest_rungs else "predicted"
        lacking = sum(self._num_lacking(recipe, history) for recipe in self._num_layouts)
        last_run = "the winner's last run" if len(self._num_layouts) == 1 else "the winners' last runs"
        if whole_s < gated_s:
            least_s = 10 * math.ceil(gated_s / 10)
            least = {"--time-budget": (budget.time_s, least_s), "--gpu-s": (budget.gpu_s, least_s * num_devices)}
            raised = " and ".join(
                f"{option} {value}" for option, (limit, value) in least.items() if limit is not None and limit < value
            )
            before = f"{plural(lacking, 'layout')} and {last_run}" if lacking else last_run
            return (
                f"{duration(whole_s)} may be too short for the numerics gate: with {before} it takes about"
                f" {duration(least_s)} ({origin}), which {raised} would hold."
            )
        reserve_s = self.reserve_s(history, begins=True, for_new_winner=False)
        more = int((whole_s - self._comparing_s(history, costs) - reserve_s) / costs.trial_s)
        untried = sum(self._num_layouts.values()) - self._num_tried(history)
        most = untried if budget.max_trials is None else min(untried, budget.max_trials)
        num_layouts = min(most, max(0, more) + lacking)
        return (
            f"{duration(whole_s)} allow about {plural(num_layouts, 'layout')} of one rung beside {last_run} and the"
            f" numerics gate ({origin})."
        )

    def _comparing_s(self, history: History, costs: ConfirmationCosts) -> float:
        """Returns the seconds of the trials that are missing until two layouts of each recipe are timed, and of the
        session's slow first start.
        """
        lacking = sum(self._num_lacking(recipe, history) for recipe in self._num_layouts)
        return costs.cold_s + lacking * costs.trial_s

    def _num_tried(self, history: History) -> int:
        """Returns the number of layouts that were timed, of all recipes."""
        return sum(self._num_timed(recipe, history) for recipe in self._num_layouts)

    def _num_lacking(self, recipe: Recipe, history: History) -> int:
        """Returns how many of the recipe's layouts must still be timed for a comparison."""
        return max(0, min(2, self._num_layouts[recipe]) - self._num_timed(recipe, history))

    def _num_timed(self, recipe: Recipe, history: History) -> int:
        """Returns the number of the recipe's layouts that were timed."""
        return len({m.layout for m in history.measurements if m.recipe == recipe and m.outcome in TIMED})
