"""A study's tables as rows: one a point, and one a run for points that were run again."""

from platform.report.rows import tables
from platform.study.history import History
from platform.study.result.result import StudyResult
from tests.samples import header, layout, measurement, oom
from trainers.records.journal import Measured
from trainers.records.measurement import Measurement


def _tables(*measurements: Measurement):
    timestamp = "2026-01-01T00:00:00+00:00"
    return tables(
        StudyResult.of(
            History([header(at=timestamp), *(Measured(at=timestamp, measurement=point) for point in measurements)])
        )
    )


def test_a_point_that_ran_again_is_one_row_with_its_median_and_a_row_for_each_run() -> None:
    speeds = (43000.0, 41000.0, 41100.0, 41300.0)
    again = [measurement(tokens_per_s=speed, repeat=n) for n, speed in enumerate(speeds)]
    tables = _tables(*again, measurement(on=layout(prefetch=2), tokens_per_s=42000.0), oom(micro_batch=4))
    rows = [(row["tokens_per_s"], row["runs"]) for row in tables["measurements.json"]]
    assert rows == [(42000.0, 0), (41100.0, 3), (None, 0)]
    assert [(row["repeat"], row["tokens_per_s"]) for row in tables["runs.json"]] == list(enumerate(speeds))
    assert "runs.json" not in _tables(measurement())
