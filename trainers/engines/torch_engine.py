"""`TorchEngine`: the base of engines that use only torch, for whole models and pipeline stages."""

import abc
import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trainers.distributed.norm import global_norm
from trainers.distributed.state import (
    BALANCE,
    FROZEN,
    Counters,
    StateTensor,
    named_tensors,
    optimizer_state,
    set_steps_taken,
    steps_taken,
    whole_tensor,
)
from trainers.engines.accumulating import AccumulatingEngine
from trainers.engines.balance import Balance
from trainers.engines.host_moments import HostMomentsAdamW
from trainers.engines.model_preparation import kernels_in_effect
from trainers.engines.settings import (
    dtype_name,
    half_dtype,
    make_optimizer,
    matmul_precision,
    model_dtype,
    optimizer_in_effect,
    plain_name,
    product_sums,
    scaler_counters,
    set_scaler,
    state_dtype,
)
from trainers.kernels.head import loss_of, run_blocks
from trainers.marks.step import Marks, StepPhase, StepResult
from trainers.mesh.pipeline import Pipeline, PipelineHooks
from trainers.mesh.stage_model import cut
from trainers.models import float8
from trainers.models.adapters import adapters_in_effect
from trainers.models.model import Model
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.spec.stages import stages_of_rank


class TorchEngine(AccumulatingEngine):
    """Implements steps with torch's optimizers: loss scaling, clipping, the optimizer step. See
    `trainers.engines.base.Engine`.

    With bf16 states ("pure bf16") nothing has an fp32 copy: weights, gradients, AdamW's moments and the norm are stored
    in bf16. Micro-steps and ranks are summed in bf16, with a rounding at each addition. Within a kernel (a product, a
    norm, AdamW's update) sums are fp32 and rounded at the end; the loss is fp32.

    fp16 losses are scaled by torch's GradScaler (2^16 at first, halved at each overflow, doubled after 2000 steps).
    """

    module: Any
    """The module of `lay_out`: the wrapped or sharded model, or for a pipeline all stages of this rank."""
    _weights: list[nn.Parameter]
    """Parameters that the optimizer steps, in the module's order."""
    _frozen: list[tuple[str, nn.Parameter]]
    """Parameters that do not train, with their names in the plain model."""

    def __init__(self, recipe: Recipe, layout: Layout, device: torch.device) -> None:
        super().__init__(recipe, layout, device)
        self._syncs: list[bool] = []
        self._last_syncs: list[bool] = []
        self._modules = tuple(map(self.lay_out, self._models))
        self.module = self._modules[0] if len(self._modules) == 1 else nn.ModuleList(self._modules)
        parameters = [pair for module in self._modules for pair in module.named_parameters()]
        self._names = [plain_name(name) for name, parameter in parameters if parameter.requires_grad]
        self._frozen = [(plain_name(name), parameter) for name, parameter in parameters if not parameter.requires_grad]
        self._weights = self._stepped()
        self._optimizer = make_optimizer(self._weights, recipe, host_moments=layout.offload == "moments")
        self._scaler = self._make_scaler() if recipe.compute_precision == "fp16" else None
        self._pipeline = self._make_pipeline() if layout.pp > 1 else None
        self.marks_micro_steps = self._pipeline is None
        self._tied = self._stepped_copy(self._pipeline) if self._pipeline is not None else None
        self._balance = Balance(self._models, self._mesh, recipe, device)

    def _build(self) -> tuple[Model, ...]:
        if self.layout.pp == 1:
            return super()._build()
        stages = stages_of_rank(self.recipe, self.layout, self._mesh.coordinates["pp"])
        return tuple(cut(self._whole_model(), stage) for stage in stages)

    def _make_pipeline(self) -> Pipeline:
        return Pipeline(
            self._models,
            self._modules,
            recipe=self.recipe,
            layout=self.layout,
            group=self._mesh.group("pp"),
            context=self._context,
            device=self.device,
            hidden_dtype=self._hidden_dtype(),
            hooks=PipelineHooks(computing=self.computing, exchanges=self._exchanges, scaled=self._scaled),
        )

    def _stepped_copy(self, pipeline: Pipeline) -> torch.Tensor | None:
        """Returns this rank's optimizer parameter for its copy of a tied table; None if it has none."""
        copy = pipeline.tied_copy()
        places = [i for i, parameter in enumerate(self.module.parameters()) if parameter is copy]
        return self._weights[places[0]] if places else None

    def _hidden_dtype(self) -> torch.dtype:
        """Returns the type of hidden states between blocks; under autocast it is the weights' type."""
        return state_dtype(self.recipe)

    def _exchanges(self, module: nn.Module, last: bool) -> bool:
        """Prepares a stage's backward pass; `last` is true for a step's last pass. Returns whether it exchanges
        gradients.

        Raises:
            NotImplementedError: the engine has no pipelines.
        """
        raise NotImplementedError(f"{self.layout.rules.title} has no pipelines")

    @abc.abstractmethod
    def lay_out(self, model: Model) -> nn.Module:
        """Fills the weights (`fill_weights`), wraps or shards the model, and returns the module that runs."""

    @abc.abstractmethod
    def syncing(self, sync: bool) -> contextlib.AbstractContextManager[bool]:
        """Returns a context for one micro-step with or without gradient exchange; it yields whether the library will
        exchange.
        """

    def computing(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the context of the forward pass: autocast if products have another type than the weights."""
        dtype = half_dtype(self.recipe)
        if dtype is None or dtype == model_dtype(self.recipe):
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=dtype)

    def precision_in_effect(self) -> str:
        """Returns the type of products, as in `Recipe.compute_precision`, determined by computing one."""
        with self.computing():
            matrix = torch.ones(8, 8, dtype=next(self.module.parameters()).dtype, device=self.device)
            product = (matrix @ matrix).dtype
        plain = matmul_precision() if product == torch.float32 else dtype_name(product)
        return float8.precision_in_effect(self._models, plain)

    def _stepped(self) -> list[nn.Parameter]:
        """Returns the parameters that the optimizer steps."""
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def _make_scaler(self) -> torch.amp.GradScaler:
        sharded = self._mesh.size("pp", "tp") > 1
        return ShardedScaler(self.device.type) if sharded else torch.amp.GradScaler(self.device.type)

    def _micro_step(self, tokens: torch.Tensor, *, last: bool) -> torch.Tensor:
        with self.syncing(last or self.layout.grad_sync == "every") as synced:
            self._syncs.append(synced)
            with self._balance.counting("pass"), self.computing():
                loss = loss_of(self.module, self._models[0].head, tokens, self._context.inputs)
            if self._balance.counts("pass"):
                self._weigh()
            self._scaled(loss).backward()
        return loss.detach()

    def _scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the loss to differentiate: the micro-batch's mean loss over `_grad_accum`, times the loss scale."""
        scaled = loss / self._grad_accum
        return scaled if self._scaler is None else self._scaler.scale(scaled)

    def step(self, micro_batches: Sequence[torch.Tensor], marks: Marks) -> StepResult:
        self._balance.begin(len(micro_batches))
        self.counts_ahead = self._balance.counts("ahead")
        with self._balance.counting("step"):
            if self._pipeline is None:
                return super().step(micro_batches, marks)
            return self._scheduled_step(self._pipeline, micro_batches, marks)

    def _count(self, micro_batches: Sequence[torch.Tensor]) -> None:
        super()._count(micro_batches)
        if not self.counts_ahead:
            return
        with self._balance.counting("ahead"), torch.no_grad():
            for tokens in micro_batches:
                with self.computing():
                    run_blocks(self.module, self._models[0].head, self._context.inputs(tokens))
        self._weigh()

    def _weigh(self) -> None:
        self._balance.weigh(self._scaled(torch.ones((), device=self.device)))

    def _scheduled_step(self, pipeline: Pipeline, micro_batches: Sequence[torch.Tensor], marks: Marks) -> StepResult:
        self._set_grad_accum(len(micro_batches))
        marks.begin(StepPhase.SCHEDULE)
        self._count(micro_batches)
        if self._scaler is not None:
            self._scaler.scale(torch.zeros((), device=self.device))  # initialises the scale on stages without a loss
        losses = pipeline.run(micro_batches)
        marks.begin(StepPhase.OPTIMIZER_STEP)
        return self._result(losses, micro_batches, self._optimizer_step(), (StepPhase.SCHEDULE,))

    def _optimizer_step(self) -> torch.Tensor:
        if self._pipeline is not None and self._tied is not None:
            assert self._tied.grad is not None
            self._pipeline.sum_tied(self._tied.grad)
        self._tensor.sum_replicated(self._named_gradients(), self.device)
        self._experts.average(self._named_gradients())
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        norm = self._clip(self.recipe.grad_clip or float("inf"))
        if self._scaler is None:
            self._optimizer.step()
        else:
            # The norm is finite exactly if all unscaled gradients are; counting on the device needs no synchronisation.
            self._skipped += torch.isfinite(norm).logical_not()
            self._scaler.step(self._optimizer)
            self._scaler.update()
        self._balance.step()
        self._clear_gradients()
        self._last_syncs, self._syncs = self._syncs, []
        return norm

    def _clip(self, limit: float) -> torch.Tensor:
        """Scales gradients down to a global norm of `limit`; returns the norm before, 0-dim fp32 on the device."""
        copies = self._tensor.size
        gradients = (
            (gradient, 1 if self._tensor.is_cut(name) else copies)
            for name, gradient in self._named_gradients(tied_once=True)
            if gradient is not None
        )
        norm = global_norm(gradients, self._norm_group(), self.device)
        # With a factor of another type, CUDA would launch a kernel for each gradient.
        nn.utils.clip_grads_with_norm_(self._weights, limit, norm.to(self._weights[0].dtype))
        return norm

    def _norm_group(self) -> Any:
        """Returns the group over which squares of gradients are summed; None if each rank has all gradients."""
        return self._mesh.group("pp", "tp") if self._mesh.size("pp", "tp") > 1 else None

    def _named_gradients(self, *, tied_once: bool = False) -> Iterator[tuple[str, torch.Tensor | None]]:
        """Yields the gradients for the optimizer by their parameters' names in the plain model. `tied_once` leaves out
        a pipeline's second copy of a tied table.
        """
        left_out = self._tied if tied_once and self._pipeline is not None and self._pipeline.has_second_copy else None
        for name, parameter in zip(self._names, self._weights, strict=True):
            if parameter is not left_out:
                yield name, parameter.grad

    def _clear_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def set_learning_rate(self, learning_rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate

    def num_skipped_steps(self) -> int:
        return int(self._skipped.item())

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        if self._pipeline is not None:
            return self._pipeline.logits(tokens)
        with torch.no_grad(), self.computing():
            part, arguments = self._context.entered(tokens)
            return self._context.gathered(self.module(part, **arguments).logits)

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        self._context.count_labels([tokens], all_ranks=False)
        if self._pipeline is not None:
            return self._context.mean(self._pipeline.loss(tokens))
        with torch.no_grad(), self.computing():
            loss = loss_of(self.module, self._models[0].head, tokens, self._context.inputs)
        return self._context.mean(loss.float())

    def _placed(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, Callable[[torch.Tensor], StateTensor]]]:
        """Yields for each parameter its name, the optimizer's parameter, the live weight, and a function that describes
        how a tensor of its shape is distributed: whole on each rank that has it, unless an engine shards.
        """
        for name, parameter in zip(self._names, self._weights, strict=True):
            yield name, parameter, *self._place_of(parameter)

    def _place_of(self, parameter: Any) -> tuple[torch.Tensor, Callable[[torch.Tensor], StateTensor]]:
        """Returns a parameter's live weight, and a function that describes how a tensor of its shape is distributed."""
        replicas = self._mesh.group("dp_replicate", "cp")
        return parameter, functools.partial(
            whole_tensor, replica=dist.get_rank(replicas), num_replicas=dist.get_world_size(replicas)
        )

    def training_state(self) -> Mapping[str, StateTensor]:
        if isinstance(self._optimizer, HostMomentsAdamW):
            self._optimizer.wait()
        tensors: dict[str, StateTensor] = {}
        for name, stepped, weight, place in self._placed():
            tied = self._pipeline if stepped is self._tied else None
            plain = name if tied is None else tied.tied_name
            for key, part in named_tensors(plain, weight, optimizer_state(self._optimizer, stepped), place):
                tensors[key] = self._tensor.placed(plain, self._experts.placed(plain, part))
                if tied is not None:
                    tensors[key] = tensors[key].doubled(second=tied.has_second_copy)
        for name, parameter in self._frozen:
            weight, place = self._place_of(parameter)
            tensors[f"{FROZEN}/{name}"] = self._tensor.placed(name, self._experts.placed(name, place(weight)))
        for name, bias in self._balance.biases():
            replica, num_replicas = self._balance.replica()
            tensors[f"{BALANCE}/{name}"] = whole_tensor(bias, replica=replica, num_replicas=num_replicas)
        return tensors

    def counters(self) -> Counters:
        return Counters(optimizer_step=steps_taken(self._optimizer), **scaler_counters(self._scaler))

    def adopt(self, counters: Counters) -> None:
        set_steps_taken(self._optimizer, counters.optimizer_step)
        set_scaler(self._scaler, counters)

    def in_effect(self) -> Mapping[str, Any]:
        several = len(self._last_syncs) > 1
        return {
            "engine": self.layout.engine,
            "world_size": dist.get_world_size(),
            "grad_accum": len(self._last_syncs) or None,
            "grad_sync": ("every" if all(self._last_syncs) else "last") if several else None,
            "product_sums": product_sums(),
            "grad_clip": self.recipe.grad_clip,
            "tp": self._tensor.in_effect(self._models),
            "cp": self._context.in_effect(self._models),
            "cp_exchange": self._context.exchange_in_effect(self._models),
            "ep": self._experts.in_effect(self._models),
            "attention_mask": self._context.mask_in_effect(self._models),
            "trained_tokens": self._context.trained_in_effect,
            **kernels_in_effect(self._models, self.layout),
            **(self._pipeline.in_effect() if self._pipeline is not None else {}),
            **optimizer_in_effect(self._optimizer),
            **adapters_in_effect(self._models, self.recipe),
        }

    def close(self) -> None:
        self._optimizer.state.clear()
        if isinstance(self._optimizer, HostMomentsAdamW):
            self._optimizer.release()
        del self._pipeline, self.module, self._modules, self._optimizer, self._models, self._tied, self._weights
        del self._frozen


class ShardedScaler(torch.amp.GradScaler):
    """Makes ranks with different parts of the parameters skip a step together. Torch's own sharded scaler fails with
    fused optimizers.
    """

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        super().unscale_(optimizer)
        for found_inf in self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values():
            everywhere = found_inf.to(self._device)
            dist.all_reduce(everywhere, op=dist.ReduceOp.MAX)
            found_inf.copy_(everywhere)
