"""Sections on training time and search cost: days and device-days against devices, what the search took and saved."""

from collections.abc import Iterator, Sequence

from platform.common.text import count, duration, figure, plural
from platform.report.forecast import forecaster_of
from platform.report.html.chart import lines
from platform.report.html.elements import Section, figures, heading, paragraph, table
from platform.report.lessons import lessons
from platform.report.scaling_rows import ScalingRow, by_recipe, rows
from platform.study.result.result import StudyResult
from trainers.records.measurement import Outcome


def days_against_devices(results: Sequence[StudyResult]) -> Section:
    """Returns the section on the winner of each number of devices: days, device-days, efficiency and cost."""
    groups = by_recipe(rows(results))
    device = results[0].header.cluster.device_word
    body = ""
    for group in groups:
        won_rows = [row for row in group if row.best is not None]
        if not won_rows:
            continue
        body += heading(group[0].recipe.label) if len(groups) > 1 else ""
        planned = [row for row in won_rows if row.days is not None and row.device_days is not None]
        counts = sorted({row.num_devices for row in planned})
        if len(counts) > 1:
            body += figures(list(_curves(group[0].recipe.label, device, planned, counts)))
        elif planned:
            body += paragraph(
                f"One number of {device}s was measured: `python -m platform.search --gpus 1,2,4` and a report of its"
                " study draw the curve.",
                note=True,
            )
        budget = count(group[0].tokens)
        header = (
            "fastest layout",
            f"{device}s",
            "tokens/s",
            "efficiency",
            f"days for {budget}",
            f"{device}-days",
            "cost",
        )
        body += table(header, [_cells(row) for row in group])
    return Section(id="days", title=f"Days and {device}-days against {device}s", body=body)


def _curves(name: str, device: str, planned: Sequence[ScalingRow], counts: Sequence[int]) -> Iterator[tuple[str, str]]:
    xs, unit = [float(row.num_devices) for row in planned], f"{device}s"
    days = [("", xs, [row.days or 0.0 for row in planned])]
    spent = [("", xs, [row.device_days or 0.0 for row in planned])]
    yield "Days", lines(f"Days, {name}", days, x=unit, y="days", log_x=True, log_y=True, ticks=counts)
    title = f"{device}-days"
    yield title, lines(f"{title}, {name}", spent, x=unit, y=title, log_x=True, ticks=counts, zero=True)


def _cells(row: ScalingRow) -> list[str]:
    return [
        row.best.layout.label + (f" ({row.caveats})" if row.caveats else "") if row.best else row.reason,
        str(row.num_devices),
        figure(row.tokens_per_s),
        "" if row.efficiency is None else f"{row.efficiency:.0%}",
        figure(row.days),
        figure(row.device_days),
        figure(row.cost),
    ]


def cost_of_the_search(results: Sequence[StudyResult]) -> Section:
    """Returns the section on what each search took, how much of its space it ran, what it taught and what it saves."""
    body, searches = "", list[list[str]]()
    for result in results:
        history = result.history
        measured = [measurement for measurement in history.measurements if measurement.outcome is not Outcome.SKIPPED]
        coverages = [recipe_result.coverage for recipe_result in result.of_study if recipe_result.coverage]
        searches.append(
            [
                result.header.name,
                duration(history.wall_s),
                figure(history.gpu_s / 3600),
                plural(len(measured), "point"),
                " + ".join(f"{coverage.num_tried} of {coverage.num_layouts}" for coverage in coverages),
                str(sum(measurement.outcome is Outcome.OOM for measurement in measured)),
                str(
                    len(
                        {
                            measurement.layout
                            for measurement in history.measurements
                            if measurement.outcome is Outcome.SKIPPED
                        }
                    )
                ),
            ]
        )
    device = results[0].header.cluster.device_word
    body += table(
        ("study", "time", f"{device}-hours", "measured", "layouts tried", "out of memory", "left out as too large"),
        searches,
    )
    for result in results:
        sentences = lessons(result, forecaster_of(result.header))
        if sentences and len(results) > 1:
            body += heading(result.header.name)
        body += "".join(paragraph(sentence) for sentence in sentences)
    return Section(id="cost", title="What the search cost, taught and saved", body=body)
