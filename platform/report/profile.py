"""Compares where the winner's step goes, as profiled, with the cost model's prediction."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from platform.cost_model.step_time import StepTime
from platform.report.forecast import forecaster_of
from platform.study.result.result import RecipeResult, StudyResult
from trainers.records.journal import Profile, StudyHeader
from trainers.records.measurement import Measurement
from trainers.spec.codec import to_json

EXPOSED = "communication, exposed"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepPart:
    """One line of the table. Seconds of a step."""

    name: str
    measured_s: float
    predicted_s: float | None = None
    """The cost model's seconds; None where it has no such part, or does not know the device."""
    parent: str = ""
    """The line above of which it is a part; "" for a part of the step."""
    beside: bool = False
    """Whether it overlaps the other parts, and so does not count in their sum."""


def parts_of(profile: Profile, predicted: StepTime | None = None) -> list[StepPart]:
    """Returns the lines, in the table's order; `predicted` has one row."""
    sums = profile.sums

    def model(*names: str) -> float | None:
        return None if predicted is None else sum(float(getattr(predicted, name)[0]) for name in names)

    by_axis = (
        StepPart(
            name="tensor parallelism", measured_s=sums.exposed_tp_s, predicted_s=model("tensor_s"), parent=EXPOSED
        ),
        StepPart(name="context parallelism", measured_s=sums.exposed_cp_s, parent=EXPOSED),
        StepPart(
            name="pipeline, its bubble included",
            measured_s=sums.exposed_pp_s,
            predicted_s=model("pipeline_s", "bubble_s"),
            parent=EXPOSED,
        ),
        StepPart(name="data parallelism", measured_s=sums.exposed_dp_s, predicted_s=model("data_s"), parent=EXPOSED),
    )
    idle = "idle" if profile.device_kind == "cuda" else "idle (Python, waiting)"
    return [
        StepPart(name="compute", measured_s=sums.compute_s, predicted_s=model("compute_s", "attention_s")),
        StepPart(name="matmul", measured_s=sums.matmul_s, parent="compute"),
        StepPart(name="attention", measured_s=sums.attention_s, parent="compute"),
        StepPart(name="loss, with the head", measured_s=sums.loss_s, parent="compute"),
        StepPart(name="other (norms, activations, copies)", measured_s=sums.other_s, parent="compute"),
        StepPart(name="optimizer", measured_s=sums.optimizer_s, predicted_s=model("optimizer_s")),
        StepPart(
            name=EXPOSED,
            measured_s=sums.communication_exposed_s,
            predicted_s=model("tensor_s", "pipeline_s", "bubble_s", "data_s"),
        ),
        *(part for part in by_axis if part.measured_s),
        StepPart(name=idle, measured_s=sums.idle_s, predicted_s=model("host_s")),
        StepPart(name="a step", measured_s=sums.wall_s, predicted_s=model("total_s")),
        StepPart(name="communication, hidden", measured_s=sums.communication_hidden_s, beside=True),
    ]


def profiled(result: StudyResult) -> Iterator[tuple[Measurement, Profile]]:
    """Yields each recipe's winner that was profiled, with its profile."""
    for recipe_result, best in result.winners:
        if recipe_result.profile is not None:
            yield best, recipe_result.profile


def predicted_step(header: StudyHeader, best: Measurement) -> StepTime | None:
    """Returns the cost model's prediction of the winner's step; None where it does not know the device."""
    prediction = forecaster_of(header).of([best])
    return None if prediction is None else prediction.step


def profile_rows(result: StudyResult) -> list[Mapping[str, Any]]:
    """Returns the same as plain rows, for MLflow's pages."""
    return [
        {
            "part": part.name,
            "of": part.parent,
            "ms": 1e3 * part.measured_s,
            "share": part.measured_s / max(profile.sums.wall_s, 1e-12),
            "predicted_ms": None if part.predicted_s is None else 1e3 * part.predicted_s,
            "layout": profile.layout.label,
            "recipe": profile.recipe.id,
            "trace": profile.trace,
        }
        for best, profile in profiled(result)
        for part in parts_of(profile, predicted_step(result.header, best))
    ]


def profile_json(of_recipe: RecipeResult, header: StudyHeader) -> dict[str, Any] | None:
    """Returns the winner's profile as `--json` shows it; None where it has none."""
    best, profile = of_recipe.winner, of_recipe.profile
    if best is None or profile is None:
        return None
    predicted = predicted_step(header, best)
    return {
        **to_json(profile.sums),
        "wall_s": profile.sums.wall_s,
        "rank": profile.rank,
        "num_steps": profile.num_steps,
        "measured_grad_accum": profile.measured_grad_accum,
        "trace": profile.trace,
        "predicted": None
        if predicted is None
        else {field.name: float(getattr(predicted, field.name)[0]) for field in dataclasses.fields(predicted)},
    }
