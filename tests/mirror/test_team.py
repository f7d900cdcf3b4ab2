# pyright: basic
"""MLflow for a team: a server with accounts on a real PostgreSQL, started as docs/clusters.md says."""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from mlflow import MlflowClient
from mlflow.server import get_app_client

from platform.mirror.mirror import Mirror
from tests import needs
from tests.mirror.studies import POINTS, runs_of, write
from tests.search.head import free_port
from tests.search.session import ROOT, Session, write_space

pytestmark = [pytest.mark.mirror, pytest.mark.heavy]
_READY_S = 600.0
ADMIN = ("admin", secrets.token_hex(16))


@pytest.fixture
def database(closed_port: int) -> Iterator[str]:
    """The URI of an empty database on a PostgreSQL of the test's, at `closed_port`."""
    initdb, postgres = needs.tools(["initdb", "postgres"], "postgresql")
    user = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.getuid() == 0 else {}  # it refuses root
    with tempfile.TemporaryDirectory(prefix="postgresql") as made:
        folder, password = Path(made), secrets.token_hex(16)
        (folder / "password").write_text(password)
        if user:
            for each in (folder, folder / "password"):
                shutil.chown(each, user["user"], user["group"])
        command = [initdb, "--pgdata", made + "/data", "--username=mlflow", f"--pwfile={made}/password"]
        subprocess.run([*command, "--auth=scram-sha-256", "--encoding=UTF8"], cwd=made, check=True, **user)
        settings = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={made}"]
        command = [postgres, "-D", made + "/data", "-p", str(closed_port), *settings]
        with subprocess.Popen(command, cwd=made, **user) as process:
            uri = f"postgresql://mlflow:{password}@127.0.0.1:{closed_port}"
            until_s = time.monotonic() + _READY_S
            while True:
                try:
                    with psycopg.connect(f"{uri}/postgres", autocommit=True) as connection:
                        connection.execute("CREATE DATABASE mlflow")
                    break
                except psycopg.OperationalError as error:
                    assert time.monotonic() < until_s and process.poll() is None, error
                    time.sleep(0.2)
            try:
                yield f"{uri}/mlflow"
            finally:
                process.send_signal(signal.SIGINT)  # a fast shutdown: connections are closed


class Server:
    """MLflow with accounts, as the page starts it."""

    def __init__(self, folder: Path, database: str) -> None:
        port = free_port()
        self.uri = f"http://127.0.0.1:{port}"
        self._log = folder / "server.log"
        config = folder / "auth.ini"
        text = (ROOT / "deploy" / "mlflow" / "auth.ini").read_text()
        example = "postgresql://mlflow:PASSWORD@127.0.0.1/mlflow"
        assert example in text
        config.write_text(text.replace(example, database))
        self._command = [sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth", "--workers", "1"]
        self._command += ["--host", "127.0.0.1", "--port", str(port), "--backend-store-uri", database]
        self._command += ["--artifacts-destination", str(folder / "artifacts")]
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")},
            "MLFLOW_AUTH_CONFIG_PATH": str(config),
            "MLFLOW_AUTH_ADMIN_PASSWORD": ADMIN[1],
            "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(16),
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # job runners take seconds to start
        }

    @contextlib.contextmanager
    def runs(self) -> Iterator[None]:
        """The server answers; it has ended afterwards."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._command,
                cwd=self._log.parent,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            until_s = time.monotonic() + _READY_S
            while self.status() is None:
                assert time.monotonic() < until_s and process.poll() is None, self._log.read_text()[-3000:]
                time.sleep(0.5)
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def status(self) -> int | None:
        """The HTTP status of a question without a password, None where nobody answers."""
        asked = f"{self.uri}/api/2.0/mlflow/experiments/get-by-name?experiment_name=Default"
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None


@pytest.fixture
def server(tmp_path: Path, database: str) -> Server:
    """A server that is yet to be started."""
    return Server(tmp_path, database)


def _as(account: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", account[0])
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", account[1])


def test_members_share_experiments_and_a_wrong_password_is_refused_in_a_sentence(
    studies: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server.runs():
        assert server.status() == 401
        _as(ADMIN, monkeypatch)
        accounts = [(name, secrets.token_hex(16)) for name in ("first", "second")]
        for account in accounts:
            get_app_client("basic-auth", tracking_uri=server.uri).create_user(*account)
        for account in accounts:  # the second adds to the experiment that the first has made
            _as(account, monkeypatch)
            assert Mirror(write(studies, account[0], *POINTS), server.uri).start().close(600) == ""
            assert len(runs_of(server.uri, account[0])[2]) == len(POINTS)

        _as(("first", "not-the-password"), monkeypatch)
        sentence = Mirror(write(studies, "refused", *POINTS), server.uri).start().close(600)
        assert "lacks 3 of 3 measurements" in sentence and "401" in sentence, sentence
        assert "not-the-password" not in sentence and "\n" not in sentence


@pytest.mark.search
def test_what_a_search_sends_outlives_its_machine_and_the_server_s_restart(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    studies = tmp_path / "gone"
    space = write_space(tmp_path / "tiny.py", micro_batches=(1,))
    command = [str(space), "--address=local", "--name=tiny", "--repeats=0", "--steps=3", f"--studies={studies}"]
    environment = {
        "MLFLOW_TRACKING_URI": server.uri,
        "MLFLOW_TRACKING_USERNAME": ADMIN[0],
        "MLFLOW_TRACKING_PASSWORD": ADMIN[1],
    }
    with server.runs():
        journal = studies / "tiny" / "journal.jsonl"
        with Session(tmp_path / "log", journal, *command, environment=environment) as session:
            ended = session.end()
        assert ended.code == 0 and " lacks " not in ended.err, ended.err
        assert ADMIN[1] not in ended.out + ended.err + journal.read_text()
    layout = (studies / "tiny" / "layout.json").read_bytes()
    shutil.rmtree(studies)
    with server.runs():
        _as(ADMIN, monkeypatch)
        client = MlflowClient(tracking_uri=server.uri)
        (experiment,) = (each for each in client.search_experiments() if each.name == "tiny")
        runs = client.search_runs([experiment.experiment_id])
        (parent,) = (run for run in runs if "mlflow.parentRunId" not in run.data.tags)
        assert parent.info.status == "FINISHED" and len(runs) > 1
        brought = client.download_artifacts(parent.info.run_id, "layout.json", str(tmp_path))
        assert Path(brought).read_bytes() == layout
