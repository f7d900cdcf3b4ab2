"""The axes of a `Layout`, each with its declaration; see `trainers.spec.axis`."""

import dataclasses
from typing import Literal

from trainers.spec.axis import axis
from trainers.spec.degree import DegreeValues, cutting, degree, degrees_of, mesh_axes, placed
from trainers.spec.division import experts_of_block, long_pieces, most_stages, widths

GradSync = Literal["every", "last"]
Checkpointing = Literal["none", "selective", "every_4", "every_2", "full", "budget_75", "budget_50", "budget_25"]
Offload = Literal["none", "moments", "optimizer", "all"]
Attention = Literal["eager", "sdpa", "flex", "flash4"]
Overlap = Literal["default", "on", "off"]
Mlp = Literal["plain", "quack"]
Experts = Literal["loop", "grouped"]
Loss = Literal["plain", "chunked", "quack"]
Compile = Literal["none", "block", "model"]
Schedule = Literal["1f1b", "interleaved"]
CudaGraphs = Literal["off", "on"]
AfterBackward = Literal["free", "keep"]
Fp8Weights = Literal["cast", "kept"]
CpExchange = Literal["gather", "all_to_all"]


def activation_budget(checkpointing: str) -> float:
    """Returns the share (0 to 1] of activations that compiled code may keep under `checkpointing`; 1 if it is not a
    budget.
    """
    name, _, percent = checkpointing.partition("_")
    return int(percent) / 100 if name == "budget" else 1.0


def _checkpointing_words(value: str) -> str:
    if (share := activation_budget(value)) < 1:
        return f"{share:.0%} of activations kept"
    word = {"every_4": "every fourth", "every_2": "every second"}.get(value, value)
    return f"{word} block checkpointed" if word != value else f"{word} checkpointing"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayoutAxes(DegreeValues):
    """The fields of a `Layout`, in the order of labels and tables, and quantities that follow from some of them.

    Rules of engines take this class, because a `Layout` asks them whether its fields may be combined.
    """

    engine: str = axis(
        column="engine",
        about="The engine that trains: one of this project by its name, or another by the import path of its rules.",
    )
    zero_stage: int = axis(
        0,
        column="sharding",
        parameter=False,
        lighter=(0, 1, 2, 3),
        about="States sharded over `dp_shard` (arXiv 1910.02054): 0 nothing, 1 optimizer states, 2 gradients too, 3"
        " parameters too. FSDP2's stage 3 reshards parameters after the forward pass.",
    )
    dp_replicate: int = degree(
        cuts="samples",
        place=4,
        of_number="no memory",
        about="Data-parallel groups that each hold the whole model.",
    )
    dp_shard: int = degree(
        cuts="samples",
        place=3,
        parameter=False,
        of_number="lighter",
        about="Data-parallel ranks that share one copy of what is sharded.",
    )
    tp: int = degree(
        label="tp {}",
        read_back="if known",
        cuts="width",
        place=0,
        stays_in_node=True,
        sizes=widths,
        tried=(1, 2, 4, 8),
        about="Tensor-parallel degree.",
    )
    pp: int = degree(
        label="pp {}",
        read_back="if known",
        cuts="depth",
        place=5,
        largest=most_stages,
        tried=(1, 2, 4, 8),
        about="Pipeline stages.",
    )
    cp: int = degree(
        label="cp {}",
        read_back="if known",
        cuts="tokens",
        place=2,
        pieces=2,
        tried=(1, 2, 4, 8),
        worth=long_pieces,
        about="Context-parallel degree.",
    )
    cp_exchange: CpExchange = axis(
        "gather",
        later=True,
        label="cp by {}",
        column="kernels",
        note="cp by {}",
        read_back="if known",
        of_some_engines=True,
        about="Context-parallel ranks gather all keys and values, or exchange heads (arXiv 2309.14509).",
    )
    ep: int = degree(
        later=True,
        label="ep {}",
        read_back="if known",
        cuts="experts",
        place=1,
        multiplies=False,
        sizes=experts_of_block,
        about="Expert-parallel degree: neighbouring ranks of `dp_shard` and `cp` that divide the experts of every block"
        " and exchange their tokens' rows.",
    )
    schedule: Schedule = axis(
        "1f1b",
        later=True,
        label="{}",
        column="options",
        note="schedule {}",
        read_back="if set",
        of_some_engines=True,
        about="Order of a pipeline's micro-batches: one forward, one backward, or that over virtual stages of each"
        " rank (arXiv 2104.04473, section 2.2).",
    )
    virtual: int = axis(
        1,
        later=True,
        label="virtual {}",
        table="vp",
        column="degrees",
        read_back="if set",
        of_some_engines=True,
        least=1,
        about="Virtual stages of each rank in an interleaved pipeline, by which the bubble is divided.",
    )
    grad_sync: GradSync = axis(
        "last",
        label="sync {}",
        column="options",
        lighter=("last", "every"),
        about="Gradients are reduced after every micro-step, or after a step's last one.",
    )
    checkpointing: Checkpointing = axis(
        "none",
        label=_checkpointing_words,
        short="ckpt {}",
        table="activation_ckpt",
        column="checkpointing",
        lighter=("none", "selective", "full"),
        surely_lighter=True,
        about="Activations recomputed in the backward pass: none; all but those of products and attention; all of every"
        " fourth, every second or every block; or a compiler's choice that keeps this share (per cent).",
    )
    offload: Offload = axis(
        "none",
        label="offload {}",
        column="options",
        lighter=("none", "moments", "optimizer", "all"),
        surely_lighter=True,
        fills_host=True,
        about="What is in host memory: nothing; AdamW's moments, which pass through the device's step; or all states of"
        " the optimizer, which steps on the host; or parameters too.",
    )
    bucket_mib: int = axis(
        0,
        label="buckets {} MiB",
        column="options",
        note="buckets of {} MiB",
        read_back="if set",
        least=0,
        about="MiB of a gradient bucket; 0 for the engine's own default.",
    )
    overlap: Overlap = axis(
        "default",
        later=True,
        label="overlap {}",
        column="options",
        note="overlap {}",
        read_back="if set",
        of_some_engines=True,
        of_the_stack=True,
        about="Whether DeepSpeed overlaps communication with compute; by default only stage 3 does.",
    )
    prefetch: int = axis(
        0,
        label="prefetch {}",
        column="options",
        note="prefetch {}",
        read_back="if set",
        of_some_engines=True,
        least=0,
        counts_blocks=True,
        about="Blocks gathered ahead; 0 for the engine's own choice.",
    )
    reshard: int = axis(
        0,
        later=True,
        label="reshard to {}",
        column="options",
        note="reshard to {}",
        read_back="if known",
        of_some_engines=True,
        least=0,
        about="Ranks that hold a block's parameters between its two passes; 0 for all of `dp_shard`.",
    )
    after_backward: AfterBackward = axis(
        "free",
        later=True,
        label="{} after backward",
        column="options",
        note="{} after backward",
        read_back="if set",
        of_some_engines=True,
        lighter=("keep", "free"),
        about="Whether stage 3 frees gathered blocks after a backward pass or keeps them for the next forward pass.",
    )
    attention: Attention = axis(
        "eager",
        label="{}",
        always_shown=True,
        column="kernels",
        about="The kernels that compute attention: transformers' own, torch's scaled_dot_product_attention,"
        " FlexAttention, or FlexAttention by FlashAttention-4's kernels.",
    )
    mlp: Mlp = axis(
        "plain",
        later=True,
        label="{} MLP",
        column="kernels",
        note="{} MLP",
        read_back="if known",
        about="Feed-forward blocks of transformers, or with GELU inside their products (quack-kernels).",
    )
    experts: Experts = axis(
        "loop",
        later=True,
        label="{} experts",
        column="kernels",
        note="{} experts",
        read_back="if known",
        about="Experts one after another, as transformers computes them, or all at once: one grouped product for gate"
        " and up, one for down.",
    )
    loss: Loss = axis(
        "plain",
        label="{} loss",
        column="kernels",
        about="Loss over all logits at once, or over some rows at a time with their gradients, by compiled code or"
        " quack-kernels.",
    )
    compile: Compile = axis(
        "none",
        label="compile {}",
        column="kernels",
        about="Code that torch.compile compiles: none, each block, or the whole model with its loss.",
    )
    cuda_graphs: CudaGraphs = axis(
        "off",
        later=True,
        label="CUDA graphs",
        column="kernels",
        note="CUDA graphs",
        read_back="if set",
        of_some_engines=True,
        about="Micro-steps launched kernel by kernel, or each as one CUDA graph.",
    )
    fp8_weights: Fp8Weights = axis(
        "cast",
        later=True,
        label="FP8 weights {}",
        column="options",
        note="FP8 weights {}",
        read_back="if set",
        of_some_engines=True,
        lighter=("kept", "cast"),
        about="FP8 weights cast in both passes of each micro-step, or once a step and kept, a byte each (FSDP2's stage"
        " 2 keeps those that it gathers).",
    )
    flags: str = axis(
        "",
        later=True,
        label="{}",
        column="options",
        note="{}",
        read_back="if known",
        about="Values of the axes of a user's own training; this project's engines have none.",
    )

    @property
    def shards(self) -> int:
        """Number of ranks that share one copy of the sharded states; ranks with other tokens of the same sequence count
        too.
        """
        return self.dp_shard * self.parts("tokens")

    @property
    def degrees(self) -> str:
        """The degrees of the mesh as text: data parallel always, the others if above 1."""
        data_parallel = f"dp {self.dp_replicate}x{self.dp_shard}" if self.is_hybrid else f"dp {self.data_parallel}"
        return " ".join([data_parallel, *self.axis_labels("degrees").values()])

    @property
    def replicas(self) -> str:
        """Text on the replicas of a sharded model; empty if it has one replica."""
        is_shown = self.zero_stage and self.dp_replicate > 1
        return f"replicate {self.dp_replicate} x shard {self.dp_shard}" if is_shown else ""

    @property
    def is_hybrid(self) -> bool:
        """Whether parameters are sharded within groups of ranks and replicated between the groups."""
        return self.dp_replicate > 1 and self.dp_shard > 1

    def data_parallel_rank(self, rank: int) -> int:
        """Returns the data-parallel coordinate of global `rank`; ranks with the same one see the same sequences."""
        coordinates = self.coordinates(rank)
        return coordinates["dp_replicate"] * self.dp_shard + coordinates["dp_shard"]

    @property
    def checkpoint_every(self) -> int:
        """Distance in blocks between checkpointed blocks, counted from the first; 0 for none."""
        return {"none": 0, "every_4": 4, "every_2": 2, "selective": 1, "full": 1}.get(self.checkpointing, 0)

    @property
    def activation_budget(self) -> float:
        return activation_budget(self.checkpointing)

    @property
    def holds_on_host(self) -> bool:
        """Whether states that a device would hold are in host memory."""
        return self.offload != "none"

    @property
    def steps_on_host(self) -> bool:
        """Whether the optimizer's states are in host memory, where the host's cores perform the optimizer step."""
        return self.offload in ("optimizer", "all")


DEGREES = degrees_of(LayoutAxes)
CUTTING = cutting(LayoutAxes)
DATA_PARALLEL = CUTTING["samples"]
MODEL_PARALLEL = tuple(name for name in DEGREES if name not in DATA_PARALLEL)
IN_NODE = tuple(name for name, declared in DEGREES.items() if declared.stays_in_node)
PLACED = placed(LayoutAxes)
AXES = mesh_axes(LayoutAxes)
