"""The end of a study: writes its files, and gives its exit code, sentences and the command that continues it."""

import dataclasses
import shlex
from pathlib import Path

from platform.common.errors import NOT_RESOLVED, ClusterError, InputError, one_line
from platform.common.output import print_line
from platform.common.quantities import whole_number
from platform.common.signals import INTERRUPTED
from platform.common.text import count, duration
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
from trainers.spec.recipe_axes import INCLUDED, STREAM

RESUME = "python -m platform.search --resume"
TRAIN = "python -m platform.train"
_REHEARSED_STEPS = 100
"""Optimizer steps of a miniature's suggested training: its study's tokens are those of the large model."""


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

    `RESUME` and `TRAIN` get `--trust` if the study belongs to another user.
    """
    needs_trust = command in (RESUME, TRAIN) and other_owner((path, path / JOURNAL, path / SCALING))
    trust = " --trust" if needs_trust else ""
    return f"{command} {shlex.quote(path.name)}{studies_option(path.parent)}{trust}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NextTraining:
    """A training of a study's winner that the user may start next."""

    recipe: str
    """Id of the winner's recipe."""
    tokens: int
    sentence: str
    """The command with its purpose."""


def next_trainings(result: StudyResult, path: Path, address: str | None = None) -> list[NextTraining]:
    """Returns a training of each winner of the study in folder `path`, on the Ray cluster at `address` if given.

    There is none before the search has ended by itself. A user's own command or function trains by itself, and a
    training needs every ability of an engine; there is none of the winners of these.
    """
    trainings, end = list[NextTraining](), result.history.end
    for recipe_result, best in result.winners if end is not None and not end.exit_code else ():
        if not best.recipe.has_model or (best.conditions is not None and best.conditions.engine_lacks):
            continue
        recipe = best.trained_recipe.as_trained
        tokens = max(recipe.tokens_per_step, round(result.header.tokens))
        do, chosen = "Train it", ""
        if best.miniature:
            do = f"Rehearse the training with the miniature, in {_REHEARSED_STEPS} steps"
            tokens = _REHEARSED_STEPS * recipe.tokens_per_step
        if len(result.winners) > 1:
            do, chosen = f"{do} ({recipe_result.recipe.label})", f" --recipe {recipe_result.recipe.id}"
        command = f"{command_for(TRAIN, path)} --tokens {_whole(tokens)}{chosen}{address_option(address)}"
        data = " (--data trains on token files of your own)" if recipe.data in (INCLUDED, STREAM) else ""
        trainings.append(NextTraining(recipe=recipe_result.recipe.id, tokens=tokens, sentence=f"{do}: {command}{data}"))
    return trainings


def address_option(address: str | None) -> str:
    """Returns " --address HOST:PORT" for a command line; "" without an address."""
    return f" --address {shlex.quote(address)}" if address else ""


def _whole(tokens: int) -> str:
    """Returns a number of tokens as an option reads it, such as 100B; its digits where that would round it."""
    short = count(tokens)
    return short if whole_number(1)(short) == tokens else str(tokens)


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
