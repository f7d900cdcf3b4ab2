"""The search of a stand-in within its own budget: a fake backend plays trials as long as they were measured."""

import pytest

import search_spaces
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.search.setup.study_setup import GATES, TIMINGS
from platform.study.result.result import StudyResult
from platform.study.study import Study
from search_spaces.candidate import Candidate
from search_spaces.miniature import TIME_BUDGET_S
from tests.search.loop.backend import RECIPE, Backend, Make, history_of, out_of_memory, result
from trainers.records.job import Job
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.batch import BatchPoint

FIRST_START_S, START_S, GATE_S = 14.0, 10.5, 1.5
"""Seconds of the first trial's start, of later ones' and of a gate in a search of bloom7b's stand-in on two cores of an
EPYC at a load of 2 to 3, 2026-11-28.
"""
STEPS_S = {4: 1.2, 8: 1.4}
"""Seconds of a step by micro-batch there; five are run, two of them to warm up. The figures follow from them, because
the gate's seconds are estimated from these.
"""


@pytest.mark.parametrize("slowdown", [1.0, 2.0, 2.5, 3.0])
def test_it_ends_with_a_memory_error_repeats_and_a_gate(
    make: Make, backend: Backend, study: Study, slowdown: float
) -> None:
    """Checks that all of it takes less than four minutes with 25 s for Ray, and the budget where two busy loops take
    half of the cores; that on busier ones a winner and its gate stay, and runs in pairs.
    """
    miniature = search_spaces.load("bloom7b").miniature
    assert miniature is not None and miniature.repeats
    layouts = [candidate.layout for candidate in miniature.candidates(2)[0]]
    within = [Candidate(recipe=RECIPE, layout=on, micro_batches=miniature.micro_batches) for on in layouts]

    def play(job: Job, batch: BatchPoint) -> Measurement:
        backend.clock.now_s += (FIRST_START_S - START_S) * slowdown * (len(backend.jobs) == 1)
        if batch.micro_batch == 8:
            backend.clock.now_s += STEPS_S[8] * slowdown
            return out_of_memory(job, batch)
        steps_s = (STEPS_S[batch.micro_batch] * slowdown / (1 + layouts.index(job.layout) / 15),) * 5
        backend.clock.now_s += sum(steps_s)
        return result(job, batch, RECIPE.tokens_per_step / steps_s[0], step_times_s=steps_s, warmup_steps=2)

    backend.play, backend.rung_s = play, 0.0
    backend.start_s, backend.gate_s = START_S * slowdown, GATE_S * slowdown
    rules = ConfirmationRules(repeats=miniature.repeats, finalists=miniature.finalists, gate=GATES["cpu"])
    loop = make(within, rules=rules, timing=TIMINGS["cpu"], time_s=miniature.time_budget_s, of_space=True)
    began_s = backend.clock.now_s
    backend.run(loop)
    won = StudyResult.of(history_of(study)).by_id[RECIPE.id]
    assert won.winner is not None and won.gate is not None and won.gate.passed and bool(loop.left_out) == (slowdown > 2)
    assert won.winning_point is not None and won.winning_point.runs
    beside = [{run.repeat for run in point.runs if run.repeat <= rules.repeats} for point in won.points if point.runs]
    assert set.intersection(*beside) == set.union(*beside), "no run without another one beside it"
    assert any(row.outcome is Outcome.OOM for row in won.measurements)
    assert backend.clock.now_s - began_s < (TIME_BUDGET_S if slowdown > 1 else 215.0)
