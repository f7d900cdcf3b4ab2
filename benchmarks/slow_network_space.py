"""The model of `benchmarks.slow_network`: small enough for a core, its gradients too large for a slow link."""

from search_spaces.space import Space
from trainers.recipe import Recipe
from trainers.spec import ModelSpec


def space() -> Space:
    """A GPT-2 of 2 layers, 1.8 million parameters, 7 MB of gradients: 0.3 s at 200 Mbit/s."""
    model = ModelSpec(
        name="slow-network",
        architecture="gpt2",
        num_layers=2,
        hidden_size=256,
        num_heads=4,
        vocab_size=512,
        max_positions=128,
    )
    return Space(
        name="slow_network",
        summary="a small GPT-2 over gloo: what to do where the link between hosts is slow",
        recipe=Recipe(model=model, seq_len=128, global_batch=8, compute_precision="fp32", learning_rate=1e-3),
        axes={"engine": ("ddp",), "grad_sync": ("last", "every")},
        micro_batches=(4,),
        refine=False,
        repeats=0,
    )
