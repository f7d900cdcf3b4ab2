"""Figures of a layout's kernels: bytes and passes of activations, attention and the loss."""

from platform.cost_model import constants
from trainers.data.mask_density import MaskDensity
from trainers.spec.architectures.architecture import StepwiseActivation
from trainers.spec.blocks import BlockKind
from trainers.spec.layout_axes import activation_budget
from trainers.spec.model import ModelSpec

BIASED_FLASH = constants.number("kernels", "BIASED_FLASH")
ALIBI_RATE = constants.words("kernels", "ALIBI_RATE")
HOPPER_RATE = constants.words("kernels", "HOPPER_RATE")
PRODUCT_GELU = constants.pair("kernels", "PRODUCT_GELU")
FUSED_GATE = constants.pair("kernels", "FUSED_GATE")
JOINED_GATE_BACKWARD = constants.number("kernels", "JOINED_GATE_BACKWARD")
FLASH_HALF_LENGTH = constants.words("kernels", "FLASH_HALF_LENGTH")
EXPONENTIAL_WIDTH = constants.words("kernels", "EXPONENTIAL_WIDTH")
FLASH_WIDTH = 128
"""Head width for which a device's rate of fused attention is stated."""
WIDE_FLEX = constants.number("kernels", "WIDE_FLEX")
FLEX_BLOCK = 128
"""Queries and keys of a block that FlexAttention visits or skips as a whole (its default `BLOCK_SIZE`)."""

LOGIT_BYTES = constants.words("kernels", "LOGIT_BYTES")
SPLIT_LOGIT_BYTES = constants.number("kernels", "SPLIT_LOGIT_BYTES")


def checkpoint_distance(checkpointing: str) -> float:
    """Returns the distance between fully checkpointed blocks; 1 if all are."""
    return {"every_4": 4.0, "every_2": 2.0}.get(checkpointing, 1.0)


def is_full_checkpointing(checkpointing: str) -> bool:
    """Returns whether whole blocks (all or some) are recomputed."""
    return checkpointing not in ("none", "selective") and activation_budget(checkpointing) == 1


PARTS_AROUND_EXPERTS = 5.0
"""Calls of compiled code in a block with expert parallelism: attention, two norms, router, experts' activation."""


def compiled_calls(compile_: str, num_layers: int) -> float:
    return {"block": 1.0, "model": 1.0 / num_layers}.get(compile_, 0.0)


def flash_share(attention: str, *, alibi: bool, masked: bool, head_dim: int, architecture: str) -> float:
    """Returns `Columns.flash` of an attention kernel on devices of `architecture`.

    sdpa adds a tensor to the scores for ALiBi, and for a mask that is not causal (`masked`). The other kernels compute
    ALiBi's bias of each score. On Hopper, FlexAttention has smaller tiles for heads wider than `FLASH_WIDTH`.
    """
    if attention == "eager":
        return 0.0
    if attention == "sdpa" and (alibi or masked):
        return BIASED_FLASH
    rate = HOPPER_RATE.get(attention, 1.0) if architecture == "Hopper" else 1.0
    if attention == "flex" and head_dim > FLASH_WIDTH and architecture == "Hopper":
        rate *= WIDE_FLEX
    return rate * (ALIBI_RATE[attention] if alibi else 1.0)


def width_share(head_dim: int, architecture: str) -> float:
    """Returns the rate of fused attention for heads of width `head_dim` relative to `FLASH_WIDTH`.

    Each score takes one exponential at any width. The units for it are slow: it takes as long as the products over a
    width of `EXPONENTIAL_WIDTH` (arXiv 2407.08608, section 3.1).
    """
    exponential = EXPONENTIAL_WIDTH.get(architecture, EXPONENTIAL_WIDTH["other"])
    width = min(head_dim, FLASH_WIDTH)
    return width / (width + exponential) * (FLASH_WIDTH + exponential) / FLASH_WIDTH


def half_length(architecture: str) -> float:
    """Returns `Columns.flash_half_length` on devices of `architecture`."""
    return FLASH_HALF_LENGTH.get(architecture, FLASH_HALF_LENGTH["other"])


def window_speedup(attention: str, model: ModelSpec, seq_len: int, architecture: str) -> float:
    """Returns the speed of fused attention with a model's windows relative to attention without, averaged over blocks.

    FlexAttention visits only the window's part of the triangle, in whole blocks: half a block more per query at either
    end of a window, where a causal mask has one end. What a query costs beside its keys (`half_length`) stays. sdpa
    gets a mask, and computes the full square at its rate with a bias.
    """
    triangle = seq_len / 2
    alone = half_length(architecture) / 2

    def time(kind: BlockKind) -> float:
        keys = kind.keys_per_query(model, seq_len)
        if keys >= triangle:
            return 1.0
        if attention == "sdpa":
            return 1 / BIASED_FLASH
        return min((keys + FLEX_BLOCK / 2 + alone) / (triangle + alone), 1.0)

    return model.num_layers / model.over_blocks(time)


def mask_speedup(attention: str, attended: MaskDensity) -> float:
    """Returns the speed of fused attention with a data-dependent mask relative to a causal mask.

    FlexAttention visits the blocks of 128 queries and keys that the mask does not fully hide. For a block of queries
    these are all blocks from the beginning of its first query's document: on average the visible keys, plus one and a
    half blocks. sdpa computes the square for any mask.
    """
    return attended.visited_causally / attended.visited if attention == "flex" else 1.0


def loss_kind(loss: str, compile_: str) -> str:
    """Returns the key of `LOGIT_BYTES`. A whole compiled model includes its loss; blocks include a chunked loss."""
    if loss == "quack":
        return loss
    if loss == "chunked":
        return "chunked" if compile_ == "none" else "fused"
    return "compiled" if compile_ == "model" else "plain"


def logit_bytes(kind: str, compute_bytes: float, *, split: bool = False) -> float:
    """Returns the bytes per logit by kind of loss. In fp32 there are no casts, so each copy has the logits' size.
    `split` states whether tensor-parallel ranks of this project's engines each have a part of the vocabulary.
    """
    unsplit = LOGIT_BYTES[kind] if compute_bytes == 2 else {"kept": 16.0, "chunked": 8.0, "fused": 8.0}.get(kind, 12.0)
    return min(unsplit, SPLIT_LOGIT_BYTES) if split else unsplit


def pads_vocabulary(kind: str) -> bool:
    """Returns whether a compiler or the loss's kernel pads the head's product to an aligned width."""
    return kind not in ("plain", "kept")


def inner_copies(stepwise: StepwiseActivation | None, *, gated: bool, fused: bool, mlp: str = "plain") -> float:
    """Returns the number of saved tensors of inner width: before and after the activation, and two for a gate; with
    `mlp` "quack" only the one before.
    """
    if mlp == "quack":
        return 1.0
    if stepwise and not fused:
        return stepwise.saved_tensors
    if gated:
        return 3.0 if fused else 4.0
    return 2.0


def activation_passes(
    stepwise: StepwiseActivation | None,
    *,
    gated: bool,
    fused: bool,
    joined: bool = False,
    mlp: str = "plain",
    casts: bool = False,
) -> tuple[float, float]:
    """Returns the activation's reads and writes per inner value, forward and backward.

    If transformers computes an activation step by step, each kernel reads one or two values and writes one. Other eager
    activations are one kernel and the gate's product, with casts and copies around them. If products cast their inputs
    to FP8 (`casts`), a compiled gate is computed again in each search for a largest value. The gate and value of
    experts are halves of one tensor (`joined`), of whose gradient each half is computed by itself.
    """
    if mlp == "quack":
        return PRODUCT_GELU
    if stepwise and not fused:
        return stepwise.forward_accesses, stepwise.backward_accesses
    if stepwise and stepwise.compiled_accesses:
        return stepwise.compiled_accesses
    if gated and fused and not casts:
        return FUSED_GATE[0], JOINED_GATE_BACKWARD if joined else FUSED_GATE[1]
    forward = (2.0 if fused else 4.4) * (1 + gated)
    return forward, 1.8 * forward
