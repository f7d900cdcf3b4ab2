"""Collectives with their gradients: what tensor and context parallelism exchange inside a forward pass.

Torch's own functional collectives have other names in each release, and tensors that wait for their collective by
themselves lose gradients under torch 2.13's compiler: these wait where they are called. Compiled code calls operators
that make their output: torch 2.11's compiler gives zeros for the gradients of collectives that write into a tensor.
"""

from typing import Any

import torch
import torch.distributed as dist

from trainers.profiling.ranges import exchanging


def _first_of(*names: str) -> Any:
    """Torch's function of the first of these names that this version has."""
    return next(getattr(dist, name) for name in names if hasattr(dist, name))


# Torch 2.13 has new names, and warns of the old ones, which are all that 2.11 has.
_all_gather = _first_of("all_gather_single", "all_gather_into_tensor")
_reduce_scatter = _first_of("reduce_scatter_single", "reduce_scatter_tensor")
_LIBRARIES: Any = torch.ops
_OPS: Any = _LIBRARIES._c10d_functional


def gather(tensor: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
    """The ranks' tensors side by side along `dim`; gradients, which each rank has of all, are summed and scattered."""
    apply: Any = _Gather.apply
    return apply(tensor, dim, group)


def gather_alike(tensor: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
    """The ranks' tensors side by side along `dim`, of which every rank has the whole gradient: each takes its part."""
    apply: Any = _GatherAlike.apply
    return apply(tensor, dim, group)


def reduce_scatter(tensor: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
    """This rank's part along `dim` of the ranks' sum; gradients are gathered."""
    apply: Any = _ReduceScatter.apply
    return apply(tensor, dim, group)


def all_reduce(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    """The ranks' sum, of which every rank computes the same gradient: that is each one's own."""
    apply: Any = _AllReduce.apply
    return apply(tensor, group)


def reduce_in_place(tensor: torch.Tensor, group: Any, op: Any = dist.ReduceOp.SUM) -> None:
    """Reduces the ranks' tensors to their sum, or by another `op`, without gradient."""
    with exchanging(group):
        dist.all_reduce(tensor, op=op, group=group)


def take_part(tensor: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
    """This rank's part along `dim` of a tensor that all ranks hold alike; gradients are gathered."""
    apply: Any = _TakePart.apply
    return apply(tensor, dim, group)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
        ctx.dim, ctx.group = dim, group
        return _gathered(tensor, dim, group)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _reduce_scattered(grad_outputs[0], ctx.dim, ctx.group), None, None


class _GatherAlike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
        ctx.dim, ctx.group = dim, group
        return _gathered(tensor, dim, group)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        size, rank = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
        return grad_outputs[0].chunk(size, ctx.dim)[rank].contiguous(), None, None


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
        ctx.dim, ctx.group = dim, group
        return _reduce_scattered(tensor, dim, group)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _gathered(grad_outputs[0], ctx.dim, ctx.group), None, None


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
    def forward(ctx: Any, tensor: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
        ctx.dim, ctx.group = dim, group
        # A copy, so that the whole need not outlive the part.
        return tensor.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)].clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _gathered(grad_outputs[0], ctx.dim, ctx.group), None, None


def _gathered(tensor: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
    size = dist.get_world_size(group)
    if torch.compiler.is_compiling():
        whole = _OPS.wait_tensor(_OPS.all_gather_into_tensor(tensor.contiguous(), size, group.group_name))
    else:
        whole = tensor.new_empty((size * tensor.shape[0], *tensor.shape[1:]))
        with exchanging(group):
            _all_gather(whole, tensor.contiguous(), group=group)
    return torch.cat(whole.chunk(size), dim) if dim else whole


def _reduce_scattered(tensor: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
    size = dist.get_world_size(group)
    stacked = torch.cat(tensor.chunk(size, dim)) if dim else tensor.contiguous()
    if torch.compiler.is_compiling():
        return _OPS.wait_tensor(_OPS.reduce_scatter_tensor(stacked, "sum", size, group.group_name))
    part = stacked.new_empty((stacked.shape[0] // size, *stacked.shape[1:]))
    with exchanging(group):
        _reduce_scatter(part, stacked, group=group)
    return part
