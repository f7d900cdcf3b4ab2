"""Prints a study's result on standard output: a table with its verdicts, or one JSON object."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from platform.common.json_form import print_json
from platform.common.output import filled, terminal_width
from platform.report.accumulations import accumulation_parts
from platform.report.batches import batch_parts
from platform.report.console import rendered
from platform.report.json_report import as_json
from platform.report.lessons import lessons
from platform.report.profile import profile_parts
from platform.report.summary import verdicts
from platform.report.terminal import render
from platform.study.result.result import StudyResult

PLAIN_WIDTH = 200
"""Width of tables in characters if there is no terminal."""


def show(result: StudyResult, files: Sequence[Path], *, as_object: bool) -> None:
    """Prints a study's result: table, verdicts and files, or only the JSON object."""
    if as_object:
        print_json(as_json(result))
        return
    width = terminal_width(PLAIN_WIDTH)
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    parts = (*batch_parts(result), *accumulation_parts(result), *profile_parts(result))
    print(render(result, width=width, color=color), rendered(parts, width=width, color=color), sep="", end="")
    for sentence in [*verdicts(result), *lessons(result)]:
        print(filled(sentence, width))
    if files:
        print("Files:", *files, sep="\n  ")
