"""DeepSpeed's configuration, without torch or DeepSpeed, for the engine that measures and for users of a winner.

Activation checkpointing is not in it: DeepSpeed leaves that to the model (`gradient_checkpointing_enable()` for a
transformers one).
"""

import sys
from collections.abc import Mapping
from typing import Any, cast

from trainers.spec.batch import BatchPoint
from trainers.spec.engines.deepspeed import DeepSpeedAxis
from trainers.spec.engines.engine_axis import axes_of_engine
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe


def ds_config(recipe: Recipe, layout: Layout, batch: BatchPoint) -> dict[str, Any]:
    """Returns the configuration with which a DeepSpeed user gets what was measured.

    torch's AdamW is in it by DeepSpeed's name; it has none for Adafactor: that of transformers is handed to
    `deepspeed.initialize` itself.

    Raises:
        ValueError: the layout is another engine's.
    """
    if layout.engine != "deepspeed":
        raise ValueError(f"a DeepSpeed configuration wants a deepspeed layout, got {layout.engine}")
    config: dict[str, Any] = {
        "train_batch_size": batch.micro_batch * batch.grad_accum * layout.data_parallel,
        "train_micro_batch_size_per_gpu": batch.micro_batch,
        "gradient_accumulation_steps": batch.grad_accum,
        "gradient_clipping": recipe.grad_clip,
        "zero_optimization": _zero(recipe, layout),
        "zero_allow_untested_optimizer": True,
        "communication_data_type": recipe.state_precision,
        "data_types": {"grad_accum_dtype": recipe.state_precision},
    }
    match recipe.compute_precision:
        case "bf16" | "fp16" if layout.zero_stage == 0:
            # Its own 16-bit modes would add gradients up in 16 bits at this stage, which is another recipe.
            dtype = "bfloat16" if recipe.compute_precision == "bf16" else "float16"
            config["torch_autocast"] = {"enabled": True, "dtype": dtype}
        case "bf16" if recipe.state_precision == "bf16":
            config["bf16"] = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
        case "bf16":
            config["bf16"] = {"enabled": True}
        case "fp16":
            # As torch's GradScaler does it: 2^16 at first, halved at once, doubled after 2000 good steps.
            scaling = {"loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 2000, "hysteresis": 1}
            config["fp16"] = {"enabled": True, **scaling}
        case _:
            pass
    if layout.offload != "none":
        # torch's AdamW, fused for the host as for the device: DeepSpeed's own would have to be compiled first.
        config["zero_force_ds_cpu_optimizer"] = False
    if recipe.optimizer == "adamw":
        numbers = {"lr": recipe.learning_rate, "betas": [recipe.beta1, recipe.beta2], "eps": recipe.epsilon}
        kind = {"weight_decay": recipe.weight_decay, "adam_w_mode": True, "torch_adam": True}
        kind |= {"fused": True} if layout.offload != "none" else {}
        config["optimizer"] = {"type": "Adam", "params": {**numbers, **kind}}
    return config


def engine_config(recipe: Recipe, layout: Layout) -> dict[str, Any]:
    """Returns `ds_config` as this project's engine passes it to `deepspeed.initialize`.

    Batch sizes are for one micro-step of one sequence: each rung sets its own. The optimizer is not in it: torch's
    fused AdamW or transformers' Adafactor is handed over beside it, so that nothing need be compiled.
    """
    config = ds_config(recipe, layout, BatchPoint(micro_batch=1, grad_accum=1))
    for name in ("train_batch_size", "optimizer"):
        config.pop(name, None)
    if layout.zero_stage == 0:
        config["gradient_clipping"] = 0.0  # the engine clips itself: DeepSpeed would drop the norm
    # The throughput timer waits for the device at every micro-step.
    return config | {"timers": {"throughput": {"enabled": False}}, "steps_per_print": sys.maxsize}


def zero_in_effect(engine: Any, recipe: Recipe, compute: str) -> dict[str, Any]:
    """Returns the axes that `_zero` sets, read back from DeepSpeed's engine; its products are in `compute`."""
    return {
        "bucket_mib": engine.zero_reduce_bucket_size() * (4 if compute == "fp32" else 2) // 2**20,
        **{name: axis.in_effect(engine, recipe) for name, axis in _axes().items()},
    }


def _axes() -> Mapping[str, DeepSpeedAxis]:
    """Returns the axes that have a file in `trainers/spec/engines/engine_axis`."""
    return cast(Mapping[str, DeepSpeedAxis], axes_of_engine("deepspeed"))


def _zero(recipe: Recipe, layout: Layout) -> dict[str, Any]:
    # DeepSpeed's own bound is 500 million elements, and stage 3 allocates that at once: no more than the model has.
    elements = min(500_000_000, recipe.model.num_parameters)
    if layout.bucket_mib:
        elements = layout.bucket_mib * 2**20 // (2 if recipe.compute_precision in ("bf16", "fp16") else 4)
    zero: dict[str, Any] = {
        "stage": layout.zero_stage,
        "reduce_bucket_size": elements,
        "allgather_bucket_size": elements,
    }
    if layout.zero_stage == 3:
        # Below hidden^2 only vectors are left; 100,000 is DeepSpeed's own bound.
        zero["stage3_param_persistence_threshold"] = min(100_000, recipe.model.hidden_size**2 - 1)
    for axis in _axes().values():
        zero |= axis.zero_settings(recipe, layout)
    if layout.offload in ("optimizer", "all"):
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if layout.offload == "all":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    return zero
