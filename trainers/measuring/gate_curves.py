"""Records the curves of the numerics gate: the first optimizer steps of a layout."""

import dataclasses

from trainers import data
from trainers.engines.stepper import HasModels, HasTrainingState, Stepper, require
from trainers.kernels.experts import learned_routing
from trainers.measuring import gate_steps
from trainers.measuring.run_context import RunContext
from trainers.measuring.runner import StepRunner
from trainers.records.job import GateSize
from trainers.records.journal import GateCurves
from trainers.spec.batch import BatchPoint


def curves_of(context: RunContext, engine: Stepper, gate: GateSize, batch: BatchPoint) -> GateCurves:
    """Runs the gate's steps on a stream of its own from the initial weights, with learned routing (see
    `gate_steps.run`), and restores the engine's learning rate.

    Raises:
        MissingAbilityError: the engine has no training state.
    """
    job, engine = context.job, require(engine, HasTrainingState, "the numerics gate")
    recipe = dataclasses.replace(job.recipe.of_batch(gate.sequences), data=data.STREAM)
    runner = StepRunner(context, engine, data.source(recipe), batch)

    def step(number: int) -> tuple[float, float, float]:
        result = runner.numbered(number)
        context.watchdog.beat("gate", allowed_s=job.first_step_s)  # sketches take time after the step
        return result

    context.watchdog.beat("gate", allowed_s=job.first_step_s)
    is_reference = not job.is_winner_run
    models = engine.models if isinstance(engine, HasModels) else ()
    with learned_routing(module for model in models for module in model.module.modules()):
        steps = gate_steps.run(
            engine, recipe, gate, device=context.device, gather=context.gather, step=step, is_reference=is_reference
        )
    fields = {field.name: getattr(steps, field.name) for field in dataclasses.fields(steps)}
    return GateCurves(
        trial_id=job.trial_id,
        recipe=job.recipe,
        layout=job.layout,
        steps=gate.steps,
        sequences=gate.sequences,
        is_reference=is_reference,
        **fields,
    )
