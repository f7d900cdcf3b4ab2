"""Settings shared by engines, applied and read back: the precision of products, the optimizer, the loss scale."""

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from trainers.distributed.state import Counters
from trainers.engines.host_moments import HostMomentsAdamW
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
# A fixed learning rate, no first moment, and updates clipped at a root mean square of 1.
ADAFACTOR: dict[str, Any] = {
    "scale_parameter": False,
    "relative_step": False,
    "warmup_init": False,
    "beta1": None,
    "clip_threshold": 1.0,
}
_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def half_dtype(recipe: Recipe) -> torch.dtype | None:
    """Returns the 16-bit type of the recipe's activations; None for fp32 and tf32."""
    return _HALF.get(recipe.activation_precision)


def state_dtype(recipe: Recipe) -> torch.dtype:
    """Returns the type of master weights, summed gradients and AdamW's states."""
    return torch.bfloat16 if recipe.state_precision == "bf16" else torch.float32


def model_dtype(recipe: Recipe) -> torch.dtype:
    """Returns the storage type of the model's own parameters: the states' type, or the products' type if adapters
    train.
    """
    return half_dtype(recipe) or torch.float32 if recipe.adapter_rank else state_dtype(recipe)


def dtype_name(dtype: torch.dtype) -> str:
    return _NAMES.get(dtype, str(dtype))


def set_matmul_precision(recipe: Recipe) -> None:
    """Enables TF32 for the "tf32" recipe and disables it for all others, whatever a library or the environment has set.

    Products of 16-bit matrices are summed entirely in fp32. By default cuBLAS may split a long sum and add the pieces
    in 16 bits, as it does for few rows: at micro-batch 1 the gradient behind GPT-2's head was 15 % off on an H200, at
    micro-batch 16 under 1 % (docs/measurements.md). The micro-batch must change only the speed.
    """
    tf32 = recipe.compute_precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def matmul_precision() -> str:
    """Returns the present precision of fp32 products, "tf32" or "fp32"."""
    return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def product_sums() -> str:
    """Returns "fp32", or the types to which partial sums of 16-bit products may be rounded."""
    cut = torch.backends.cuda.matmul
    may = {"bf16": cut.allow_bf16_reduced_precision_reduction, "fp16": cut.allow_fp16_reduced_precision_reduction}
    return " and ".join(name for name, allowed in may.items() if allowed) or "fp32"


def set_host_threads(layout: Layout, device: torch.device) -> None:
    """Gives a rank whose optimizer steps on the host its share of the node's cores; Ray's workers have one thread."""
    if layout.steps_on_host and device.type == "cuda":
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))


def make_optimizer(
    parameters: Iterable[nn.Parameter], recipe: Recipe, *, host_moments: bool = False
) -> torch.optim.Optimizer:
    """Returns the recipe's optimizer over one parameter group, or two if not every parameter decays. AdamW is torch's
    fused one, with its moments in host memory if `host_moments`; Adafactor is transformers', whose states are always
    fp32.
    """
    groups: dict[bool, list[nn.Parameter]] = {}
    for parameter in parameters:
        shape = getattr(parameter, "ds_shape", parameter.shape)  # DeepSpeed's stage 3 leaves empty tensors
        groups.setdefault(recipe.decays(len(shape)), []).append(parameter)
    decayed: list[dict[str, Any]] = [
        {"params": group, "weight_decay": recipe.weight_decay if decays else 0.0} for decays, group in groups.items()
    ]
    if recipe.optimizer == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(decayed, lr=recipe.learning_rate, **ADAFACTOR)
    settings: dict[str, Any] = {
        "lr": recipe.learning_rate,
        "betas": (recipe.beta1, recipe.beta2),
        "eps": recipe.epsilon,
    }
    return HostMomentsAdamW(decayed, **settings) if host_moments else torch.optim.AdamW(decayed, **settings, fused=True)


def optimizer_in_effect(
    optimizer: torch.optim.Optimizer,
    masters: Iterable[torch.Tensor] = (),
    decays: Iterable[tuple[int, float]] | None = None,
) -> dict[str, Any]:
    """Returns an optimizer's settings under the names of Recipe; states count once a step has created them. `masters`
    are the weights that it steps, if a library swaps them in and out of its groups; `decays` then has each parameter's
    number of dimensions and weight decay.
    """
    if decays is None:
        decays = [(weight.dim(), part["weight_decay"]) for part in optimizer.param_groups for weight in part["params"]]
    group = optimizer.param_groups[0]
    weights = list(masters) or [weight for part in optimizer.param_groups for weight in part["params"]]
    dtypes = {tensor.dtype for tensor in weights}
    for state in optimizer.state.values():
        dtypes |= {value.dtype for key, value in state.items() if key.startswith("exp_avg")}
    settings = {
        "optimizer": "adamw" if isinstance(optimizer, HostMomentsAdamW) else type(optimizer).__name__.lower(),
        "state_precision": "+".join(sorted(map(dtype_name, dtypes))),
        "learning_rate": group["lr"],
        **_decay_in_effect(decays),
        "fused": bool(group.get("fused")),
    }
    if "betas" in group:
        settings |= {"beta1": group["betas"][0], "beta2": group["betas"][1], "epsilon": group["eps"]}
    if settings["optimizer"] == "adafactor":
        changed = [f"{key} {group[key]}" for key, value in ADAFACTOR.items() if group[key] != value]
        # Only matrices are factored; over flat shards Adafactor is another algorithm.
        changed += [] if any(tensor.dim() > 1 for tensor in weights) else ["nothing factored"]
        settings["optimizer"] = ", ".join(["adafactor", *changed])
    return settings


def _decay_in_effect(decays: Iterable[tuple[int, float]]) -> dict[str, Any]:
    """Returns the weight decay and the value of `decay`; the latter is None if nothing decays or decays are mixed."""
    matrices, vectors = set[float](), set[float]()
    for num_dimensions, decay in decays:
        (matrices if num_dimensions > 1 else vectors).add(decay)
    everything = sorted(matrices | vectors)
    if vectors == {0.0} and len(matrices) == 1 and 0.0 not in matrices:
        return {"weight_decay": matrices.pop(), "decay": "matrices"}
    if len(everything) == 1:
        return {"weight_decay": everything[0], "decay": "all" if everything[0] else None}
    return {"weight_decay": " and ".join(map(str, everything)), "decay": None}


def plain_name(name: str) -> str:
    """Returns the name in the plain transformers model for a wrapped parameter's name."""
    return name.replace("_checkpoint_wrapped_module.", "").removeprefix("module.")


def scaler_counters(scaler: torch.amp.GradScaler | None) -> dict[str, Any]:
    """Returns the fields of `Counters` from torch's scaler; empty without one."""
    if scaler is None:
        return {}
    state = scaler.state_dict()
    return {"loss_scale": state["scale"], "loss_scale_steps": state["_growth_tracker"]}


def set_scaler(scaler: torch.amp.GradScaler | None, counters: Counters) -> None:
    """Sets torch's scaler to `counters`, if both have a loss scale."""
    if scaler is not None and counters.loss_scale is not None:
        numbers = {"scale": counters.loss_scale, "_growth_tracker": counters.loss_scale_steps}
        scaler.load_state_dict({**scaler.state_dict(), **numbers})
