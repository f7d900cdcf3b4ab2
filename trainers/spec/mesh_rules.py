"""Refusals of tensor, context and pipeline parallelism, one sentence each. Imports no torch."""

import math
from collections.abc import Iterator

from trainers.spec import rotary
from trainers.spec.architectures import architecture_of
from trainers.spec.division import most_stages
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import DEGREES, MODEL_PARALLEL
from trainers.spec.recipe import Recipe
from trainers.spec.stages import num_stages


def mesh_refusals(recipe: Recipe, layout: Layout) -> Iterator[str]:
    """Yields the reasons why a model, its kernels or its optimizer cannot be cut by the degrees of `layout` with any
    engine.
    """
    yield from division_refusals(recipe, layout)
    if layout.tp > 1:
        yield from _of_tensor_parallel(recipe, layout)
    if layout.cp > 1:
        yield from _of_context_parallel(recipe, layout)
    if layout.tp * layout.cp > 1 and layout.compile == "model":
        yield (
            f"a model compiled whole has no collectives between its blocks, got tp {layout.tp} and cp {layout.cp}:"
            " choose compile block or none"
        )


def division_refusals(recipe: Recipe, layout: Layout) -> Iterator[str]:
    """Yields a sentence with the numbers for each size of `recipe` that the degrees of `layout` do not divide."""
    degrees = layout.above_one(MODEL_PARALLEL)
    yield from _of_groups(recipe, layout)
    for name, degree in degrees.items():
        for size, counted in DEGREES[name].sizes(recipe):
            if size % degree:
                yield (
                    f"{name} {degree} does not divide the {size} {counted} of {recipe.model.name}:"
                    f" choose another {name}"
                )
    cut, across = ([name for name in degrees if DEGREES[name].cuts == part] for part in ("tokens", "width"))
    parts, width = (math.prod(degrees[name] for name in names) for names in (cut, across))
    pieces = parts * math.prod(DEGREES[name].pieces for name in cut)
    if recipe.seq_len % pieces:
        yield (
            f"{layout.in_words(cut)} cuts a sequence into {pieces} parts, which do not divide its"
            f" {recipe.seq_len} tokens: choose another {' or '.join(cut)}, or a seq_len that is a multiple of {pieces}"
        )
    elif recipe.seq_len // parts % width:
        yield (
            f"{layout.in_words(across)} cuts the {recipe.seq_len // parts} tokens of a sequence that a rank has, which"
            f" it does not divide: choose another {' or '.join(across)}, or a seq_len that is a multiple of"
            f" {parts * width}"
        )


def _of_groups(recipe: Recipe, layout: Layout) -> Iterator[str]:
    """Yields the reasons why degrees that group ranks of other degrees cannot do so."""
    for name, degree in layout.above_one(MODEL_PARALLEL).items():
        declared = DEGREES[name]
        if declared.multiplies:
            continue
        if not any(declared.sizes(recipe)):
            yield f"{name} {degree} needs a model with {declared.cuts}, {recipe.model.name} has none: choose {name} 1"
        elif layout.shards % degree:
            yield (
                f"{name} {degree} does not divide the ranks that share one copy of the model, {layout.shards} here:"
                f" choose another {name}"
            )


def _of_tensor_parallel(recipe: Recipe, layout: Layout) -> Iterator[str]:
    tp = layout.tp
    if reason := architecture_of(recipe.model.architecture).tensor_parallel_reason(recipe.model):
        yield f"{reason}, got tp {tp}: choose tp 1"
    if recipe.optimizer == "adafactor":
        yield (
            f"Adafactor factors whole matrices, and over parts of them is another algorithm, got tp {tp}:"
            " choose tp 1 or optimizer adamw"
        )
    if recipe.powersgd_rank:
        yield (
            f"PowerSGD approximates whole matrices, and parts of them by other factors, got tp {tp}:"
            " choose tp 1 or compression none or bf16"
        )


def _of_context_parallel(recipe: Recipe, layout: Layout) -> Iterator[str]:
    if layout.attention == "eager":
        yield (f"eager attention looks at a rank's own keys alone, got cp {layout.cp}: choose attention flex or sdpa")
    if layout.cp_exchange == "all_to_all":
        yield from _of_exchanged_heads(recipe, layout)
    config = recipe.model.settings
    # A rank derives the length from its own positions, and would take other frequencies than its neighbours.
    original = rotary.original_length(config)
    if (kind := rotary.kind_by_length(config)) and recipe.seq_len > original:
        shorter = f", or a seq_len of at most the original {original} positions" if original else ""
        yield (
            f"rotary positions of kind {kind} follow the length, of which a rank sees its own part alone, got cp"
            f" {layout.cp} and seq_len {recipe.seq_len}: choose cp 1{shorter}"
        )


def _of_exchanged_heads(recipe: Recipe, layout: Layout) -> Iterator[str]:
    """Yields a sentence if heads cannot be shared out evenly over context-parallel ranks; several ranks may copy one
    key/value head.
    """
    model, cp = recipe.model, layout.cp
    heads, kv_heads = model.num_heads // layout.tp, max(1, model.num_kv_heads // layout.tp)
    of_rank = f" of a rank at tp {layout.tp}" if layout.tp > 1 else ""
    if heads % cp:
        counted = f"{heads} heads"
    elif kv_heads % cp and cp % kv_heads:
        counted = f"{kv_heads} key/value heads"
    else:
        return
    yield (
        f"an all-to-all shares out the {counted}{of_rank} of {model.name} over {cp} ranks, which is not even:"
        " choose another cp or cp_exchange gather"
    )


def pipeline_refusals(recipe: Recipe, layout: Layout) -> Iterator[str]:
    """Yields the reasons why the model of `recipe` cannot be cut into the pipeline stages of `layout`."""
    if layout.pp == 1 or "pp" not in layout.rules.model_parallel:  # else the engine's own reason stands
        return
    spec, stages = recipe.model, num_stages(layout)
    if stages > most_stages(recipe):
        yield (
            f"pp {layout.pp} x virtual {layout.virtual} cuts {spec.name} into {stages} stages, more than its"
            f" {spec.num_layers} blocks with embedding and head, {most_stages(recipe)} at most:"
            " choose a smaller pp or virtual"
        )
    if layout.grad_sync == "every":
        yield (
            "a pipeline reduces gradients once, after the last backward pass of its schedule, got grad_sync every:"
            " choose last"
        )
    if recipe.powersgd_rank:
        yield (
            "a tied embedding has its gradient on two stages of a pipeline, and PowerSGD would approximate each apart,"
            f" which is another recipe, got compression {recipe.compression} with pp {layout.pp}: choose bf16 or none"
        )
    if layout.compile == "model":
        yield f"a pipeline cuts the model between blocks, got compile model with pp {layout.pp}: choose block or none"
