"""Prepares a model for an engine (loss, activation checkpointing, compiling) and reads back the settings in effect."""

# The settings in effect are in private attributes only.
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
from trainers.models.model import Model, attention_in_effect, drop_factor
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
"""Operations whose outputs selective checkpointing keeps: products with weights, their sums over tensor-parallel ranks,
and fused attention. Scores, norms and activations are recomputed, because they are cheap to compute or large to keep.
"""
_THIN = 16
"""Least ratio of a product's width to its depth for it to be thin; the ratio of a model's own layers is 7 at most."""


def prepare(model: Model, layout: Layout) -> Model:
    """Applies the layout's loss, checkpointing and compiling to the model in place; returns the model with its new
    units.

    Compiled code includes the checkpoint, the order that torch supports, so that its partitioner knows which operations
    are recomputed. A model compiled whole includes its loss, and so does a model with a vocabulary cut over ranks. With
    expert parallelism a block's parts around the experts are compiled, because no graph can contain the exchange of
    rows; the checkpoint is then outside.
    """
    set_activation_budget(layout.activation_budget)
    if layout.mlp != "plain":
        family_kernels(model.spec.architecture).fuse_mlp(model.module)
    softcap, factor = model.spec.logit_softcap, model.spec.logit_factor
    # Otherwise transformers would apply them to any output of a head or a pipeline stage.
    if softcap:
        setattr(model.module.config, architecture_of(model.spec.architecture).softcap_key, None)
    drop_factor(model, architecture_of(model.spec.architecture).logit_factor)
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
    """Returns the parts of a block outside its experts: attention, norms, router and shared expert; empty for a block
    without experts.
    """
    family = architecture_of(model.spec.architecture)
    if not isinstance(family, WithExperts):
        return ()
    experts = block.get_submodule(family.experts)
    around = block.get_submodule(family.experts.rpartition(".")[0])
    return tuple(part for parent in (block, around) for part in parent.children() if part not in (around, experts))


def kernels_in_effect(models: Sequence[Model], layout: Layout) -> dict[str, str | float | None]:
    """Returns the settings read back from the modules of `prepare` and from the models' attention. `models` are the
    whole model, or this rank's pipeline stages. None is a value that a stage without a head or without blocks cannot
    show.
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
    """Returns the block in a wrapper that recomputes its forward pass, or the cheap part of it, in the backward pass.
    Dropout is off (see `trainers.models.model`), so the random state is not saved.
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

    A tensor-parallel rank keeps its part of the sum over ranks. Compiled code therefore neither keeps the whole product
    nor sums again. Gathered inputs, which are whole, are gathered again.
    """

    def __init__(self) -> None:
        self._sums = False

    def __call__(self, _context: Any, operation: Any, *operands: Any, **_kwargs: Any) -> CheckpointPolicy:
        is_kept = (operation in _SAVED and not _is_thin(operation, operands)) or (operation is _WAIT and self._sums)
        # Each collective is awaited directly after its start (`trainers.distributed.collectives`).
        self._sums = operation is _SUM
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


def _is_thin(operation: Any, operands: tuple[Any, ...]) -> bool:
    """Returns whether the operation is a thin product, such as an adapter's second product: its output is as large to
    keep as its layer's, and cheap to compute.
    """
    if operation is not _OPS.aten.mm.default:
        return False
    depth, width = operands[1].shape
    return _THIN * depth <= width


def _selective_contexts() -> Any:
    return create_selective_checkpoint_contexts(_KeepsProducts())


def _repeating_contexts() -> Any:
    """Returns contexts that recompute everything; torch 2.11's compiler would save gathered (whole) tensors."""
    return create_selective_checkpoint_contexts(lambda *_, **__: CheckpointPolicy.PREFER_RECOMPUTE)


def _checkpointing_in_effect(models: Sequence[Model], layout: Layout) -> str | None:
    """Returns the checkpointing of the blocks as built, in the layout's words, or how many of how many blocks are
    checkpointed. If several words describe the same blocks, as in a pipeline stage of one block, returns the layout's
    word.
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
    """Returns the largest dropout probability of any module."""
    modules = [module for model in models for module in model.module.modules()]
    chances = [module.p for module in modules if isinstance(module, nn.Dropout)]
    chances += [value for module in modules for key, value in vars(module).items() if _is_chance(key, value)]
    return max(chances, default=0.0)


def _is_chance(key: str, value: Any) -> bool:
    return "dropout" in key and type(value) in (int, float)


def _mlp_in_effect(models: Sequence[Model]) -> str | None:
    """Returns the value of `mlp` for all blocks; None if this rank has none."""
    fused = [
        any(isinstance(module, FusedMlp) for module in block.modules()) for model in models for block in model.blocks
    ]
    if not fused or len(set(fused)) > 1:
        return f"quack in {sum(fused)} of {len(fused)} blocks" if fused else None
    return "quack" if all(fused) else "plain"


def _experts_in_effect(model: Model) -> str:
    """Returns the value of `experts`; "loop" for models without experts."""
    return experts_in_effect(model.module.config) if model.spec.num_experts else "loop"


def _compile_in_effect(models: Sequence[Model], units: Sequence[nn.Module]) -> str | None:
    """Returns "none", "block", "model", or how many of how many blocks are compiled; None without blocks."""
    if any(is_compiled(model.module) for model in models):
        return "model"
    blocks = ((model, block) for model in models for block in model.blocks)
    count = sum(
        is_compiled(unit) or (bool(parts := _around_experts(*place)) and all(map(is_compiled, parts)))
        for unit, place in zip(units, blocks, strict=True)
    )
    return {0: "none", len(units): "block"}.get(count, f"{count} of {len(units)} blocks") if units else None
