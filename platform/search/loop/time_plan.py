"""Divides a session's budget: first two layouts of each recipe, then confirmation, then more layouts."""

import functools
import math
from collections.abc import Mapping
from types import MappingProxyType

from platform.common.text import duration, plural
from platform.search.confirmation.confirmation import RESERVE_MARGIN, Confirmation
from platform.search.confirmation.confirmation_costs import ConfirmationCosts
from platform.search.confirmation.confirmation_trial import ConfirmationTrial
from platform.search.loop.budget import Spending
from platform.search.setup.forecast import Forecast
from trainers.records.job import Timing
from trainers.spec.recipe import Recipe

FIRST_SHARE = 1 / 3
"""Share of a budget in which the first layout may begin rungs; several recipes divide it. The rest is for layouts to
compare it with, and for confirmation.
"""


class TimePlan:
    """The times of a session's trials at one moment: predicted before the first trial, then measured."""

    def __init__(
        self,
        spending: Spending,
        confirmation: Confirmation,
        timing: Timing,
        forecast: Forecast,
        *,
        begins: bool,
        for_new_winner: bool,
        running: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`begins`: the next trial is the session's first. `for_new_winner`: time is reserved for all trials of another
        winner. `running`: number of running layouts by recipe id, which count as timed.
        """
        self.confirmation, self._history = confirmation, confirmation.history
        self._spending, self._timing, self._forecast = spending, timing, forecast
        self._begins, self._for_new_winner = begins, for_new_winner
        self._num_timed = confirmation.num_timed
        self._num_lacking = {
            recipe: max(0, min(2, num_layouts) - self._num_timed[recipe.id] - running.get(recipe.id, 0))
            for recipe, num_layouts in confirmation.plan.num_layouts.items()
        }
        """Number of layouts by recipe that must still be timed for a comparison."""

    @functools.cached_property
    def costs(self) -> ConfirmationCosts:
        return self._costs(begins=self._begins)

    def _costs(self, *, begins: bool) -> ConfirmationCosts:
        """Returns the seconds of trials; `begins` is whether the next one is its session's first."""
        history, forecast = self._history, self._forecast
        times = forecast if not history.longest_rungs and forecast.winners else history
        cold_s = times.first_start_s - times.start_s if begins else 0.0
        return ConfirmationCosts(start_s=times.start_s, trial_s=times.trial_s, cold_s=cold_s, timing=self._timing)

    @property
    def may_confirm(self) -> bool:
        """Whether confirmation may come before further candidates.

        It waits for none, each recipe has two timed layouts (or all), and the time left holds the winners' runs at
        length with their gates, a part of which is worth less than another layout.
        """
        if self.confirmation.waits or any(self._num_lacking.values()):
            return False
        run_s, gate_s, _ = self.confirmation.closing_s(self.costs, for_new_winner=False)
        return run_s + gate_s <= self._spending.time_left_s()

    @functools.cached_property
    def confirmation_trial(self) -> ConfirmationTrial | None:
        """The next confirmation trial that the remaining time holds."""
        left_s = self._spending.free_s()
        return self.confirmation.next(left_s, self.costs, for_new_winner=self._for_new_winner)

    def expected_s(self, trial: ConfirmationTrial) -> float:
        """Returns the seconds that a confirmation trial is expected to take."""
        return self.confirmation.expected_s(trial, self.costs)

    @property
    def profile(self) -> ConfirmationTrial | None:
        """The next profiling trial that the remaining time holds."""
        return self.confirmation.profile(self._spending.time_left_s(), self.costs)

    def is_compared(self, recipe: Recipe) -> bool:
        """Returns whether two of the recipe's layouts (or all) were timed, or there is no budget."""
        return math.isinf(self._spending.whole_s) or not self._num_lacking[recipe]

    @functools.cached_property
    def reserve_s(self) -> float:
        """Seconds of the budget reserved for confirmation, after two layouts of each recipe."""
        whole_s = self._spending.whole_s
        if math.isinf(whole_s):
            return 0.0
        free_s = self._spending.time_left_s() - self._comparing_s(self.costs)
        return self.confirmation.reserve_s(self.costs, free_s, whole_s, for_new_winner=self._for_new_winner)

    def leave_s(self, recipe: Recipe) -> float:
        """Returns the seconds of the budget that must remain when a trial of the recipe begins a rung.

        They are `reserve_s`, the time of other trials until two layouts of each recipe are timed, and for a recipe's
        first layout the share of the others.
        """
        whole_s = self._spending.whole_s
        if math.isinf(whole_s):
            return 0.0
        costs = self._costs(begins=False)
        its_own_s = costs.trial_s if self._num_lacking[recipe] else 0.0
        leave_s = self.reserve_s + max(0.0, self._comparing_s(costs) - its_own_s)
        num_layouts = self.confirmation.plan.num_layouts
        if num_layouts[recipe] < 2 or self._num_timed[recipe.id]:
            return leave_s
        return max(leave_s, self._spending.time_left_s() - FIRST_SHARE * whole_s / len(num_layouts))

    @property
    def sentence(self) -> str:
        """A sentence before a session's first trial on what the budget holds.

        "" without a budget, without a gate, and if the times are unknown.
        """
        whole_s, costs = self._spending.whole_s, self.costs
        run_s, gate_s, profile_s = self.confirmation.closing_s(costs, for_new_winner=False)
        if math.isinf(whole_s) or not gate_s or not costs.trial_s:
            return ""
        gated_s = self._comparing_s(costs) + run_s + RESERVE_MARGIN * gate_s + profile_s
        last_run = "the winner's last run" if len(self._num_lacking) == 1 else "the winners' last runs"
        origin = "from the study's trials" if self._history.longest_rungs else "predicted"
        if whole_s < gated_s:
            return self._too_short(gated_s, last_run, origin)
        lacking, budget = sum(self._num_lacking.values()), self._spending.budget
        more = int((whole_s - self._comparing_s(costs) - self.reserve_s) / costs.trial_s)
        untried = self.confirmation.plan.num_layouts.total() - self._num_timed.total()
        limit = untried if budget.max_trials is None else min(untried, budget.max_trials)
        layouts = plural(min(limit, max(0, more) + lacking), "layout")
        return (
            f"{duration(whole_s)} allow about {layouts} of one micro-batch beside {last_run} and the numerics gate"
            f" ({origin})."
        )

    def _too_short(self, gated_s: float, last_run: str, origin: str) -> str:
        """Returns the sentence on a budget below `gated_s`, the least time of a session with gates."""
        budget, least_s = self._spending.budget, 10 * math.ceil(gated_s / 10)
        least = {
            "--time-budget": (budget.time_s, least_s),
            "--gpu-s": (budget.gpu_s, least_s * self._spending.num_devices),
        }
        raised = " and ".join(
            f"{option} {value}" for option, (limit, value) in least.items() if limit is not None and limit < value
        )
        lacking = sum(self._num_lacking.values())
        before = f"{plural(lacking, 'layout')} and {last_run}" if lacking else last_run
        return (
            f"{duration(self._spending.whole_s)} may be too short for the numerics gate: with {before} it takes about"
            f" {duration(least_s)} ({origin}), which {raised} would hold."
        )

    def _comparing_s(self, costs: ConfirmationCosts) -> float:
        """Returns the seconds of trials missing until each recipe has two timed layouts, and of a slow first start."""
        return costs.cold_s + sum(self._num_lacking.values()) * costs.trial_s
