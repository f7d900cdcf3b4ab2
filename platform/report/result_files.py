"""Writes a study's files beside its journal: the table as CSV and Parquet, pictures, and each winner's files.

The files of a winner are its `layout.json`, its command, or its engine's own configuration.
"""

from pathlib import Path

from platform.report.image_formats import FORMATS
from platform.report.measurement_table import write_table
from platform.report.pictures import draw
from platform.report.summary import command_of
from platform.study.atomic_write import replacing
from platform.study.journal import JOURNAL
from platform.study.layout_file import write_json, write_layout
from platform.study.parquet import PARQUET, write_parquet
from platform.study.result.result import StudyResult
from trainers.engines.create import engine_config
from trainers.spec import engines
from trainers.spec.recipe import Recipe

CSV = "measurements.csv"


def write_results(folder: Path, result: StudyResult, pictures_as: str = FORMATS[0]) -> list[Path]:
    """Writes the table, the winners' files and the pictures into the study's folder; replaces those of earlier
    sessions.

    Returns their paths and those of traces.

    Raises:
        InputError: a file cannot be written.
    """
    header, history = result.header, result.history
    table, parquet = folder / CSV, folder / PARQUET
    write_table(table, result, folder / JOURNAL)
    write_parquet(parquet, history.measurements)
    pictures: list[Path] = []
    for number, recipe_result in enumerate(result.of_study):
        pictures += draw(recipe_result, header.cluster, folder, _suffix(number, recipe_result.recipe), pictures_as)
    traces = [folder / profile.trace for profile in history.profiles if profile.trace]
    return [table, parquet, *_write_winners(folder, result), *pictures, *traces]


def _suffix(number: int, recipe: Recipe) -> str:
    """Returns the ending of a recipe's file names: "" for the first recipe, else "-ID"."""
    return f"-{recipe.id}" if number else ""


def _write_winners(folder: Path, result: StudyResult) -> list[Path]:
    """Writes each winner's `layout.json` (or command) and engine configuration; removes those of an earlier winner."""
    written: list[Path] = []
    for number, recipe_result in enumerate(result.of_study):
        suffix = _suffix(number, recipe_result.recipe)
        layout, command = folder / f"layout{suffix}.json", folder / f"command{suffix}.txt"
        winner = recipe_result.winner
        if winner is None:
            layout.unlink(missing_ok=True)
            command.unlink(missing_ok=True)
        elif words := command_of(winner):
            with replacing(command) as part:
                part.write_text(f"{words}\n", encoding="utf-8", errors="surrogateescape")
            written.append(command)
        else:
            about = {"measurement": winner.id, "caveats": [caveat.sentence for caveat in recipe_result.caveats]}
            written.append(write_layout(layout, winner.trained_recipe, winner.layout, winner.batch, about))
        for rules in engines.registered():
            if not rules.config_name:
                continue
            path = folder / f"{rules.config_name}{suffix}.json"
            if winner is not None and winner.layout.rules is rules:
                written.append(write_json(path, engine_config(winner.trained_recipe, winner.layout, winner.batch)))
            else:
                path.unlink(missing_ok=True)
    return written
