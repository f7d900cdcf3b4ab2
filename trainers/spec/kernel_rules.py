"""Refusals of recipes and layouts that the kernels cannot run, one sentence each. Imports no torch."""

import importlib.util
from collections.abc import Iterator

from trainers.spec import rotary
from trainers.spec.architectures import architecture_of
from trainers.spec.cluster import Cluster
from trainers.spec.float8 import float8_refusals
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import CUTTING, Attention
from trainers.spec.optional_kernels import HOPPER, OptionalKernel, kernels_of
from trainers.spec.recipe import Recipe

BLOCK = 128
"""Number of queries and of keys in a block of FlexAttention, torch's default."""
FLEX = ("flex", "flash4")
"""Values of `attention` that use torch's FlexAttention, with Triton's kernels or FlashAttention-4's."""


def kernel_needs(recipe: Recipe, layout: Layout, cluster: Cluster) -> Iterator[str]:
    """Yields the devices' capability or the packages that the kernels of `recipe` and `layout` need and `cluster`
    lacks.
    """
    if recipe.float8_scaling and importlib.util.find_spec("torchao") is None:
        yield (
            f"{recipe.compute_precision} needs torchao, which is not installed: install it (pip install"
            " 'torchao==0.18.0'), or choose bf16"
        )
    if not is_hopper(cluster):
        yield from kernels_too_new(layout, cluster.device)
        return
    for name, kernel in kernels_of(layout).items():
        if not kernel.is_installed:
            yield (
                f"{name} needs {kernel.package}{kernel.version}, which is not installed: install it (pip"
                f" install '{kernel.requirement}'), or choose {_instead(name, kernel)}"
            )


def kernels_too_new(layout: Layout, device: str) -> Iterator[str]:
    """Yields the reasons why the kernels of `layout` cannot run on `device`, which is older than Hopper or not CUDA."""
    for name, kernel in kernels_of(layout).items():
        yield (
            f"{name} needs a CUDA device of compute capability {'.'.join(map(str, HOPPER))} or more, got {device}:"
            f" choose {_instead(name, kernel)}"
        )


def kernels_divided(layout: Layout) -> Iterator[str]:
    """Yields the reasons why the kernels of `layout` cannot run with the model or the sequence cut over ranks."""
    for name, kernel in kernels_of(layout).items():
        for degree in layout.above_one(CUTTING[kernel.undivided]):
            yield f"{name} was not tried with {degree} above 1: choose {_instead(name, kernel)}"


def _instead(name: str, kernel: OptionalKernel) -> str:
    return f"{name.partition(' ')[0]} {kernel.instead}"


def is_hopper(cluster: Cluster) -> bool:
    """Returns whether the devices of `cluster` have the compute capability of Hopper (9.0) or more."""
    return cluster.device_kind == "cuda" and (cluster.capability or (0, 0)) >= HOPPER


def default_attention(architecture: str) -> Attention:
    """Returns the attention that transformers runs for the family unless told otherwise: sdpa, or eager for attention
    with sinks, which need the softmax's sum.
    """
    return "eager" if architecture_of(architecture).attention_sinks else "sdpa"


def kernel_refusals(recipe: Recipe, layout: Layout) -> Iterator[str]:
    """Yields the reasons why the kernels and the checkpointing of `layout` cannot run `recipe` with any engine."""
    if recipe.float8_scaling:
        yield from float8_refusals(recipe, layout)
    if recipe.model.num_layers <= layout.checkpoint_every // 2:
        yield (
            f"checkpointing {layout.checkpointing} of {recipe.model.num_layers} blocks equals a smaller distance:"
            f" choose {'full' if recipe.model.num_layers == 1 else 'every_2'}"
        )
    if layout.compile == "model" and (layout.attention in FLEX or layout.loss != "plain"):
        yield (
            f"a model compiled whole has sdpa or eager attention and the plain loss, got {layout.attention} and"
            f" {layout.loss}: choose compile block"
        )
    if layout.compile == "model" and 0 < recipe.model.window < recipe.seq_len:
        yield (
            f"a model compiled whole makes no mask of a sliding window, that of {recipe.model.name} is"
            f" {recipe.model.window} of {recipe.seq_len} tokens: choose compile block or none"
        )
    yield from _mask_refusals(recipe, layout)
    for name, kernel in kernels_of(layout).items():
        precision = recipe.activation_precision if kernel.beside_fp8 else recipe.compute_precision
        if precision not in ("bf16", "fp16"):
            yield (
                f"{name} supports only bf16 and fp16, got {recipe.compute_precision}: choose {_instead(name, kernel)}"
            )
    yield from kernels_divided(layout)
    if layout.attention == "flash4":
        yield from _flash4_refusals(recipe)
    if layout.attention == "sdpa" and default_attention(recipe.model.architecture) != "sdpa":
        yield (
            "sdpa does not return the softmax's sum, which attention sinks need, got attention sdpa of"
            f" {recipe.model.name}: choose flex or eager"
        )
    if layout.mlp == "quack":
        yield from _quack_mlp_refusals(recipe, layout)
    if layout.activation_budget < 1 and layout.compile == "none":
        yield (
            "an activation budget needs compiled code, got compile none:"
            f" choose compile block or another checkpointing than {layout.checkpointing}"
        )
    if layout.checkpointing == "selective" and layout.attention in FLEX and layout.compile == "none":
        yield (
            "selective checkpointing cannot look into FlexAttention, which is compiled by itself where blocks are not:"
            " choose compile block, another attention or another checkpointing"
        )


def _flash4_refusals(recipe: Recipe) -> Iterator[str]:
    """Yields the reasons why FlashAttention-4 cannot run `recipe`: cases that it refuses, and cases that were not
    compared with another kernel on a GPU.
    """
    model = recipe.model
    if architecture_of(model.architecture).attention_sinks:
        yield f"flash4 does not support attention sinks, which {model.name} has: choose attention flex"
    if recipe.attention_mask != "causal" or 0 < model.window < recipe.seq_len:
        mask = f"a window of {model.window}" if recipe.attention_mask == "causal" else recipe.attention_mask
        yield f"flash4 supports only a causal mask, got {mask}: choose attention flex"
    if recipe.seq_len % BLOCK or model.head_dim not in (64, 128):
        yield (
            f"flash4 supports only multiples of {BLOCK} tokens and heads of width 64 and 128, got seq_len"
            f" {recipe.seq_len} and width {model.head_dim}: choose attention flex or sdpa"
        )


def _quack_mlp_refusals(recipe: Recipe, layout: Layout) -> Iterator[str]:
    """Yields the reasons why quack-kernels cannot compute the feed-forward blocks of `recipe` on `layout`."""
    model = recipe.model
    if not architecture_of(model.architecture).has_fused_mlp(model.settings):
        yield (
            f"mlp quack computes tanh-GELU between two products with biases, which {model.name}"
            " does not have: choose mlp plain"
        )
    if model.hidden_size % 8 or model.ffn_size % 8:
        yield (
            "mlp quack has widths that are multiples of 8, got hidden_size"
            f" {model.hidden_size} and {model.ffn_size}: choose mlp plain"
        )
    if layout.checkpointing == "selective" and layout.compile == "none":
        yield (
            "selective checkpointing would keep both outputs of mlp quack where blocks are not compiled: choose compile"
            " block, mlp plain or another checkpointing"
        )
    if recipe.is_quantised:
        yield f"mlp quack reads weights that are not in NF4, got adapter {recipe.adapter}: choose mlp plain"
    if layout.compile == "model":
        yield "mlp quack supports compiled blocks and plain ones, got compile model: choose compile block"


def _mask_refusals(recipe: Recipe, layout: Layout) -> Iterator[str]:
    """Yields the reasons why the mask of `recipe` cannot be made for its model or by the kernels of `layout`."""
    mask, model = recipe.attention_mask, recipe.model
    if mask == "causal":
        return
    if layout.compile == "model":
        yield f"a model compiled whole makes no attention mask of {mask} kind: choose compile block or none"
    if mask == "prefix" and 0 < model.window < recipe.seq_len:
        yield (
            f"a sliding window does not say which later tokens of a prefix a token sees, {model.name} has one of"
            f" {model.window} of {recipe.seq_len} tokens: choose attention_mask causal or document"
        )
    if mask == "document" and (kind := rotary.kind_by_length(model.settings)):
        yield (
            f"rotary positions of kind {kind} follow the longest document of a micro-batch, which is another model for"
            f" each micro_batch, got {model.name}: choose attention_mask causal"
        )
