"""MLflow's tracking server as users start it."""

import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path


def start_server(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Starts `mlflow server` on `folder`/server.db, created if necessary, and waits until it is up."""
    database, artifacts, log = folder / "server.db", folder / "artifacts", folder / "server.log"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{database}"]
    command += ["--artifacts-destination", str(artifacts), "--port", str(port), "--workers", "1"]
    # The server's job runners are processes of their own that take seconds to start; tracking needs none.
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with log.open("ab") as file:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=file, stderr=file, start_new_session=True
        )
    # Not /health, which answers before the server has opened its store: seconds of the first real request.
    request = f"http://127.0.0.1:{port}/api/2.0/mlflow/experiments/get-by-name?experiment_name=Default"
    until_s = time.monotonic() + 600
    while time.monotonic() < until_s:
        try:
            with urllib.request.urlopen(request, timeout=60):
                return process
        except OSError:
            assert process.poll() is None, log.read_text()
            time.sleep(0.2)
    raise AssertionError(log.read_text())
