"""Reads from torch.profiler's Chrome trace the work on the device, by kind and by part of a step.

On CUDA it reads CUPTI's records of the device; a kernel's launch, found by its correlation id, gives the operations and
ranges that it belongs to. On a CPU it reads the operations themselves: each moment belongs to the innermost operation
of any thread; time outside operations (Python, autograd's own work, waiting) is idle, or communication while gloo
communicates.
"""

import bisect
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainers.marks.kinds import COUNTING, MICRO_STEP, OPTIMIZER_STEP, SCHEDULE, axis_of, computes, is_product, kind_of
from trainers.records.sums import Axis, Busy, Kind, Sums, mean, sum_between, whole_step

_HOST = frozenset({"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver"})
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


@dataclasses.dataclass(eq=False, slots=True)
class _Span:
    """A span on a thread of the host. Times in seconds."""

    name: str
    start_s: float
    end_s: float
    event: Mapping[str, Any]
    parent: "_Span | None" = None
    forward: "_Span | None" = None
    """The forward operation, if this is its backward node."""


def step_sums(
    trace: Mapping[str, Any], *, grad_accum: int, head_widths: frozenset[int] = frozenset(), default_group: str = ""
) -> Sums:
    """Returns the time by kind of one step of `grad_accum` micro-steps: the mean over the trace's steps without the
    first, which began on an idle device while the profiler was starting. A schedule covers a whole step, so its sums
    are not scaled.

    Products with an operand of a size in `head_widths` count as the head's, for code whose head no range can name.
    `default_group` names the mesh axes above 1, joined by "+", which the process group of all ranks spans.

    Raises:
        ValueError: the trace has fewer than two whole steps.
    """
    events: Sequence[Mapping[str, Any]] = trace["traceEvents"]
    threads = _threads(events)
    spans = [span for thread in threads for span in thread]
    _link(events, spans)
    parts = (COUNTING, MICRO_STEP, SCHEDULE, OPTIMIZER_STEP)
    ranges = sorted((span for span in spans if span.name in parts), key=lambda span: span.start_s)
    on_device = [event for event in events if event.get("ph") == "X" and event.get("cat") in _DEVICE]
    if on_device and ranges:
        busy, edges = _of_device(on_device, spans, ranges, head_widths, default_group)
    else:
        busy = [piece for thread in threads for piece in _of_thread(thread, head_widths, default_group)]
        edges = [span.start_s for span in ranges]
        edges += [span.end_s for span in ranges[-1:]]
    steps: list[Sums] = []
    micro_steps: list[Sums] = []
    schedules: list[Sums] = []
    counting = Sums()
    for number, span in enumerate(ranges):
        part = sum_between(busy, edges[number], edges[number + 1])
        if span.name == SCHEDULE:
            schedules.append(part)
        elif span.name == COUNTING:
            counting = part
        elif span.name == MICRO_STEP:
            micro_steps.append(part)
        else:
            counted = [micro_step + counting.times(1 / len(micro_steps)) for micro_step in micro_steps]
            steps.append(sum(schedules, part) if schedules else whole_step(counted, part, grad_accum))
            micro_steps, schedules, counting = [], [], Sums()
    if len(steps) < 2:
        raise ValueError(
            f"the trace holds {len(steps)} whole steps and needs at least 2, of which the first is left out"
        )
    return mean(steps[1:])


def has_kernels(trace: Mapping[str, Any]) -> bool:
    return any(event.get("cat") == "kernel" for event in trace["traceEvents"])


def _threads(events: Sequence[Mapping[str, Any]]) -> list[list[_Span]]:
    """Returns the host's spans by thread, ordered by start, each with its parent span."""
    threads: dict[tuple[Any, Any], list[_Span]] = {}
    for event in events:
        if event.get("ph") == "X" and event.get("cat") in _HOST:
            start_s = event["ts"] / 1e6
            span = _Span(name=event["name"], start_s=start_s, end_s=start_s + event["dur"] / 1e6, event=event)
            threads.setdefault((event["pid"], event["tid"]), []).append(span)
    for thread in threads.values():
        thread.sort(key=lambda span: (span.start_s, -span.end_s))
        stack: list[_Span] = []
        for span in thread:
            while stack and stack[-1].end_s <= span.start_s:
                stack.pop()
            span.parent = stack[-1] if stack else None
            stack.append(span)
    return list(threads.values())


def _link(events: Sequence[Mapping[str, Any]], spans: Sequence[_Span]) -> None:
    """Links backward nodes to their forward operations by the profiler's flow arrows."""
    ends: dict[Any, dict[str, tuple[Any, float]]] = {}
    for event in events:
        if event.get("cat") == "fwdbwd":
            ends.setdefault(event["id"], {})[event["ph"]] = (event["tid"], event["ts"])
    span_at = {(span.event["tid"], span.event["ts"]): span for span in spans}
    for arrow in ends.values():
        forward, backward = (span_at.get(arrow[end]) if end in arrow else None for end in ("s", "f"))
        if forward is not None and backward is not None:
            backward.forward = forward


def _around(span: _Span | None) -> list[_Span]:
    """Returns the span and all that enclose it, innermost last."""
    spans: list[_Span] = []
    while span is not None:
        spans.append(span)
        span = span.parent
    return spans[::-1]


def _kind(kernel: str, span: _Span | None, head_widths: frozenset[int]) -> Kind:
    around = _around(span)
    node = next((operation.forward for operation in reversed(around) if operation.forward is not None), None)
    return kind_of(
        kernel,
        [operation.name for operation in around],
        forward=[operation.name for operation in _around(node)],
        is_head=any(is_product(operation.name) and _has_width(operation, head_widths) for operation in around),
    )


def _axis(kernel: str, event: Mapping[str, Any], span: _Span | None, default_group: str) -> Axis:
    """Returns the mesh axis of communication; NCCL's kernels and operations carry their process group's description."""
    around = _around(span)
    descriptions = (
        trace_event.get("args", {}).get("Process Group Description", "")
        for trace_event in (event, *(operation.event for operation in around))
    )
    description = next(filter(None, descriptions), "")
    return axis_of(kernel, [operation.name for operation in around], description, default_group)


def _has_width(span: _Span, widths: frozenset[int]) -> bool:
    shapes: Any = span.event.get("args", {}).get("Input Dims", ())
    return bool(widths) and any(size in widths for shape in shapes for size in shape if isinstance(size, int))


def _of_thread(thread: Sequence[_Span], head_widths: frozenset[int], default_group: str) -> Iterator[Busy]:
    """Yields the work of a CPU's thread; each moment belongs to the innermost span."""
    pieces: list[tuple[float, float, _Span]] = []
    stack: list[_Span] = []
    reached_s = 0.0

    def until(moment_s: float) -> None:
        nonlocal reached_s
        if stack and moment_s > reached_s:
            pieces.append((reached_s, moment_s, stack[-1]))
        reached_s = max(reached_s, moment_s)

    for span in thread:
        while stack and stack[-1].end_s <= span.start_s:
            until(stack[-1].end_s)
            stack.pop()
        until(span.start_s)
        stack.append(span)
    while stack:
        until(stack[-1].end_s)
        stack.pop()

    @functools.cache
    def kind(span: _Span) -> tuple[Kind, Axis] | None:
        name = _kind(span.name, span, head_widths)
        if name == "communication":
            return name, _axis(span.name, span.event, span, default_group)
        return (name, "dp") if computes(span.name) else None

    for start_s, end_s, span in pieces:
        if (kind_of := kind(span)) is not None:
            yield Busy(start_s=start_s, end_s=end_s, kind=kind_of[0], axis=kind_of[1])


def _of_device(
    on_device: Sequence[Mapping[str, Any]],
    spans: Sequence[_Span],
    ranges: Sequence[_Span],
    head_widths: frozenset[int],
    default_group: str,
) -> tuple[list[Busy], list[float]]:
    """Returns the device's work, and where each range began on the device, with the end of the last one.

    A range begins with the first compute launched in it, because communication may be launched ahead. Work launched
    after the last range (reading losses) belongs to no step.
    """
    launches = {
        span.event.get("args", {}).get("correlation"): span for span in spans if span.event["cat"].startswith("cuda_")
    }
    starts_s = [span.start_s for span in ranges]
    busy: list[Busy] = []
    began_s: dict[int, float] = {}
    last_s = 0.0
    for event in on_device:
        launch = launches.get(event.get("args", {}).get("correlation"))
        kind = _kind(event["name"], launch, head_widths)
        start_s, end_s = event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6
        axis = _axis(event["name"], event, launch, default_group) if kind == "communication" else "dp"
        busy.append(Busy(start_s=start_s, end_s=end_s, kind=kind, axis=axis))
        if launch is None or launch.start_s <= ranges[-1].end_s:
            last_s = max(last_s, end_s)
        if launch is not None and kind != "communication":
            number = bisect.bisect_right(starts_s, launch.start_s) - 1
            began_s[number] = min(start_s, began_s.get(number, start_s))
    edges: list[float] = []
    for number in range(len(ranges)):
        least_s = edges[-1] if edges else 0.0
        edges.append(max(least_s, began_s.get(number, least_s)))
    return busy, [*edges, max([last_s, *edges[-1:]])]
