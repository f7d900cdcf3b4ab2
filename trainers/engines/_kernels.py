"""A model made ready for an engine: its loss, activation checkpointing, compiling; and what of it is in effect."""

# What is in effect stands in private places only.
# pyright: reportPrivateUsage=false

import functools
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    CheckpointWrapper,
    checkpoint_wrapper,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from trainers.kernels.compiled import (
    activation_budget_in_effect,
    compile_forward,
    is_compiled,
    set_activation_budget,
)
from trainers.kernels.head import loss_in_effect, use_loss_head
from trainers.models import Model, attention_in_effect
from trainers.values.layout import Checkpointing, Layout

_OPS: Any = torch.ops
_SAVED = {
    _OPS.aten.mm.default,
    _OPS.aten.addmm.default,
    _OPS.aten.linear.default,
    _OPS.aten._scaled_dot_product_flash_attention.default,
    _OPS.aten._scaled_dot_product_efficient_attention.default,
    _OPS.aten._scaled_dot_product_cudnn_attention.default,
    _OPS.aten._scaled_dot_product_flash_attention_for_cpu.default,
    _OPS.higher_order.flex_attention,
}
"""Outputs that selective checkpointing keeps: of the products with weights and of fused attention. Scores, norms and
activations, cheap to make or large to keep, are made again."""


def prepare(model: Model, layout: Layout) -> tuple[nn.Module, ...]:
    """Gives the model the layout's loss, checkpointing and compiling, in place; the blocks as they now stand.

    Compiled code holds the checkpoint inside, torch's supported order: its partitioner then knows what is made again. A
    model compiled whole takes its loss along, and so does one whose vocabulary is cut over ranks.
    """
    set_activation_budget(layout.activation_budget)
    if layout.loss != "plain" or layout.compile == "model" or layout.tp > 1:
        use_loss_head(model.head, layout.loss, compiled=layout.compile == "block")
    units: list[nn.Module] = []
    for i, (name, block) in enumerate(zip(model.block_names, model.blocks, strict=True)):
        unit = block
        if layout.checkpoint_every and i % layout.checkpoint_every == 0:
            unit = _checkpointed(block, layout.checkpointing)
            parent, _, key = name.rpartition(".")
            setattr(model.module.get_submodule(parent), key, unit)
        if layout.compile == "block":
            compile_forward(unit)
        units.append(unit)
    if layout.compile == "model":
        compile_forward(model.module)
    return tuple(units)


def kernels_in_effect(model: Model, units: tuple[nn.Module, ...]) -> dict[str, str]:
    """What of `prepare`, and of the attention that the model was built with, can be read back from the modules."""
    return {
        "attention": attention_in_effect(model.module),
        "loss": loss_in_effect(model.head),
        "compile": _compile_in_effect(model.module, units),
        "checkpointing": _checkpointing_in_effect(model.module, model.blocks),
    }


def _checkpointed(block: nn.Module, kind: Checkpointing) -> nn.Module:
    """The block in a wrapper that does its forward pass, or the cheap part of it, again in the backward pass.

    Dropout is off (see `trainers.models`), so the random state need not be kept.
    """
    settings: dict[str, Any] = {"preserve_rng_state": False}
    if kind == "selective":
        settings["context_fn"] = _selective_contexts
    return checkpoint_wrapper(block, checkpoint_impl=CheckpointImpl.NO_REENTRANT, **settings)


def _keeps_products(_context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _SAVED else CheckpointPolicy.PREFER_RECOMPUTE


_selective_contexts = functools.partial(create_selective_checkpoint_contexts, _keeps_products)


def _checkpointing_in_effect(module: nn.Module, blocks: tuple[nn.Module, ...]) -> str:
    """The layout's word for which of the blocks (as they were built) are checkpointed, or how many of how many."""
    wrappers = [child for child in module.modules() if isinstance(child, CheckpointWrapper)]
    inside: list[Any] = [wrapper._checkpoint_wrapped_module for wrapper in wrappers]
    places = [i for i, block in enumerate(blocks) if any(block is each for each in inside)]
    keywords: list[dict[str, Any]] = [getattr(wrapper.checkpoint_fn, "keywords", {}) for wrapper in wrappers]
    selective = sum(each.get("context_fn") is _selective_contexts for each in keywords)
    budget = activation_budget_in_effect()
    if not wrappers:
        return "none" if budget == 1 else f"budget_{100 * budget:.0f}"
    if budget != 1:
        return f"{len(places)} blocks and a budget of {budget}"
    if selective or len(places) != len(wrappers):
        return "selective" if selective == len(places) == len(blocks) else f"selective in {selective} blocks"
    for word, every in (("full", 1), ("every_2", 2), ("every_4", 4)):
        if places == list(range(0, len(blocks), every)):
            return word
    return f"{len(places)} of {len(blocks)} blocks"


def _compile_in_effect(model: nn.Module, units: tuple[nn.Module, ...]) -> str:
    """ "none", "block", "model", or how many blocks of how many have compiled code."""
    count = sum(map(is_compiled, units))
    if is_compiled(model):
        return "model"
    return {0: "none", len(units): "block"}.get(count, f"{count} of {len(units)} blocks")
