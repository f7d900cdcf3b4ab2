"""Compares the profiled parts of the winner's step with the cost model's prediction."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from platform.common.text import figure
from platform.cost_model.step_time import StepTime
from platform.report.forecast import forecaster_of
from platform.report.table import Column, Table, TablePart, records
from platform.study.result.result import RecipeResult, StudyResult
from trainers.records.journal import Profile, StudyHeader
from trainers.records.measurement import Measurement
from trainers.spec.codec import to_json

EXPOSED = "communication, exposed"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepPart:
    """One line of the table; seconds are those of one step."""

    name: str
    measured_s: float
    predicted_s: float | None = None
    """Predicted seconds; None if the cost model has no such part or does not know the device."""
    parent: str = ""
    """Name of the line that the part belongs to; "" for a part of the step itself."""
    beside: bool = False
    """Whether the part overlaps other parts, and so does not count in their sum."""
    whole_s: float = 0.0
    """Measured seconds of the whole step."""
    predicted_whole_s: float = 0.0
    """Predicted seconds of the whole step; 0 without a prediction."""

    @property
    def label(self) -> str:
        """The name, marked if it is a part of another line or overlaps other parts."""
        return f"{'- ' if self.parent else 'beside: ' if self.beside else ''}{self.name}"

    @property
    def share(self) -> float:
        return self.measured_s / max(self.whole_s, 1e-12)

    @property
    def predicted_ms(self) -> float | None:
        return None if self.predicted_s is None else 1e3 * self.predicted_s

    @property
    def predicted_share(self) -> float | None:
        return None if self.predicted_s is None else self.predicted_s / max(self.predicted_whole_s, 1e-12)


_COLUMNS: tuple[Column[StepPart], ...] = (
    Column(title="part", value=lambda part: part.label, left=True),
    Column(title="measured\nms", value=lambda part: 1e3 * part.measured_s),
    Column(title="of the\nstep", value=lambda part: part.share, shown="{:.1%}".format),
    Column(title="predicted\nms", value=lambda part: part.predicted_ms),
    Column(title="of the\nstep", value=lambda part: part.predicted_share, shown="{:.1%}".format),
)
_RECORDED: tuple[Column[StepPart], ...] = (
    Column(key="part", value=lambda part: part.name),
    Column(key="of", value=lambda part: part.parent),
    Column(key="ms", value=lambda part: 1e3 * part.measured_s),
    Column(key="share", value=lambda part: part.share),
    Column(key="predicted_ms", value=lambda part: part.predicted_ms),
)


def parts_of(profile: Profile, predicted: StepTime | None = None) -> list[StepPart]:
    """Returns the table's lines in order; `predicted` has one row."""
    sums = profile.sums

    def model(*names: str) -> float | None:
        return None if predicted is None else sum(float(getattr(predicted, name)[0]) for name in names)

    by_axis = (
        StepPart(
            name="tensor parallelism", measured_s=sums.exposed_tp_s, predicted_s=model("tensor_s"), parent=EXPOSED
        ),
        StepPart(name="context parallelism", measured_s=sums.exposed_cp_s, parent=EXPOSED),
        StepPart(name="expert parallelism", measured_s=sums.exposed_ep_s, parent=EXPOSED),
        StepPart(
            name="pipeline, its bubble included",
            measured_s=sums.exposed_pp_s,
            predicted_s=model("pipeline_s", "bubble_s"),
            parent=EXPOSED,
        ),
        StepPart(name="data parallelism", measured_s=sums.exposed_dp_s, predicted_s=model("data_s"), parent=EXPOSED),
    )
    idle = "idle" if profile.device_kind == "cuda" else "idle (Python, waiting)"
    parts = [
        StepPart(name="compute", measured_s=sums.compute_s, predicted_s=model("compute_s", "attention_s")),
        StepPart(name="matmul", measured_s=sums.matmul_s, parent="compute"),
        StepPart(name="attention", measured_s=sums.attention_s, parent="compute"),
        StepPart(name="loss, with the head", measured_s=sums.loss_s, parent="compute"),
        StepPart(name="other (norms, activations, copies)", measured_s=sums.other_s, parent="compute"),
        StepPart(name="optimizer", measured_s=sums.optimizer_s, predicted_s=model("optimizer_s")),
        StepPart(
            name=EXPOSED,
            measured_s=sums.communication_exposed_s,
            predicted_s=model("tensor_s", "exchanges_s", "pipeline_s", "bubble_s", "data_s"),
        ),
        *(part for part in by_axis if part.measured_s),
        StepPart(name=idle, measured_s=sums.idle_s, predicted_s=model("host_s")),
        StepPart(name="a step", measured_s=sums.wall_s, predicted_s=model("total_s")),
        StepPart(name="communication, hidden", measured_s=sums.communication_hidden_s, beside=True),
    ]
    predicted_s = 0.0 if predicted is None else float(predicted.total_s[0])
    return [dataclasses.replace(part, whole_s=sums.wall_s, predicted_whole_s=predicted_s) for part in parts]


def profiled(result: StudyResult) -> Iterator[tuple[Measurement, Profile]]:
    for recipe_result, best in result.winners:
        if recipe_result.profile is not None:
            yield best, recipe_result.profile


def predicted_step(header: StudyHeader, best: Measurement) -> StepTime | None:
    """Returns the predicted step of the winner; None if the cost model does not know the device."""
    prediction = forecaster_of(header).of([best])
    return None if prediction is None else prediction.step


def profile_parts(result: StudyResult) -> Iterator[TablePart]:
    """Yields a table for each profiled winner."""
    for best, profile in profiled(result):
        point = f"{profile.layout.label}, micro-batch {profile.batch.micro_batch} x {profile.batch.grad_accum}"
        rows = parts_of(profile, predicted_step(result.header, best))
        table = Table(columns=_COLUMNS, rows=rows, style=lambda part: "bold" if part.name == "a step" else "")
        yield TablePart(
            heads=("Where its step goes", f"{point}; {best.recipe.label}"),
            table=table.filled,
            notes=list(_notes(best, profile)),
        )


def _notes(best: Measurement, profile: Profile) -> Iterator[str]:
    method = f"Mean of {profile.num_steps} steps on rank {profile.rank} under torch.profiler"
    if profile.measured_grad_accum != profile.batch.grad_accum:
        method += f", from {profile.measured_grad_accum} micro-steps each"
    if best.step_time_s:
        method += f"; timed without it a step took {figure(1e3 * best.step_time_s)} ms"
    yield f"{method}."
    if profile.device_kind == "cpu":
        yield "On a CPU these are the operations of the worker's threads; gloo and the other workers share its cores."
    if profile.trace:
        yield f"Trace: {profile.trace} ({profile.trace_mib:.1f} MiB), to be opened in https://ui.perfetto.dev"
    else:
        yield f"The trace had {profile.trace_mib:.0f} MiB and was not kept."


def profile_rows(result: StudyResult) -> list[Mapping[str, Any]]:
    """Returns the same as plain rows for MLflow's pages."""
    return [
        {**record, "layout": profile.layout.label, "recipe": profile.recipe.id, "trace": profile.trace}
        for best, profile in profiled(result)
        for record in records(_RECORDED, parts_of(profile, predicted_step(result.header, best)))
    ]


def profile_json(of_recipe: RecipeResult, header: StudyHeader) -> dict[str, Any] | None:
    """Returns the winner's profile for `--json`; None if it has none."""
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
