"""Computes the times of a series' values, counting back from the journal line's time by the steps' seconds."""

import datetime
import math
from collections.abc import Sequence

from trainers.records.journal import GateCurves, Profile
from trainers.records.measurement import Measurement

Series = tuple[tuple[int, float], ...]
"""Unix milliseconds and value, of steps, windows or ranks in order."""


def milliseconds(timestamp: str) -> int:
    return round(datetime.datetime.fromisoformat(timestamp).timestamp() * 1000)


def series_of(entry: Measurement | GateCurves | Profile, *, started_ms: int, ended_ms: int) -> dict[str, Series]:
    """Returns the metrics with several values: one for each step, window or rank.

    Lowered clocks have a series for each reason: 1 in a window with that reason, else 0.
    """

    def stamped(values: Sequence[float], seconds: Sequence[float]) -> Series:
        return tuple(zip(_ends(seconds, len(values), started_ms, ended_ms), values, strict=True))

    match entry:
        case Measurement():
            steps = entry.step_times_s
            windows = tuple(window_s * max(1, entry.steps_per_window) for window_s in entry.windows_s)
            series = {
                "loss": stamped(entry.losses, steps),
                "grad_norm": stamped(entry.grad_norms, steps),
                "step_times_s": stamped(steps, steps),
                "windows_s": stamped(entry.windows_s, windows),
                "sm_clock_mhz": stamped(entry.sm_clock_mhz, windows),
                "power_w": stamped(entry.power_w, windows),
                "others_gib": stamped(entry.others_gib, windows),
                "others_busy_pct": stamped(entry.others_busy_pct, windows),
                "steal_pct": stamped(entry.steal_pct, windows),
                "cpu_clock_mhz": stamped(entry.cpu_clock_mhz, windows),
                # One value for each rank, all at the same time.
                "utilization_by_device_pct": stamped(entry.utilization_by_device_pct, ()),
            }
            for reason in entry.held_back_by:
                is_held_back = tuple(float(reason in reasons.split(", ")) for reasons in entry.held_back)
                series[f"held_back_{reason.replace(' ', '_')}"] = stamped(is_held_back, windows)
        case GateCurves():
            steps = entry.step_times_s
            series = {"gate_loss": stamped(entry.losses, steps), "gate_grad_norm": stamped(entry.grad_norms, steps)}
        case Profile():
            series = {}
    return {name: values for name, values in series.items() if values}


def _ends(seconds: Sequence[float], count: int, started_ms: int, ended_ms: int) -> list[int]:
    """Returns the end time of each of `count` values, the last at `ended_ms`, as all are if `seconds` is unknown."""
    if len(seconds) != count or not all(map(math.isfinite, seconds)):
        return [ended_ms] * count
    ends: list[int] = []
    end_ms = float(ended_ms)
    for second in reversed(seconds):
        ends.append(max(started_ms, round(end_ms)))
        end_ms -= 1000 * second
    return ends[::-1]
