"""The comparison of several studies by their number of devices, as a table, JSON, CSV and pictures."""

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from platform.common.text import count, figure
from platform.report.days_picture import Days, draw_days
from platform.report.image_formats import FORMATS
from platform.report.json_report import as_json, finite, measurement_json
from platform.report.scaling_rows import ScalingRow, by_recipe, rows
from platform.study.atomic_write import replacing
from platform.study.result.result import StudyResult
from trainers.records.measurement import Measurement

_STEM = "scaling"
_WIDE = 120
"""Width of a terminal from which on layouts stand in the table; in a narrower one they follow below."""


def print_table(rows: Sequence[ScalingRow], device: str, console: Console) -> None:
    """Prints one table for each recipe. `device` is the name of a device."""
    for group in by_recipe(rows):
        first = group[0]
        mark = f"MINIATURE of {first.recipe.model.miniature_of}: " if first.recipe.model.miniature_of else ""
        console.print(f"{mark}{first.recipe.label}", style="bold")
        wide = console.width >= _WIDE
        table = Table(box=None, pad_edge=False, padding=(0, 2 if wide else 1, 0, 0))
        columns = _columns(first, device)
        for title in columns:
            table.add_column(title, justify="right", no_wrap=True, vertical="top")
        if wide:
            table.add_column("fastest layout", overflow="fold")
        for row in group:
            table.add_row(*(cell(row) for cell in columns.values()), *([_winner(row)] if wide else []))
        console.print(table)
        for row in () if wide else group:
            console.print(f"Fastest on {row.num_devices}: {_winner(row)}")
        for line in _notes(group):
            console.print(line)
        console.print()


def _winner(row: ScalingRow) -> str:
    """Returns the fastest layout with its batch, or why there is none."""
    if row.best is None:
        return row.reason
    batch = row.best.batch
    caveats = f" ({row.caveats})" if row.caveats else ""
    return f"{row.best.layout.label}, micro-batch {batch.micro_batch} x {batch.grad_accum}{caveats}"


def _notes(group: Sequence[ScalingRow]) -> list[str]:
    """Returns notes on rows that are not comparable at once, since figures of different standing are in one table."""
    won_rows = [row for row in group if row.best is not None]
    notes: list[str] = []
    if any(row.is_derived for row in won_rows):
        notes.append("~ derived from the parts of a step with fewer micro-steps")
    if any(not row.runs for row in won_rows):
        notes.append("runs: in fresh processes; - is a figure of the search alone")
    if any(not row.gate for row in won_rows):
        notes.append("gate: - is a winner whose loss and gradient norms were not compared with a plain layout's")
    return notes


def _columns(first: ScalingRow, device: str) -> dict[str, Callable[[ScalingRow], str]]:
    """Returns titles and cells of a recipe's table; without days and cost for a miniature."""

    def derived(value: float | None, row: ScalingRow) -> str:
        return "-" if value is None or row.best is None else figure(value) + "~" * row.best.step_time_derived

    planned = first.recipe.model.miniature_of is None
    days: dict[str, Callable[[ScalingRow], str]] = {
        f"days for\n{count(first.tokens)}": lambda row: derived(row.days, row),
        f"{device}-\ndays": lambda row: derived(row.device_days, row),
    }
    coverage_columns: dict[str, Callable[[ScalingRow], str]] = {
        "layouts\ntried": lambda row: f"{row.coverage.num_tried} of {row.coverage.num_layouts}" if row.coverage else "-"
    }
    cost: dict[str, Callable[[ScalingRow], str]] = {"cost": lambda row: derived(row.cost, row)}
    return {
        f"{device}s": lambda row: str(row.num_devices),
        **(days if planned else {}),
        "tokens/s": lambda row: derived(row.tokens_per_s, row),
        f"tokens/s\n/{device}": lambda row: derived(row.tokens_per_s and row.tokens_per_s / row.num_devices, row),
        "efficiency": lambda row: "-" if row.efficiency is None else f"{row.efficiency:.0%}",
        **(coverage_columns if first.coverage else {}),
        "runs": lambda row: str(row.runs or "-"),
        "gate": lambda row: row.gate or "-",
        **(cost if planned and first.price_per_gpu_h is not None else {}),
    }


def to_object(rows: Sequence[ScalingRow], results: Iterable[StudyResult]) -> dict[str, Any]:
    """Returns the object that `--json` prints: a row of `scaling` for each recipe and number of devices, and each
    study's own object.
    """
    return finite(
        {
            "scaling": [
                {
                    "gpus": row.num_devices,
                    "recipe": row.recipe.id,
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
    """Writes the rows as CSV and, for each recipe that has a winner, as a picture (`form`); returns the paths.

    Raises:
        InputError: a file cannot be written.
    """
    written = [folder / f"{_STEM}.csv"]
    with replacing(written[0]) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_CSV)
        writer.writerows(_csv(row) for row in rows)
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


_CSV = (
    *("gpus", "recipe", "layout", "micro_batch", "grad_accum", "tokens_per_s", "tokens_per_s_per_gpu", "tokens"),
    *("days", "gpu_days", "efficiency", "cost", "reason", "study", "runs", "gate", "caveats"),
)


def _csv(row: ScalingRow) -> list[Any]:
    best = row.best
    point = ["", "", ""] if best is None else [best.layout.label, best.batch.micro_batch, best.batch.grad_accum]
    rate = row.tokens_per_s / row.num_devices if row.tokens_per_s else None
    figures = [row.tokens_per_s, rate, row.tokens, row.days, row.device_days, row.efficiency, row.cost]
    return [row.num_devices, row.recipe.label, *point, *figures, row.reason, row.study, row.runs, row.gate, row.caveats]


def _point(row: ScalingRow, best: Measurement) -> Days:
    assert row.days is not None and best.step_time_s
    low, high = best.step_time_low_s or best.step_time_s, best.step_time_high_s or best.step_time_s
    share = row.days / best.step_time_s
    return Days(num_devices=row.num_devices, days=row.days, low_days=low * share, high_days=high * share)


def show(
    folder: Path | None, results: Sequence[StudyResult], *, as_object: bool, width: int, form: str = FORMATS[0]
) -> None:
    """Writes the files of the studies' comparison into `folder` (None: nowhere) and prints it: tables and paths, or the
    JSON object alone.
    """
    table_rows = rows(results)
    device = results[0].header.cluster.device_word
    files = write_files(folder, table_rows, device, form) if folder else []
    if as_object:
        print(json.dumps(to_object(table_rows, results), allow_nan=False))
        return
    print_table(table_rows, device, Console(width=width, highlight=False, markup=False, emoji=False))
    if files:
        print("Files:")
    for path in files:
        print(f"  {path}")
