"""Reads and writes `layout.json`: a layout with its recipe and batch point. A search writes it, `--layout` reads it."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platform.common.errors import InputError
from platform.study.atomic_write import replacing
from trainers.records.plain_files import read_json
from trainers.spec.batch import BatchPoint
from trainers.spec.codec import from_json, to_json
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LayoutFile:
    """The content of a `layout.json`. Only `layout` is required, so that a file can be written by hand."""

    layout: Layout
    recipe: Recipe | None = None
    batch: BatchPoint | None = None
    caveats: tuple[str, ...] = ()
    """Sentences on the limits of the comparison that chose the layout, written by its search."""

    def __post_init__(self) -> None:
        if self.recipe is not None and self.batch is not None:
            expected_batch = BatchPoint.of(self.recipe, self.layout, self.batch.micro_batch)
            if expected_batch != self.batch:
                raise ValueError(
                    f"micro_batch {self.batch.micro_batch} on {self.layout.data_parallel} data-parallel ranks needs"
                    f" grad_accum {expected_batch.grad_accum} for global batch {self.recipe.global_batch},"
                    f" got {self.batch.grad_accum}"
                )


def read_layout(path: Path) -> LayoutFile:
    """Returns the layout in a file, with its recipe and batch point if present.

    Raises:
        InputError: the file cannot be read, holds no valid layout, or holds one of a user's own command or function.
    """
    try:
        data = read_json(path, links=True)
    except InputError as error:
        raise InputError(f"the layout file {error}") from error
    if not isinstance(data.get("layout"), Mapping):
        raise InputError(f'the layout file {path} must hold an object with "layout", as the search writes it')
    keys = ("layout", "recipe", "batch", "caveats")
    parts: dict[str, Any] = {key: data[key] for key in keys if data.get(key) is not None}
    try:
        file = from_json(LayoutFile, parts)
    except ValueError as error:
        raise InputError(f"the layout file {path} is not valid: {error}") from error
    if file.recipe is not None and not file.recipe.has_model:
        raise InputError(
            f"the layout file {path} is of a training of the user's own, which no layout file runs: search it by"
            " --build or behind --"
        )
    return file


def write_layout(path: Path, recipe: Recipe, layout: Layout, batch: BatchPoint, about: Mapping[str, Any]) -> Path:
    """Writes a `layout.json` that begins with the fields of `about` and returns its path. Only its caveats are read
    back.

    Raises:
        InputError: the file cannot be written.
    """
    return write_json(path, {**about, "recipe": to_json(recipe), "layout": to_json(layout), "batch": to_json(batch)})


def write_json(path: Path, data: Mapping[str, Any]) -> Path:
    """Writes an indented JSON object atomically and returns its path.

    Raises:
        InputError: the file cannot be written.
    """
    with replacing(path) as part:
        part.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    return path
