"""The journal's line on what a session may try, from its plan."""

import numpy as np

from platform.cost_model.predict import predict
from platform.subject.planning import Plan
from trainers.journal import Planned, PlannedLayout


def planned(plan: Plan) -> Planned:
    """Every layout of the plan, in its order, with what the cost model predicts of its likely best rung."""
    found: dict[tuple[str, str], PlannedLayout] = {}
    prediction = None if plan.columns is None else predict(plan.columns)
    row = 0
    for candidate in plan.candidates:
        rungs = candidate.micro_batches
        figures = {}
        if prediction is not None:
            rows = slice(row, row + len(rungs))
            expected = prediction.ok_probability[rows] / prediction.expected_s[rows]
            best = row + int(np.argmax(expected))
            step_s = float(prediction.step.total_s[best])
            figures = {
                "micro_batch": rungs[best - row],
                "tokens_per_s": candidate.recipe.tokens_per_step / step_s,
                "step_time_s": step_s,
                "peak_gib": float(prediction.memory.allocated_gib[best]),
            }
        row += len(rungs)
        key = candidate.recipe.id, candidate.layout.id
        # Named points may ask for one layout several times: the first one is the likely best.
        if (before := found.get(key)) is not None:
            rungs, figures = tuple(sorted({*before.micro_batches, *rungs})), _figures(before)
        found[key] = PlannedLayout(recipe=key[0], layout=candidate.layout, micro_batches=rungs, **figures)
    return Planned(layouts=tuple(found.values()))


def _figures(layout: PlannedLayout) -> dict[str, float | int | None]:
    return {name: getattr(layout, name) for name in ("micro_batch", "tokens_per_s", "step_time_s", "peak_gib")}
