"""DeepSpeed's configuration, for measuring and for users of a winner. Imports neither torch nor DeepSpeed.

Activation checkpointing is not part of it; the model enables it (transformers' `gradient_checkpointing_enable()`).
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
    """Returns the configuration that reproduces a measurement with plain DeepSpeed. It includes torch's AdamW by
    DeepSpeed's name. DeepSpeed has no name for Adafactor, so a user passes transformers' one to `deepspeed.initialize`.

    Raises:
        ValueError: the layout belongs to another engine.
    """
    if layout.engine != "deepspeed":
        raise ValueError(f"a DeepSpeed configuration needs a deepspeed layout, got {layout.engine}")
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
            # DeepSpeed's 16-bit modes would sum gradients in 16 bits at this stage, which is another recipe.
            dtype = "bfloat16" if recipe.compute_precision == "bf16" else "float16"
            config["torch_autocast"] = {"enabled": True, "dtype": dtype}
        case "bf16" if recipe.state_precision == "bf16":
            config["bf16"] = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
        case "bf16":
            config["bf16"] = {"enabled": True}
        case "fp16":
            # As in torch's GradScaler: starts at 2^16, halves at each overflow, doubles after 2000 good steps.
            scaling = {"loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 2000, "hysteresis": 1}
            config["fp16"] = {"enabled": True, **scaling}
        case _:
            pass
    if layout.offload != "none":
        # Uses torch's AdamW, fused for the host as for the device, because DeepSpeed's own would have to be compiled.
        config["zero_force_ds_cpu_optimizer"] = False
    if recipe.optimizer == "adamw":
        numbers = {"lr": recipe.learning_rate, "betas": [recipe.beta1, recipe.beta2], "eps": recipe.epsilon}
        kind = {"weight_decay": recipe.weight_decay, "adam_w_mode": True, "torch_adam": True}
        kind |= {"fused": True} if layout.offload != "none" else {}
        config["optimizer"] = {"type": "Adam", "params": {**numbers, **kind}}
    return config


def engine_config(recipe: Recipe, layout: Layout) -> dict[str, Any]:
    """Returns `ds_config` as this project's engine passes it to `deepspeed.initialize`. Batch sizes are for one
    micro-step with one sequence, because each batch point sets its own. The optimizer (torch's fused AdamW or
    transformers' Adafactor) is passed separately, so that nothing has to be compiled.
    """
    config = ds_config(recipe, layout, BatchPoint(micro_batch=1, grad_accum=1))
    for name in ("train_batch_size", "optimizer"):
        config.pop(name, None)
    if layout.zero_stage == 0:
        config["gradient_clipping"] = 0.0  # the engine clips itself, because DeepSpeed would not return the norm
    # The throughput timer would synchronise with the device at every micro-step.
    return config | {"timers": {"throughput": {"enabled": False}}, "steps_per_print": sys.maxsize}


def zero_in_effect(engine: Any, recipe: Recipe, compute: str) -> dict[str, Any]:
    """Returns the values of the axes that `_zero` sets, read back from DeepSpeed's engine; `compute` is the products'
    type.
    """
    return {
        "bucket_mib": engine.zero_reduce_bucket_size() * (4 if compute == "fp32" else 2) // 2**20,
        **{name: axis.in_effect(engine, recipe) for name, axis in _axes().items()},
    }


def _axes() -> Mapping[str, DeepSpeedAxis]:
    return cast(Mapping[str, DeepSpeedAxis], axes_of_engine("deepspeed"))


def _zero(recipe: Recipe, layout: Layout) -> dict[str, Any]:
    # DeepSpeed's default of 500 million elements is allocated at once by stage 3; the model's size is enough.
    elements = min(500_000_000, recipe.model.num_parameters)
    if layout.bucket_mib:
        elements = layout.bucket_mib * 2**20 // (2 if recipe.compute_precision in ("bf16", "fp16") else 4)
    zero: dict[str, Any] = {
        "stage": layout.zero_stage,
        "reduce_bucket_size": elements,
        "allgather_bucket_size": elements,
    }
    if layout.zero_stage == 3:
        # With less than hidden^2 only vectors stay whole; 100,000 is DeepSpeed's default.
        zero["stage3_param_persistence_threshold"] = min(100_000, recipe.model.hidden_size**2 - 1)
    for axis in _axes().values():
        zero |= axis.zero_settings(recipe, layout)
    if layout.offload in ("optimizer", "all"):
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if layout.offload == "all":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    return zero
