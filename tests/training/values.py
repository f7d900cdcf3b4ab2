"""A small training as values, without torch and Ray."""

from typing import Any

from trainers.records.training import LearningRateSchedule, Steps, TrainingPhase, TrainingPlan, Validation
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe
from trainers.spec.recipe_axes import INCLUDED

MODEL = ModelSpec(
    name="tiny", architecture="gpt2", num_layers=1, hidden_size=16, num_heads=2, vocab_size=256, max_positions=64
)
RECIPE = Recipe(
    model=MODEL, seq_len=16, global_batch=4, compute_precision="fp32", learning_rate=1e-2, data=INCLUDED,
    data_order="shuffled",
)  # fmt: skip
DDP = Layout(engine="ddp", dp_replicate=2)
FSDP = Layout(engine="fsdp", zero_stage=3, dp_shard=2)
STEP = RECIPE.tokens_per_step
STEPS = Steps(
    attempt=1,
    first_step=1,
    losses=(3.0, 2.0),
    grad_norms=(1.0, 0.5),
    learning_rates=(0.1, 0.2),
    tokens=2 * STEP,
    tokens_per_step=STEP,
    train_s=2.0,
    steps_s=2.0,
    data_s=0.0,
    peak_gib=1.5,
)
"""Two steps in two seconds."""


def plan(layout: Layout = DDP, *, steps: int = 12, **fields: Any) -> TrainingPlan:
    """Returns a plan of `steps` optimizer steps with two micro-steps each and a held-out loss every five steps."""
    batch = BatchPoint(micro_batch=1, grad_accum=4 // layout.data_parallel)
    defaults: dict[str, Any] = {
        "recipe": RECIPE,
        "phases": (TrainingPhase(end_tokens=steps * STEP, layout=layout, batch=batch),),
        "lr_schedule": LearningRateSchedule(
            kind="cosine", tokens=steps * STEP, warmup_tokens=3 * STEP, final_share=0.1
        ),
        "validation": Validation(sequences=7, every_tokens=5 * STEP),
    }
    return TrainingPlan(**{**defaults, **fields})
