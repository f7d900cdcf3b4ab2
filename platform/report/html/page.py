"""Builds the HTML page from its sections and writes the file."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from platform.report.accumulations import accumulation_parts
from platform.report.batches import batch_parts
from platform.report.columns import MeasuredRow, select
from platform.report.html.axis_sections import worth_of_axes
from platform.report.html.budget_sections import cost_of_the_search, days_against_devices
from platform.report.html.conditions import conditions
from platform.report.html.elements import Block, Facts, Paragraph, Section, blocks_of, document, headed
from platform.report.html.lane_sections import trials_side_by_side
from platform.report.html.loss_sections import loss_curves
from platform.report.html.pareto import Group, groups_of
from platform.report.html.speed_sections import against_batch_and_length, against_memory, heat_maps
from platform.report.html.step_sections import predicted_and_measured, where_the_step_goes
from platform.report.summary import verdicts
from platform.study.atomic_write import replacing
from platform.study.folder import user_path
from platform.study.result.result import StudyResult


def write_page(path: Path, results: Sequence[StudyResult], folders: Sequence[Path]) -> Path:
    """Writes the report of the studies, whose folders may hold trainings; returns the absolute path.

    Raises:
        InputError: the file cannot be written.
    """
    text = page(results, folders)
    path = user_path(path).absolute()
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


def page(results: Sequence[StudyResult], folders: Sequence[Path] = (), *, refresh_s: int | None = None) -> str:
    """Returns the report of the studies as HTML. With `refresh_s`, the browser reloads it after that many seconds."""
    groups = groups_of(results)
    names = ", ".join(result.header.name for result in results)
    clusters = "; ".join(dict.fromkeys(result.header.cluster.label_under(result.header.cap_gib) for result in results))
    return document(
        f"Layout search: {names}",
        f"On {clusters}. Every figure is measured unless its place says otherwise.{_caveats(results)}",
        [
            Section(id="answer", title="The answer", blocks=[*_answer(groups, results)]),
            Section(id="axes", title="What each axis is worth", blocks=[*worth_of_axes(results)]),
            Section(id="memory", title="Throughput against memory", blocks=[*against_memory(groups)]),
            Section(id="layouts", title="Layouts by micro-batch", blocks=[*heat_maps(groups)]),
            Section(id="batch", title="Step time, latency and tokens/s", blocks=[*against_batch_and_length(groups)]),
            Section(id="global-batch", title="Global batch and accumulation", blocks=_batches(results)),
            days_against_devices(results),
            Section(id="step", title="Where the step goes", blocks=[*where_the_step_goes(groups, results)]),
            Section(id="predicted", title="Predicted against measured", blocks=[*predicted_and_measured(results)]),
            Section(id="losses", title="Loss curves", blocks=[*loss_curves(results, folders)]),
            Section(id="cost", title="What the search cost, taught and saved", blocks=[*cost_of_the_search(results)]),
            Section(id="lanes", title="Trials side by side", blocks=[*trials_side_by_side(results)]),
            Section(id="conditions", title="Conditions", blocks=[*conditions(results)]),
        ],
        refresh_s=refresh_s,
    )


def _caveats(results: Sequence[StudyResult]) -> str:
    names = {caveat.name: None for result in results for of_recipe in result.of_study for caveat in of_recipe.caveats}
    return f" Caveats: {', '.join(names)}." if names else ""


def _answer(groups: Sequence[Group], results: Sequence[StudyResult]) -> Iterator[Block]:
    winners = [MeasuredRow(run=best, header=result.header) for group in groups for result, _, best in group.winners]
    if len(winners) == 1:
        columns = select(_ANSWER, winners[0].header)
        named = [(_ANSWER[column.key] or column.flat, column.text(winners[0])) for column in columns]
        yield Facts([(name, value) for name, value in named if value])
    for result in results:
        yield from headed(result.header.name, results)
        for sentence in verdicts(result):
            yield Paragraph(sentence)


_ANSWER = {
    "tokens_per_s": "",
    "tokens_per_s_per_gpu": "",
    "step_time_s": "seconds a step",
    "peak_allocated_gib": "GiB at most",
    "days": "",
    "cost": "",
}
"""Keys of the answer's figures, with their names; "" stands for the column's title."""


def _batches(results: Sequence[StudyResult]) -> list[Block]:
    return [block for result in results for block in blocks_of((*batch_parts(result), *accumulation_parts(result)))]
