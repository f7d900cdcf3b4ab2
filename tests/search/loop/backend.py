"""A backend for tests of the loop: plays scripted trials without Ray, and writes the lines that a real recorder
would.
"""

import dataclasses
from collections.abc import Callable, Sequence

from platform.search.loop.loop import SearchLoop
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.study.history import History
from platform.study.study import Study, read
from search_spaces.candidate import Candidate
from tests.samples import SMALL, layout, measurement
from trainers.records.job import Job
from trainers.records.journal import GateCurves, Measured, Probed, Profile, RungStart, TrialState
from trainers.records.measurement import Measurement, Outcome
from trainers.records.probe import Probe
from trainers.records.sums import Sums
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

RECIPE = Recipe(model=SMALL, seq_len=32, global_batch=16, compute_precision="fp32")
OTHER = dataclasses.replace(RECIPE, global_batch=32)
"""Another recipe; its measurements do not compete with those of `RECIPE`."""
CLUSTER = Cluster(device_kind="cpu", device="Made-up CPU", device_memory_gib=4.0, devices_per_node=2)
LAYOUTS: tuple[Layout, ...] = (
    layout(dp_shard=2),
    layout(dp_shard=2, checkpointing="full"),
    layout(engine="ddp", zero_stage=0, dp_shard=1, dp_replicate=2),
)
MICRO_BATCHES = (1, 2, 4)


def candidates(*recipes: Recipe, layouts: Sequence[Layout] = LAYOUTS) -> tuple[Candidate, ...]:
    """Returns every layout with every recipe (default: only `RECIPE`)."""
    return tuple(
        Candidate(recipe=recipe, layout=candidate_layout, micro_batches=MICRO_BATCHES)
        for recipe in (recipes or (RECIPE,))
        for candidate_layout in layouts
    )


CONFIRM = ConfirmationRules(repeats=0)
"""Rules that run only the winner again, and only if its time was derived."""
ALL_RUNGS = [(candidate_layout, (1, 2, 4)) for candidate_layout in LAYOUTS]
"""Layouts, with their rungs, that a search without problems runs."""
Make = Callable[..., SearchLoop]
"""Creates the loop of a session from the journal's present content."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Died:
    """Replaces a measurement: the trial's process died in the middle of the rung, without a message."""

    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TimeOut:
    """Replaces a measurement: the workers saw that time was over before the rung began."""


Play = Callable[[Job, BatchPoint], Measurement | Died | TimeOut]


class Clock:
    """A clock that only the backend moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def result(job: Job, batch: BatchPoint, tokens_per_s: float | None = 1000.0, **fields: object) -> Measurement:
    """Returns the rung's measurement."""
    defaults: dict[str, object] = {
        "recipe": job.recipe,
        "on": job.layout,
        "micro_batch": batch.micro_batch,
        "tokens_per_s": tokens_per_s,
        "trial_id": job.trial_id,
        "repeat": job.repeat,
        "step_times_s": (),  # the clock is the backend's: made-up steps take none of it
    }
    return measurement(**{**defaults, **fields})  # type: ignore[reportArgumentType]


def fast(job: Job, batch: BatchPoint) -> Measurement:
    """Returns a rung that runs; larger micro-batches are faster, and later layouts slower."""
    place = LAYOUTS.index(job.layout) if job.layout in LAYOUTS else 0
    return result(job, batch, 1000.0 * batch.micro_batch - 100.0 * place)


def out_of_memory(job: Job, batch: BatchPoint) -> Measurement:
    """Returns a rung that does not fit."""
    return result(job, batch, None, outcome=Outcome.OOM, reason="asked for 1 GiB", rank=0)


class Backend:
    """Plays jobs with `play`, and records them. A trial takes `start_s`, plus `rung_s` per rung, `gate_s` per numerics
    gate, and the seconds of its windows for a winner's last run.
    """

    def __init__(self, study: Study, clock: Clock, play: Play = fast, *, start_s: float = 5.0, rung_s: float = 1.0):
        self.study = study
        self.clock = clock
        self.play = play
        self.start_s = start_s
        self.rung_s = rung_s
        self.gate_s = 0.0
        self.losses: Callable[[Job], tuple[float, ...] | None] = lambda job: (2.0, 1.0)
        """Losses of a layout's numerics gate; None if it does not fit."""
        self.probe: Probe | None = None
        """The findings of a trial that measures devices and links."""
        self.profiles = True
        """Whether profiling produces a profile."""
        self.jobs: list[Job] = []

    def begin(self, job: Job) -> tuple[TrialState, str]:
        """Writes the job's lines as its workers would; returns how it ended."""
        self.jobs.append(job)
        self.clock.now_s += self.start_s
        if job.probe_s is not None and self.probe is not None:
            self.study.record(Probed(probe=self.probe))
        if job.gate is not None:
            self.clock.now_s += self.gate_s
            losses = self.losses(job)
            if losses is None:
                return "failed", "the gate does not fit"
            curves = GateCurves(
                trial_id=job.trial_id,
                recipe=job.recipe,
                layout=job.layout,
                steps=job.gate.steps,
                sequences=job.gate.sequences,
                losses=losses,
                grad_norms=(1.0,) * len(losses),
                is_reference=not job.is_winner_run,
            )
            self.study.record(curves)
        if job.profile is not None:
            if not self.profiles:
                return "failed", "no kernel was seen"
            self.study.record(
                Profile(
                    trial_id=job.trial_id,
                    recipe=job.recipe,
                    layout=job.layout,
                    batch=job.profile,
                    device_kind="cpu",
                    num_steps=3,
                    measured_grad_accum=3,
                    sums=Sums(matmul_s=1.0),
                    trace_mib=1.0,
                )
            )
        for batch in job.rungs:
            event = self.play(job, batch)
            if isinstance(event, TimeOut):
                return "interrupted", "the time budget ended before the ladder did"
            self.study.record(RungStart(trial_id=job.trial_id, batch=batch, deadline_s=60))
            self.clock.now_s += self.rung_s + (job.timing.winner_s if job.is_winner_run else 0.0)
            if isinstance(event, Died):
                return "failed", event.reason
            self.study.record(Measured(measurement=event))
            if event.outcome in (Outcome.FAILED, Outcome.HUNG):
                return "failed", event.reason
            if event.outcome is not Outcome.OK:
                break
        return "done", ""

    def step(self, loop: SearchLoop) -> Job | None:
        """Runs one trial of the loop; returns None if the loop has none."""
        job = loop.next_job()
        if job is not None:
            state, reason = self.begin(job)
            loop.on_trial_end(job.trial_id, state=state, reason=reason)
        return job

    def run(self, loop: SearchLoop, max_trials: int = 50) -> list[Job]:
        """Runs the loop to its end, which must come within `max_trials` trials."""
        for _ in range(max_trials):
            if self.step(loop) is None:
                return self.jobs
        raise AssertionError(f"the loop did not end within {max_trials} trials")

    @property
    def order(self) -> list[tuple[Layout, tuple[int, ...]]]:
        """Layouts that ran, with their rungs."""
        return [(job.layout, tuple(batch.micro_batch for batch in job.rungs)) for job in self.jobs]


def history_of(study: Study) -> History:
    """Returns the history in the study's journal."""
    return read(study.path)[0]


def outcomes(study: Study) -> list[tuple[int, Outcome]]:
    """Returns (micro-batch, outcome) of every measurement, in the journal's order."""
    return [(point.batch.micro_batch, point.outcome) for point in history_of(study).measurements]
