"""Collectives with gradients, for exchanges of tensor, context and expert parallelism inside a forward pass.

They call torch's functional operators, which return a new tensor, and wait for it at once. Torch 2.11's inductor loses
gradients through collectives that write into a tensor (`dist.all_gather_into_tensor`), and torch 2.13's through tensors
that wait for their collective lazily (`AsyncCollectiveTensor`).
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from trainers.marks.ranges import exchanging
from trainers.spec.layout_axes import CUTTING

_ops: Any = torch.ops._c10d_functional


def gather(tensor: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
    """Returns the ranks' tensors concatenated along `dim`; gradients are summed over ranks and scattered."""
    apply: Any = _Gather.apply
    return apply(tensor, dim, group)


def reduce_scatter(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    """Returns this rank's rows of the sum over ranks; gradients are gathered."""
    apply: Any = _ReduceScatter.apply
    return apply(tensor, group)


def all_reduce(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    """Returns the sum over ranks; its gradient, which is equal on every rank, is the gradient of each rank's tensor."""
    apply: Any = _AllReduce.apply
    return apply(tensor, group)


def reduce_in_place(tensor: torch.Tensor, group: Any, op: Any = dist.ReduceOp.SUM) -> None:
    """Reduces the ranks' tensors in place to their sum, or by another `op`, without gradient."""
    with exchanging(group):
        dist.all_reduce(tensor, op=op, group=group)


def take_part(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    """Returns this rank's rows of a tensor that all ranks hold; gradients are gathered."""
    apply: Any = _TakePart.apply
    return apply(tensor, group)


def exchange(tensor: torch.Tensor, sent: Sequence[int], received: Sequence[int], group: Any) -> torch.Tensor:
    """Returns the rows that the ranks sent to this one, in rank order. `sent` counts this rank's rows for each rank, in
    the tensor's order; `received` counts the rows from each rank. Gradients go back the same way.
    """
    apply: Any = _Exchange.apply
    return apply(tensor, sent, received, group, "+".join(CUTTING["experts"]))


def all_to_all(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    """Returns a tensor of this one's size [ranks, ...]: each rank's element at this rank's index. Gradients go back the
    same way.
    """
    apply: Any = _Exchange.apply
    ones = [1] * tensor.shape[0]
    return apply(tensor, ones, ones, group, "")


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, sent: Sequence[int], received: Sequence[int], group: Any, axis: str
    ) -> torch.Tensor:
        ctx.sent, ctx.received, ctx.group, ctx.axis = sent, received, group, axis
        return _exchanged(tensor, sent, received, group, axis)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        returned = _exchanged(grad_outputs[0], ctx.received, ctx.sent, ctx.group, ctx.axis)
        return returned, None, None, None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
        ctx.dim, ctx.group = dim, group
        return _gathered(tensor, dim, group)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _reduce_scattered(grad_outputs[0], ctx.dim, ctx.group), None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return _reduce_scattered(tensor, 0, group)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _gathered(grad_outputs[0], 0, ctx.group), None


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any) -> torch.Tensor:
        total = tensor.clone()
        reduce_in_place(total, group)
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return grad_outputs[0], None


class _TakePart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        # A copy, so that the whole tensor can be freed.
        return tensor.chunk(dist.get_world_size(group))[dist.get_rank(group)].clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _gathered(grad_outputs[0], 0, ctx.group), None


def _exchanged(
    tensor: torch.Tensor, sent: Sequence[int], received: Sequence[int], group: Any, axis: str = ""
) -> torch.Tensor:
    with exchanging(group, axis):
        return _ops.wait_tensor(
            _ops.all_to_all_single(tensor.contiguous(), list(received), list(sent), group.group_name)
        )


def _gathered(tensor: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
    size = dist.get_world_size(group)
    with exchanging(group):
        gathered = _ops.wait_tensor(_ops.all_gather_into_tensor(tensor.contiguous(), size, group.group_name))
    return torch.cat(gathered.chunk(size), dim) if dim else gathered


def _reduce_scattered(tensor: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
    size = dist.get_world_size(group)
    stacked = torch.cat(tensor.chunk(size, dim)) if dim else tensor.contiguous()
    with exchanging(group):
        return _ops.wait_tensor(_ops.reduce_scatter_tensor(stacked, "sum", size, group.group_name))
