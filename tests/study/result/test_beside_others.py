"""Rows that were measured beside more other work than the fastest one."""

import pytest

from platform.search.confirmation.run_order import repeats_left
from platform.study.result.beside_others import beside_others
from platform.study.result.ranking import points
from tests.samples import layout, measurement, result_of
from trainers.records.measurement import Measurement, Outcome

FASTEST = measurement(on=layout(), tokens_per_s=1000.0, others_busy_pct=(4.0, 6.0))
OTHERS = [measurement(on=layout(prefetch=n), tokens_per_s=990.0 - n, others_busy_pct=(5.0,)) for n in (1, 2, 4)]
SLOWED = layout(checkpointing="full")


def slowed(speed: float, others_pct: float, **fields: object) -> Measurement:
    return measurement(on=SLOWED, tokens_per_s=speed, others_busy_pct=(others_pct,), **fields)  # pyright: ignore


@pytest.mark.parametrize(
    ("row", "is_named"),
    [
        (slowed(600.0, 55.0), True),
        (slowed(600.0, 55.0, outcome=Outcome.SLOW), True),
        (slowed(400.0, 55.0), False),  # twice as fast it would still be slower
        (slowed(950.0, 15.0), False),  # as little as differs on a quiet machine
        (slowed(600.0, 5.0, steal_pct=(50.0,)), True),
    ],
)
def test_a_row_that_others_slowed_and_that_might_be_the_fastest_runs_again(row: Measurement, is_named: bool) -> None:
    study = [FASTEST, *OTHERS, row]
    assert [point.search for point in beside_others(points(study))] == ([row] if is_named else [])
    assert any(run.point is row for run in repeats_left(points(study), repeats=1)) == is_named
    sentences = " ".join(caveat.sentence for caveat in result_of(study).of_study[0].caveats)
    assert ("Disturbed: beside" in sentences and SLOWED.label in sentences) == is_named
    again = measurement(on=SLOWED, tokens_per_s=700.0, repeat=1)
    assert "Disturbed: beside" not in " ".join(
        caveat.sentence for caveat in result_of([*study, again]).of_study[0].caveats
    )


def test_where_all_rows_are_alike_busy_none_runs_again() -> None:
    busy = [measurement(on=on, tokens_per_s=speed, others_busy_pct=(50.0,)) for on, speed in ((SLOWED, 600.0),
        (layout(), 1000.0))]  # fmt: skip
    assert beside_others(points(busy)) == []


def test_gpus_that_wait_more_at_a_larger_micro_batch_were_disturbed() -> None:
    """Checks a row at 23 % utilization whose smaller micro-batch had 87 %, and the same pair the other way round."""

    def named(small_pct: float, large_pct: float) -> list[int]:
        rows = [
            measurement(on=SLOWED, micro_batch=size, tokens_per_s=speed, utilization_pct=busy, sm_clock_mhz=(1900.0,))
            for size, speed, busy in ((1, 900.0, small_pct), (2, 300.0, large_pct))
        ]
        return [point.main_run.batch.micro_batch for point in beside_others(points([FASTEST, *rows]))]

    assert named(87.0, 23.0) == [2] and named(23.0, 87.0) == []
