"""The state that an engine keeps so that a training can be resumed: its live tensors by canonical names, and counters.

Canonical names and shapes are those of the plain transformers model. A key is a kind of tensor and a parameter's name,
as in "exp_avg/transformer.wte.weight"; the master weights are of the kind "weight", weights that do not train of the
kind "frozen", and the biases by which routers are balanced, named as the routers, of the kind "balance".
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
    """The memory that the engine steps, in the box's shape: writing into it loads it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StateTensor:
    """A tensor of the canonical form, with the parts that this rank holds."""

    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    parts: tuple[TensorPart, ...]
    replica: int = 0
    """Number of this rank among the `num_replicas` equal holders of these parts."""
    num_replicas: int = 1

    @property
    def saved_parts(self) -> tuple[TensorPart, ...]:
        """The parts, or slices of them, that this rank saves: exactly one rank saves each value."""
        return tuple(_share(part, self.replica, self.num_replicas) for part in self.parts)

    def doubled(self, *, second: bool) -> "StateTensor":
        """Returns the same tensor where other ranks hold it once more; `second` is true on these."""
        replica = self.replica + self.num_replicas * second
        return dataclasses.replace(self, replica=replica, num_replicas=2 * self.num_replicas)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """Numbers of the optimizer, the same on every rank."""

    optimizer_step: int
    """Steps that the optimizer has taken, without skipped ones."""
    loss_scale: float | None = None
    """Loss scale of fp16; None in other precisions."""
    loss_scale_steps: int = 0
    """Steps since the loss scale last changed."""


def whole_tensor(tensor: torch.Tensor, *, replica: int = 0, num_replicas: int = 1) -> StateTensor:
    """Returns a tensor that each of `num_replicas` ranks holds whole."""
    shape = tuple(tensor.shape)
    part = TensorPart(offsets=(0,) * len(shape), tensor=tensor.detach())
    return StateTensor(shape=shape, parts=(part,), replica=replica, num_replicas=num_replicas)


def flat_range(shape: Sequence[int], start: int, values: torch.Tensor) -> StateTensor:
    """Returns the tensor of which this rank holds `values`, the flat range that begins at `start` in row-major
    order.
    """
    parts = tuple(
        TensorPart(offsets=offsets, tensor=values.detach().narrow(0, first - start, math.prod(sizes)).view(sizes))
        for offsets, sizes, first in boxes(tuple(shape), start, start + values.numel())
    )
    return StateTensor(shape=tuple(shape), parts=parts)


def boxes(shape: tuple[int, ...], start: int, stop: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Yields the flat range [start, stop) of a row-major tensor as boxes: offsets, sizes and flat index of the first
    value.
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
    """Returns the rows of the part that this one of its equal holders saves; a scalar is the first one's."""
    if num_replicas == 1:
        return part
    if not part.offsets:
        return part if replica == 0 else TensorPart(offsets=(), tensor=part.tensor.new_empty((0,)))
    rows = part.tensor.shape[0]
    first, last = rows * replica // num_replicas, rows * (replica + 1) // num_replicas
    return TensorPart(offsets=(part.offsets[0] + first, *part.offsets[1:]), tensor=part.tensor[first:last])


def that_train(state: Mapping[str, StateTensor]) -> dict[str, StateTensor]:
    """Returns a training's state without the weights that do not train."""
    return {key: tensor for key, tensor in state.items() if not key.startswith(f"{FROZEN}/")}


def optimizer_state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> MutableMapping[str, Any]:
    """Returns the optimizer's state of the parameter, created as its first step would where there is none yet."""
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
    """Yields the canonical keys and tensors of one parameter, each distributed as `place` states."""
    yield f"{WEIGHT}/{name}", place(weight)
    for kind, value in state.items():
        if kind.startswith("exp_avg"):
            yield f"{kind}/{name}", place(value)


def steps_taken(optimizer: torch.optim.Optimizer) -> int:
    """Returns the number of steps that the optimizer has taken."""
    return max((int(state["step"]) for state in optimizer.state.values() if "step" in state), default=0)


def set_steps_taken(optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Makes the optimizer count on from `steps`."""
    for state in optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"].fill_(steps)
        elif "step" in state:
            state["step"] = steps
