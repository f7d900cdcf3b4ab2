"""The end of a study: writes its files, and gives its exit code, sentences and the command that continues it."""

import shlex
from pathlib import Path

from platform.common.errors import NOT_RESOLVED, ClusterError, InputError, one_line
from platform.common.output import print_line
from platform.common.signals import INTERRUPTED
from platform.common.text import duration
from platform.report.image_formats import FORMATS
from platform.report.result_files import write_results
from platform.study.folder import studies_option
from platform.study.group import SCALING
from platform.study.history import History
from platform.study.journal import JOURNAL
from platform.study.result.result import StudyResult
from trainers.records.journal import End
from trainers.records.measurement import Outcome
from trainers.records.plain_files import refuse_links
from trainers.records.trust import other_owner

RESUME = "python -m platform.search --resume"


def written(folder: Path, result: StudyResult, pictures_as: str = FORMATS[0]) -> list[Path]:
    """Writes the result's files and returns their paths; in a folder that is not writable, none with a remark."""
    try:
        refuse_links(folder)
        return write_results(folder, result, pictures_as)
    except InputError as error:  # a read-only folder or a full disk must not hide the result
        print_line(f"{one_line(error)}; the result is shown without files")
        return []


def last_ending(end: End | None, path: Path) -> str:
    """Returns a sentence on the end of the study's last session; `end` is None if the session was killed."""
    if end is None:
        return f"Cut short: its driver was killed. What was measured is kept; go on with: {command_for(RESUME, path)}"
    if end.exit_code == INTERRUPTED:
        return f"Interrupted. What was measured is kept; go on with: {command_for(RESUME, path)}"
    if not end.why:
        return f"Ended with exit code {end.exit_code}."
    if end.exit_code == NOT_RESOLVED:
        open_order = f"Not resolved which layout is the fastest ({end.why})"
        return one_line(f"{open_order}; go on with: {command_for(RESUME, path)}")
    return one_line(f"cluster fault: {end.why}" if end.exit_code == ClusterError.exit_code else f"Ended: {end.why}.")


def duration_sentence(history: History) -> str:
    return f"The search took {duration(history.wall_s)}, {history.gpu_s:.0f} device seconds."


def command_for(command: str, path: Path) -> str:
    """Returns `command` for the study in folder `path` as typed in the working directory.

    `RESUME` gets `--trust` if the study belongs to another user.
    """
    trust = " --trust" if command == RESUME and other_owner((path, path / JOURNAL, path / SCALING)) else ""
    return f"{command} {shlex.quote(path.name)}{studies_option(path.parent)}{trust}"


def report_exit_code(result: StudyResult) -> int:
    """Returns the exit code of a report: 4 if a recipe is not resolved, 0 if a recipe has a winner, else 1."""
    if not result.is_resolved:
        return NOT_RESOLVED
    return 0 if result.has_leader else 1


def verdict(result: StudyResult) -> tuple[int, str]:
    """Returns the exit code and its reason: 4 if a recipe is not resolved, 0 if a recipe has a winner, 3 if every trial
    failed by itself, 1 if nothing fits.
    """
    if not result.is_resolved:
        return NOT_RESOLVED, ""
    if result.has_leader:
        return 0, ""
    measured = [
        measurement for measurement in result.history.measurements if measurement.outcome is not Outcome.SKIPPED
    ]
    if measured and all(measurement.outcome in (Outcome.FAILED, Outcome.HUNG) for measurement in measured):
        return ClusterError.exit_code, f"every trial failed, the last one with: {measured[-1].reason}"
    return 1, ""
