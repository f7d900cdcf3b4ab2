"""`python -m platform.report NAME`: the table, the winner and the files of a study, finished, cut short or running.

Made from the journal alone. Brings MLflow up to date where it was not reached. Exit codes: 0 there is a winner,
1 nothing fits, 2 bad input, 4 not resolved which layout is the fastest.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from platform.common.errors import InputError, Parser, one_line
from platform.common.say import say
from platform.common.signals import exit_with
from platform.finals.result import Result
from platform.mirror.mirror import Mirror
from platform.mirror.uri import check_uri, report_uri
from platform.reports.show import show
from platform.reports.table import to_rows, write_csv
from platform.session import ending, scaling
from platform.session.replanned import with_plan
from platform.study.folder import FOLDER_HELP, default_folder, located, user_path
from platform.study.journal import JOURNAL
from platform.study.lock import is_held
from platform.study.several import is_several
from platform.study.study import find, read
from platform.study.trust import not_written, other_owner

_MIRROR_S = 120.0
"""Longest that catching MLflow up may take."""


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = Parser(
        prog="python -m platform.report",
        description="Shows a study: its table, its winner and where its files are; brings MLflow up to date.",
        epilog="Exit codes: 0 there is a winner, 1 nothing fits, 2 bad input, 4 not resolved which layout is the"
        " fastest. Example: python -m platform.report bloom7b-1 --csv bloom7b.csv",
    )
    made.add_argument("name", metavar="NAME", help="the study's name, or the path of its folder")
    made.add_argument("--studies", type=Path, default=Path(default_folder()), metavar="DIR", help=FOLDER_HELP)
    made.add_argument("--json", action="store_true", help="print the result as JSON, alone on standard output")
    made.add_argument("--csv", type=Path, metavar="FILE", help="write the measurement table there too")
    made.add_argument("--mlflow", metavar="URI", help="bring MLflow up to date there (default: MLFLOW_TRACKING_URI)")
    trust = "write files and MLflow for a study of another user too"
    made.add_argument("--trust", action="store_true", help=trust)
    made.add_argument("--no-mlflow", action="store_true", help="leave MLflow as it is")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    try:
        options = parser().parse_args(argv)
        return _report(options)
    except InputError as error:
        say(f"error: {one_line(error)}")
        return InputError.exit_code


def _report(options: argparse.Namespace) -> int:
    studies, name = located(user_path(options.studies).absolute(), options.name)
    if is_several(studies / name):
        if options.csv is not None:
            raise InputError(f"{name} is several studies: give one's name with --csv, or take its scaling.csv")
        return scaling.report(studies, name, as_object=options.json, trusted=options.trust)
    folder = find(studies, name)
    running = is_held(folder)
    read_history, remarks = read(folder, last=not running)
    result = Result.of(with_plan(read_history))
    header, history = result.header, result.history
    owner = "" if options.trust else other_owner((folder, folder / JOURNAL))
    named = options.mlflow or os.environ.get("MLFLOW_TRACKING_URI") or ""
    if named and not options.no_mlflow:
        check_uri(named)  # a mistake is said before anything is shown
    for remark in remarks:
        say(remark)
    if owner:
        say(not_written(owner))
    files: list[Path] = [] if owner else ending.written(folder, result)
    if options.csv is not None:
        rows = to_rows(history.measurements, cluster=header.cluster, source=f"study {header.name}")
        write_csv(options.csv, rows)
        files.append(options.csv)
    show(result, files, as_object=options.json)
    if not running and not options.json:
        print(ending.how_it_ended(history.end, folder), ending.how_long(history), sep="\n")
    if running:
        say("The study is running: its search mirrors it to MLflow.")
    elif not options.no_mlflow and not owner:
        try:
            mirror = Mirror(folder, report_uri(named, header.mlflow_uri, folder.parent)).start()
            say(mirror.close(_MIRROR_S, result) or "MLflow is up to date.")
            say(mirror.look)
        except InputError as error:
            say(one_line(error))
    return ending.shown_verdict(result)


if __name__ == "__main__":
    exit_with(main)
