"""Sections on the step: where its time goes, and predictions beside measurements."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from platform.common.text import figure
from platform.report.forecast import forecaster_of
from platform.report.html.chart import FAINT, LINES, chart, legend_below, scale
from platform.report.html.elements import Section, figures, heading, paragraph, table
from platform.report.html.pareto import Group
from platform.report.profile import parts_of, predicted_step, profiled
from platform.study.result.result import StudyResult
from trainers.records.measurement import TIMED, Measurement

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_BARS = 8


def where_the_step_goes(groups: Sequence[Group], results: Sequence[StudyResult]) -> Section:
    """Returns the section on profiled winners part by part beside the cost model, and micro-steps and optimizer of the
    fastest others.
    """
    body = ""
    for result in results:
        for best, profile in profiled(result):
            whole_s = max(profile.sums.wall_s, 1e-12)
            body += heading(
                f"{result.header.name}: profile of {best.layout.label}, micro-batch {best.batch.micro_batch}"
            )
            parts = parts_of(profile, predicted_step(result.header, best))
            rows = [
                [
                    f"{'- ' if part.parent else ''}{part.name}{' (beside the rest)' if part.beside else ''}",
                    figure(1e3 * part.measured_s),
                    f"{part.measured_s / whole_s:.0%}",
                    "" if part.predicted_s is None else figure(1e3 * part.predicted_s),
                ]
                for part in parts
            ]
            body += table(("part", "measured ms", "of the step", "predicted ms"), rows)
    for group in groups:
        timed = [
            measurement for measurement in group.measurements if measurement.outcome in TIMED and _parts(measurement)
        ]
        timed.sort(key=lambda measurement: measurement.step_time_s or 0.0)
        if timed:
            body += heading(group.recipe.label) if len(groups) > 1 else ""
            body += figures([("Measured parts of the fastest steps", _bars(group, timed[:_MOST_BARS]))])
    if body:
        body += paragraph(
            "The last micro-step has the exchange of gradients in it. Parts were timed by events on the device.",
            note=True,
        )
    return Section(id="step", title="Where the step goes", body=body)


def _parts(measurement: Measurement) -> dict[str, float]:
    """Returns the seconds of the step's timed parts; empty where they were not timed."""
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


def predicted_and_measured(results: Sequence[StudyResult]) -> Section:
    """Returns the section on predicted and measured step time and memory, and on the model's error."""
    body = ""
    for result in results:
        timed = [
            measurement
            for measurement in result.history.measurements
            if measurement.outcome in TIMED and measurement.step_time_s
        ]
        timed = [measurement for measurement in timed if not measurement.repeat]
        forecaster = forecaster_of(result.header)
        prediction = forecaster.of(timed)
        if prediction is None:
            if timed and result.header.cluster.device_kind == "cuda":
                body += paragraph(f"{result.header.name}: the cost model does not know {result.header.cluster.device}.")
            continue
        steps, expected = (
            [measurement.step_time_s or 0.0 for measurement in timed],
            [float(total_) for total_ in prediction.step.total_s],
        )
        peaks = [
            (i, measurement.peak_allocated_gib) for i, measurement in enumerate(timed) if measurement.peak_allocated_gib
        ]
        gib = [float(predicted_gib) for predicted_gib in prediction.memory.allocated_gib]
        name, measured_gib, expected_gib = (
            result.header.name,
            [peak_gib for _, peak_gib in peaks],
            [gib[i] for i, _ in peaks],
        )
        body += heading(name) if len(results) > 1 else ""
        step_chart = _diagonal(f"{name}: step time", steps, expected, "seconds")
        memory_chart = _diagonal(f"{name}: memory", measured_gib, expected_gib, "GiB allocated")
        body += figures([("Step time", step_chart), ("Memory", memory_chart)])
        errors = np.abs(np.asarray(expected) / np.asarray(steps) - 1)
        memory = np.abs(np.asarray(expected_gib) / np.asarray(measured_gib) - 1) if peaks else np.zeros(1)
        body += paragraph(
            f"Median error before anything was measured: step time {np.median(errors):.1%}, memory"
            f" {np.median(memory):.1%}. Step time with what the others taught: {forecaster.error(timed)}."
        )
    if not body and any(result.history.measurements for result in results):
        body = paragraph(
            "The cost model predicts GPUs of its catalogue alone: there is nothing to compare on these devices."
        )
    return Section(id="predicted", title="Predicted against measured", body=body)


def _diagonal(name: str, measured: Sequence[float], predicted: Sequence[float], unit: str) -> str:
    def draw(axes: "Axes") -> None:
        ends = [min((*measured, *predicted), default=1.0) * 0.9, max((*measured, *predicted), default=1.0) * 1.1]
        axes.plot(ends, ends, "-", color=FAINT, lw=1)
        axes.plot(measured, predicted, "o", ms=4, alpha=0.7, mec="none", color=LINES[0])
        wide = ends[1] > 10 * ends[0]
        scale(axes, log_x=wide, log_y=wide)
        axes.set_xlabel(f"measured, {unit}")
        axes.set_ylabel(f"predicted, {unit}")

    return chart(f"{name}, predicted against measured", draw)
