"""The kernel behind scaled_dot_product_attention, which torch chooses by shapes, types and mask."""

from typing import Any

import torch
from torch.nn.attention import SDPBackend

from trainers.spec.kernel_rules import FLEX
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_NAMES = {
    SDPBackend.FLASH_ATTENTION: "flash",
    SDPBackend.EFFICIENT_ATTENTION: "efficient",
    SDPBackend.CUDNN_ATTENTION: "cudnn",
    SDPBackend.MATH: "math",
}


def leave_out_wrong_kernels(recipe: Recipe, layout: Layout) -> None:
    """Disables cuDNN's kernel in this process if it may be wrong, else enables it: with a mask and a length that is 64
    modulo 128, its gradient of the queries may be NaN (https://github.com/pytorch/pytorch/issues/196678).
    """
    is_wrong = any(_masks(recipe, layout)) and recipe.seq_len % 128 == 64
    torch.backends.cuda.enable_cudnn_sdp(not is_wrong)


def kernel_of(recipe: Recipe, layout: Layout, device: torch.device) -> str:
    """Returns the kernel that torch's dispatcher chooses on `device` for one sequence of this rank; for blocks with and
    without a window both, if they differ ("efficient+flash"). Empty if attention is not sdpa. It runs the checks of
    `scaled_dot_product_attention`. On a CPU flex counts as sdpa.
    """
    if layout.attention == "eager" or (layout.attention in FLEX and device.type != "cpu"):
        return ""
    try:
        return "+".join(sorted({_backend_of(recipe, layout, device, masked=mask) for mask in _masks(recipe, layout)}))
    except torch.cuda.OutOfMemoryError:  # a measurement without the kernel's name is better than none
        return "unknown"


def _masks(recipe: Recipe, layout: Layout) -> list[bool]:
    """Returns whether sdpa gets a mask: an entry for blocks with a window and one for blocks without, if they exist."""
    model, local = recipe.model, 0 < recipe.model.window < recipe.seq_len
    masked = model.position == "alibi" or layout.query_parts > 1 or recipe.attention_mask != "causal"
    return [True] * local + [masked] * (model.window_layers < model.num_layers)


def _backend_of(recipe: Recipe, layout: Layout, device: torch.device, *, masked: bool) -> str:
    model, seq_len = recipe.model, recipe.seq_len
    num_queries = seq_len // layout.query_parts
    width = layout.parts("width") * layout.parts("tokens") // layout.query_parts  # number of ranks that share out heads
    dtype = _TYPES.get(recipe.activation_precision, torch.float32)

    def random_heads(heads: int, length: int) -> torch.Tensor:
        shape = (1, max(1, heads // width), length, model.head_dim)
        return torch.empty(shape, dtype=dtype, device=device, requires_grad=True)

    query, key = random_heads(model.num_heads, num_queries), random_heads(model.num_kv_heads, seq_len)
    mask = None
    if masked:
        kind = dtype if model.position == "alibi" else torch.bool
        mask = torch.empty((num_queries, seq_len), dtype=kind, device=device)
    grouped = model.num_kv_heads != model.num_heads
    # The function that `scaled_dot_product_attention` itself calls; it has no public name.
    choose: Any = getattr(torch, "_fused_sdp_choice")  # noqa: B009  # private to type checkers
    choice = choose(query, key, key, mask, 0.0, mask is None, scale=None, enable_gqa=grouped)
    return _NAMES.get(SDPBackend(choice), SDPBackend(choice).name.lower())
