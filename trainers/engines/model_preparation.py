"""Prepares a model for an engine (loss, activation checkpointing, compiling) and reads back what is in effect."""

# What is in effect stands in private places only.
# pyright: reportPrivateUsage=false

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    CheckpointWrapper,
    checkpoint_wrapper,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from trainers.kernels.balance import balance_in_effect
from trainers.kernels.compiled import (
    activation_budget_in_effect,
    compile_forward,
    is_compiled,
    set_activation_budget,
)
from trainers.kernels.experts import compile_activation, experts_in_effect, routers_of, routing_in_effect
from trainers.kernels.family import family_kernels
from trainers.kernels.head import loss_in_effect, use_loss_head
from trainers.kernels.mlp import FusedMlp
from trainers.models.model import Model, attention_in_effect, set_factor
from trainers.spec.architectures import architecture_of
from trainers.spec.architectures.with_experts import WithExperts
from trainers.spec.layout import Layout

_OPS: Any = torch.ops
_SUM: Any = _OPS._c10d_functional.reduce_scatter_tensor.default
_WAIT: Any = _OPS._c10d_functional.wait_tensor.default
_SAVED = {
    _SUM,
    _OPS.aten.mm.default,
    _OPS.aten.addmm.default,
    _OPS.aten.linear.default,
    _OPS.aten._scaled_mm.default,
    _OPS.aten._grouped_mm.default,
    _OPS.aten._scaled_dot_product_flash_attention.default,
    _OPS.aten._scaled_dot_product_efficient_attention.default,
    _OPS.aten._scaled_dot_product_cudnn_attention.default,
    _OPS.aten._scaled_dot_product_flash_attention_for_cpu.default,
    _OPS.higher_order.flex_attention,
    _OPS.layout.gelu_of_product.default,
}
"""Outputs that selective checkpointing keeps: those of products with weights, summed over tensor-parallel ranks, and of
fused attention. Scores, norms and activations, which are cheap to compute or large to keep, are computed again.
"""
_THIN = 16
"""Least width of a product over its depth from which on it is thin; that of a model's own layers is 7 at most."""


def prepare(model: Model, layout: Layout) -> Model:
    """Gives the model the layout's loss, checkpointing and compiling, in place; returns it with its new units.

    Compiled code holds the checkpoint inside, torch's supported order: its partitioner then knows what is made again. A
    model compiled whole takes its loss along, and so does one whose vocabulary is cut over ranks. Around experts that
    ranks share out, whose rows no graph can hold, the parts of a block are compiled, and the checkpoint is outside.
    """
    set_activation_budget(layout.activation_budget)
    if layout.mlp != "plain":
        family_kernels(model.spec.architecture).fuse_mlp(model.module)
    softcap, factor = model.spec.logit_softcap, model.spec.logit_factor
    # Else it would take whatever a head or a pipeline's stage gives for logits.
    if softcap:
        setattr(model.module.config, architecture_of(model.spec.architecture).softcap_key, None)
    set_factor(model, architecture_of(model.spec.architecture).logit_factor, 1.0)
    changes_logits = softcap or factor != 1
    if model.has_head and (
        layout.loss != "plain" or layout.compile == "model" or layout.parts("width") > 1 or changes_logits
    ):
        use_loss_head(model.head, layout.loss, compiled=layout.compile == "block", softcap=softcap, factor=factor)
    units: list[nn.Module] = []
    for i, name, block in zip(model.block_indices, model.block_names, model.blocks, strict=True):
        unit = block
        if layout.checkpoint_every and i % layout.checkpoint_every == 0:
            unit = _checkpointed(block, layout)
            parent, _, key = name.rpartition(".")
            setattr(model.module.get_submodule(parent), key, unit)
        if layout.compile == "block":
            if layout.parts("experts") > 1:
                _compile_around_experts(model, block)
            else:
                compile_forward(unit)
        units.append(unit)
    if layout.compile == "model":
        compile_forward(model.module)
    return dataclasses.replace(model, units=tuple(units))


def _compile_around_experts(model: Model, block: nn.Module) -> None:
    family = architecture_of(model.spec.architecture)
    assert isinstance(family, WithExperts)
    for part in _around_experts(model, block):
        compile_forward(part)
    compile_activation(block.get_submodule(family.experts))


def _around_experts(model: Model, block: nn.Module) -> tuple[nn.Module, ...]:
    """Returns the parts of a block outside of its experts: attention, norms, the router and what else stands beside
    experts; none of a block without.
    """
    family = architecture_of(model.spec.architecture)
    if not isinstance(family, WithExperts):
        return ()
    experts = block.get_submodule(family.experts)
    around = block.get_submodule(family.experts.rpartition(".")[0])
    return tuple(part for parent in (block, around) for part in parent.children() if part not in (around, experts))


def kernels_in_effect(models: Sequence[Model], layout: Layout) -> dict[str, str | float | None]:
    """Returns what can be read back from the modules of `prepare`, and of the attention that models were built with.

    `models` are the whole model, or the stages of a pipeline that this rank runs. None stands for what a stage without
    a head or without blocks cannot show.
    """
    units = [unit for model in models for unit in model.units]
    heads = [model.head for model in models if model.has_head]
    attention = sorted({attention_in_effect(model.module) for model in models})
    return {
        "attention": "+".join(attention),
        "mlp": _mlp_in_effect(models),
        "experts": "+".join(sorted({_experts_in_effect(model) for model in models})),
        "routing": routing_in_effect(module for model in models for module in model.module.modules()),
        "balance_loss": balance_in_effect(
            [router for model in models for router in routers_of(model.module.modules())]
        ),
        "loss": loss_in_effect(heads[0]) if heads else None,
        "compile": _compile_in_effect(models, units),
        "checkpointing": _checkpointing_in_effect(models, layout),
        "dropout": _dropout_in_effect(models),
    }


def _checkpointed(block: nn.Module, layout: Layout) -> nn.Module:
    """Returns the block in a wrapper that repeats its forward pass, or the cheap part of it, in the backward pass.

    Dropout is off (see `trainers.models.model`), so the random state need not be kept.
    """
    settings: dict[str, Any] = {"preserve_rng_state": False}
    if layout.checkpointing == "selective":
        settings["context_fn"] = _selective_contexts
    elif (
        layout.compile == "block"
        and layout.parts("experts") == 1
        and layout.parts("width") * layout.parts("tokens") > 1
    ):
        settings["context_fn"] = _repeating_contexts
    return checkpoint_wrapper(block, checkpoint_impl=CheckpointImpl.NO_REENTRANT, **settings)


class _KeepsProducts:
    """The policy of selective checkpointing for one block.

    A tensor-parallel rank keeps its part of the sum over ranks, and compiled code therefore not the whole product that
    is summed, nor does it sum again. Inputs that are gathered, which are whole, it gathers again.
    """

    def __init__(self) -> None:
        self._sums = False

    def __call__(self, _context: Any, operation: Any, *operands: Any, **_kwargs: Any) -> CheckpointPolicy:
        is_kept = (operation in _SAVED and not _is_thin(operation, operands)) or (operation is _WAIT and self._sums)
        # A collective is waited for at once (`trainers.distributed.collectives`).
        self._sums = operation is _SUM
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


def _is_thin(operation: Any, operands: tuple[Any, ...]) -> bool:
    """Returns whether the operation is a product of few columns with few rows, as an adapter's second one is: as large
    to keep as its layer's, and cheap.
    """
    if operation is not _OPS.aten.mm.default:
        return False
    depth, width = operands[1].shape
    return _THIN * depth <= width


def _selective_contexts() -> Any:
    return create_selective_checkpoint_contexts(_KeepsProducts())


def _repeating_contexts() -> Any:
    """Has everything computed again: by itself torch 2.11's compiler would save what is gathered, whole tensors."""
    return create_selective_checkpoint_contexts(lambda *_, **__: CheckpointPolicy.PREFER_RECOMPUTE)


def _checkpointing_in_effect(models: Sequence[Model], layout: Layout) -> str | None:
    """Returns the layout's word for which of the blocks (as they were built) are checkpointed, or how many of how many.

    If several words mean the same blocks, as in a pipeline's stage of one block, the layout's word is returned.
    """
    places = [place for model in models for place in zip(model.block_indices, model.blocks, strict=True)]
    wrappers = [child for model in models for child in model.module.modules() if isinstance(child, CheckpointWrapper)]
    inside: list[Any] = [wrapper._checkpoint_wrapped_module for wrapper in wrappers]
    wrapped = [index for index, block in places if any(block is inner for inner in inside)]
    keywords: list[dict[str, Any]] = [getattr(wrapper.checkpoint_fn, "keywords", {}) for wrapper in wrappers]
    selective = sum(keyword.get("context_fn") is _selective_contexts for keyword in keywords)
    budget = activation_budget_in_effect()
    if not places:
        return None
    words: list[str] = []
    if budget != 1:
        words = [f"{len(wrapped)} blocks and a budget of {budget}" if wrappers else f"budget_{100 * budget:.0f}"]
    elif selective or len(wrapped) != len(wrappers):
        words = ["selective" if selective == len(wrapped) == len(places) else f"selective in {selective} blocks"]
    else:
        for word, interval in (("none", 0), ("full", 1), ("every_2", 2), ("every_4", 4)):
            if wrapped == [index for index, _ in places if interval and index % interval == 0]:
                words.append(word)
    if layout.checkpointing in words:
        return layout.checkpointing
    return words[0] if words else f"{len(wrapped)} of {len(places)} blocks"


def _dropout_in_effect(models: Sequence[Model]) -> float:
    """Returns the largest chance of dropping a value that any module has."""
    modules = [module for model in models for module in model.module.modules()]
    chances = [module.p for module in modules if isinstance(module, nn.Dropout)]
    chances += [value for module in modules for key, value in vars(module).items() if _is_chance(key, value)]
    return max(chances, default=0.0)


def _is_chance(key: str, value: Any) -> bool:
    return "dropout" in key and type(value) in (int, float)


def _mlp_in_effect(models: Sequence[Model]) -> str | None:
    """Returns the word of `mlp` for all blocks; None where this rank has none."""
    fused = [
        any(isinstance(module, FusedMlp) for module in block.modules()) for model in models for block in model.blocks
    ]
    if not fused or len(set(fused)) > 1:
        return f"quack in {sum(fused)} of {len(fused)} blocks" if fused else None
    return "quack" if all(fused) else "plain"


def _experts_in_effect(model: Model) -> str:
    """Returns the word of `experts`, which is that of the loop for models without any."""
    return experts_in_effect(model.module.config) if model.spec.num_experts else "loop"


def _compile_in_effect(models: Sequence[Model], units: Sequence[nn.Module]) -> str | None:
    """Returns "none", "block", "model", or how many blocks of how many have compiled code; None where there is no
    block.
    """
    if any(is_compiled(model.module) for model in models):
        return "model"
    blocks = ((model, block) for model in models for block in model.blocks)
    count = sum(
        is_compiled(unit) or (bool(parts := _around_experts(*place)) and all(map(is_compiled, parts)))
        for unit, place in zip(units, blocks, strict=True)
    )
    return {0: "none", len(units): "block"}.get(count, f"{count} of {len(units)} blocks") if units else None
