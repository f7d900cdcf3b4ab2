"""Models that people plan for and that no single node can train, by name, for `python -m platform.plan`. `names` does
not list these spaces, because a search needs hundreds of devices.
"""

import dataclasses

from search_spaces.gpt2 import GPT2_XXL
from search_spaces.space import Space
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

_MEGATRON_VOCABULARY = 51_200
_TEN_ROWS = {
    # name: layers, hidden size, heads, global batch; arXiv 2104.04473, table 1 (as in the 2021 hackathon's notes).
    "gpt_1_7b": (24, 2304, 24, 512),
    "gpt_3_6b": (30, 3072, 32, 512),
    "gpt_7_5b": (36, 4096, 32, 512),
    "gpt_18b": (40, 6144, 48, 1024),
    "gpt_39b": (48, 8192, 64, 1536),
    "gpt_76b": (60, 10240, 80, 1792),
    "gpt_145b": (80, 12288, 96, 2304),
    "gpt_310b": (96, 16384, 128, 2160),
    "gpt_530b": (105, 20480, 128, 2520),
    "gpt_1t": (128, 25600, 160, 3072),
}


def _gpt(name: str, num_layers: int, hidden_size: int, num_heads: int, max_positions: int = 2048) -> ModelSpec:
    return ModelSpec(
        name=name.replace("_", "-"),
        architecture="gpt2",
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        vocab_size=_MEGATRON_VOCABULARY,
        max_positions=max_positions,
    )


def _pipelined(name: str, summary: str, *recipes: Recipe) -> Space:
    """Returns a space of 3D-parallel layouts (tensor and pipeline parallelism with DDP and FSDP2) and of DeepSpeed's
    without model parallelism.
    """
    first, *further = recipes
    return Space(
        name=name,
        summary=summary,
        recipe=first,
        further_recipes=tuple(further),
        axes={
            "engine": ("deepspeed", "fsdp", "ddp"),
            "zero_stage": (1, 3, 2, 0),
            "checkpointing": ("none", "full"),
            "attention": ("sdpa", "eager"),
            "tp": (1, 2, 4, 8),
            "pp": (1, 2, 4, 8, 16, 32, 64, 128),
        },
        micro_batches=(1,),
        doubling=True,
    )


def names() -> tuple[str, ...]:
    return ("gpt_175b", "gpt_200b", "gpt2_xxl", *_TEN_ROWS)


def load(name: str) -> Space:
    """Returns the space of that name.

    Raises:
        KeyError: the name is unknown.
    """
    if name in _TEN_ROWS:
        layers, hidden, heads, batch = _TEN_ROWS[name]
        recipe = Recipe(model=_gpt(name, layers, hidden, heads), seq_len=2048, global_batch=batch)
        return _pipelined(name, f"{recipe.model.name} of Megatron-LM's table, length 2048, batch {batch}", recipe)
    if name == "gpt_175b":
        model = _gpt(name, 96, 12288, 96)
        recipes = [Recipe(model=model, seq_len=length, global_batch=1536) for length in (2048, 1024, 512)]
        return _pipelined(name, "GPT-3 175B (arXiv 2005.14165, table 2.1) at lengths 2048, 1024 and 512", *recipes)
    if name == "gpt_200b":
        model = _gpt(name, 80, 14400, 96)
        recipes = [Recipe(model=model, seq_len=length, global_batch=2048) for length in (2048, 1024, 512)]
        return _pipelined(name, "GPT 200B, 80 layers of 14400, at lengths 2048, 1024 and 512", *recipes)
    if name == "gpt2_xxl":
        recipe = Recipe(model=GPT2_XXL, seq_len=128, global_batch=64, compute_precision="fp16")
        summary = "GPT-2 of 3B parameters, length 128, batch 64: FSDP2 and DeepSpeed"
        space = _pipelined(name, summary, recipe)
        axes = {**space.axes, "engine": ("deepspeed", "fsdp"), "zero_stage": (3, 2, 1), "tp": (1,), "pp": (1,)}
        return dataclasses.replace(space, axes=axes, micro_batches=(1, 2, 4, 8, 16, 32, 64))
    raise KeyError(name)
