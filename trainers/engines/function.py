"""A user's own training as a `Stepper`: a function builds the step of each batch point.

    def build(layout):
        model = DistributedDataParallel(Model(layout["width"]).to(layout.device))
        ...
        def step():  # one optimizer step of layout.grad_accum micro-steps of layout.micro_batch sequences each
            ...
            return loss
        return step

The function needs nothing of this project. `step` returns the mean loss of this rank's tokens as a number or a tensor,
or this loss and the number of these tokens.
"""

import dataclasses
import functools
import gc
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trainers.marks.step import Marks, StepPhase, StepResult
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.spec.workload import Workload, digest_of, file_of, flags_of, value_of

_PHASES = (StepPhase.SCHEDULE, StepPhase.OPTIMIZER_STEP)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BuildLayout:
    """The batch point for which a function builds a step; `layout["NAME"]` is the value of an axis."""

    axes: Mapping[str, Any]
    micro_batch: int
    """Sequences of a micro-step on each rank."""
    grad_accum: int
    """Micro-steps of an optimizer step."""
    device: torch.device
    rank: int
    world_size: int

    def __getitem__(self, name: str) -> Any:
        if name not in self.axes:
            axes = f"its axes are {', '.join(self.axes)}" if self.axes else "it has none"
            raise KeyError(f"the layout has no axis {name!r}: {axes} (--set {name}=VALUE,VALUE adds one)")
        return self.axes[name]


class FunctionStepper:
    """Builds a step when a batch point begins, and runs it. A hook on torch's optimizers marks the optimizer's part."""

    def __init__(self, recipe: Recipe, layout: Layout, device: torch.device) -> None:
        assert recipe.workload is not None, "a recipe with a model has an engine of its own"
        self._layout, self._device, self._tokens_per_step = layout, device, recipe.tokens_per_step
        self._seq_len, self._seed = recipe.seq_len, recipe.seed
        self._folder = str(Path.cwd())
        os.environ.update(recipe.workload.variables())
        self._build = load(recipe.workload)
        os.chdir(recipe.workload.folder or self._folder)
        self._point: BatchPoint | None = None
        self._step: Callable[[], Any] | None = None

    def step(self, micro_batches: Sequence[torch.Tensor], marks: Marks) -> StepResult:
        point = BatchPoint(micro_batch=len(micro_batches[0]), grad_accum=len(micro_batches))
        is_first = point != self._point
        if is_first:
            self._step = None
            self._release()  # frees memory before the next model is built
            self._point, self._step = point, self._built(point)
        assert self._step is not None
        marks.begin(StepPhase.SCHEDULE)
        optimizing: list[None] = []

        def begin_optimizer(*_: Any) -> None:
            if not optimizing:
                optimizing.append(None)
                marks.begin(StepPhase.OPTIMIZER_STEP)

        hook = register_optimizer_step_pre_hook(begin_optimizer)
        try:
            answer = self._step()
        finally:
            hook.remove()
        begin_optimizer()  # in case no torch optimizer has stepped
        loss, tokens = answer if isinstance(answer, tuple) else (answer, None)  # type: ignore[reportUnknownVariableType]
        if is_first and tokens is not None:
            self._check_tokens(int(tokens), point)  # type: ignore[reportUnknownArgumentType]
        num_tokens = point.micro_batch * point.grad_accum * self._seq_len if tokens is None else int(tokens)  # type: ignore[reportUnknownArgumentType]
        mean = _loss_tensor(loss, self._device)
        count = torch.tensor(num_tokens, dtype=torch.int64)
        return StepResult(
            loss_sum=mean * num_tokens, num_tokens=count, grad_norm=torch.tensor(torch.nan), phases=_PHASES
        )

    def _built(self, point: BatchPoint) -> Callable[[], Any]:
        torch.manual_seed(self._seed)  # gives every batch point the same weights if the function draws them
        step = self._build(
            BuildLayout(
                axes={name: value_of(text) for name, text in flags_of(self._layout.flags).items()},
                micro_batch=point.micro_batch,
                grad_accum=point.grad_accum,
                device=self._device,
                rank=dist.get_rank() if dist.is_initialized() else 0,
                world_size=self._layout.world_size,
            )
        )
        if not callable(step):
            raise ValueError(f"the function returns the step, a function without arguments, got {type(step).__name__}")
        return step

    def _check_tokens(self, tokens: int, point: BatchPoint) -> None:
        """Refuses a step whose tokens differ from the study's number per step; a collective."""
        total = torch.tensor(tokens, device=self._device)
        if self._layout.world_size > 1:
            dist.all_reduce(total)
        if int(total) != self._tokens_per_step:
            raise ValueError(
                f"its step at micro-batch {point.micro_batch} and accumulation {point.grad_accum} has {int(total):,}"
                f" tokens where all points train on {self._tokens_per_step:,}: points with different"
                " tokens per step cannot be compared"
            )

    def _release(self) -> None:
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def close(self) -> None:
        self._step = self._point = None
        self._release()
        os.chdir(self._folder)


def _loss_tensor(loss: Any, device: torch.device) -> torch.Tensor:
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        return loss.detach().float().reshape(())
    if isinstance(loss, (int, float)):
        return torch.tensor(float(loss), device=device)
    kind = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else repr(loss)[:80]
    raise ValueError(f"a step returns its loss, a number or a tensor of one, or a loss and its tokens, got {kind}")


def load(workload: Workload) -> Callable[[BuildLayout], Callable[[], Any]]:
    """Returns the workload's function. Runs its file, and adds the file's folder to the path.

    Raises:
        ValueError: the file is missing, differs from its content at the search's start, or lacks the function.
    """
    where, _, name = workload.build.partition(":")
    path = file_of(workload.build, workload.folder)
    if digest_of((workload.build,), (path,)) != workload.digest:
        raise ValueError(
            f"{path} is another file here than where the search was started, or has changed since: give all nodes the"
            " same, and start a new study after a change"
        )
    is_file = where.endswith(".py")
    for folder in (workload.folder, *((str(path.parent),) if is_file else ())):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    module = _module_of_file(str(path), path.stem) if is_file else importlib.import_module(where)
    return functools.reduce(getattr, name.split("."), module)  # type: ignore[return-value]


def _module_of_file(path: str, stem: str) -> ModuleType:
    name = stem if stem not in sys.modules else f"own_{stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
