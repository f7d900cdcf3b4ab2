"""Lists differences between two measurements besides their points: devices, machine, versions, environment, commit."""

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence

from platform.common.text import figure
from trainers.records.journal import StudyHeader
from trainers.records.measurement import Measurement
from trainers.spec.codec import to_json

_MACHINE: tuple[tuple[str, Callable[[Measurement], Sequence[float]], str], ...] = (
    ("clock of the slowest GPU", lambda measurement: measurement.sm_clock_mhz, " MHz"),
    ("power of all GPUs", lambda measurement: measurement.power_w, " W"),
    ("GPU memory of other processes", lambda measurement: measurement.others_gib, " GiB"),
    ("processors taken by other processes", lambda measurement: measurement.others_busy_pct, " %"),
    ("steal time", lambda measurement: measurement.steal_pct, " %"),
    ("clock of the processors", lambda measurement: measurement.cpu_clock_mhz, " MHz"),
)
"""Recorded quantities of the machine: name, values in a measurement, unit."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentChange:
    """One change, or several that can only occur together."""

    names: tuple[str, ...]
    values: str
    ratio: float | None = None
    """Step time with the change over step time without it; None if unknown."""
    source: str = ""
    """Source of `ratio`: "measured" or "predicted"; "" without one."""


def surroundings(
    first: Measurement, second: Measurement, headers: tuple[StudyHeader, StudyHeader]
) -> Iterator[EnvironmentChange]:
    """Yields all differences except those of recipe, layout and batch point."""
    old, new = headers[0].cluster, headers[1].cluster
    if old != new:
        yield EnvironmentChange(names=("devices",), values=f"{old.label} to {new.label}")
    peaks = first.matmul_peak_tflops, second.matmul_peak_tflops
    if all(peaks) and abs((peaks[1] or 0.0) / (peaks[0] or 1.0) - 1) > 0.01:
        yield EnvironmentChange(
            names=("matmul peak",), values=f"{figure(peaks[0])} to {figure(peaks[1])} TFLOP/s a device"
        )
    for name, values_of, unit in _MACHINE:
        first_values, second_values = values_of(first), values_of(second)
        if (
            first_values
            and second_values
            and abs(statistics.fmean(second_values) - statistics.fmean(first_values))
            > 0.03 * max(statistics.fmean(first_values), 1.0)
        ):
            yield EnvironmentChange(
                names=(name,),
                values=f"{figure(statistics.fmean(first_values))} to {figure(statistics.fmean(second_values))}{unit}",
            )
    if first.held_back_by != second.held_back_by:
        held_back = (", ".join(measurement.held_back_by) or "nothing" for measurement in (first, second))
        yield EnvironmentChange(names=("clocks lowered by",), values=" to ".join(held_back))
    if first.step_time_derived != second.step_time_derived:
        kinds = ("derived" if measurement.step_time_derived else "timed whole" for measurement in (first, second))
        yield EnvironmentChange(names=("step time",), values=" to ".join(kinds))
    kernels = (first.sdpa_kernel, second.sdpa_kernel)
    if all(kernels) and kernels[0] != kernels[1]:
        yield EnvironmentChange(names=("torch's kernel of sdpa",), values=" to ".join(kernels))
    first_conditions, second_conditions = (
        to_json(measurement.conditions) if measurement.conditions else {} for measurement in (first, second)
    )
    for part in ("versions", "environment"):
        before, after = first_conditions.get(part, {}), second_conditions.get(part, {})
        for name in sorted({*before, *after}):
            if first_conditions and second_conditions and before.get(name) != after.get(name):
                yield EnvironmentChange(
                    names=(name,), values=f"{before.get(name, 'not set')} to {after.get(name, 'not set')}"
                )
    if first_conditions and second_conditions and first_conditions["commit"] != second_conditions["commit"]:
        yield EnvironmentChange(
            names=("commit",), values=f"{first_conditions['commit']} to {second_conditions['commit']}"
        )
    yield from _warnings(first, second)


def _warnings(first: Measurement, second: Measurement) -> Iterator[EnvironmentChange]:
    """Yields each warning that only one of the two measurements recorded, if both record warnings."""
    warnings = [measurement.conditions.warnings if measurement.conditions else None for measurement in (first, second)]
    for place, side in enumerate(("first", "second")):
        own_warnings, other_warnings = warnings[place], warnings[1 - place]
        if own_warnings is None or other_warnings is None:
            return
        for text in own_warnings:
            if text not in other_warnings:
                yield EnvironmentChange(names=(f"a warning to workers of the {side} alone",), values=text.rstrip("."))
