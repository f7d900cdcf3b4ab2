"""Counts the bytes that this process's CPU tensors hold by torch's own allocator: the same in every run."""

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
"""Switch of c10 that makes the allocator count what is held, over all threads. It takes about 1 microsecond for an
allocation and its end.
"""
_CONFIG = ProfilerConfig(ProfilerState.KINETO, False, True, False, False, False, _ExperimentalConfig())
_ACTIVITIES = {ProfilerActivity.CPU}
_MARK = 1
"""Bytes of the tensor with which a part of the counting begins."""
_PART = "begin of a part"
"""Name of the range that is recorded where a part begins."""
_SCOPES = {RecordScope.USER_SCOPE}
"""Scopes with which the profiler records allocations and collectives but no operators, whose events would be many times
as many.
"""
_COLLECTIVE = "gloo:"
"""Prefix of the names of gloo's collectives."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """One allocation, and what all tensors held with it, in bytes."""

    at_ns: int
    requested_bytes: int
    held_bytes: int


class TensorBytes:
    """Counts from its creation on: earlier allocations are left out, then and when they are freed.

    torch's profiler reports each allocation between `begin` and `end`, with the allocator's sum. Two things that
    threads of gloo do are left out, since they last as long as the machine lets them, and no GPU's collective does
    them: what such a thread allocates (a gathered tensor a second time, while the network works), and that it lets go
    of a tensor some time after its collective has ended.

    A range of the profiler (`record_function`, torch's optimizers) must not be open from an `end` over the next
    `begin`: where it closes, torch writes its time into memory that `end` has freed. `begin_part` is for code that may
    run in such a range.
    """

    def __init__(self) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else each reading writes two lines on standard error
        ctypes.c_bool.in_dll(ctypes.CDLL("libc10.so"), _SWITCH).value = True
        self.is_counting = False
        self._is_in_range = False
        """Whether a range of the profiler was open at the last `end`."""

    def begin(self) -> None:
        """Starts to record what this thread allocates.

        Raises:
            RuntimeError: a range of the profiler was open where the last counting ended.
        """
        if self.is_counting:
            self.end()
        if self._is_in_range:
            raise RuntimeError("a range of torch's profiler (record_function) was open at the end of a step: close it")
        autograd._prepare_profiler(_CONFIG, _ACTIVITIES)
        enable: Any = autograd._enable_profiler  # its stub lacks the scopes
        enable(_CONFIG, _ACTIVITIES, _SCOPES)
        self.is_counting = True
        torch.empty(_MARK, dtype=torch.uint8)  # the first event is this thread's

    def begin_part(self) -> None:
        """Begins another part of the counting."""
        with record_function(_PART):
            pass
        torch.empty(_MARK, dtype=torch.uint8)

    def end(self) -> list[list[Allocation]]:
        """Returns what this thread allocated in each part, in order. A process that ends without this crashes."""
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
        """Returns the bytes held by all tensors."""
        self.begin()
        ((mark,),) = self.end()
        return mark.held_bytes - _MARK


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AllocationChange:
    """An allocation, or the end of one."""

    at_ns: int
    thread: int
    address: int
    size: int
    """Bytes, negative where they are freed."""
    held_bytes: int
    """Bytes that all tensors held after it."""


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
    """Returns the allocations of the first change's thread, each without other threads' own memory, and without what
    those freed after it for a collective that had ended before it. `ends_ns` are the ends of collectives.
    """
    allocations: list[Allocation] = []
    of_others: dict[int, int] = {}
    """Bytes by address."""
    held_bytes = changes[0].held_bytes - changes[0].size
    for change in _in_order(changes):
        if (freed := held_bytes + change.size - change.held_bytes) > 0:  # by a thread whose changes are not reported
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
    """Subtracts the bytes that were freed after the moment from all allocations since."""
    for number in reversed(range(len(allocations))):
        allocation = allocations[number]
        if allocation.at_ns < moment_ns:
            return
        allocations[number] = dataclasses.replace(allocation, held_bytes=allocation.held_bytes - freed)


def _in_order(changes: Sequence[AllocationChange]) -> Iterator[AllocationChange]:
    """Yields the changes in the order in which they took place: their times are recorded a moment later, and a thread
    may be interrupted in between. What follows a change must hold as much more as the change states.
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
