"""The engines behind one interface. A new one is one file, one line in `_REGISTRY`, one line in the contract test."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from trainers import lean
from trainers.engines.step import Marks, StepResult
from trainers.layout import Layout
from trainers.recipe import Recipe

if TYPE_CHECKING:
    import torch

    from trainers.models import Model

_REGISTRY = {
    "ddp": "trainers.engines.ddp:DdpEngine",
    "fsdp": "trainers.engines.fsdp:FsdpEngine",
    "deepspeed": "trainers.engines.deepspeed:DeepSpeedEngine",
}


class Engine(Protocol):
    """One model laid out on the ranks of the default process group, ready to train.

    Made by `create` on every rank at once. No method but `close`, `in_effect`, `num_skipped_steps` and
    `named_full_weights` syncs the host with the device unless the engine's library does so itself.
    """

    def __init__(self, recipe: Recipe, layout: Layout, device: "torch.device") -> None:
        """Builds the model on the meta device, lays it out, fills the weights (see `trainers.weights`)."""
        ...

    @property
    def model(self) -> "Model":
        """The model as it was built: its modules are those that run."""
        ...

    @property
    def marks_micro_steps(self) -> bool:
        """Whether a step marks each of its micro-steps. Where not, its schedule interleaves them and is timed whole."""
        ...

    def step(self, micro_batches: "Sequence[torch.Tensor]", marks: Marks) -> StepResult:
        """One optimizer step over this rank's micro-batches; marks the phases as they begin.

        Each of `micro_batches` is int64 [micro_batch, seq_len + 1] on the device, the same on all ranks that share a
        data-parallel coordinate. The gradient is that of the mean loss over all micro-batches and data-parallel ranks,
        clipped. The result is this rank's alone: no collective is added for it, the caller combines ranks.
        """
        ...

    def set_learning_rate(self, learning_rate: float) -> None:
        """Takes another learning rate from the next optimizer step on."""
        ...

    def num_skipped_steps(self) -> int:
        """Optimizer steps left out so far because fp16 gradients overflowed."""
        ...

    def logits(self, tokens: "torch.Tensor") -> "torch.Tensor":
        """Logits [batch, seq_len, vocab] of int64 [batch, seq_len] tokens, without gradient; a collective."""
        ...

    def in_effect(self) -> Mapping[str, Any]:
        """What the engine really runs, read back from its own objects, under the names of Layout and Recipe.

        `mismatches` compares it with what was asked for. None stands for what cannot be told before a step has run.
        """
        ...

    def named_full_weights(self) -> Iterator[tuple[str, "torch.Tensor"]]:
        """Master weights, whole, by their name in the plain transformers model; a collective: call it on all ranks."""
        ...

    def close(self) -> None:
        """Lets go of hooks and buffers; the process group stays."""
        ...


def create(recipe: Recipe, layout: Layout, device: "torch.device") -> Engine:
    """The engine that `layout` names, built. Imports that engine's library only.

    Raises:
        ValueError: no such engine.
    """
    return load(layout.engine)(recipe, layout, device)


def load(name: str) -> type[Engine]:
    """The class of that engine; imports its library, which may take seconds.

    Raises:
        ValueError: no such engine.
    """
    if name not in _REGISTRY:
        raise ValueError(f"unknown engine {name!r}: there are {', '.join(_REGISTRY)}")
    module, _, kind = _REGISTRY[name].partition(":")
    with lean.imports():
        return getattr(importlib.import_module(module), kind)


def mismatches(in_effect: Mapping[str, Any], recipe: Recipe, layout: Layout, *, grad_accum: int) -> list[str]:
    """A sentence for each point where what an engine runs is not what was asked for; empty when all is well."""
    wanted: dict[str, Any] = {
        "engine": layout.engine,
        "zero_stage": layout.zero_stage,
        "dp_replicate": layout.dp_replicate,
        "dp_shard": layout.dp_shard,
        "world_size": layout.world_size,
        "grad_accum": grad_accum,
        "grad_sync": layout.grad_sync,
        "checkpointing": layout.checkpointing,
        "offload": layout.offload,
        "attention": layout.attention,
        "loss": layout.loss,
        "compile": layout.compile,
        "compute_precision": recipe.compute_precision,
        "product_sums": "fp32",
        "state_precision": recipe.state_precision,
        "optimizer": recipe.optimizer,
        "learning_rate": recipe.learning_rate,
        "weight_decay": recipe.weight_decay,
    }
    if recipe.optimizer == "adamw":
        wanted |= {name: getattr(recipe, name) for name in ("beta1", "beta2", "epsilon")} | {"fused": True}
    # Gradients travel and are added up in the states' type, where an engine has a setting for it.
    sums = ("reduce_precision", "accumulation_precision")
    wanted |= {name: recipe.state_precision for name in sums if name in in_effect}
    # Engines without compression, or that cannot reshard to fewer ranks, have nothing to tell of it.
    for name, value, nothing in (("compression", recipe.compression, "none"), ("reshard", layout.reshard, 0)):
        if value != nothing or name in in_effect:
            wanted[name] = value
    # 0 and "default" ask for the library's own choice, whatever that is.
    wanted |= {name: getattr(layout, name) for name in ("bucket_mib", "prefetch") if getattr(layout, name)}
    if layout.overlap != "default":
        wanted["overlap"] = layout.overlap
    untold = [name for name in wanted if name not in in_effect]
    wrong = [
        f"{name} in effect is {in_effect[name]}, the layout or recipe asks for {value}"
        for name, value in wanted.items()
        if name in in_effect and in_effect[name] is not None and in_effect[name] != value
    ]
    return [f"the engine does not tell its {name}, {wanted[name]} was asked for" for name in untold] + wrong
