"""Real engines, made in a process of their own and changed to run something else than they were asked for."""

# pyright: reportPrivateUsage=false

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from tests.contract import whole_tensors
from tests.contract.cases import BLOOM, recipe
from tests.contract.float8_cases import float8_recipe
from trainers.data import source
from trainers.engines import deepspeed as deepspeed
from trainers.engines.create import create_engine
from trainers.engines.settings import make_optimizer
from trainers.marks.step import StepPhase, Unmarked
from trainers.spec import engines
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

DDP = Layout(engine="ddp", checkpointing="full", bucket_mib=7)
FSDP = Layout(engine="fsdp", zero_stage=3, prefetch=1)
AWAY = dataclasses.replace(DDP, offload="moments")
KEEP = dataclasses.replace(FSDP, after_backward="keep")
ZERO = Layout(engine="deepspeed", zero_stage=2, grad_sync="every", bucket_mib=7)
ADAMW = recipe(BLOOM)
ADAFACTOR = recipe(BLOOM, optimizer="adafactor")
MATRICES = dataclasses.replace(ADAMW, decay="matrices")
POWERSGD = recipe(BLOOM, compression="powersgd_4")
BF16_SUMS = recipe(BLOOM, compression="bf16")
FLOAT8 = float8_recipe("bloom", "fp8_tensorwise")
CASTS_KEPT = Layout(engine="ddp", fp8_weights="kept")


def _higher_stage(engine: Any) -> None:
    """Leaves the engine as it is: DeepSpeed's own configuration was changed before it was made (see `_other_stage`)."""


def _tf32(engine: Any) -> None:
    torch.set_float32_matmul_precision("high")


def _cut_sums(engine: Any) -> None:
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True


def _learning_rate(engine: Any) -> None:
    engine._optimizer.param_groups[0]["lr"] *= 2


def _unwrap_a_block(engine: Any) -> None:
    blocks = engine.module.module.transformer.h
    blocks[1] = blocks[1]._checkpoint_wrapped_module


def _keep_parameters(engine: Any) -> None:
    engine.module.set_reshard_after_forward(False)


def _free_parameters(engine: Any) -> None:
    engine.module.set_reshard_after_backward(True)


def _grad_accum(engine: Any) -> None:
    engine._set_grad_accum(3)


def _clip_threshold(engine: Any) -> None:
    engine._optimizer.param_groups[0]["clip_threshold"] = 2.0


def _other_rank(engine: Any) -> None:
    _two_steps(engine)
    engine.module._comm_hooks[0][1]._state.matrix_approximation_rank = 1


def _without_hook(engine: Any) -> None:
    engine.module._comm_hooks.clear()


def _two_steps(engine: Any) -> None:
    tokens = torch.from_numpy(source(ADAMW).sequences(0, range(2)))
    for _ in range(2):
        engine.step([tokens], Unmarked())


def _unclipped(engine: Any) -> None:
    engine.recipe = dataclasses.replace(engine.recipe, grad_clip=0.0)


def _unclipped_zero(engine: Any) -> None:
    engine._engine.config["gradient_clipping"] = 0.0
    engine._engine._config.gradient_clipping = 0.0


def _dropout(engine: Any) -> None:
    engine.module.module.transformer.h[1].mlp.hidden_dropout = 0.1


def _two_groups(engine: Any) -> None:
    """Takes weight decay from norms and biases, as many trainers do."""
    (group,) = engine._optimizer.param_groups
    vectors = [parameter for parameter in group["params"] if parameter.dim() < 2]
    group["params"] = [parameter for parameter in group["params"] if parameter.dim() > 1]
    engine._optimizer.add_param_group({"params": vectors, "weight_decay": 0.0})


def _everything_decays(engine: Any) -> None:
    for group in engine._engine.basic_optimizer.param_groups:
        group["weight_decay"] = ADAMW.weight_decay


def _a_norm_decays(engine: Any) -> None:
    matrices, vectors = engine._optimizer.param_groups
    matrices["params"].append(vectors["params"].pop())


def _cast_in_a_layer(engine: Any) -> None:
    layer = engine.module.module.transformer.h[1].mlp.dense_h_to_4h
    layer.__class__ = type(layer).__mro__[1]


def _older_casts(engine: Any) -> None:
    with torch.no_grad():
        engine.module.module.transformer.h[1].mlp.dense_h_to_4h.weight.mul_(3)


def _moments_on_device(engine: Any) -> None:
    """Replaces the optimizer by one that keeps its moments beside the weights."""
    engine._optimizer = make_optimizer(engine._weights, engine.recipe)


def _nothing(engine: Any) -> None:
    """Leaves the engine as it was asked for."""


TAMPERINGS: dict[str, tuple[Layout, Callable[[Any], None], str, Recipe]] = {
    "nothing in DDP": (DDP, _nothing, "", ADAMW),
    "nothing in FSDP2": (FSDP, _nothing, "", ADAMW),
    "nothing in ZeRO-2": (ZERO, _nothing, "", ADAMW),
    "another ZeRO stage": (ZERO, _higher_stage, "zero_stage in effect is 3", ADAMW),
    "another ZeRO accumulation": (ZERO, _grad_accum, "grad_accum in effect is 3", ADAMW),
    "TF32 switched on": (DDP, _tf32, "compute_precision in effect is tf32", ADAMW),
    "sums cut in 16-bit pieces": (ZERO, _cut_sums, "product_sums in effect is bf16", ADAMW),
    "no clipping": (DDP, _unclipped, "grad_clip in effect is 0.0", ADAMW),
    "no clipping in ZeRO-2": (ZERO, _unclipped_zero, "grad_clip in effect is 0.0", ADAMW),
    "dropout in a block": (DDP, _dropout, "dropout in effect is 0.1", ADAMW),
    "norms and biases that do not decay": (DDP, _two_groups, "decay in effect is matrices", ADAMW),
    "nothing in DDP where matrices decay": (DDP, _nothing, "", MATRICES),
    "nothing in FSDP2 where matrices decay": (FSDP, _nothing, "", MATRICES),
    "nothing in ZeRO-2 where matrices decay": (ZERO, _nothing, "", MATRICES),
    "norms and biases that decay in ZeRO-2": (ZERO, _everything_decays, "decay in effect is all", MATRICES),
    "a norm that decays too": (DDP, _a_norm_decays, "weight_decay in effect is 0.0 and 0.1", MATRICES),
    "another learning rate": (DDP, _learning_rate, "learning_rate in effect is 0.002", ADAMW),
    "a block without checkpointing": (DDP, _unwrap_a_block, "checkpointing in effect is every_2", ADAMW),
    "parameters kept after the forward pass": (FSDP, _keep_parameters, "zero_stage in effect is 2", ADAMW),
    "parameters freed after the backward pass": (KEEP, _free_parameters, "after_backward in effect is free", ADAMW),
    "nothing in DDP with moments in host memory": (AWAY, _nothing, "", ADAMW),
    "moments beside the weights": (AWAY, _moments_on_device, "offload in effect is none", ADAMW),
    "moments beside the shards": (
        dataclasses.replace(FSDP, offload="moments"),
        _moments_on_device,
        "offload in effect is none",
        ADAMW,
    ),
    "another rank in PowerSGD": (DDP, _other_rank, "compression in effect is powersgd_1", POWERSGD),
    "nothing compressed": (DDP, _without_hook, "compression in effect is none", BF16_SUMS),
    "compression in ZeRO-2": (ZERO, _nothing, "the engine does not report its compression", BF16_SUMS),
    "nothing where casts are kept": (CASTS_KEPT, _nothing, "", FLOAT8),
    "a layer that casts in each pass": (
        CASTS_KEPT,
        _cast_in_a_layer,
        "fp8_weights in effect is kept in 7 of 8 layers",
        FLOAT8,
    ),
    "casts of other weights": (CASTS_KEPT, _older_casts, "fp8_weights in effect is kept from other weights", FLOAT8),
    "nothing in DDP with Adafactor": (DDP, _nothing, "", ADAFACTOR),
    "another clipping in Adafactor": (
        DDP,
        _clip_threshold,
        "optimizer in effect is adafactor, clip_threshold 2.0",
        ADAFACTOR,
    ),
    "Adafactor over flat shards": (ZERO, _nothing, "optimizer in effect is adafactor, nothing factored", ADAFACTOR),
}
"""The layout, the tampering, the start of each expected mismatch (empty for none), and the recipe asked for."""


def mismatches_of(names: list[str]) -> dict[str, list[str]]:
    """Returns the mismatches that each tampering causes, by its name; runs in a group of one rank."""
    mismatches = {}
    for name in names:
        layout, tamper, _, recipe = TAMPERINGS[name]
        honest = deepspeed.engine_config
        if tamper is _higher_stage:
            deepspeed.engine_config = _other_stage
        try:
            engine = create_engine(recipe, layout, torch.device("cpu"))
        finally:
            deepspeed.engine_config = honest
        tamper(engine)
        mismatches[name] = engines.mismatches(engine.in_effect(), recipe, layout, grad_accum=1)
        engine.close()
    return mismatches


def _other_stage(recipe: Recipe, layout: Layout) -> dict[str, Any]:
    return _HONEST(recipe, dataclasses.replace(layout, zero_stage=3))


_HONEST = deepspeed.engine_config


def overflows(layouts: list[Layout]) -> list[dict[str, Any]]:
    """Runs fp16 steps in each layout, the second with a loss scale that overflows; returns losses, norms, counts of
    skipped steps, whether each step kept the weights, and mismatches.
    """
    # Nothing but this answer keeps DeepSpeed from fp16 on a CPU; the code below it is the GPU's.
    cast(Any, get_accelerator()).is_fp16_supported = lambda: True
    runs = []
    for layout in layouts:
        half = recipe(BLOOM, "fp16")
        engine: Any = create_engine(half, layout, torch.device("cpu"))
        tokens = torch.from_numpy(source(half).sequences(0, range(8)))
        losses, norms, skipped, unchanged = [], [], [], []
        for step in range(4):
            if step in (1, 2):
                _set_loss_scale(engine, 2.0**100 if step == 1 else 2.0**10)
            before = whole_tensors.weights(engine)
            result = engine.step([tokens], Unmarked())
            losses.append((result.loss_sum / result.num_tokens).item())
            norms.append(result.grad_norm.item())
            skipped.append(engine.num_skipped_steps())
            unchanged.append(_are_equal(before, whole_tensors.weights(engine)))
        wrong = engines.mismatches(engine.in_effect(), half, layout, grad_accum=1)
        if layout.engine == "fsdp":
            unchanged.append(_kept_by_an_overflow_in_one_shard(engine, tokens))
        engine.close()
        runs.append({"losses": losses, "norms": norms, "skipped": skipped, "kept": unchanged, "mismatches": wrong})
    return runs


def _are_equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(first[name], weight) for name, weight in second.items())


def _kept_by_an_overflow_in_one_shard(engine: Any, tokens: torch.Tensor) -> bool:
    """Returns whether all weights stay as they are when a gradient overflows in rank 0's shard alone."""
    before = whole_tensors.weights(engine)
    engine.step([tokens], _Overflow(engine))
    return _are_equal(before, whole_tensors.weights(engine))


class _Overflow:
    """Marks that set a gradient in rank 0's shard to infinity where the optimizer step begins."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def begin(self, phase: StepPhase) -> None:
        if phase is StepPhase.OPTIMIZER_STEP and dist.get_rank() == 0:
            next(self._engine.models[0].module.parameters()).grad.to_local().view(-1)[0] = torch.inf


def _set_loss_scale(engine: Any, scale: float) -> None:
    if type(engine) is deepspeed.DeepSpeedEngine:
        if engine._engine.torch_autocast_z0_gradscaler is None:
            engine._engine.optimizer.loss_scaler.cur_scale = scale
        else:
            engine._engine.torch_autocast_z0_gradscaler.update(scale)
    else:
        engine._scaler.update(scale)
