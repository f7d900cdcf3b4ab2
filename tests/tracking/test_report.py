# pyright: basic
"""`python -m platform.report` brings MLflow up to date where the search could not."""

import dataclasses
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

import platform.report.__main__ as report
from platform.study.study import Study
from platform.tracking.mirror import Mirror, default_uri
from tests.samples import header, measurement, oom
from tests.tracking.studies import POINTS, runs_of, write
from trainers.records.journal import End, Measured

pytestmark = pytest.mark.mirror

ROOT = Path(__file__).parents[2]


def test_a_copy_of_a_study_is_mirrored_beside_itself(studies: Path, tmp_path: Path) -> None:
    foreign_store = tmp_path / "on another machine" / "mlflow.db"
    with Study.create(studies, "fetched") as study:
        study.record(dataclasses.replace(header("fetched"), mlflow_uri=f"sqlite:///{foreign_store}"))
        study.record(Measured(measurement=measurement()))
        study.record(End(exit_code=0, wall_s=10, gpu_s=40))
    page = tmp_path / "page.html"
    assert report.main(["fetched", "--studies", str(studies), "--html", str(page)]) == 0
    assert (studies / "mlflow.db").exists() and not foreign_store.parent.exists()
    client, parent, _ = runs_of(default_uri(studies), "fetched")
    assert "page.html" in {list_artifact.path for list_artifact in client.list_artifacts(parent.info.run_id)}


def test_what_was_not_mirrored_is_caught_up(studies: Path, closed_port: int) -> None:
    with Study.create(studies, "behind") as study:
        study.record(header("behind"))
        mirror = Mirror(study.path, f"http://127.0.0.1:{closed_port}").start()
        for point in (measurement(), oom(micro_batch=4)):
            study.record(Measured(measurement=point))
        study.record(End(exit_code=0, wall_s=10, gpu_s=40))
        assert "python -m platform.report behind" in mirror.close(2)
    command = [sys.executable, "-m", "platform.report", "behind", "--studies", str(studies), "--json"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "MLflow is up to date.\nMLflow: make mlflow STUDIES=" in result.stderr
    assert "  layouts  http://127.0.0.1:5000/#/experiments/" in result.stderr
    client = MlflowClient(tracking_uri=default_uri(studies))
    experiment = client.get_experiment_by_name("bloom7b")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], "tags.study = 'behind'")
    assert sorted(run.data.tags.get("outcome", "study") for run in runs) == ["ok", "oom", "study"]


class Server(http.server.ThreadingHTTPServer):
    """Answers every request with error 500, in whose text it repeats what it was sent."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        self.server.requests.append(self.path)
        output = f"I was sent {self.headers.get('Authorization')} for {self.path}".encode()
        self.send_response(500)
        self.send_header("Content-Length", str(len(output)))
        self.end_headers()
        self.wfile.write(output)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    http_server = Server()
    threading.Thread(target=http_server.serve_forever, daemon=True).start()
    yield http_server
    http_server.shutdown()
    http_server.server_close()


def somebody_s(studies: Path, uri: str) -> None:
    with Study.create(studies, "theirs") as study:
        study.record(dataclasses.replace(header("theirs"), mlflow_uri=uri))
        study.record(Measured(measurement=measurement()))
        study.record(End(exit_code=0, wall_s=10, gpu_s=40))


def test_a_server_that_only_a_journal_names_is_sent_nothing(
    studies: Path, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    somebody_s(studies, f"http://{server.place}")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "my-token")
    assert report.main(["theirs", "--studies", str(studies)]) == 0
    assert server.requests == []
    shown = capsys.readouterr().err
    assert f"MLflow is left as it is: by its journal the study is at 'http://{server.place}'" in shown
    assert "--mlflow URI" in shown


def test_a_server_that_the_user_names_is_asked(
    studies: Path, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    somebody_s(studies, f"http://{server.place}")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "my-token")
    assert report.main(["theirs", "--studies", str(studies), "--mlflow", f"http://{server.place}"]) == 0
    assert server.requests
    shown = capsys.readouterr().err
    assert "was not reached, so how much it lacks of 1 measurement is not known" in shown and "my-token" not in shown


@pytest.mark.parametrize(("uri", "retries"), [("http://me:top-secret@{}", "0"), ("http://top-secret@{}", "1")])
def test_no_password_is_shown_when_a_server_answers_with_an_error(
    studies: Path, server: Server, uri: str, retries: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", retries)
    folder = write(studies, "hidden", POINTS[0])
    mirror = Mirror(folder, uri.format(server.place)).start()
    shown = mirror.close(300)
    assert server.requests and "so how much it lacks of 1 measurement is not known" in shown
    assert "(it answers with HTTP status 500)" in shown
    for secret in ("top-secret", "me:", "bWU6dG9wLXNlY3JldA", "dG9wLXNlY3JldDo"):
        assert secret not in shown + mirror.look
