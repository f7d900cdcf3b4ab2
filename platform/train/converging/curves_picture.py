"""Draws held-out and training loss against tokens and against hours, one colour for each strategy."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from platform.report.html.chart import INK, LINES, plain, scale
from platform.report.image_formats import show_dollars
from platform.study.atomic_write import replacing
from platform.train.converging.curves import Curves
from platform.train.converging.verdict import mean_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SMOOTHED = 50
"""Number of points in a smoothed training loss; each is the mean of consecutive steps."""
_SHOWN_FROM = 0.2
"""The loss axis fits a curve after this share of its tokens; the steep fall before would flatten the rest."""
_DASHES = ("-", "--", "-.", ":")
"""Line styles of strategies, so that overlapping lines stay visible."""


def draw(trainings: Mapping[str, Mapping[int, Curves]], path: Path, *, title: str) -> Path:
    """Writes the picture in its suffix' format; thick lines are means over seeds, thin lines single seeds."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    show_dollars()
    drawing = Figure(figsize=(11, 8), dpi=130, layout="constrained")
    panels = drawing.subplots(2, 2, sharey="row")
    curves_by_name = {
        name: list(curves_by_seed.values()) for name, curves_by_seed in trainings.items() if curves_by_seed
    }
    longest_h = max(
        (
            seed_curves.hours[-1]
            for strategy_curves in curves_by_name.values()
            for seed_curves in strategy_curves
            if seed_curves.hours
        ),
        default=0.0,
    )
    times = "hours" if longest_h > 1 else "minutes"
    for (row, held_out), (column, unit) in (
        (r, c) for r in enumerate((True, False)) for c in enumerate(("tokens", times))
    ):
        axes = panels[row][column]
        _draw_panel(axes, curves_by_name, held_out=held_out, unit=unit)
        axes.set_xlabel("tokens" if unit == "tokens" else f"{times} of training, without start-ups")
        axes.set_ylabel("" if column else f"{'held-out' if held_out else 'training'} loss (nats a token)")
        scale(axes, log_x=False, log_y=False)
        if unit == "tokens":
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        plain(axes)
    handles, labels = panels[0][0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower left", frameon=False, labelcolor=INK)
    drawing.suptitle(title, fontsize=11)
    with replacing(path) as part:
        drawing.savefig(part, format=path.suffix[1:])
    return path


def _draw_panel(axes: "Axes", curves_by_name: Mapping[str, list[Curves]], *, held_out: bool, unit: str) -> None:
    shown: list[float] = []
    for number, (name, strategy_curves) in enumerate(curves_by_name.items()):
        color = LINES[number % len(LINES)]
        curves = [_curve(seed_curves, held_out=held_out, unit=unit) for seed_curves in strategy_curves]
        curves = [(xs, ys) for xs, ys in curves if xs]
        if not curves:
            continue
        if len(curves) > 1:
            for xs, ys in curves:
                axes.plot(xs, ys, color=color, lw=0.6, alpha=0.5)
        marks = "o" if held_out else ""
        xs, ys = mean_curve(curves)
        dashes = _DASHES[number % len(_DASHES)]
        axes.plot(xs, ys, marker=marks, color=color, ls=dashes, lw=1.8, ms=3, label=name)
        shown += [y for x, y in zip(xs, ys, strict=True) if x >= _SHOWN_FROM * xs[-1] and math.isfinite(y)]
    if unit == "tokens" and shown and max(shown) > min(shown):
        room = 0.05 * (max(shown) - min(shown))
        axes.set_ylim(min(shown) - room, max(shown) + room)  # the panel of hours shares this axis


def _curve(curves: Curves, *, held_out: bool, unit: str) -> tuple[list[float], list[float]]:
    factor = 60.0 if unit == "minutes" else 1.0
    of_tokens, of_hours = (curves.val_tokens, curves.val_hours) if held_out else (curves.tokens, curves.hours)
    xs = list(of_tokens) if unit == "tokens" else [factor * hours for hours in of_hours]
    ys = list(curves.val_losses if held_out else curves.losses)
    if held_out:
        return xs, ys
    of_each = max(1, len(xs) // _SMOOTHED)
    parts = [slice(i, i + of_each) for i in range(0, len(xs), of_each)]
    return [xs[part][-1] for part in parts], [sum(ys[part]) / len(ys[part]) for part in parts]
