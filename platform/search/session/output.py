"""The end of a session: its files, table and verdict, and the command that continues it."""

import threading

from platform.common.errors import NOT_RESOLVED
from platform.common.output import print_line
from platform.common.signals import INTERRUPTED
from platform.common.text import duration
from platform.report.endings import (
    RESUME,
    address_option,
    command_for,
    duration_sentence,
    next_trainings,
    written,
)
from platform.report.show import show
from platform.search.confirmation.confirmation_costs import ConfirmationCosts
from platform.search.setup.options import StudyOptions, options_of
from platform.study.backup import Backup
from platform.study.journal import Tail
from platform.study.result.result import StudyResult
from platform.study.study import Study
from platform.tracking.mirrors import Mirrors
from platform.train.training_session import is_plannable
from trainers.records.job import Timing

MIRROR_CLOSE_S = 30.0
"""Seconds that MLflow may take to catch up at the end; what is then missing is reported."""


class SessionOutput:
    """Computes a session's result once, shows it and gives the exit code."""

    def __init__(
        self,
        study: Study,
        mirror: Mirrors | None = None,
        *,
        as_object: bool | None = None,
        profile: bool = False,
        copy: Backup | None = None,
        address: str | None = None,
    ) -> None:
        """Takes the choice of the output with `as_object`: a table, one JSON object, or (None) nothing.

        With `profile`, the reason why a winner has no profile is printed. The journal is written to its `copy` before
        the result is shown, because the process may end right after. Commands to go on name the cluster's `address`.
        """
        self._copy, self._address = copy, address
        self._study, self._mirror, self._as_object, self._profile = study, mirror, as_object, profile
        self._computing, self._showing = threading.Lock(), threading.Lock()
        self._tail: Tail | None = None
        self._result: StudyResult | None = None

    @property
    def result(self) -> StudyResult:
        """The result at the first access, from any thread; nothing is measured after that."""
        with self._computing:
            if self._result is None:
                self._tail, history = self._study.follow()
                self._result = StudyResult.of(history)
            return self._result

    def show(self) -> bool:
        """Writes and shows the result once, for the first thread that calls; returns whether this call did."""
        if not self._showing.acquire(blocking=False):
            return False
        result = self.result
        assert self._tail is not None
        result.history.extend(self._tail.read())  # the lines on the session's end
        if self._copy is not None:
            self._copy.take(self._study.journal, last=True)
        files = written(self._study.path, result)
        if self._mirror is not None and (sentence := self._mirror.close(MIRROR_CLOSE_S, result)):
            print_line(sentence)
        if self._profile and (sentence := not_profiled(result)):
            print_line(sentence)
        if self._as_object is not None:
            show(result, files, as_object=self._as_object)
        print_line(duration_sentence(result.history))
        if self._mirror is not None:
            print_line(self._mirror.look)
        end = result.history.end
        if self._as_object is not None and end is not None and end.exit_code in (INTERRUPTED, NOT_RESOLVED):
            # The sentence on the end was printed above the table, which may have scrolled it out of sight.
            print_line(f"Go on with: {command_for(RESUME, self._study.path)}{address_option(self._address)}")
        return True

    def tell_trainings(self) -> None:
        """Prints the command that trains each winner, if a training of it can be planned on the study's devices."""
        for training in (
            next_trainings(self.result, self._study.path, self._address) if self._as_object is not None else ()
        ):
            if is_plannable(self._study.path, training.recipe, training.tokens, self.result.header.cluster):
                print_line(training.sentence)


def resume_sentence(study: Study) -> str:
    return f"what was measured is kept: once the cluster is well again, go on with {command_for(RESUME, study.path)}"


def not_profiled(result: StudyResult) -> str:
    """Returns why a winner, or no layout at all, has a profile; "" if each winner has one."""
    if not result.winners:
        return "Nothing was profiled: no winner is named. --resume with --profile profiles it once there is one."
    if all(recipe_result.profile is not None for recipe_result, _ in result.winners):
        return ""
    return f"The winner was not profiled: {_not_profiled_reason(result)}. --resume with --profile tries again."


def _not_profiled_reason(result: StudyResult) -> str:
    history = result.history
    if failure := history.profile_failure():
        return failure
    if history.end is None or history.end.exit_code:
        return "the search ended before it"
    if history.end.left_out:
        return "final runs that come before it were left out"
    options = options_of(history.header) if history.header else StudyOptions()
    timing = Timing(steps=options.steps, whole_steps=options.whole_steps)
    costs = ConfirmationCosts(start_s=history.start_s, trial_s=history.trial_s, timing=timing)
    least_s = min(costs.profile_s(won) for recipe_result, won in result.winners if recipe_result.profile is None)
    return f"too little of the budget was left for one more trial, which takes {duration(least_s)} at the least"
