"""Compares a training's throughput with what its search measured, and names the causes of a shortfall. Pure functions
of the records.
"""

import dataclasses
import statistics
from collections.abc import Sequence

from platform.common.text import figure
from trainers.records.training import Begun, Record, Saved, Steps, Validated

TOLERANCE = 0.05
_LEAST_S = 60.0
"""Time of steps before the first comparison: caches, clocks and compilers warm up in the first minute."""
_NOTABLE = 0.02
"""Least share of the time for which a cause is named."""
_SLOW = 0.95
"""Share of the other devices' matrix throughput, or of the search's, below which a device counts as slow."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Promise:
    """The figures that the search measured."""

    tokens_per_s: float
    matmul_tflops: float | None
    """Matrix throughput of a device; None where it was not measured."""


def shortfall(promise: Promise, records: Sequence[Record]) -> str:
    """Returns a sentence on the throughput since the workers began, with the causes of a shortfall; "" where there is
    none or it is too early to say.

    `records` are those of one attempt, from its `Begun` on.
    """
    first_record = next((record for record in records if isinstance(record, Begun)), None)
    steps = [record for record in records if isinstance(record, Steps)][1:]  # the first ones warm up
    if first_record is None or sum(step.steps_s for step in steps) < _LEAST_S:
        return ""
    tokens = sum(len(step.losses) * step.tokens_per_step for step in steps)
    steps_s = sum(step.steps_s for step in steps)
    first_s = steps[0].train_s - steps[0].steps_s
    wall_s = max(steps_s, steps[-1].train_s - first_s)
    speed = tokens / wall_s
    if speed >= promise.tokens_per_s * (1 - TOLERANCE):
        return ""
    besides = [record for record in records if isinstance(record, (Saved, Validated))]
    after = [record for record in besides if record.step >= steps[0].first_step]
    parts = _shares_outside_steps(after, steps, wall_s) + _slow_devices(promise, first_record)
    reasons = "; ".join(parts) or (
        "its steps take longer for no cause visible here: other work on the nodes or the network"
    )
    return (
        f"Throughput is {figure(speed)} tokens/s, {1 - speed / promise.tokens_per_s:.0%} below the"
        f" {figure(promise.tokens_per_s)} tokens/s of the search: {reasons}."
    )


def _shares_outside_steps(after: Sequence[Record], steps: Sequence[Steps], wall_s: float) -> list[str]:
    """Returns the shares of the time outside steps and of waiting for tokens, where they are notable."""
    shares = {
        "waiting for tokens (data)": sum(step.data_s for step in steps),
        "checkpoints": sum(record.stall_s for record in after if isinstance(record, Saved)),
        "held-out losses": sum(record.wall_s for record in after if isinstance(record, Validated)),
    }
    return [f"{seconds / wall_s:.0%} of the time goes to {name}" for name, seconds in shares.items()
            if seconds / wall_s >= _NOTABLE]  # fmt: skip


def _slow_devices(promise: Promise, first_record: Begun) -> list[str]:
    """Returns the nodes whose devices multiply matrices slower than the others; else a sentence where all are slower
    than in the search (clocks).
    """
    usual = statistics.median(first_record.matmul_tflops)
    slowest: dict[str, float] = {}
    for node, tflops in zip(first_record.nodes, first_record.matmul_tflops, strict=True):
        slowest[node] = min(slowest.get(node, tflops), tflops)
    causes = [
        f"a device of node {node} reaches {tflops / usual:.0%} of the others' matrix products (slow node)"
        for node, tflops in slowest.items()
        if tflops < usual * _SLOW
    ]
    if not causes and promise.matmul_tflops and usual < promise.matmul_tflops * _SLOW:
        causes.append(f"the devices reach {usual / promise.matmul_tflops:.0%} of their matrix products in the search"
                     " (clocks, power, heat)")  # fmt: skip
    return causes


def memory_growth(records: Sequence[Record]) -> str:
    """Returns a sentence where peak memory still grew over the first 50 steps of an attempt; "" where it did not."""
    steps = [record for record in records if isinstance(record, Steps)]
    if not steps or steps[-1].last_step - steps[0].first_step < 49:
        return ""
    early = next(step for step in steps if step.last_step - steps[0].first_step >= 9)
    late = next(step for step in steps if step.last_step - steps[0].first_step >= 49)
    if late.peak_gib <= early.peak_gib * 1.01:
        return ""
    return (
        f"Memory grows: the peak is {early.peak_gib:.2f} GiB after step {early.last_step} and {late.peak_gib:.2f} GiB"
        f" after step {late.last_step}: the training may run out of memory later."
    )
