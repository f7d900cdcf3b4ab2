"""The comparison as a picture: held-out and training loss against tokens and against hours, one colour for each
strategy.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from platform.converging.curves import Curves
from platform.converging.verdict import mean_curve
from platform.reports.html.chart import INK, LINES, plain, scale
from platform.study.replace import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SMOOTHED = 50
"""Number of points in a smoothed training loss: each is the mean of its neighbours."""


def draw(trainings: Mapping[str, Mapping[int, Curves]], path: Path, *, title: str) -> Path:
    """Writes the picture in the format of its suffix; thick lines are means over seeds, thin lines single seeds."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(11, 8), dpi=130, layout="constrained")
    panels = drawing.subplots(2, 2, sharey="row")
    curves_by_name = {name: list(of.values()) for name, of in trainings.items() if of}
    for (row, held_out), (column, unit) in (
        (r, c) for r in enumerate((True, False)) for c in enumerate(("tokens", "hours"))
    ):
        axes = panels[row][column]
        _draw_panel(axes, curves_by_name, held_out=held_out, unit=unit)
        axes.set_xlabel("tokens" if unit == "tokens" else "hours of training, without start-ups")
        axes.set_ylabel("" if column else f"{'held-out' if held_out else 'training'} loss (nats a token)")
        scale(axes, log_x=False, log_y=False)
        plain(axes)
    handles, labels = panels[0][0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower left", frameon=False, labelcolor=INK)
    drawing.suptitle(title, fontsize=11)
    with replacing(path) as part:
        drawing.savefig(part, format=path.suffix[1:])
    return path


def _draw_panel(axes: "Axes", curves_by_name: Mapping[str, list[Curves]], *, held_out: bool, unit: str) -> None:
    for number, (name, of) in enumerate(curves_by_name.items()):
        color = LINES[number % len(LINES)]
        curves = [_curve(each, held_out=held_out, unit=unit) for each in of]
        curves = [(xs, ys) for xs, ys in curves if xs]
        if not curves:
            continue
        if len(curves) > 1:
            for xs, ys in curves:
                axes.plot(xs, ys, color=color, lw=0.6, alpha=0.5)
        marks = "o" if held_out else ""
        axes.plot(*mean_curve(curves), marker=marks, color=color, lw=1.8, ms=3, label=name)


def _curve(each: Curves, *, held_out: bool, unit: str) -> tuple[list[float], list[float]]:
    if held_out:
        return list(each.val_tokens if unit == "tokens" else each.val_hours), list(each.val_losses)
    xs, ys = list(each.tokens if unit == "tokens" else each.hours), list(each.losses)
    of_each = max(1, len(xs) // _SMOOTHED)
    parts = [slice(i, i + of_each) for i in range(0, len(xs), of_each)]
    return [xs[part][-1] for part in parts], [sum(ys[part]) / len(ys[part]) for part in parts]
