"""Writes the table in docs/parallelism.md: what runs beside tensor, pipeline and context parallelism, by architecture.

python -m scripts.degrees_table
"""

import argparse
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainers import architectures, engines
from trainers.mesh.stages import schedule_refusal
from trainers.support import standing_refusal
from trainers.values.axes import axes_of, choices_of, defaults_of
from trainers.values.layout import Layout
from trainers.values.recipe import Recipe
from trainers.values.spec import ModelSpec

PAGE = Path(__file__).resolve().parent.parent / "docs" / "parallelism.md"
BEGIN, END = "<!-- degrees: made by python -m scripts.degrees_table -->", "<!-- end of degrees -->"
SPLIT_BY = {"tp": {"tp": 2}, "pp": {"pp": 2}, "cp": {"cp": 2}}
"""Degree that has its name in a cell -> what a layout has of it."""
_NUMBERS = {"bucket_mib": 25, "prefetch": 1, "reshard": 2, "dp_replicate": 2, "dp_shard": 2}
"""Axis of numbers -> the value that stands for others."""
_USUAL = {"attention": "sdpa"}
"""What stands in place of a default that is there for comparisons alone."""
_IN_RECIPE = ("optimizer", "compute_precision", "state_precision", "compression")
_ACCUMULATION = "micro-batches a step"
_ACCUMULATIONS = (1, 3)
"""Rows of their own: the accumulation is no axis, it follows from the batch."""

Refusals = dict[str, None]
"""Sentences, each once, in their order."""


@functools.cache
def cells() -> tuple[dict[str, dict[str, str]], Refusals]:
    """Label of a value that is not usual -> architecture -> the degrees that run beside it; and why some do not."""
    reasons: Refusals = {}
    found: dict[str, dict[str, str]] = {}
    for axis, value in axis_values():
        label = f"`{axis}={value}`" if axis else "sdpa and the defaults"
        runs = {
            name: [degree for degree in SPLIT_BY if runs_beside(name, degree, axis, value, reasons)]
            for name in architectures.names()
        }
        found[label] = {name: ", ".join(degrees) or "none" for name, degrees in runs.items()}
    return found, reasons


@functools.cache
def table() -> str:
    """The table in Markdown, values that are alike in one row and architectures that are alike in one column; and why
    some degrees are missing.
    """
    found, reasons = cells()
    columns = _alike({name: tuple(row[name] for row in found.values()) for name in architectures.names()})
    rows = _alike({label: tuple(row[names[0]] for names in columns.values()) for label, row in found.items()})
    lines = [f"| beside it | {' | '.join(', '.join(names) for names in columns.values())} |"]
    lines.append("|---|" + "---|" * len(columns))
    lines += [f"| {', '.join(labels)} | {' | '.join(row)} |" for row, labels in rows.items()]
    return "\n".join([*lines, "", "What is missing is refused before anything starts:", "", *_listed(reasons)])


def _alike(named: Mapping[str, tuple[str, ...]]) -> dict[tuple[str, ...], list[str]]:
    """Each value with the names that have it."""
    names: dict[tuple[str, ...], list[str]] = {}
    for name, value in named.items():
        names.setdefault(value, []).append(name)
    return names


def written(page: str) -> str:
    """The page with today's table between the marks.

    Raises:
        ValueError: the page lacks a mark.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no {BEGIN} with {END} after it: write both where the table belongs")
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


def _listed(reasons: Refusals) -> list[str]:
    return [f"- {reason}" for reason in reasons] or ["- nothing"]


def axis_values() -> Iterator[tuple[str, Any]]:
    """("", None) for the defaults alone, then other values of the axes; `every_4` stands for all of `every_K`."""
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
    """Whether some engine, at some stage, runs that value beside that degree; adds to `reasons` why one does not that
    runs it by itself.
    """
    if axis == degree:
        return False
    why: Refusals = {}
    recipe = _recipe(architecture, axis, value)
    for alone in _layouts(axis, value):
        if _refusal(recipe, alone, axis, value) is None:
            if (sentence := _refusal(recipe, {**alone, **SPLIT_BY[degree]}, axis, value)) is None:
                return True
            why[sentence] = None
    reasons |= why
    return False


def _refusal(recipe: Recipe, values: Mapping[str, Any], axis: str, value: Any) -> str | None:
    """Why these values of a layout do not run; None where they do."""
    try:
        layout = Layout(**values)
    except ValueError as error:
        return str(error)
    accumulation = value if axis == _ACCUMULATION else layout.pp
    return standing_refusal(recipe, layout, layout.world_size) or schedule_refusal(layout, accumulation) or None


def _layouts(axis: str, value: Any) -> Iterator[dict[str, Any]]:
    """The value beside what is usual, of each engine at each stage, on four data-parallel ranks or with its degree."""
    for rules in engines.registered():
        for stage in rules.stages:
            values: dict[str, Any] = {"engine": rules.name, "zero_stage": stage, **_USUAL}
            values["grad_sync"] = rules.grad_syncs[stage][0]
            values["dp_shard" if stage else "dp_replicate"] = 4
            if str(value).startswith("budget"):
                values["compile"] = "block"
            if axis == "schedule":
                values |= {"pp": 2, "virtual": 2}
            if axis in axes_of(Layout):
                values[axis] = value
            yield values


def _recipe(architecture: str, axis: str, value: Any) -> Recipe:
    if axis not in _IN_RECIPE:
        return _plain_recipe(architecture)
    with_value = {"state_precision": {"compute_precision": "bf16"}}.get(axis, {})
    return dataclasses.replace(_plain_recipe(architecture), **{**with_value, axis: value})


@functools.cache
def _plain_recipe(architecture: str) -> Recipe:
    model = ModelSpec(
        name="model",
        architecture=architecture,
        num_layers=8,
        hidden_size=256,
        num_heads=8,
        vocab_size=256,
        max_positions=512,
    )
    return Recipe(model=model, seq_len=256, global_batch=64)


def main() -> None:
    """Writes the page."""
    argparse.ArgumentParser(prog="python -m scripts.degrees_table", description=__doc__).parse_args()
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
