"""`Layout` and `BatchPoint`: everything that must not change the mathematics."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Literal, get_args

from trainers.codec import identity, shortened
from trainers.engines import engines_with, rules_of
from trainers.engines.rules import Rules
from trainers.recipe import LARGEST_BATCH, Recipe

GradSync = Literal["every", "last"]
Checkpointing = Literal["none", "selective", "every_4", "every_2", "full", "budget_75", "budget_50", "budget_25"]
Offload = Literal["none", "optimizer", "all"]
Attention = Literal["eager", "sdpa", "flex"]
Overlap = Literal["default", "on", "off"]
Loss = Literal["plain", "chunked"]
Compile = Literal["none", "block", "model"]

LARGEST = 10**6
"""Of a degree and of a bucket's MiB: a larger one is a slip of the keyboard."""
AXES = ("dp_replicate", "dp_shard", "tp", "pp", "cp")
"""Mesh axes, outermost first."""
_OF_SOME_ENGINES = ("overlap", "prefetch", "reshard")
"""Fields that mean nothing in other engines than those whose rules name them."""
_NAMES = {
    "grad_sync": get_args(GradSync),
    "checkpointing": get_args(Checkpointing),
    "offload": get_args(Offload),
    "attention": get_args(Attention),
    "overlap": get_args(Overlap),
    "loss": get_args(Loss),
    "compile": get_args(Compile),
}


@dataclasses.dataclass(frozen=True, kw_only=True)  # no slots: the id is kept beside the fields
class Layout:
    """One way to lay a recipe out on devices. What needs a fresh process group or model stands here.

    Raises:
        ValueError: an unknown name, a degree below 1, or a combination that no engine can mean.
    """

    engine: str
    """One of `trainers.engines.names`, or the import path of an engine outside this project, "package.module:NAME"."""
    zero_stage: int = 0
    """What is sharded over `dp_shard`: 0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too.

    The stages of ZeRO (arXiv 1910.02054). For FSDP2, 3 reshards parameters after the forward pass, 2 keeps them.
    """
    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    grad_sync: GradSync = "last"
    """Whether gradients are reduced after "every" micro-step or only after the "last" one of a step."""
    checkpointing: Checkpointing = "none"
    """What is computed again in the backward pass: nothing, all but products and attention of every block, all of every
    fourth, every second or every block, or what a compiler finds cheapest to keep no more than that share (per cent)
    of what it would keep by itself."""
    offload: Offload = "none"
    bucket_mib: int = 0
    """Size of a gradient bucket; 0 for the engine's own default."""
    overlap: Overlap = dataclasses.field(default="default", metadata={"later": True})
    """Whether DeepSpeed's stages 1 to 3 communicate beside their computing; by default stage 3 alone does."""
    prefetch: int = 0
    """How many blocks FSDP2, or DeepSpeed's stage 3, gathers ahead; 0 for the engine's own choice.

    Stage 3 then keeps no more parameters gathered than these, one block's and those outside the blocks.
    """
    reshard: int = dataclasses.field(default=0, metadata={"later": True})
    """Ranks that FSDP2's stage 3 spreads a block's parameters over between its two passes; 0 for all of `dp_shard`."""
    attention: Attention = "eager"
    loss: Loss = "plain"
    """Over all logits at once, or "chunked": over some rows at a time, gradients along with them."""
    compile: Compile = "none"
    """Nothing, each block (one graph for all of them), or the whole model with its loss."""

    def __post_init__(self) -> None:
        for field, names in _NAMES.items():
            if getattr(self, field) not in names:
                raise ValueError(f"{field} must be one of {', '.join(names)}, got {getattr(self, field)!r}")
        for axis in AXES:
            if getattr(self, axis) < 1:
                raise ValueError(f"{axis} must be at least 1, got {getattr(self, axis)}")
        for field in (*AXES, "bucket_mib", "prefetch", "reshard"):
            if getattr(self, field) > LARGEST:
                raise ValueError(f"{field} must be at most 10^6, got {shortened(getattr(self, field))}")
        for field in ("bucket_mib", "prefetch", "reshard"):
            if getattr(self, field) < 0:
                raise ValueError(f"{field} must not be negative, got {getattr(self, field)}")
        rules = rules_of(self.engine)
        for sentence in (*rules.contradictions(self), *self._missing_axes(rules)):
            raise ValueError(sentence)
        if self.reshard == 1:
            raise ValueError("reshard is a number of ranks, 2 or more, got 1: zero_stage 2 keeps parameters whole")

    def _missing_axes(self, rules: Rules) -> Iterator[str]:
        """A sentence for each axis that is not at its default and that the engine has not at this stage."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            stages = rules.axes.get(field.name, ())
            if field.name in _OF_SOME_ENGINES and value != field.default and self.zero_stage not in stages:
                yield (
                    f"{field.name} is an axis of {engines_with(field.name)}, got {field.name} {value} with"
                    f" {self.engine} at stage {self.zero_stage}"
                )

    @functools.cached_property
    def id(self) -> str:
        """Hash of what defines the layout."""
        return _identity(self)

    @property
    def data_parallel(self) -> int:
        """Ranks that see different sequences."""
        return self.dp_replicate * self.dp_shard

    def data_parallel_rank(self, rank: int) -> int:
        """The data-parallel coordinate of global `rank`: ranks that share it see the same sequences.

        Data-parallel axes are the outermost (`AXES`), as in the mesh that engines make.
        """
        return rank // (self.world_size // self.data_parallel)

    @property
    def world_size(self) -> int:
        """Devices the layout takes: the product of its degrees."""
        return self.data_parallel * self.tp * self.pp * self.cp

    @property
    def checkpoint_every(self) -> int:
        """Distance between checkpointed blocks, of which the first one is the first; 0 for none."""
        return {"none": 0, "every_4": 4, "every_2": 2, "selective": 1, "full": 1}.get(self.checkpointing, 0)

    @property
    def activation_budget(self) -> float:
        """Share of its activations that compiled code may keep: 1 unless `checkpointing` is a budget."""
        return activation_budget(self.checkpointing)

    @property
    def label(self) -> str:
        """One short line for people; fields at their plain value are left out."""
        rules = rules_of(self.engine)
        parts = [rules.label(self)]
        if self.zero_stage and self.dp_replicate > 1:
            parts.append(f"replicate {self.dp_replicate} x shard {self.dp_shard}")
        parts += [f"{axis} {getattr(self, axis)}" for axis in ("tp", "pp", "cp") if getattr(self, axis) > 1]
        if rules.chooses_sync(self):
            parts.append(f"sync {self.grad_sync}")
        if self.checkpointing != "none":
            word = {"every_4": "every fourth", "every_2": "every second"}.get(self.checkpointing, self.checkpointing)
            if self.activation_budget < 1:
                parts.append(f"{self.activation_budget:.0%} of activations kept")
            else:
                parts.append(f"{word} block checkpointed" if self.checkpoint_every > 1 else f"{word} checkpointing")
        if self.offload != "none":
            parts.append(f"offload {self.offload}")
        if self.bucket_mib:
            parts.append(f"buckets {self.bucket_mib} MiB")
        if self.overlap != "default":
            parts.append(f"overlap {self.overlap}")
        if self.prefetch:
            parts.append(f"prefetch {self.prefetch}")
        if self.reshard:
            parts.append(f"reshard to {self.reshard}")
        parts.append(self.attention)
        if self.loss != "plain":
            parts.append(f"{self.loss} loss")
        if self.compile != "none":
            parts.append(f"compile {self.compile}")
        return ", ".join(parts)


def activation_budget(checkpointing: str) -> float:
    """`Layout.activation_budget` by the word alone."""
    name, _, percent = checkpointing.partition("_")
    return int(percent) / 100 if name == "budget" else 1.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BatchPoint:
    """How the global batch is cut: `micro_batch` sequences a rank and micro-step, `grad_accum` micro-steps a step.

    Raises:
        ValueError: either is below 1.
    """

    micro_batch: int
    grad_accum: int

    def __post_init__(self) -> None:
        for field in ("micro_batch", "grad_accum"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, got {getattr(self, field)}")
            if getattr(self, field) > LARGEST_BATCH:
                raise ValueError(f"{field} must be at most 10^12, got {shortened(getattr(self, field))}")

    @classmethod
    def of(cls, recipe: Recipe, layout: Layout, micro_batch: int) -> "BatchPoint":
        """The point of `recipe` on `layout` at `micro_batch`: grad_accum follows from the global batch, unless the
        recipe fixes it.

        Raises:
            ValueError: micro_batch x data-parallel size does not divide the global batch.
        """
        if recipe.grad_accum:
            return cls(micro_batch=micro_batch, grad_accum=recipe.grad_accum)
        per_micro_step = micro_batch * layout.data_parallel
        if micro_batch < 1 or recipe.global_batch % per_micro_step:
            raise ValueError(
                f"global batch {recipe.global_batch} is not a multiple of micro_batch {micro_batch}"
                f" x {layout.data_parallel} data-parallel ranks"
            )
        return cls(micro_batch=micro_batch, grad_accum=recipe.global_batch // per_micro_step)

    def global_batch(self, layout: Layout) -> int:
        """Sequences in one optimizer step on `layout`, over all ranks."""
        return self.micro_batch * self.grad_accum * layout.data_parallel


def divides(recipe: Recipe, layout: Layout, micro_batch: int) -> bool:
    """Whether `micro_batch` x data-parallel ranks divide the recipe's global batch, or the accumulation is fixed."""
    return not recipe.global_batch % (micro_batch * layout.data_parallel)


# Asked for at every measurement of a study, which has ten thousand of them over some thousand layouts.
_identity = functools.lru_cache(maxsize=1 << 16)(identity)
