"""A pipeline stage as a transformers model whose other parts pass their input through.

The model's own forward pass runs: it computes masks, ALiBi and rotary positions for the stage's blocks, and parameters
keep their names. A stage without the embeddings gets hidden states as `inputs_embeds`, a stage without the head returns
hidden states as `logits`. Under tensor parallelism these are a rank's tokens, folded (`trainers.mesh.tensor_parallel`).
"""

import dataclasses
from typing import Any

import torch
from torch import nn

from trainers.kernels.head import loss_of
from trainers.mesh.context_parallel import ContextParallel
from trainers.models.model import Model, PassThrough, drop_factor
from trainers.spec.architectures import architecture_of
from trainers.spec.stages import Stage


class NoPositions(nn.Module):
    """Adds nothing to hidden states; replaces a position table, which the first stage has already added."""

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return torch.zeros((), device=positions.device)


def cut(model: Model, stage: Stage) -> Model:
    """Returns the part of a whole `model` on the meta device that `stage` runs; changes its module in place."""
    config: Any = model.module.config
    family = architecture_of(config.model_type)
    for path in () if stage.has_embeddings else family.embeddings:
        part = model.module.get_submodule(path)
        after_first = path != family.embeddings[0]
        _replace(model.module, path, NoPositions() if after_first and isinstance(part, nn.Embedding) else PassThrough())
    if not stage.has_embeddings:  # the input is hidden states instead
        drop_factor(model, family.embedding_factor)
    for path in () if stage.has_head else (family.final_norm, family.head):
        _replace(model.module, path, PassThrough())
    blocks = model.module.get_submodule(family.blocks)
    for index in range(len(model.blocks)):
        if index not in stage.blocks:
            delattr(blocks, str(index))  # the remaining blocks keep their indices and so their parameters' names
    if kinds := getattr(config, "layer_types", None):  # transformers counts the blocks that it runs
        config.layer_types = [kinds[index] for index in stage.blocks]
    stage_blocks = tuple(model.blocks[index] for index in stage.blocks)
    return dataclasses.replace(
        model,
        blocks=stage_blocks,
        units=stage_blocks,
        block_names=tuple(model.block_names[index] for index in stage.blocks),
    )


def run_stage(
    stage: Stage,
    model: Model,
    module: nn.Module,
    context: ContextParallel,
    stage_input: torch.Tensor,
    tokens: torch.Tensor,
    *,
    has_labels: bool,
) -> torch.Tensor:
    """Returns the hidden states after `stage`; with the head the mean loss of `tokens` if they have labels, else
    logits.

    `module` is the stage's model as laid out by the engine. `stage_input` is the previous stage's output for this
    rank's part of sequences; the first stage reads `tokens` instead, int64 [micro_batch, seq_len], plus a column if
    they have labels.
    """

    def run(part: torch.Tensor, **arguments: torch.Tensor) -> Any:
        if stage.has_embeddings:
            return module(input_ids=part, **arguments)
        return module(inputs_embeds=stage_input, **arguments)

    if stage.has_head and has_labels:
        return loss_of(run, model.head, tokens, context.inputs)
    part, arguments = context.entered(tokens[:, :-1] if has_labels else tokens)
    return run(part, **arguments).logits


def _replace(module: nn.Module, path: str, other: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, other)
