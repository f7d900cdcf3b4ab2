"""Bytes that this process's CPU tensors hold, counted by torch's own allocator: the same in every run."""

# pyright: reportPrivateUsage=false
import ctypes
import dataclasses
import os
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
_NO_OPERATORS = {RecordScope.STATIC_RUNTIME_OP}
"""The profiler then records allocations alone, which costs a step about 0.1 %."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Allocation:
    """One tensor's memory asked for, and what all tensors held with it, in bytes."""

    asked: int
    held: int


class TensorBytes:
    """Counts from the moment it is made: what was allocated before is left out, then and when it is freed.

    torch's profiler reports each allocation between `begin` and `end`, with the allocator's sum. A thread of gloo that
    frees a tensor is in the sum, too.
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

    def end(self) -> list[Allocation]:
        """What this thread allocated since `begin`, in order. A process that ends without this crashes."""
        self.is_counting = False
        events: list[Any] = autograd._disable_profiler().experimental_event_tree()
        return [
            Allocation(asked=fields.alloc_size, held=fields.total_allocated)
            for fields in (event.extra_fields for event in events if event.tag == _EventType.Allocation)
            if fields.alloc_size > 0
        ]

    def now(self) -> int:
        """Bytes held by all tensors."""
        self.begin()
        torch.empty(1, dtype=torch.uint8)
        return self.end()[-1].held - 1
