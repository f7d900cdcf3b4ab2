"""BigScience's 1.3B baseline with a norm after the embedding, whose layouts its authors compared by hand on V100."""

import dataclasses

from search_spaces import engines
from search_spaces.miniature import stand_in
from search_spaces.space import Space
from search_spaces.variations import every_axis
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

TR3M_1B3 = ModelSpec(
    name="tr3m-1B3",
    architecture="gpt2",
    num_layers=24,
    hidden_size=2048,
    num_heads=16,
    # GPT-2's 50,257 words, padded as in Megatron-LM so that tensor-parallel ranks divide them evenly.
    vocab_size=50_304,
    max_positions=2048,
    embedding_norm=True,
)
"""1,315,831,808 parameters."""


def tr3m_1b3() -> Space:
    """Returns BigScience's grid (tensor parallel x pipeline x micro-batch x checkpointing) on 32 GiB per device;
    `--device-memory-gib 16` gives their smaller one.
    """
    space = Space(
        name="tr3m_1b3",
        summary="BigScience's 1.3B, length 2048, global batch 512, 32 GiB: tp x pp x micro-batch x checkpointing",
        recipe=Recipe(model=TR3M_1B3, seq_len=2048, global_batch=512, compute_precision="fp16"),
        axes={
            "compile": ("block", "none"),
            "checkpointing": ("none", "full"),
            "zero_stage": (0, 2, 3),
            "engine": engines.splitting(engines.replicas_first()),
            "attention": ("sdpa",),
        },
        narrowed=every_axis("which are those of the published grid"),
        model_parallel={"tp": (1, 2, 4), "pp": (1, 2, 4), "virtual": (1, 2)},
        micro_batches=(1, 2, 4, 8, 16),
        device_memory_gib=32.0,
    )
    return dataclasses.replace(space, miniature=stand_in(space, num_workers=4))
