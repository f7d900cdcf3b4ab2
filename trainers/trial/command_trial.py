"""A trial of a user's command: a task on one node runs it at each rung, in processes of its own."""

import math
import time
from collections.abc import Mapping
from typing import Any

import ray

from trainers.commands.run import PointRun, Run, follow
from trainers.measuring.ladder import best_above_tokens_per_s
from trainers.records.job import Job
from trainers.records.measurement import TIMED, Measurement, Outcome
from trainers.spec.batch import values_of
from trainers.spec.codec import from_json, to_json
from trainers.trial import recorder as recorders

OUT_OF_TIME = "the time budget ended before the ladder did"
TICK_S = 5.0
"""Seconds between two words to the recorder that a run goes on."""
MARGIN_S = 120.0
"""Seconds beyond a run's own limits after which it counts as hung from outside."""


def run(job: Job) -> tuple[str, str]:
    """Runs the job's trial on a node; returns the trial's state and why. Raises Ray's errors."""
    state, reason = ray.get(on_a_node(climb, job).remote(to_json(job)))
    return state, reason


def on_a_node(function: Any, job: Job) -> Any:
    """Returns the function as a Ray task that takes the job's devices on one of its nodes."""
    devices = job.layout.world_size
    return ray.remote(function).options(
        num_cpus=job.cpus_per_worker * devices,
        num_gpus=devices if job.cluster.device_kind == "cuda" else 0,
        max_retries=0,
        scheduling_strategy="DEFAULT",  # not in the placement group of Tune's side, which asks for a part of a core
        label_selector={"ray.io/node-id": f"in({','.join(job.nodes)})"} if job.nodes else None,
    )


def climb(job_json: Mapping[str, Any]) -> tuple[str, str]:
    """Measures the job's batch points, ascending; returns the trial's state and why."""
    job = from_json(Job, job_json)
    recorder, trial_id = recorders.find(job.recorder), job.trial_id
    recorders.call(recorder, "set_status", trial_id, "init", None, job.first_step_s)
    recorders.call(recorder, "place", trial_id, [ray.get_runtime_context().get_node_id()])
    stop_at_s = math.inf
    if job.stop_at_s is not None:
        stop_at_s = time.monotonic() + recorders.call(recorder, "seconds_until", job.stop_at_s)
    wall_s = 0.0
    for number, batch in enumerate(job.rungs):
        began_s = time.monotonic()
        if began_s + wall_s > stop_at_s and not (job.runs_one and number == 0):
            return "interrupted", OUT_OF_TIME
        recorders.call(recorder, "set_status", trial_id, "rung", to_json(batch), job.first_step_s + MARGIN_S)
        ended, figures = PointRun(job, batch, _Ticks(job, recorder)).measured()
        reason = ended.reason
        if ended.output:
            name: str = recorders.call(recorder, "output", trial_id, ended.output)
            reason = f"{reason} (its last lines are in {name})"
        measured = job.measurement(batch, ended.outcome, reason=reason, **figures)
        recorders.call(recorder, "measured", trial_id, to_json(measured), to_json(job.rungs))
        wall_s = time.monotonic() - began_s
        if measured.outcome in (Outcome.FAILED, Outcome.HUNG):
            return "failed", reason
        if measured.outcome not in TIMED or _hopeless(job, measured):
            break
    return "done", ""


def first_step(job_json: Mapping[str, Any]) -> dict[str, Any]:
    """Runs the job's command at its first rung until its first step; returns that step's `tokens`, the `outcome`, and
    where there was no step the `reason` with the last lines of its `output`.
    """
    job = from_json(Job, job_json)
    assert job.recipe.workload is not None, "a recipe with a model is no command's"
    ended = follow(
        job.recipe.workload,
        values_of(job.layout, job.rungs[0]),
        lambda run, is_over: (Outcome.OK, ""),
        gpus=job.layout.world_size if job.cluster.device_kind == "cuda" else 0,
        first_step_s=job.first_step_s,
        hang_floor_s=job.hang_floor_s,
        environment=dict(job.environment),
    )
    tokens = ended.steps[0].tokens if ended.steps else None
    return {"tokens": tokens, "outcome": ended.outcome.value, "reason": ended.reason, "output": ended.output}


class _Ticks:
    """Tells the recorder that a run goes on."""

    def __init__(self, job: Job, recorder: Any) -> None:
        self._job, self._recorder, self._told_s = job, recorder, 0.0

    def __call__(self, run: Run) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s > TICK_S:
            self._told_s = now_s
            allowed_s = max(self._job.hang_floor_s, 10 * max(run.seconds)) + MARGIN_S
            recorders.call(self._recorder, "promise", self._job.trial_id, allowed_s)


def _hopeless(job: Job, measured: Measurement) -> bool:
    """Returns whether even perfect scaling of the rungs above stays below the incumbent."""
    best, speed = job.incumbent_tokens_per_s, measured.tokens_per_s
    if best is None or speed is None:
        return False
    return best_above_tokens_per_s(speed, measured.batch.micro_batch, job.rungs[-1].micro_batch) < best
