"""Writes a study's files beside the journal: the table as CSV and Parquet, pictures, each winner's files.

`layout.json` is read back by `--layout`; the winner's engine may write its own configuration beside it.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platform.common.errors import InputError
from platform.report.image_formats import FORMATS
from platform.report.measurement_table import to_rows, write_csv
from platform.report.pictures import draw
from platform.study.atomic_write import replacing
from platform.study.journal import JOURNAL
from platform.study.parquet import PARQUET, write_parquet
from platform.study.result.result import StudyResult
from trainers.spec import engines
from trainers.spec.batch import BatchPoint
from trainers.spec.codec import from_json, to_json
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

CSV = "measurements.csv"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LayoutFile:
    """The content of a `layout.json`. Only the layout is required, so that one can be written by hand."""

    layout: Layout
    recipe: Recipe | None = None
    batch: BatchPoint | None = None

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
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"the layout file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"the layout file {path} is not JSON: {error}") from error
    except RecursionError as error:
        raise InputError(f"the layout file {path} is nested too deeply to be one") from error
    if not isinstance(data, Mapping) or not isinstance(data.get("layout"), Mapping):  # type: ignore[reportUnknownMemberType]
        raise InputError(f'the layout file {path} must hold an object with "layout", as the search writes it')
    parts: dict[str, Any] = {key: data[key] for key in ("layout", "recipe", "batch") if data.get(key) is not None}  # type: ignore[reportUnknownMemberType]
    try:
        return from_json(LayoutFile, parts)
    except ValueError as error:
        raise InputError(f"the layout file {path} is not valid: {error}") from error


def write_layout(path: Path, recipe: Recipe, layout: Layout, batch: BatchPoint, about: Mapping[str, Any]) -> Path:
    """Writes a `layout.json` that begins with the fields of `about`, which no command reads back; returns its path.

    Raises:
        InputError: it cannot be written.
    """
    return _write(path, {**about, "recipe": to_json(recipe), "layout": to_json(layout), "batch": to_json(batch)})


def write_results(folder: Path, result: StudyResult, pictures_as: str = FORMATS[0]) -> list[Path]:
    """Writes the table, the winners and the pictures into the study's folder, replacing those of an earlier session;
    returns their paths, with those of traces.

    Raises:
        InputError: a file cannot be written.
    """
    header, history = result.header, result.history
    table, parquet = folder / CSV, folder / PARQUET
    rows = to_rows(
        history.measurements, cluster=header.cluster, source=f"study {header.name}", path=str(folder / JOURNAL)
    )
    write_csv(table, rows)
    write_parquet(parquet, history.measurements)
    pictures: list[Path] = []
    for number, each in enumerate(result.of_study):
        pictures += draw(each, header.cluster, folder, _suffix(number, each.recipe), pictures_as)
    traces = [folder / profile.trace for profile in history.profiles if profile.trace]
    return [table, parquet, *_write_winners(folder, result), *pictures, *traces]


def _suffix(number: int, recipe: Recipe) -> str:
    """Returns the ending of a recipe's file names: "" for the first recipe, the recipe's id for others."""
    return f"-{recipe.id}" if number else ""


def _write_winners(folder: Path, result: StudyResult) -> list[Path]:
    """Writes a `layout.json` for each recipe that has a winner, with its engine's own configuration, and removes those
    of an earlier winner.
    """
    written: list[Path] = []
    for number, each in enumerate(result.of_study):
        suffix = _suffix(number, each.recipe)
        layout = folder / f"layout{suffix}.json"
        winner = each.winner
        if winner is None:
            layout.unlink(missing_ok=True)
        else:
            about = {"measurement": winner.id}
            written.append(write_layout(layout, winner.trained_recipe, winner.layout, winner.batch, about))
        for rules in engines.registered():
            if not rules.config_name:
                continue
            path = folder / f"{rules.config_name}{suffix}.json"
            if winner is not None and winner.layout.rules is rules:
                written.append(_write(path, engines.config(winner.trained_recipe, winner.layout, winner.batch)))
            else:
                path.unlink(missing_ok=True)
    return written


def _write(path: Path, data: Mapping[str, Any]) -> Path:
    with replacing(path) as part:
        part.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    return path
