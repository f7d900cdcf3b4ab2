"""Names parts of the code in a profiler's trace; does nothing without a profiler, because torch's `record_function`
costs microseconds a call in any case.
"""

import contextlib
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import nn
from torch.profiler import record_function

from trainers.marks.kinds import EXCHANGE

_NOTHING = contextlib.nullcontext()
_naming = False


def named(name: str) -> AbstractContextManager[Any]:
    """Returns a context that appears in the trace as `name`; does nothing outside `naming`."""
    return record_function(name) if _naming else _NOTHING


def exchanging(group: Any, axis: str = "") -> AbstractContextManager[Any]:
    """Returns a context that names a process group's collectives in the trace, by `axis` if the group serves several
    axes; does nothing outside `naming` or in compiled code.
    """
    if torch.compiler.is_compiling():
        return contextlib.nullcontext()  # the compiler supports this one and must not guard on `_naming`
    return record_function(f"{EXCHANGE}{axis or group.group_desc}") if _naming else _NOTHING


@contextlib.contextmanager
def naming(modules: Iterator[tuple[str, nn.Module]]) -> Generator[None]:
    """Turns `named` on, and names every forward pass of `modules`, given as (name, module)."""
    global _naming
    with ExitStack() as hooks:
        for name, module in modules:
            _name_forward(name, module, hooks)
        _naming = True
        try:
            yield
        finally:
            _naming = False


def _name_forward(name: str, module: nn.Module, hooks: ExitStack) -> None:
    open_ranges: list[Any] = []

    def enter(*_: Any) -> None:
        open_ranges.append(record_function(name))
        open_ranges[-1].__enter__()

    def leave(*_: Any) -> None:
        open_ranges.pop().__exit__(None, None, None)

    # `always_call`, because a checkpoint that has recomputed enough leaves the forward pass by an exception.
    for handle in (module.register_forward_pre_hook(enter), module.register_forward_hook(leave, always_call=True)):
        hooks.callback(handle.remove)
