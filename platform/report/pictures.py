"""Two pictures of a recipe's measurements: speed against memory, and layouts by micro-batch."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platform.common.text import figure, plural
from platform.report.image_formats import FORMATS, show_dollars
from platform.study.atomic_write import replacing
from platform.study.result.result import RecipeResult
from trainers.records.measurement import TIMED, Measurement, Outcome
from trainers.spec import engines
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SPEED_MEMORY, HEAT_MAP = "speed-memory", "heat-map"

COLORS = {
    Outcome.OK: "#0f766e",
    Outcome.THRASH: "#e9b44c",
    Outcome.SLOW: "#9ca3af",
    Outcome.OOM: "#b91c1c",
    Outcome.SKIPPED: "#d1d5db",
}
"""Colour by outcome; other outcomes are failures."""
_FAILED = "#7c3aed"
_INK, _FAINT, _GRID = "#1f2937", "#6b7280", "#e5e7eb"
_MARKERS = dict(zip(engines.names(), "soD^vP", strict=False))
"""Marker of dots by engine; other engines have round dots."""
_MOST_ROWS = 40
"""Number of layouts that ran in a heat map, the fastest ones; the others are counted."""
_MOST_NEVER_RUN = 3
"""Number of layouts that never ran in a heat map; the others are counted."""
_EDGE_IN, _HEAD_IN = 0.1, 0.8
"""Free inches at the sides of a picture, and at its top for the title and two smaller lines."""
_MOST_NAMED = 500
"""Largest number of dots labelled with their micro-batch; more would not be readable."""
_LABEL = (0.022, 0.022)
"""Width and height of a dot's label, as shares of the axes."""


def draw(result: RecipeResult, cluster: Cluster, folder: Path, suffix: str = "", form: str = FORMATS[0]) -> list[Path]:
    """Draws both pictures of one recipe into `folder` in the format `form` and returns their paths; empty if nothing
    was tried.

    Raises:
        InputError: a file cannot be written.
    """
    points = [point.representative for point in result.points]
    paths = [folder / f"{name}{suffix}.{form}" for name in (SPEED_MEMORY, HEAT_MAP)]
    if all(measurement.outcome is Outcome.SKIPPED for measurement in points):
        for path in paths:
            path.unlink(missing_ok=True)
        return []
    # Imported here to save its time in commands that draw nothing.
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    rows = _rows(points)
    row_ids = {layout.id for layout in rows}
    cells = [measurement for measurement in points if measurement.layout.id in row_ids]
    best, recipe = result.winner, result.recipe
    mark = f"MINIATURE of {recipe.miniature_of}: " if points[0].miniature else ""
    of_what = f"{mark}{recipe.label}\non {cluster.label_under(points[0].cap_gib)}"
    draws: tuple[tuple[str, tuple[float, float], str, Callable[[Axes], None]], ...] = (
        ("Speed against memory", (9.0, 5.6), "", lambda axes: _speed_memory(axes, points, best, cluster)),
        (
            "Layouts by micro-batch: tokens/s",
            _heat_map_in(cells, rows),
            "\n".join(_heat_map_notes(cells, points)),
            lambda axes: _heat_map(axes, cells, rows, best),
        ),
    )
    for path, (title, (width, height), notes, draw_panel) in zip(paths, draws, strict=True):
        engine = ConstrainedLayoutEngine(w_pad=_EDGE_IN, rect=(0, 0, 1, 1 - _HEAD_IN / height))
        show_dollars()
        picture = Figure(figsize=(width, height), dpi=130, layout=engine)
        axes = picture.subplots()
        left = _EDGE_IN / width
        picture.text(left, 1 - 0.1 / height, title, va="top", fontsize=12, fontweight="bold", color=_INK)
        picture.text(left, 1 - 0.4 / height, of_what, va="top", fontsize=8, color=_FAINT)
        if notes:
            picture.supxlabel(notes, x=left, ha="left", fontsize=8, color=_FAINT)
        draw_panel(axes)
        with replacing(path) as part:
            picture.savefig(part, format=form)
    return paths


def _rows(points: Sequence[Measurement]) -> list[Layout]:
    """Returns the heat map's layouts: the fastest first, then failed ones, then a few that never ran."""
    speed: dict[str, tuple[bool, bool, float]] = {}
    for point in points:
        rank = (point.outcome is not Outcome.SKIPPED, point.outcome in TIMED, _speed(point))
        speed[point.layout.id] = max(rank, speed.get(point.layout.id, rank))
    layouts = {point.layout.id: point.layout for point in points}
    order = sorted(layouts.values(), key=lambda layout: speed[layout.id], reverse=True)
    num_ran = sum(has_run for has_run, _, _ in speed.values())
    return [*order[:num_ran][:_MOST_ROWS], *order[num_ran:][:_MOST_NEVER_RUN]]


def _heat_map_in(cells: Sequence[Measurement], rows: Sequence[Layout]) -> tuple[float, float]:
    """Returns the size of a heat map in inches, with room for the longest label and for two lines in each cell."""
    columns = len({cell.batch.micro_batch for cell in cells})
    longest = max(len(layout.label) for layout in rows)
    return max(8.0, 0.6 + 0.062 * longest + 1.05 * columns), _HEAD_IN + 1.0 + 0.36 * len(rows)


def _speed(measurement: Measurement) -> float:
    """Returns tokens/s; 0 if there is no finite figure."""
    speed = measurement.tokens_per_s
    return speed if speed is not None and math.isfinite(speed) else 0.0


def _color(measurement: Measurement) -> str:
    return COLORS.get(measurement.outcome, _FAILED)


def _speed_memory(axes: "Axes", points: Sequence[Measurement], best: Measurement | None, cluster: Cluster) -> None:
    """Draws a dot for each timed point, and out-of-memory points at 0 tokens/s and the memory that they needed."""
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D

    limit = min([cluster.device_memory_gib, *(point.cap_gib for point in points if point.cap_gib is not None)])
    timed = [point for point in points if _speed(point) and point.peak_allocated_gib is not None]
    ladders: dict[str, list[Measurement]] = {}
    dots_by_style: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in sorted(timed, key=lambda m: m.batch.micro_batch):
        ladders.setdefault(measurement.layout.id, []).append(measurement)
        dots_by_style.setdefault((_MARKERS.get(measurement.layout.rules.name, "o"), _color(measurement)), []).append(
            measurement
        )
    # Drawn in one artist for each style, because thousands of artists take matplotlib half a minute.
    joined = [list(zip(*_places(ladder), strict=True)) for ladder in ladders.values() if len(ladder) > 1]
    style: Any = {"capstyle": "projecting", "joinstyle": "round"}  # as `plot` draws them
    axes.add_collection(LineCollection(joined, colors=_GRID, linewidths=1, zorder=1, **style))
    for (marker, color), dots in dots_by_style.items():
        axes.plot(*_places(dots), marker, color=color, ms=6, mec="white", mew=0.6, zorder=3)
    crashed = [point for point in points if point.outcome is Outcome.OOM]
    needed = [_needed_gib(measurement, limit) for measurement in crashed]
    axes.plot(needed, [0.0] * len(needed), "x", color=COLORS[Outcome.OOM], ms=7, mew=1.6, zorder=3, clip_on=False)
    if best is not None and best.peak_allocated_gib is not None:
        axes.plot(best.peak_allocated_gib, _speed(best), "o", mfc="none", mec=_INK, ms=13, zorder=4)
    axes.axvline(limit, color=COLORS[Outcome.OOM], lw=1, ls="--", zorder=0)
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.15 * max((_speed(measurement) for measurement in timed), default=1.0))
    _name_dots(axes, timed if len(timed) <= _MOST_NAMED else (), best)
    ringed = f"\nringed: the winner, {best.layout.label}, micro-batch {best.batch.micro_batch}" if best else ""
    axes.set_xlabel(f"GiB allocated at most, on the fullest device; dashed: the limit, {figure(limit)} GiB{ringed}")
    axes.set_ylabel("tokens/s, all devices; small figures: micro-batch")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    _plain(axes)
    axes.grid(True, color=_GRID, lw=0.6)
    outcomes = list(dict.fromkeys(measurement.outcome for measurement in (*timed, *crashed)))
    labels = sorted({measurement.layout.rules.name for measurement in timed})
    axes.legend(
        handles=[
            *(
                Line2D([], [], ls="", marker="x" if o is Outcome.OOM else "o", color=COLORS.get(o, _FAILED), label=o)
                for o in sorted(outcomes)
            ),
            *(Line2D([], [], ls="", marker=_MARKERS.get(e, "o"), mfc="none", mec=_FAINT, label=e) for e in labels),
        ],
        loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False, labelcolor=_INK,
    )  # fmt: skip


def _needed_gib(crashed: Measurement, limit_gib: float) -> float:
    """Returns the memory that a point held and requested when it ran out; the limit if unknown."""
    held_gib = crashed.allocated_gib if crashed.allocated_gib is not None else crashed.reserved_gib
    return limit_gib if held_gib is None else held_gib + (crashed.asked_gib or 0.0)


def _name_dots(axes: "Axes", dots: Sequence[Measurement], best: Measurement | None) -> None:
    """Writes each dot's micro-batch beside it without overlaps, the winner's outside of its ring."""
    width, height = axes.get_xlim()[1], axes.get_ylim()[1]
    label_places: list[tuple[float, float]] = []
    for measurement in sorted(dots, key=lambda dot: dot is not best):
        position = (measurement.peak_allocated_gib or 0.0, _speed(measurement))
        if any(
            abs(position[0] - x) < _LABEL[0] * width and abs(position[1] - y) < _LABEL[1] * height
            for x, y in label_places
        ):
            continue
        label_places.append(position)
        axes.annotate(
            str(measurement.batch.micro_batch), position, xytext=(9 if measurement is best else 5, -3),
            textcoords="offset points", fontsize=7, color=_FAINT,
        )  # fmt: skip


def _places(measurements: Sequence[Measurement]) -> tuple[list[float], list[float]]:
    return [measurement.peak_allocated_gib or 0.0 for measurement in measurements], [
        _speed(measurement) for measurement in measurements
    ]


def _heat_map(axes: "Axes", cells: Sequence[Measurement], rows: Sequence[Layout], best: Measurement | None) -> None:
    """Draws a cell for each point: its speed as shade and figure, or its outcome as a word."""
    from matplotlib.patches import Rectangle

    columns = sorted({cell.batch.micro_batch for cell in cells})
    row_by_id = {layout.id: row for row, layout in enumerate(rows)}
    fastest = max((_speed(cell) for cell in cells if cell.outcome in TIMED), default=0.0)
    for cell in cells:
        x, y = columns.index(cell.batch.micro_batch), row_by_id[cell.layout.id]
        timed = cell.outcome in TIMED
        share = _speed(cell) / fastest if timed and fastest else 1.0
        # Times that count have shades of one colour; each other outcome has its own colour, and hatching after a crash.
        hatch = "" if _speed(cell) or cell.outcome is Outcome.SKIPPED else "////"
        axes.add_patch(
            Rectangle(
                (x - 0.49, y - 0.48),
                0.98,
                0.96,
                fc=COLORS[Outcome.OK] if timed else _color(cell),
                alpha=0.15 + 0.85 * share**3,
                ec="none",
                lw=0,
            )
        )
        if hatch:
            axes.add_patch(
                Rectangle((x - 0.49, y - 0.48), 0.98, 0.96, fill=False, hatch=hatch, ec=(1, 1, 1, 0.35), lw=0)
            )
        speed = "" if not _speed(cell) else figure(_speed(cell)) + ("~" if cell.step_time_derived else "")
        speed = f"({speed})" if cell.outcome is Outcome.SLOW and speed else speed
        word = {Outcome.OK: "", Outcome.SLOW: "", Outcome.OOM: "OOM"}.get(cell.outcome, cell.outcome.value)
        light = share > 0.9 if timed else bool(hatch)
        axes.text(
            x, y, f"{speed}\n{word}".strip(), ha="center", va="center", fontsize=7.5, linespacing=0.95,
            color="white" if light else _INK, fontweight="bold" if word == "OOM" else "normal",
        )  # fmt: skip
        if best is not None and (cell.layout, cell.batch) == (best.layout, best.batch):
            axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, fill=False, ec=_INK, lw=2, zorder=4))
    axes.set_xticks(range(len(columns)), [str(column) for column in columns])
    axes.set_yticks(range(len(rows)), [layout.label for layout in rows], fontsize=8)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    # The axis is at the top, near the fastest layouts; the lower rows may be a screen away.
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel("micro-batch")
    _plain(axes)


def _heat_map_notes(cells: Sequence[Measurement], points: Sequence[Measurement]) -> Iterator[str]:
    """Yields the notes below a heat map of `cells`: its signs, and the number of layouts of `points` left out."""
    derived = "; ~ derived" if any(cell.step_time_derived for cell in cells) else ""
    slow = "; (in brackets): slow, stopped early" if any(cell.outcome is Outcome.SLOW for cell in cells) else ""
    yield f"framed: the winner; hatched: crashed; blank: not tried{slow}{derived}"
    measured_layouts = {point.layout.id for point in points if point.outcome is not Outcome.SKIPPED}
    missing = {point.layout.id for point in points} - {cell.layout.id for cell in cells}
    if slower := missing & measured_layouts:
        yield f"left out: {plural(len(slower), 'layout')} that ran slower or crashed"
    if never := missing - measured_layouts:
        yield f"left out: {plural(len(never), 'layout')} that never ran"


def _plain(axes: "Axes") -> None:
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, length=0, labelsize=8)
    for side in axes.spines.values():
        side.set_visible(False)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=_FAINT, fontsize=8)
