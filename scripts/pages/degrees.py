"""The page of the values that run with each degree that splits the model or its experts, by architecture, made from the
engines' rules.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainers.spec import architectures, engines
from trainers.spec.architectures import architecture_of
from trainers.spec.axis import axes_of, choices_of, defaults_of
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import MODEL_PARALLEL
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe
from trainers.spec.stages import schedule_refusal
from trainers.spec.support import standing_refusal

_TOP = """# Architecture x axis

Which degrees (two ranks each) run beside each value of another axis, under some engine at some stage, on top of data
parallelism over four ranks. A degree is not named in its own row; `every_4` stands for all of `every_K`.
[parallelism.md](../parallelism.md) says when each degree wins, [axes.md](axes.md) what each axis is.
"""
SPLIT_BY = {name: {name: 2} for name in MODEL_PARALLEL}
"""Axes of a layout by the degree that a cell names."""
_USUAL = {"attention": "sdpa"}
"""Value used in place of a default that exists only for comparisons."""
_NUMBERS = {"bucket_mib": 25, "prefetch": 1, "reshard": 2, "dp_replicate": 2, "dp_shard": 2}
"""Value that represents the other values of a numeric axis."""
_IN_RECIPE = ("optimizer", "compute_precision", "state_precision", "compression")
_ACCUMULATION = "micro-batches a step"
_ACCUMULATIONS = (1, 3)
"""Accumulations with rows of their own; accumulation is no axis, because it follows from the batch."""

Refusals = dict[str, None]
"""Sentences, each once, in order."""


def page() -> str:
    return f"{_TOP}\n{table()}\n"


@functools.cache
def table() -> str:
    """Returns the Markdown table: a row for values that run with the same degrees, a column for architectures that
    agree in all rows. Sentences on failures follow.
    """
    reasons: Refusals = {}
    values = list(axis_values())
    runs = {name: [cell(name, axis, value, reasons) for axis, value in values] for name in architectures.names()}
    columns = _grouped({name: tuple(cells) for name, cells in runs.items()})
    titles = [f"`{axis}={value}`" if axis else "sdpa, or flex with sinks, and the defaults" for axis, value in values]
    rows = _grouped({name: tuple(column[place] for column in columns) for place, name in enumerate(titles)})
    lines = [f"| beside it | {' | '.join(', '.join(names) for names in columns.values())} |"]
    lines.append("|---|" + "---|" * len(columns))
    lines += (f"| {', '.join(names)} | {' | '.join(cells)} |" for cells, names in rows.items())
    introduction = "What is missing is refused before anything starts, by sentences like these (alike for the degrees):"
    return "\n".join([*lines, "", introduction, "", *_listed(reasons)])


def cell(architecture: str, axis: str, value: Any, reasons: Refusals) -> str:
    """Returns the degrees that run with the value; adds the reasons why others do not to `reasons`."""
    degrees = [degree for degree in SPLIT_BY if runs_beside(architecture, degree, axis, value, reasons)]
    return ", ".join(degrees) or "none"


def _grouped(values: Mapping[str, tuple[str, ...]]) -> dict[tuple[str, ...], list[str]]:
    """Returns the names grouped by their values, in order of first occurrence."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, cells in values.items():
        names.setdefault(cells, []).append(name)
    return names


def _listed(reasons: Refusals) -> list[str]:
    """Returns the sentences as lines; of sentences that differ only in their degrees, the first."""
    first = {re.sub(rf"\b({'|'.join(SPLIT_BY)})\b( \d)?", "", reason): reason for reason in reversed(reasons)}
    return [f"- {reason}" for reason in reversed(first.values())] or ["- nothing"]


def axis_values() -> Iterator[tuple[str, Any]]:
    """Yields ("", None) for the defaults, then other values of the axes; `every_4` represents all of `every_K`."""
    yield "", None
    for kind in (Layout, Recipe):
        for axis in axes_of(kind):
            if axis in ("engine", "overlap") or (kind is Recipe and axis not in _IN_RECIPE):
                continue
            kinds: dict[str, Any] = {}
            for value in choices_of(kind).get(axis, ()):
                if value != _USUAL.get(axis, defaults_of(kind).get(axis)):
                    kinds.setdefault(value.partition("_")[0], value)
            yield from ((axis, value) for value in kinds.values())
            if axis in _NUMBERS or axis in SPLIT_BY:
                yield axis, _NUMBERS.get(axis, 2)
    yield from ((_ACCUMULATION, accumulation) for accumulation in _ACCUMULATIONS)


def runs_beside(architecture: str, degree: str, axis: str, value: Any, reasons: Refusals) -> bool:
    """Returns whether some engine, at some stage, runs the value with the degree. Otherwise adds to `reasons` why
    engines that run the value alone do not.
    """
    if axis == degree:
        return False
    refusals: Refusals = {}
    recipe = _recipe(architecture, axis, value)
    usual = {**_USUAL, **({"experts": "grouped"} if recipe.model.num_experts else {})}
    usual |= {"attention": "flex"} if architecture_of(architecture).attention_sinks else {}
    for values in _layouts(axis, value, usual):
        if _refusal(recipe, values, axis, value) is None:
            if (sentence := _refusal(recipe, {**values, **SPLIT_BY[degree]}, axis, value)) is None:
                return True
            refusals[sentence] = None
    reasons |= refusals
    return False


def _refusal(recipe: Recipe, values: Mapping[str, Any], axis: str, value: Any) -> str | None:
    """Returns the reason why these values of a layout do not run; None if they do."""
    try:
        layout = Layout(**values)
    except ValueError as error:
        return str(error)
    accumulation = value if axis == _ACCUMULATION else layout.pp
    return standing_refusal(recipe, layout, layout.world_size) or schedule_refusal(layout, accumulation) or None


def _layouts(axis: str, value: Any, usual: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the value with the `usual` other values, for each engine at each stage, on four data-parallel ranks or
    with the degree that it needs.
    """
    for rules in engines.registered():
        for stage in rules.stages:
            values: dict[str, Any] = {"engine": rules.name, "zero_stage": stage, **usual}
            values["grad_sync"] = rules.grad_syncs[stage][0]
            values["dp_shard" if stage else "dp_replicate"] = 4
            if str(value).startswith("budget"):
                values["compile"] = "block"
            values |= {"schedule": {"pp": 2, "virtual": 2}, "cp_exchange": {"cp": 2}}.get(axis, {})
            if axis in axes_of(Layout):
                values[axis] = value
            yield values


def _recipe(architecture: str, axis: str, value: Any) -> Recipe:
    if axis not in _IN_RECIPE:
        in_float8 = {"compute_precision": "fp8_tensorwise"} if axis == "fp8_weights" else {}
        return dataclasses.replace(_plain_recipe(architecture), **in_float8)
    with_value = {"state_precision": {"compute_precision": "bf16"}}.get(axis, {})
    return dataclasses.replace(_plain_recipe(architecture), **{**with_value, axis: value})


@functools.cache
def _plain_recipe(architecture: str) -> Recipe:
    has_experts = "num_experts" in architecture_of(architecture).config_keys
    model = ModelSpec(
        name="model",
        architecture=architecture,
        num_layers=8,
        hidden_size=256,
        num_heads=4,
        vocab_size=256,
        max_positions=512,
        num_experts=8 if has_experts else 0,
        experts_per_token=2 if has_experts else 0,
        shared_ffn_size=256 if "shared_ffn_size" in architecture_of(architecture).config_keys else 0,
    )
    return Recipe(model=model, seq_len=256, global_batch=64)
