"""The end of a session: its files, its table, its verdict, and how to go on."""

import shlex
import threading
from pathlib import Path

from platform.common.errors import NOT_RESOLVED, ClusterError, InputError, one_line
from platform.common.output import print_line
from platform.common.signals import INTERRUPTED
from platform.common.text import duration
from platform.report.image_formats import FORMATS
from platform.report.result_files import write_results
from platform.report.show import show
from platform.search.confirmation.confirmation_costs import ConfirmationCosts
from platform.search.setup.options import StudyOptions, options_of
from platform.study.backup import Backup
from platform.study.folder import default_folder
from platform.study.group import SCALING
from platform.study.history import History
from platform.study.journal import JOURNAL, Tail
from platform.study.plain_files import refuse_links
from platform.study.result.result import StudyResult
from platform.study.study import Study
from platform.study.trust import other_owner
from platform.tracking.mirror import Mirror
from trainers.records.job import Timing
from trainers.records.journal import End
from trainers.records.measurement import Outcome

RESUME = "python -m platform.search --resume"
MIRROR_CLOSE_S = 30.0
"""Seconds that MLflow may take at the end to catch up; what is missing after that is reported."""


class SessionOutput:
    """The end of a session: computes the study's result once, shows it and derives the exit code."""

    def __init__(
        self,
        study: Study,
        mirror: Mirror | None = None,
        *,
        as_object: bool | None = None,
        profile: bool = False,
        copy: Backup | None = None,
    ) -> None:
        """Shows the result as a table, as one JSON object, or (None) not at all; with `profile`, also why a winner has
        none. The journal is written to its `copy` before the result is shown, since the process may end right after.
        """
        self._copy = copy
        self._study, self._mirror, self._as_object, self._profile = study, mirror, as_object, profile
        self._computing, self._showing = threading.Lock(), threading.Lock()
        self._tail: Tail | None = None
        self._result: StudyResult | None = None

    @property
    def result(self) -> StudyResult:
        """The result as of the first access, from whichever thread: nothing is measured after that."""
        with self._computing:
            if self._result is None:
                self._tail, history = self._study.follow()
                self._result = StudyResult.of(history)
            return self._result

    def show(self) -> bool:
        """Writes and shows the result, once, from whichever thread asks first; returns whether this call did."""
        if not self._showing.acquire(blocking=False):
            return False
        result = self.result
        assert self._tail is not None
        result.history.extend(self._tail.read())  # how the session ended
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
            # The sentence on the end stands above the table, out of sight by now.
            print_line(f"Go on with: {command_for(RESUME, self._study.path)}")
        return True


def written(folder: Path, result: StudyResult, pictures_as: str = FORMATS[0]) -> list[Path]:
    """Writes the result's files, as far as possible, and returns their paths."""
    try:
        refuse_links(folder)
        return write_results(folder, result, pictures_as)
    except InputError as error:  # a folder that may only be read, or a full disk: the result is shown all the same
        print_line(f"{one_line(error)}; the result is shown without files")
        return []


def last_ending(end: End | None, path: Path) -> str:
    """Returns what ended the last session of the study in folder `path`, given the journal's last line (None for
    none).
    """
    if end is None:
        return f"Cut short: its driver was killed. What was measured is kept; go on with: {command_for(RESUME, path)}"
    if end.exit_code == INTERRUPTED:
        return f"Interrupted. What was measured is kept; go on with: {command_for(RESUME, path)}"
    if not end.why:
        return f"Ended with exit code {end.exit_code}."
    if end.exit_code == NOT_RESOLVED:
        open_order = f"Not resolved which layout is the fastest, since the machine was disturbed ({end.why})"
        return one_line(f"{open_order}; go on with: {command_for(RESUME, path)}")
    return one_line(f"cluster fault: {end.why}" if end.exit_code == ClusterError.exit_code else f"Ended: {end.why}.")


def duration_sentence(history: History) -> str:
    """Returns how long all sessions took."""
    return f"The search took {duration(history.wall_s)}, {history.gpu_s:.0f} device seconds."


def resume_sentence(study: Study) -> str:
    """Returns a sentence on how to resume after a fault of the cluster; no measurement is lost."""
    return f"what was measured is kept: once the cluster is well again, go on with {command_for(RESUME, study.path)}"


def not_profiled(result: StudyResult) -> str:
    """Returns why a winner has no profile; "" where each has one or there is no winner."""
    if all(each.profile is not None for each, _ in result.winners):
        return ""
    return f"The winner was not profiled: {_why_not_profiled(result)}. --resume with --profile tries again."


def _why_not_profiled(result: StudyResult) -> str:
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
    least_s = min(costs.profile_s(won) for each, won in result.winners if each.profile is None)
    return f"too little of the budget was left for one more trial, which takes {duration(least_s)} at the least"


def command_for(command: str, path: Path) -> str:
    """Returns `command` for the study in folder `path` as a user types it here, with `--trust` for another user's
    study.
    """
    elsewhere = path.parent != Path(default_folder()).absolute()
    studies_option = f" --studies {shlex.quote(str(path.parent))}" if elsewhere else ""
    trust = " --trust" if command == RESUME and other_owner((path, path / JOURNAL, path / SCALING)) else ""
    return f"{command} {path.name}{studies_option}{trust}"


def report_exit_code(result: StudyResult) -> int:
    """Returns a report's exit code: 0 where some recipe has a winner, 4 where it is not resolved, else 1."""
    if not result.is_resolved:
        return NOT_RESOLVED
    return 0 if result.has_leader else 1


def verdict(result: StudyResult) -> tuple[int, str]:
    """Returns the exit code with its reason: 0 where some recipe has a winner, 1 where nothing fits, 3 where every
    trial failed by itself, 4 where it is not resolved which layout of some recipe is the fastest.
    """
    if not result.is_resolved:
        return NOT_RESOLVED, ""
    if result.has_leader:
        return 0, ""
    measured = [each for each in result.history.measurements if each.outcome is not Outcome.SKIPPED]
    if measured and all(each.outcome in (Outcome.FAILED, Outcome.HUNG) for each in measured):
        return ClusterError.exit_code, f"every trial failed, the last one with: {measured[-1].reason}"
    return 1, ""
