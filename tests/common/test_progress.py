"""The line of progress: printed where an answer takes long, on standard error, and once where that is no terminal."""

import re
import time

import pytest

from platform.common import progress
from platform.common.progress import Progress


def _shown(capsys: pytest.CaptureFixture[str]) -> str:
    """Waits until something is printed on standard error, and returns that."""
    shown, until_s = "", time.monotonic() + 300
    while not shown:
        assert time.monotonic() < until_s
        time.sleep(0.01)
        printed = capsys.readouterr()
        assert printed.out == ""
        shown = printed.err
    return shown


def test_a_long_answer_says_that_it_is_being_computed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("platform.common.progress.FIRST_S", 0.01)
    with Progress("planning bloom on 8 x H100"):
        shown = _shown(capsys)
    assert re.fullmatch(r"planning bloom on 8 x H100, \d+ s so far\n", shown + capsys.readouterr().err)


def test_a_terminal_s_line_is_taken_away(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("platform.common.progress.FIRST_S", 0.01)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress("planning bloom") as line:
        shown = _shown(capsys)
        line.end()
    shown += capsys.readouterr().err
    assert re.fullmatch(r"(\rplanning bloom, \d+ s so far\x1b\[K)+\r\x1b\[K", shown), shown


def test_a_short_answer_has_none_and_no_test_s_is_long(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("planning bloom"):
        pass
    assert capsys.readouterr().err == "" and progress.FIRST_S >= 3600.0, "else it is printed on a busy machine"
