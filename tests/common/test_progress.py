"""The line of progress: printed where an answer takes long, on standard error, and once where that is no terminal."""

import time

import pytest

from platform.common.progress import Progress


def test_a_long_answer_says_that_it_is_being_computed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("platform.common.progress.FIRST_S", 0.01)
    with Progress("planning bloom on 8 x H100"):
        time.sleep(0.2)
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err == "planning bloom on 8 x H100, 0 s so far\n"


def test_a_terminal_s_line_is_taken_away(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("platform.common.progress.FIRST_S", 0.01)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress("planning bloom") as progress:
        time.sleep(0.2)
        progress.end()
    assert capsys.readouterr().err == "\rplanning bloom, 0 s so far\033[K\r\033[K"


def test_a_short_answer_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("planning bloom"):
        pass
    assert capsys.readouterr().err == ""
