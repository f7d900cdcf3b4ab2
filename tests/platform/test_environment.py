"""A command under a Python without our packages ends in one sentence that says what to run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from platform.common import environment

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = sorted(
    [path.stem for path in (ROOT / "platform").glob("*.py") if path.stem != "__init__"]
    + [path.parent.name for path in (ROOT / "platform").glob("*/__main__.py")]
)
LATE = {"train": ("study", "--tokens", "1M"), "converge": ("study", "--steps", "1")}
"""Arguments of the commands that read theirs before they import a package."""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_without_its_packages_says_what_to_run(command: str) -> None:
    # -S leaves the environment's packages out: what a system's own Python has.
    line = [sys.executable, "-S", "-m", f"platform.{command}", *LATE.get(command, ())]
    child = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert child.returncode == 2, child.stderr
    to_run = r"`(make setup && )?\. \.venv/bin/activate`"
    progress = r"(loading the \w+, \d+ s so far\n)?"  # on a busy machine
    assert re.fullmatch(rf"{progress}error: \S+ has no package '\w+': run {to_run} first\n", child.stderr), child.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_two_checkouts_is_refused_before_it_begins(command: str, tmp_path: Path) -> None:
    """Runs it in a folder with another checkout's `search_spaces`, which comes before those that PYTHONPATH names."""
    (tmp_path / "search_spaces").mkdir()
    (tmp_path / "search_spaces" / "__init__.py").touch()
    line = [sys.executable, "-m", f"platform.{command}"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.run(line, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)
    assert child.returncode == 2 and child.stdout == "" and child.stderr.count("\n") == 1, child.stderr
    places = f"platform from {ROOT}, search_spaces from {tmp_path.resolve()}, trainers from {ROOT}"
    advice = "run the command in the folder of the one that is meant and without PYTHONPATH"
    assert child.stderr == f"error: two checkouts are mixed ({places}): {advice}\n"


def test_commands_are_all_there() -> None:
    assert len(COMMANDS) == 11 and {"search", "plan", "train", "report", "probe"} < set(COMMANDS)


@pytest.mark.parametrize(
    "error",
    (ValueError("x"), ImportError("x"), *(ModuleNotFoundError("x", name=name) for name in ("platform.x", "json.x"))),
    ids=("value", "import", "ours", "a part of a package that is there"),
)
def test_another_error_keeps_its_traceback(error: Exception) -> None:
    assert environment.lacking(error) == ""


def test_an_older_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 13, "final", 0))
    assert environment.lacking(SyntaxError("x")) == "is Python 3.10.13, 3.11 or later is needed"


def test_what_to_run_depends_on_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv = tmp_path / "checkout" / ".venv"
    (venv / "bin").mkdir(parents=True)
    monkeypatch.setattr(environment, "OURS", tmp_path / "checkout" / "platform")
    monkeypatch.chdir(tmp_path / "checkout")
    assert environment.set_up() == "make setup && . .venv/bin/activate"
    (venv / ".installed").touch()
    assert environment.set_up() == ". .venv/bin/activate"
    monkeypatch.chdir(tmp_path)
    assert environment.set_up() == ". checkout/.venv/bin/activate"
    monkeypatch.setattr(sys, "prefix", str(venv))
    assert environment.set_up() == "make -C checkout setup"
