# pyright: basic
"""A store of another version of MLflow: the sentence has the whole command that mends it."""

import sqlite3
from pathlib import Path

import pytest

import platform.report.__main__ as report
from platform.study.study import Study
from platform.tracking.mirror import default_uri
from tests.samples import header, measurement
from trainers.records.journal import End, Measured

pytestmark = pytest.mark.mirror


def test_an_old_schema_is_told_with_its_command(studies: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with sqlite3.connect(studies / "mlflow.db") as database:
        database.execute("UPDATE alembic_version SET version_num = '1b5f0d9ad7c1'")
    with Study.create(studies, "kept") as study:
        study.record(header("kept"))
        study.record(Measured(measurement=measurement()))
        study.record(End(exit_code=0, wall_s=10, gpu_s=40))
    assert report.main(["kept", "--studies", str(studies)]) == 0
    shown = capfd.readouterr().err
    uri = default_uri(studies)
    assert f"run `mlflow db upgrade '{uri}'`, and then `python -m platform.report kept" in shown
    assert "brings it up to date" not in shown
