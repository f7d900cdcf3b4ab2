"""Experts of transformers' models: the products of their rows, grouped or expert by expert, and routing.

A family's own loop (`eager`) is the plain way. The grouped way sorts a micro-batch's rows by expert and multiplies all
at once (`torch.nn.functional.grouped_mm`), which does not support autocast, so inputs are cast here. With expert
parallelism each rank sends its tokens to the ranks of their experts (`trainers.kernels.dispatch`).
"""

import contextlib
import functools
import types
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainers.kernels.balance import choose, make_even
from trainers.kernels.compiled import static
from trainers.kernels.dispatch import dispatched
from trainers.spec.architectures.with_experts import WithExperts
from trainers.spec.layout_axes import Experts
from trainers.spec.recipe_axes import BalanceLoss

_NAMES: dict[Experts, str] = {"loop": "eager", "grouped": "grouped_rows"}
"""Name of each way in transformers' registry."""
_BALANCED = "balanced_experts"
_GROUP = "group_of_experts"
_COUNTED = "tokens_of_experts"
_ACTIVATION = "compiled_activation"
_MOST_SHORT = 2**15
"""One more than the largest number in 16 bits."""


def use_experts(
    config: Any,
    blocks: Sequence[nn.Module],
    family: WithExperts,
    experts: Experts,
    balanced_tokens: int,
    balance_loss: BalanceLoss = "none",
) -> None:
    """Makes the blocks compute their experts by `experts`, and their routers in fp32; in place.

    With `balanced_tokens` (the tokens of a sequence) all experts get equally many tokens, up to one. The assignment is
    drawn once for each block and position in a sequence, so that neither micro-batch nor ranks change it. The weights
    stay the weights of the router's own choice.
    """
    # Measuring imports this module without transformers.
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(_NAMES["grouped"], _grouped)
    config._experts_implementation = _NAMES[experts]  # one object, read by every block's experts
    for index, block in enumerate(blocks):
        router: Any = block.get_submodule(family.router)
        router.forward = types.MethodType(_route, router)
        router.is_balanced = balanced_tokens > 0
        if router.is_balanced:
            table = _balanced(balanced_tokens, router.num_experts, router.top_k, seed=index)
            router.register_buffer(_BALANCED, table, persistent=False)
        make_even(router, balance_loss)


def share_out(experts: nn.Module, group: Any) -> None:
    """Makes a block's experts compute the rows that the ranks of `group` send; its parameters must be this rank's
    experts, equally many on each rank.
    """
    setattr(experts, _GROUP, group)


def compile_activation(experts: nn.Module) -> None:
    """Compiles the computation between the experts' two products, for any number of rows."""
    kind: Any = type(experts)
    setattr(experts, _ACTIVATION, static(kind._apply_gate, any_size=True))


def _group_of(experts: nn.Module) -> Any:
    return getattr(experts, _GROUP, None)


def experts_in_effect(config: Any) -> str:
    """Returns the layout's name for the way in which a model of `config` computes its experts."""
    name: str = config._experts_implementation
    return {theirs: ours for ours, theirs in _NAMES.items()}.get(name, name)


def routing_in_effect(modules: Iterable[nn.Module]) -> str:
    """Returns the recipe's name for the routing of all routers among `modules`."""
    routers = list(routers_of(modules))
    balanced = sum(router.is_balanced for router in routers)
    if balanced not in (0, len(routers)):
        return f"balanced in {balanced} of {len(routers)} blocks"
    return "balanced" if balanced else "learned"


@contextlib.contextmanager
def learned_routing(modules: Iterable[nn.Module]) -> Generator[None, None, None]:
    """Makes the routers among `modules` choose within the context, whatever the recipe says."""
    balanced = [router for router in routers_of(modules) if router.is_balanced]
    try:
        for router in balanced:
            router.is_balanced = False
        yield
    finally:
        for router in balanced:
            router.is_balanced = True


@contextlib.contextmanager
def counted_tokens(modules: Iterable[nn.Module], device: torch.device) -> Generator[list[Tensor], None, None]:
    """Yields the number of tokens of each expert, int64 [experts] on the device for each router among `modules`; passes
    within the context add to it.
    """
    routers = list(routers_of(modules))
    try:
        for router in routers:
            setattr(router, _COUNTED, torch.zeros(router.num_experts, dtype=torch.int64, device=device))
        yield [getattr(router, _COUNTED) for router in routers]
    finally:
        for router in routers:
            delattr(router, _COUNTED)


def routers_of(modules: Iterable[nn.Module]) -> Iterator[Any]:
    return (module for module in modules if hasattr(module, "is_balanced"))


def _balanced(num_tokens: int, num_experts: int, chosen: int, *, seed: int) -> Tensor:
    """Returns the experts [num_tokens, chosen] of a sequence's tokens: different ones for each token, and equally many
    tokens for each expert.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randperm(num_tokens, generator=generator)
    experts = torch.randperm(num_experts, generator=generator)
    places = tokens[:, None] * chosen + torch.arange(chosen)
    return experts[places % num_experts]


def _route(self: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns scores [tokens, experts], and weights and indices [tokens, chosen] of each token's experts."""
    rows = hidden_states.reshape(-1, hidden_states.shape[-1])
    bias = getattr(self, "bias", None)
    with contextlib.nullcontext() if _autocast_dtype(rows) is None else torch.autocast(rows.device.type, enabled=False):
        scores = F.linear(rows.float(), self.weight.float(), None if bias is None else bias.float())
    weights, chosen = choose(self, scores.softmax(dim=-1))
    if getattr(self, "norm_topk_prob", True):
        weights = weights / weights.sum(dim=-1, keepdim=True)
    if self.is_balanced:
        table = getattr(self, _BALANCED)
        chosen = table.repeat(-(-len(rows) // len(table)), 1)[: len(rows)]
    if (tokens := getattr(self, _COUNTED, None)) is not None:
        tokens.scatter_add_(0, chosen.flatten(), torch.ones_like(chosen.flatten()))
    return scores, weights, chosen


def _grouped(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Returns the weighted sum [tokens, hidden] of the outputs of each token's experts."""
    dtype = _autocast_dtype(hidden_states) or hidden_states.dtype
    num_tokens, chosen = top_k_index.shape
    if (group := _group_of(self)) is not None:
        products, rows = functools.partial(_products, self), hidden_states.to(dtype)
        sums = dispatched(products, rows, top_k_index, top_k_weights.float(), num_experts=self.num_experts, group=group)
        return sums.to(hidden_states.dtype)
    # A radix sort passes over its keys once for each byte: two times in place of eight.
    keys = torch.int16 if self.num_experts < _MOST_SHORT else torch.int64
    of_rows, order = top_k_index.flatten().to(keys).sort(stable=True)
    places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    every = torch.arange(self.num_experts, device=order.device, dtype=keys)
    ends = torch.searchsorted(of_rows, every, right=True, out_int32=True)
    rows = _permuted(hidden_states.to(dtype), order, places, chosen)
    outputs = _products(self, rows, ends)
    of_tokens = _permuted(outputs, places, order, 1).view(num_tokens, chosen, hidden_states.shape[-1])
    return (of_tokens * top_k_weights.to(dtype)[..., None]).sum(dim=1).to(hidden_states.dtype)


def _products(self: Any, rows: Tensor, ends: Tensor) -> Tensor:
    """Returns the experts' outputs for rows in expert order; `ends` are the ends of each expert's rows."""
    outer = _product(self, rows, "gate_up_proj", ends)
    inner = getattr(self, _ACTIVATION, type(self)._apply_gate)(self, outer)
    return _product(self, inner, "down_proj", ends)


def _product(self: Any, rows: Tensor, name: str, ends: Tensor) -> Tensor:
    """Returns the products of rows with their expert's matrix `name`, plus its bias if it has one."""
    # Compiled code has no ZeRO-3, and torch 2.11's compiler recomputes nothing that an autograd function returns.
    multiply: Any = _multiplied if torch.compiler.is_compiling() else _Multiplied.apply
    products = multiply(rows, getattr(self, name).to(rows.dtype), ends, self.is_transposed)
    if not self.has_bias:
        return products
    experts = torch.searchsorted(ends, torch.arange(len(rows), device=rows.device), right=True)
    biased: Any = _Biased.apply
    return biased(products, getattr(self, f"{name}_bias").to(rows.dtype), experts)


def _multiplied(rows: Tensor, weight: Tensor, ends: Tensor, is_transposed: bool) -> Tensor:
    """Returns the products of rows with their expert's matrix, stored [out, in], or [in, out] if `is_transposed`."""
    return F.grouped_mm(rows, weight if is_transposed else weight.transpose(1, 2), offs=ends)


class _Multiplied(torch.autograd.Function):
    """`_multiplied`, which saves the parameter and no view of it, so that ZeRO-3 can free the gathered values until the
    backward pass.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, ends: Tensor, is_transposed: bool) -> Tensor:
        ctx.save_for_backward(rows, weight, ends)
        ctx.is_transposed = is_transposed
        return _multiplied(rows, weight, ends, is_transposed)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        rows, weight, ends = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        of_rows = of_weight = None
        if ctx.needs_input_grad[0]:
            of_rows = _multiplied(gradient, weight, ends, not ctx.is_transposed)
        if ctx.needs_input_grad[1]:
            left, right = (rows, gradient) if ctx.is_transposed else (gradient, rows)
            of_weight = F.grouped_mm(left.t(), right, offs=ends)
        return of_rows, of_weight, None, None


class _Biased(torch.autograd.Function):
    """Adds to each row its expert's bias. The bias's gradient is a matrix product, so its sums have a fixed order."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, bias: Tensor, experts: Tensor) -> Tensor:
        ctx.save_for_backward(experts)
        ctx.num_experts = len(bias)
        return rows + bias[experts]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        (experts,) = ctx.saved_tensors
        (gradient,) = gradients
        of_bias = None
        if ctx.needs_input_grad[1]:
            every = torch.arange(ctx.num_experts, device=experts.device)
            of_bias = (every[:, None] == experts).to(gradient.dtype) @ gradient
        return gradient, of_bias, None


def _autocast_dtype(tensor: Tensor) -> torch.dtype | None:
    """Returns autocast's type for products on the tensor's device; None if autocast is off."""
    device = tensor.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):  # the meta device has no autocast
        return None
    return torch.get_autocast_dtype(device)


def _permuted(rows: Tensor, order: Tensor, places: Tensor, copies: int) -> Tensor:
    """Returns rows [n x copies, width] in `order`, which contains each of the n rows `copies` times. `places` is the
    inverse of `order`. The gradient is a sum in a fixed order; the gradient of indexing has no fixed order.
    """
    apply: Any = _Permuted.apply
    return apply(rows, order, places, copies)


class _Permuted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, places: Tensor, copies: int) -> Tensor:
        ctx.save_for_backward(places)
        ctx.copies = copies
        return rows[order // copies]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        of_copies = gradients[0][places]
        of_rows = of_copies.view(len(places) // ctx.copies, ctx.copies, of_copies.shape[-1])
        return of_rows.sum(dim=1), None, None, None
