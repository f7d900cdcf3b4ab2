"""A sqlite store made once (its tables take seconds), and a tracking server as users start it."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from platform.mirror.runs import Runs
from platform.mirror.uri import default_uri
from tests.samples import header

Serve = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture(autouse=True)
def no_user_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own conditions, whatever the shell has set."""
    for name in [each for each in os.environ if each.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sqlite file with MLflow's tables and nothing else to care about."""
    folder = tmp_path_factory.mktemp("store")
    Runs(default_uri(folder), header("first", at="2026-01-01T00:00:00+00:00"))
    return folder / "mlflow.db"


@pytest.fixture
def studies(tmp_path: Path, store: Path) -> Path:
    """A folder for studies, with a space in its name, whose mlflow.db is ready for use."""
    folder = tmp_path / "my studies"
    folder.mkdir()
    shutil.copy(store, folder / "mlflow.db")
    return folder


@pytest.fixture
def closed_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture
def serve(tmp_path: Path, store: Path, closed_port: int) -> Iterator[Serve]:
    """Starts `mlflow server` on `closed_port`; it is up when the call returns."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        database = tmp_path / "server.db"
        if not database.exists():
            shutil.copy(store, database)
        command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{database}"]
        command += [
            "--artifacts-destination",
            str(tmp_path / "artifacts"),
            "--port",
            str(closed_port),
            "--workers",
            "1",
        ]
        with (tmp_path / "server.log").open("ab") as log:
            # The server's job runners are processes of their own that take seconds to start; tracking needs none.
            environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
            process = subprocess.Popen(
                command, cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        started.append(process)
        # Not /health, which answers before the server has opened its store: seconds of the first real request.
        asked = f"http://127.0.0.1:{closed_port}/api/2.0/mlflow/experiments/get-by-name?experiment_name=Default"
        until = time.monotonic() + 600
        while time.monotonic() < until:
            try:
                with urllib.request.urlopen(asked, timeout=60):
                    return process
            except OSError:
                assert process.poll() is None, (tmp_path / "server.log").read_text()
                time.sleep(0.2)
        raise AssertionError((tmp_path / "server.log").read_text())

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
