"""Sections on training time (days and device-days against devices) and on the search's cost, lessons and savings."""

from collections.abc import Iterator, Sequence

from platform.common.text import duration, figure, plural
from platform.report.html.chart import lines
from platform.report.html.elements import Block, Charts, Paragraph, Section, headed
from platform.report.lessons import lessons
from platform.report.scaling_rows import ScalingRow, by_recipe, rows, scaling_notes, scaling_table
from platform.report.table import Column, Table
from platform.study.result.result import StudyResult
from trainers.records.measurement import Measurement, Outcome


def days_against_devices(results: Sequence[StudyResult]) -> Section:
    """Returns the section on the winner of each number of devices: days, device-days, efficiency and cost."""
    device = results[0].header.cluster.device_word
    groups = by_recipe(rows(results))
    blocks = [
        block
        for group in groups
        if any(row.best is not None for row in group)
        for block in (*headed(group[0].recipe.label, groups), *_of_recipe(group, device))
    ]
    return Section(id="days", title=f"Days and {device}-days against {device}s", blocks=blocks)


def _of_recipe(group: Sequence[ScalingRow], device: str) -> Iterator[Block]:
    planned = [row for row in group if row.days is not None and row.device_days is not None]
    counts = sorted({row.num_devices for row in planned})
    if len(counts) > 1:
        yield Charts(list(_curves(group[0].recipe.label, device, planned, counts)))
    elif planned:
        words = f"One number of {device}s was measured: `python -m platform.search --gpus 1,2,4` and a report of its"
        yield Paragraph(f"{words} study draw the curve.", note=True)
    yield scaling_table(group, device)
    for note in scaling_notes(group):
        yield Paragraph(note, note=True)


def _curves(name: str, device: str, planned: Sequence[ScalingRow], counts: Sequence[int]) -> Iterator[tuple[str, str]]:
    xs, unit = [float(row.num_devices) for row in planned], f"{device}s"
    days = [("", xs, [row.days or 0.0 for row in planned])]
    spent = [("", xs, [row.device_days or 0.0 for row in planned])]
    yield "Days", lines(f"Days, {name}", days, x=unit, y="days", log_x=True, log_y=True, ticks=counts)
    title = f"{device}-days"
    yield title, lines(f"{title}, {name}", spent, x=unit, y=title, log_x=True, ticks=counts, zero=True)


def cost_of_the_search(results: Sequence[StudyResult]) -> Iterator[Block]:
    """Yields each search's time, coverage, lessons and savings."""
    device = results[0].header.cluster.device_word
    columns: list[Column[StudyResult]] = [
        Column(title="study", value=lambda result: result.header.name, left=True),
        Column(title="time", value=lambda result: duration(result.history.wall_s)),
        Column(title=f"{device}-hours", value=lambda result: figure(result.history.gpu_s / 3600)),
        Column(title="measured", value=lambda result: plural(len(_measured(result)), "point")),
        Column(title="layouts tried", value=_tried),
        Column(
            title="out of memory",
            value=lambda result: str(sum(run.outcome is Outcome.OOM for run in _measured(result))),
        ),
        Column(title="left out as too large", value=lambda result: str(_num_skipped(result))),
    ]
    yield Table(columns=columns, rows=results).filled
    for result in results:
        sentences = lessons(result)
        if sentences:
            yield from headed(result.header.name, results)
        for sentence in sentences:
            yield Paragraph(sentence)


def _measured(result: StudyResult) -> list[Measurement]:
    return [run for run in result.history.measurements if run.outcome is not Outcome.SKIPPED]


def _tried(result: StudyResult) -> str:
    coverages = [of_recipe.coverage for of_recipe in result.of_study if of_recipe.coverage]
    return " + ".join(f"{coverage.num_tried} of {coverage.num_layouts}" for coverage in coverages)


def _num_skipped(result: StudyResult) -> int:
    return len({run.layout for run in result.history.measurements if run.outcome is Outcome.SKIPPED})
