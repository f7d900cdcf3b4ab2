"""`Layout` and `BatchPoint`: everything that must not change the mathematics."""

import dataclasses
import functools
from typing import Literal, get_args

from trainers.codec import identity
from trainers.recipe import Recipe

EngineName = Literal["ddp", "fsdp", "deepspeed"]
GradSync = Literal["every", "last"]
Checkpointing = Literal["none", "selective", "every_4", "every_2", "full"]
Offload = Literal["none", "optimizer", "all"]
Attention = Literal["eager", "sdpa", "flex"]
Loss = Literal["plain", "chunked"]
Compile = Literal["none", "block", "model"]

AXES = ("dp_replicate", "dp_shard", "tp", "pp", "cp")
"""Mesh axes, outermost first."""
_NAMES = {
    "engine": get_args(EngineName),
    "grad_sync": get_args(GradSync),
    "checkpointing": get_args(Checkpointing),
    "offload": get_args(Offload),
    "attention": get_args(Attention),
    "loss": get_args(Loss),
    "compile": get_args(Compile),
}
_STAGES = {"ddp": (0,), "fsdp": (2, 3), "deepspeed": (0, 1, 2, 3)}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """One way to lay a recipe out on devices. What needs a fresh process group or model stands here.

    Raises:
        ValueError: an unknown name, a degree below 1, or a combination that no engine can mean.
    """

    engine: EngineName
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
    """What is computed again in the backward pass: nothing, all but products and attention of every block, or all of
    every fourth, every second or every block."""
    offload: Offload = "none"
    bucket_mib: int = 0
    """Size of a gradient bucket; 0 for the engine's own default."""
    prefetch: int = 0
    """How many units FSDP2 gathers ahead explicitly; 0 for its own order."""
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
        for field in ("bucket_mib", "prefetch"):
            if getattr(self, field) < 0:
                raise ValueError(f"{field} must not be negative, got {getattr(self, field)}")
        stages = _STAGES[self.engine]
        if self.zero_stage not in stages:
            wanted = ", ".join(map(str, stages))
            raise ValueError(f"zero_stage of {self.engine} must be one of {wanted}, got {self.zero_stage}")
        if self.zero_stage == 0 and self.dp_shard > 1:
            raise ValueError(f"{self.engine} at stage 0 shards nothing: dp_shard must be 1, got {self.dp_shard}")
        if self.engine == "deepspeed" and self.zero_stage > 0 and self.dp_replicate > 1:
            raise ValueError(
                f"DeepSpeed ZeRO-{self.zero_stage} shards over all data-parallel ranks:"
                f" dp_replicate must be 1, got {self.dp_replicate}"
            )
        if self.engine == "deepspeed" and self.zero_stage >= 2 and self.grad_sync == "last":
            raise ValueError(
                f"DeepSpeed ZeRO-{self.zero_stage} reduces gradients at every micro-step: grad_sync must be 'every'"
            )
        if self.engine == "deepspeed" and self.zero_stage < 2 and self.grad_sync == "every":
            raise ValueError(
                f"DeepSpeed ZeRO-{self.zero_stage} reduces gradients at the last micro-step: grad_sync must be 'last'"
            )
        if self.prefetch and self.engine != "fsdp":
            raise ValueError(f"prefetch is an axis of fsdp, got prefetch {self.prefetch} with {self.engine}")

    @property
    def id(self) -> str:
        """Hash of what defines the layout."""
        return _identity(self)

    @property
    def data_parallel(self) -> int:
        """Ranks that see different sequences."""
        return self.dp_replicate * self.dp_shard

    @property
    def world_size(self) -> int:
        """Devices the layout takes: the product of its degrees."""
        return self.data_parallel * self.tp * self.pp * self.cp

    @property
    def checkpoint_every(self) -> int:
        """Distance between checkpointed blocks, of which the first one is the first; 0 for none."""
        return {"none": 0, "every_4": 4, "every_2": 2}.get(self.checkpointing, 1)

    @property
    def label(self) -> str:
        """One short line for people; fields at their plain value are left out."""
        names = {"ddp": "DDP", "fsdp": f"FSDP2 stage {self.zero_stage}", "deepspeed": f"ZeRO-{self.zero_stage}"}
        parts = [names[self.engine]]
        if self.engine == "fsdp" and self.dp_replicate > 1:
            parts.append(f"replicate {self.dp_replicate} x shard {self.dp_shard}")
        parts += [f"{axis} {getattr(self, axis)}" for axis in ("tp", "pp", "cp") if getattr(self, axis) > 1]
        if self.engine in ("ddp", "fsdp") and self.data_parallel > 1:
            parts.append(f"sync {self.grad_sync}")
        if self.checkpointing != "none":
            word = {"every_4": "every fourth", "every_2": "every second"}.get(self.checkpointing, self.checkpointing)
            parts.append(f"{word} block checkpointed" if self.checkpoint_every > 1 else f"{word} checkpointing")
        if self.offload != "none":
            parts.append(f"offload {self.offload}")
        if self.bucket_mib:
            parts.append(f"buckets {self.bucket_mib} MiB")
        if self.prefetch:
            parts.append(f"prefetch {self.prefetch}")
        parts.append(self.attention)
        if self.loss != "plain":
            parts.append(f"{self.loss} loss")
        if self.compile != "none":
            parts.append(f"compile {self.compile}")
        return ", ".join(parts)


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

    @classmethod
    def of(cls, recipe: Recipe, layout: Layout, micro_batch: int) -> "BatchPoint":
        """The point of `recipe` on `layout` at `micro_batch`: grad_accum follows from the global batch.

        Raises:
            ValueError: micro_batch x data-parallel size does not divide the global batch.
        """
        per_micro_step = micro_batch * layout.data_parallel
        if micro_batch < 1 or recipe.global_batch % per_micro_step:
            raise ValueError(
                f"global batch {recipe.global_batch} is not a multiple of micro_batch {micro_batch}"
                f" x {layout.data_parallel} data-parallel ranks"
            )
        return cls(micro_batch=micro_batch, grad_accum=recipe.global_batch // per_micro_step)


# Asked for at every measurement of a study, which has ten thousand of them over some thousand layouts.
_identity = functools.lru_cache(maxsize=1 << 16)(identity)
