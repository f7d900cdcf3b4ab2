"""Makes the journal's line on the layouts that a session may try."""

import dataclasses

import numpy as np

from platform.cost_model.columns import Columns
from platform.cost_model.predict import Prediction, predict
from platform.search.setup.planning import SearchPlan
from search_spaces.candidate import Candidate
from trainers.records.journal import Planned, PlannedLayout


def planned(plan: SearchPlan) -> Planned:
    """Returns every layout of the plan, in order, with the prediction of its likely best rung."""
    layouts: dict[tuple[str, str], PlannedLayout] = {}
    prediction = None if plan.columns is None else predict(plan.columns)
    row = 0
    for candidate in plan.candidates:
        key, rungs = (candidate.recipe.id, candidate.layout.id), candidate.micro_batches
        if (before := layouts.get(key)) is not None:  # named points may list a layout several times, the best first
            layouts[key] = dataclasses.replace(before, micro_batches=tuple(sorted({*before.micro_batches, *rungs})))
        else:
            likely = (
                None
                if prediction is None or plan.columns is None
                else _likely_best(plan.columns, prediction, candidate, row)
            )
            layouts[key] = likely or PlannedLayout(recipe=key[0], layout=candidate.layout, micro_batches=rungs)
        row += len(rungs)
    return Planned(layouts=tuple(layouts.values()))


def _likely_best(columns: Columns, prediction: Prediction, candidate: Candidate, first: int) -> PlannedLayout:
    """Returns the candidate with the prediction of the rung by which a sweep would rank it.

    Its rungs are the rows from `first` on.
    """
    rows = slice(first, first + len(candidate.micro_batches))
    tokens = np.broadcast_to(columns.tokens_per_step, columns.shape)[rows]  # an axis of accumulations: unlike batches
    speed = prediction.ok_probability[rows] * tokens / prediction.expected_s[rows]
    best = int(np.argmax(speed))
    step_s = float(prediction.step.total_s[first + best])
    return PlannedLayout(
        recipe=candidate.recipe.id,
        layout=candidate.layout,
        micro_batches=candidate.micro_batches,
        micro_batch=candidate.micro_batches[best],
        tokens_per_s=float(tokens[best]) / step_s,
        step_time_s=step_s,
        peak_gib=float(prediction.memory.allocated_gib[first + best]),
    )
