"""A search that a user starts on the first of several hosts."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from benchmarks.hosts import RayHosts
from platform.study.journal import Tail
from tests.search.session import ROOT
from trainers.journal import Line

LONGEST_S = 300.0
QUICK = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "30"}
"""What Train gives workers to be placed and started, 60 s by itself: a node that is gone shows sooner."""


class Searching:
    """It runs; use it with `with`."""

    def __init__(
        self, cluster: RayHosts, *argv: str, name: str, environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        studies = cluster.folder / "studies"
        self.journal = studies / name / "journal.jsonl"
        self.log = cluster.folder / f"{name}.log"
        command = ["env", "-C", str(ROOT), sys.executable, "-m", "platform.search", *argv]
        command += ["--studies", str(studies), "--address", cluster.address, "--name", name]
        self.process = cluster.hosts[0].popen(command, {**cluster.environment, **environment}, self.log)

    def __enter__(self) -> "Searching":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    @property
    def said(self) -> str:
        """What it printed so far."""
        return self.log.read_text()

    @property
    def lines(self) -> Sequence[Line]:
        """What its journal holds."""
        return Tail(self.journal).read()

    def of(self, kind: type[Line]) -> list[Any]:
        """Its journal's lines of one kind."""
        return [line for line in self.lines if isinstance(line, kind)]

    def wait_for(self, found: Callable[[], Any]) -> None:
        """Until `found` gives something."""
        until_s = time.monotonic() + LONGEST_S
        while not found():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < until_s, self.said
            time.sleep(0.05)

    def end(self) -> int:
        """Its exit code."""
        try:
            return self.process.wait(LONGEST_S)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"no end within {LONGEST_S} s: {self.said}") from error
