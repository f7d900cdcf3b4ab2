"""Draws matplotlib charts as SVG elements that can be inlined in HTML."""

import html
import io
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from platform.report.image_formats import show_dollars

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Curve = tuple[str, Sequence[float], Sequence[float]]
"""A name with its x and y values."""

INK, FAINT, GRID = "#1f2937", "#6b7280", "#e5e7eb"
LINES = ("#0f766e", "#b45309", "#1d4ed8", "#be185d", "#4d7c0f", "#7c3aed", "#0e7490", "#991b1b")
"""Line colours in order, repeated if there are more lines."""
MOST_DRAWN = 2000
"""Largest number of dots drawn as vectors; more are drawn as one image, which is smaller."""
_DOTS_PER_INCH = 200
_WIDTH_IN = 4.7
"""Width of a chart in inches, about that of a phone, so that letters keep their size in points there."""
_SIZE_PT = 8.5


def chart(name: str, draw: Callable[["Axes"], None], *, height_in: float = 3.2) -> str:
    """Returns the SVG of `draw`'s drawing on one pair of axes; `name` is its text for screen readers."""
    # Imported here to save its time in reports without a page.
    import matplotlib
    from matplotlib.figure import Figure

    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": name, "font.size": _SIZE_PT, "legend.fontsize": 7.5}
    with matplotlib.rc_context(settings):
        show_dollars()
        picture = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
        axes = picture.subplots()
        draw(axes)
        plain(axes)
        file = io.StringIO()
        picture.savefig(
            file,
            format="svg",
            dpi=_DOTS_PER_INCH,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    text = file.getvalue()
    svg = text[text.index("<svg") :]
    # The page sets the size; the viewBox keeps the proportions.
    svg = re.sub(r'\s(width|height)="[\d.]+pt"', "", svg, count=2)
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(name)}"', 1)


def plain(axes: "Axes") -> None:
    """Removes frame and tick marks, and adds a light grid."""
    axes.set_axisbelow(True)
    axes.grid(True, color=GRID, lw=0.6)
    axes.tick_params(colors=INK, length=0, labelsize=8)
    for side in axes.spines.values():
        side.set_visible(False)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=FAINT, fontsize=8)


def lines(
    name: str,
    curves: Sequence[Curve],
    *,
    x: str,
    y: str,
    log_x: bool = False,
    log_y: bool = False,
    ticks: Sequence[float] = (),
    marks: bool = True,
    zero: bool = False,
) -> str:
    """Returns a chart of curves. `ticks` are the labelled values of x; with `zero`, y begins at 0."""

    def draw(axes: "Axes") -> None:
        for number, (label, xs, ys) in enumerate(curves):
            style = "o-" if marks or len(xs) == 1 else "-"
            axes.plot(xs, ys, style, color=LINES[number % len(LINES)], ms=4, lw=1.4, label=label)
        scale(axes, log_x=log_x, log_y=log_y, ticks=ticks)
        if zero:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        if len(curves) > 1 or (curves and curves[0][0]):
            legend_below(axes)

    return chart(name, draw, height_in=3.2 + (0.17 * len(curves) if len(curves) > 1 else 0))


def scale(axes: "Axes", *, log_x: bool, log_y: bool, ticks: Sequence[float] = ()) -> None:
    """Sets plain (not exponential) figures on both axes, also on logarithmic ones."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    plain = FuncFormatter(lambda value, _: f"{value:,.6g}")
    if log_x:
        axes.set_xscale("log", base=2 if ticks else 10)
    if log_y:
        axes.set_yscale("log")
    if ticks:
        axes.set_xticks(ticks, [f"{tick:,.10g}" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_formatter(plain)
    axes.yaxis.set_major_formatter(plain)
    if log_y:
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:,.3g}"))
        axes.tick_params(axis="y", which="minor", labelsize=7)


def legend_below(axes: "Axes") -> None:
    """Puts the legend below the axes with one entry a line, because names of layouts may be as wide as the chart."""
    axes.figure.legend(loc="outside lower left", frameon=False, labelcolor=INK, ncols=1)  # type: ignore[reportAttributeAccessIssue]
