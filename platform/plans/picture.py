"""Days and GPU-days against GPUs as a picture."""

from collections.abc import Callable, Sequence
from pathlib import Path

from platform.cost_model.hardware import ClusterSpec
from platform.errors import InputError
from platform.plans.layouts import DAY_S, Planned
from platform.plans.scaling import AtSize
from platform.plans.show import figure

_LINE, _BAND = "#1f5f99", "#cfe2f3"
_FORMATS = (".pdf", ".png", ".svg")


def check_path(path: Path) -> None:
    """That a picture can be written there, before anything is computed.

    Raises:
        InputError: no format that is drawn, or no such folder.
    """
    if path.suffix.lower() not in _FORMATS:
        raise InputError(f"--png wants a name that ends in {', '.join(_FORMATS)}, got {path}")
    if not path.parent.is_dir():
        raise InputError(f"the folder of --png {path} does not exist")


def draw_sizes(sizes: Sequence[AtSize], cluster: ClusterSpec, tokens: float, title: str, path: Path) -> None:
    """Both curves with the 80 % interval as a band: days on logarithmic axes, where perfect scaling is a straight line,
    GPU-days from zero.

    Raises:
        InputError: nothing fits at any size, or the file cannot be written.
    """
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    timed = [(size.num_devices, size.planned) for size in sizes if size.planned is not None]
    if not timed:
        raise InputError(f"there is nothing to draw: no size fits ({sizes[-1].reason})")
    counts = [count for count, _ in timed]
    plain = FuncFormatter(lambda value, _: f"{value:,.10g}")

    def curve(axes: Axes, value: Callable[[int, float], float], unit: str) -> None:
        """`value` of (GPUs, days), with its interval."""

        def of(seconds: Callable[[Planned], float]) -> list[float]:
            return [
                value(count, tokens / planned.tokens_per_s * seconds(planned) / planned.step_s / DAY_S)
                for count, planned in timed
            ]

        middle = of(lambda planned: planned.step_s)
        axes.fill_between(
            counts, of(lambda planned: planned.low_s), of(lambda planned: planned.high_s), color=_BAND, lw=0,
            label="80 % interval",
        )  # fmt: skip
        axes.plot(counts, middle, "o-", color=_LINE, lw=1.8, ms=5, label="best predicted layout")
        for count, days in zip(counts, middle, strict=True):
            axes.annotate(
                figure(days), (count, days), xytext=(0, 8), textcoords="offset points", ha="center", fontsize=8
            )
        axes.set_xscale("log")
        axes.set_ylabel(unit)
        axes.yaxis.set_major_formatter(plain)
        axes.grid(True, which="both", color="#e4e4e4", lw=0.6)
        axes.set_axisbelow(True)
        axes.margins(x=0.06, y=0.12)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)

    drawing = Figure(figsize=(8, 7), layout="constrained")
    above, below = drawing.subplots(2, 1, sharex=True)
    curve(above, lambda _, days: days, "days")
    curve(below, lambda count, days: count * days, "GPU-days")
    above.plot(
        counts, [(tokens / timed[0][1].tokens_per_s / DAY_S) * counts[0] / count for count in counts],
        "--", color="#888888", lw=1, label="in proportion to the fewest GPUs",
    )  # fmt: skip
    above.legend(frameon=False, fontsize=9)
    above.set_yscale("log")
    above.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    above.yaxis.set_minor_locator(NullLocator())
    above.yaxis.set_major_formatter(plain)
    below.set_ylim(bottom=0)
    left_out = ", ".join(f"{size.num_devices:,}" for size in sizes if size.planned is None)
    below.set_xlabel(
        f"GPUs ({cluster.device.name}, {cluster.devices_per_node} a node"
        + (f"; no layout on {left_out})" if left_out else ")")
    )
    below.xaxis.set_major_locator(NullLocator())
    below.set_xticks(counts, [f"{count:,}" for count in counts])
    below.xaxis.set_minor_locator(NullLocator())
    drawing.suptitle(f"{title}\n{tokens / 1e9:,.4g} billion tokens; predicted, nothing measured", fontsize=11)
    try:
        drawing.savefig(path, dpi=150)
    except OSError as error:
        raise InputError(f"the picture {path} cannot be written: {error.strerror or error}") from error
