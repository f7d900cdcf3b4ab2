"""Lists what else differs between two measurements: devices, machine, versions, environment, commit."""

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence

from platform.common.text import figure
from trainers.values.codec import to_json
from trainers.values.journal import StudyHeader
from trainers.values.measurement import Measurement

_MACHINE: tuple[tuple[str, Callable[[Measurement], Sequence[float]], str], ...] = (
    ("clock of the slowest GPU", lambda each: each.sm_clock_mhz, " MHz"),
    ("power of all GPUs", lambda each: each.power_w, " W"),
    ("processors taken by other processes", lambda each: each.others_busy_pct, " %"),
    ("steal time", lambda each: each.steal_pct, " %"),
    ("clock of the processors", lambda each: each.cpu_clock_mhz, " MHz"),
)
"""Recorded quantities of the machine: name, values in a measurement, unit."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One thing that differs, or several that can only change together."""

    names: tuple[str, ...]
    values: str
    ratio: float | None = None
    """Step time with the change over that without it; None where unknown."""
    source: str = ""
    """Source of the ratio: "measured" or "predicted"; "" without one."""


def surroundings(first: Measurement, second: Measurement, headers: tuple[StudyHeader, StudyHeader]) -> Iterator[Change]:
    """Yields what differs apart from recipe, layout and batch point."""
    old, new = headers[0].cluster, headers[1].cluster
    if old != new:
        yield Change(names=("devices",), values=f"{old.label} to {new.label}")
    peaks = first.matmul_peak_tflops, second.matmul_peak_tflops
    if all(peaks) and abs((peaks[1] or 0.0) / (peaks[0] or 1.0) - 1) > 0.01:
        yield Change(names=("matmul peak",), values=f"{figure(peaks[0])} to {figure(peaks[1])} TFLOP/s a device")
    for name, of, unit in _MACHINE:
        then, now = of(first), of(second)
        if (
            then
            and now
            and abs(statistics.fmean(now) - statistics.fmean(then)) > 0.03 * max(statistics.fmean(then), 1.0)
        ):
            yield Change(
                names=(name,), values=f"{figure(statistics.fmean(then))} to {figure(statistics.fmean(now))}{unit}"
            )
    if first.held_back_by != second.held_back_by:
        held = (", ".join(each.held_back_by) or "nothing" for each in (first, second))
        yield Change(names=("clocks lowered by",), values=" to ".join(held))
    if first.step_time_derived != second.step_time_derived:
        kinds = ("derived" if each.step_time_derived else "timed whole" for each in (first, second))
        yield Change(names=("step time",), values=" to ".join(kinds))
    one, other = (to_json(each.conditions) if each.conditions else {} for each in (first, second))
    for part in ("versions", "environment"):
        before, after = one.get(part, {}), other.get(part, {})
        for name in sorted({*before, *after}):
            if one and other and before.get(name) != after.get(name):
                yield Change(names=(name,), values=f"{before.get(name, 'not set')} to {after.get(name, 'not set')}")
    if one and other and one["commit"] != other["commit"]:
        yield Change(names=("commit",), values=f"{one['commit']} to {other['commit']}")
    yield from _warnings(first, second)


def _warnings(first: Measurement, second: Measurement) -> Iterator[Change]:
    """Yields each warning that the workers of one alone were given, where both have them recorded."""
    given = [each.conditions.warnings if each.conditions else None for each in (first, second)]
    for place, which in enumerate(("first", "second")):
        mine, others = given[place], given[1 - place]
        if mine is None or others is None:
            return
        for text in mine:
            if text not in others:
                yield Change(names=(f"a warning to workers of the {which} alone",), values=text.rstrip("."))
