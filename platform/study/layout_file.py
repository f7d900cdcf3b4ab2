"""`layout.json`: a layout with its recipe and batch point, as a search writes it and `--layout` reads it back."""

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
    """The content of a `layout.json`. Only the layout is required, so that one can be written by hand."""

    layout: Layout
    recipe: Recipe | None = None
    batch: BatchPoint | None = None
    caveats: tuple[str, ...] = ()
    """Sentences on how far the layout was compared with others, as the search that wrote it states them."""

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
    """Returns the layout in a file, with its recipe and batch point where they are given.

    Raises:
        InputError: the file cannot be read, or does not hold a valid layout.
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
    """Writes a `layout.json` that begins with the fields of `about`, of which caveats are read back; returns its path.

    Raises:
        InputError: it cannot be written.
    """
    return write_json(path, {**about, "recipe": to_json(recipe), "layout": to_json(layout), "batch": to_json(batch)})


def write_json(path: Path, data: Mapping[str, Any]) -> Path:
    """Writes an indented JSON object; returns its path.

    Raises:
        InputError: it cannot be written.
    """
    with replacing(path) as part:
        part.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    return path
