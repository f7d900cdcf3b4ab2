"""The head of a Ray cluster on this machine, started with `ray start --head` as on the first machine of a real
cluster.
"""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from pathlib import Path

import psutil
import ray

_STARTS_S = 600.0


@contextlib.contextmanager
def short_folder() -> Generator[Path]:
    """Yields a folder for Ray's sockets, whose paths may have at most 107 bytes; pytest's own folders are too long."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextlib.contextmanager
def started(
    folder: Path, *options: str, port: int, environment: Mapping[str, str], also_up: int | None = None
) -> Generator[str]:
    """Starts a head and yields its address once `port` and `also_up` answer; `environment` is added to its environment.
    All its processes end with it.

    `folder` must have a short path, because it holds sockets (`short_folder`).
    """
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--port={port}"]
    command += [f"--temp-dir={folder / 'ray'}", "--dashboard-agent-listen-port=0", "--block", *options]
    head_environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_"))},
        "RAY_USAGE_STATS_ENABLED": "0",
        **environment,
    }
    log = folder / "head.log"
    with log.open("w") as out:
        head = subprocess.Popen(command, env=head_environment, stdout=out, stderr=out)
    try:
        until_s = time.monotonic() + _STARTS_S
        for awaited_port in (port, also_up):
            while awaited_port is not None and not _answers(awaited_port):
                assert head.poll() is None and time.monotonic() < until_s, log.read_text()
                time.sleep(0.2)
        yield f"{ray.util.get_node_ip_address()}:{port}"
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):  # it may have ended by itself
            of_head = psutil.Process(head.pid)
            for child in [*of_head.children(recursive=True), of_head]:  # not SIGTERM, on which it drains for 20 s
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        head.wait()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False
