"""Two pictures of a recipe's measurements: speed against memory, and which layouts ran at which micro-batch."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from platform.finals.ranking import winner
from platform.reports.points import one_a_point
from platform.reports.text import figure, plural
from platform.study.replace import replacing
from trainers.cluster import Cluster
from trainers.layout import Layout
from trainers.measurement import TIMED, Measurement, Outcome

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
"""What is not here is a failure of another kind."""
_FAILED = "#7c3aed"
_INK, _FAINT, _GRID = "#1f2937", "#6b7280", "#e5e7eb"
_MARKERS = {"ddp": "s", "fsdp": "o", "deepspeed": "D"}
_MOST_ROWS = 40
"""Layouts of a heat map, the fastest ones; the rest is counted."""
_MOST_NAMED = 500
"""Dots up to which each has its micro-batch beside it; of more nobody could read them."""


def draw(measurements: Sequence[Measurement], cluster: Cluster, folder: Path, suffix: str = "") -> list[Path]:
    """Both pictures of one recipe's measurements as PNG in `folder`; their paths. None where nothing was tried.

    Raises:
        InputError: a file cannot be written.
    """
    points = one_a_point(measurements)
    paths = [folder / f"{name}{suffix}.png" for name in (SPEED_MEMORY, HEAT_MAP)]
    if all(each.outcome is Outcome.SKIPPED for each in points):
        for path in paths:
            path.unlink(missing_ok=True)
        return []
    # Imported here: what only reads a study need not wait for it.
    from matplotlib.figure import Figure

    rows = _rows(points)
    sizes = {SPEED_MEMORY: (9.0, 5.6), HEAT_MAP: (0, 1.9 + 0.44 * len(rows))}
    best = winner(measurements)
    recipe = points[0].recipe
    mark = f"MINIATURE of {recipe.model.miniature_of}: " if points[0].miniature else ""
    of_what = f"{mark}{recipe.label}\non {cluster.label}"
    draws: tuple[tuple[str, Callable[[Axes], None]], ...] = (
        ("Speed against memory", lambda axes: _speed_memory(axes, points, best, cluster)),
        ("Layouts by micro-batch: tokens/s", lambda axes: _heat_map(axes, points, rows, best)),
    )
    for path, (title, drawn), size in zip(paths, draws, sizes.values(), strict=True):
        columns = len({each.batch.micro_batch for each in points})
        picture = Figure(figsize=(size[0] or max(8.0, 4.6 + 1.05 * columns), size[1]), dpi=130, layout="constrained")
        axes = picture.subplots()
        # The title holds room for the two smaller lines below it.
        picture.suptitle(f"{title}\n\n", x=0.01, ha="left", fontsize=12, fontweight="bold", color=_INK)
        top = 0.98 - 0.25 / picture.get_figheight()
        picture.text(0.01, top, of_what, ha="left", va="top", fontsize=8, color=_FAINT)
        drawn(axes)
        with replacing(path) as part:
            picture.savefig(part, format="png")
    return paths


def _rows(points: Sequence[Measurement]) -> list[Layout]:
    """Layouts, the fastest first; those that never gave a figure last."""
    speed: dict[str, tuple[bool, float]] = {}
    for each in points:
        mine = (each.outcome in TIMED, _speed(each))
        speed[each.layout.id] = max(mine, speed.get(each.layout.id, (False, 0.0)))
    layouts = {each.layout.id: each.layout for each in points}
    return sorted(layouts.values(), key=lambda layout: speed[layout.id], reverse=True)[:_MOST_ROWS]


def _speed(measurement: Measurement) -> float:
    """Tokens/s; 0 where there is none that can be drawn."""
    speed = measurement.tokens_per_s
    return speed if speed is not None and math.isfinite(speed) else 0.0


def _color(measurement: Measurement) -> str:
    return COLORS.get(measurement.outcome, _FAILED)


def _speed_memory(axes: "Axes", points: Sequence[Measurement], best: Measurement | None, cluster: Cluster) -> None:
    """A dot for each point that ran; what ran out of memory stands on the base line at what it would have needed."""
    from matplotlib.lines import Line2D

    limit = min([cluster.device_memory_gib, *(each.cap_gib for each in points if each.cap_gib is not None)])
    ran = [each for each in points if _speed(each) and each.peak_allocated_gib is not None]
    ladders: dict[str, list[Measurement]] = {}
    alike: dict[tuple[str, str], list[Measurement]] = {}
    for each in sorted(ran, key=lambda m: m.batch.micro_batch):
        ladders.setdefault(each.layout.id, []).append(each)
        alike.setdefault((_MARKERS.get(each.layout.engine, "o"), _color(each)), []).append(each)
    for ladder in ladders.values():
        axes.plot(*_places(ladder), color=_GRID, lw=1, zorder=1)
    for (marker, color), dots in alike.items():
        axes.plot(*_places(dots), marker, color=color, ms=6, mec="white", mew=0.6, zorder=3)
    for each in ran if len(ran) <= _MOST_NAMED else ():
        at = (each.peak_allocated_gib or 0.0, _speed(each))
        axes.annotate(
            str(each.batch.micro_batch), at, xytext=(5, -3), textcoords="offset points", fontsize=7, color=_FAINT
        )
    crashed = [each for each in points if each.outcome is Outcome.OOM]
    for each in crashed:
        held = each.allocated_gib if each.allocated_gib is not None else each.reserved_gib
        needed = limit if held is None else held + (each.asked_gib or 0.0)
        axes.plot(needed, 0, "x", color=COLORS[Outcome.OOM], ms=7, mew=1.6, zorder=3, clip_on=False)
    if best is not None and best.peak_allocated_gib is not None:
        axes.plot(best.peak_allocated_gib, _speed(best), "o", mfc="none", mec=_INK, ms=13, zorder=4)
    axes.axvline(limit, color=COLORS[Outcome.OOM], lw=1, ls="--", zorder=0)
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.15 * max((_speed(each) for each in ran), default=1.0))
    ringed = f"\nringed: the winner, {best.layout.label}, micro-batch {best.batch.micro_batch}" if best else ""
    axes.set_xlabel(f"GiB allocated at most, on the fullest device; dashed: the limit, {figure(limit)} GiB{ringed}")
    axes.set_ylabel("tokens/s, all devices; small figures: micro-batch")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    _plain(axes)
    axes.grid(True, color=_GRID, lw=0.6)
    outcomes = list(dict.fromkeys(each.outcome for each in (*ran, *crashed)))
    engines = sorted({each.layout.engine for each in ran})
    axes.legend(
        handles=[
            *(
                Line2D([], [], ls="", marker="x" if o is Outcome.OOM else "o", color=COLORS.get(o, _FAILED), label=o)
                for o in sorted(outcomes)
            ),
            *(Line2D([], [], ls="", marker=_MARKERS.get(e, "o"), mfc="none", mec=_FAINT, label=e) for e in engines),
        ],
        loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False, labelcolor=_INK,
    )  # fmt: skip


def _places(measurements: Sequence[Measurement]) -> tuple[list[float], list[float]]:
    return [each.peak_allocated_gib or 0.0 for each in measurements], [_speed(each) for each in measurements]


def _heat_map(axes: "Axes", points: Sequence[Measurement], rows: Sequence[Layout], best: Measurement | None) -> None:
    """A cell for each point: its speed as shade and figure, or the word for what became of it."""
    from matplotlib.patches import Rectangle

    columns = sorted({each.batch.micro_batch for each in points})
    at = {layout.id: row for row, layout in enumerate(rows)}
    fastest = max((_speed(each) for each in points if each.outcome in TIMED), default=0.0)
    for each in points:
        if each.layout.id not in at:
            continue
        x, y = columns.index(each.batch.micro_batch), at[each.layout.id]
        timed = each.outcome in TIMED
        share = _speed(each) / fastest if timed and fastest else 1.0
        # Shades of one color for times that count; every other outcome has its own and, where it crashed, hatching.
        hatch = "" if _speed(each) or each.outcome is Outcome.SKIPPED else "////"
        axes.add_patch(
            Rectangle(
                (x - 0.49, y - 0.48),
                0.98,
                0.96,
                fc=COLORS[Outcome.OK] if timed else _color(each),
                alpha=0.15 + 0.85 * share**3,
                ec="none",
                lw=0,
            )
        )
        if hatch:
            axes.add_patch(
                Rectangle((x - 0.49, y - 0.48), 0.98, 0.96, fill=False, hatch=hatch, ec=(1, 1, 1, 0.35), lw=0)
            )
        speed = "" if not _speed(each) else figure(_speed(each)) + ("~" if each.step_time_derived else "")
        word = {Outcome.OK: "", Outcome.OOM: "OOM"}.get(each.outcome, each.outcome.value)
        light = share > 0.8 if timed else bool(hatch)
        axes.text(
            x, y, f"{speed}\n{word}".strip(), ha="center", va="center", fontsize=7.5, linespacing=0.95,
            color="white" if light else _INK, fontweight="bold" if word == "OOM" else "normal",
        )  # fmt: skip
        if best is not None and (each.layout, each.batch) == (best.layout, best.batch):
            axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, fill=False, ec=_INK, lw=2, zorder=4))
    left = len({each.layout.id for each in points}) - len(rows)
    more = f"; {plural(left, 'slower layout')} left out" if left else ""
    derived = "; ~ derived" if any(each.step_time_derived for each in points) else ""
    axes.set_xticks(range(len(columns)), [str(each) for each in columns])
    axes.set_yticks(range(len(rows)), [layout.label for layout in rows], fontsize=8)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(f"micro-batch (framed: the winner; hatched: crashed; blank: not tried{derived}{more})")
    _plain(axes)


def _plain(axes: "Axes") -> None:
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, length=0, labelsize=8)
    for side in axes.spines.values():
        side.set_visible(False)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=_FAINT, fontsize=8)
