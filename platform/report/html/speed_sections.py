"""Sections on speed: against memory with the Pareto front, by layout and micro-batch, against batch and length."""

from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING

from platform.common.text import figure, plural
from platform.report.html.chart import INK, Curve, chart, legend_below, lines, scale
from platform.report.html.elements import Section, TableCell, figures, heading, paragraph, table
from platform.report.html.pareto import Group, MeasuredPoint, choices, front, staircase
from platform.report.pictures import COLORS
from platform.report.summary import cost_of, days_of
from trainers.records.measurement import TIMED, Measurement, Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_ROWS = 40
"""Number of layouts of a heat map, the fastest ones; the rest is counted."""
_MOST_LINES = 5
"""Number of layouts whose curves are drawn, the fastest ones: more could not be told apart."""
_MOST_OF_FRONT = 12
_GOOD = (15, 118, 110)
_FAILED = "#7c3aed"


def against_memory(groups: Sequence[Group]) -> Section:
    """Returns the section that shows every point's memory and speed, and the Pareto front."""
    body = ""
    for group in groups:
        points = group.points
        if not points:
            continue
        body += _title(group, groups)
        body += figures([("Tokens/s against memory, a dot a point", _scatter(group, points))])
        choice_by_name = choices(points)
        body += table(_CHOICE_HEADER, [_choice_row(name, point) for name, point in choice_by_name.items()], words=2)
        best = front(points)
        names = {id(point.measurement) for point in choice_by_name.values()}
        others = [point for point in best if id(point.measurement) not in names]
        if any(point.runs for _, of_recipe in group.parts for point in of_recipe.points):
            body += paragraph(
                "The winner is chosen by runs in fresh processes; a figure of the search may stand above its own.",
                note=True,
            )
        if len(points) > 1:
            body += paragraph("Points are chosen here by one run of each: their order is not resolved.", note=True)
        if others:
            title = f"{plural(len(best), 'point')} that no other one beats in all four respects"
            more = f", of them {_MOST_OF_FRONT} here" if len(others) > _MOST_OF_FRONT else ""
            body += paragraph(f"{title}{more}; those above are among them.", note=True)
            body += table(_CHOICE_HEADER[1:], [_choice_row("", other)[1:] for other in others[:_MOST_OF_FRONT]])
    return Section(id="memory", title="Throughput against memory", body=body)


_CHOICE_HEADER = (
    *("choice", "layout", "tokens/s", "GiB", "devices", "micro-batch", "tokens/s a device", "head-room GiB"),
    *("days", "cost"),
)


def _choice_row(name: str, point: MeasuredPoint) -> list[str]:
    measurement, header = point.measurement, point.header
    return [
        name,
        measurement.layout.label,
        figure(measurement.tokens_per_s) + "~" * measurement.step_time_derived,
        figure(measurement.peak_allocated_gib),
        str(measurement.num_devices),
        f"{measurement.batch.micro_batch} x {measurement.batch.grad_accum}",
        figure(measurement.tokens_per_s_per_gpu),
        figure(point.head_room_gib) if point.peak_gib else "",
        figure(days_of(measurement, header.tokens)),
        figure(cost_of(measurement, header.tokens, header.price_per_gpu_h)),
    ]


def _title(group: Group, groups: Sequence[Group]) -> str:
    return heading(group.recipe.label) if len(groups) > 1 else ""


def _scatter(group: Group, points: Sequence[MeasuredPoint]) -> str:
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
        for outcome in dict.fromkeys(measurement.outcome for measurement in timed):
            of_outcome = [measurement for measurement in timed if measurement.outcome is outcome]
            xs, ys = (
                [measurement.peak_allocated_gib or 0.0 for measurement in of_outcome],
                [measurement.tokens_per_s or 0.0 for measurement in of_outcome],
            )
            axes.plot(xs, ys, "o", ms=4, alpha=0.75, mec="none", color=COLORS.get(outcome, _FAILED), label=outcome)
        if crashed:
            xs, ys = [gib for _, gib in crashed], [0.0] * len(crashed)
            axes.plot(xs, ys, "x", ms=5, color=COLORS[Outcome.OOM], label="oom: held and asked for", clip_on=False)
        gib, speed = staircase([point for point in points if point.peak_gib])
        axes.plot(gib, speed, "-", color=INK, lw=1.2, drawstyle="steps-post", label="Pareto front")
        for limit in sorted({point.limit_gib for point in points}):
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


def heat_maps(groups: Sequence[Group]) -> Section:
    """Returns the section with a table for each recipe and number of devices: layouts by micro-batch, shaded by
    speed.
    """
    parts: dict[tuple[str, int], list[Measurement]] = defaultdict(list)
    for group in groups:
        for measurement in group.measurements:
            parts[group.recipe.label, measurement.num_devices].append(measurement)
    winners = {(best.recipe, best.layout, best.batch) for group in groups for *_, best in group.winners}
    body = ""
    for (recipe, num_devices), measurements in parts.items():
        measured = [measurement for measurement in measurements if measurement.outcome is not Outcome.SKIPPED]
        if measured:
            on = f" on {plural(num_devices, 'device')}"
            body += heading(f"{recipe},{on}" if len(groups) > 1 else on.strip().capitalize()) if len(parts) > 1 else ""
            body += _heat_map(measured, winners) + paragraph(_heat_map_note(measurements), note=True)
    return Section(id="layouts", title="Layouts by micro-batch", body=body)


def _heat_map(measured: Sequence[Measurement], winners: Container[tuple[Recipe, Layout, BatchPoint]]) -> str:
    speed = _best_by_layout(measured)
    fastest, columns = max(speed.values()), sorted({measurement.batch.micro_batch for measurement in measured})
    cells = {(measurement.layout, measurement.batch.micro_batch): measurement for measurement in measured}
    rows: list[list[str | TableCell]] = []
    for layout in sorted(speed, key=lambda layout: -speed[layout])[:_MOST_ROWS]:
        row = [cells.get((layout, micro_batch)) for micro_batch in columns]
        stars = [cell is not None and (cell.recipe, layout, cell.batch) in winners for cell in row]
        rows.append([layout.label, *(_shade(cell, fastest, star) for cell, star in zip(row, stars, strict=True))])
    return table(["layout \\ micro-batch", *map(str, columns)], rows)


def _best_by_layout(measured: Sequence[Measurement]) -> dict[Layout, float]:
    """Returns the best tokens/s of each layout; 0 where no point of it has a figure that counts."""
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
        parts.append(f"not run since it was clear beforehand that they do not fit: {plural(len(skipped), 'layout')}")
    return "; ".join(parts) + "."


def _shade(measurement: Measurement | None, fastest: float, is_winner: bool) -> str | TableCell:
    if measurement is None:
        return ""
    speed = measurement.tokens_per_s or 0.0
    text = f"{figure(speed)}{'~' * measurement.step_time_derived}" if speed else ""
    if measurement.outcome not in TIMED:
        word = "OOM" if measurement.outcome is Outcome.OOM else measurement.outcome.value
        return TableCell(
            text=f"{text} {word}".strip(), background=f"{COLORS.get(measurement.outcome, _FAILED)}40", color=INK
        )
    share = (speed / fastest) ** 3 if fastest else 0.0
    shade = ",".join(str(round(255 - (255 - part) * (0.08 + 0.92 * share))) for part in _GOOD)
    word = "" if measurement.outcome is Outcome.OK else f" {measurement.outcome.value}"
    return TableCell(
        text=f"{'★ ' if is_winner else ''}{text}{word}",
        background=f"rgb({shade})",
        color="#fff" if share > 0.6 else INK,
    )


def against_batch_and_length(groups: Sequence[Group]) -> Section:
    """Returns the section with step time, latency and tokens/s against micro-batch, and against sequence length where
    several were measured.
    """
    body = ""
    for group in groups:
        fastest = list(_fastest(group))
        sizes = sorted({point.batch.micro_batch for _, points in fastest for point in points})
        if not sizes:
            continue
        body += _title(group, groups)
        body += figures(list(_batch_charts(group, fastest, sizes)))
        body += paragraph(
            f"The fastest {plural(len(fastest), 'layout')}. Latency is a micro-step's: forward and backward pass of one"
            " micro-batch; a step is all micro-steps and the optimizer's.",
            note=True,
        )
    lengths = Counter(group.recipe.seq_len for group in groups if group.points)
    if len(lengths) > 1:
        body += heading("Against sequence length")
        body += figures(list(_length_charts(groups, sorted(lengths))))
        body += paragraph("Each the fastest layout of its length and micro-batch.", note=True)
    elif body:
        (length,) = lengths or [0]
        body += paragraph(
            f"One sequence length was measured, {length:,}: search with --set seq_len=A,B or give the studies of"
            " several lengths to see the curves against it.",
            note=True,
        )
    return Section(id="batch", title="Step time, latency and tokens/s", body=body)


def latency_s(measurement: Measurement) -> float:
    """Returns the seconds of one micro-step: measured, or its share of the step where the parts were not timed."""
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
    # A curve of several points says more than a single dot: those come last.
    order = sorted(timed, key=lambda key: (len(timed[key]) == 1, -max(rung.tokens_per_s or 0.0 for rung in timed[key])))
    for layout in order[:_MOST_LINES]:
        yield layout, sorted(timed[layout], key=lambda rung: rung.batch.micro_batch)


def _length_charts(groups: Sequence[Group], lengths: Sequence[int]) -> Iterator[tuple[str, str]]:
    best: dict[tuple[int, int], Measurement] = {}
    for group in groups:
        for point in group.points:
            key = (point.measurement.batch.micro_batch, group.recipe.seq_len)
            if key not in best or point.tokens_per_s > (best[key].tokens_per_s or 0.0):
                best[key] = point.measurement
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
