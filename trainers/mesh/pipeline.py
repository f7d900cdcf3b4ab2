"""`Pipeline`: the stages of a rank, trained as part of one pipeline, for engines with `pp` above 1."""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trainers.distributed.collectives import reduce_in_place
from trainers.mesh.context_parallel import ContextParallel
from trainers.mesh.schedule import PipelineSchedule, ScheduledStage
from trainers.mesh.stage_model import run_stage
from trainers.models.model import Model
from trainers.spec.architectures import architecture_of
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.spec.stages import Stage, stages_of_rank


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LocalStage:
    """A stage that this rank runs."""

    stage: Stage
    model: Model
    """The stage's part of the transformers model."""
    module: nn.Module
    """The same part as laid out by the engine: sharded, wrapped or unchanged."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PipelineHooks:
    """The functions of an engine that its pipeline calls."""

    computing: Callable[[], AbstractContextManager[Any]]
    """Returns the context of a forward pass."""
    exchanges: Callable[[nn.Module, bool], bool]
    """Prepares a stage's backward pass (True for the step's last pass); returns whether the pass exchanges gradients.
    """
    scaled: Callable[[torch.Tensor], torch.Tensor]
    """Scales a micro-batch's mean loss before it is differentiated."""


class Pipeline:
    """Runs micro-batches through the stages of a pipeline group, some of which are on this rank."""

    def __init__(
        self,
        models: Sequence[Model],
        modules: Sequence[nn.Module],
        *,
        recipe: Recipe,
        layout: Layout,
        group: Any,
        context: ContextParallel,
        device: torch.device,
        hidden_dtype: torch.dtype,
        hooks: PipelineHooks,
    ) -> None:
        """Creates the pipeline. `models` are this rank's stages, `modules` the same stages as laid out by the engine.
        `group` has this pipeline's ranks; stages exchange tensors of `hidden_dtype`.
        """
        stages = stages_of_rank(recipe, layout, dist.get_rank(group))
        self._parts = tuple(
            LocalStage(stage=stage, model=model, module=module)
            for stage, model, module in zip(stages, models, modules, strict=True)
        )
        self._recipe, self._layout, self._context = recipe, layout, context
        self._group, self._device, self._hidden_dtype, self._hooks = group, device, hidden_dtype, hooks
        # A stage's output is a view of its hidden states, which nothing writes to.
        warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module \(.*\) returned a view tensor")
        self._size: tuple[int, ...] = ()
        self._losses: list[torch.Tensor] = []
        self._ends: Any = _ends_group(layout, group) if recipe.model.tied_embeddings else None

    def in_effect(self) -> dict[str, Any]:
        """Returns the pipeline's axes of Layout in effect; None for the schedule before a step."""
        return {
            "pp": dist.get_world_size(self._group),
            "schedule": self._schedule.in_effect if self._size else None,
            "virtual": len(self._parts),
        }

    def run(self, micro_batches: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Runs all micro-batches forward and backward; returns their mean losses on a rank with the head, else an empty
        list.
        """
        size = (len(micro_batches), *micro_batches[0].shape)
        if size != self._size:
            self._schedule = self._make_schedule(*size)
            self._size = size
        self._losses = []
        self._schedule.run(micro_batches)
        return self._losses

    def tied_copy(self) -> nn.Parameter | None:
        """Returns this rank's copy of a table that embedding and head share; None if it has none."""
        family = architecture_of(self._recipe.model.architecture)
        for part in self._parts if self._recipe.model.tied_embeddings else ():
            for has, path in ((part.stage.has_embeddings, family.embeddings[0]), (part.stage.has_head, family.head)):
                if has:
                    return part.model.module.get_submodule(path).get_parameter("weight")
        return None

    @property
    def tied_name(self) -> str:
        """Name in the plain model of the table that embedding and head share."""
        return f"{architecture_of(self._recipe.model.architecture).embeddings[0]}.weight"

    @property
    def has_second_copy(self) -> bool:
        """Whether this rank's copy of a tied table is the second one, which norms and saved weights leave out."""
        return bool(self._recipe.model.tied_embeddings) and any(part.stage.has_head for part in self._parts)

    @torch.no_grad()
    def sum_tied(self, gradient: torch.Tensor) -> None:
        """Sums the gradients of both copies of a tied table in place, so that the copies stay equal."""
        moved = gradient.to(self._device)
        reduce_in_place(moved, self._ends)
        if moved is not gradient:
            gradient.copy_(moved)

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns fp32 logits [batch, seq_len, vocab] of int64 tokens [batch, seq_len], on all the pipeline's ranks."""
        shape = (len(tokens), tokens.shape[1] // self._context.size, self._recipe.model.vocab_size)
        return self._context.gathered(self._forward_only(tokens, shape, has_labels=False))

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the mean loss of this rank's part of int64 tokens [batch, seq_len + 1], 0-dim fp32, on every rank."""
        return self._forward_only(tokens, (), has_labels=True)

    @torch.no_grad()
    def _forward_only(self, tokens: torch.Tensor, shape: tuple[int, ...], *, has_labels: bool) -> torch.Tensor:
        """Returns the last stage's output, of `shape` in fp32, on every rank; stages run one after another."""
        hidden, stage_input = self._sent_shape(len(tokens), tokens.shape[1] - has_labels), tokens
        num_stages, ranks = self._parts[0].stage.num_stages, dist.get_world_size(self._group)
        for index in range(num_stages):
            part = next((own_part for own_part in self._parts if own_part.stage.index == index), None)
            is_head = index == num_stages - 1
            dtype = torch.float32 if is_head else self._hidden_dtype
            if part is None:
                stage_input = torch.empty(shape if is_head else hidden, dtype=dtype, device=self._device)
            else:
                with self._hooks.computing():
                    stage_input = run_stage(
                        part.stage, part.model, part.module, self._context, stage_input, tokens, has_labels=has_labels
                    )
                stage_input = stage_input.to(dtype).contiguous()
            dist.broadcast(stage_input, group=self._group, group_src=index % ranks)
        return stage_input

    def close(self) -> None:
        self._losses = []
        self._size = ()
        with contextlib.suppress(AttributeError):
            del self._schedule

    def _make_schedule(self, num_micro_batches: int, micro_batch: int, columns: int) -> PipelineSchedule:
        shape = (micro_batch, columns - 1)
        tokens = torch.empty(shape, dtype=torch.int64, device="meta")
        sent = self._sent_shape(*shape)
        hidden = torch.empty(sent, dtype=self._hidden_dtype, device="meta", requires_grad=True)
        loss = torch.empty(1, device="meta", requires_grad=True)
        stages = [
            ScheduledStage(
                part.stage,
                module=part.module,
                forward=self._forward_of(part),
                exchanges=lambda last, module=part.module: self._hooks.exchanges(module, last),
                shapes=(
                    tokens if part.stage.has_embeddings else hidden,
                    loss if part.stage.has_head else hidden,
                ),
                device=self._device,
                group=self._group,
            )
            for part in self._parts
        ]
        return PipelineSchedule(stages, self._layout, num_micro_batches, self._hooks.scaled)

    def _sent_shape(self, micro_batch: int, length: int) -> tuple[int, int, int]:
        """Returns the shape of a stage's output, this rank's part, for sequences of `length` tokens."""
        return micro_batch, length // self._context.size, self._recipe.model.hidden_size // self._layout.parts("width")

    def _forward_of(self, part: LocalStage) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        def forward(stage_input: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
            with self._hooks.computing():
                output = run_stage(
                    part.stage, part.model, part.module, self._context, stage_input, tokens, has_labels=True
                )
            if part.stage.has_head:
                self._losses.append(output.detach())
                # Torch concatenates the last stage's outputs along a dimension, and frees the graph of an output that
                # is no view.
                return torch.stack((output,))
            if output.dtype != self._hidden_dtype:
                raise RuntimeError(
                    f"stage {part.stage.index} gives hidden states in {output.dtype}, the next one expects"
                    f" {self._hidden_dtype}"
                )
            return output

        return forward


def _ends_group(layout: Layout, group: Any) -> Any:
    """Returns the group of the first and last rank of this rank's pipeline `group`; a collective of all ranks."""
    if layout.pp == 2:
        return group
    pipelines: dict[tuple[int, ...], list[int]] = {}
    for rank in range(dist.get_world_size()):
        coordinates = layout.coordinates(rank)
        pipelines.setdefault(tuple(coordinates[axis] for axis in coordinates if axis != "pp"), []).append(rank)
    ends = [[ranks[0], ranks[-1]] for ranks in pipelines.values()]
    own_group, _ = dist.new_subgroups_by_enumeration(ends, group_desc="pp")
    return own_group
