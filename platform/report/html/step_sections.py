"""Sections on the step: its parts, and predictions beside measurements."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from platform.report.forecast import forecaster_of
from platform.report.html.chart import FAINT, LINES, MOST_DRAWN, chart, legend_below, scale
from platform.report.html.elements import Block, Charts, Paragraph, blocks_of, headed
from platform.report.html.pareto import Group
from platform.report.profile import profile_parts
from platform.study.result.result import StudyResult
from trainers.records.measurement import TIMED, Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_BARS = 8


def where_the_step_goes(groups: Sequence[Group], results: Sequence[StudyResult]) -> Iterator[Block]:
    """Yields the parts of profiled winners' steps beside predictions, and timed parts of the fastest other steps."""
    for result in results:
        if parts := list(profile_parts(result)):
            yield from [*headed(result.header.name, results), *blocks_of(parts)]
    timed_of = [(group, _timed(group)) for group in groups if _timed(group)]
    for group, timed in timed_of:
        yield from headed(group.recipe.label, groups)
        yield Charts([("Measured parts of the fastest steps", _bars(group, timed))])
    if timed_of:
        words = "The last micro-step has the exchange of gradients in it. Parts were timed by events on the device."
        yield Paragraph(words, note=True)


def _timed(group: Group) -> list[Measurement]:
    timed = [run for run in group.measurements if run.outcome in TIMED and _parts(run)]
    return sorted(timed, key=lambda run: run.step_time_s or 0.0)[:_MOST_BARS]


def _parts(measurement: Measurement) -> dict[str, float]:
    """Returns the seconds of the step's timed parts; empty if they were not timed."""
    if not measurement.step_time_s or measurement.optimizer_step_s is None or measurement.last_micro_step_s is None:
        return {}
    others = max(0.0, measurement.step_time_s - measurement.last_micro_step_s - measurement.optimizer_step_s)
    return {
        "micro-steps but the last": others if measurement.batch.grad_accum > 1 else 0.0,
        "last micro-step": measurement.last_micro_step_s,
        "optimizer step": measurement.optimizer_step_s,
    }


def _bars(group: Group, timed: Sequence[Measurement]) -> str:
    def draw(axes: "Axes") -> None:
        left_edges = np.zeros(len(timed))
        rows = np.arange(len(timed))
        for number, name in enumerate(_parts(timed[0])):
            widths = np.array([_parts(measurement)[name] for measurement in timed])
            axes.barh(rows, widths, left=left_edges, height=0.55, color=LINES[number], label=name)
            left_edges = left_edges + widths
        for row, measurement in enumerate(timed):
            label = f"{measurement.layout.label}, micro-batch {measurement.batch.micro_batch}"
            axes.text(0, row - 0.36, label, fontsize=7, color=FAINT, va="bottom")
        axes.set_yticks([])
        axes.set_ylim(len(timed) - 0.5, -0.95)
        axes.set_xlabel("seconds of an optimizer step")
        legend_below(axes)

    return chart(f"Parts of the fastest steps, {group.recipe.label}", draw, height_in=1.3 + 0.42 * len(timed))


def predicted_and_measured(results: Sequence[StudyResult]) -> Iterator[Block]:
    """Yields predicted and measured step time and memory of each study, and the model's error."""
    predicted = [(result.header, blocks) for result in results if (blocks := _predicted(result))]
    for header, blocks in predicted:
        yield from headed(header.name, results)
        yield from blocks
    if not predicted and any(result.history.measurements for result in results):
        words = "The cost model predicts GPUs of its catalogue alone: there is nothing to compare on these devices."
        yield Paragraph(words)


def _predicted(result: StudyResult) -> list[Block]:
    """Returns the charts and the error of one study; empty if its devices are unknown CPUs or nothing was timed."""
    name, cluster = result.header.name, result.header.cluster
    timed = [run for run in result.history.measurements if run.outcome in TIMED and run.step_time_s and not run.repeat]
    forecaster = forecaster_of(result.header)
    prediction = forecaster.of(timed)
    if prediction is None:
        is_unknown = timed and cluster.device_kind == "cuda"
        return [Paragraph(f"{name}: the cost model does not know {cluster.device}.")] if is_unknown else []
    steps = np.array([run.step_time_s or 0.0 for run in timed])
    peaks = np.array([run.peak_allocated_gib or 0.0 for run in timed])
    has_peak = peaks > 0
    expected_steps, expected_peaks = prediction.step.total_s, prediction.memory.allocated_gib[has_peak]
    step_chart = _diagonal(f"{name}: step time", steps, expected_steps, "seconds")
    memory_chart = _diagonal(f"{name}: memory", peaks[has_peak], expected_peaks, "GiB allocated")
    step_error = float(np.median(np.abs(expected_steps / steps - 1)))
    memory_error = float(np.median(np.abs(expected_peaks / peaks[has_peak] - 1))) if has_peak.any() else 0.0
    return [
        Charts([("Step time", step_chart), ("Memory", memory_chart)]),
        Paragraph(
            f"Median error before anything was measured: step time {step_error:.1%}, memory {memory_error:.1%}."
            f" Step time with what the others taught: {forecaster.error(timed)}."
        ),
    ]


def _diagonal(name: str, measured: NDArray[np.float64], predicted: NDArray[np.float64], unit: str) -> str:
    def draw(axes: "Axes") -> None:
        both = np.concatenate([measured, predicted]) if len(measured) else np.ones(1)
        ends = [0.9 * float(both.min()), 1.1 * float(both.max())]
        axes.plot(ends, ends, "-", color=FAINT, lw=1)
        axes.plot(
            measured, predicted, "o", ms=4, alpha=0.7, mec="none", color=LINES[0], rasterized=len(measured) > MOST_DRAWN
        )
        wide = ends[1] > 10 * ends[0]
        scale(axes, log_x=wide, log_y=wide)
        axes.set_xlabel(f"measured, {unit}")
        axes.set_ylabel(f"predicted, {unit}")

    return chart(f"{name}, predicted against measured", draw)
