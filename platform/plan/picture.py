"""Draws predicted days and GPU-days against GPUs."""

from collections.abc import Sequence
from pathlib import Path

from platform.common.errors import InputError
from platform.cost_model.hardware import ClusterSpec
from platform.plan.planned import DAY_S, PredictedLayout
from platform.plan.sizes import AtSize
from platform.report.days_picture import Days, draw_days
from platform.report.image_formats import format_of


def check_path(path: Path) -> None:
    """Checks before the computation that a picture can be written to `path`.

    Raises:
        InputError: the format is not supported, or the folder does not exist.
    """
    format_of(path, "--png")
    if not path.parent.is_dir():
        raise InputError(f"the folder of --png {path} does not exist")


def draw_sizes(
    sizes: Sequence[AtSize], cluster: ClusterSpec, tokens: float, path: Path, *, title: str, basis: str
) -> None:
    """Draws the days of all sizes that have a layout, with the 80 % interval; `basis` names the source of the figures.

    Raises:
        InputError: nothing fits at any size, or the file cannot be written.
    """

    def days(planned: PredictedLayout, seconds: float) -> float:
        return tokens / planned.tokens_per_s * seconds / planned.step_s / DAY_S

    timed = [(size.num_devices, size.planned) for size in sizes if size.planned is not None]
    if not timed:
        raise InputError(f"there is nothing to draw: no size fits in memory ({sizes[-1].reason})")
    left_out = ", ".join(f"{size.num_devices:,}" for size in sizes if size.planned is None)
    draw_days(
        [
            Days(
                num_devices=count,
                days=days(planned, planned.step_s),
                low_days=days(planned, planned.low_s),
                high_days=days(planned, planned.high_s),
            )
            for count, planned in timed
        ],
        path,
        title=f"{title}\n{tokens / 1e9:,.4g} billion tokens; {basis}",
        line="best predicted layout",
        band="80 % interval",
        note=f"{cluster.device.name}, {cluster.devices_per_node} a node"
        + (f"; no layout on {left_out}" if left_out else ""),
    )
