"""One run of a command at one batch point: started, followed until enough of its steps are steady, and ended."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainers.commands.ending import last_lines, outcome_of
from trainers.commands.steps import Step, StepLineError
from trainers.commands.trees import LocalTree, Tree
from trainers.measuring.ladder import upper_bound_tokens_per_s
from trainers.records.job import Job
from trainers.records.measurement import SETTINGS, TIMED, TRAINING_STATE, Conditions, Outcome
from trainers.spec.batch import BatchPoint, values_of
from trainers.spec.workload import Workload

POLL_S = 0.02
"""Seconds between two looks at a run's lines."""
MEMORY_S = 0.5
"""Seconds between two looks at its memory."""
AGREEMENT = 0.05
"""Relative difference between a command's seconds and the clock's above which its row has a remark."""
HANG_FACTOR = 10
"""A run counts as hung after this many times its slowest step without a line."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The steps, the memory and the end of a run."""

    steps: tuple[Step, ...]
    began_s: float
    """Moment of its start, by the monotonic clock of the steps."""
    outcome: Outcome
    reason: str = ""
    output: str = ""
    """End of its output, if it did not end well."""
    peak_gib: float | None = None

    @property
    def seconds(self) -> tuple[float, ...]:
        """Seconds of each step: as reported, or between the lines of the previous step and this one."""
        before = (self.began_s, *(step.at_s for step in self.steps))
        return tuple(
            step.at_s - at_s if step.seconds is None else step.seconds
            for step, at_s in zip(self.steps, before, strict=False)
        )


Judge = Callable[[Run, bool], tuple[Outcome, str] | None]
"""Returns how a run ends with the steps so far; None if more are needed. The flag says that no more will come."""


Starter = Callable[[Workload, Mapping[str, object]], Tree]
"""Starts the processes of a command with its holes filled by these values, on one node or several.

Raises:
    OSError: they cannot be started; the text states why.
"""


def on_this_node(job: Job) -> Starter:
    """Returns a function that starts the job's command on this node only."""
    gpus = job.layout.world_size if job.cluster.device_kind == "cuda" else 0
    return lambda workload, values: LocalTree(workload, values, gpus=gpus, environment=job.environment)


def follow(job: Job, start: Starter, batch: BatchPoint, judge: Judge) -> Run:
    """Runs the job's command at the point until `judge` ends it, or it ends by itself.

    The first step may take the job's `first_step_s`, each other one `hang_floor_s` or ten times the slowest.
    """
    workload, first_step_s, hang_floor_s = job.recipe.command, job.first_step_s, job.hang_floor_s
    assert workload is not None, "no command"
    run = Run(steps=(), began_s=time.monotonic(), outcome=Outcome.FAILED)
    try:
        processes = start(workload, values_of(job.layout, batch, num_nodes=job.cluster.num_nodes))
    except OSError as error:
        return dataclasses.replace(run, reason=str(error))
    looked_s = 0.0
    try:
        while True:
            code = processes.exit_code()  # before the last look at its lines
            new = processes.new_steps()
            # A short run may be over before the next look: its first step is one.
            if time.monotonic() - looked_s > MEMORY_S or (new and run.peak_gib is None):
                looked_s = time.monotonic()
                held_gib = processes.memory_gib()
                run = dataclasses.replace(run, peak_gib=max(filter(None, (held_gib, run.peak_gib)), default=None))
            if new:
                run = dataclasses.replace(run, steps=(*run.steps, *new))
                if verdict := judge(run, False):
                    return dataclasses.replace(run, outcome=verdict[0], reason=verdict[1])
            if code is not None:
                verdict = judge(run, True) if run.steps and not code else None
                if verdict is not None:
                    return dataclasses.replace(run, outcome=verdict[0], reason=verdict[1])
                return _ended(run, code, processes.text(), workload)
            if reason := _overdue(run, first_step_s, hang_floor_s):
                output = last_lines(processes.text())
                return dataclasses.replace(run, outcome=Outcome.HUNG, reason=reason, output=output)
            time.sleep(POLL_S)
    except StepLineError as error:
        return dataclasses.replace(run, reason=str(error), output=last_lines(processes.text()))
    finally:
        processes.close()


def _ended(run: Run, code: int, text: str, workload: Workload) -> Run:
    """Returns a run that ended by itself, before it had enough steps."""
    after = f"after {len(run.steps)} steps" if run.steps else "before its first step"
    if code:
        outcome, line = outcome_of(code, text)
        reason = line if outcome is Outcome.OOM else f"it ended with exit code {code} {after}: {line}"
        return dataclasses.replace(run, outcome=outcome, reason=reason, output=last_lines(text))
    if not run.steps:
        lack = "no printed line matched --step-line" if workload.step_line else "it wrote no line of a step"
        reason = f"{lack}, and ended with exit code 0"
    else:
        reason = f"it ended by itself {after}, which are too few for a time: let it train for more steps"
    return dataclasses.replace(run, reason=reason, output=last_lines(text))


def _overdue(run: Run, first_step_s: float, hang_floor_s: float) -> str:
    now_s = time.monotonic()
    if not run.steps:
        return f"no step within {first_step_s:.0f} s of its start" if now_s - run.began_s > first_step_s else ""
    allowed_s = max(hang_floor_s, HANG_FACTOR * max(run.seconds))
    waited_s = now_s - run.steps[-1].at_s
    return f"no step for {waited_s:.0f} s after {len(run.steps)} steps" if waited_s > allowed_s else ""


class PointRun:
    """The run of one batch point of a job: when it has enough steps, and the figures of its measurement."""

    def __init__(self, job: Job, start: Starter, batch: BatchPoint, tick: Callable[[Run], None]) -> None:
        """Prepares the run; `tick` is called with it at each of its steps."""
        self._job, self._start, self._batch, self._tick = job, start, batch, tick
        self._tokens = batch.global_batch(job.layout) * job.recipe.seq_len
        self._num_judged = 0
        """Number of the run's steps that were judged."""

    def measured(self) -> tuple[Run, dict[str, Any]]:
        """Runs the command; returns the run, and its figures as fields of a measurement."""
        run = follow(self._job, self._start, self._batch, self._judged)
        return run, self._figures(run)

    def _judged(self, run: Run, is_over: bool) -> tuple[Outcome, str] | None:
        self._tick(run)
        for number, step in enumerate(run.steps[self._num_judged :], start=self._num_judged):
            if step.tokens is not None and step.tokens != self._tokens:
                batch = f"micro-batch {self._batch.micro_batch} and accumulation {self._batch.grad_accum}"
                return Outcome.FAILED, (
                    f"its step at {batch} has {step.tokens:,} tokens where all points train on {self._tokens:,}:"
                    " points with different tokens per step cannot be compared"
                )
            if step.loss is not None and not math.isfinite(step.loss):
                return Outcome.DIVERGED, f"the loss was {step.loss} at step {number}"
        self._num_judged = len(run.steps)
        if reason := self._beaten(run):
            return Outcome.SLOW, reason
        return (Outcome.OK, "") if self._is_enough(run, is_over) else None

    def _timed(self, run: Run) -> Sequence[float]:
        return run.seconds[self._job.timing.warmup_steps :]

    def _is_enough(self, run: Run, is_over: bool) -> bool:
        timing, timed = self._job.timing, self._timed(run)
        if is_over or len(timed) < timing.min_windows:
            return len(timed) >= timing.min_windows
        if self._job.is_winner_run:
            return sum(timed) >= timing.winner_s
        if timing.steps is not None:
            return len(timed) >= timing.steps
        return sum(timed) >= timing.rung_s

    def _beaten(self, run: Run) -> str:
        """Returns the reason to stop if the upper bound of tokens/s is below the incumbent, else ""."""
        best, timed = self._job.incumbent_tokens_per_s, self._timed(run)
        if best is None or len(timed) < max(3, self._job.timing.min_windows):
            return ""
        bound = upper_bound_tokens_per_s(self._tokens, timed)
        if bound >= best:
            return ""
        return f"stopped after {len(timed)} steps: {bound:,.0f} tokens/s at most, the best so far has {best:,.0f}"

    def _windows(self, run: Run) -> tuple[int, tuple[float, ...]]:
        """Returns the number of steps in a window of about the window's duration, and the mean seconds of a step in
        each window.
        """
        timing, timed = self._job.timing, self._timed(run)
        fitting = math.ceil(timing.window_s / max(statistics.fmean(timed), 1e-6))
        size = max(1, min(fitting, len(timed) // timing.min_windows))
        return size, tuple(
            statistics.fmean(timed[first : first + size]) for first in range(0, len(timed) - size + 1, size)
        )

    def _figures(self, run: Run) -> dict[str, Any]:
        """Returns times, throughput, memory and conditions as fields of a measurement."""
        job, warmup_steps = self._job, self._job.timing.warmup_steps
        devices = job.layout.world_size
        share = devices if job.cluster.device_kind == "cpu" else 1
        fields: dict[str, Any] = {
            "peak_device_gib": None if run.peak_gib is None else run.peak_gib / share,
            "step_times_s": run.seconds,
            "losses": tuple(step.loss for step in run.steps if step.loss is not None),
            "startup_s": max(0.0, run.steps[0].at_s - run.began_s - run.seconds[0]) if run.steps else None,
            "conditions": Conditions(
                device=job.cluster.device,
                device_memory_gib=job.cluster.device_memory_gib,
                num_nodes=job.cluster.num_nodes,
                versions={},
                environment={},
                commit=job.commit,
                engine_lacks=(SETTINGS, TRAINING_STATE),
            ),
        }
        if run.outcome not in TIMED:
            return fields
        per_window, windows_s = self._windows(run)
        step_s = statistics.median(windows_s)
        low_s, _, high_s = statistics.quantiles(windows_s, n=4, method="inclusive")
        return fields | {
            "remark": remark_of(run, warmup_steps),
            "warmup_steps": warmup_steps,
            "steps_per_window": per_window,
            "windows_s": windows_s,
            "measured_grad_accum": self._batch.grad_accum,
            "step_time_s": step_s,
            "step_time_low_s": low_s,
            "step_time_high_s": high_s,
            "tokens_per_s": self._tokens / step_s,
            "tokens_per_s_per_gpu": self._tokens / step_s / devices,
        }


def remark_of(run: Run, warmup_steps: int) -> str:
    """Returns a clause on doubts about the run's figures; "" if there are none."""
    remarks: list[str] = []
    timed = run.steps[warmup_steps:]
    reported_s = sum(run.seconds[warmup_steps:])
    clock_s = timed[-1].at_s - run.steps[warmup_steps - 1].at_s if warmup_steps else timed[-1].at_s - run.began_s
    if abs(clock_s - reported_s) > AGREEMENT * clock_s:
        more = "longer" if clock_s > reported_s else "shorter"
        remarks.append(
            f"by the clock its steps took {abs(clock_s / reported_s - 1):.0%} {more} than the command reports"
        )
    if any(step.tokens is None for step in timed):
        remarks.append("its lines do not state the tokens of a step, which are taken to be those of --tokens-per-step")
    return ", and ".join(remarks)
