"""Reports of many measurements cost as much for each as those of a few. Work is counted, not timed."""

import itertools
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from matplotlib.figure import Figure

from platform.report import pictures
from platform.report.summary import verdicts
from platform.study.journal import Tail
from tests.samples import CLUSTER, layout, measurement, oom, result_of
from trainers.records.journal_lines import append
from trainers.records.measurement import Measurement

MICRO_BATCHES = (1, 2, 4)
BESIDE: dict[str, Any] = {"sm_clock_mhz": (1500.0,), "others_busy_pct": (4.0,)}


def study(number: int) -> list[Measurement]:
    """Returns the measurements of so many layouts, three of each, of which the last ran out of memory."""
    layouts = [layout(bucket_mib=1 + n) for n in range(number)]
    return [
        oom(on=tried_layout, micro_batch=size)
        if size == MICRO_BATCHES[-1]
        else measurement(on=tried_layout, micro_batch=size, tokens_per_s=40000.0 + 10 * n + size, **BESIDE)
        for (n, tried_layout), size in itertools.product(enumerate(layouts), MICRO_BATCHES)
    ]


def calls_of(function: Callable[[], object]) -> int:
    """Returns how often Python functions are called."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def test_verdicts_cost_as_much_for_each_measurement_of_a_larger_study() -> None:
    few, more, most = (study(number) for number in (20, 40, 80))
    assert verdicts(result_of(few))  # what is computed once in a process
    calls = [calls_of(lambda measured=measured: verdicts(result_of(measured))) for measured in (few, more, most)]
    assert calls[2] - calls[1] < 2.2 * (calls[1] - calls[0]), calls


def test_a_picture_has_as_many_artists_for_any_number_of_points() -> None:
    artists: list[int] = []
    for number in (5, 50):
        axes = Figure().subplots()
        pictures._speed_memory(axes, study(number), None, CLUSTER)  # pyright: ignore[reportPrivateUsage]
        artists.append(len([*axes.lines, *axes.collections]))
    assert artists[0] == artists[1]


def test_a_journal_is_read_line_by_line(tmp_path: Path) -> None:
    journal, lines, size = tmp_path / "journal.jsonl", 50, 100_000
    for _ in range(lines):
        append(journal, {"kind": "of a later version", "schema": 2, "optional": True, "pad": "x" * size})
    tail = Tail(journal)
    tracemalloc.start()
    try:
        assert tail.read() == [] and not tail.rejected
        assert tracemalloc.get_traced_memory()[1] < lines * size / 5
    finally:
        tracemalloc.stop()
