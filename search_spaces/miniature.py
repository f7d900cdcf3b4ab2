"""A small model of the same architecture, for machines without a GPU."""

import dataclasses
from typing import Any

from search_spaces import engines
from search_spaces.space import Space
from trainers.spec.architectures import architecture_of
from trainers.spec.expert_rules import has_grouped_sizes
from trainers.spec.layout_axes import CUTTING
from trainers.spec.model import ModelSpec
from trainers.spec.model_sizes import MULTIPLIERS, SWITCHES
from trainers.spec.recipe import Recipe
from trainers.spec.recipe_axes import INCLUDED, STREAM
from trainers.text import VOCAB_SIZE

_WINDOW = 64
"""Tokens of a miniature's sliding window, a quarter of its sequences."""

_DEGREES = (*CUTTING["width"], *CUTTING["depth"], "virtual", *CUTTING["tokens"], "cp_exchange")
"""Axes that split the model, in the order in which a miniature's layouts vary."""

MOST_FFN = 8.0
"""Largest ratio of a miniature's feed-forward width to its hidden size, taken from Gemma 7B; wider models do not fit
under the memory cap. transformers' defaults give such widths to a configuration that states only its hidden size.
"""

_EXPERTS, _CHOSEN = 8, 2
"""Largest number of experts of a miniature's block, and of experts that a token uses."""

TIME_BUDGET_S = 385.0
"""Default time budget of two workers, in seconds. Two idle cores need about half of it; beside two busy loops `make
search` takes seven minutes with it, including Ray's start and end.
"""


def small_model(
    model: ModelSpec, *, num_layers: int = 4, hidden_size: int = 256, num_heads: int = 8, max_positions: int = 512
) -> ModelSpec:
    """Returns a byte-level model of `model`'s architecture: the same kinds of positions, norms, feed-forward block and
    head, but smaller. `max_positions` applies if `model` limits the length. Grouped key/value heads stay grouped. A
    block's experts together are at most as wide as a miniature's widest feed-forward block.
    """
    grouped = model.num_kv_heads < model.num_heads
    num_experts = min(_EXPERTS, model.num_experts)
    ffn_size = round(hidden_size * min(MOST_FFN / max(1, num_experts), model.ffn_size / model.hidden_size))
    return ModelSpec(
        name=f"{model.name}-miniature",
        architecture=model.architecture,
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=num_heads // 2 if grouped else num_heads,
        vocab_size=VOCAB_SIZE,
        ffn_size=max(8, ffn_size // 8 * 8) if num_experts else ffn_size,
        max_positions=max_positions if model.max_positions else 0,
        tied_embeddings=model.tied_embeddings,
        embedding_norm=model.embedding_norm,
        init_std=model.init_std,
        head_width=hidden_size // num_heads * model.attention_width // model.hidden_size // 2 * 2,
        window=_WINDOW if model.window else 0,
        window_layers=max(1, round(num_layers * model.window_layers / model.num_layers)) if model.window else 0,
        logit_softcap=model.logit_softcap,
        num_experts=num_experts,
        experts_per_token=min(_CHOSEN, model.experts_per_token),
        shared_ffn_size=hidden_size if model.shared_ffn_size else 0,
        miniature_of=model.name,
        **{field: getattr(model, field) for field in (*SWITCHES, *MULTIPLIERS)},
    )


def _attention(model: ModelSpec) -> str:
    """Returns a miniature's attention kernel. "sdpa" would need a mask for ALiBi and has no sinks."""
    if architecture_of(model.architecture).attention_sinks:
        return "flex"
    return "eager" if model.position == "alibi" else "sdpa"


MOST_SEQUENCE_FLOPS = 2e10
"""Largest FLOPs of training on one sequence for a model that is itself measured without a GPU: four times a
miniature's, so that its search takes minutes too.
"""


def on_cpus(space: Space) -> Space:
    """Returns the space to search without a GPU: the space's own model in fp32 if it is small enough for two CPU
    workers, with its length and batch and the miniature's few layouts; otherwise its miniature.
    """
    recipe, small = space.recipe, stand_in(space)
    if recipe.model.flops_per_token(recipe.seq_len) * recipe.seq_len > MOST_SEQUENCE_FLOPS:
        return small
    return dataclasses.replace(
        small,
        name=space.name,
        summary=f"{recipe.model.name} itself on two CPU workers",
        recipe=dataclasses.replace(recipe, compute_precision="fp32"),
        micro_batches=(1, 2, 4),
        assumed=space.assumed,
        remarks=space.remarks,
        device_memory_gib=None,
        tokens=space.tokens,
        is_stand_in=False,
    )


def of_its_own_axes(space: Space) -> Space:
    """Returns `space`, which a file derived from another space, with a miniature of its own model, engines, stages,
    checkpointing and micro-batches instead of the inherited one; a miniature that the file made stays.
    """
    inherited = space.miniature
    if inherited is None or not inherited.is_stand_in or inherited.num_workers is None or space.points:
        return space
    small = stand_in(space, inherited.num_workers)
    axes = {"engine": space.axes["engine"], "zero_stage": space.axes.get("zero_stage", (0,))}
    checkpointing = space.axes.get("checkpointing", ("none",))
    axes["checkpointing"] = tuple(value for value in ("none", "full") if value in checkpointing) or checkpointing[:1]
    least, listed = min(space.micro_batches), set(space.micro_batches)
    rungs = (rung for rung in (1, 2, 4, 8) if (rung >= least if space.doubling else rung in listed))
    return dataclasses.replace(
        space,
        miniature=dataclasses.replace(
            small, axes={**small.axes, **axes}, variations=(), micro_batches=tuple(rungs) or small.micro_batches
        ),
    )


def stand_in(space: Space, num_workers: int = 2) -> Space:
    """Returns the miniature of `space`: its architecture on the included text, `num_workers` CPU workers under a memory
    cap.

    It has few enough layouts for some minutes on two cores, including confirmation runs and numerics gate: all three
    engines, fully sharded if possible, with transformers' kernels, because compiling takes longer than the search.
    Points of equal speed would take most of the time and stay unresolved, such as DDP and ZeRO-0, or two micro-batches
    of one layout. So of two micro-batches one fits and, as on a real device, the larger one exceeds the cap. On four
    and more workers the model is also split by every degree that `space` names.
    """
    model = small_model(space.recipe.model)
    adapters: dict[str, Any] = {
        field: getattr(space.recipe, field) for field in ("adapter", "lora_targets", "lora_alpha")
    }
    trains = engines.adapting() if space.recipe.adapter_rank else engines.replicas_first()
    degrees = {axis: space.model_parallel[axis] for axis in _DEGREES if axis in space.model_parallel}
    # Both ways to compute experts are about equally fast on a CPU, so each runs in one engine, and expert parallelism
    # of two ranks in one.
    ways = ("grouped" if has_grouped_sizes(space.recipe.model) else "loop", "loop")
    grouped, loop = ({"experts": (way,)} if model.num_experts else {} for way in ways)
    apart = {"engine": engines.sharing_experts_out(), "ep": (2,)}
    split = {"engine": engines.splitting(engines.shards_first()), "zero_stage": (3, 0), **degrees}
    small = Space(
        name=f"{space.name}-miniature",
        summary=f"{model.num_parameters / 1e6:.1f} M parameters on {num_workers} CPU workers, for {space.name}",
        recipe=Recipe(
            model=model,
            seq_len=256,
            global_batch=16,
            compute_precision="fp32",
            # With this rate a small model on small batches learns visibly within a measurement's few steps.
            learning_rate=1e-3,
            # The text has no marked tokens; the stream marks a share of its tokens.
            data=INCLUDED if space.recipe.trained_tokens == "all" else STREAM,
            routing=space.recipe.routing,
            attention_mask=space.recipe.attention_mask,
            trained_tokens=space.recipe.trained_tokens,
            **adapters,
        ),
        axes={
            "zero_stage": (3,),
            "engine": tuple(name for name in engines.sharding() if name in trains),
            "attention": (_attention(model),),
            **grouped,
        },
        variations=(
            {"engine": engines.replicating(), "zero_stage": (0,), **loop},
            *([apart] if "grouped" in grouped.get("experts", ()) else []),
        ),
        model_parallel=split if degrees else {},
        model_parallel_from=4,
        assumed=("global_batch",),
        # On a CPU attention with sinks materialises all scores.
        micro_batches=(2, 4) if architecture_of(model.architecture).attention_sinks else (4, 8),
        refine=False,
        device_memory_gib=0.24,
        num_workers=2,
        finalists=2,
        repeats=3,
        time_budget_s=TIME_BUDGET_S,
        is_stand_in=True,
    )
    return small.on_workers(num_workers)
