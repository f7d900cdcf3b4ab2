"""The winner of a study, and how certain it is."""

import random

import pytest

from platform.study.result.ranking import by_speed, comparisons, points, ranked, winner
from tests.samples import layout, measurement
from trainers.records.measurement import Measurement, Outcome

ONE, TWO, THREE = layout(), layout(checkpointing="full"), layout(zero_stage=2)
SPEEDS = ((ONE, 1.0), (TWO, 0.98), (THREE, 0.9))


def run(on: object, speed: float, repeat: int, **fields: object) -> Measurement:
    """Returns one run of a layout at micro-batch 1."""
    return measurement(on=on, tokens_per_s=speed, repeat=repeat, **fields)  # type: ignore[reportArgumentType]


def runs(on: object, *speeds: float) -> list[Measurement]:
    """Returns the layout's run in the search and the runs after it."""
    return [run(on, speed, repeat) for repeat, speed in enumerate(speeds)]


def test_a_point_is_judged_by_the_median_of_its_own_runs() -> None:
    ranking = ranked([*runs(ONE, 1000, 900, 910, 800), *runs(TWO, 950, 905, 906, 904)])
    assert [point.median_tokens_per_s for point in ranking] == [905, 900]
    assert ranking[0].std_tokens_per_s == pytest.approx(1.0)


def test_one_run_that_is_not_ok_takes_a_point_out() -> None:
    lost = run(ONE, 1100, 2, outcome=Outcome.THRASH, reason="2 allocator retries")
    best = winner([*runs(ONE, 1000, 1000), lost, *runs(TWO, 900)])
    assert best is not None and best.layout == TWO


def test_a_leader_s_own_last_run_does_not_change_the_order() -> None:
    """Plays studies of three layouts of equal speed, each run three times; then the leader runs once more."""
    draw, changed = random.Random(0), 0
    for _ in range(200):
        speeds = {on: [draw.gauss(1000, 10) for _ in range(3)] for on in (ONE, TWO, THREE)}
        study = [point for on, of_layout in speeds.items() for point in runs(on, 1000, *of_layout)]
        leader = ranked(study)[0].main_run.layout
        last = run(leader, draw.gauss(1000, 10), 4)
        changed += ranked([*study, last])[0].main_run.layout != leader
    assert not changed, "two in five of them where all runs of each count"


def test_runs_that_others_had_as_well_count() -> None:
    """Checks that of two points that both ran a fourth time that run decides, the third point's lack of it aside."""
    study = [*runs(ONE, 1000, 1000, 1000, 1000, 900), *runs(TWO, 990, 999, 999, 999, 999), *runs(THREE, 900, 900)]
    assert ranked(study)[0].main_run.layout == ONE, "the median of four is that of three"
    study += [run(ONE, 900, 5), run(TWO, 999, 5), run(ONE, 900, 6), run(TWO, 999, 6)]
    assert ranked(study)[0].main_run.layout == TWO


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ((970, 1000, 985), "about 7 runs"),
        ((1000, 960, 1040), "about 29 runs"),
        ((1000, 700, 1400), "more than 99 runs"),
    ],
)
def test_what_is_not_resolved_says_how_many_runs_would_resolve_it(other: tuple[float, ...], expected: str) -> None:
    """Checks half of the interval: t at 6 degrees is 2.447, which times 1.5 % / sqrt(7) is below the gap of 1.6 %."""
    (compared,) = comparisons(ranked([*runs(ONE, 1000, 1001, 1000, 1002), *runs(TWO, 999, *other)]))
    assert compared.resolution == "not resolved" and expected in compared.sentence


def test_a_single_figure_of_the_search_does_not_overtake_what_was_run_again() -> None:
    """Checks figures of the search, which lean upwards: TWO was behind ONE there, and would be in a second run too."""
    again = [*runs(ONE, 1000, 960), *runs(TWO, 990)]
    assert [point.main_run.layout for point in ranked(again)] == [ONE, TWO]
    assert [point.main_run.layout for point in by_speed(points(again))] == [TWO, ONE]
    measurements = [*again, *runs(THREE, 1010)]
    assert [point.main_run.layout for point in ranked(measurements)] == [THREE, ONE, TWO], (
        "found later, and faster than both"
    )


def test_the_run_of_longest_accumulation_stands_for_a_point() -> None:
    short = [run(ONE, speed, repeat, measured_grad_accum=3) for repeat, speed in enumerate((1000, 1010, 990, 1005))]
    long = run(ONE, 980, 4, measured_grad_accum=64)
    (point,) = points([*short, long])
    assert point.main_run is long and point.median_tokens_per_s == 990
    assert points(short)[0].main_run.repeat == 3


@pytest.mark.parametrize(
    ("other", "resolution"),
    [
        ((901, 902, 900), "faster"),
        ((999, 1001, 998), "tie"),
        ((950, 1040, 990), "not resolved"),
    ],
)
def test_a_tie_is_said_only_of_a_narrow_interval(other: tuple[float, ...], resolution: str) -> None:
    (compared,) = comparisons(ranked([*runs(ONE, 1000, 1000, 1002, 1001), *runs(TWO, 999, *other)]))
    assert compared.resolution == resolution and compared.other.layout == TWO
    assert compared.low <= compared.ratio <= compared.high
    assert {"faster": "Faster than", "tie": "Tied with", "not resolved": "Not resolved"}[
        resolution
    ] in compared.sentence


def test_runs_are_compared_in_pairs_so_that_drift_falls_on_both() -> None:
    """Compares two layouts that both lose 20 % over the rounds; beside each other they are always 2 % apart."""
    drift = (1000, 900, 800)
    (compared,) = comparisons(ranked([*runs(ONE, 1000, *drift), *runs(TWO, 990, *(speed / 1.02 for speed in drift))]))
    assert compared.resolution == "faster" and compared.ratio == pytest.approx(1.02)


def test_two_pairs_have_the_spread_of_all_pairs() -> None:
    """Compares with a layout that is 17 and 24 % slower in its two runs: alone an interval of two pairs holds nearly
    all, since it has one degree of freedom.
    """
    leader, near = runs(ONE, 1000, 1000, 1010, 990, 1000, 1005), runs(TWO, 990, 960, 985, 955, 972, 970)
    slow = runs(THREE, 800, 830, 768)
    assert comparisons(ranked([*leader, *slow]))[0].resolution == "not resolved"
    compared = comparisons(ranked([*leader, *near, *slow]))
    assert [(pair.other.layout, pair.num_pairs, pair.resolution) for pair in compared] == [
        (TWO, 5, "faster"),
        (THREE, 2, "faster"),
    ]


@pytest.mark.parametrize("spread", [0.003, 0.03])
def test_an_interval_of_two_pairs_holds_the_ratio_as_often_as_it_says(spread: float) -> None:
    """Plays studies of three layouts, of which the third runs twice, and counts whose interval holds 0.9."""
    draw, held, plays = random.Random(5), 0, 400
    for _ in range(plays):
        speeds = {on: [1000 * factor * draw.lognormvariate(0, spread) for _ in range(6)] for on, factor in SPEEDS}
        measured = [*runs(ONE, *speeds[ONE]), *runs(TWO, *speeds[TWO]), *runs(THREE, *speeds[THREE][:3])]
        ranking = sorted(points(measured), key=lambda point: (ONE, TWO, THREE).index(point.main_run.layout))
        held += comparisons(ranking)[1].low <= 1 / 0.9 <= comparisons(ranking)[1].high
    assert 0.92 <= held / plays <= 0.98


def test_points_without_two_pairs_are_not_resolved() -> None:
    paired, *others = comparisons(ranked([*runs(ONE, 1000, 1000), *runs(TWO, 990, 900), *runs(THREE, 980)]))
    assert not others, "what the search alone measured, and was not the next best"
    assert (paired.num_pairs, paired.resolution, paired.runs_to_resolve) == (1, "not resolved", None)
    assert "one run of each in fresh processes, and it takes two at least (--repeats 2)" in paired.sentence
    (unpaired,) = comparisons(ranked([*runs(ONE, 1000), *runs(TWO, 900)]))
    assert (unpaired.num_pairs, unpaired.resolution) == (0, "not resolved") and "no runs of both" in unpaired.sentence
