"""Properties of every budget: a fake backend plays trials of many lengths in budgets of 20 s to two hours."""

import dataclasses
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import platform.searchers as searchers  # pyright takes `from platform import` for the standard module
from platform.search.loop.budget import Budget
from platform.search.loop.jobs import TrialSettings
from platform.search.loop.loop import SearchLoop
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.search.setup.forecast import NO_FORECAST, Forecast
from platform.searchers.problem import Problem
from platform.study.history import LATER_START
from platform.study.study import Study
from search_spaces.candidate import Candidate
from tests.samples import header, layout
from tests.search.loop.backend import CLUSTER, RECIPE, Backend, Clock, Make, TimeOut, candidates, result
from trainers.measuring.ladder import may_begin
from trainers.records.job import GateSize, Job, Timing
from trainers.records.journal import Resume
from trainers.records.measurement import TIMED, Measurement, Outcome
from trainers.records.search_state import SearchState
from trainers.spec.batch import BatchPoint

BUDGETS_S = (20.0, 45.0, 75.0, 110.0, 150.0, 200.0, 240.0, 330.0, 500.0, 900.0, 7200.0)
GPUS = dataclasses.replace(CLUSTER, device_kind="cuda", device="Made-up GPU")
GATE = GateSize(steps=2, sequences=4)
TIMING = Timing()
LAYOUTS = tuple(layout(dp_shard=2, attention="sdpa", bucket_mib=n) for n in range(1, 9))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trials:
    """The seconds that the played trials take."""

    first_start_s: float
    start_s: float
    compile_s: float
    step_s: float
    slowdown: float
    """Step time of a gate's reference over the winner's."""

    def scaled(self, factor: float) -> "Trials":
        seconds = {name: factor * getattr(self, name) for name in ("first_start_s", "start_s", "compile_s", "step_s")}
        return dataclasses.replace(self, **seconds)

    @property
    def rung_s(self) -> float:
        return sum(self.step_times_s)

    @property
    def step_times_s(self) -> tuple[float, ...]:
        """The steps of a trial's first rung."""
        timed = max(TIMING.min_windows, int(TIMING.filled_s / self.step_s))
        return (self.compile_s + self.step_s, *(self.step_s,) * (1 + timed))

    @property
    def later_times_s(self) -> tuple[float, ...]:
        """The steps of its later rungs."""
        first_s, *others_s = self.step_times_s
        return (first_s - self.compile_s / 2, *others_s)

    @property
    def tokens_per_s(self) -> float:
        return RECIPE.tokens_per_step / self.step_s

    @property
    def first_figures(self) -> Mapping[str, Any]:
        """The figures of a trial's first rung alone."""
        return {"startup_s": 1.0, "compile_s": self.compile_s}

    @property
    def figures(self) -> Mapping[str, Any]:
        return {
            "windows_s": (self.step_s,) * 3,
            "warmup_steps": 2,
        }


GPT2 = Trials(first_start_s=24.0, start_s=7.0, compile_s=9.0, step_s=0.95, slowdown=2.0)
LLAMA = Trials(first_start_s=29.0, start_s=9.0, compile_s=17.0, step_s=3.0, slowdown=2.5)
SLOW = Trials(first_start_s=60.0, start_s=30.0, compile_s=0.0, step_s=12.0, slowdown=1.0)


class Session:
    """One session of a new study, whose trials take as long as `takes` says."""

    def __init__(self, folder: Path, takes: Trials, time_s: float, num_layouts: int, expected: Trials | None) -> None:
        self.takes, self.time_s, self.clock = takes, time_s, Clock()
        self.before: Measurement | None = None
        self.most_kept_s = 0.0
        within = tuple(Candidate(recipe=RECIPE, layout=on, micro_batches=(1, 2, 4)) for on in LAYOUTS[:num_layouts])
        with Study.create(folder, f"study-{next(NUMBERS)}") as study:
            study.record(header("made-up", recipes=(RECIPE,), cluster=GPUS))
            self.backend = Backend(study, self.clock, self.play, start_s=takes.start_s, rung_s=0.0)
            rules = ConfirmationRules(repeats=1, gate=GATE)
            self.loop = SearchLoop(
                study=study,
                candidates=within,
                searcher=searchers.create("sweep", Problem(candidates=within)),
                budget=Budget(time_s=time_s),
                settings=TrialSettings(
                    cluster=GPUS, cpus_per_worker=1.0, recorder="none", commit="0123456", cap_gib=2.0,
                    timing=TIMING, rules=rules,
                ),
                forecast=forecast(expected, within[0]) if expected else NO_FORECAST,
                clock=self.clock,
            )  # fmt: skip
            self.sentence = self.loop.time_sentence
            began_s = self.clock.now_s
            while (job := self.loop.next_job()) is not None:
                kept_s = self.loop.spending.kept_s()
                assert bool(kept_s) <= (self.loop.state is SearchState.EXPLORING)
                self.most_kept_s, self.before = max(self.most_kept_s, kept_s), None
                self.clock.now_s += (takes.first_start_s - takes.start_s) * (not self.backend.jobs)
                self.backend.gate_s = self.gate_s(job)
                state, reason = self.backend.begin(job)
                self.loop.on_trial_end(job.trial_id, state=state, reason=reason)
            self.took_s = self.clock.now_s - began_s

    def gate_s(self, job: Job) -> float:
        steps_s = GATE.steps * GATE.sequences * RECIPE.seq_len / self.takes.tokens_per_s
        return steps_s + self.takes.compile_s / 2 if job.is_winner_run else self.takes.slowdown * steps_s

    def play(self, job: Job, batch: BatchPoint) -> Measurement | TimeOut:
        left_s = float("inf") if job.stop_at_s is None else job.stop_at_s - self.clock.now_s
        is_sure = job.runs_one and batch == job.rungs[0]
        if not is_sure and not may_begin(left_s, self.before):
            return TimeOut()
        steps_s = self.takes.later_times_s if self.before else self.takes.step_times_s
        self.clock.now_s += sum(steps_s[:2] if job.is_winner_run else steps_s)  # the backend adds a winner's windows
        place = LAYOUTS.index(job.layout)
        speed = self.takes.tokens_per_s * (1 + 0.01 * batch.micro_batch - 0.001 * place)
        started = {"compile_s": self.takes.compile_s / 2} if self.before else self.takes.first_figures
        self.before = result(job, batch, speed, step_times_s=steps_s, **self.takes.figures, **started)
        return self.before

    @property
    def num_searched(self) -> int:
        measured = [m for m in self.loop.history.measurements if not m.repeat and m.outcome in TIMED]
        return len({m.layout for m in measured})

    @property
    def has_gate(self) -> bool:
        return len(self.loop.history.gates) == 2


NUMBERS = itertools.count()


def forecast(trials: Trials, first: Candidate) -> Forecast:
    """Returns what is expected where trials should take as long as `trials` says."""
    batch = BatchPoint.of(RECIPE, first.layout, 4)
    winner = Measurement(
        recipe=RECIPE, layout=first.layout, batch=batch, outcome=Outcome.OK, tokens_per_s=trials.tokens_per_s,
        step_time_s=trials.step_s, step_times_s=trials.step_times_s, **trials.figures, **trials.first_figures,
    )  # fmt: skip
    start_s = LATER_START["cuda"] * trials.first_start_s
    return Forecast(first_start_s=trials.first_start_s, start_s=start_s, winners={RECIPE.id: winner})


@pytest.mark.parametrize(
    ("takes", "expected"),
    [(GPT2, None), (GPT2, GPT2), (LLAMA, LLAMA.scaled(2.0)), (LLAMA, LLAMA.scaled(0.5))],
)
def test_every_budget_holds_a_point_then_a_second_layout_then_the_gate(
    tmp_path: Path, takes: Trials, expected: Trials | None
) -> None:
    """Checks trials of which nothing is predicted, or that take as long, half as long or twice as long as predicted."""
    first_s = takes.first_start_s + takes.rung_s
    cases = [(20.0, 1), (900.0, 1), (280.0, 5), *zip(BUDGETS_S, itertools.cycle((2, 5)), strict=False)]
    for time_s, num_layouts in cases:
        session = Session(tmp_path, takes, time_s, num_layouts, expected)
        case = f"{time_s:.0f} s, {num_layouts} layouts, {len(session.backend.jobs)} trials: {session.loop.ended_reason}"
        assert session.num_searched >= 1, case
        if time_s >= 2 * first_s:
            assert session.num_searched >= min(2, num_layouts), case
        assert session.took_s <= max(first_s, time_s + takes.rung_s) + 1e-6, case
        if " allow about " in session.sentence and (expected is None or expected.step_s >= takes.step_s):
            assert session.has_gate, case
        if time_s == BUDGETS_S[-1]:
            assert session.has_gate and session.num_searched == num_layouts, "two hours are enough for all"


def test_a_budget_that_was_named_for_the_gate_holds_it(tmp_path: Path) -> None:
    """Checks budgets that a session asked for in place of its own."""
    for takes in (GPT2, LLAMA, SLOW):
        short = Session(tmp_path, takes, 80.0, 5, takes)
        named = re.fullmatch(
            r"1 min 20 s may be too short for the numerics gate: with 2 layouts and the winner's last run it takes"
            r" about .+ \(predicted\), which --time-budget (\d+) would hold\.",
            short.sentence,
        )
        assert named and not short.has_gate, short.sentence
        enough = Session(tmp_path, takes, float(named[1]), 5, takes)
        assert enough.has_gate and enough.num_searched >= 2 and enough.most_kept_s > TIMING.winner_s
        assert enough.sentence.endswith(
            "of one micro-batch beside the winner's last run and the numerics gate (predicted)."
        )


def test_each_budget_that_is_too_short_is_named(make: Make) -> None:
    rules, expected = ConfirmationRules(repeats=1, gate=GATE), forecast(GPT2, candidates()[0])

    def sentence(**budget: float) -> str:
        return make(rules=rules, forecast=expected, **budget).time_sentence

    assert sentence(time_s=60.0).endswith("which --time-budget 120 would hold.")
    assert sentence(gpu_s=120.0).endswith("which --gpu-s 240 would hold.")
    assert sentence(time_s=60.0, gpu_s=80.0).endswith("which --time-budget 120 and --gpu-s 240 would hold.")
    assert "allow about 3 layouts" in sentence(time_s=3600.0)
    assert "allow about 2 layouts" in sentence(time_s=3600.0, max_trials=2)


def test_a_study_whose_first_trial_was_killed_tells_nothing_before_another_ended(make: Make, backend: Backend) -> None:
    rules = ConfirmationRules(repeats=1, gate=GATE)
    job = make(rules=rules).next_job()
    assert job is not None
    backend.begin(job)
    backend.study.record(Resume())
    resumed = make(rules=rules, time_s=600.0)
    assert not resumed.time_sentence
    backend.step(resumed)
    backend.study.record(Resume())
    assert make(rules=rules, time_s=600.0).time_sentence.endswith("(from the study's trials).")


def test_without_a_budget_or_a_prediction_nothing_is_said(make: Make) -> None:
    assert not make(rules=ConfirmationRules(gate=GATE)).time_sentence
    assert not make(rules=ConfirmationRules(gate=GATE), time_s=60.0).time_sentence
