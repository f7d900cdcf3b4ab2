"""Whether a training runs as fast as its search measured, and what keeps it from that. Pure, from the records."""

import dataclasses
import statistics
from collections.abc import Sequence

from platform.common.text import figure
from trainers.values.training import Begun, Record, Saved, Steps, Validated

TOLERANCE = 0.05
_LEAST_S = 60.0
"""Of steps, before anything is said: the first minutes warm up caches, clocks and compilers."""
_NOTABLE = 0.02
"""Share of the time from which on a cause is named."""
_SLOW = 0.95
"""Of the other devices' matrix products, or of those in the search."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Promise:
    """What the search measured."""

    tokens_per_s: float
    matmul_tflops: float | None
    """Of a device; None where it is not known."""


def shortfall(promise: Promise, records: Sequence[Record]) -> str:
    """A sentence on the throughput since the workers began, with its causes; "" where it is as promised, or too early.

    `records` are those of one attempt, from its `Begun` on.
    """
    begun = next((record for record in records if isinstance(record, Begun)), None)
    steps = [record for record in records if isinstance(record, Steps)][1:]  # the first ones warm up
    if begun is None or sum(each.steps_s for each in steps) < _LEAST_S:
        return ""
    tokens = sum(len(each.losses) * each.tokens_per_step for each in steps)
    steps_s = sum(each.steps_s for each in steps)
    first_s = steps[0].train_s - steps[0].steps_s
    wall_s = max(steps_s, steps[-1].train_s - first_s)
    speed = tokens / wall_s
    if speed >= promise.tokens_per_s * (1 - TOLERANCE):
        return ""
    besides = [record for record in records if isinstance(record, (Saved, Validated))]
    after = [record for record in besides if record.step >= steps[0].first_step]
    parts = _lost(after, steps, wall_s) + _devices(promise, begun)
    why = "; ".join(parts) or (
        "its steps take longer without a cause that is seen here: other work on the nodes or the network"
    )
    return (
        f"Throughput is {figure(speed)} tokens/s, {1 - speed / promise.tokens_per_s:.0%} below the"
        f" {figure(promise.tokens_per_s)} tokens/s of the search: {why}."
    )


def _lost(after: Sequence[Record], steps: Sequence[Steps], wall_s: float) -> list[str]:
    """Shares of the time that no step took, and of waiting for tokens, as far as they count."""
    shares = {
        "waiting for tokens (data)": sum(each.data_s for each in steps),
        "checkpoints": sum(each.stall_s for each in after if isinstance(each, Saved)),
        "held-out losses": sum(each.wall_s for each in after if isinstance(each, Validated)),
    }
    return [f"{seconds / wall_s:.0%} of the time goes to {name}" for name, seconds in shares.items()
            if seconds / wall_s >= _NOTABLE]  # fmt: skip


def _devices(promise: Promise, begun: Begun) -> list[str]:
    """Nodes whose devices multiply slower than the others', else all of them slower than in the search (clocks)."""
    usual = statistics.median(begun.matmul_tflops)
    slowest: dict[str, float] = {}
    for node, tflops in zip(begun.nodes, begun.matmul_tflops, strict=True):
        slowest[node] = min(slowest.get(node, tflops), tflops)
    found = [
        f"a device of node {node} reaches {tflops / usual:.0%} of the others' matrix products (slow node)"
        for node, tflops in slowest.items()
        if tflops < usual * _SLOW
    ]
    if not found and promise.matmul_tflops and usual < promise.matmul_tflops * _SLOW:
        found.append(f"the devices reach {usual / promise.matmul_tflops:.0%} of their matrix products in the search"
                     " (clocks, power, heat)")  # fmt: skip
    return found


def memory_growth(records: Sequence[Record]) -> str:
    """A sentence where the peak of memory still grew over the first 50 steps of an attempt; "" where it did not."""
    steps = [record for record in records if isinstance(record, Steps)]
    if not steps or steps[-1].last_step - steps[0].first_step < 49:
        return ""
    early = next(each for each in steps if each.last_step - steps[0].first_step >= 9)
    late = next(each for each in steps if each.last_step - steps[0].first_step >= 49)
    if late.peak_gib <= early.peak_gib * 1.01:
        return ""
    return (
        f"Memory grows: the peak is {early.peak_gib:.2f} GiB after step {early.last_step} and {late.peak_gib:.2f} GiB"
        f" after step {late.last_step}: the training may run out of memory later."
    )
