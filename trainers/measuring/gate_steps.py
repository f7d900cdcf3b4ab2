"""Runs the numerics gate's steps on one engine: losses, norms, sketches of gradients, and a check of the AdamW update
of each weight.

Gradients are read from the optimizer's first moment m, which every engine has by canonical name, after clipping,
summation and averaging: each step sets m to beta1 * m + (1 - beta1) * gradient. Sketches are linear, so a gradient's
sketch follows from the sketches of two moments.
"""

import base64
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from trainers.distributed.state import FROZEN, WEIGHT, StateTensor
from trainers.engines.stepper import HasTrainingState
from trainers.measuring.sharp_weights import READ_BITS, round_otherwise, sharpen
from trainers.measuring.sketch import KEPT, length, sketches
from trainers.records.job import GateSize
from trainers.records.journal import ROUNDED, GateSketch
from trainers.spec.recipe import Recipe

_SKETCHED_STEPS = 2
"""Number of first steps whose gradients are sketched. The second shows faults that begin there, such as replayed graphs
and gradients that were not cleared.
"""
_MOST_SKIPPED = 30
"""Largest number of steps that fp16 may skip until its loss scale, halved each time, fits."""
_SEEN_RATE = {"fp32": 1e-4, "bf16": 2e-3}
"""Least learning rate of the last step by the states' type; the effect of a smaller step would vanish in the rounding
of weights.
"""
_ROUNDING = {"fp32": 2.0**-24, "bf16": 2.0**-9}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GateSteps:
    """The results of the gate's steps on one engine; fields as in `GateCurves`."""

    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    step_times_s: tuple[float, ...]
    tensors: tuple[str, ...]
    sketches: tuple[GateSketch, ...]
    clip_error: float | None
    update_error: float | None
    update_tensor: str


def run(
    engine: HasTrainingState,
    recipe: Recipe,
    size: GateSize,
    *,
    device: torch.device,
    gather: Callable[[Any], list[Any]],
    step: Callable[[int], tuple[float, float, float]],
    is_reference: bool = False,
) -> GateSteps:
    """Runs the gate's steps from sharpened initial weights and restores them afterwards; a collective.

    `step(number)` runs that step (again with the same number if fp16 skipped it) and returns its mean loss over ranks,
    its gradient norm and its seconds. The learning rate stays small until the last step, so that rounding errors do not
    grow; afterwards it is the recipe's. The last step leaves the weights one step from their initial values. A
    reference also records the first step's gradients from weights that are rounded differently, which shows the effect
    of rounding in this model.
    """
    sharpen(engine, recipe)
    sketched = _Sketched(engine, recipe, device, gather)
    frozen = sketched.frozen()
    shows_gradients = recipe.optimizer == "adamw"
    losses: list[float] = []
    norms: list[float] = []
    times_s: list[float] = []
    written: list[GateSketch] = []
    clip_error = update_error = None
    update_tensor = ""
    first_weights = moments = None
    if is_reference and shows_gradients and recipe.compression == "none" and recipe.compute_precision in READ_BITS:
        engine.set_learning_rate(0.0)
        round_otherwise(engine, recipe)
        _unskipped(engine, recipe, 0, step)
        round_otherwise(engine, recipe)
        moments = sketched.of("exp_avg")
        written.append(_written(ROUNDED, moments / (1 - recipe.beta1)))
    for number in range(size.steps):
        is_last = number == size.steps - 1
        rate = _last_rate(recipe) if is_last else recipe.learning_rate * size.rate * (number + 1) / size.steps
        engine.set_learning_rate(rate)
        shown = number < _SKETCHED_STEPS and shows_gradients
        if is_last:
            first_weights = sketched.of(WEIGHT)
        loss, norm, time_s = _unskipped(engine, recipe, number, step)
        losses.append(loss)
        norms.append(norm)
        times_s.append(time_s)
        if shown:
            before, moments = moments, sketched.of("exp_avg")
            gradients = (moments - (0.0 if before is None else recipe.beta1 * before)) / (1 - recipe.beta1)
            written.append(_written(f"gradients of step {number + 1}", gradients))
            if before is None:
                clip_error = _clip_error(moments[:, KEPT], norm, recipe)
    if first_weights is not None:
        changes = first_weights - sketched.of(WEIGHT)
        if shows_gradients:
            update_error, update_tensor = sketched.update_error(first_weights, changes, _last_rate(recipe))
        else:
            written.append(_written(f"changes of step {size.steps}", changes))
    if moved := [name for name, sketch in sketched.frozen().items() if not torch.equal(sketch, frozen[name])]:
        update_error, update_tensor = math.inf, moved[0]
    engine.set_learning_rate(recipe.learning_rate)
    sharpen(engine, recipe, undo=True)
    return GateSteps(
        losses=tuple(losses),
        grad_norms=tuple(norms),
        step_times_s=tuple(times_s),
        tensors=tuple(sketched.names),
        sketches=tuple(written),
        clip_error=clip_error,
        update_error=update_error,
        update_tensor=update_tensor,
    )


def _last_rate(recipe: Recipe) -> float:
    return max(recipe.learning_rate, _SEEN_RATE[recipe.state_precision])


def _unskipped(
    engine: HasTrainingState, recipe: Recipe, number: int, step: Callable[[int], tuple[float, float, float]]
) -> tuple[float, float, float]:
    """Runs the step with that number until fp16 does not skip it, and returns its result."""
    for _ in range(_MOST_SKIPPED if recipe.compute_precision == "fp16" else 0):
        skipped = engine.num_skipped_steps()
        result = step(number)
        if engine.num_skipped_steps() == skipped:
            return result
    return step(number)


class _Sketched:
    """Sketches of an engine's tensors, by the parameter names of all ranks."""

    def __init__(
        self, engine: HasTrainingState, recipe: Recipe, device: torch.device, gather: Callable[[Any], list[Any]]
    ) -> None:
        self._engine, self._recipe, self._device, self._gather = engine, recipe, device, gather
        held = [(name, len(tensor.shape)) for name, tensor in self._state(WEIGHT).items()]
        self._dimensions: dict[str, int] = {name: number for of_rank in gather(held) for name, number in of_rank}
        self.names = sorted(self._dimensions)

    def of(self, kind: str) -> torch.Tensor:
        """Returns the sketches of one kind of tensor, [names, KEPT + 1]."""
        return sketches(self.names, [self._state(kind)], lambda values: values, self._device)

    def frozen(self) -> dict[str, torch.Tensor]:
        """Returns the sketches of frozen weights by name; equal sketches mean that weights did not change."""
        state = self._state(FROZEN)
        names = sorted({name for of_rank in self._gather([*state]) for name in of_rank})
        if not names:
            return {}
        return dict(zip(names, sketches(names, [state], lambda values: values, self._device), strict=True))

    def update_error(self, weights: torch.Tensor, changes: torch.Tensor, rate: float) -> tuple[float, str]:
        """Returns the largest error of the last step's weight changes and the parameter that has it. The error is the
        distance from AdamW's update by the engine's own moments, less rounding, relative to the update.
        """
        recipe, steps = self._recipe, self._engine.counters().optimizer_step
        mean, square = 1 - recipe.beta1 ** max(1, steps), 1 - recipe.beta2 ** max(1, steps)

        def update(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            return first / mean / ((second / square).sqrt() + recipe.epsilon)

        updates = sketches(self.names, [self._state("exp_avg"), self._state("exp_avg_sq")], update, self._device)
        decays = [recipe.weight_decay * recipe.decays(self._dimensions[name]) for name in self.names]
        expected = rate * (updates + torch.tensor(decays, dtype=weights.dtype)[:, None] * weights)
        rounding = 2 * _ROUNDING[recipe.state_precision] * weights[:, KEPT].sqrt()
        largest = rate * updates[:, KEPT].sqrt().clamp(min=1e-12)
        errors = ((length(changes - expected) - rounding).clamp(min=0) / largest).nan_to_num(math.inf)
        worst = int(errors.argmax())
        return float(errors[worst]), self.names[worst]

    def _state(self, kind: str) -> Mapping[str, StateTensor]:
        state = self._engine.training_state()
        return {key.removeprefix(f"{kind}/"): state[key] for key in state if key.startswith(f"{kind}/")}


def _written(of: str, values: torch.Tensor) -> GateSketch:
    data = values[:, :KEPT].numpy().astype("<f4").tobytes()
    return GateSketch(of=of, values=base64.b64encode(data).decode())


def _clip_error(squares: torch.Tensor, norm: float, recipe: Recipe) -> float:
    """Returns the relative difference between the length of the gradients that the optimizer received and the clipped
    norm. `squares` are the sums of squares of its first moments after one step.
    """
    allowed = min(norm, recipe.grad_clip) if recipe.grad_clip else norm
    error = abs(float(squares.sum().sqrt()) / (1 - recipe.beta1) / max(allowed, 1e-12) - 1)
    return error if math.isfinite(error) else math.inf
