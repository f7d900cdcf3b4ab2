"""`Stepper`: the interface that measuring needs of an engine; optional abilities; and `Engine`, which has them all."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from trainers.marks.step import Marks, StepResult
from trainers.records.measurement import SETTINGS, TRAINING_STATE
from trainers.spec.errors import InputError
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

if TYPE_CHECKING:  # a driver reads an engine's configuration without torch
    import torch

    from trainers.distributed.state import Counters, StateTensor
    from trainers.models.model import Model

Ability = TypeVar("Ability")


class MissingAbilityError(InputError):
    """The engine lacks an ability that is needed; the sentence names the feature and the methods to add."""


class Stepper(Protocol):
    """Runs training steps on the ranks of the default process group; enough for measuring.

    Every rank creates one at the same time. `step` waits for the device only if the engine's library does. A true
    attribute `marks_micro_steps` says that steps mark each micro-step; a few micro-steps are then timed for a longer
    step. Otherwise whole steps are timed, as for a schedule that interleaves micro-steps.
    """

    def __init__(self, recipe: Recipe, layout: Layout, device: "torch.device") -> None:
        """Builds the model and lays it out."""
        ...

    def step(self, micro_batches: "Sequence[torch.Tensor]", marks: Marks) -> StepResult:
        """Runs one optimizer step over this rank's micro-batches; marks the phases as they begin.

        Each of `micro_batches` is int64 [micro_batch, seq_len + 1] on the device, equal on ranks with the same
        data-parallel coordinate; under a document or prefix mask some tokens carry a flag (`trainers.data.flags`). The
        gradient is the gradient of the mean loss over all micro-batches and data-parallel ranks, clipped. The result is
        this rank's; the caller combines ranks, so that no collective is added.
        """
        ...

    def close(self) -> None:
        """Releases hooks and buffers; the process group stays."""
        ...


@runtime_checkable
class HasSettings(Protocol):
    """Reads back the settings in effect. A measurement fails if they differ from the layout and recipe."""

    def in_effect(self) -> Mapping[str, Any]:
        """Returns the settings in effect, read back from the engine's objects, under the names of Layout and Recipe.
        None is a value that is unknown before a step. `trainers.spec.engines.mismatches` compares them with the
        requested ones. May wait for the device.
        """
        ...


@runtime_checkable
class HasTrainingState(Stepper, Protocol):
    """Exports its state and continues from another state, for the numerics gate and trainings."""

    def set_learning_rate(self, learning_rate: float) -> None:
        """Sets the learning rate from the next optimizer step on."""
        ...

    def num_skipped_steps(self) -> int:
        """Returns the number of optimizer steps skipped so far on fp16 overflow. May wait for the device."""
        ...

    def training_state(self) -> "Mapping[str, StateTensor]":
        """Returns this rank's parts of master weights and optimizer states by canonical key, as live memory.

        States that the first optimizer step would create are created. See `trainers.distributed.state`.
        """
        ...

    def counters(self) -> "Counters":
        """Returns the optimizer's counters that belong to its states."""
        ...

    def adopt(self, counters: "Counters") -> None:
        """Continues from the state written into `training_state` and from these counters; a collective. Call it before
        the first step; later steps equal the saved engine's steps.
        """
        ...


@runtime_checkable
class HasLogits(Protocol):
    """Computes logits and losses without training, for a training's held-out loss."""

    def logits(self, tokens: "torch.Tensor") -> "torch.Tensor":
        """Returns the logits [batch, seq_len, vocab] of int64 tokens [batch, seq_len]; no gradient; a collective."""
        ...

    def loss(self, tokens: "torch.Tensor") -> "torch.Tensor":
        """Returns the mean loss of this rank's int64 tokens [batch, seq_len + 1], without gradient, 0-dim fp32; a
        collective.
        """
        ...


@runtime_checkable
class HasModels(Protocol):
    """Shows the recipe's model, so that FLOPs are counted, profiles separate attention and loss, and a training may
    start from a folder of weights.
    """

    @property
    def models(self) -> "Sequence[Model]":
        """The built model, with the modules that run; for a pipeline this rank's stages."""
        ...


@runtime_checkable
class ReplaysGraphs(Protocol):
    """Replays graphs of earlier steps. Their private memory is not counted as allocated at a replay."""

    def forget_graphs(self) -> None:
        """Launches the next step kernel by kernel, so that its peak of allocated memory is complete, and captures anew
        after it.
        """
        ...


class Engine(HasTrainingState, HasSettings, HasLogits, HasModels, Protocol):
    """An engine with every ability, ready to train."""


ABILITIES: Mapping[str, type] = {
    SETTINGS: HasSettings,
    TRAINING_STATE: HasTrainingState,
    "logits and loss": HasLogits,
    "models": HasModels,
}
"""Each ability by its name in sentences and in `Conditions.engine_lacks`."""


def marks_micro_steps(stepper: Stepper) -> bool:
    """Returns whether a step marks each of its micro-steps; otherwise it is timed as a whole."""
    return bool(getattr(stepper, "marks_micro_steps", False))


def skipped_steps(stepper: Stepper) -> int:
    """Returns the number of optimizer steps skipped so far; 0 if the stepper does not count them."""
    count: Callable[[], int] | None = getattr(stepper, "num_skipped_steps", None)
    return count() if count else 0


def methods_of(ability: type) -> tuple[str, ...]:
    return tuple(name for name in vars(ability) if not name.startswith("_"))


@functools.cache
def lacks(stepper: type) -> tuple[str, ...]:
    return tuple(name for name, ability in ABILITIES.items() if _missing(stepper, ability))


def require(stepper: Any, ability: type[Ability], purpose: str) -> Ability:
    """Returns `stepper` (an object or a class) typed as having the ability, or all abilities for `Engine`.

    Raises:
        MissingAbilityError: it lacks one; `purpose` is the subject of the sentence.
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
