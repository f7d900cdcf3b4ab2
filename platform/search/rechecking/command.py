"""Measures a study's winner and runner-up, and the winner's numerics gate, again on today's machine and versions.

    python -m platform.recheck bloom7b-1
    python -m platform.recheck bloom7b-1 --time-budget 10m --json > recheck.json

The runs are a study of their own, NAME-recheck-1. Exit codes: 0 as fast as then, 1 slower by more than the interval, or
it does not run any more or fails its gate, 2 bad input, 3 the cluster is at fault, 4 not measured often enough to tell,
130 interrupted.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from platform.common.command import exit_code_of
from platform.common.json_form import print_json
from platform.common.options import CommandParser, address_field, argument, json_field, option
from platform.common.output import print_line
from platform.common.quantities import duration
from platform.common.signals import INTERRUPTED
from platform.report.endings import command_for
from platform.report.json_report import finite
from platform.search.rechecking.verdict import recheck_of
from platform.search.setup.options import SearchOptions, StudyOptions
from platform.search.setup.rechecked import subject_of
from platform.study.folder import located, studies_field, trust_field, user_path
from platform.study.result.result import StudyResult
from platform.study.study import find, fresh_name, read
from trainers.spec.codec import to_json

_TIME_S = 300.0
"""Largest number of seconds of a recheck once the cluster is ready."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RecheckOptions:
    name: str = argument(metavar="STUDY", about="the study's name, or the path of its folder")
    time_budget_s: float = option(
        _TIME_S,
        names=("--time-budget", "--time-budget-s"),
        read=duration,
        metavar="T",
        about="stop after T seconds, or as in 10m (default: %(default)g)",
    )
    address: str | None = address_field()
    studies: Path = studies_field(then=user_path)
    trust: bool = trust_field()
    json: bool = json_field()


PARSER = CommandParser(RecheckOptions, prog="python -m platform.recheck", description=__doc__)


def main(argv: Sequence[str] | None = None) -> int:
    return exit_code_of(lambda: _run(PARSER.read(argv)))


def _run(options: RecheckOptions) -> int:
    studies = options.studies.absolute()
    folder = find(*located(studies, options.name))
    subject = subject_of(folder)
    from platform.search.session import session  # takes a second that `--help` and a mistake need not wait for

    name = fresh_name(studies, f"{folder.name}-recheck")
    search = SearchOptions(
        study=StudyOptions(recheck=str(folder)),
        studies=studies,
        name=name,
        time_budget_s=options.time_budget_s,
        address=options.address,
        trust=options.trust,
    )
    code = session.search(search, is_printed=False)
    if code == INTERRUPTED:
        return code
    answer = recheck_of(subject, StudyResult.of(read(studies / name, last=True)[0]))
    if options.json:
        print_json(finite(to_json(answer.to_json())))
    else:
        print(*filter(None, answer.sentences), sep="\n")
    print_line(f"The runs are those of {command_for('python -m platform.report', studies / name)}")
    return answer.exit_code
