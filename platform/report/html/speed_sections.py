"""Sections on speed: against memory with the Pareto front, by layout and micro-batch, against batch and length."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from platform.common.text import figure, plural
from platform.report.columns import CHOICES, MeasuredRow, select
from platform.report.html.chart import INK, MOST_DRAWN, Curve, chart, legend_below, lines, scale
from platform.report.html.elements import Block, Charts, Heading, Paragraph, headed
from platform.report.html.pareto import Group, choices, front, staircase
from platform.report.pictures import COLORS
from platform.report.summary import limit_gib
from platform.report.table import Column, Table
from trainers.records.measurement import TIMED, Measurement, Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_ROWS = 40
"""Number of layouts in a heat map, the fastest ones; the others are counted."""
_MOST_LINES = 5
"""Number of layouts whose curves are drawn, the fastest ones; more could not be told apart."""
_MOST_OF_FRONT = 12
_GOOD = (15, 118, 110)
_FAILED = "#7c3aed"


def against_memory(groups: Sequence[Group]) -> Iterator[Block]:
    """Yields every point's memory and speed, and the Pareto front."""
    for group in groups:
        points = group.points
        if not points:
            continue
        yield from headed(group.recipe.label, groups)
        yield Charts([("Tokens/s against memory, a dot a point", _scatter(group, points))])
        chosen = [dataclasses.replace(point, choice=name) for name, point in choices(points).items()]
        columns = select(CHOICES, points[0].header)
        yield Table(columns=columns, rows=chosen).filled
        best = front(points)
        names = {id(point.run) for point in chosen}
        others = [point for point in best if id(point.run) not in names]
        if any(point.runs for _, of_recipe in group.parts for point in of_recipe.points):
            words = "The winner is chosen by runs in fresh processes; a figure of the search may stand above its own."
            yield Paragraph(words, note=True)
        if len(points) > 1:
            words = "Points are chosen here by one run of each: their order is not resolved."
            yield Paragraph(words, note=True)
        if others:
            title = f"{plural(len(best), 'point')} that no other one beats in all four respects"
            more = f", of them {_MOST_OF_FRONT} here" if len(others) > _MOST_OF_FRONT else ""
            yield Paragraph(f"{title}{more}; those above are among them.", note=True)
            yield Table(columns=columns, rows=others[:_MOST_OF_FRONT]).filled


def _scatter(group: Group, points: Sequence[MeasuredRow]) -> str:
    timed = [
        measurement for measurement in group.measurements if measurement.tokens_per_s and measurement.peak_allocated_gib
    ]
    crashed = [
        (measurement, (measurement.allocated_gib or 0.0) + (measurement.asked_gib or 0.0))
        for _, of_recipe in group.parts
        for measurement in of_recipe.measurements
        if measurement.outcome is Outcome.OOM and measurement.allocated_gib is not None
    ]

    def draw(axes: "Axes") -> None:
        many: Any = {"rasterized": len(timed) + len(crashed) > MOST_DRAWN}
        for outcome in dict.fromkeys(measurement.outcome for measurement in timed):
            of_outcome = [measurement for measurement in timed if measurement.outcome is outcome]
            xs = [measurement.peak_allocated_gib or 0.0 for measurement in of_outcome]
            ys = [measurement.tokens_per_s or 0.0 for measurement in of_outcome]
            style: Any = {"color": COLORS.get(outcome, _FAILED), "label": outcome, **many}
            axes.plot(xs, ys, "o", ms=4, alpha=0.75, mec="none", **style)
        if crashed:
            style = {"color": COLORS[Outcome.OOM], "label": "oom: held and asked for", **many}
            axes.plot([gib for _, gib in crashed], [0.0] * len(crashed), "x", ms=5, clip_on=False, **style)
        gib, speed = staircase(points)
        axes.plot(gib, speed, "-", color=INK, lw=1.2, drawstyle="steps-post", label="Pareto front")
        for limit in sorted({limit_gib(point.run, point.header) for point in points}):
            axes.axvline(limit, color=COLORS[Outcome.OOM], lw=1, ls="--")
        for _, _, best in group.winners:
            axes.plot([best.peak_allocated_gib or 0.0], [best.tokens_per_s or 0.0], "o", ms=10, mfc="none", mec=INK)
        axes.set_xlim(left=0)
        axes.set_ylim(0, 1.08 * max(measurement.tokens_per_s or 0.0 for measurement in timed) if timed else None)
        scale(axes, log_x=False, log_y=False)
        axes.set_xlabel("GiB allocated at most, on the fullest device\ndashed: the limit; ringed: winners")
        axes.set_ylabel("tokens/s, all devices")
        legend_below(axes)

    return chart(f"Tokens/s against memory, {group.recipe.label}", draw, height_in=4.0)


def heat_maps(groups: Sequence[Group]) -> Iterator[Block]:
    """Yields a table for each recipe and number of devices: layouts by micro-batch, shaded by speed."""
    parts: dict[tuple[str, int], list[Measurement]] = defaultdict(list)
    for group in groups:
        for measurement in group.measurements:
            parts[group.recipe.label, measurement.num_devices].append(measurement)
    winners = {(best.recipe, best.layout, best.batch) for group in groups for *_, best in group.winners}
    for (recipe, num_devices), measurements in parts.items():
        measured = [measurement for measurement in measurements if measurement.outcome is not Outcome.SKIPPED]
        if measured:
            on = f"on {plural(num_devices, 'device')}"
            yield from headed(f"{recipe}, {on}" if len(groups) > 1 else on.capitalize(), parts)
            yield _heat_map(measured, winners)
            yield Paragraph(_heat_map_note(measurements), note=True)


_HeatRow = tuple[Layout, dict[int, Measurement]]
"""A layout with its measurements by micro-batch."""


def _heat_map(
    measured: Sequence[Measurement], winners: Container[tuple[Recipe, Layout, BatchPoint]]
) -> Table[_HeatRow]:
    speed = _best_by_layout(measured)
    cells: dict[Layout, dict[int, Measurement]] = defaultdict(dict)
    for measurement in measured:
        cells[measurement.layout][measurement.batch.micro_batch] = measurement
    name: Column[_HeatRow] = Column(title="layout \\ micro-batch", value=lambda row: row[0].label, left=True)
    sizes = sorted({measurement.batch.micro_batch for measurement in measured})
    fastest = max(speed.values())
    return Table(
        columns=[name, *(_heat_column(size, fastest, winners) for size in sizes)],
        rows=[(layout, cells[layout]) for layout in sorted(speed, key=lambda on: -speed[on])[:_MOST_ROWS]],
    )


def _heat_column(size: int, fastest: float, winners: Container[tuple[Recipe, Layout, BatchPoint]]) -> Column[_HeatRow]:

    def text(row: _HeatRow) -> str | None:
        cell = row[1].get(size)
        star = cell is not None and (cell.recipe, cell.layout, cell.batch) in winners
        return cell and f"{'★ ' if star else ''}{_cell_text(cell)}"

    return Column(title=str(size), value=text, css=lambda row: _shade(row[1].get(size), fastest))


def _best_by_layout(measured: Sequence[Measurement]) -> dict[Layout, float]:
    """Returns the best tokens/s of each layout; 0 if no point of it has a valid figure."""
    best: dict[Layout, float] = defaultdict(float)
    for measurement in measured:
        best[measurement.layout] = max(
            best[measurement.layout], (measurement.tokens_per_s or 0.0) if measurement.outcome in TIMED else 0.0
        )
    return best


def _heat_map_note(measurements: Sequence[Measurement]) -> str:
    parts = ["Tokens/s; a star marks a winner; blank: not tried"]
    if any(measurement.step_time_derived for measurement in measurements):
        parts.append("~ derived from the parts of a step with fewer micro-steps")
    measured_layouts = {
        measurement.layout for measurement in measurements if measurement.outcome is not Outcome.SKIPPED
    }
    if len(measured_layouts) > _MOST_ROWS:
        parts.append(f"left out: {plural(len(measured_layouts) - _MOST_ROWS, 'layout')} that ran slower or crashed")
    if skipped := {measurement.layout for measurement in measurements} - measured_layouts:
        parts.append(
            f"not run since it was clear beforehand that they do not fit in memory: {plural(len(skipped), 'layout')}"
        )
    return "; ".join(parts) + "."


def _cell_text(measurement: Measurement) -> str:
    speed = measurement.tokens_per_s or 0.0
    text = f"{figure(speed)}{'~' * measurement.step_time_derived}" if speed else ""
    words = {Outcome.OK: "", Outcome.OOM: "OOM"}
    return f"{text} {words.get(measurement.outcome, measurement.outcome.value)}".strip()


def _shade(measurement: Measurement | None, fastest: float) -> str:
    """Returns the style of a cell: the darker the faster, or the colour of the failure."""
    if measurement is None:
        return ""
    if measurement.outcome not in TIMED:
        return f"background:{COLORS.get(measurement.outcome, _FAILED)}40;color:{INK}"
    share = ((measurement.tokens_per_s or 0.0) / fastest) ** 3 if fastest else 0.0
    shade = ",".join(str(round(255 - (255 - part) * (0.08 + 0.92 * share))) for part in _GOOD)
    return f"background:rgb({shade});color:{'#fff' if share > 0.6 else INK}"


def against_batch_and_length(groups: Sequence[Group]) -> Iterator[Block]:
    """Yields step time, latency and tokens/s against micro-batch, and against sequence length if there are several."""
    measured = [(group, fastest) for group in groups if (fastest := list(_fastest(group)))]
    for group, fastest in measured:
        sizes = sorted({point.batch.micro_batch for _, points in fastest for point in points})
        yield from headed(group.recipe.label, groups)
        yield Charts(list(_batch_charts(group, fastest, sizes)))
        words = f"The fastest {plural(len(fastest), 'layout')}. Latency is a micro-step's: forward and backward pass of"
        yield Paragraph(f"{words} one micro-batch; a step is all micro-steps and the optimizer's.", note=True)
    lengths = Counter(group.recipe.seq_len for group in groups if group.points)
    if len(lengths) > 1:
        yield Heading("Against sequence length")
        yield Charts(list(_length_charts(groups, sorted(lengths))))
        yield Paragraph("Each the fastest layout of its length and micro-batch.", note=True)
    elif measured:
        (length,) = lengths or [0]
        words = f"One sequence length was measured, {length:,}: search with --set seq_len=A,B or give the studies of"
        yield Paragraph(f"{words} several lengths to see the curves against it.", note=True)


def latency_s(measurement: Measurement) -> float:
    """Returns the seconds of a micro-step: measured, or step over accumulation if the parts were not timed."""
    timed = measurement.middle_micro_step_s or measurement.last_micro_step_s
    return timed or (measurement.step_time_s or 0.0) / measurement.batch.grad_accum


_QUANTITIES = (
    ("Step time", "seconds of an optimizer step", lambda measurement: measurement.step_time_s or 0.0),
    ("Latency", "seconds of a micro-step", latency_s),
    ("Throughput", "tokens/s, all devices", lambda measurement: measurement.tokens_per_s or 0.0),
)


def _batch_charts(
    group: Group, fastest: Sequence[tuple[Layout, list[Measurement]]], sizes: Sequence[int]
) -> Iterator[tuple[str, str]]:
    for name, unit, value_of in _QUANTITIES:
        curves = [
            (layout.label, [point.batch.micro_batch for point in points], [value_of(point) for point in points])
            for layout, points in fastest
        ]
        title = f"{name} against micro-batch, {group.recipe.label}"
        yield name, lines(title, curves, x="micro-batch (sequences)", y=unit, log_x=True, ticks=sizes, zero=True)


def _fastest(group: Group) -> Iterator[tuple[Layout, list[Measurement]]]:
    """Yields the fastest layouts with their timed points by micro-batch."""
    timed: dict[Layout, list[Measurement]] = defaultdict(list)
    for measurement in group.measurements:
        if measurement.outcome in TIMED and measurement.tokens_per_s:
            timed[measurement.layout].append(measurement)
    # Layouts with a single dot come last, because a curve says more.
    order = sorted(timed, key=lambda key: (len(timed[key]) == 1, -max(rung.tokens_per_s or 0.0 for rung in timed[key])))
    for layout in order[:_MOST_LINES]:
        yield layout, sorted(timed[layout], key=lambda rung: rung.batch.micro_batch)


def _length_charts(groups: Sequence[Group], lengths: Sequence[int]) -> Iterator[tuple[str, str]]:
    best: dict[tuple[int, int], Measurement] = {}
    for group in groups:
        for point in group.points:
            key = (point.run.batch.micro_batch, group.recipe.seq_len)
            if key not in best or (point.run.tokens_per_s or 0.0) > (best[key].tokens_per_s or 0.0):
                best[key] = point.run
    sizes = sorted({size for size, _ in best})
    for name, unit, value_of in _QUANTITIES:
        curves: list[Curve] = []
        for size in sizes:
            measured_lengths = [length for length in lengths if (size, length) in best]
            curves.append(
                (f"micro-batch {size}", measured_lengths, [value_of(best[size, length]) for length in measured_lengths])
            )
        x = "sequence length (tokens)"
        yield name, lines(f"{name} against length", curves, x=x, y=unit, log_x=True, ticks=lengths, zero=True)
