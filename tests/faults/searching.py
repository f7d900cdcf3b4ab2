"""A search that a user starts on the first of several hosts."""

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.hosts import RayHosts
from platform.study.journal import Tail
from tests.search.session import ROOT
from trainers.journal import Line

LONGEST_S = 240.0


class Searching:
    """It runs; use it with `with`."""

    def __init__(self, cluster: RayHosts, name: str, *argv: str) -> None:
        self.journal = cluster.folder / "studies" / name / "journal.jsonl"
        self.log = cluster.folder / f"{name}.log"
        named = ["--name", name] if "--resume" not in argv else []
        command = ["env", "-C", str(ROOT), *_PYTHON, "platform.search", *argv, *named]
        command += ["--studies", str(cluster.folder / "studies"), "--address", cluster.address]
        quick = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "20"}
        self.process = cluster.hosts[0].popen(command, {**cluster.environment, **quick}, self.log)

    def __enter__(self) -> "Searching":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    @property
    def said(self) -> str:
        """What it printed so far."""
        return self.log.read_text()

    @property
    def lines(self) -> Sequence[Line]:
        """What its journal holds."""
        return Tail(self.journal).read()

    def wait_for(self, found: Callable[[Sequence[Line]], Any]) -> Any:
        """Until `found` of the journal's lines gives something."""
        until_s = time.monotonic() + LONGEST_S
        while not (given := found(self.lines)):
            assert self.process.poll() is None, self.said
            assert time.monotonic() < until_s, self.said
            time.sleep(0.05)
        return given

    def end(self, within_s: float = LONGEST_S) -> int:
        """Its exit code."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"no end within {within_s} s: {self.said}") from error


_PYTHON = [__import__("sys").executable, "-m"]


def study_of(folder: Path) -> Path:
    """The folder of studies."""
    return folder / "studies"
