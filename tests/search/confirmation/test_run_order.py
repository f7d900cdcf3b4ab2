"""The order of the final runs."""

from platform.search.confirmation.run_order import ConfirmationRun, last_run, repeats_left
from platform.study.result.ranking import points, ranked
from tests.samples import layout, measurement, oom
from trainers.records.measurement import Measurement
from trainers.spec.layout import Layout

A, B, C, D = layout(), layout(checkpointing="full"), layout(zero_stage=2), layout(zero_stage=2, checkpointing="full")
SPEEDS = {A: 1000.0, B: 990.0, C: 980.0, D: 970.0}
SEARCH = [measurement(on=searched_layout, tokens_per_s=speed) for searched_layout, speed in SPEEDS.items()]


def ran(run: ConfirmationRun, speed: float | None = None) -> Measurement:
    """Returns the measurement that the run gives."""
    return measurement(on=run.point.layout, tokens_per_s=speed or SPEEDS[run.point.layout], repeat=run.repeat)


def next_run(measurements: list[Measurement], repeats: int, max_finalists: int | None = 3) -> ConfirmationRun | None:
    """Returns the next of the finalists' runs; where none is left, the last run of the layout that leads."""
    remaining = repeats_left(points(measurements), repeats=repeats, limit=max_finalists)
    return remaining[0] if remaining else last_run(ranked(measurements)[0], repeats=repeats)


def sequence(
    repeats: int, max_finalists: int | None = 3, lost: tuple[tuple[Layout, int], ...] = ()
) -> list[tuple[str, int, bool]]:
    """Returns (layout's letter, repeat, last) of all final runs; the runs in `lost` run out of memory."""
    letters = {A: "A", B: "B", C: "C", D: "D"}
    measurements, order = list(SEARCH), list[tuple[str, int, bool]]()
    while (run := next_run(measurements, repeats=repeats, max_finalists=max_finalists)) is not None:
        order.append((letters[run.point.layout], run.repeat, run.repeat > repeats))
        gone = (run.point.layout, run.repeat) in lost
        measurements.append(oom(on=run.point.layout, repeat=run.repeat) if gone else ran(run))
        assert len(order) < 30
    return order


def test_the_best_three_run_there_and_back_and_the_winner_once_more() -> None:
    order = sequence(3)
    assert "".join(letter for letter, _, _ in order) == "ABCCBAABC" + "A"
    assert [last for _, _, last in order] == [False] * 9 + [True]
    assert order[-1] == ("A", 4, True)


def test_all_points_run_where_all_are_asked_for() -> None:
    assert "".join(letter for letter, _, _ in sequence(2, max_finalists=None)) == "ABCDDCBA" + "A"


def test_without_repeats_only_the_winner_runs_again() -> None:
    assert sequence(0) == [("A", 1, True)]


def test_a_finalist_that_is_lost_has_no_further_run() -> None:
    assert "".join(letter for letter, _, _ in sequence(3, lost=((A, 2),))) == "ABCCBABC" + "B"


def test_where_the_last_run_changes_who_is_best_the_new_one_has_it_too() -> None:
    measurements = list(SEARCH)
    while (run := next_run(measurements, repeats=1)) is not None and run.repeat == 1:
        measurements.append(ran(run))
    assert run is not None and run.point.layout == A
    measurements.append(ran(run, 850.0))
    run = next_run(measurements, repeats=1)
    assert run is not None and (run.point.layout, run.repeat) == (B, 2)


def test_what_left_nothing_is_not_tried_again() -> None:
    first, second, *_ = repeats_left(points(SEARCH), repeats=1)
    tried = frozenset({(first.point.layout.id, first.point.batch.micro_batch, first.repeat)})
    assert repeats_left(points(SEARCH), repeats=1, attempted=tried)[0] == second
    last = last_run(ranked(SEARCH)[0], repeats=0)
    assert last is not None and last.repeat == 1
    tried = frozenset({(last.point.layout.id, last.point.batch.micro_batch, last.repeat)})
    assert last_run(ranked(SEARCH)[0], repeats=0, attempted=tried) is None
