"""`Stepper`: all that measuring needs of an engine; the abilities that an engine may have beside it; `Engine`: all."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from trainers.marks.step import Marks, StepResult
from trainers.records.measurement import SETTINGS, TRAINING_STATE
from trainers.spec.errors import InputError
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

if TYPE_CHECKING:  # a driver asks for an engine's configuration without torch
    import torch

    from trainers.distributed.state import Counters, StateTensor
    from trainers.models.model import Model

Ability = TypeVar("Ability")


class MissingAbilityError(InputError):
    """The engine lacks what it is asked for. One sentence: what needs it, and the methods to add."""


class Stepper(Protocol):
    """Trains steps on the ranks of the default process group: enough to be measured, out of memory and in time.

    Made on every rank at once. `step` waits for the device only where the engine's library does so itself.

    A stepper whose steps mark each of their micro-steps has a `marks_micro_steps` that is true: of a step of many, a
    few are then timed. Without it whole steps are timed, as where a schedule interleaves micro-steps.
    """

    def __init__(self, recipe: Recipe, layout: Layout, device: "torch.device") -> None:
        """Builds the model and lays it out."""
        ...

    def step(self, micro_batches: "Sequence[torch.Tensor]", marks: Marks) -> StepResult:
        """Runs one optimizer step over this rank's micro-batches; marks the phases as they begin.

        Each of `micro_batches` is int64 [micro_batch, seq_len + 1] on the device, the same on all ranks that share a
        data-parallel coordinate; under a document or prefix mask some have a flag (`trainers.data.flags`). The
        gradient is that of the mean loss over all micro-batches and data-parallel ranks, clipped. The result is this
        rank's alone: no collective is added for it, the caller combines ranks.
        """
        ...

    def close(self) -> None:
        """Releases hooks and buffers; the process group stays."""
        ...


@runtime_checkable
class HasSettings(Protocol):
    """Reads back what runs: a measurement then fails where that is not what its layout and recipe ask for."""

    def in_effect(self) -> Mapping[str, Any]:
        """Returns what the engine really runs, read back from its own objects, under the names of Layout and Recipe.

        `trainers.spec.engines.mismatches` compares it with what was asked for. None stands for a value that is unknown
        before a step has run. May wait for the device.
        """
        ...


@runtime_checkable
class HasTrainingState(Stepper, Protocol):
    """Gives its state away and continues from another: the numerics gate and trainings need it."""

    def set_learning_rate(self, learning_rate: float) -> None:
        """Sets the learning rate from the next optimizer step on."""
        ...

    def num_skipped_steps(self) -> int:
        """Returns how many optimizer steps were skipped so far because fp16 gradients overflowed. May wait."""
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


@runtime_checkable
class HasWeights(Protocol):
    """Gives its weights as those of the plain model."""

    def named_full_weights(self) -> "Iterator[tuple[str, torch.Tensor]]":
        """Returns an iterator over the whole master weights by name in the plain transformers model.

        It is a collective: call it on all ranks. It may wait for the device.
        """
        ...


@runtime_checkable
class HasLogits(Protocol):
    """Computes without training: a training's held-out loss needs it."""

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


@runtime_checkable
class HasModels(Protocol):
    """Shows the recipe's model: its FLOPs are counted, a profile tells attention and loss apart, and a training may
    start from a folder.
    """

    @property
    def models(self) -> "Sequence[Model]":
        """The model as it was built, whose modules are those that run; for a pipeline, the stages of this rank."""
        ...


class Engine(HasTrainingState, HasSettings, HasWeights, HasLogits, HasModels, Protocol):
    """An engine with every ability, ready to train."""


ABILITIES: Mapping[str, type] = {
    SETTINGS: HasSettings,
    TRAINING_STATE: HasTrainingState,
    "full weights": HasWeights,
    "logits and loss": HasLogits,
    "models": HasModels,
}
"""Each ability by its name in sentences and in `Conditions.engine_lacks`."""


def marks_micro_steps(stepper: Stepper) -> bool:
    """Returns whether a step marks each of its micro-steps. Otherwise it is timed whole."""
    return bool(getattr(stepper, "marks_micro_steps", False))


def skipped_steps(stepper: Stepper) -> int:
    """Returns how many optimizer steps were skipped so far; 0 for a stepper that counts none."""
    count: Callable[[], int] | None = getattr(stepper, "num_skipped_steps", None)
    return count() if count else 0


def methods_of(ability: type) -> tuple[str, ...]:
    """Returns the names that an ability adds to a `Stepper`."""
    return tuple(name for name in vars(ability) if not name.startswith("_"))


@functools.cache
def lacks(stepper: type) -> tuple[str, ...]:
    """Returns the names of the abilities that a class of steppers lacks."""
    return tuple(name for name, ability in ABILITIES.items() if _missing(stepper, ability))


def require(stepper: Any, ability: type[Ability], purpose: str) -> Ability:
    """Returns the stepper, or the class of steppers, as one that has the ability, or all of them (`Engine`).

    Raises:
        MissingAbilityError: it lacks it; `purpose` is the sentence's subject.
    """
    names = [
        name
        for name, declared in ABILITIES.items()
        if (ability is Engine or ability is declared) and _missing(stepper, declared)
    ]
    if not names:
        return stepper
    kind = stepper if isinstance(stepper, type) else type(stepper)
    methods = [method for name in names for method in _missing(stepper, ABILITIES[name])]
    raise MissingAbilityError(
        f"{purpose} needs {' and '.join(names)}, which {kind.__module__}.{kind.__qualname__} lacks: give it"
        f" {', '.join(methods)}, as trainers.engines.base has them, or choose another engine"
    )


def _missing(stepper: Any, ability: type) -> tuple[str, ...]:
    return tuple(name for name in methods_of(ability) if not hasattr(stepper, name))
