"""`Engine`: one model laid out on the ranks of a process group. Its making, by the rules that name its class.

An engine imports this; the rules of what it accepts are in `trainers.spec.engines`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from trainers.marks.step import Marks, StepResult
from trainers.spec.batch import BatchPoint
from trainers.spec.engines import imported_rules
from trainers.spec.engines.rules import attribute
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.startup import import_stubs

if TYPE_CHECKING:  # a driver asks for an engine's configuration without torch
    import torch

    from trainers.distributed.state import Counters, StateTensor
    from trainers.models.model import Model


class Engine(Protocol):
    """One model laid out on the ranks of the default process group, ready to train.

    Made by `create_engine` on every rank at once. No method but `close`, `in_effect`, `num_skipped_steps` and
    `named_full_weights` syncs the host with the device unless the engine's library does so itself.
    """

    def __init__(self, recipe: Recipe, layout: Layout, device: "torch.device") -> None:
        """Builds the model on the meta device, lays it out and fills the weights (see `trainers.models.weights`)."""
        ...

    @property
    def models(self) -> "Sequence[Model]":
        """The model as it was built, whose modules are those that run; for a pipeline, the stages of this rank."""
        ...

    @property
    def marks_micro_steps(self) -> bool:
        """Whether a step marks each of its micro-steps. Otherwise its schedule interleaves them and is timed whole."""
        ...

    def step(self, micro_batches: "Sequence[torch.Tensor]", marks: Marks) -> StepResult:
        """Runs one optimizer step over this rank's micro-batches; marks the phases as they begin.

        Each of `micro_batches` is int64 [micro_batch, seq_len + 1] on the device, the same on all ranks that share a
        data-parallel coordinate; under a document or prefix mask some have a flag (`trainers.data.flags`). The
        gradient is that of the mean loss over all micro-batches and data-parallel ranks, clipped. The result is this
        rank's alone: no collective is added for it, the caller combines ranks.
        """
        ...

    def set_learning_rate(self, learning_rate: float) -> None:
        """Sets the learning rate from the next optimizer step on."""
        ...

    def num_skipped_steps(self) -> int:
        """Returns how many optimizer steps were skipped so far because fp16 gradients overflowed."""
        ...

    def logits(self, tokens: "torch.Tensor") -> "torch.Tensor":
        """Returns the logits [batch, seq_len, vocab] of int64 [batch, seq_len] tokens, without gradient; a
        collective.
        """
        ...

    def loss(self, tokens: "torch.Tensor") -> "torch.Tensor":
        """Returns the mean loss of this rank's int64 [batch, seq_len + 1] tokens, without gradient, 0-dim fp32; a
        collective.
        """
        ...

    def training_state(self) -> "Mapping[str, StateTensor]":
        """Returns master weights and optimizer states by canonical key, those parts that this rank holds, as live
        memory.

        States that the first optimizer step would create are created. See `trainers.distributed.state`.
        """
        ...

    def counters(self) -> "Counters":
        """Returns the numbers of the optimizer that belong to its states."""
        ...

    def adopt(self, counters: "Counters") -> None:
        """Continues from what was written into `training_state`, and from these counters; a collective.

        Call it before the first step. Steps after it are those that the saved engine would have made.
        """
        ...

    def in_effect(self) -> Mapping[str, Any]:
        """Returns what the engine really runs, read back from its own objects, under the names of Layout and Recipe.

        `mismatches` compares it with what was asked for. None stands for a value that is unknown before a step has run.
        """
        ...

    def named_full_weights(self) -> Iterator[tuple[str, "torch.Tensor"]]:
        """Returns an iterator over the whole master weights by name in the plain transformers model.

        It is a collective: call it on all ranks.
        """
        ...

    def close(self) -> None:
        """Releases hooks and buffers; the process group stays."""
        ...


def create_engine(recipe: Recipe, layout: Layout, device: "torch.device") -> Engine:
    """Returns the engine that `layout` names, built. Imports only that engine's library.

    Raises:
        ValueError: no such engine.
    """
    return engine_class(layout.engine)(recipe, layout, device)


def engine_class(name: str) -> type[Engine]:
    """Returns the class of that engine; imports its library, which may take seconds.

    Raises:
        ValueError: no such engine, or one that cannot be imported here.
    """
    rules = imported_rules(name)
    with import_stubs.imports():
        return attribute(rules.runtime)


def engine_config(recipe: Recipe, layout: Layout, batch: BatchPoint) -> dict[str, Any]:
    """Returns the point's configuration in the format of its engine; empty where the engine has none."""
    return attribute(path)(recipe, layout, batch) if (path := layout.rules.config) else {}
