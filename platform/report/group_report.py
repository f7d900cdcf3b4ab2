"""The report on several searches of one command: on several numbers of devices, or of several models."""

from pathlib import Path

from platform.common.errors import NOT_RESOLVED, InputError
from platform.common.output import print_line, terminal_width
from platform.common.signals import INTERRUPTED
from platform.report.endings import command_for, report_exit_code
from platform.report.image_formats import FORMATS
from platform.report.scaling import show
from platform.report.show import PLAIN_WIDTH
from platform.study.group import SCALING, read_group
from platform.study.result.result import StudyResult
from platform.study.study import is_study, read
from trainers.records.plain_files import refuse_links
from trainers.records.trust import not_written, other_owner


def report(studies: Path, name: str, *, as_object: bool, trusted: bool = False, form: str = FORMATS[0]) -> int:
    """Prints the comparison of the studies of `name`; returns the exit code: 4 if one is not resolved, 0 if one has a
    winner, else 1.

    Files are written only if the folder belongs to this user or is `trusted`.

    Raises:
        InputError: nothing was measured yet, or a journal or the folder cannot be used.
    """
    folder = studies / name
    paths = [studies / member for member in read_group(folder).members(name)]
    results = [StudyResult.of(read(path)[0]) for path in paths if is_study(path)]
    if not results:
        raise InputError(f"nothing of {name} was measured yet")
    owner = "" if trusted else other_owner((folder, folder / SCALING))
    if owner:
        print_line(not_written(owner))
    else:
        refuse_links(folder)
    show(None if owner else folder, results, as_object=as_object, width=terminal_width(PLAIN_WIDTH), form=form)
    print_line(f"To see it again: {command_for('python -m platform.report', studies / name)}")
    code = 1
    for result in results:
        code = worse_code(code, report_exit_code(result))
    return code


def worse_code(code: int, other: int) -> int:
    """Returns the exit code of several studies: an interruption first, then an unresolved answer, then a winner."""
    return next(exit_code for exit_code in (INTERRUPTED, NOT_RESOLVED, 0, 1) if exit_code in (code, other))
