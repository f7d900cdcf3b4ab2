"""A minimal engine that can only be measured, for a model that transformers does not have, on one process."""

from collections.abc import Sequence

import torch
from torch import nn

from trainers.engines.base import EngineRules, Layout, Marks, Recipe, StepPhase, StepResult

ENGINE = EngineRules(
    name=f"{__name__}:ENGINE", title="a bare loop", runtime=f"{__name__}:BareStepper", grad_syncs={0: ("last",)}
)


class BareStepper:
    """Trains a recurrent model; of a `Stepper` it has only `step` and `close`."""

    def __init__(self, recipe: Recipe, layout: Layout, device: torch.device) -> None:
        width, vocab_size = recipe.model.hidden_size, recipe.model.vocab_size
        layers = {"table": nn.Embedding(vocab_size, width), "mixed": nn.GRU(width, width, batch_first=True)}
        self._layers = nn.ModuleDict({**layers, "head": nn.Linear(width, vocab_size)}).to(device)
        self._optimizer = torch.optim.AdamW(self._layers.parameters(), lr=recipe.learning_rate)

    def step(self, micro_batches: Sequence[torch.Tensor], marks: Marks) -> StepResult:
        marks.begin(StepPhase.SCHEDULE)
        losses = [self._loss(tokens) / len(micro_batches) for tokens in micro_batches]
        torch.stack(losses).sum().backward()
        marks.begin(StepPhase.OPTIMIZER_STEP)
        norm = nn.utils.clip_grad_norm_(self._layers.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        count = torch.tensor(sum(tokens[:, 1:].numel() for tokens in micro_batches))
        phases = (StepPhase.SCHEDULE, StepPhase.OPTIMIZER_STEP)
        loss_sum = torch.stack(losses).detach().sum() * count
        return StepResult(loss_sum=loss_sum, num_tokens=count, grad_norm=norm, phases=phases)

    def _loss(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self._layers["mixed"](self._layers["table"](tokens[:, :-1]))
        return nn.functional.cross_entropy(self._layers["head"](hidden).flatten(0, 1), tokens[:, 1:].flatten())

    def close(self) -> None:
        self._optimizer.state.clear()
