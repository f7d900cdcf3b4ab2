"""Final trials that fit the time that is left, and the time that a search leaves for them."""

import dataclasses

import pytest

from platform.search.confirmation.confirmation_costs import PROFILED_STEPS, ConfirmationCosts
from platform.search.confirmation.confirmation_trial import ConfirmationTrial
from platform.search.confirmation.scheduler import ConfirmationScheduler
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.study.history import History
from search_spaces.candidate import Candidate
from tests.samples import CONDITIONS, RECIPE, header, layout, measurement
from trainers.profiling import profiled_steps as profiling
from trainers.records.job import GateSize, Timing
from trainers.records.journal import GateCurves, Measured
from trainers.records.measurement import TRAINING_STATE, Measurement
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

FUSED, PLAIN = layout(attention="flex", loss="chunked", compile="block"), layout(checkpointing="full")
OTHER = dataclasses.replace(RECIPE, global_batch=256)
CANDIDATES = tuple(
    Candidate(recipe=recipe, layout=candidate_layout, micro_batches=(4,))
    for recipe in (RECIPE, OTHER)
    for candidate_layout in (FUSED, PLAIN)
)
ALONE = CANDIDATES[:2]
"""The candidates of one recipe."""
RULES = ConfirmationRules(repeats=0, gate=GateSize(steps=20, sequences=32))
COSTS = ConfirmationCosts(start_s=20.0, trial_s=70.0, timing=Timing())
SPEED = 20 * 32 * 2048 / 50.0
"""Tokens/s at which the gate takes 50 s; the reference's is taken to be 2.5 times slower."""
RUN_S, GATE_S, REFERENCE_S = 20 + 28 + 80.0, 50.0, 20 + 28 + 125.0
"""Start, warm-up and four steps of 20 s; the gate's steps in that trial; start, warm-up and the reference's gate."""
ALONE_S = 20 + 28 + GATE_S
"""The winner's gate in a trial of its own."""
ALL_S = RUN_S + GATE_S + REFERENCE_S
ENOUGH_S = RUN_S + 1.1 * (GATE_S + REFERENCE_S)
"""Enough time for all final trials: a tenth more for the gates, which have no stop of their own."""


def ran(on: Layout = FUSED, recipe: Recipe = RECIPE, repeat: int = 0, speed: float = SPEED) -> Measurement:
    """Returns a run at micro-batch 4, whose first step takes 24 s and each other step 4 s; its step time is derived."""
    return measurement(
        on=on, recipe=recipe, micro_batch=4, repeat=repeat, tokens_per_s=speed, step_time_derived=True,
        windows_s=(4.0,) * 3, step_times_s=(24.0, *(4.0,) * 4), warmup_steps=2,
    )  # fmt: skip


def curves(on: Layout = FUSED, *, is_reference: bool = False) -> GateCurves:
    """Returns the curves of a layout's gate."""
    return GateCurves(
        trial_id="t1", recipe=RECIPE, layout=on, steps=20, sequences=32, losses=(1.0,), grad_norms=(1.0,),
        is_reference=is_reference,
    )  # fmt: skip


def after(*entries: Measurement | GateCurves) -> History:
    """Returns the history of a study that has these measurements and curves."""
    lines = [Measured(measurement=entry) if isinstance(entry, Measurement) else entry for entry in entries]
    return History(dataclasses.replace(line, at="2026-11-22T08:00:00+00:00") for line in (header(), *lines))


def confirmation(
    rules: ConfirmationRules = RULES, candidates: tuple[Candidate, ...] = CANDIDATES
) -> ConfirmationScheduler:
    """Returns the final trials of a session that has not begun any."""
    return ConfirmationScheduler(candidates, rules)


def reserve_of(session: ConfirmationScheduler, history: History, free_s: float) -> float:
    """Returns what is reserved where the whole budget of `free_s` is free."""
    return session.reserve_s(history, COSTS, free_s, free_s)


def kind(trial: ConfirmationTrial | None) -> str:
    """Returns words for the kind of the trial."""
    if trial is None:
        return "nothing"
    if not trial.is_winner_run:
        return "a finalist's run" if trial.rungs else "the reference"
    return ("run" if trial.rungs else "") + (" with gate" if trial.gate else "")


@pytest.mark.parametrize(
    ("left_s", "expected"),
    [
        (ENOUGH_S, "run with gate"),
        (ENOUGH_S - 1, "run"),
        (RUN_S, "run"),
        (RUN_S - 1, "nothing"),
    ],
)
def test_a_winner_has_its_gate_where_there_is_time_for_the_reference_s_too(left_s: float, expected: str) -> None:
    assert kind(confirmation().next(after(ran()), left_s, COSTS)) == expected
    assert kind(confirmation().next(after(ran()))) == "run with gate", "without a budget always"


def test_a_winner_whose_engine_has_no_training_state_has_no_gate() -> None:
    conditions = dataclasses.replace(CONDITIONS, engine_lacks=(TRAINING_STATE,))
    history = after(dataclasses.replace(ran(), conditions=conditions))
    assert kind(confirmation().next(history)) == "run"


def test_a_winner_that_is_run_again_for_its_gate_alone_has_the_gate_alone_where_there_is_no_time_for_both() -> None:
    """Checks a winner whose time was not derived, so that nothing but the gate asks for another run."""
    history = after(dataclasses.replace(ran(), step_time_derived=False))
    assert kind(confirmation().next(history, 1.1 * ALL_S, COSTS)) == "run with gate"
    assert kind(confirmation().next(history, 1.1 * ALL_S - 1, COSTS)) == " with gate"
    assert kind(confirmation().next(history, 1.1 * (ALONE_S + REFERENCE_S), COSTS)) == " with gate"
    assert kind(confirmation().next(history, 1.1 * (ALONE_S + REFERENCE_S) - 1, COSTS)) == "nothing"


def test_its_last_run_begins_only_where_its_windows_and_the_reference_still_fit() -> None:
    leave_s = [trial.leave_s for s in (ENOUGH_S, RUN_S) if (trial := confirmation().next(after(ran()), s, COSTS))]
    assert leave_s == pytest.approx([80.0 + 1.1 * REFERENCE_S, 80.0])


def test_a_reference_is_given_only_where_it_fits() -> None:
    history = after(ran(), curves(), ran(repeat=1))
    assert kind(confirmation().next(history, REFERENCE_S, COSTS)) == "the reference", "its time is spent in part"
    assert kind(confirmation().next(history, REFERENCE_S - 1, COSTS)) == "nothing"
    cut = after(ran(), curves())
    assert kind(confirmation().next(cut, REFERENCE_S, COSTS)) == "the reference", "before the run, which it was cut for"
    assert kind(confirmation().next(cut, REFERENCE_S - 1, COSTS)) == "run"


def test_a_reference_that_ran_is_estimated_at_its_own_speed() -> None:
    history = after(ran(), ran(PLAIN, speed=SPEED / 2))
    assert kind(confirmation().next(history, ENOUGH_S - 1.1 * 25, COSTS)) == "run with gate"
    assert kind(confirmation().next(history, ENOUGH_S - 1.1 * 26, COSTS)) == "run"


def test_a_winner_that_ran_without_its_gate_has_it_alone_in_a_later_session() -> None:
    history = after(ran(), ran(repeat=1))
    assert kind(confirmation().next(history, 1.1 * (ALONE_S + REFERENCE_S) - 1, COSTS)) == "nothing"
    session = confirmation()
    trial = session.next(history, 1.1 * (ALONE_S + REFERENCE_S), COSTS)
    assert trial and (kind(trial), trial.layout) == (" with gate", FUSED)
    session.started(trial)
    assert session.next(history) is None, "what leaves nothing is not given for ever"
    history = after(ran(), ran(repeat=1), curves())
    trial = session.next(history)
    assert trial and (kind(trial), trial.layout) == ("the reference", PLAIN)
    assert session.next(after(ran(), ran(repeat=1), curves(), curves(PLAIN, is_reference=True))) is None


@pytest.mark.parametrize(
    ("free_s", "reserve_s"),
    [
        (ENOUGH_S, RUN_S + 1.2 * (GATE_S + REFERENCE_S)),
        (ENOUGH_S - 1, RUN_S),
        (RUN_S, RUN_S),
        (RUN_S - 1, 0.0),
    ],
)
def test_a_search_leaves_time_for_what_fits_into_the_budget(free_s: float, reserve_s: float) -> None:
    """Checks a winner that ran, and one that is only expected."""
    assert reserve_of(confirmation(candidates=ALONE), after(ran()), free_s) == pytest.approx(reserve_s)
    assert reserve_of(confirmation(candidates=ALONE), after(), free_s) == 0.0, "nothing is known"
    expecting = ConfirmationScheduler(ALONE, RULES, {RECIPE.id: ran()})
    assert reserve_of(expecting, after(), free_s) == pytest.approx(reserve_s)


def test_no_gate_is_reserved_for_an_expected_winner_that_is_alone() -> None:
    expecting = ConfirmationScheduler(ALONE[:1], RULES, {RECIPE.id: ran()})
    assert reserve_of(expecting, after(), 3000.0) == pytest.approx(RUN_S)


def test_a_profile_is_reserved_for_an_expected_winner() -> None:
    rules = dataclasses.replace(RULES, profile=True)
    expecting = ConfirmationScheduler(ALONE, rules, {RECIPE.id: ran()})
    assert expecting.closing_s(after(), COSTS) == pytest.approx((RUN_S, GATE_S + REFERENCE_S, 70.0))


def test_no_time_is_left_for_it_before_each_recipe_was_tried() -> None:
    assert reserve_of(confirmation(), after(ran()), 3000.0) == 0.0
    assert reserve_of(confirmation(), after(ran(), ran(recipe=OTHER)), 3000.0) > RUN_S
    expecting = ConfirmationScheduler(CANDIDATES, RULES, {OTHER.id: ran(recipe=OTHER)})
    assert reserve_of(expecting, after(ran()), 3000.0) > RUN_S, "unless its winner's time is predicted"


def test_where_every_point_is_asked_for_no_time_is_left_for_it_before_each_was_tried() -> None:
    every = confirmation(dataclasses.replace(RULES, finalists=None), ALONE)
    assert reserve_of(every, after(ran()), 3000.0) == 0.0
    assert reserve_of(every, after(ran(), ran(PLAIN, speed=SPEED / 2)), 3000.0) > RUN_S


def test_a_search_that_goes_on_after_the_final_runs_leaves_time_for_another_winner_s() -> None:
    """Checks a study whose reference has run."""
    passed = after(ran(), ran(repeat=1), curves(), curves(PLAIN, is_reference=True))
    assert confirmation(candidates=ALONE).next(passed) is None
    assert reserve_of(confirmation(candidates=ALONE), passed, 1000.0) == pytest.approx(RUN_S + 1.2 * GATE_S)


def test_a_search_leaves_time_for_finalists_runs_up_to_a_third() -> None:
    rules = dataclasses.replace(RULES, repeats=1)
    closing_s, again_s = RUN_S + 1.2 * (GATE_S + REFERENCE_S), 20 + 40.0
    assert reserve_of(confirmation(rules, ALONE), after(ran()), 3000.0) == pytest.approx(closing_s + again_s)
    assert reserve_of(confirmation(rules, ALONE), after(ran()), 3 * closing_s + 30) == pytest.approx(closing_s + 10)
    assert reserve_of(confirmation(rules, ALONE), after(ran()), RUN_S - 1) == 0.0, (
        "none begins before the last run's time"
    )


@pytest.mark.parametrize(
    ("left_s", "expected"),
    [
        (60 + RUN_S + 1.2 * (GATE_S + REFERENCE_S), "a finalist's run"),
        (60 + RUN_S + 1.2 * (GATE_S + REFERENCE_S) - 1, "run with gate"),
        (ENOUGH_S - 1, "a finalist's run"),
        (60 + RUN_S, "a finalist's run"),
        (60 + RUN_S - 1, "run"),
    ],
)
def test_a_finalist_runs_again_where_that_costs_the_winner_nothing(left_s: float, expected: str) -> None:
    """Checks that, where there is no time for the gate anyway, only the winner's last run has to fit after a
    finalist's.
    """
    assert kind(confirmation(dataclasses.replace(RULES, repeats=1)).next(after(ran()), left_s, COSTS)) == expected


def test_no_gate_takes_the_time_of_another_recipe_s_last_run() -> None:
    history = after(ran(), ran(recipe=OTHER))
    assert kind(confirmation().next(history, ENOUGH_S + RUN_S, COSTS)) == "run with gate"
    assert kind(confirmation().next(history, ENOUGH_S + RUN_S - 1, COSTS)) == "run"


def test_what_is_left_out_is_told_with_the_seconds_that_it_takes() -> None:
    confirmation_of_two = confirmation(candidates=CANDIDATES[:2])
    assert confirmation_of_two.left_out(after(ran()), COSTS, 14.0) == (
        "the winner's last run with the numerics gate (about 410 s more)"  # 14 + 128 + 1.2 x 223
    )
    sentence = confirmation_of_two.left_out(after(ran(), ran(repeat=1)), COSTS, 14.0)
    assert sentence == "the winner's numerics gate (about 340 s more)"  # 14 + 1.2 x 271
    sentence = confirmation_of_two.left_out(after(ran(), ran(repeat=1), curves()), COSTS, 14.0)
    assert sentence == "the reference of the numerics gate (about 230 s more)"  # 14 + 1.2 x 173
    cut = confirmation_of_two.left_out(after(ran(), curves()), COSTS, 14.0)
    assert cut == "the reference of the numerics gate and the winner's last run (about 350 s more)"  # and 128
    bare = confirmation(ConfirmationRules(repeats=0), CANDIDATES[:2])
    assert bare.left_out(after(ran()), COSTS, 14.0) == "the winner's last run (about 150 s more)"
    assert not bare.left_out(after(ran(), ran(repeat=1)), COSTS, 14.0)
    behind = after(ran(), ran(PLAIN, speed=0.98 * SPEED), ran(repeat=1, speed=0.97 * SPEED))
    sentence = bare.left_out(behind, COSTS, 14.0)
    assert sentence == "the last run of a point that was faster than the winner's (about 150 s more)"


def test_no_winner_is_profiled_before_its_gate() -> None:
    rules = dataclasses.replace(RULES, profile=True)
    assert confirmation(rules).profile(after(ran(), ran(repeat=1))) is None
    passed = after(ran(), ran(repeat=1), curves(), curves(PLAIN, is_reference=True))
    assert confirmation(rules).profile(passed) is not None
    assert confirmation(ConfirmationRules(repeats=0, profile=True)).profile(after(ran())) is not None, (
        "without a gate it needs none"
    )


def test_a_profile_has_few_short_steps_however_long_those_of_a_rung_are() -> None:
    """Checks a whole step of 128 micro-steps, 36 s long, whose first short one took 24 s."""
    batch = BatchPoint(micro_batch=4, grad_accum=128)
    long = dataclasses.replace(ran(), batch=batch, step_time_s=36.0, last_micro_step_s=0.3)
    assert COSTS.profile_s(long) == 70.0, "rungs that fill their time are as long as any"
    for timing in (Timing(whole_steps=True), Timing(steps=100)):
        costs = dataclasses.replace(COSTS, timing=timing)
        assert costs.profile_s(long) == pytest.approx(20 + 24 + 7 * 36 * 3 / 128)
    pipeline = dataclasses.replace(long, last_micro_step_s=None)
    assert costs.profile_s(pipeline) == 20 + 24 + 7 * 36, "its schedule is profiled whole"


def test_a_profile_s_steps_are_counted() -> None:
    assert profiling.WARMUP_STEPS + 1 + profiling.STEPS == PROFILED_STEPS


def test_where_few_micro_steps_take_longer_than_a_step_may_these_are_what_is_timed() -> None:
    assert COSTS.measuring_s(ran()) == 4 * 20
    assert COSTS.measuring_s(dataclasses.replace(ran(), windows_s=(30.0,) * 3)) == 4 * 30
    assert COSTS.measuring_s(dataclasses.replace(ran(), step_time_s=5.0)) == 5 + 30


def test_a_last_run_of_whole_steps_warms_up_as_the_search_did() -> None:
    """Checks a step of 36 s, and one of 5 s."""
    costs = dataclasses.replace(COSTS, timing=Timing(whole_steps=True))
    short = dataclasses.replace(ran(), step_time_derived=False, step_time_s=5.0, windows_s=(5.0,) * 3)
    assert costs.measuring_s(dataclasses.replace(short, step_time_s=36.0, windows_s=(36.0,) * 3)) == 3 * 36
    assert costs.measuring_s(short) == 30
