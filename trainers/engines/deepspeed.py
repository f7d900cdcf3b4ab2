"""DeepSpeed ZeRO 0, 1, 2 and 3 through `deepspeed.initialize`, on torch's existing process group.

Behaviour of each stage, read in DeepSpeed 0.19.8 and verified by the contract test:
- Stage 0 in fp32 is the plain optimizer over all-reduced gradients. Its native bf16 and fp16 modes accumulate gradients
  in 16 bits, which is another recipe; so 16-bit products use DeepSpeed's `torch_autocast`: fp32 weights and gradients,
  as in DDP. The engine clips gradients itself, because DeepSpeed would not return the norm.
- Stage 1 in bf16 is `BF16_Optimizer`: whole 16-bit weights and whole fp32 gradients on every rank, sharded fp32 master
  weights and Adam states. In fp32 and fp16 it is the optimizer of stage 2 with unsharded gradients.
- Stage 2 is `DeepSpeedZeroOptimizer`: reduced gradients are sharded.
- Stage 3 shards weights too; vectors (norms, biases) stay whole on every rank, matrices never do.

Stages 0 and 1 exchange gradients at the last micro-step of a step, stages 2 and 3 at every one. All stages exchange and
sum gradients in fp32 (`communication_data_type`, `grad_accum_dtype`); DeepSpeed's default would be 16 bits. Stages 1 to
3 in fp32 hold a second fp32 copy of their part of the weights.

With `offload` "optimizer" master weights, Adam states and reduced gradients of stages 1 to 3 are in pinned host memory,
where torch's fused AdamW steps them; with "all" stage 3's parameters are there too. Stage 1 then runs as stage 2 with
unsharded gradients, in bf16 too.

With bf16 states, stages 1 to 3 keep master weights and Adam states in bf16 (`bf16_master_weights_and_grads`,
`bf16_optimizer_states`), and sum gradients in bf16 over ranks and micro-steps; the norm is fp32. Stage 1 is then the
optimizer of stage 2 with unsharded gradients; stages 1 and 2 hold a second bf16 copy of their part of the weights.
Stage 0 refuses bf16 states, because its native bf16 mode always has fp32 master weights.
"""

import functools
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from trainers.distributed.state import (
    Counters,
    StateTensor,
    flat_range,
    named_tensors,
    optimizer_state,
    set_steps_taken,
    steps_taken,
    whole_tensor,
)
from trainers.engines.accumulating import AccumulatingEngine
from trainers.engines.deepspeed_config import engine_config, zero_in_effect
from trainers.engines.deepspeed_library import (
    deepspeed,
    safe_set_full_fp32_param,
    torch_autocast,
)
from trainers.engines.deepspeed_state import cut, cut_modules_from_masters, decays_of, masters_of, offload_of, stage_of
from trainers.engines.model_preparation import kernels_in_effect
from trainers.engines.settings import (
    dtype_name,
    half_dtype,
    make_optimizer,
    matmul_precision,
    optimizer_in_effect,
    plain_name,
    product_sums,
    scaler_counters,
    set_scaler,
    state_dtype,
)
from trainers.kernels.head import loss_of
from trainers.models import weights
from trainers.models.model import Model
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe


class DeepSpeedEngine(AccumulatingEngine):
    """Runs one ZeRO stage; see the module's docstring and `trainers.engines.base.Engine`. Needs LOCAL_RANK, which Ray
    Train sets. After stage 3, call `torch.distributed.destroy_process_group`, or the interpreter aborts at exit.
    """

    def __init__(self, recipe: Recipe, layout: Layout, device: torch.device) -> None:
        super().__init__(recipe, layout, device)
        self._linear = F.linear  # stage 3 replaces it for the whole process
        config = engine_config(recipe, layout)
        (model,) = self._models
        self._fill(model, config)
        initialize: Any = deepspeed.initialize
        engine, *_ = initialize(
            model=model.module,
            model_parameters=list(model.module.parameters()),
            optimizer=lambda parameters: make_optimizer(parameters, recipe),
            config=config,
        )
        self._engine: Any = engine
        self._set_masters()

    def _fill(self, model: Model, config: dict[str, Any]) -> None:
        recipe, layout = self.recipe, self.layout
        dtype = (half_dtype(recipe) if layout.zero_stage else None) or torch.float32
        for unit in (*model.units, model.module):
            self.fill_weights(unit, model, dtype)
            if layout.zero_stage == 3:
                # Shards the unit at once, so that a rank never holds more than its part and one unit.
                deepspeed.zero.Init(module=unit, config_dict_or_path=config, dtype=dtype)

    def _set_masters(self) -> None:
        """Restores the low bits of fp32 master weights, which 16-bit modules lost, so that every engine starts from the
        same model.
        """
        if self.layout.zero_stage == 0 or half_dtype(self.recipe) in (None, state_dtype(self.recipe)):
            return
        model, seed = self.recipe.model, self.recipe.seed
        for name, parameter in self._engine.module.named_parameters():
            shape = getattr(parameter, "ds_shape", parameter.shape)
            value = weights.draw(
                plain_name(name),
                shape,
                seed=seed,
                std=model.init_std,
                device=self.device,
                vector_start=model.vector_start,
            )
            safe_set_full_fp32_param(parameter, value)

    def _set_grad_accum(self, grad_accum: int) -> None:
        super()._set_grad_accum(grad_accum)
        self._engine.set_train_batch_size(grad_accum * self._engine.dp_world_size)

    def _micro_step(self, tokens: torch.Tensor, *, last: bool) -> torch.Tensor:
        self._engine.set_gradient_accumulation_boundary(last)
        loss = loss_of(self._engine, self._models[0].head, tokens, self._context.inputs)
        self._engine.backward(loss)
        return loss.detach()

    def _optimizer_step(self) -> torch.Tensor:
        engine = self._engine
        skipped = engine.skipped_steps
        norm = self._clip() if self.layout.zero_stage == 0 else None
        engine.step()
        if norm is None:
            # An overflowing fp16 step ends before DeepSpeed computes a norm, and the previous norm would be returned.
            norm = float("inf") if engine.skipped_steps > skipped else engine.get_global_grad_norm()
        return torch.as_tensor(norm, dtype=torch.float32, device=self.device)

    def _clip(self) -> torch.Tensor:
        scaler = self._engine.torch_autocast_z0_gradscaler
        if scaler is not None:
            scaler.unscale_(self._engine.optimizer)
        limit = self.recipe.grad_clip or float("inf")
        norm = nn.utils.clip_grad_norm_(self._engine.module.parameters(), limit)
        if scaler is not None:
            self._skipped += torch.isfinite(norm).logical_not()
        return norm

    def set_learning_rate(self, learning_rate: float) -> None:
        for group in self._engine.basic_optimizer.param_groups:
            group["lr"] = learning_rate

    def num_skipped_steps(self) -> int:
        return self._engine.skipped_steps + int(self._skipped.item())

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            part, arguments = self._context.entered(tokens)
            return self._engine(part, **arguments).logits

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        self._context.count_labels([tokens], all_ranks=False)
        with torch.no_grad():
            return loss_of(self._engine, self._models[0].head, tokens, self._context.inputs).float()

    def training_state(self) -> Mapping[str, StateTensor]:
        optimizer, masters = self._engine.basic_optimizer, masters_of(self._engine.optimizer)
        rank, world_size = dist.get_rank(), dist.get_world_size()
        state: dict[str, StateTensor] = {}
        for name, parameter in self._engine.module.named_parameters():
            name = plain_name(name)
            if self.layout.zero_stage == 0:
                place = functools.partial(whole_tensor, replica=rank, num_replicas=world_size)
                state |= named_tensors(name, parameter, optimizer_state(optimizer, parameter), place)
                continue
            group, first, size, start, shape = cut(self._engine.optimizer, parameter)
            states = {
                kind: value.narrow(0, first, size)
                for kind, value in optimizer_state(optimizer, masters[group]).items()
                if isinstance(value, torch.Tensor) and value.dim()
            }
            state |= named_tensors(
                name, masters[group].narrow(0, first, size), states, functools.partial(flat_range, shape, start)
            )
        return state

    def counters(self) -> Counters:
        engine = self._engine
        scale: dict[str, Any] = scaler_counters(engine.torch_autocast_z0_gradscaler)
        scaler = getattr(engine.optimizer, "loss_scaler", None)
        if self.recipe.compute_precision == "fp16" and scaler is not None:
            steps = (scaler.cur_iter - scaler.last_overflow_iter - 1) % scaler.scale_window
            scale = {"loss_scale": float(scaler.cur_scale), "loss_scale_steps": steps}
        return Counters(optimizer_step=steps_taken(engine.basic_optimizer), **scale)

    def adopt(self, counters: Counters) -> None:
        engine, wrapper = self._engine, self._engine.optimizer
        set_steps_taken(engine.basic_optimizer, counters.optimizer_step)
        set_scaler(engine.torch_autocast_z0_gradscaler, counters)
        scaler = getattr(wrapper, "loss_scaler", None)
        if self.recipe.compute_precision == "fp16" and counters.loss_scale is not None and scaler is not None:
            scaler.cur_scale, scaler.cur_iter = counters.loss_scale, counters.loss_scale_steps
            scaler.last_overflow_iter = -1
        # The modules' working weights are rebuilt from the master weights.
        if self.layout.zero_stage == 3:
            cut_modules_from_masters(wrapper, self._engine.module)
        elif self.layout.zero_stage:
            wrapper.update_lp_params()

    def in_effect(self) -> Mapping[str, Any]:
        engine, wrapper, optimizer = self._engine, self._engine.optimizer, self._engine.basic_optimizer
        kind = type(engine).__name__
        stage = stage_of(wrapper)
        ranks = dist.get_world_size(engine.seq_data_parallel_group)
        if engine.torch_autocast_enabled():
            compute = dtype_name(engine.torch_autocast_dtype())
        else:
            dtypes = {parameter.dtype for parameter in engine.module.parameters()}
            compute = "+".join(sorted(map(dtype_name, dtypes)))
        return {
            **optimizer_in_effect(
                optimizer, masters=masters_of(wrapper), decays=decays_of(wrapper, optimizer.param_groups)
            ),
            "engine": {"DeepSpeedEngine": "deepspeed"}.get(kind, kind),
            "zero_stage": stage if stage == engine.zero_optimization_stage() else f"{stage}, not what it says",
            "dp_replicate": 1 if stage else ranks,
            "dp_shard": ranks if stage else 1,
            "world_size": dist.get_world_size(),
            "grad_accum": engine.gradient_accumulation_steps(),
            "offload": offload_of(wrapper),
            "grad_sync": "every" if engine.zero_optimization_partition_gradients() else "last",
            "product_sums": product_sums(),
            "grad_clip": engine.gradient_clipping() if stage else self.recipe.grad_clip,
            "attention_mask": self._context.mask_in_effect(self._models),
            "trained_tokens": self._context.trained_in_effect,
            **kernels_in_effect(self._models, self.layout),
            "compute_precision": matmul_precision() if compute == "fp32" else compute,
            **zero_in_effect(engine, self.recipe, compute),
            "reduce_precision": dtype_name(engine.communication_data_type),
            "accumulation_precision": dtype_name(engine.get_data_types()[1]),
            "wrapper": type(wrapper).__name__,
        }

    def close(self) -> None:
        self._engine.destroy()
        # DeepSpeed leaves both changed for the whole process, and the next engine would scale fp16 losses twice.
        F.linear = self._linear
        torch_autocast.TORCH_AUTOCAST_INITIALIZED, torch_autocast.TORCH_AUTOCAST_DTYPE = False, None
        del self._engine, self._models
