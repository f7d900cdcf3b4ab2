"""The state of an engine for resuming a training: its live tensors by canonical name, and counters.

Canonical names and shapes are the plain transformers model's. A key is a kind of tensor and a parameter's name, such as
"exp_avg/transformer.wte.weight". Master weights have the kind "weight", weights that do not train "frozen", and biases
that balance routers, named like the routers, "balance".
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch

WEIGHT, FROZEN, BALANCE = "weight", "frozen", "balance"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TensorPart:
    """A box of a tensor that this rank holds."""

    offsets: tuple[int, ...]
    tensor: torch.Tensor
    """The live memory of the engine, in the box's shape; writing into it loads the value."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StateTensor:
    """A tensor in its canonical form, with the parts that this rank holds."""

    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    parts: tuple[TensorPart, ...]
    replica: int = 0
    """This rank's index among the `num_replicas` ranks that hold the same parts."""
    num_replicas: int = 1

    @property
    def saved_parts(self) -> tuple[TensorPart, ...]:
        """The parts, or slices of them, that this rank saves, so that exactly one rank saves each value."""
        return tuple(_share(part, self.replica, self.num_replicas) for part in self.parts)

    def doubled(self, *, second: bool) -> "StateTensor":
        """Returns the tensor with twice as many replicas; `second` is true on the ranks of the second half."""
        replica = self.replica + self.num_replicas * second
        return dataclasses.replace(self, replica=replica, num_replicas=2 * self.num_replicas)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """Numbers of the optimizer, equal on every rank."""

    optimizer_step: int
    """Number of optimizer steps, without skipped ones."""
    loss_scale: float | None = None
    """Loss scale of fp16; None for other precisions."""
    loss_scale_steps: int = 0
    """Number of steps since the loss scale last changed."""


def whole_tensor(tensor: torch.Tensor, *, replica: int = 0, num_replicas: int = 1) -> StateTensor:
    """Returns the state of a tensor that each of `num_replicas` ranks holds whole."""
    shape = tuple(tensor.shape)
    part = TensorPart(offsets=(0,) * len(shape), tensor=tensor.detach())
    return StateTensor(shape=shape, parts=(part,), replica=replica, num_replicas=num_replicas)


def flat_range(shape: Sequence[int], start: int, values: torch.Tensor) -> StateTensor:
    """Returns the state of a tensor of which this rank holds `values`, a row-major flat range from `start` on."""
    parts = tuple(
        TensorPart(offsets=offsets, tensor=values.detach().narrow(0, first - start, math.prod(sizes)).view(sizes))
        for offsets, sizes, first in boxes(tuple(shape), start, start + values.numel())
    )
    return StateTensor(shape=tuple(shape), parts=parts)


def boxes(shape: tuple[int, ...], start: int, stop: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Yields the row-major flat range [start, stop) of a tensor as boxes: offsets, sizes and the flat index of the
    first value.
    """
    if start >= stop:
        return
    if not shape:
        yield (), (), start
        return
    inner = math.prod(shape[1:])
    first, last = -(-start // inner), stop // inner
    if first > last:  # inside one row
        yield from _row(shape, last, start, stop)
        return
    yield from _row(shape, first - 1, start, first * inner)
    if last > first:
        yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:]), first * inner
    yield from _row(shape, last, last * inner, stop)


def _row(
    shape: tuple[int, ...], row: int, start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    base = row * math.prod(shape[1:])
    for offsets, sizes, first in boxes(shape[1:], start - base, stop - base):
        yield (row, *offsets), (1, *sizes), first + base


def _share(part: TensorPart, replica: int, num_replicas: int) -> TensorPart:
    """Returns the rows of the part that this replica saves; the first replica saves a scalar."""
    if num_replicas == 1:
        return part
    if not part.offsets:
        return part if replica == 0 else TensorPart(offsets=(), tensor=part.tensor.new_empty((0,)))
    rows = part.tensor.shape[0]
    first, last = rows * replica // num_replicas, rows * (replica + 1) // num_replicas
    return TensorPart(offsets=(part.offsets[0] + first, *part.offsets[1:]), tensor=part.tensor[first:last])


def that_train(state: Mapping[str, StateTensor]) -> dict[str, StateTensor]:
    """Returns a training's state without frozen weights."""
    return {key: tensor for key, tensor in state.items() if not key.startswith(f"{FROZEN}/")}


def optimizer_state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> MutableMapping[str, Any]:
    """Returns the optimizer's state of the parameter; creates it as the first step would if it does not exist."""
    state: MutableMapping[str, Any] = optimizer.state[parameter]
    if state:
        return state
    if isinstance(optimizer, torch.optim.AdamW):
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state
    shape, zeros = parameter.shape, parameter.new_zeros
    state.update({"step": 0, "RMS": 0})  # transformers' Adafactor
    if parameter.dim() >= 2:
        state["exp_avg_sq_row"] = zeros(shape[:-1], dtype=torch.float32)
        state["exp_avg_sq_col"] = zeros((*shape[:-2], shape[-1]), dtype=torch.float32)
    else:
        state["exp_avg_sq"] = zeros(shape, dtype=torch.float32)
    return state


def named_tensors(
    name: str, weight: torch.Tensor, state: Mapping[str, Any], place: Callable[[torch.Tensor], StateTensor]
) -> Iterator[tuple[str, StateTensor]]:
    """Yields the canonical keys and tensors of one parameter; `place` describes how each is distributed."""
    yield f"{WEIGHT}/{name}", place(weight)
    for kind, value in state.items():
        if kind.startswith("exp_avg"):
            yield f"{kind}/{name}", place(value)


def steps_taken(optimizer: torch.optim.Optimizer) -> int:
    return max((int(state["step"]) for state in optimizer.state.values() if "step" in state), default=0)


def set_steps_taken(optimizer: torch.optim.Optimizer, steps: int) -> None:
    for state in optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"].fill_(steps)
        elif "step" in state:
            state["step"] = steps
