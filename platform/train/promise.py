"""Compares a training's throughput with its search's measurement and names causes of a shortfall. Pure functions."""

import dataclasses
import statistics
from collections.abc import Sequence

from platform.common.text import figure
from trainers.records.training import Begun, Record, Saved, Steps, Validated

TOLERANCE = 0.05
_LEAST_S = 60.0
"""Seconds of steps before the first comparison, because caches, clocks and compilers warm up in the first minute."""
_NOTABLE = 0.02
"""Least share of the time for which a cause is named."""
_SLOW = 0.95
"""A device is slow if its matrix throughput is below this share of the other devices' or of the search's."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Promise:
    """The figures measured by the search."""

    tokens_per_s: float
    matmul_tflops: float | None
    """TFLOP/s of a device in matrix products; None if not measured."""


def shortfall(promise: Promise, records: Sequence[Record]) -> str:
    """Returns a sentence on a throughput below the promise and its causes; "" if there is no shortfall or it is too
    early.

    `records` are those of one attempt, beginning with its `Begun`.
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
    """Returns notable shares of the time spent on checkpoints, held-out losses and waiting for tokens."""
    shares = {
        "waiting for tokens (data)": sum(step.data_s for step in steps),
        "checkpoints": sum(record.stall_s for record in after if isinstance(record, Saved)),
        "held-out losses": sum(record.wall_s for record in after if isinstance(record, Validated)),
    }
    return [f"{seconds / wall_s:.0%} of the time goes to {name}" for name, seconds in shares.items()
            if seconds / wall_s >= _NOTABLE]  # fmt: skip


def _slow_devices(promise: Promise, first_record: Begun) -> list[str]:
    """Returns a clause on each node with slower matrix products than the others, or on all being slower than before."""
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
    """Returns a sentence if peak memory grew by over 1 % from the 10th to the 50th step of an attempt; "" otherwise."""
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
