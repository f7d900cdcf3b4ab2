"""Points that remain to be compared where the machine was disturbed."""

import pytest

from platform.search.confirmation.run_order import ConfirmationRun, contenders_run
from platform.study.result.ranking import points
from platform.study.result.result import RecipeResult
from tests.samples import layout, measurement, result_of
from trainers.records.measurement import Measurement, Outcome
from trainers.spec.layout import Layout

ONE, TWO, THREE, FOUR = (
    layout(),
    layout(checkpointing="full"),
    layout(zero_stage=2),
    layout(zero_stage=2, checkpointing="full"),
)


def runs(on: Layout, *speeds: float, first: int = 0) -> list[Measurement]:
    """Returns the layout's run in the search and the runs after it; where `first` is above 0, only runs in processes of
    their own.
    """
    return [measurement(on=on, tokens_per_s=speed, repeat=first + number) for number, speed in enumerate(speeds)]


def judged(measurements: list[Measurement]) -> RecipeResult:
    return result_of(measurements).of_study[0]


def layouts(measurements: list[Measurement]) -> list[Layout]:
    return [point.main_run.layout for point in judged(measurements).contenders]


def test_a_winner_that_falls_far_below_its_search_figure_has_the_ones_below_it_as_contenders() -> None:
    """Checks figures that `make search` printed on a busy machine: a winner half as fast as the rows below it."""
    busy = [*runs(ONE, 5000, 2211), *runs(TWO, 4855), *runs(THREE, 4843), *runs(FOUR, 2000)]
    assert layouts(busy) == [ONE, TWO, THREE]
    assert [point.main_run.layout for point in judged(busy).unresolved] == [ONE, TWO, THREE]
    assert judged(busy).winner is None


@pytest.mark.parametrize(
    ("first", "two"),
    [
        ((5000, 4990, 4980), (4990, 4900, 4870)),
        ((5000, 4600), (4990,)),
        ((5000, 4995), (4990,)),
        ((5000,), (4990,)),
    ],
)
def test_ties_and_near_orders_on_a_quiet_machine_have_a_winner(
    first: tuple[float, ...], two: tuple[float, ...]
) -> None:
    quiet = [*runs(ONE, *first), *runs(TWO, *two)]
    assert judged(quiet).contenders == () and judged(quiet).unresolved == ()
    best = judged(quiet).winner
    assert best is not None and best.layout == ONE


def test_a_point_is_disturbed_beyond_ten_per_cent_and_beyond_its_own_interval() -> None:
    def disturbed(search: float, *again: float, windows_s: tuple[float, ...] = (1.0, 1.01, 0.99)) -> bool:
        first = measurement(on=ONE, tokens_per_s=search, windows_s=windows_s)
        (point,) = points([first, *runs(ONE, *again, first=1)])
        return point.disturbed

    assert not disturbed(1000) and not disturbed(1000, 905) and disturbed(1000, 890) and disturbed(1000, 1110)
    assert not disturbed(1000, 890, windows_s=(1.0, 1.2, 0.8)), "its windows were as far apart"
    assert not disturbed(1000, 400, 995, 1005), "one run of three: the median counts"


def test_a_run_that_was_disturbed_does_not_stand_for_a_point_whose_others_agree() -> None:
    speeds = (1000, 1000, 990, 1010)
    short = [measurement(on=ONE, tokens_per_s=speed, repeat=n, measured_grad_accum=3) for n, speed in enumerate(speeds)]
    long = measurement(on=ONE, tokens_per_s=400, repeat=4, measured_grad_accum=64)
    (point,) = points([*short, long])
    assert point.main_run.tokens_per_s == 990


def test_runs_beside_each_other_resolve_the_order_on_a_machine_that_stays_busy() -> None:
    busy = [*runs(ONE, 5000, 2200, 2210, 2190, 2205), *runs(TWO, 4855), *runs(TWO, 2100, 2105, 2095, first=2)]
    assert layouts(busy) == [ONE, TWO] and judged(busy).unresolved == ()
    best = judged(busy).winner
    assert best is not None and best.layout == ONE


def test_runs_beside_each_other_decide_whatever_one_had_at_another_time() -> None:
    """Checks that ONE's four further runs on the quiet machine, of which TWO had none, do not count."""
    measurements = [*runs(ONE, 5000, 4990, 4980, 4985, 4990, 2010, 1990, 2000), *runs(TWO, 4855)]
    measurements += runs(TWO, 2150, 2160, 2140, first=5)
    assert layouts(measurements) == [TWO, ONE] and judged(measurements).unresolved == ()


def test_noise_leaves_the_order_open() -> None:
    noisy = [*runs(ONE, 5000, 2200, 3400, 1900, 2800), *runs(TWO, 4855), *runs(TWO, 3100, 2500, 2600, first=2)]
    assert len(judged(noisy).unresolved) == 2 and judged(noisy).winner is None


def test_a_figure_of_the_search_alone_far_above_the_runs_is_a_contender() -> None:
    wide = measurement(on=ONE, tokens_per_s=5000, windows_s=(1.0, 2.0, 0.5))
    measurements = [wide, *runs(ONE, 2211, first=1), *runs(TWO, 4200)]
    assert not points(measurements)[0].disturbed, "its interval is wide"
    assert layouts(measurements) == [ONE, TWO] and judged(measurements).unresolved


def slow(on: Layout, speed: float) -> Measurement:
    return measurement(on=on, tokens_per_s=speed, outcome=Outcome.SLOW)


def test_a_point_stopped_as_slow_far_above_the_runs_is_a_contender() -> None:
    """Checks figures of a busy machine: the point had been stopped beside the leader's figure of the search, of which
    the leader's run had a five hundredth, and the leader was named the fastest.
    """
    measurements = [*runs(ONE, 75137, 165), slow(TWO, 41485)]
    assert layouts(measurements) == [ONE, TWO] and judged(measurements).winner is None
    run = contenders_run(judged(measurements).contenders, after=1, most_rounds=3)
    assert run is not None and (run.point.layout, run.repeat) == (TWO, 2)
    again = [*measurements, *runs(TWO, 70000, first=2), *runs(ONE, 75000, first=2)]
    assert layouts(again) == [TWO, ONE] and judged(again).unresolved
    resolved = [*again, *runs(TWO, 70100, 70050, 70000, first=3), *runs(ONE, 75100, 75050, 75000, first=3)]
    best = judged(resolved).winner
    assert best is not None and best.layout == ONE


def test_a_point_stopped_as_slow_that_ran_again_stays_a_contender_until_the_runs_agree() -> None:
    """Checks runs of a busy machine, of which the leader's were named the fastest: +45.7%, -97.8% to +9596.0%."""
    noisy = [*runs(ONE, 88800, 3141, 69050, 45337), slow(TWO, 32212), *runs(TWO, 34049, 43286, first=2)]
    assert layouts(noisy) == [ONE, TWO] and len(judged(noisy).unresolved) == 2 and judged(noisy).winner is None
    quiet = [*runs(ONE, 40000, 40100, 40200), slow(TWO, 20000), *runs(TWO, 39000, 39900, first=1)]
    assert judged(quiet).contenders == (), "nothing disturbed the leader"


@pytest.mark.parametrize("again", [74000, 45000])
def test_a_point_stopped_as_slow_is_none_beside_runs_about_as_fast_or_faster(again: float) -> None:
    assert judged([*runs(ONE, 75137, again), slow(TWO, 41485)]).winner is not None


def test_a_point_stopped_as_slow_is_none_where_its_layout_failed_the_gate() -> None:
    lost = measurement(on=TWO, tokens_per_s=None, repeat=2, outcome=Outcome.FAILED, phase="gate", micro_batch=2)
    measurements = [*runs(ONE, 75137, 165), slow(TWO, 41485)]
    assert judged(measurements).unresolved and not judged([*measurements, lost]).unresolved


def test_a_figure_of_the_search_alone_whose_interval_holds_the_runs_is_none() -> None:
    apart = (1.0, 1.3, 0.7)
    first = [measurement(on=ONE, tokens_per_s=1300, windows_s=apart), *runs(ONE, 1020, first=1)]
    assert judged([*first, *runs(TWO, 1200)]).unresolved
    assert not judged([*first, measurement(on=TWO, tokens_per_s=1200, windows_s=apart)]).unresolved


def test_what_can_win_no_more_is_no_contender() -> None:
    lost = measurement(on=TWO, tokens_per_s=None, repeat=2, outcome=Outcome.OOM)
    measurements = [*runs(ONE, 5000, 2211), *runs(TWO, 4855), lost, *runs(THREE, 2000)]
    assert judged(measurements).contenders == ()
    best = judged(measurements).winner
    assert best is not None and best.layout == ONE


def test_contenders_run_in_turn_and_back_again() -> None:
    measurements = [*runs(ONE, 5000, 2211), *runs(TWO, 4855), *runs(THREE, 4843)]
    letters = {ONE: "A", TWO: "B", THREE: "C"}
    order: list[tuple[str, int]] = []
    while (run := contenders_run(judged(measurements).contenders, after=1, most_rounds=3)) is not None:
        assert isinstance(run, ConfirmationRun)
        order.append((letters[run.point.layout], run.repeat))
        measurements += runs(run.point.layout, 2000, first=run.repeat)
    # Whoever leads by its median stands first in a round.
    assert sorted(order, key=lambda entry: entry[1]) == order and len(order) == 9
    assert {letter for letter, repeat in order if repeat == 2} == set("ABC")


def test_one_that_joins_late_begins_with_the_round_of_the_others() -> None:
    measurements = [*runs(ONE, 5000, 2211, 2000, 2000, 2000), *runs(TWO, 4855)]
    run = contenders_run(judged(measurements).contenders, after=1, most_rounds=6)
    assert run is not None and (run.point.layout, run.repeat) == (TWO, 4)
