"""Builds the object that `--json` prints."""

import dataclasses
import math
from typing import Any

from platform.report.disturbance import unresolved_json
from platform.report.profile import profile_json
from platform.report.summary import cost_of, days_of
from platform.report.untried import coverage_json
from platform.study.result.gate import gate_figures
from platform.study.result.ranking import PointRuns
from platform.study.result.result import RecipeResult, StudyResult
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.codec import to_json
from trainers.spec.recipe import Recipe


def as_json(result: StudyResult) -> dict[str, Any]:
    """Returns the object that `--json` prints. Figures that are not finite become null, which every JSON reader
    accepts.

    `recipe`, `winner`, `tie` and the other keys of a result are those of the space's first recipe; `recipes` has them
    for each. `tie` holds the ids of the points tied with the winner, null if no point has two runs paired with the
    winner's. `winner` is null if `unresolved` holds points among which the fastest is not resolved.
    """
    header, history = result.header, result.history

    each_recipe = [_result_json(recipe_result, result) for recipe_result in result.of_study]
    measured = [measurement for measurement in history.measurements if measurement.outcome is not Outcome.SKIPPED]
    skipped = [measurement for measurement in history.measurements if measurement.outcome is Outcome.SKIPPED]
    return finite(
        {
            "study": header.name,
            "space": header.space,
            **(each_recipe[0] if each_recipe else _result_json(None, result)),
            "miniature": header.miniature,
            "cluster": {**to_json(header.cluster), "label": header.cluster.label},
            "tokens": header.tokens,
            "price_per_gpu_h": header.price_per_gpu_h,
            "measurements": [
                measurement_json(measurement, header.tokens, header.price_per_gpu_h) for measurement in measured
            ],
            "skipped": [
                {
                    "recipe": measurement.recipe.id,
                    "layout": _layout_json(measurement),
                    "batch": to_json(measurement.batch),
                    "reason": measurement.reason,
                }
                for measurement in skipped
            ],
            "recipes": each_recipe,
            "wall_s": history.wall_s,
            "gpu_s": history.gpu_s,
            "end": to_json(history.end),
        }
    )


def _result_json(of_recipe: RecipeResult | None, result: StudyResult) -> dict[str, Any]:
    """Returns the result of one recipe; the same keys with empty values if the study has none."""
    header, best = result.header, of_recipe and of_recipe.winner
    price = of_recipe and result.float8_price(of_recipe)
    return {
        "recipe": of_recipe and _recipe_json(of_recipe.recipe),
        "winner": best and measurement_json(best, header.tokens, header.price_per_gpu_h),
        "caveats": [dataclasses.asdict(caveat) for caveat in (of_recipe.caveats if of_recipe else ())],
        "unresolved": of_recipe and unresolved_json(of_recipe.unresolved),
        **coverage_json(of_recipe and of_recipe.coverage),
        **_evidence_json(of_recipe),
        "float8_price": price and dataclasses.asdict(price),
        "profile": of_recipe and profile_json(of_recipe, header),
    }


def _evidence_json(result: RecipeResult | None) -> dict[str, Any]:
    compared = result.comparisons if result and result.winner else ()
    in_pairs = [comparison for comparison in compared if comparison.num_pairs > 1]
    verdict = result and result.gate
    return {
        "tie": [comparison.other.id for comparison in in_pairs if comparison.resolution == "tie"] if in_pairs else None,
        "comparisons": [
            {
                "other": comparison.other.id,
                "ratio": comparison.ratio,
                "low": comparison.low,
                "high": comparison.high,
                "resolution": comparison.resolution,
                "runs_to_resolve": comparison.runs_to_resolve,
            }
            for comparison in compared
        ],
        "runs": [_runs_json(point) for point in (result.points if result else ()) if point.runs],
        "gate": None
        if verdict is None
        else {**dataclasses.asdict(verdict), "layout": verdict.layout.id, "reference": verdict.reference.id}
        | {**gate_figures(verdict), "passed": verdict.passed},
    }


def _runs_json(point: PointRuns) -> dict[str, Any]:
    main_run = point.main_run
    return {
        "layout": main_run.layout.id,
        "batch": to_json(main_run.batch),
        "tokens_per_s": [run.tokens_per_s for run in point.runs],
        "median_tokens_per_s": point.median_tokens_per_s,
        "std_tokens_per_s": point.std_tokens_per_s,
        "interval_tokens_per_s": point.interval_tokens_per_s,
    }


def _recipe_json(recipe: Recipe) -> dict[str, Any]:
    fields = {name: value for name, value in to_json(recipe).items() if name not in recipe.unknown}
    return {"id": recipe.id, "label": recipe.label, **({"dropout": 0.0} if recipe.has_model else {}), **fields}


def _layout_json(measurement: Measurement) -> dict[str, Any]:
    layout = measurement.layout
    fields = {name: value for name, value in to_json(layout).items() if name not in layout.unknown}
    return {"id": layout.id, "label": layout.label, **fields}


def measurement_json(measurement: Measurement, tokens: float, price_per_gpu_h: float | None) -> dict[str, Any]:
    """Returns a measurement for `--json`, with days and cost of the token budget."""
    return {
        "id": measurement.id,
        **to_json(measurement),
        "recipe": measurement.recipe.id,
        "layout": _layout_json(measurement),
        "num_devices": measurement.num_devices,
        "global_batch": measurement.global_batch,
        "miniature": measurement.miniature,
        "days": days_of(measurement, tokens),
        "cost": cost_of(measurement, tokens, price_per_gpu_h),
    }


def finite(value: Any) -> Any:
    """Returns `value` with None in place of every figure that is not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}  # type: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [finite(item) for item in value]  # type: ignore[reportUnknownVariableType]
    return value
