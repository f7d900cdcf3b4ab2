"""What engines share: matrix-product precision, optimizers, steps that accumulate; and what the torch engines do."""

import abc
import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trainers.engines._kernels import kernels_in_effect, prepare
from trainers.engines.state import Counters, StateTensor, named, optimizer_state, set_steps_taken, steps_taken, whole
from trainers.engines.step import Marks, Phase, StepResult
from trainers.kernels.head import loss_of
from trainers.mesh.context import ContextParallel
from trainers.mesh.groups import Mesh
from trainers.mesh.norm import global_norm
from trainers.mesh.pipeline import Hooks, Pipeline
from trainers.mesh.stage_model import cut
from trainers.mesh.stages import stages_of_rank
from trainers.mesh.tensor import TensorParallel
from trainers.models import Model, build
from trainers.values.layout import Layout
from trainers.values.recipe import Recipe

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
    """The 16-bit type of the recipe's matrix products, None for fp32 and tf32."""
    return _HALF.get(recipe.compute_precision)


def state_dtype(recipe: Recipe) -> torch.dtype:
    """The type of master weights, of summed gradients and of AdamW's states."""
    return torch.bfloat16 if recipe.state_precision == "bf16" else torch.float32


def dtype_name(dtype: torch.dtype) -> str:
    """ "fp32", "bf16" or "fp16"; any other type by torch's name."""
    return _NAMES.get(dtype, str(dtype))


def set_matmul_precision(recipe: Recipe) -> None:
    """TF32 on for the "tf32" recipe and off for every other one, whatever library or environment set before.

    A product of 16-bit matrices is summed in fp32 to its end. By torch's default cuBLAS may cut a long sum in pieces
    and add these in 16 bits, which it does for few rows: at micro-batch 1 the gradient behind GPT-2's head was 15 % off
    on an H200, at micro-batch 16 under 1 % (docs/measurements.md). Micro-batches are to change the speed alone.
    """
    tf32 = recipe.compute_precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def matmul_precision() -> str:
    """ "tf32" or "fp32": how products of fp32 matrices are done now."""
    return "fp32" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def product_sums() -> str:
    """ "fp32", or what the sums of 16-bit products may be rounded to on their way."""
    cut = torch.backends.cuda.matmul
    may = {"bf16": cut.allow_bf16_reduced_precision_reduction, "fp16": cut.allow_fp16_reduced_precision_reduction}
    return " and ".join(name for name, allowed in may.items() if allowed) or "fp32"


def set_host_threads(layout: Layout, device: torch.device) -> None:
    """Gives a rank whose optimizer steps on the host its share of the node's cores; Ray's workers have one thread."""
    if layout.offload != "none" and device.type == "cuda":
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))


def make_optimizer(parameters: Iterable[nn.Parameter], recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimizer over one group: every parameter decays, biases and norms too.

    AdamW is torch's fused one. Adafactor is that of transformers, its states always fp32.
    """
    if recipe.optimizer == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(list(parameters), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, **ADAFACTOR)
    return torch.optim.AdamW(
        list(parameters),
        lr=recipe.learning_rate,
        betas=(recipe.beta1, recipe.beta2),
        eps=recipe.epsilon,
        weight_decay=recipe.weight_decay,
        fused=True,
    )


def optimizer_in_effect(optimizer: torch.optim.Optimizer, masters: Iterable[torch.Tensor] = ()) -> dict[str, Any]:
    """What an optimizer runs, under the names of Recipe; states count once a step has made them.

    `masters` are the weights that it steps where a library swaps them in and out of its group.
    """
    (group,) = optimizer.param_groups
    weights = list(masters) or group["params"]
    dtypes = {tensor.dtype for tensor in weights}
    for state in optimizer.state.values():
        dtypes |= {value.dtype for key, value in state.items() if key.startswith("exp_avg")}
    found = {
        "optimizer": type(optimizer).__name__.lower(),
        "state_precision": "+".join(sorted(map(dtype_name, dtypes))),
        "learning_rate": group["lr"],
        "weight_decay": group["weight_decay"],
        "fused": bool(group.get("fused")),
    }
    if "betas" in group:
        found |= {"beta1": group["betas"][0], "beta2": group["betas"][1], "epsilon": group["eps"]}
    if found["optimizer"] == "adafactor":
        changed = [f"{key} {group[key]}" for key, value in ADAFACTOR.items() if group[key] != value]
        # Only matrices are factored: over flat shards it is another algorithm.
        changed += [] if any(tensor.dim() > 1 for tensor in weights) else ["nothing factored"]
        found["optimizer"] = ", ".join(["adafactor", *changed])
    return found


def plain_name(name: str) -> str:
    """A parameter's name in the plain transformers model."""
    return name.replace("_checkpoint_wrapped_module.", "").removeprefix("module.")


def scaler_counters(scaler: torch.amp.GradScaler | None) -> dict[str, Any]:
    """The fields of `Counters` that torch's scaler has; none without a scaler."""
    if scaler is None:
        return {}
    state = scaler.state_dict()
    return {"loss_scale": state["scale"], "loss_scale_steps": state["_growth_tracker"]}


def set_scaler(scaler: torch.amp.GradScaler | None, counters: Counters) -> None:
    """Has torch's scaler go on from `counters`, where both have a loss scale."""
    if scaler is not None and counters.loss_scale is not None:
        numbers = {"scale": counters.loss_scale, "_growth_tracker": counters.loss_scale_steps}
        scaler.load_state_dict({**scaler.state_dict(), **numbers})


class AccumulatingEngine(abc.ABC):
    """Steps of micro-steps one after another, whose gradients are summed. See `trainers.engines.Engine`."""

    _grad_accum = 1
    _skipped: torch.Tensor

    def __init__(self, recipe: Recipe, layout: Layout, device: torch.device) -> None:
        set_matmul_precision(recipe)
        set_host_threads(layout, device)
        self._recipe, self._layout, self._device = recipe, layout, device
        self._mesh = Mesh(layout, device.type)
        models = self._build()
        self._tensor = TensorParallel(models, self._mesh)
        self._context = ContextParallel(models, self._mesh, self._tensor.heads, seq_len=recipe.seq_len, device=device)
        self._models = tuple(prepare(model, layout) for model in models)
        self._tensor.enter(self._models)
        self._skipped = torch.zeros((), dtype=torch.int64, device=device)

    @abc.abstractmethod
    def _micro_step(self, tokens: torch.Tensor, *, last: bool) -> torch.Tensor:
        """Adds the gradient of the mean loss divided by `_grad_accum`; returns the mean loss, detached, fp32."""

    @abc.abstractmethod
    def _optimizer_step(self) -> torch.Tensor:
        """Clips, steps, clears gradients; returns the global gradient norm before clipping, 0-dim fp32."""

    def _build(self) -> tuple[Model, ...]:
        """The models that this rank runs, on the meta device: the whole one, or its stages of a pipeline."""
        return (build(self._recipe.model, attention=self._layout.attention),)

    @property
    def models(self) -> tuple[Model, ...]:
        return self._models

    @property
    def marks_micro_steps(self) -> bool:
        return True

    def _set_grad_accum(self, grad_accum: int) -> None:
        """Takes the number of micro-steps of the coming steps; called where it changes."""
        self._grad_accum = grad_accum

    def step(self, micro_batches: Sequence[torch.Tensor], marks: Marks) -> StepResult:
        if len(micro_batches) != self._grad_accum:
            self._set_grad_accum(len(micro_batches))
        losses: list[torch.Tensor] = []
        for k, tokens in enumerate(micro_batches):
            marks.begin(Phase.MICRO_STEP)
            losses.append(self._micro_step(tokens, last=k == len(micro_batches) - 1))
        marks.begin(Phase.OPTIMIZER_STEP)
        norm = self._optimizer_step()
        return self._result(losses, micro_batches, norm, tuple(Phase.MICRO_STEP for _ in losses))

    def _result(
        self,
        losses: Sequence[torch.Tensor],
        micro_batches: Sequence[torch.Tensor],
        norm: torch.Tensor,
        phases: tuple[Phase, ...],
    ) -> StepResult:
        """Of a step's mean losses, none where this rank computes none, and its phases before the optimizer step."""
        # Micro-batches are of one size: the sum of their means is all that the step computes for its result.
        sequences, length = micro_batches[0].shape
        each = sequences * (length - 1) // self._context.size
        return StepResult(
            loss_sum=torch.stack(list(losses)).sum() * each if losses else torch.zeros((), device=norm.device),
            num_tokens=torch.full((), each * len(losses), dtype=torch.int64, device=norm.device),
            grad_norm=norm,
            phases=(*phases, Phase.OPTIMIZER_STEP),
        )


class TorchEngine(AccumulatingEngine):
    """The step that `ddp` and `fsdp` share: scaling, clipping, the optimizer. See `trainers.engines.Engine`.

    With states in bf16 ("pure bf16") there is no fp32 copy of anything: weights, gradients, AdamW's moments and the
    norm are stored in bf16. Micro-steps are added up in bf16, and so are ranks, with a rounding at each addition.
    Inside one kernel (a product, a norm, AdamW's update of a weight) sums are fp32, rounded at its end; the loss is
    fp32.

    fp16 losses are scaled by torch's GradScaler (2^16 at first, halved at each overflow, doubled after 2000 steps).
    """

    _module: Any
    """What the engine made of the model; of a pipeline, of all stages that this rank runs."""

    def __init__(self, recipe: Recipe, layout: Layout, device: torch.device) -> None:
        super().__init__(recipe, layout, device)
        self._syncs: list[bool] = []
        self._last_syncs: list[bool] = []
        self._modules = tuple(map(self._lay_out, self._models))
        self._module = self._modules[0] if len(self._modules) == 1 else nn.ModuleList(self._modules)
        self._names = [plain_name(name) for module in self._modules for name, _ in module.named_parameters()]
        self._optimizer = make_optimizer(self._stepped(), recipe)
        self._scaler = self._make_scaler() if recipe.compute_precision == "fp16" else None
        self._pipeline = self._make_pipeline() if layout.pp > 1 else None
        self._tied = self._stepped_copy(self._pipeline) if self._pipeline is not None else None

    def _build(self) -> tuple[Model, ...]:
        if self._layout.pp == 1:
            return super()._build()
        stages = stages_of_rank(self._recipe, self._layout, self._mesh.coordinates["pp"])
        return tuple(cut(build(self._recipe.model, attention=self._layout.attention), stage) for stage in stages)

    def _make_pipeline(self) -> Pipeline:
        return Pipeline(
            self._models,
            self._modules,
            recipe=self._recipe,
            layout=self._layout,
            group=self._mesh.group("pp"),
            context=self._context,
            device=self._device,
            hidden_dtype=self._hidden_dtype(),
            hooks=Hooks(computing=self._computing, exchanges=self._exchanges, scaled=self._scaled),
        )

    def _stepped_copy(self, pipeline: Pipeline) -> torch.Tensor | None:
        """What the optimizer steps of this rank's copy of a tied table; None where it has none."""
        copy = pipeline.tied_copy()
        places = [i for i, each in enumerate(self._module.parameters()) if each is copy]
        return self._optimizer.param_groups[0]["params"][places[0]] if places else None

    def _hidden_dtype(self) -> torch.dtype:
        """The type of hidden states between blocks: autocast leaves it that of the weights."""
        return state_dtype(self._recipe)

    def _exchanges(self, module: nn.Module, last: bool) -> bool:
        """Prepares a stage's backward pass, the last one of a step or not; returns whether it exchanges gradients.

        Raises:
            NotImplementedError: the engine has no pipelines.
        """
        raise NotImplementedError(f"{self._layout.rules.title} has no pipelines")

    @abc.abstractmethod
    def _lay_out(self, model: Model) -> nn.Module:
        """Fills the weights and wraps or shards the model."""

    @abc.abstractmethod
    def _syncing(self, sync: bool) -> contextlib.AbstractContextManager[bool]:
        """A context for one micro-step with or without gradient exchange; gives what the library will really do."""

    @abc.abstractmethod
    def _computing(self) -> contextlib.AbstractContextManager[Any]:
        """The context of the forward pass."""

    @abc.abstractmethod
    def _whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """The full tensor behind a local or sharded one."""

    def _stepped(self) -> list[nn.Parameter]:
        """What the optimizer steps."""
        return list(self._module.parameters())

    def _make_scaler(self) -> torch.amp.GradScaler:
        sharded = self._mesh.size("pp", "tp") > 1
        return ShardedScaler(self._device.type) if sharded else torch.amp.GradScaler(self._device.type)

    def _micro_step(self, tokens: torch.Tensor, *, last: bool) -> torch.Tensor:
        with self._syncing(last or self._layout.grad_sync == "every") as synced:
            self._syncs.append(synced)
            with self._computing():
                loss = loss_of(self._module, self._models[0].head, tokens, self._context.inputs)
            self._scaled(loss).backward()
        return loss.detach()

    def _scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Of a micro-batch's mean loss, what is differentiated."""
        scaled = loss / self._grad_accum
        return scaled if self._scaler is None else self._scaler.scale(scaled)

    @property
    def marks_micro_steps(self) -> bool:
        return self._pipeline is None

    def step(self, micro_batches: Sequence[torch.Tensor], marks: Marks) -> StepResult:
        if self._pipeline is None:
            return super().step(micro_batches, marks)
        self._set_grad_accum(len(micro_batches))
        marks.begin(Phase.SCHEDULE)
        if self._scaler is not None:
            self._scaler.scale(torch.zeros((), device=self._device))  # a stage without a loss has a scale too
        losses = self._pipeline.run(micro_batches)
        marks.begin(Phase.OPTIMIZER_STEP)
        return self._result(losses, micro_batches, self._optimizer_step(), (Phase.SCHEDULE,))

    def _optimizer_step(self) -> torch.Tensor:
        if self._pipeline is not None and self._tied is not None:
            assert self._tied.grad is not None
            self._pipeline.sum_tied(self._tied.grad)
        self._tensor.sum_replicated(self._named_gradients(), self._device)
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        norm = self._clip(self._recipe.grad_clip or float("inf"))
        if self._scaler is None:
            self._optimizer.step()
        else:
            # The norm is finite just when all unscaled gradients are: counting here costs no sync with the device.
            self._skipped += torch.isfinite(norm).logical_not()
            self._scaler.step(self._optimizer)
            self._scaler.update()
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
        norm = global_norm(gradients, self._norm_group(), self._device)
        parameters = self._optimizer.param_groups[0]["params"]
        # By a factor of another type CUDA scales gradient by gradient, a launch each.
        nn.utils.clip_grads_with_norm_(parameters, limit, norm.to(parameters[0].dtype))
        return norm

    def _norm_group(self) -> Any:
        """The ranks over which the squares of gradients are summed; None where each has them all."""
        return self._mesh.group("pp", "tp") if self._mesh.size("pp", "tp") > 1 else None

    def _named_gradients(self, *, tied_once: bool = False) -> Iterator[tuple[str, torch.Tensor | None]]:
        """The gradients that the optimizer steps on, by the names of their parameters in the plain model.

        With `tied_once` a pipeline's second copy of a tied table is left out.
        """
        left_out = self._tied if tied_once and self._pipeline is not None and self._pipeline.has_second_copy else None
        for name, parameter in zip(self._names, self._optimizer.param_groups[0]["params"], strict=True):
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
        with torch.no_grad(), self._computing():
            logits = self._module(self._context.part(tokens), **self._context.positions()).logits
            return self._context.whole(logits)

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        if self._pipeline is not None:
            return self._context.mean(self._pipeline.loss(tokens))
        with torch.no_grad(), self._computing():
            loss = loss_of(self._module, self._models[0].head, tokens, self._context.inputs)
        return self._context.mean(loss.float())

    def _placed(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor, Callable[[torch.Tensor], StateTensor]]]:
        """Of each parameter its name, what the optimizer steps, its live weight, and how a tensor like it lies: whole
        on every rank that has it or a part of it, unless an engine shards.
        """
        alike = self._mesh.group("dp_replicate", "cp")
        place = functools.partial(whole, replica=dist.get_rank(alike), num_replicas=dist.get_world_size(alike))
        for name, parameter in zip(self._names, self._module.parameters(), strict=True):
            yield name, parameter, parameter, place

    def training_state(self) -> Mapping[str, StateTensor]:
        found: dict[str, StateTensor] = {}
        for name, stepped, weight, place in self._placed():
            tied = self._pipeline if stepped is self._tied else None
            plain = name if tied is None else tied.tied_name
            for key, part in named(plain, weight, optimizer_state(self._optimizer, stepped), place):
                found[key] = self._tensor.placed(plain, part)
                if tied is not None:
                    found[key] = found[key].doubled(second=tied.has_second_copy)
        return found

    def counters(self) -> Counters:
        return Counters(optimizer_step=steps_taken(self._optimizer), **scaler_counters(self._scaler))

    def adopt(self, counters: Counters) -> None:
        set_steps_taken(self._optimizer, counters.optimizer_step)
        set_scaler(self._scaler, counters)

    def in_effect(self) -> Mapping[str, Any]:
        several = len(self._last_syncs) > 1
        return {
            "engine": self._layout.engine,
            "world_size": dist.get_world_size(),
            "grad_accum": len(self._last_syncs) or None,
            "grad_sync": ("every" if all(self._last_syncs) else "last") if several else None,
            "product_sums": product_sums(),
            "tp": self._tensor.in_effect(self._models),
            "cp": self._context.in_effect(self._models),
            **kernels_in_effect(self._models, self._layout),
            **(self._pipeline.in_effect() if self._pipeline is not None else {}),
            **optimizer_in_effect(self._optimizer),
        }

    def named_full_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        def whole(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
            for name, parameter in module.named_parameters():
                plain = plain_name(name)
                yield plain, self._tensor.whole(plain, self._whole(parameter.detach()))

        return whole(self._modules[0]) if self._pipeline is None else self._pipeline.named_weights(whole)

    def close(self) -> None:
        self._optimizer.state.clear()
        del self._pipeline, self._module, self._modules, self._optimizer, self._models, self._tied


class ShardedScaler(torch.amp.GradScaler):
    """Lets ranks, each with parts of its own, skip a step together. That of torch fails with fused optimizers."""

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        super().unscale_(optimizer)
        for found in self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values():
            everywhere = found.to(self._device)
            dist.all_reduce(everywhere, op=dist.ReduceOp.MAX)
            found.copy_(everywhere)
