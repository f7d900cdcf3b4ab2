"""Converts a layout to flags for a user's script that reads transformers' TrainingArguments."""

import json
from collections.abc import Iterator
from typing import Any

from platform.common.errors import InputError
from trainers.spec.axis import axes_of, defaults_of
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import DATA_PARALLEL
from trainers.spec.recipe import Recipe

_OPTIMIZERS = {"adamw": "adamw_torch_fused", "adafactor": "adafactor"}
_PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "tf32": {"tf32": True},
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
}
_CARRIED = frozenset({"engine", "grad_sync", "bucket_mib", *DATA_PARALLEL})
"""Axes with a flag for each of their values, or set by torchrun."""


def trainer_flags(recipe: Recipe, layout: Layout, batch: BatchPoint) -> list[str]:
    """Returns the flags with which Trainer under torchrun trains the point as this project does.

    Raises:
        InputError: a part of the point has no flag; the sentence names it.
    """
    if lacking := list(_without_flag(recipe, layout)):
        raise InputError(
            f"transformers' Trainer has no flag for {', '.join(lacking)}: export it --to torchrun or accelerate, or"
            " search with --set for what has one"
        )
    values: dict[str, Any] = {
        "per_device_train_batch_size": batch.micro_batch,
        "gradient_accumulation_steps": batch.grad_accum,
        "optim": _OPTIMIZERS[recipe.optimizer],
        "learning_rate": recipe.learning_rate,
        "weight_decay": recipe.weight_decay,
        "max_grad_norm": recipe.grad_clip,
        # By default Trainer makes DDP look for unused parameters in each step, as the measured point does not.
        "ddp_find_unused_parameters": False,
        **_PRECISIONS[recipe.compute_precision],
    }
    if recipe.optimizer == "adamw":
        values |= {"adam_beta1": recipe.beta1, "adam_beta2": recipe.beta2, "adam_epsilon": recipe.epsilon}
    if layout.checkpointing == "full":
        values["gradient_checkpointing"] = True
    if layout.compile == "model":
        values["torch_compile"] = True
    if layout.bucket_mib:
        values["ddp_bucket_cap_mb"] = layout.bucket_mib
    if layout.grad_sync == "every" and batch.grad_accum > 1:
        values["accelerator_config"] = json.dumps({"gradient_accumulation_kwargs": {"sync_each_batch": True}})
    return [word for name, value in values.items() for word in (f"--{name}", _text(value))]


def done_otherwise(recipe: Recipe) -> Iterator[str]:
    """Yields a line for each part of the recipe that Trainer does differently."""
    if recipe.weight_decay and recipe.decay == "all":
        yield "weight decay of norms and biases: Trainer's takes matrices alone"
    yield "a learning rate that stays: Trainer's falls to 0 in a line, without --lr_scheduler_type"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _without_flag(recipe: Recipe, layout: Layout) -> Iterator[str]:
    """Yields the name of each part of the point that no flag can express."""
    if layout.engine != "ddp":
        yield layout.rules.label(layout)
    carried = _CARRIED | {name for name, value in _SOMETIMES.items() if getattr(layout, name) == value}
    # transformers uses sdpa by default if the model supports it.
    for name, declared in axes_of(Layout).items():
        value = getattr(layout, name)
        is_own = value != (_DEFAULTS.get(name) or defaults_of(Layout).get(name))
        if name not in carried and is_own and declared.label:
            yield declared.words(value)
    if recipe.state_precision != "fp32":
        yield f"{recipe.state_precision} states"
    if recipe.compute_precision not in _PRECISIONS:
        yield f"{recipe.compute_precision} compute"
    for name in ("compression", "attention_mask", "trained_tokens", "adapter", "balance_loss"):
        if (value := getattr(recipe, name)) != defaults_of(Recipe)[name]:
            yield axes_of(Recipe)[name].words(value)


_SOMETIMES = {"checkpointing": "full", "compile": "model"}
"""Axes of which Trainer supports this value besides the default."""
_DEFAULTS = {"attention": "sdpa"}
"""Values that transformers uses by default."""
