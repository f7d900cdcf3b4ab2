# pyright: basic
"""A study that had a winner, and names none after a resumed session: its run in MLflow names none either."""

from pathlib import Path

import pytest

from platform.common.errors import NOT_RESOLVED
from platform.report.result_files import write_results
from platform.study.result.result import StudyResult
from platform.study.study import Study, read
from platform.tracking.mirror import Mirror
from platform.tracking.uri import default_uri
from tests.samples import layout, measurement
from tests.tracking.studies import POINTS, runs_of, write
from trainers.records.journal import End, Measured, Resume

pytestmark = pytest.mark.mirror


def test_the_winner_s_tags_go_when_a_resumed_session_leaves_it_open(studies: Path) -> None:
    folder, uri = write(studies, "one", *POINTS), default_uri(studies)
    assert Mirror(folder, uri).start().close(300) == ""
    _, parent, _ = runs_of(uri, "one")
    assert parent.data.tags["winner_measurement_id"] == POINTS[1].id

    study, history, _ = Study.resume(studies, "one")
    with study:
        assert history.end is not None
        study.record(Resume())
        halved = measurement(micro_batch=2, tokens_per_s=20000.0, on=layout(checkpointing="full"), repeat=1)
        study.record(Measured(measurement=halved))
        study.record(End(exit_code=NOT_RESOLVED, wall_s=10, gpu_s=40))
    files = [path.name for path in write_results(folder, StudyResult.of(read(folder)[0]))]
    assert "layout.json" not in files
    assert Mirror(folder, uri).start().close(300) == ""
    _, parent, _ = runs_of(uri, "one")
    assert not [name for name in parent.data.tags if name.startswith("winner")]
    assert parent.info.status == "FINISHED"
    assert "Not resolved between " in parent.data.tags["mlflow.note.content"]
