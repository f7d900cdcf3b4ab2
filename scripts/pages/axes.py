"""The page of axes and recipe fields, made from their declarations and from the engines' rules."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import search_spaces
from search_spaces import changes
from trainers.spec import engines
from trainers.spec.axis import axes_of, choices_of, defaults_of
from trainers.spec.engines.rules import EngineRules
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe
from trainers.spec.support import standing_refusal

_TOP = """# Axes

`--set NAME=VALUE[,VALUE]` replaces the values of any of these. An axis of the layout must not change the loss curve; a
field of the recipe may, so each of its values has a winner of its own. *Engines* (and ZeRO stages) run a
value other than the default with the recipe of `bloom7b`, or of `qwen3_30b_a3b` where experts are meant, or in FP8;
blank means all.

`micro_batch` (the ladder of micro-batches) and `point` (the names of a space's points) are taken by `--set` too.
[degrees.md](degrees.md) has the axes by architecture, [options.md](options.md) the options.
"""
_EXAMPLE = "bloom7b"
_EXAMPLES: Mapping[str, str] = dict.fromkeys(("balance_loss", "ep", "experts", "routing"), "qwen3_30b_a3b")
"""Space whose recipe is used to ask the engines about an axis, if it is another than `_EXAMPLE`."""
_INTERLEAVED = {"pp": 2, "schedule": "interleaved", "virtual": 2}
_RECIPES: Mapping[str, Mapping[str, Any]] = {"fp8_weights": {"compute_precision": "fp8_tensorwise"}}
"""Fields of a recipe without which an axis is refused."""
_GOES_WITH: Mapping[str, Mapping[str, Any]] = {
    "cp": {"attention": "sdpa"},
    "cp_exchange": {"attention": "sdpa", "cp": 2},
    "cuda_graphs": {"attention": "sdpa"},
    "ep": {"experts": "grouped"},
    "schedule": _INTERLEAVED,
    "virtual": _INTERLEAVED,
}
"""Values of other axes without which an axis has no effect or is refused."""


def page() -> str:
    return f"{_TOP}\n## Layout\n\n{table(Layout)}\n\n## Recipe\n\n{table(Recipe)}\n"


def table(kind: type) -> str:
    """Returns the Markdown table with a row for each axis of `Layout` or field of `Recipe` that `--set` takes."""
    values_by_axis = changes.axes()
    lines = ["| axis | values | default | engines | |", "|---|---|---|---|---|"]
    for name, declared in axes_of(kind).items():
        default = defaults_of(kind).get(name)
        default_text = "" if default is None else f"`{default}`"
        values = values_by_axis[name].replace("whole numbers", "integers")
        lines.append(f"| `{name}` | {values} | {default_text} | {_engines(kind, name)} | {declared.about} |")
    return "\n".join(lines)


def _engines(kind: type, name: str) -> str:
    """Returns this project's engines, with their stages, that run some value other than the default."""
    parts: list[str] = []
    for rules in engines.registered():
        stages = [stage for stage in rules.stages if _runs(rules, stage, kind, name)]
        if stages == list(rules.stages):
            parts.append(rules.name)
        elif stages:
            parts.append(f"{rules.name} at {', '.join(map(str, stages))}")
    is_complete = parts == list(engines.names())
    return "" if is_complete else "; ".join(parts) or "none yet"


def _runs(rules: EngineRules, stage: int, kind: type, name: str) -> bool:
    return any(
        standing_refusal(recipe, layout, layout.world_size) is None
        for recipe, layout in _changed(rules, stage, kind, name)
    )


def _changed(rules: EngineRules, stage: int, kind: type, name: str) -> Iterator[tuple[Recipe, Layout]]:
    """Yields the example's recipe with a layout of the engine at `stage`, with another value of the axis in one of
    them.
    """
    recipe = dataclasses.replace(_recipe(_EXAMPLES.get(name, _EXAMPLE)), **_RECIPES.get(name, {}))
    degrees = {"dp_shard": 4} if stage else {"dp_replicate": 4}
    plain: dict[str, Any] = {
        "engine": rules.name,
        "zero_stage": stage,
        "grad_sync": rules.grad_syncs[stage][0],
        **degrees,
    }
    if kind is Recipe:
        values = [value for value in choices_of(kind).get(name, ()) if value != defaults_of(kind)[name]]
        yield from ((dataclasses.replace(recipe, **{name: value}), Layout(**plain)) for value in values)
        if not values:  # a number, which no engine refuses
            yield recipe, Layout(**plain)
        return
    for value in choices_of(kind).get(name, (2,)):
        changed: dict[str, Any] = (
            plain if name in ("engine", "zero_stage") else {**plain, **_GOES_WITH.get(name, {}), name: value}
        )
        if value != defaults_of(kind).get(name):
            with contextlib.suppress(ValueError):  # the engine lacks the axis at this stage
                yield recipe, Layout(**changed)


@functools.cache
def _recipe(space: str) -> Recipe:
    return search_spaces.load(space).recipe
