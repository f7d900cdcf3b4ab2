"""The content of a study's own MLflow run: facts shared by all its measurements, and its winner's figures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platform.common.errors import InputError
from platform.common.text import figure
from platform.report.scaling_rows import rows
from platform.report.summary import cost_of, days_of
from platform.study.group import members_of
from platform.study.result.caveats import names_of
from platform.study.result.gate import gate_figures
from platform.study.result.result import StudyResult
from platform.study.study import is_study, read
from platform.tracking.content import (
    as_text,
    figures_of,
    layout_fields,
    recipe_fields,
    rounded,
    short_name,
    varying,
    yes,
)
from trainers.records.journal import StudyHeader
from trainers.records.measurement import Measurement, Outcome

WINNER = "winner"
"""Prefix of the tags that describe the winner."""


def study_tags(header: StudyHeader) -> dict[str, str]:
    return {"role": "study", "study": header.name, "space": header.space, "miniature": yes(header.miniature)}


def study_params(header: StudyHeader) -> dict[str, str]:
    cluster, recipes = header.cluster, header.recipes
    constants = recipe_fields(recipes[0]) if recipes else {}
    values: dict[str, Any] = {
        **{name: value for name, value in constants.items() if name not in varying(recipes)},
        "space": header.space,
        "searcher": header.searcher,
        "search_seed": header.seed,
        "tokens": header.tokens,
        "recipes": "; ".join(recipe.label for recipe in recipes),
        "device": cluster.device,
        "device_memory_gib": rounded(cluster.device_memory_gib),
        "num_nodes": cluster.num_nodes,
        "devices_per_node": cluster.devices_per_node,
        "cluster": cluster.label,
        "cap_gib": header.cap_gib,
        "price_per_gpu_h": header.price_per_gpu_h,
        "commit": header.commit,
        **{f"version_{name}": version for name, version in header.versions.items()},
        "argv": " ".join(header.arguments),
    }
    return {name: as_text(value) for name, value in values.items() if value is not None}


def leader(result: StudyResult, folder: Path) -> tuple[dict[str, str], dict[str, float]]:
    """Returns tags and metrics on the study in `folder` and on its first recipe's winner, if there is one."""
    header = result.header
    num_devices = header.cluster.num_devices
    first = next(iter(result.of_study), None)
    best = first and first.winner
    if first is None or best is None:
        return {}, {"gpus": num_devices}
    days = days_of(best, header.tokens)
    figures: dict[str, float | None] = {
        **figures_of(best, header),
        "gpu_days": None if days is None else days * num_devices,
        "cost": cost_of(best, header.tokens, header.price_per_gpu_h),
        "efficiency_pct": _efficiency_pct(result, folder),
    }
    verdict = first.gate
    figures |= {f"gate_{name}": value for name, value in gate_figures(verdict).items() if name.endswith("error")}
    gate = "not run" if verdict is None else "passed" if verdict.passed else "failed"
    finite = {name: rounded(value) for name, value in figures.items() if value is not None}
    tags = {**_winner_tags(best), "winner_gate": gate, "winner_caveats": names_of(first.caveats)}
    return tags, {"gpus": num_devices, **finite}


def outdated(
    known_tags: Mapping[str, str],
    known_metrics: Mapping[str, float],
    tags: Mapping[str, str],
    metrics: Mapping[str, float],
) -> tuple[list[str], list[str]]:
    """Returns the names of stored tags and metrics of the winner that no longer apply. Older versions wrote `gate`."""
    outdated_tags = [name for name in known_tags if (name.startswith(WINNER) or name == "gate") and name not in tags]
    old = [name for name in known_metrics if name not in metrics and not name.startswith("system/")]
    return outdated_tags, old


def roles(result: StudyResult) -> dict[str, str]:
    """Returns the role of each measurement's run by id: "measurement" if it is shown for its point, else "repeat"."""
    measurements = [
        measurement for measurement in result.history.measurements if measurement.outcome is not Outcome.SKIPPED
    ]
    stands = {point.representative.id for of_recipe in result.measured for point in of_recipe.points}
    return {measurement.id: "measurement" if measurement.id in stands else "repeat" for measurement in measurements}


def _winner_tags(best: Measurement) -> dict[str, str]:
    axes = {**layout_fields(best.layout), "micro_batch": best.batch.micro_batch, "grad_accum": best.batch.grad_accum}
    return {
        WINNER: f"{figure(best.tokens_per_s)} tokens/s: {short_name(best.layout)}, MBS {best.batch.micro_batch}",
        "winner_layout": best.layout.label,
        "winner_measurement_id": best.id,
        **{f"winner_{name}": as_text(value) for name, value in axes.items()},
    }


def _efficiency_pct(result: StudyResult, folder: Path) -> float | None:
    """Returns the scaling efficiency in per cent if the study belongs to a group of several numbers of devices."""
    results: list[StudyResult] = []
    for path in members_of(folder):
        try:
            results += [result] if path == folder else [StudyResult.of(read(path)[0])] if is_study(path) else []
        except InputError:
            continue  # an unreadable journal is left out of the comparison
    this = (result.header.name, result.header.recipes[0])
    row = next((row for row in rows(results) if (row.study, row.recipe) == this), None)
    return None if row is None or row.efficiency is None else 100 * row.efficiency
