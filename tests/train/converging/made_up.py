"""A comparison of invented trainings, in folders and in MLflow. Nothing here was trained."""

import dataclasses
from pathlib import Path

from platform.train.converging.comparison_runs import ComparisonFacts
from platform.train.converging.curves import Curves, read_curves
from platform.train.converging.verdict import StrategyVerdict, compare, sentences
from platform.train.mlflow_run import TrainingRun
from tests.train.converging.test_verdict import STEP, records
from tests.training.values import RECIPE, plan
from trainers.records.training_files import RECORDS
from trainers.records.training_lines import write

COMPARISON_ID = "0123456789ab"
STRATEGIES = {"plain": 1.0, "grad_accum=256": 1.4}
"""Factor on the tokens that the first strategy needs, by strategy."""
STEPS = 400
"""A number of steps above the 320 points per series that MLflow draws."""


def trainings(folder: Path) -> dict[str, dict[int, Curves]]:
    """Returns the curves of each strategy of `STRATEGIES`, with two seeds each."""
    curves_by_name: dict[str, dict[int, Curves]] = {}
    for name, scale in STRATEGIES.items():
        for seed in (0, 1):
            place = folder / name / f"seed-{seed}"
            place.mkdir(parents=True)
            step_s, floor = 3.6 / scale**2 + 0.1 * seed, 2.0 + 0.01 * seed
            for record in records(step_s=step_s, tokens_scale=10 * scale, floor=floor, steps=STEPS):
                write(place / RECORDS, record)
            curves_by_name.setdefault(name, {})[seed] = read_curves(place)
    return curves_by_name


def compared(folder: Path) -> tuple[ComparisonFacts, StrategyVerdict]:
    """Returns the comparison of trainings created in `folder`, and its verdict."""
    verdict = compare(trainings(folder), STEPS * STEP)
    comparison = ComparisonFacts(
        id=COMPARISON_ID,
        name="compared",
        model=RECIPE.model.name,
        target_loss=verdict.target_loss,
        lines=tuple(sentences(verdict)),
        files=(),
    )
    return comparison, verdict


def mirrored(folder: Path, uri: str) -> tuple[ComparisonFacts, StrategyVerdict]:
    """Writes each training's run to MLflow, and returns the results of `compared`."""
    comparison, verdict = compared(folder)
    for name, marks_by_seed in verdict.marks.items():
        for seed in marks_by_seed:
            TrainingRun(
                plan(recipe=dataclasses.replace(RECIPE, seed=seed)),
                uri=uri,
                name=f"{name}, seed {seed}",
                training_id=f"{name}-{seed}",
                records=folder / name / f"seed-{seed}" / RECORDS,
                tags={"comparison": COMPARISON_ID, "strategy": name},
            ).close("FINISHED", limit_s=600)
    return comparison, verdict
