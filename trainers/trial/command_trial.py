"""A trial of a user's command: a task runs it for each batch point, in processes of its own."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import ray

from trainers.commands.largest import LargestFound, largest, short_run
from trainers.commands.run import PointRun, Run, Starter, follow, on_this_node
from trainers.measuring.ladder import is_hopeless
from trainers.records.job import Job
from trainers.records.measurement import TIMED, Measurement, Outcome
from trainers.spec.batch import BatchPoint
from trainers.spec.codec import from_json, to_json
from trainers.trial import recorder as recorders
from trainers.trial.command_nodes import CommandNodes, on_nodes

OUT_OF_TIME = "the time budget ended before the ladder did"
TICK_S = 5.0
"""Seconds between two reports to the recorder that a run continues."""
MARGIN_S = 120.0
"""Seconds beyond a run's own limits after which observers count it as hung."""

_FAILURES = (Outcome.FAILED, Outcome.HUNG)
T = TypeVar("T")


def run(job: Job) -> tuple[str, str]:
    """Runs the job's trial on its nodes; returns the trial's state and reason. Raises Ray's errors."""
    state, reason = on_nodes(climb, job)
    return state, reason


def climb(job_json: Mapping[str, Any], nodes: CommandNodes | None = None) -> tuple[str, str]:
    """Measures the job's batch points, ascending, or the largest that fits; returns the trial's state and reason."""
    job = from_json(Job, job_json)
    start = nodes.starter(job) if nodes else on_this_node(job)
    trial = _CommandTrial(job, start, recorders.find(job.recorder))
    first = {ray.get_runtime_context().get_node_id(): ray.util.get_node_ip_address()}
    trial.begin(nodes.addresses() if nodes else first)
    return trial.measure_largest() if job.finds_largest else trial.climb()


class _CommandTrial:
    """A job's trial, and its reports to the recorder."""

    def __init__(self, job: Job, start: Starter, recorder: Any) -> None:
        self._job, self._start, self._recorder = job, start, recorder
        self._told_s, self._longest_s = 0.0, 0.0
        self._stop_at_s = math.inf

    def _call(self, method: str, *arguments: Any) -> Any:
        return recorders.call(self._recorder, method, *arguments)

    def begin(self, nodes: Mapping[str, str]) -> None:
        """Tells the recorder that the trial has begun. `nodes` maps Ray's node ids to addresses."""
        job = self._job
        self._call("set_status", job.trial_id, "init", None, job.first_step_s)
        self._call("place", job.trial_id, list(nodes), list(nodes.values()))
        if job.stop_at_s is not None:
            self._stop_at_s = time.monotonic() + self._call("seconds_until", job.stop_at_s)

    def climb(self) -> tuple[str, str]:
        """Measures the job's batch points, ascending; returns the trial's state and reason."""
        for number, batch in enumerate(self._job.rungs):
            if not (self._job.runs_one and number == 0) and not self._has_time():
                return "interrupted", OUT_OF_TIME
            measured = self._measured(batch)
            if measured.outcome in _FAILURES:
                return "failed", measured.reason
            if measured.outcome not in TIMED or is_hopeless(self._job, measured):
                break
        return "done", ""

    def measure_largest(self) -> tuple[str, str]:
        """Measures the largest of the job's batch points that fits; returns the trial's state and reason."""
        cluster = self._job.cluster
        answer = largest(
            lambda batch: self._timed(batch, lambda: short_run(self._job, self._start, batch)),
            self._job.rungs,
            likely=self._job.likely_largest,
            capacity_gib=cluster.device_memory_gib if cluster.device_kind == "cuda" else None,
            has_time=lambda: self._has_time(runs=2),  # one to find the size, one to measure it
        )
        ended = answer.ended and self._of_run(answer.ended.batch, answer.ended.run, {})
        # A size that fits for a few steps may run out of memory later; then the next smaller one is measured.
        for batch in reversed(answer.fitting):
            if not self._job.runs_one and not self._has_time():
                return "interrupted", OUT_OF_TIME
            measured = self._measured(batch, answer)
            answer = dataclasses.replace(answer, remark="", untried=0)  # for the size above this one
            if measured.outcome in _FAILURES:
                return "failed", measured.reason
            if measured.outcome is not Outcome.OOM:
                break
            ended = None  # recorded already, and at a smaller size
        if ended is not None:
            self._record(ended)
        return ("failed", ended.reason) if ended is not None and ended.outcome in _FAILURES else ("done", "")

    def _has_time(self, runs: int = 1) -> bool:
        """Returns whether `runs` runs, each as long as the longest so far, end before the time budget."""
        return time.monotonic() + runs * self._longest_s <= self._stop_at_s

    def _measured(self, batch: BatchPoint, found: LargestFound | None = None) -> Measurement:
        """Measures the command at the batch point, perhaps `found` to be the largest; returns what was recorded."""
        point = PointRun(self._job, self._start, batch, self._tick)
        run, figures = self._timed(batch, point.measured)
        if found and found.remark and run.outcome in TIMED:
            figures["remark"] = ", and ".join(filter(None, (figures["remark"], found.remark)))
            figures["untried_micro_batch"] = found.untried
        return self._record(self._of_run(batch, run, figures))

    def _timed(self, batch: BatchPoint, work: Callable[[], T]) -> T:
        """Tells the recorder that work at the batch point begins, and returns the result of `work`."""
        began_s = time.monotonic()
        allowed_s = self._job.first_step_s + MARGIN_S
        self._call("set_status", self._job.trial_id, "steps", to_json(batch), allowed_s)
        result = work()
        self._longest_s = max(self._longest_s, time.monotonic() - began_s)
        return result

    def _of_run(self, batch: BatchPoint, run: Run, figures: Mapping[str, Any]) -> Measurement:
        reason = run.reason
        if run.output:
            reason = f"{reason} (its last lines are in {self._call('output', self._job.trial_id, run.output)})"
        return self._job.measurement(batch, run.outcome, reason=reason, **figures)

    def _record(self, measured: Measurement) -> Measurement:
        self._call("measured", self._job.trial_id, to_json(measured), to_json(self._job.rungs))
        return measured

    def _tick(self, run: Run) -> None:
        """Tells the recorder at most every `TICK_S` seconds that a run continues."""
        now_s = time.monotonic()
        if now_s - self._told_s > TICK_S:
            self._told_s = now_s
            allowed_s = max(self._job.hang_floor_s, 10 * max(run.seconds)) + MARGIN_S
            self._call("promise", self._job.trial_id, allowed_s)


def first_step(job_json: Mapping[str, Any], nodes: CommandNodes | None = None) -> dict[str, Any]:
    """Runs the job's command at its first batch point until the first step. Returns that step's `tokens`, the
    `outcome`, and without a step the `reason` with the last lines of the `output`.
    """
    job = from_json(Job, job_json)
    start = nodes.starter(job) if nodes else on_this_node(job)
    ended = follow(job, start, job.rungs[0], lambda run, is_over: (Outcome.OK, ""))
    tokens = ended.steps[0].tokens if ended.steps else None
    return {"tokens": tokens, "outcome": ended.outcome.value, "reason": ended.reason, "output": ended.output}
