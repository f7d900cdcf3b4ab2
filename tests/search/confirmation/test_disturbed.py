"""A machine that is busy while the best layouts run again: a fake backend plays the trials, the study is real."""

import random
import re
from collections.abc import Callable, Iterator

import pytest

from platform.common.errors import NOT_RESOLVED
from platform.report.endings import verdict
from platform.report.json_report import as_json
from platform.report.result_files import write_results
from platform.report.summary import verdicts
from platform.search.confirmation.recipe_confirmation import MOST_ROUNDS, SURE_ROUNDS
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.study.result.result import StudyResult
from platform.study.study import Study
from tests.search.loop.backend import LAYOUTS, Backend, Make, fast, history_of, out_of_memory, result
from trainers.records.job import GateSize, Job
from trainers.records.journal import End, Resume
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint

LAST = ConfirmationRules(repeats=0, gate=GateSize(steps=2, sequences=4))
"""The rules of a miniature: the winner's last run alone, with its gate."""
FASTEST = {LAYOUTS[0]: 4000.0, LAYOUTS[1]: 3900.0, LAYOUTS[2]: 3800.0}
"""Tokens/s at micro-batch 4 on a quiet machine."""


def search_then(again: Callable[[Job], float | None]) -> Callable[[Job, BatchPoint], Measurement]:
    """Returns the search on a quiet machine, its times derived, followed by the layout's run `again`."""

    def play(job: Job, batch: BatchPoint) -> Measurement:
        if not job.repeat:
            return result(job, batch, fast(job, batch).tokens_per_s, step_time_derived=True, others_busy_pct=(3.0,))
        speed = again(job)
        if speed is None:
            return out_of_memory(job, batch)
        return result(job, batch, speed, others_busy_pct=(81.0,))

    return play


def noise() -> Callable[[Job], float]:
    """Returns runs that are no evidence of the order: each has a random speed."""
    factors: Iterator[float] = iter([0.45, 0.9, 0.5, 0.85, 0.4, 0.95] * 20)
    return lambda job: FASTEST[job.layout] * next(factors)


def test_contenders_run_in_turn_until_their_order_is_resolved(make: Make, backend: Backend, study: Study) -> None:
    """Checks that the layouts keep their order where two busy processes halve the speed of every run."""
    backend.play = search_then(lambda job: FASTEST[job.layout] / 2)
    backend.run(make(rules=LAST))
    ran = [(job.layout, job.repeat) for job in backend.jobs[3:] if job.rungs]
    assert ran[0] == (LAYOUTS[0], 1) and {layout for layout, repeat in ran if repeat == 2} == set(LAYOUTS)
    history = history_of(study)
    best = StudyResult.of(history).of_study[0].winner
    assert best is not None and best.layout == LAYOUTS[0]
    assert verdict(StudyResult.of(history)) == (0, "") and len(history.gates) == 2, (
        "the gate's reference runs once they are resolved"
    )
    sentences = " ".join(verdicts(StudyResult.of(history)))
    assert (
        "The machine was disturbed" in sentences
        and "other processes took 3, then 81 % of the processors" in sentences
        and "Fastest" in sentences
    )


def test_a_contender_that_takes_the_lead_has_its_last_run_with_the_gate(
    make: Make, backend: Backend, study: Study
) -> None:
    backend.play = search_then(lambda job: FASTEST[job.layout] * (0.6 if job.layout == LAYOUTS[1] else 0.4))
    backend.run(make(rules=LAST))
    best = StudyResult.of(history_of(study)).of_study[0].winner
    assert best is not None and best.layout == LAYOUTS[1]
    last = [job.layout for job in backend.jobs if job.is_winner_run and job.rungs]
    assert last == [LAYOUTS[0], LAYOUTS[1]], "whatever rounds it had before"


def test_a_layout_stopped_as_slow_runs_again_where_the_winner_s_runs_fell_below_its_figure(
    make: Make, backend: Backend, study: Study
) -> None:
    """Checks that no layout is named the fastest with a small part of what another had when it was stopped."""
    again = search_then(lambda job: FASTEST[job.layout] / (20 if job.repeat == 1 else 1))

    def play(job: Job, batch: BatchPoint) -> Measurement:
        if job.repeat or (job.layout == LAYOUTS[0] and batch.micro_batch == 4):
            return again(job, batch)
        if job.layout == LAYOUTS[0]:
            return result(job, batch, 100.0)
        return result(job, batch, 1000.0, outcome=Outcome.SLOW)

    backend.play = play
    backend.run(make(rules=LAST))
    ran = {job.layout for job in backend.jobs if job.rungs and job.repeat > 1}
    assert LAYOUTS[0] in ran and len(ran) > 1
    best = StudyResult.of(history_of(study)).of_study[0].winner
    assert best is not None and best.tokens_per_s and best.tokens_per_s >= FASTEST[LAYOUTS[2]]


def test_a_passing_disturbance_costs_a_few_runs_and_no_verdict(make: Make, backend: Backend, study: Study) -> None:
    backend.play = search_then(lambda job: FASTEST[job.layout] / (2 if job.repeat == 1 else 1))
    backend.run(make(rules=LAST))
    best = StudyResult.of(history_of(study)).of_study[0].winner
    assert best is not None and (best.layout, best.tokens_per_s) == (LAYOUTS[0], 4000.0)


def test_on_a_quiet_machine_nothing_runs_again(make: Make, backend: Backend) -> None:
    backend.play = search_then(lambda job: FASTEST[job.layout] * 0.99)
    backend.run(make(rules=LAST))
    assert [job.repeat for job in backend.jobs if job.rungs] == [0, 0, 0, 1]


def test_where_it_stays_open_no_winner_is_named_and_a_resumed_study_goes_on_with_them(
    make: Make, backend: Backend, study: Study
) -> None:
    backend.play = search_then(noise())
    loop = make(rules=LAST)
    backend.run(loop)
    assert {job.repeat for job in backend.jobs if job.repeat > 1} == set(range(2, 2 + SURE_ROUNDS))
    history = history_of(study)
    assert verdict(StudyResult.of(history)) == (NOT_RESOLVED, "")
    assert re.search(r"^further runs of \d contenders \(those so far took .+ s, the search 24 s\)$", loop.left_out)
    study.record(End(exit_code=NOT_RESOLVED, wall_s=1, gpu_s=2, left_out=loop.left_out, tried_all=True, why="it ended"))
    (study.path / "layout.json").write_text("an earlier session's")
    (study.path / "ds_config.json").write_text("{}")
    files = {path.name for path in write_results(study.path, StudyResult.of(history_of(study)))}
    assert "measurements.csv" in files and not (study.path / "layout.json").exists()
    assert not (study.path / "ds_config.json").exists()
    data = as_json(StudyResult.of(history_of(study)))
    assert data["winner"] is None and len(data["unresolved"]) >= 2 and data["unresolved"][0]["search_tokens_per_s"]
    lines = verdicts(StudyResult.of(history_of(study)))
    assert lines[0].startswith("Not resolved between ")
    assert "other processes took 3, then 81 % of the processors" in lines[0]
    assert not any(sentence.startswith("Fastest") for sentence in lines)

    study.record(Resume())
    before = len(backend.jobs)
    backend.play = search_then(lambda job: FASTEST[job.layout])
    for _ in range(3):  # the quiet rounds must come to outweigh the noisy ones
        if StudyResult.of(history_of(study)).of_study[0].unresolved:
            backend.run(make(rules=LAST), max_trials=100)
    assert backend.jobs[before].repeat > 1, "it begins with the contenders"
    best = StudyResult.of(history_of(study)).of_study[0].winner
    assert best is not None and best.layout == LAYOUTS[0]


@pytest.mark.parametrize("time_s", [60.0, 130.0, 280.0])
def test_a_budget_is_spent_on_contenders_whose_order_stays_open(make: Make, backend: Backend, time_s: float) -> None:
    """Checks that no more is left than a run takes, of 6 s; six rounds of three take 108 s."""
    factors = random.Random(0)
    backend.play = search_then(lambda job: FASTEST[job.layout] * factors.uniform(0.4, 0.95))
    loop = make(rules=LAST, time_s=time_s)
    backend.run(loop, max_trials=100)
    assert 0 <= loop.spending.time_left_s() < 6.0 and "contenders" in loop.left_out


def test_more_rounds_run_while_they_take_no_longer_than_the_search(make: Make, backend: Backend) -> None:
    quiet = search_then(noise())

    def play(job: Job, batch: BatchPoint) -> Measurement:
        backend.clock.now_s += 0 if job.repeat else 8  # nine rungs: a search of 96 s, and rounds of 18
        return quiet(job, batch)

    backend.play = play
    backend.run(make(rules=LAST), max_trials=100)
    repeats = {job.repeat for job in backend.jobs}
    assert SURE_ROUNDS < max(repeats) - 1 == 96 // 18 < MOST_ROUNDS


def test_a_contender_that_is_lost_in_a_run_leaves_the_others(make: Make, backend: Backend, study: Study) -> None:
    backend.play = search_then(lambda job: None if job.layout == LAYOUTS[1] else FASTEST[job.layout] / 2)
    backend.run(make(rules=LAST))
    best = StudyResult.of(history_of(study)).of_study[0].winner
    assert best is not None and best.layout == LAYOUTS[0]
    assert sum(job.layout == LAYOUTS[1] and job.repeat > 0 for job in backend.jobs) == 1


def test_no_winner_is_profiled_while_there_is_none(make: Make, backend: Backend) -> None:
    backend.play = search_then(noise())
    backend.run(make(rules=ConfirmationRules(repeats=0, profile=True)), max_trials=80)
    assert not any(job.profile for job in backend.jobs)
