"""A model that stands in for a user's own training where times are predicted: `model` and `means` of its file."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from search_spaces import changes
from search_spaces.candidate import OWN, Candidate
from search_spaces.degrees import fill
from search_spaces.engines import replicas_first, replicating
from search_spaces.space import Space
from trainers.spec.axis import axes_of
from trainers.spec.kernel_rules import default_attention
from trainers.spec.layout_axes import DEGREES
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe
from trainers.spec.workload import flags_of

PLAIN = {"engine": replicating()[0], "grad_sync": "last", "compute_precision": "fp32"}
"""What is not stated, as in transformers' Trainer: one group of replicas, exchanged once a step; fp32 unless asked."""
_FOLLOWING = (*DEGREES, "seq_len", "global_batch", "grad_accum", "micro_batch", "flags", "data", "point")
"""Axes that `means` cannot state: they follow from devices, lengths and batch, or are none of a stand-in."""

Values = Mapping[str, Any]
"""Values of this project's layout and recipe axes."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StandIn:
    """The stand-in's recipe, and the meanings of the training's own axes.

    It is no part of what trains, so no identity, row or report has it.
    """

    recipe: Recipe
    always: Values
    """Values at all points."""
    meanings: Mapping[str, Mapping[str, Values]]
    """Values by axis of the training and by its value."""

    def of(self, candidate: Candidate) -> Candidate:
        """Returns the candidate in whose place the cost model predicts `candidate`."""
        own = flags_of(candidate.layout.flags).items()
        return self.stated(candidate, [self.meanings[axis][value] for axis, value in own if axis in self.meanings])

    def stated(self, candidate: Candidate, stated: Sequence[Values]) -> Candidate:
        """Returns the same with these values `stated`.

        Raises:
            ValueError: the values contradict each other.
        """
        unstated = {**PLAIN, "attention": default_attention(self.recipe.model.architecture)}
        values = {name: value for each in (unstated, self.always, *stated) for name, value in each.items()}
        of_recipe = {name: values.pop(name) for name in tuple(values) if name in axes_of(Recipe)}
        recipe = dataclasses.replace(self.recipe, **of_recipe)
        return dataclasses.replace(candidate, recipe=recipe, layout=fill(values, candidate.layout.world_size))


def stand_in_of(model: ModelSpec, means: Sequence[str], space: Space) -> StandIn:
    """Returns `model` as the stand-in of the training in `space`.

    Each text of `means` holds values of this project's axes, as in "engine=fsdp zero_stage=3"; before them may stand
    the axis of the training and its value that mean them, as in "'own fsdp=full_shard'", else they hold at all points.

    Raises:
        ValueError: an axis or value is unknown, a value of an axis is left out, or values contradict each other.
    """
    own = _own_axes(space)
    always: dict[str, Any] = {}
    meanings: dict[str, dict[str, Values]] = {}
    for text in means:
        words = flags_of(text)
        condition = next((name for name in words if name.startswith(OWN)), None)
        if condition is None:
            always |= _read(words, "means")
            continue
        value, axis = words.pop(condition), condition.removeprefix(OWN)
        if axis not in own:
            raise ValueError(f"means names {axis}, which is no axis of the training: {', '.join(own) or 'it has none'}")
        if value not in own[axis]:
            raise ValueError(f"means names the value {value!r}, which axis {axis} does not have")
        meanings.setdefault(axis, {})[value] = _read(words, f"means of {axis}={value}")
    for axis, by_value in meanings.items():
        if missing := [value for value in own[axis] if value not in by_value]:
            raise ValueError(f"means says nothing of {axis}={missing[0]}: state it too, or leave out {axis}")
    recipe = dataclasses.replace(space.recipe, model=model, workload=None)
    stand_in = StandIn(recipe=recipe, always=always, meanings=meanings)
    _check(stand_in)
    return stand_in


def _own_axes(space: Space) -> dict[str, list[str]]:
    """Returns the values of the training's own axes."""
    values: dict[str, dict[str, None]] = {}
    for text in space.axes["flags"]:
        for axis, value in flags_of(str(text)).items():
            values.setdefault(axis, {})[value] = None
    return {axis: list(listed) for axis, listed in values.items()}


def _read(words: Mapping[str, str], where: str) -> Values:
    """Returns the typed values of this project's axes. Engines outside it are refused, for to read one runs its code.

    Raises:
        ValueError: an axis or a value is unknown, or cannot be stated.
    """
    for name, text in words.items():
        if name in _FOLLOWING:
            raise ValueError(f"{where} cannot state {name}, which follows from the training's devices and tokens")
        if name == "engine" and text not in replicas_first():
            raise ValueError(f"{where}: engine takes {', '.join(replicas_first())}, got {text!r}")
    try:
        read = changes.parse([f"{name}={text}" for name, text in words.items()])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    if several := [change.axis for change in read if len(change.values) > 1]:
        raise ValueError(f"{where} states one value of {several[0]}, got {words[several[0]]}")
    return {change.axis: change.values[0] for change in read}


def _check(stand_in: StandIn) -> None:
    """Checks that every combination of meanings is a layout.

    Raises:
        ValueError: two axes state the same, or a combination contradicts itself.
    """
    stated_by: dict[str, str] = {}
    for axis, by_value in stand_in.meanings.items():
        for name in dict.fromkeys(itertools.chain(*by_value.values())):
            if stated_by.setdefault(name, axis) != axis:
                raise ValueError(f"means states {name} by {stated_by[name]} and by {axis}: state it by one of them")
    anywhere = Candidate(recipe=stand_in.recipe, layout=fill({"engine": PLAIN["engine"]}, 2), micro_batches=(1,))
    for combination in itertools.product(*(by_value.items() for by_value in stand_in.meanings.values())):
        try:
            stand_in.stated(anywhere, [values for _, values in combination])
        except ValueError as error:
            pairs = zip(stand_in.meanings, combination, strict=True)
            where = " of " + ", ".join(f"{axis}={value}" for axis, (value, _) in pairs) if combination else ""
            raise ValueError(f"means{where}: {error}") from error
