# pyright: basic
"""MLflow away at a study's start, in its middle and at its end: the search waits for nothing, and nothing is lost."""

import os
import shlex
import signal
import socket
import time
from pathlib import Path

import pytest

from platform.report.result_files import write_results
from platform.study.result.result import StudyResult
from platform.study.study import Study, read
from platform.tracking.mirror import Mirror
from platform.tracking.system_metrics import SAMPLES
from tests.samples import header
from tests.tracking.conftest import Serve
from tests.tracking.studies import POINTS, runs_of, wait_for, write
from trainers.records.journal import End, Measured

pytestmark = pytest.mark.mirror
BUSY_S = 200.0
"""The longest time that a busy machine may take; MLflow's own client tries for more than four minutes."""


def test_an_unreachable_server_costs_the_search_nothing_and_is_said(studies: Path, closed_port: int) -> None:
    with Study.create(studies, "away") as study:
        study.record(header("away"))
        began = time.monotonic()
        mirror = Mirror(study.path, f"http://me:secret@127.0.0.1:{closed_port}").start()
        for point in POINTS:
            study.record(Measured(measurement=point))
        assert time.monotonic() - began < BUSY_S
        began = time.monotonic()
        sentence = mirror.close(120)
        assert time.monotonic() - began < BUSY_S
    assert "was not reached, so how much it lacks of 3 measurements is not known (connection refused)" in sentence
    assert f"python -m platform.report away --studies {shlex.quote(str(studies))}" in sentence
    assert "secret" not in sentence and "\n" not in sentence
    assert len(read(study.path)[0].measurements) == 3


def test_a_server_that_never_answers_delays_the_end_by_no_more_than_its_limit(studies: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        folder = write(studies, "silent", POINTS[0])
        mirror = Mirror(folder, f"http://127.0.0.1:{silent.getsockname()[1]}").start()
        began = time.monotonic()
        assert "how much it lacks of 1 measurement is not known" in mirror.close(1)
        assert time.monotonic() - began < BUSY_S


@pytest.mark.heavy
def test_a_server_that_comes_late_and_stops_for_a_while_gets_everything_once(
    studies: Path, closed_port: int, serve: Serve, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"http://127.0.0.1:{closed_port}"
    with Study.create(studies, "late") as study:
        study.record(header("late"))
        mirror = Mirror(study.path, uri).start()
        study.record(Measured(measurement=POINTS[0]))
        server = serve()
        wait_for(lambda: mirror.mirrored == {POINTS[0].id})
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
        os.killpg(server.pid, signal.SIGSTOP)  # requests time out here from now on, and are carried out there later
        study.record(Measured(measurement=POINTS[1]))
        time.sleep(4)
        assert mirror.mirrored == {POINTS[0].id}
        os.killpg(server.pid, signal.SIGCONT)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")  # a busy machine may well take 2 s for an answer
        study.record(Measured(measurement=POINTS[2]))
        study.record(End(exit_code=0, wall_s=10, gpu_s=40))
        write_results(study.path, StudyResult.of(read(study.path)[0]))
        wait_for(lambda: len(mirror.mirrored) == 3)
        assert mirror.close(600) == ""
    client, parent, children = runs_of(uri, "late")
    assert parent.info.status == "FINISHED"
    assert sorted(run.data.tags["measurement_id"] for run in children) == sorted(point.id for point in POINTS)
    assert "layout.json" in {list_artifact.path for list_artifact in client.list_artifacts(parent.info.run_id)}
    (first,) = [run for run in children if run.data.tags["measurement_id"] == POINTS[0].id]
    assert len(client.get_metric_history(first.info.run_id, "loss")) == 3
    assert capfd.readouterr().out == ""  # standard output is for the result alone


def test_a_server_that_stops_before_the_end_gets_the_rest_later(studies: Path, closed_port: int, serve: Serve) -> None:
    uri = f"http://127.0.0.1:{closed_port}"
    server = serve()
    with Study.create(studies, "cut") as study:
        study.record(header("cut"))
        mirror = Mirror(study.path, uri).start()
        study.record(Measured(measurement=POINTS[0]))
        wait_for(lambda: mirror.mirrored == {POINTS[0].id})
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        study.record(Measured(measurement=POINTS[1]))
        (study.path / SAMPLES).write_text('{"at_ms": 1790000000000, "system/cpu_utilization_percentage": 7.0}\n')
        study.record(End(exit_code=0, wall_s=10, gpu_s=40))
        write_results(study.path, StudyResult.of(read(study.path)[0]))
        time.sleep(1)
        began = time.monotonic()
        output = mirror.close(120)
        assert "lacks 1 of 2 measurements (connection refused)" in output and "platform.report cut" in output
        assert time.monotonic() - began < BUSY_S
    serve()
    assert Mirror(study.path, uri).start().close(600) == ""
    client, parent, children = runs_of(uri, "cut")
    assert parent.info.status == "FINISHED" and parent.data.metrics["system/cpu_utilization_percentage"] == 7.0
    assert sorted(run.data.tags["measurement_id"] for run in children) == sorted(point.id for point in POINTS[:2])
    assert "heat-map.png" in {list_artifact.path for list_artifact in client.list_artifacts(parent.info.run_id)}
