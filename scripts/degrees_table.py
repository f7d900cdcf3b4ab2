"""Writes the table in docs/parallelism.md: what runs beside tensor, pipeline and context parallelism, by architecture.

python -m scripts.degrees_table
"""

import argparse
import contextlib
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainers import architectures, engines
from trainers.support import standing_refusal
from trainers.values.axes import axes_of, choices_of, defaults_of
from trainers.values.layout import Layout
from trainers.values.recipe import Recipe
from trainers.values.spec import ModelSpec

PAGE = Path(__file__).resolve().parent.parent / "docs" / "parallelism.md"
BEGIN, END = "<!-- degrees: made by python -m scripts.degrees_table -->", "<!-- end of degrees -->"
_DEGREES = ("tp", "pp", "cp")
_SPLIT_BY = {"tp": {"tp": 2}, "pp": {"pp": 2}, "cp": {"cp": 2}}
_NUMBERS = {"bucket_mib": 25, "prefetch": 1, "reshard": 2}
"""Axis of numbers -> the value that stands for others. Degrees have columns, and data-parallel ones always go along."""
_USUAL = {"attention": "sdpa"}
"""What stands in place of a default that is there for comparisons alone."""
_IN_RECIPE = ("optimizer", "compute_precision", "state_precision", "compression")


@functools.cache
def table() -> str:
    """The table in Markdown: a row for each value that is not usual, a column an architecture; and why some fail."""
    names = architectures.names()
    lines = [f"| beside it | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    reasons: dict[str, None] = {}
    for axis, value in _values():
        cells = {name: [degree for degree in _DEGREES if _runs(name, degree, axis, value, reasons)] for name in names}
        shown = " | ".join(", ".join(runs) or "none" for runs in cells.values())
        lines.append(f"| {f'`{axis}={value}`' if axis else 'sdpa and the defaults'} | {shown} |")
    return "\n".join([*lines, "", "What is missing is refused before anything starts:", "", *_listed(reasons)])


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


def _listed(reasons: dict[str, None]) -> list[str]:
    return [f"- {reason}" for reason in reasons] or ["- nothing"]


def _values() -> Iterator[tuple[str, Any]]:
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
            if axis in _NUMBERS:
                yield axis, _NUMBERS[axis]


def _runs(architecture: str, degree: str, axis: str, value: Any, reasons: dict[str, None]) -> bool:
    """Whether some engine, at some stage, runs that value beside that degree; adds to `reasons` why one does not that
    runs it by itself.
    """
    why: dict[str, None] = {}
    for recipe, layout in _layouts(architecture, degree, axis, value):
        if (sentence := standing_refusal(recipe, layout, layout.world_size)) is None:
            return True
        alone = layout.data_parallel_part
        if standing_refusal(recipe, alone, alone.world_size) is None:
            why[sentence] = None
    reasons |= why
    return False


def _layouts(architecture: str, degree: str, axis: str, value: Any) -> Iterator[tuple[Recipe, Layout]]:
    recipe = _recipe(architecture)
    in_recipe = axis in axes_of(Recipe)
    if in_recipe:
        with_value = {"state_precision": {"compute_precision": "bf16"}}.get(axis, {})
        recipe = dataclasses.replace(recipe, **{**with_value, axis: value})
    for rules in engines.registered():
        if degree not in rules.model_parallel:
            continue
        for stage in rules.stages:
            values: dict[str, Any] = {
                "engine": rules.name,
                "zero_stage": stage,
                **_USUAL,
                **_SPLIT_BY[degree],
            }
            values["dp_shard" if stage else "dp_replicate"] = 4
            if axis == "schedule":
                values["virtual"] = 2
            if str(value).startswith("budget"):
                values["compile"] = "block"
            if axis and not in_recipe:
                values[axis] = value
            with contextlib.suppress(ValueError):  # the engine has not the value at this stage
                yield recipe, Layout(**values)


@functools.cache
def _recipe(architecture: str) -> Recipe:
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
