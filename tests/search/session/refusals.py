"""Runs the command with invalid arguments and checks its refusal, for all tests of bad input."""

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from platform.search.__main__ import main

Refused = Callable[..., str]


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the shell's settings from the environment."""
    for name in [variable for variable in os.environ if variable.startswith(("MLFLOW_", "RAY_"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def refused(plain_environment: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Runs the command with these arguments, which it must refuse; returns its sentence without "error: "."""

    def run(*argv: str, address: str = "local") -> str:
        before = {child.pid for child in psutil.Process().children(recursive=True)}
        code = main([*argv, "--studies", str(tmp_path / "studies"), "--address", address])
        output = capsys.readouterr()
        errors = [line for line in output.err.splitlines() if line.startswith("error:")]
        assert code == 2, output.err
        assert len(errors) == 1 and output.err.splitlines()[-1] == errors[0], output.err
        assert "Traceback" not in output.err and output.out == ""
        after = {child.pid for child in psutil.Process().children(recursive=True)}
        assert not after - before, "it left a process behind"  # what another test left may end meanwhile
        assert not list((tmp_path / "studies").glob("*/journal.jsonl")) or "--resume" in argv or "--name" in argv
        return errors[0].removeprefix("error: ")

    return run
