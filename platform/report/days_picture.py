"""Draws training days and scaling efficiency against the number of devices, predicted or measured."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from platform.common.errors import InputError
from platform.common.text import figure
from platform.report.image_formats import show_dollars

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LINE, _BAND = "#1f5f99", "#cfe2f3"
_MOST_LABELS = 12
"""Largest number of labels beside each other."""
_LABEL = 0.03
"""Half of a label's width, as a share of the axis between the outermost points."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Days:
    """The training time on one number of devices, with its interval."""

    num_devices: int
    days: float
    low_days: float
    high_days: float


def draw_days(
    points: Sequence[Days], path: Path, *, title: str, line: str, band: str, devices: str = "GPU", note: str = ""
) -> None:
    """Draws days and scaling efficiency against devices, each with its interval as a band, and writes the picture to
    `path`.

    Days have logarithmic axes, where ideal scaling is a straight line. Efficiency is device-days on the fewest devices
    over device-days on each number of devices. `line` and `band` are the legend's texts; `note` stands below the axis
    of devices.

    Raises:
        InputError: `points` is empty, or the file cannot be written.
    """
    from matplotlib.figure import Figure

    if not points:
        raise InputError("there is nothing to draw: no size has a time")
    show_dollars()
    drawing = Figure(figsize=(8, 7), layout="constrained")
    above, below = drawing.subplots(2, 1, sharex=True)
    fewest = points[0].days * points[0].num_devices
    days = [(point.days, point.low_days, point.high_days) for point in points]
    efficiency = [
        tuple(fewest / point.num_devices / days_taken for days_taken in interval_days)
        for point, interval_days in zip(points, days, strict=True)
    ]
    counts = [point.num_devices for point in points]
    labelled = _spaced(counts)
    proportional = [fewest / count for count in counts]
    tops = [max(drawn) for drawn in zip(proportional, *zip(*days, strict=True), strict=True)]
    _draw_curve(above, counts, days, line=line, band=band)
    _label(above, counts, days, labelled, figure, edge=tops, above=True)
    _draw_curve(below, counts, efficiency, line=line, band=band)
    _label(
        below, counts, efficiency, labelled, "{:.0%}".format, edge=[min(shares) for shares in efficiency], above=False
    )
    above.plot(counts, proportional, "--", color="#888888", lw=1, label=f"in proportion to the fewest {devices}s")
    above.legend(frameon=False, fontsize=9)
    above.set_ylabel("days")
    below.set_ylabel("scaling efficiency")
    below.set_ylim(0, 1.15 * max(1.0, *(value for shares in efficiency for value in shares)))
    below.set_xlabel(f"{devices}s, below them {devices}-days" + (f"\n({note})" if note else ""))
    texts = [f"{point.num_devices:,}\n{figure(point.days * point.num_devices)}" for point in points]
    _set_ticks(above, below, {counts[place]: texts[place] for place in labelled})
    drawing.suptitle(title, fontsize=11)
    try:
        drawing.savefig(path, dpi=150)
    except OSError as error:
        raise InputError(f"the picture {path} cannot be written: {error.strerror or error}") from error


def _spaced(counts: Sequence[int]) -> list[int]:
    """Returns the indices of `counts` whose labels fit beside each other on a logarithmic axis, with both ends."""
    room = math.log(counts[-1] / counts[0]) / _MOST_LABELS
    places = [0]
    for place in range(1, len(counts) - 1):
        if min(math.log(counts[place] / counts[places[-1]]), math.log(counts[-1] / counts[place])) >= room:
            places.append(place)
    return [*places, len(counts) - 1] if len(counts) > 1 else places


def _draw_curve(
    axes: "Axes", counts: Sequence[int], values: Sequence[tuple[float, ...]], *, line: str, band: str
) -> None:
    """Draws `values` (middle and both ends of the interval) against the numbers of devices."""
    middle, one_end, other_end = zip(*values, strict=True)
    axes.fill_between(counts, one_end, other_end, color=_BAND, lw=0, label=band)
    axes.plot(counts, middle, "o-", color=_LINE, lw=1.8, ms=5, label=line)
    axes.grid(True, which="both", color="#e4e4e4", lw=0.6)
    axes.set_axisbelow(True)
    axes.margins(x=0.08, y=0.12)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _label(
    axes: "Axes",
    counts: Sequence[int],
    values: Sequence[tuple[float, ...]],
    labelled: Sequence[int],
    text_of: Callable[[float], str],
    *,
    edge: Sequence[float],
    above: bool,
) -> None:
    """Writes the middle values outside of the drawn curves, above or below `edge`.

    `edge` holds the upper ends of all that is drawn if `above`, else the lower ends. Labels above stand to the right of
    their point, because days fall towards the right.
    """
    logs = np.log(counts)
    half = _LABEL * (logs[-1] - logs[0])
    for place in labelled:
        # A label below the band covers some width of it, so it is placed below the band's lowest point in that width.
        lowest = min(edge[place], *np.interp([logs[place] - half, logs[place] + half], logs, edge))
        position = (counts[place], edge[place] if above else lowest)
        shift, ha, va = ((0, 4), "left", "bottom") if above else ((0, -4), "center", "top")
        text = text_of(values[place][0])
        axes.annotate(text, position, xytext=shift, textcoords="offset points", ha=ha, va=va, fontsize=8)


def _set_ticks(above: "Axes", below: "Axes", ticks: Mapping[int, str]) -> None:
    """Sets scales and ticks: the given numbers of devices, plain figures for days, per cent for efficiency."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, PercentFormatter

    for axes in (above, below):
        axes.set_xscale("log")
    above.set_yscale("log")
    above.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    above.yaxis.set_minor_locator(NullLocator())
    above.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    below.yaxis.set_major_formatter(PercentFormatter(1.0))
    below.xaxis.set_major_locator(NullLocator())
    below.set_xticks(list(ticks), list(ticks.values()))
    below.xaxis.set_minor_locator(NullLocator())
