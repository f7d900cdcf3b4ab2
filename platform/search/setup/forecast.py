"""The expected time of trials before any has run: predicted steps, known seconds of starts and compilation."""

import dataclasses
import math
from collections.abc import Mapping

from platform.search.setup.planned_line import planned
from platform.search.setup.planning import SearchPlan
from platform.study.history import LATER_START
from trainers.measuring.ladder import timed_accum
from trainers.records.job import Timing
from trainers.records.journal import PlannedLayout
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

FIRST_START_S = 29.0
"""Seconds that a study's first trial takes beyond its steps: 16.1 to 29.1 in 23 studies on one to four H100 or H200
(docs/lab/measuring.csv#starts-on-gpus.1).
"""
COMPILE_S = {"none": 3.0, "block": 19.0}
"""Seconds of a trial's first step beyond the next by the layout's `compile`, of which four of five trials take no
more: 5 and 153 trials on H100 and H200 (column compile_s of docs/measurements).
"""
WHOLE_MODEL_S, WHOLE_MODEL_LAYERS, WHOLE_MODEL_POWER = 28.0, 12, 1.55
"""The same where a whole model is compiled: 28 s with 12 layers (GPT-2), 153 s with 36 (Qwen3-8B, beside other work),
both on an H200 (docs/lab/search.csv#searches-beside-work.1); the power joins the two.
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """Expected seconds of starts, and the expected measurement of each recipe's winner."""

    first_start_s: float = 0.0
    start_s: float = 0.0
    """Seconds that later trials take beyond their steps."""
    winners: Mapping[str, Measurement] = dataclasses.field(default_factory=dict[str, Measurement])
    """By recipe id: the predicted fastest layout, as its likely best rung would be measured."""

    @property
    def trial_s(self) -> float:
        """Seconds of a later trial of one rung; 0 without predictions."""
        rungs_s = [sum(winner.step_times_s) for winner in self.winners.values()]
        return self.start_s + max(rungs_s) if rungs_s else 0.0


NO_FORECAST = Forecast()


def compile_s(layout: Layout, num_layers: int) -> float:
    """Returns the additional seconds of the layout's first step in a trial on a GPU."""
    if layout.compile == "model":
        return WHOLE_MODEL_S * (num_layers / layout.parts("depth") / WHOLE_MODEL_LAYERS) ** WHOLE_MODEL_POWER
    return COMPILE_S[layout.compile]


def forecast_of(plan: SearchPlan, timing: Timing) -> Forecast:
    """Returns the expected times of the plan's trials; `NO_FORECAST` if the cost model does not know the devices."""
    if plan.columns is None:
        return NO_FORECAST
    fastest: dict[str, PlannedLayout] = {}
    for layout in planned(plan).layouts:
        fastest.setdefault(layout.recipe, layout)
    recipes = {candidate.recipe.id: candidate.recipe for candidate in plan.candidates}
    return Forecast(
        first_start_s=FIRST_START_S,
        start_s=LATER_START["cuda"] * FIRST_START_S,
        winners={key: expected(recipes[key], layout, timing) for key, layout in fastest.items()},
    )


def expected(recipe: Recipe, planned_layout: PlannedLayout, timing: Timing) -> Measurement:
    """Returns the measurement that the planned layout's likely best rung should have, by its prediction."""
    layout, step_s = planned_layout.layout, planned_layout.step_time_s
    assert planned_layout.micro_batch is not None and step_s is not None, "the layout has a prediction"
    batch = BatchPoint.of(recipe, layout, planned_layout.micro_batch)
    share = timed_accum(batch.grad_accum, all_micro_steps=timing.whole_steps) / batch.grad_accum
    begins_s, timed_s = step_s * timed_accum(batch.grad_accum) / batch.grad_accum, step_s * share
    per_window = max(1, math.ceil(timing.window_s / timed_s))
    filled = timing.rung_s / (per_window * timed_s) if timing.steps is None else timing.steps / per_window
    limit = timing.max_windows if timing.steps is None else math.inf
    num_windows = math.ceil(max(timing.min_windows, min(filled, limit)))
    compiling_s = compile_s(layout, recipe.model.num_layers)
    warm_up_s = (compiling_s + begins_s, *(begins_s,) * max(1, timing.warmup_steps - 1))
    return Measurement(
        recipe=recipe,
        layout=layout,
        batch=batch,
        outcome=Outcome.OK,
        step_time_s=step_s,
        step_time_derived=share < 1,
        tokens_per_s=planned_layout.tokens_per_s,
        compile_s=compiling_s,
        startup_s=FIRST_START_S,
        windows_s=(timed_s,) * num_windows,
        steps_per_window=per_window,
        warmup_steps=len(warm_up_s),
        step_times_s=(*warm_up_s, *(timed_s,) * (num_windows * per_window)),
    )
