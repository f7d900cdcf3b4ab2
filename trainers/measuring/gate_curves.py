"""Records the curves of the numerics gate: loss and gradient norm of a layout's first optimizer steps."""

import dataclasses

from trainers import data
from trainers.engines.base import Engine
from trainers.measuring.run_context import RunContext
from trainers.measuring.runner import StepRunner
from trainers.records.job import GateSize
from trainers.records.journal import GateCurves
from trainers.spec.batch import BatchPoint


def curves_of(context: RunContext, engine: Engine, gate: GateSize, batch: BatchPoint) -> GateCurves:
    """Trains on the gate's own stream from the initial weights, and returns loss and gradient norm of each step.

    The engine then has the recipe's learning rate again.
    """
    job = context.job
    recipe = dataclasses.replace(job.recipe.of_batch(gate.sequences), data=data.STREAM)
    rates = [recipe.learning_rate * gate.rate * (step + 1) / gate.steps for step in range(gate.steps)]
    losses, norms, times_s = StepRunner(context, engine, data.source(recipe), batch).curves(rates)
    engine.set_learning_rate(recipe.learning_rate)
    return GateCurves(
        trial_id=job.trial_id,
        recipe=job.recipe,
        layout=job.layout,
        steps=gate.steps,
        sequences=gate.sequences,
        losses=tuple(losses),
        grad_norms=tuple(norms),
        step_times_s=tuple(times_s),
        is_reference=not job.is_winner_run,
    )
