"""`AccumulatingEngine`: a step made of consecutive micro-batches, the base of all engines of this project."""

import abc
from collections.abc import Sequence

import torch
from torch import nn

from trainers.distributed.groups import Mesh
from trainers.engines.model_preparation import prepare
from trainers.engines.settings import model_dtype, set_host_threads, set_matmul_precision, state_dtype
from trainers.kernels.sdpa import leave_out_wrong_kernels
from trainers.marks.step import Marks, StepPhase, StepResult
from trainers.mesh.context_parallel import ContextParallel
from trainers.mesh.expert_parallel import ExpertParallel
from trainers.mesh.tensor_parallel import TensorParallel
from trainers.models import weights
from trainers.models.adapters import add_adapters
from trainers.models.model import Model, build
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe


class AccumulatingEngine(abc.ABC):
    """Runs steps of consecutive micro-steps and sums their gradients. See `trainers.engines.base.Engine`."""

    marks_micro_steps = True
    counts_ahead = False
    """Whether the step under way counts its micro-batches in a pass of its own, ahead of the first micro-step."""
    _grad_accum = 1
    _skipped: torch.Tensor

    def __init__(self, recipe: Recipe, layout: Layout, device: torch.device) -> None:
        set_matmul_precision(recipe)
        set_host_threads(layout, device)
        leave_out_wrong_kernels(recipe, layout)
        self.recipe, self.layout, self.device = recipe, layout, device
        self._mesh = Mesh(layout, device.type)
        models = self._build()
        self._tensor = TensorParallel(models, self._mesh)
        self._experts = ExpertParallel(models, self._mesh)
        self._context = ContextParallel(
            models,
            self._mesh,
            self._tensor.heads,
            seq_len=recipe.seq_len,
            device=device,
            exchange=layout.cp_exchange,
            mask=recipe.attention_mask,
            has_flags=recipe.has_flags,
        )
        self._models = tuple(prepare(model, layout) for model in models)
        self._tensor.enter(self._models)
        self._skipped = torch.zeros((), dtype=torch.int64, device=device)

    @abc.abstractmethod
    def _micro_step(self, tokens: torch.Tensor, *, last: bool) -> torch.Tensor:
        """Adds the gradient of the mean loss / `_grad_accum`; returns the mean loss, detached, fp32."""

    @abc.abstractmethod
    def _optimizer_step(self) -> torch.Tensor:
        """Clips gradients, steps the optimizer and clears gradients; returns the global norm before clipping, 0-dim
        fp32.
        """

    def _build(self) -> tuple[Model, ...]:
        """Returns this rank's models on the meta device: the whole model, or its pipeline stages."""
        return (self._whole_model(),)

    def _whole_model(self) -> Model:
        recipe, layout = self.recipe, self.layout
        model = build(
            recipe.model,
            attention=layout.attention,
            mask=recipe.attention_mask,
            parts=layout.query_parts,
            experts=layout.experts,
            balanced_tokens=recipe.seq_len if recipe.routing == "balanced" else 0,
            balance_loss=recipe.balance_loss,
        )
        return add_adapters(model, recipe)

    def fill_weights(self, unit: nn.Module, model: Model, dtype: torch.dtype | None = None) -> None:
        """Materialises the parameters of `unit` that are on the meta device, with the recipe's initial weights. `unit`
        is the module of `model` or one of its units. Frozen weights get the type of the products, others the states'
        type or `dtype`.
        """
        weights.materialise(
            unit,
            names=model.names,
            seed=self.recipe.seed,
            std=self.recipe.model.init_std,
            device=self.device,
            dtype=dtype or state_dtype(self.recipe),
            frozen=model_dtype(self.recipe),
            cut=lambda name, full: self._experts.cut(name, self._tensor.cut(name, full)),
            vector_start=self.recipe.model.vector_start,
        )

    @property
    def models(self) -> tuple[Model, ...]:
        return self._models

    def _set_grad_accum(self, grad_accum: int) -> None:
        self._grad_accum = grad_accum

    def step(self, micro_batches: Sequence[torch.Tensor], marks: Marks) -> StepResult:
        if len(micro_batches) != self._grad_accum:
            self._set_grad_accum(len(micro_batches))
        losses, phases = list[torch.Tensor](), list[StepPhase]()
        if self.counts_ahead:
            phases.append(StepPhase.COUNTING)
            marks.begin(StepPhase.COUNTING)
            self._count(micro_batches)
        for k, tokens in enumerate(micro_batches):
            phases.append(StepPhase.MICRO_STEP)
            marks.begin(StepPhase.MICRO_STEP)
            if k == 0 and not self.counts_ahead:
                self._count(micro_batches)
            losses.append(self._micro_step(tokens, last=k == len(micro_batches) - 1))
        marks.begin(StepPhase.OPTIMIZER_STEP)
        norm = self._optimizer_step()
        return self._result(losses, micro_batches, norm, tuple(phases))

    def _count(self, micro_batches: Sequence[torch.Tensor]) -> None:
        """Counts the step's tokens with a loss, which its passes need in advance."""
        self._context.count_labels(micro_batches, all_ranks=True)

    def _result(
        self,
        losses: Sequence[torch.Tensor],
        micro_batches: Sequence[torch.Tensor],
        norm: torch.Tensor,
        phases: tuple[StepPhase, ...],
    ) -> StepResult:
        """Returns a step's result. `losses` are the micro-batches' mean losses, none on a rank that computes none;
        `phases` are the phases before the optimizer step.
        """
        # Micro-batches have the same size, so the sum of their mean losses suffices.
        sequences, length = micro_batches[0].shape
        micro_batch_tokens = sequences * (length - 1) // self._context.size
        return StepResult(
            loss_sum=torch.stack(list(losses)).sum() * micro_batch_tokens
            if losses
            else torch.zeros((), device=norm.device),
            num_tokens=torch.full((), micro_batch_tokens * len(losses), dtype=torch.int64, device=norm.device),
            grad_norm=norm,
            num_labels=self._context.labels_of_step,
            phases=(*phases, StepPhase.OPTIMIZER_STEP),
        )
