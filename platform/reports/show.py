"""A study's result on standard output: as a table with its verdicts, or as one JSON object."""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from platform.reports.accumulations import render_accumulations
from platform.reports.batches import render_batches
from platform.reports.coverage import coverages
from platform.reports.forecast import forecaster_of
from platform.reports.lessons import lessons
from platform.reports.profile_table import render_profiles
from platform.reports.summary import as_json, verdicts
from platform.reports.terminal import render
from platform.study.history import History

_PLAIN_WIDTH = 200
"""Columns of the table where standard output is not a terminal."""


def table_width() -> int:
    """Columns that a table on standard output may take."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _PLAIN_WIDTH


def show(history: History, files: Sequence[Path], *, as_object: bool) -> None:
    """Print a study's result: table, verdicts and files, or the JSON object alone."""
    assert history.header is not None
    if as_object:
        print(json.dumps(as_json(history), allow_nan=False))
        return
    width = table_width()
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    header = history.header
    table = render(
        history.measurements,
        cluster=header.cluster,
        tokens=header.tokens,
        price_per_gpu_h=header.price_per_gpu_h,
        width=width,
        color=color,
        tried=coverages(history, history.measurements),
    )
    print(table, end="")
    print(render_batches(history.measurements, width=width, color=color), end="")
    print(render_accumulations(history.measurements, tokens=header.tokens, width=width, color=color), end="")
    print(render_profiles(history, width=width, color=color), end="")
    for sentence in [*verdicts(history), *lessons(history, forecaster_of(header))]:
        print(textwrap.fill(sentence, width, break_long_words=False, break_on_hyphens=False))
    if files:
        print("Files:", *files, sep="\n  ")
