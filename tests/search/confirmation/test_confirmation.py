"""Final trials that fit the time that is left, and the time that a search leaves for them."""

import dataclasses
import math
from collections.abc import Mapping

import pytest

from platform.search.confirmation.confirmation import Confirmation, ConfirmationPlan
from platform.search.confirmation.confirmation_costs import PROFILED_STEPS, ConfirmationCosts
from platform.search.confirmation.confirmation_trial import ConfirmationTrial
from platform.search.setup.confirmation_rules import ConfirmationRules
from platform.study.history import History
from search_spaces.candidate import Candidate
from tests.samples import CONDITIONS, RECIPE, header, layout, measurement
from tests.wording import Wording
from trainers.profiling import profiled_steps as profiling
from trainers.records.job import GateSize, Timing
from trainers.records.journal import GateCurves, Measured, TrialEnd, TrialStart
from trainers.records.measurement import TRAINING_STATE, Measurement, Outcome
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
GATE = GateSize(steps=20, sequences=32)
RULES = ConfirmationRules(repeats=0, gate=GATE)
COSTS = ConfirmationCosts(start_s=20.0, trial_s=70.0, timing=Timing())
SPEED = 20 * 32 * 2048 / 50.0
"""Tokens/s at which the gate takes 50 s; the reference's is taken to be 2.5 times slower."""
SKETCHING_S = 1.4 * RECIPE.model.num_parameters / 1e9 / FUSED.world_size
RUN_S, GATE_S, REFERENCE_S = 20 + 28 + 80.0, 50.0 + SKETCHING_S, 20 + 125.0 * 21 / 20 + SKETCHING_S
"""Start, warm-up and four steps of 20 s; the gate's steps in that trial; start and the reference's gate of one step
more.
"""
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


def gate_without_curves() -> tuple[TrialStart, TrialEnd]:
    """Returns the lines of a trial that ran the winner's gate alone, and left nothing."""
    key, at = f"{RECIPE.id}-{FUSED.id}", "2026-11-22T08:00:00+00:00"
    start = TrialStart(at=at, trial_id="t0001", key=key, recipe=RECIPE, layout=FUSED, micro_batches=(), repeat=1)
    return start, TrialEnd(at=at, trial_id="t0001", key=key, state="done", wall_s=9.0, gpu_s=9.0, fault="died")


def after(*entries: Measurement | GateCurves) -> History:
    """Returns the history of a study that has these measurements and curves."""
    lines = [Measured(measurement=entry) if isinstance(entry, Measurement) else entry for entry in entries]
    return History(dataclasses.replace(line, at="2026-11-22T08:00:00+00:00") for line in (header(), *lines))


def confirmation(
    history: History,
    rules: ConfirmationRules = RULES,
    candidates: tuple[Candidate, ...] = CANDIDATES,
    expected: Mapping[str, Measurement] | None = None,
) -> Confirmation:
    """Returns what is left to confirm in a session that has not begun any of it; `expected` are predicted winners."""
    return ConfirmationPlan(candidates, rules, expected).at(history)


def reserve_of(left: Confirmation, free_s: float) -> float:
    """Returns what is reserved where the whole budget of `free_s` is free."""
    return left.reserve_s(COSTS, free_s, free_s)


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
        (RUN_S + ENOUGH_S + 50, "held"),  # the gates of another winner are counted with a larger margin
        (ENOUGH_S, "run with gate"),
        (2 * RUN_S, "held"),
        (2 * RUN_S - 1, "run"),
    ],
)
def test_a_point_is_held_only_beside_the_gate_that_would_fit_without_it(left_s: float, expected: str) -> None:
    """Checks a point that filled its memory and was a little faster: its run takes as long as a winner's."""
    thrash = dataclasses.replace(
        ran(PLAIN, speed=1.002 * SPEED), outcome=Outcome.THRASH, reason="no head-room is left",
        peak_allocated_gib=1.7, peak_reserved_gib=1.9,
    )  # fmt: skip
    trial = confirmation(after(ran(), thrash)).next(left_s, COSTS)
    assert trial is not None
    assert ("held" if trial.layout == PLAIN and trial.rungs else kind(trial)) == expected


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
    slowly = dataclasses.replace(COSTS, cold_s=12.0)
    assert kind(confirmation(after(ran())).next(left_s, COSTS)) == expected
    assert kind(confirmation(after(ran())).next(left_s + 12, slowly)) == expected, "in a session that begins with it"
    assert kind(confirmation(after(ran())).next()) == "run with gate", "without a budget always"


def test_a_winner_whose_engine_has_no_training_state_has_no_gate() -> None:
    conditions = dataclasses.replace(CONDITIONS, engine_lacks=(TRAINING_STATE,))
    history = after(dataclasses.replace(ran(), conditions=conditions))
    assert kind(confirmation(history).next()) == "run"


def test_a_winner_that_is_run_again_for_its_gate_alone_has_the_gate_alone_where_there_is_no_time_for_both() -> None:
    """Checks a winner whose time was not derived, so that nothing but the gate asks for another run."""
    history = after(dataclasses.replace(ran(), step_time_derived=False))
    assert kind(confirmation(history).next(1.1 * ALL_S, COSTS)) == "run with gate"
    assert kind(confirmation(history).next(1.1 * ALL_S - 1, COSTS)) == " with gate"
    assert kind(confirmation(history).next(1.1 * (ALONE_S + REFERENCE_S), COSTS)) == " with gate"
    assert kind(confirmation(history).next(1.1 * (ALONE_S + REFERENCE_S) - 1, COSTS)) == "nothing"


def test_its_last_run_begins_only_where_its_windows_and_the_reference_still_fit() -> None:
    leave_s = [trial.leave_s for s in (ENOUGH_S, RUN_S) if (trial := confirmation(after(ran())).next(s, COSTS))]
    assert leave_s == pytest.approx([80.0 + 1.1 * REFERENCE_S, 80.0])


def test_a_reference_is_given_only_where_it_fits() -> None:
    history = after(ran(), curves(), ran(repeat=1))
    assert kind(confirmation(history).next(REFERENCE_S, COSTS)) == "the reference", "its time is spent in part"
    assert kind(confirmation(history).next(REFERENCE_S - 1, COSTS)) == "nothing"
    cut = after(ran(), curves())
    assert kind(confirmation(cut).next(REFERENCE_S, COSTS)) == "the reference", "before the run, which it was cut for"
    assert kind(confirmation(cut).next(REFERENCE_S - 1, COSTS)) == "run"


def test_a_reference_that_ran_is_estimated_at_its_own_speed() -> None:
    history = after(ran(), ran(PLAIN, speed=SPEED / 2))
    assert kind(confirmation(history).next(ENOUGH_S - 1.1 * 26, COSTS)) == "run with gate"
    assert kind(confirmation(history).next(ENOUGH_S - 1.1 * 27, COSTS)) == "run"


def test_a_compiled_reference_compiles_once_more() -> None:
    """Checks one that compiled in its trial's first rung, and one in a later rung, where it takes half as long."""
    first = dataclasses.replace(ran(PLAIN), startup_s=1.0, compile_s=10.0)
    plain_s, first_s, later_s = (
        COSTS.reference_gate_s(GATE, ran(), reference)
        for reference in (ran(PLAIN), first, dataclasses.replace(first, startup_s=None))
    )
    assert (first_s, later_s) == pytest.approx((plain_s + 10, plain_s + 20))


def test_a_winner_that_ran_without_its_gate_has_it_alone_in_a_later_session() -> None:
    history = after(ran(), ran(repeat=1))
    assert kind(confirmation(history).next(1.1 * (ALONE_S + REFERENCE_S) - 1, COSTS)) == "nothing"
    trial = confirmation(history).next(1.1 * (ALONE_S + REFERENCE_S), COSTS)
    assert trial and (kind(trial), trial.layout) == (" with gate", FUSED)
    history.extend(gate_without_curves())
    session = ConfirmationPlan(CANDIDATES, RULES, since=0)
    assert session.at(history).next() is None, "what leaves nothing is not given for ever"
    assert kind(confirmation(history).next()) == " with gate", "though a later session tries again"
    history = after(ran(), ran(repeat=1), curves())
    trial = session.at(history).next()
    assert trial and (kind(trial), trial.layout) == ("the reference", PLAIN)
    assert session.at(after(ran(), ran(repeat=1), curves(), curves(PLAIN, is_reference=True))).next() is None


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
    assert reserve_of(confirmation(after(ran()), candidates=ALONE), free_s) == pytest.approx(reserve_s)
    assert reserve_of(confirmation(after(), candidates=ALONE), free_s) == 0.0, "nothing is known"
    expecting = confirmation(after(), candidates=ALONE, expected={RECIPE.id: ran()})
    assert reserve_of(expecting, free_s) == pytest.approx(reserve_s)


def test_no_gate_is_reserved_for_an_expected_winner_that_is_alone() -> None:
    expecting = confirmation(after(), candidates=ALONE[:1], expected={RECIPE.id: ran()})
    assert reserve_of(expecting, 3000.0) == pytest.approx(RUN_S)


def test_a_profile_is_reserved_for_an_expected_winner() -> None:
    rules = dataclasses.replace(RULES, profile=True)
    expecting = confirmation(after(), rules, ALONE, expected={RECIPE.id: ran()})
    assert expecting.closing_s(COSTS) == pytest.approx((RUN_S, GATE_S + REFERENCE_S, 70.0))


def test_no_time_is_left_for_it_before_each_recipe_was_tried() -> None:
    assert reserve_of(confirmation(after(ran())), 3000.0) == 0.0
    assert reserve_of(confirmation(after(ran(), ran(recipe=OTHER))), 3000.0) > RUN_S
    expecting = confirmation(after(ran()), expected={OTHER.id: ran(recipe=OTHER)})
    assert reserve_of(expecting, 3000.0) > RUN_S, "unless its winner's time is predicted"


def test_where_every_point_is_asked_for_no_time_is_left_for_it_before_each_was_tried() -> None:
    rules = dataclasses.replace(RULES, finalists=None)
    assert reserve_of(confirmation(after(ran()), rules, ALONE), 3000.0) == 0.0
    assert reserve_of(confirmation(after(ran(), ran(PLAIN, speed=SPEED / 2)), rules, ALONE), 3000.0) > RUN_S


def test_a_search_that_goes_on_after_the_final_runs_leaves_time_for_another_winner_s() -> None:
    """Checks a study whose reference has run."""
    passed = after(ran(), ran(repeat=1), curves(), curves(PLAIN, is_reference=True))
    assert confirmation(passed, candidates=ALONE).next() is None
    assert reserve_of(confirmation(passed, candidates=ALONE), 1000.0) == pytest.approx(RUN_S + 1.2 * GATE_S)


def test_a_search_leaves_time_for_finalists_runs_up_to_a_third() -> None:
    rules = dataclasses.replace(RULES, repeats=1)
    closing_s, again_s = RUN_S + 1.2 * (GATE_S + REFERENCE_S), 20 + 40.0
    left = confirmation(after(ran()), rules, ALONE)
    assert reserve_of(left, 3000.0) == pytest.approx(closing_s + again_s)
    assert reserve_of(left, 3 * closing_s + 30) == pytest.approx(closing_s + 10)
    assert reserve_of(left, RUN_S - 1) == 0.0, "none begins before the last run's time"


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
    assert kind(confirmation(after(ran()), dataclasses.replace(RULES, repeats=1)).next(left_s, COSTS)) == expected


def test_no_gate_takes_the_time_of_another_recipe_s_last_run() -> None:
    history = after(ran(), ran(recipe=OTHER))
    assert kind(confirmation(history).next(ENOUGH_S + RUN_S, COSTS)) == "run with gate"
    assert kind(confirmation(history).next(ENOUGH_S + RUN_S - 1, COSTS)) == "run"


BARE = ConfirmationRules(repeats=0)
OVERTAKEN = (ran(), ran(PLAIN, speed=0.98 * SPEED), ran(repeat=1, speed=0.97 * SPEED))


@pytest.mark.parametrize(
    ("rules", "entries", "seconds"),
    [
        (RULES, (ran(),), 14 + RUN_S + 1.2 * (GATE_S + REFERENCE_S)),
        (RULES, (ran(), ran(repeat=1)), 14 + 1.2 * (ALONE_S + REFERENCE_S)),
        (RULES, (ran(), ran(repeat=1), curves()), 14 + 1.2 * REFERENCE_S),
        (RULES, (ran(), curves()), 14 + RUN_S + 1.2 * REFERENCE_S),
        (BARE, (ran(),), 14 + RUN_S),
        (BARE, OVERTAKEN, 14 + RUN_S),
    ],
    ids=["run with gate", "gate", "reference", "reference and run", "run", "overtaken"],
)
def test_what_is_left_out_is_told_with_the_seconds_that_it_takes(
    rules: ConfirmationRules, entries: tuple[Measurement | GateCurves, ...], seconds: float, wording: Wording
) -> None:
    left_out = confirmation(after(*entries), rules, ALONE).left_out(COSTS, 14.0)
    assert f"about {10 * math.ceil(seconds / 10)} s" in left_out
    wording(left_out)


def test_nothing_is_left_out_after_the_last_run() -> None:
    assert not confirmation(after(ran(), ran(repeat=1)), BARE, ALONE).left_out(COSTS, 14.0)


def test_no_winner_is_profiled_before_its_gate() -> None:
    rules = dataclasses.replace(RULES, profile=True)
    assert confirmation(after(ran(), ran(repeat=1)), rules).profile() is None
    passed = after(ran(), ran(repeat=1), curves(), curves(PLAIN, is_reference=True))
    assert confirmation(passed, rules).profile() is not None
    assert confirmation(after(ran()), ConfirmationRules(repeats=0, profile=True)).profile() is not None, (
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
