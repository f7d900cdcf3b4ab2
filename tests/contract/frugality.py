"""Measures an engine's costs: a rank's memory while an engine is built, repeated gathers and launches of a step, and
places where our own code or the model's waits for the device.
"""

import dataclasses
import gc
import itertools
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

import trainers
from tests.contract.cases import BLOOM, GPT2, recipe
from trainers.data import source
from trainers.engines.create import create_engine, engine_class
from trainers.marks.step import StepPhase, Unmarked
from trainers.measuring.device import CpuMeter
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec

MIDDLE = ModelSpec(name="middle", architecture="bloom", num_layers=24, hidden_size=256, num_heads=8, vocab_size=512)
"""A model with 19 M parameters, 0.07 GiB in fp32, whose largest unit is one twenty-fourth of it."""
WHOLE_GIB = MIDDLE.num_parameters * 4 / 2**30
PADDED = ModelSpec.from_config({**GPT2.to_config(), "pad_token_id": 3}, name="padded")
WATCHED = tuple(str(Path(str(package.__file__)).parent) for package in (trainers, transformers))


def start_gib(layout: Layout) -> float:
    """Returns this rank's largest additional memory, GiB, until an engine is built and ready."""
    engine_class(layout.engine)  # its imports are no part of what it holds
    gc.collect()  # an engine before this one may have left tensors, which would not be counted
    meter = CpuMeter(64.0)
    meter.start(None)
    meter.reset_peak()
    engine = create_engine(recipe(MIDDLE, "bf16"), layout, torch.device("cpu"))
    peak = meter.peaks()[0].allocated_gib
    engine.close()
    return peak


def steps_gib(layout: Layout) -> float:
    """Returns this rank's largest additional memory, GiB, in two steps of two micro-batches with an optimizer that has
    almost no states.
    """
    thin = recipe(MIDDLE, "bf16", optimizer="adafactor")
    gc.collect()
    meter = CpuMeter(64.0)
    meter.start(None)
    meter.reset_peak()
    engine = create_engine(thin, layout, torch.device("cpu"))
    tokens = torch.from_numpy(source(thin).sequences(0, range(1)))
    for _ in range(2):
        engine.step([tokens] * 2, Unmarked())
    peak = meter.peaks()[0].allocated_gib
    engine.close()
    return peak


def waits(model: ModelSpec, layout: Layout) -> list[str]:
    """Returns the lines of `trainers/` and of transformers that read a value out of a tensor within two steps; on a GPU
    the host would wait at each of them.
    """
    half = recipe(model, "bf16")
    engine = create_engine(half, layout, torch.device("cpu"))
    tokens = torch.from_numpy(source(half).sequences(0, range(2)))
    with _Reads() as reads:
        for _ in range(2):
            engine.step([tokens] * 2, Unmarked())
    engine.close()
    return reads.watched


class _Reads(TorchDispatchMode):
    """Records each `item`, `bool` or `float` of a tensor whose nearest caller outside torch is a watched one."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            library = str(Path(torch.__file__).parent)
            caller = next(frame for frame in reversed(traceback.extract_stack()[:-1]) if library not in frame.filename)
            if caller.filename.startswith(WATCHED):
                self.watched.append(f"{caller.filename}:{caller.lineno}")
        return func(*args, **(kwargs or {}))


def gathers(layout: Layout) -> list[int]:
    """Returns the number of units of a two-block model that FSDP2 gathers in each of a step's three micro-steps."""
    engine = create_engine(recipe(GPT2, "bf16"), layout, torch.device("cpu"))
    tokens = torch.from_numpy(source(recipe(GPT2)).sequences(0, range(2)))
    with _Calls(torch.ops.fsdp.all_gather_copy_in.default) as recorded:
        starts = _Starts(recorded, lambda: engine.in_effect()["dp_shard"] == layout.dp_shard)
        engine.step([tokens] * 3, starts)
    engine.close()
    return [after - before for before, after in itertools.pairwise(starts.calls)]


class _Starts:
    """Marks that count the calls before each phase, and check that degrees are readable then."""

    def __init__(self, recorded: "_Calls", holds: Callable[[], bool]) -> None:
        self._recorded, self._holds = recorded, holds
        self.calls: list[int] = []

    def begin(self, phase: StepPhase) -> None:
        self.calls.append(len(self._recorded.arguments))
        assert self._holds(), f"degrees are misread before a {phase}, where parameters may be whole"


def factors(layout: Layout) -> list[tuple[torch.dtype, torch.dtype]]:
    """Returns the types of gradients and of the factors with which clipping multiplies them, for bf16 states.

    CUDA multiplies many tensors in one launch if the factor has their type, otherwise in one launch per tensor.
    """
    pure = recipe(GPT2, "bf16", states="bf16")
    engine = create_engine(pure, layout, torch.device("cpu"))
    with _Calls(torch.ops.aten._foreach_mul_.Tensor) as recorded:
        starts = _Starts(recorded, lambda: True)
        engine.step([torch.from_numpy(source(pure).sequences(0, range(2)))], starts)
    engine.close()
    return [(tensors[0].dtype, factor.dtype) for tensors, factor in recorded.arguments[starts.calls[-1] :]]


class _Calls(TorchDispatchMode):
    """Records the arguments of each call of one operation."""

    def __init__(self, operation: Any) -> None:
        super().__init__()
        self._operation = operation
        self.arguments: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is self._operation:
            self.arguments.append(args)
        return func(*args, **(kwargs or {}))


def frugality(layouts: list[Layout]) -> list[tuple[float, list[str]]]:
    """Returns for each layout the GiB that a rank holds at the start, and the lines that wait."""
    memory_by_fault = []
    for layout in layouts:
        fused = dataclasses.replace(layout, attention="sdpa")
        memory_by_fault.append((start_gib(layout), [*waits(BLOOM, fused), *waits(PADDED, fused)]))
    return memory_by_fault
