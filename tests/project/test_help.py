"""Every benchmark and script that is a command prints its purpose, and refuses unknown options before it starts."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = [
    f"{path.parent.name}.{path.stem}"
    for folder in ("benchmarks", "scripts")
    for path in sorted((ROOT / folder).glob("*.py"))
    if '__name__ == "__main__"' in path.read_text()
]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """Runs a command as `python -m` does, in this process: children would import torch and Ray anew, for minutes."""

    def run(command: str, *arguments: str) -> object:
        monkeypatch.setattr(sys, "argv", [command, *arguments])
        monkeypatch.delitem(sys.modules, command, raising=False)
        with pytest.raises(SystemExit) as exit_info:
            runpy.run_module(command, run_name="__main__")
        return exit_info.value.code

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_help(run: Callable[..., object], command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not run(command, "--help")
    assert capsys.readouterr().out.startswith("usage: ")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option(run: Callable[..., object], command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--no-such-option") == 2
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize("command", ["benchmarks.mesh_gradients", "benchmarks.fsdp_hooks"])
def test_no_ranks_are_refused(run: Callable[..., object], command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--ranks", "0") == 2
    assert "--ranks is one at least and a device each at most, got 0" in capsys.readouterr().err
