"""Counts the bytes of this process's CPU tensors by torch's allocator; the result is the same in every run."""

# pyright: reportPrivateUsage=false
import bisect
import ctypes
import dataclasses
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch._C._autograd as autograd
from torch._C._profiler import (
    ProfilerActivity,
    ProfilerConfig,
    ProfilerState,
    RecordScope,
    _EventType,
    _ExperimentalConfig,
)
from torch.profiler import record_function

_SWITCH = "FLAGS_caffe2_report_cpu_memory_usage"
"""Switch of c10 that makes the allocator count held memory over all threads. It costs about 1 microsecond per
allocation and release.
"""
_CONFIG = ProfilerConfig(ProfilerState.KINETO, False, True, False, False, False, _ExperimentalConfig())
_ACTIVITIES = {ProfilerActivity.CPU}
_MARK = 1
"""Size in bytes of the tensor that marks the beginning of a part."""
_PART = "begin of a part"
"""Name of the profiler range that marks the beginning of a part."""
_SCOPES = {RecordScope.USER_SCOPE}
"""Scopes for which the profiler records allocations and collectives but not operators, which would give many times as
many events.
"""
_COLLECTIVE = "gloo:"
"""Prefix of the names of gloo's collectives."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """An allocation, and the bytes that all tensors held including it."""

    at_ns: int
    requested_bytes: int
    held_bytes: int


class TensorBytes:
    """Counts allocations from its creation on; earlier tensors are ignored, also when they are freed.

    torch's profiler reports each allocation between `begin` and `end`, with the allocator's total. Two effects of
    gloo's threads are excluded, because their timing varies and GPU collectives lack them: memory that such a thread
    allocates (a second copy of a gathered tensor during the exchange), and the late release of a tensor after its
    collective.

    A range of the profiler (`record_function`, torch's optimizers) must not stay open from an `end` to the next
    `begin`: when it closes, torch writes its time into memory that `end` has freed. `begin_part` may be called within a
    range.
    """

    def __init__(self) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise each reading writes two lines to standard error
        ctypes.c_bool.in_dll(ctypes.CDLL("libc10.so"), _SWITCH).value = True
        self.is_counting = False
        self._is_in_range = False
        """Whether a range of the profiler was open at the last `end`."""

    def begin(self) -> None:
        """Starts to record allocations of this thread.

        Raises:
            RuntimeError: a range of the profiler was open at the last `end`.
        """
        if self.is_counting:
            self.end()
        if self._is_in_range:
            raise RuntimeError("a range of torch's profiler (record_function) was open at the end of a step: close it")
        autograd._prepare_profiler(_CONFIG, _ACTIVITIES)
        enable: Any = autograd._enable_profiler  # the type stub lacks the scopes
        enable(_CONFIG, _ACTIVITIES, _SCOPES)
        self.is_counting = True
        torch.empty(_MARK, dtype=torch.uint8)  # makes the first event one of this thread

    def begin_part(self) -> None:
        with record_function(_PART):
            pass
        torch.empty(_MARK, dtype=torch.uint8)

    def end(self) -> list[list[Allocation]]:
        """Returns this thread's allocations of each part, in order. A process that exits without calling it crashes."""
        with record_function(_PART):
            pass
        self.is_counting = False
        events = list(_with_children(autograd._disable_profiler().experimental_event_tree()))
        changes = [_change(event) for event in events if event.tag == _EventType.Allocation]
        ends_ns = sorted(event.end_time_ns for event in events if event.name.startswith(_COLLECTIVE))
        marks = sorted((event for event in events if event.name == _PART), key=lambda event: event.start_time_ns)
        self._is_in_range = marks[-1].parent is not None
        allocations = of_first_thread(sorted(changes, key=lambda change: change.at_ns), ends_ns)
        parts: list[list[Allocation]] = [[] for _ in marks]
        begins_ns = [mark.start_time_ns for mark in marks[:-1]]
        for allocation in allocations:
            parts[bisect.bisect_right(begins_ns, allocation.at_ns)].append(allocation)
        return parts

    def now(self) -> int:
        """Returns the bytes that all tensors hold now."""
        self.begin()
        ((mark,),) = self.end()
        return mark.held_bytes - _MARK


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AllocationChange:
    """An allocation or a release."""

    at_ns: int
    thread: int
    address: int
    size: int
    """Bytes; negative for a release."""
    held_bytes: int
    """Bytes that all tensors held afterwards."""


def _change(event: Any) -> AllocationChange:
    fields = event.extra_fields
    return AllocationChange(
        at_ns=event.start_time_ns,
        thread=event.start_tid,
        address=fields.ptr,
        size=fields.alloc_size,
        held_bytes=fields.total_allocated,
    )


def _with_children(events: Iterable[Any]) -> Iterator[Any]:
    for event in events:
        yield event
        yield from _with_children(event.children)


def of_first_thread(changes: Sequence[AllocationChange], ends_ns: Sequence[int]) -> list[Allocation]:
    """Returns the allocations of the first change's thread. Held bytes exclude memory of other threads, and memory that
    other threads released late, after the end of its collective; `ends_ns` are the ends of collectives.
    """
    allocations: list[Allocation] = []
    of_others: dict[int, int] = {}
    """Bytes by address."""
    held_bytes = changes[0].held_bytes - changes[0].size
    for change in _in_order(changes):
        if (freed := held_bytes + change.size - change.held_bytes) > 0:  # by an unreported thread
            number = bisect.bisect_right(ends_ns, change.at_ns)
            _free_since(ends_ns[number - 1] if number else change.at_ns, freed, allocations)
        held_bytes = change.held_bytes
        if change.thread == changes[0].thread:
            if change.size > 0:
                own_bytes = held_bytes - sum(of_others.values())
                allocations.append(Allocation(at_ns=change.at_ns, requested_bytes=change.size, held_bytes=own_bytes))
        elif change.size > 0:
            of_others[change.address] = change.size
        else:
            of_others.pop(change.address, None)
    return allocations


def _free_since(moment_ns: int, freed: int, allocations: list[Allocation]) -> None:
    """Subtracts the freed bytes from all allocations since the moment."""
    for number in reversed(range(len(allocations))):
        allocation = allocations[number]
        if allocation.at_ns < moment_ns:
            return
        allocations[number] = dataclasses.replace(allocation, held_bytes=allocation.held_bytes - freed)


def _in_order(changes: Sequence[AllocationChange]) -> Iterator[AllocationChange]:
    """Yields the changes in their true order. Recorded times are slightly late, and a thread may be interrupted in
    between; the next change is the change whose size explains the allocator's total.
    """
    by_thread: dict[int, deque[AllocationChange]] = {}
    for allocation_change in changes:
        by_thread.setdefault(allocation_change.thread, deque()).append(allocation_change)
    held_bytes = changes[0].held_bytes - changes[0].size
    while by_thread:
        heads = sorted((queue[0] for queue in by_thread.values()), key=lambda change: change.at_ns)
        follows = next((head for head in heads if held_bytes + head.size == head.held_bytes), heads[0])
        yield follows
        held_bytes = follows.held_bytes
        by_thread[follows.thread].popleft()
        if not by_thread[follows.thread]:
            del by_thread[follows.thread]
