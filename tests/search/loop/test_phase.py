"""The phases through which a session goes, trial by trial, on a real study and journal."""

import dataclasses

from platform.search.loop.phase import SessionPhase
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.study.study import Study
from tests.search.loop.backend import LAYOUTS, RECIPE, Backend, Make, candidates, result
from tests.search.loop.backend import OTHER as OTHER_RECIPE
from trainers.records.job import GateSize, Job
from trainers.records.journal import End, Resume
from trainers.records.measurement import Measurement
from trainers.spec.batch import BatchPoint

RULES = ConfirmationRules(repeats=1, finalists=2, gate=GateSize(steps=2, sequences=4), profile=True)
FINALS = [
    SessionPhase.CONFIRMING,
    SessionPhase.CONFIRMING,
    SessionPhase.LAST_RUN,
    SessionPhase.GATING,
    SessionPhase.PROFILING,
]


def earlier_layouts_are_faster(job: Job, batch: BatchPoint) -> Measurement:
    """Returns a measurement of which earlier layouts are faster, so that the winner's numerics gate has a reference."""
    return result(job, batch, 1000.0 - 100.0 * LAYOUTS.index(job.layout))


def phases(make: Make, backend: Backend, **options: object) -> list[SessionPhase]:
    """Returns the phase of each trial of a session, then that in which it ends."""
    loop = make(**options)
    recorded: list[SessionPhase] = []
    while backend.step(loop) is not None:
        recorded.append(loop.phase)
    return [*recorded, loop.phase]


def test_a_search_is_followed_by_each_final_phase_in_turn(make: Make, backend: Backend) -> None:
    backend.play = earlier_layouts_are_faster
    assert phases(make, backend, rules=RULES) == [*[SessionPhase.SEARCHING] * 3, *FINALS, SessionPhase.ENDED]
    assert [phase for phase in SessionPhase if phase.is_terminal] == [SessionPhase.ENDED, SessionPhase.FAULTED]


def test_without_rules_the_session_ends_with_the_search(make: Make, backend: Backend) -> None:
    assert phases(make, backend) == [*[SessionPhase.SEARCHING] * 3, SessionPhase.ENDED]


def test_a_session_that_goes_on_with_final_runs_begins_with_them_and_searches_after_them(
    make: Make, backend: Backend, study: Study
) -> None:
    """Checks a gate whose reference is a layout that the first session did not try: the reference runs after
    the search.
    """
    backend.play = earlier_layouts_are_faster
    loop = make(rules=RULES, max_trials=2)
    while backend.step(loop) is not None and loop.phase is not SessionPhase.CONFIRMING:
        pass
    study.record(End(exit_code=0, wall_s=30, gpu_s=60, left_out=loop.left_out))
    study.record(Resume())
    order = phases(make, backend, rules=RULES)
    assert order[:2] == FINALS[1:3] and SessionPhase.SEARCHING in order[2:] and order[-1] is SessionPhase.ENDED
    assert not any(phase is SessionPhase.CONFIRMING for phase in order[1:])


def test_two_layouts_of_a_recipe_that_was_not_tried_are_searched_before_its_final_runs(
    make: Make, backend: Backend, study: Study
) -> None:
    backend.play = earlier_layouts_are_faster
    backend.run(make(rules=RULES))
    study.record(Resume())
    both = candidates(RECIPE, OTHER_RECIPE)
    order = phases(make, backend, within=both, rules=RULES)
    assert order[:3] == [SessionPhase.SEARCHING] * 2 + [SessionPhase.CONFIRMING] and order[-1] is SessionPhase.ENDED
    assert order.count(SessionPhase.SEARCHING) == 3, "the others come after the final runs that were left out"


def test_contenders_run_where_the_machine_was_disturbed(make: Make, backend: Backend) -> None:
    def play(job: Job, batch: BatchPoint) -> Measurement:
        figure = earlier_layouts_are_faster(job, batch)
        slowed = (figure.tokens_per_s or 0.0) * (0.5 if job.repeat == 1 else 1.0)
        return dataclasses.replace(figure, tokens_per_s=slowed)

    backend.play = play
    order = phases(make, backend, rules=dataclasses.replace(RULES, gate=None, profile=False))
    assert SessionPhase.CONTENDING in order
    assert order.index(SessionPhase.CONFIRMING) < order.index(SessionPhase.CONTENDING), (
        "the finalists' runs show the disturbance"
    )


def test_a_faulty_cluster_ends_the_session_in_a_phase_of_its_own(make: Make, backend: Backend) -> None:
    loop = make(rules=RULES)
    for _ in range(3):
        assert loop.next_job() is not None and not loop.phase.is_terminal
        loop.on_trial_end(state="failed", reason="no room for two workers", started=False)
    assert loop.next_job() is None and loop.phase is SessionPhase.FAULTED


def test_a_decision_begins_no_trial_and_writes_nothing(make: Make, study: Study) -> None:
    loop, before = make(), study.journal.read_bytes()
    decision = loop.decide()
    assert decision.phase is SessionPhase.SEARCHING and decision.job is not None and loop.running is None
    assert study.journal.read_bytes() == before
