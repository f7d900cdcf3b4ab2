"""A trial that never starts ends the search."""

import itertools
import json
import threading
import time
from pathlib import Path

import pytest

from platform.search.loop import start_timeout


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the times of the watch."""
    monkeypatch.setattr(start_timeout, "START_S", 0.5)
    monkeypatch.setattr(start_timeout, "_POLL_S", 0.05)


def test_a_trial_without_a_first_word_is_lost_once(tmp_path: Path) -> None:
    output: list[str] = []
    called = threading.Event()
    with start_timeout.starts(
        lambda: ("t0001",), tmp_path / "state", lambda reason: (output.append(reason), called.set())[0]
    ):
        assert called.wait(300)
        time.sleep(0.7)
    (why,) = output
    assert why.startswith("no worker of trial t0001 reported within ")


def test_one_that_began_may_take_its_time(tmp_path: Path) -> None:
    output: list[str] = []
    state = tmp_path / "state"
    state.write_text(json.dumps({"statuses": {"t0001": {"phase": "init"}}, "nodes": {}}))
    with start_timeout.starts(lambda: ("t0001",), state, output.append):
        time.sleep(1)
    assert not output


def test_each_trial_has_its_own_time(tmp_path: Path) -> None:
    output: list[str] = []
    # Another one, or none, each time the watch looks, however late it looks.
    names = itertools.cycle((("t0001",), (), ("t0002",), ("t0003",)))
    with start_timeout.starts(lambda: next(names), tmp_path / "state", output.append):
        time.sleep(1.5)
    assert not output
