"""Compares several studies by their number of devices, as a table, JSON, CSV and pictures."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from platform.common.json_form import print_json
from platform.report.console import laid_out
from platform.report.days_picture import Days, draw_days
from platform.report.image_formats import FORMATS
from platform.report.json_report import as_json, finite, measurement_json
from platform.report.scaling_rows import (
    RECORDED,
    ScalingRow,
    by_recipe,
    models_table,
    rows,
    scaling_notes,
    scaling_table,
)
from platform.report.table import write_csv
from platform.study.result.result import StudyResult
from trainers.records.measurement import Measurement

_STEM = "scaling"
_WIDE = 120
"""Terminal width from which layouts are a column of the table; on narrower ones they are listed below it."""


def print_table(rows: Sequence[ScalingRow], device: str, console: Console) -> None:
    """Prints one table for each recipe, or one of all where each has one row. `device` is the name of a device."""
    groups, wide = by_recipe(rows), console.width >= _WIDE
    if len({row.recipe.model for row in rows}) > 1 and len(groups) == len(rows):
        table = models_table(rows, device)
        if not wide:
            table = dataclasses.replace(table, columns=table.columns[:-1])
        console.print(laid_out(table, gap=2 if wide else 1, ruled=False))
        below = () if wide else (f"Fastest of {row.recipe.label}: {row.winner_or_reason}" for row in rows)
        for line in (*below, "Each row is a model of its own: they are not ranked.", *scaling_notes(rows), ""):
            console.print(line)
        return
    for group in groups:
        recipe = group[0].recipe
        mark = f"MINIATURE of {recipe.miniature_of}: " if recipe.miniature_of else ""
        console.print(f"{mark}{recipe.label}", style="bold")
        table = scaling_table(group, device)
        if not wide:
            table = dataclasses.replace(table, columns=table.columns[:-1])
        console.print(laid_out(table, gap=2 if wide else 1, ruled=False))
        below = () if wide else (f"Fastest on {row.num_devices}: {row.winner_or_reason}" for row in group)
        for line in (*below, *scaling_notes(group), ""):
            console.print(line)


def to_object(rows: Sequence[ScalingRow], results: Iterable[StudyResult]) -> dict[str, Any]:
    """Returns the object of `--json`: a row for each recipe and number of devices, and each study's own object."""
    return finite(
        {
            "scaling": [
                {
                    "gpus": row.num_devices,
                    "recipe": row.recipe.id,
                    "label": row.recipe.label,
                    "study": row.study,
                    "winner": None if row.best is None else measurement_json(row.best, row.tokens, row.price_per_gpu_h),
                    "tokens_per_s": row.tokens_per_s,
                    "days": row.days,
                    "gpu_days": row.device_days,
                    "efficiency": row.efficiency,
                    "runs": row.runs,
                    "layouts_tried": row.coverage and row.coverage.num_tried,
                    "layouts_planned": row.coverage and row.coverage.num_layouts,
                    "gate": row.gate or None,
                    "caveats": row.caveats,
                    "cost": row.cost,
                    "reason": row.reason,
                }
                for row in rows
            ],
            "studies": [as_json(result) for result in results],
        }
    )


def write_files(folder: Path, rows: Sequence[ScalingRow], device: str, form: str = FORMATS[0]) -> list[Path]:
    """Writes the rows as CSV, and a picture (`form`) for each recipe that has a winner; returns the paths.

    Raises:
        InputError: a file cannot be written.
    """
    written = [folder / f"{_STEM}.csv"]
    write_csv(written[0], RECORDED, rows)
    for number, group in enumerate(by_recipe(rows)):
        picture = folder / (f"{_STEM}-{group[0].recipe.id}.{form}" if number else f"{_STEM}.{form}")
        points = [_point(row, row.best) for row in group if row.best is not None and row.days and row.best.step_time_s]
        if not points:
            picture.unlink(missing_ok=True)
            continue
        notes = {
            "no winner on": [row for row in group if row.best is None],
            "steps derived from fewer micro-steps on": [row for row in group if row.is_derived],
            "no numerics gate on": [row for row in group if row.best is not None and not row.gate],
        }
        draw_days(
            points,
            picture,
            title=f"{group[0].recipe.label}\n{group[0].tokens / 1e9:,.4g} billion tokens; measured",
            line="fastest layout measured",
            band="quartiles of its step time",
            devices=device,
            note="; ".join(
                f"{words} {', '.join(str(row.num_devices) for row in on)}" for words, on in notes.items() if on
            ),
        )
        written.append(picture)
    return written


def _point(row: ScalingRow, best: Measurement) -> Days:
    assert row.days is not None and best.step_time_s
    low, high = best.step_time_low_s or best.step_time_s, best.step_time_high_s or best.step_time_s
    share = row.days / best.step_time_s
    return Days(num_devices=row.num_devices, days=row.days, low_days=low * share, high_days=high * share)


def show(
    folder: Path | None, results: Sequence[StudyResult], *, as_object: bool, width: int, form: str = FORMATS[0]
) -> None:
    """Writes the comparison's files into `folder` (None: nowhere); prints tables and paths, or only the JSON object."""
    table_rows = rows(results)
    device = results[0].header.cluster.device_word
    files = write_files(folder, table_rows, device, form) if folder else []
    if as_object:
        print_json(to_object(table_rows, results))
        return
    print_table(table_rows, device, Console(width=width, highlight=False, markup=False, emoji=False))
    if files:
        print("Files:")
    for path in files:
        print(f"  {path}")
