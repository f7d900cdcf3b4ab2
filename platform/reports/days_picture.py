"""Days, GPU-days and scaling efficiency against GPUs as a picture, predicted or measured."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from platform.common.errors import InputError
from platform.common.text import figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LINE, _BAND = "#1f5f99", "#cfe2f3"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Days:
    """What training takes on one number of devices."""

    num_devices: int
    days: float
    low_days: float
    high_days: float


def draw_days(
    points: Sequence[Days], path: Path, *, title: str, line: str, band: str, devices: str = "GPU", note: str = ""
) -> None:
    """Both curves with their interval as a band: days on logarithmic axes, where perfect scaling is a straight line,
    device-days from zero, each with its efficiency: device-days on the fewest devices over these. `line` and `band`
    name them; `note` stands beside the axis of devices.

    Raises:
        InputError: there are no points, or the file cannot be written.
    """
    from matplotlib.figure import Figure

    if not points:
        raise InputError("there is nothing to draw: no size has a time")
    drawing = Figure(figsize=(8, 7), layout="constrained")
    above, below = drawing.subplots(2, 1, sharex=True)
    fewest = points[0].days * points[0].num_devices
    _draw_curve(above, points, lambda _: 1.0, figure, line=line, band=band)
    _draw_curve(
        below,
        points,
        lambda point: point.num_devices,
        lambda device_days: f"{figure(device_days)}\n{fewest / device_days:.0%}",
        line=line,
        band=band,
    )
    counts = [point.num_devices for point in points]
    above.plot(
        counts, [fewest / count for count in counts],
        "--", color="#888888", lw=1, label=f"in proportion to the fewest {devices}s",
    )  # fmt: skip
    above.legend(frameon=False, fontsize=9)
    above.set_ylabel("days")
    below.set_ylabel(f"{devices}-days, efficiency")
    below.set_ylim(0, 1.2 * max(point.num_devices * max(point.days, point.high_days) for point in points))
    below.set_xlabel(f"{devices}s" + (f" ({note})" if note else ""))
    _set_ticks(above, below, counts)
    drawing.suptitle(title, fontsize=11)
    try:
        drawing.savefig(path, dpi=150)
    except OSError as error:
        raise InputError(f"the picture {path} cannot be written: {error.strerror or error}") from error


def _draw_curve(
    axes: "Axes",
    points: Sequence[Days],
    weight: Callable[[Days], float],
    text_of: Callable[[float], str],
    *,
    line: str,
    band: str,
) -> None:
    """Days times `weight` against devices, with the interval; each value beside its mark, as text."""
    counts = [point.num_devices for point in points]
    middle, low, high = (
        [weight(point) * days for point, days in zip(points, values, strict=True)]
        for values in zip(*((point.days, point.low_days, point.high_days) for point in points), strict=True)
    )
    axes.fill_between(counts, low, high, color=_BAND, lw=0, label=band)
    axes.plot(counts, middle, "o-", color=_LINE, lw=1.8, ms=5, label=line)
    for count, days in zip(counts, middle, strict=True):
        axes.annotate(
            text_of(days), (count, days), xytext=(0, 8), textcoords="offset points", ha="center", fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
        )  # fmt: skip
    axes.grid(True, which="both", color="#e4e4e4", lw=0.6)
    axes.set_axisbelow(True)
    axes.margins(x=0.06, y=0.12)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _set_ticks(above: "Axes", below: "Axes", counts: Sequence[int]) -> None:
    """Scales and ticks: a tick for each count of devices, plain figures throughout."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    plain = FuncFormatter(lambda value, _: f"{value:,.10g}")
    for axes in (above, below):
        axes.set_xscale("log")
    above.set_yscale("log")
    above.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    above.yaxis.set_minor_locator(NullLocator())
    for axes in (above, below):
        axes.yaxis.set_major_formatter(plain)
    below.xaxis.set_major_locator(NullLocator())
    below.set_xticks(counts, [f"{count:,}" for count in counts])
    below.xaxis.set_minor_locator(NullLocator())
