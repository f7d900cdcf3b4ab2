"""The strategies of a comparison: layouts with recipes and batch points, from studies, files and changes."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from platform.common.errors import InputError
from platform.train.converging.converge_options import ConvergeOptions
from platform.train.target import Target, read_target
from search_spaces.space import Space
from trainers.records.training import TrainingPlan
from trainers.spec.axis import axes_of
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import AXES
from trainers.spec.recipe import Recipe
from trainers.spec.support import standing_refusal

_OF_AN_ENGINE = ("zero_stage", "grad_sync")
"""Axes of one engine; a change of engine resets them to the new engine's defaults."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """One curve of the comparison: a named layout with its recipe and batch point."""

    name: str
    recipe: Recipe
    layout: Layout
    batch: BatchPoint
    has_own_rate: bool = False
    """Whether the learning rate is given: among the changes, or by a file whose rate differs from the first's."""

    @property
    def folder(self) -> str:
        return re.sub(r"[^A-Za-z0-9=._-]+", "_", self.name)

    @property
    def mathematics(self) -> Recipe:
        """The recipe without learning rate and seed. Strategies with equal mathematics share a learning rate."""
        return dataclasses.replace(self.recipe, learning_rate=1.0, seed=0)


def read_strategies(options: ConvergeOptions) -> list[Strategy]:
    """Returns the strategies in the order of the options.

    Raises:
        InputError: a strategy cannot be read or run, two have one name, or their losses are not comparable.
    """
    strategies: list[Strategy] = []
    for text in options.targets:
        if "=" in text and not text.endswith(".json"):
            if not strategies:
                raise InputError(f"{text} changes the first study or layout file, and none comes before it: name one")
            strategies.append(_changed(strategies[0], text))
        else:
            strategies.append(
                _of_target(read_target(text, options.studies, None, trusted=options.trust), text, strategies[:1])
            )
    names = [strategy.folder for strategy in strategies]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"two strategies are called {duplicate}: give each once, or rename a file")
    first = strategies[0]
    for strategy in strategies[1:]:
        if (strategy.recipe.model, strategy.recipe.seq_len) != (first.recipe.model, first.recipe.seq_len):
            raise InputError(
                f"losses compare between equal models and lengths: {first.name} trains {first.recipe.model.name} at"
                f" {first.recipe.seq_len}, {strategy.name} {strategy.recipe.model.name} at {strategy.recipe.seq_len}"
            )
        _check_losses(first, strategy)
    return strategies


def check_same_data(plans: Mapping[str, TrainingPlan]) -> None:
    """Checks that all trainings have the first one's data and held-out data, by the files' content and not their paths.

    Raises:
        InputError: the data of a training differ.
    """
    (first_name, first), *others = plans.items()
    for name, plan in others:
        held_out = (first.validation.sequences, plan.validation.sequences)
        pairs = {
            "data": (first.data_content, plan.data_content, first.recipe.data, plan.recipe.data),
            "held-out data": (
                first.validation_content, plan.validation_content, first.validation.data, plan.validation.data
            ),
        }  # fmt: skip
        for words, (content, other_content, path, other_path) in pairs.items():
            if content is None or other_content is None:
                is_same, details = path == other_path, f"{other_path or 'none'} in place of {path or 'none'}"
            else:
                is_same, details = content.is_same(other_content), "; ".join(content.differences(other_content))
            if not is_same:
                raise InputError(
                    f"losses compare over the same tokens: {name} has other {words} than {first_name} ({details}): give"
                    " --data for all"
                )
        if held_out[0] != held_out[1]:
            raise InputError(
                f"losses compare over the same tokens: {name} holds out {held_out[1]} sequences, {first_name}"
                f" {held_out[0]}: give --val-tokens"
            )


def _check_losses(first: Strategy, other: Strategy) -> None:
    """Checks that a strategy's losses are of the same tokens as the first one's.

    Raises:
        InputError: the order of the data, the attention mask or the trained tokens differ.
    """
    for field in ("data_order", "attention_mask", "trained_tokens"):
        values = [str(getattr(strategy.recipe, field)) for strategy in (first, other)]
        if values[0] != values[1]:
            raise InputError(
                f"losses compare over the same tokens: {first.name} has {field} {values[0]}, {other.name} {values[1]}:"
                f" give both the same {field}"
            )


def folder_of(options: ConvergeOptions) -> Path:
    """Returns the comparison's folder.

    Raises:
        InputError: the first target cannot be read.
    """
    if options.out is not None:
        return options.out
    return read_target(options.targets[0], options.studies, None, trusted=options.trust).folder.with_name("convergence")


def _of_target(target: Target, text: str, first: Sequence[Strategy]) -> Strategy:
    if target.recipe is None:
        raise InputError(f"{text} holds a layout without a recipe: give the layout.json of a search, or a study")
    batch = target.batch or BatchPoint.of(target.recipe, target.layout, 1)
    has_own_rate = any(target.recipe.learning_rate != strategy.recipe.learning_rate for strategy in first)
    return Strategy(
        name=target.name, recipe=target.recipe, layout=target.layout, batch=batch, has_own_rate=has_own_rate
    )


def _changed(first: Strategy, text: str) -> Strategy:
    """Returns the first strategy with the changes of `text`, such as "engine=ddp,optimizer=adafactor".

    `text` is parsed as `--set` is. Axes and degrees that the new engine does not support return to their defaults.

    Raises:
        InputError: the changed strategy cannot run.
    """
    changes = [part.strip() for part in text.split(",")]
    changed_axes = {part.partition("=")[0].strip() for part in changes}
    declared = axes_of(Layout)
    first_axes = {name: getattr(first.layout, name) for name in declared}
    free = {name: value for name, value in first_axes.items() if name not in AXES}
    kernels = {name: free[name] for name in free if name not in _OF_AN_ENGINE and not declared[name].of_some_engines}
    reason = ""
    for axes in (first_axes, free, {**kernels, "engine": first_axes["engine"]}):
        try:
            strategy = _in_space(
                first, text, changes, {k: v for k, v in axes.items() if k not in changed_axes or k == "engine"}
            )
            return dataclasses.replace(strategy, has_own_rate="learning_rate" in changed_axes)
        except ValueError as error:
            reason = reason or str(error)
    raise InputError(f"{text} cannot run beside {first.name}: {reason}")


def _in_space(first: Strategy, text: str, changes: Sequence[str], axes: Mapping[str, Any]) -> Strategy:
    """Returns the only candidate of the space with these axes and changes.

    Raises:
        InputError: the changes give several candidates.
        ValueError: the changes give none.
    """
    space = Space(
        name=first.name,
        summary="what the comparison changes",
        recipe=first.recipe,
        axes={name: (value,) for name, value in axes.items()},
        micro_batches=(first.batch.micro_batch,),
    ).with_changes(changes)
    candidate, *others = space.candidates(first.layout.world_size)[0]
    if others:
        raise InputError(f"{text} means {1 + len(others)} strategies: give one value for each axis")
    if refusal := standing_refusal(candidate.recipe, candidate.layout, candidate.layout.world_size):
        raise ValueError(refusal)
    batch = candidate.batch_points()[0]
    recipe = candidate.recipe.of_batch(batch.global_batch(candidate.layout))
    return Strategy(name=text, recipe=recipe, layout=candidate.layout, batch=batch)
