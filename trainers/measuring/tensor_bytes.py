"""Bytes that this process's CPU tensors hold, counted by torch's own allocator: the same in every run."""

# pyright: reportPrivateUsage=false
import ctypes
import dataclasses
import os
from collections import deque
from collections.abc import Iterator, Sequence
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

_SWITCH = "FLAGS_caffe2_report_cpu_memory_usage"
"""Of c10: the allocator counts what is held, over all threads. About 1 microsecond for an allocation and its end."""
_CONFIG = ProfilerConfig(ProfilerState.KINETO, False, True, False, False, False, _ExperimentalConfig())
_ACTIVITIES = {ProfilerActivity.CPU}
_MARK = 1
"""Bytes of the tensor with which counting begins."""
_NO_OPERATORS = {RecordScope.STATIC_RUNTIME_OP}
"""The profiler then records allocations alone, which costs a step about 0.1 %."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """One tensor's memory asked for, and what all tensors held with it, in bytes."""

    asked: int
    held: int


class TensorBytes:
    """Counts from the moment it is made: what was allocated before is left out, then and when it is freed.

    torch's profiler reports each allocation between `begin` and `end`, with the allocator's sum. A tensor that a thread
    of gloo frees leaves the sum, too. What such a thread allocates does not count: it works with a copy of a gathered
    tensor, for as long as the network takes, which no GPU's collective does.
    """

    def __init__(self) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else each reading writes two lines on standard error
        ctypes.c_bool.in_dll(ctypes.CDLL("libc10.so"), _SWITCH).value = True
        self.is_counting = False

    def begin(self) -> None:
        """Starts to note what this thread allocates."""
        if self.is_counting:
            self.end()
        autograd._prepare_profiler(_CONFIG, _ACTIVITIES)
        enable: Any = autograd._enable_profiler  # its stub lacks the scopes
        enable(_CONFIG, _ACTIVITIES, _NO_OPERATORS)
        self.is_counting = True
        torch.empty(_MARK, dtype=torch.uint8)  # the first event is this thread's

    def end(self) -> list[Allocation]:
        """What this thread allocated since `begin`, in order. A process that ends without this crashes."""
        self.is_counting = False
        events: list[Any] = autograd._disable_profiler().experimental_event_tree()
        changes = [_change(each) for each in events if each.tag == _EventType.Allocation]
        return _of_this_thread(sorted(changes, key=lambda change: change.at_ns))

    def now(self) -> int:
        """Bytes held by all tensors."""
        self.begin()
        (mark,) = self.end()
        return mark.held - _MARK


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Change:
    """An allocation, or the end of one."""

    at_ns: int
    thread: int
    address: int
    size: int
    """Bytes, negative where they are freed."""
    held: int
    """What all tensors held after it."""


def _change(event: Any) -> _Change:
    fields = event.extra_fields
    return _Change(
        at_ns=event.start_time_ns,
        thread=event.start_tid,
        address=fields.ptr,
        size=fields.alloc_size,
        held=fields.total_allocated,
    )


def _of_this_thread(changes: Sequence[_Change]) -> list[Allocation]:
    """The allocations of the first change's thread, each without what other threads hold of their own."""
    found: list[Allocation] = []
    of_others: dict[int, int] = {}
    """Bytes by address."""
    for each in _in_order(changes):
        if each.thread == changes[0].thread:
            if each.size > 0:
                found.append(Allocation(asked=each.size, held=each.held - sum(of_others.values())))
        elif each.size > 0:
            of_others[each.address] = each.size
        else:
            of_others.pop(each.address, None)
    return found


def _in_order(changes: Sequence[_Change]) -> Iterator[_Change]:
    """The changes in the order in which they took place: their times are noted a moment later, and a thread may be
    interrupted in between. What follows a change holds as much more than it as it says.
    """
    by_thread: dict[int, deque[_Change]] = {}
    for each in changes:
        by_thread.setdefault(each.thread, deque()).append(each)
    held = 0
    while by_thread:
        heads = sorted((queue[0] for queue in by_thread.values()), key=lambda change: change.at_ns)
        follows = next((each for each in heads if held + each.size == each.held), heads[0])
        yield follows
        held = follows.held
        by_thread[follows.thread].popleft()
        if not by_thread[follows.thread]:
            del by_thread[follows.thread]
