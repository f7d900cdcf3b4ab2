"""A sqlite store made once (its tables take seconds), and a tracking server as users start it."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from platform.tracking.runs import Runs
from platform.tracking.uri import default_uri
from tests import loopback
from tests.samples import header
from tests.tracking.server import start_server

Serve = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture(autouse=True)
def no_user_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes MLflow's variables from the environment, so that the tests do not depend on the shell's settings."""
    for name in [variable for variable in os.environ if variable.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the path of a sqlite file with MLflow's tables and without data of tests."""
    folder = tmp_path_factory.mktemp("store")
    Runs(default_uri(folder), header("first", at="2026-01-01T00:00:00+00:00"))
    return folder / "mlflow.db"


@pytest.fixture
def studies(tmp_path: Path, store: Path) -> Path:
    """Returns a folder for studies, with a space in its name, with a prepared mlflow.db."""
    folder = tmp_path / "my studies"
    folder.mkdir()
    shutil.copy(store, folder / "mlflow.db")
    return folder


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Yields a port without a listener."""
    with loopback.closed_port() as port:
        yield port


@pytest.fixture
def serve(tmp_path: Path, store: Path, closed_port: int) -> Iterator[Serve]:
    """Starts `mlflow server` on `closed_port` and waits until it is up."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        if not (tmp_path / "server.db").exists():
            shutil.copy(store, tmp_path / "server.db")
        started.append(start_server(tmp_path, closed_port))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
