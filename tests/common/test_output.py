"""Widths of results: COLUMNS, else that of a terminal, with a pager behind too."""

import os

import pytest

from platform.common.output import filled, terminal_width


@pytest.mark.parametrize(("columns", "terminals", "width"), [
    ("96", {1: 150}, 96), (None, {1: 150, 2: 70}, 150), (None, {2: 70}, 70), ("", {0: 66}, 66), ("0", {}, 200),
    ("wide", {}, 200), (None, {1: 0}, 200),
])  # fmt: skip
def test_columns_come_before_terminals_and_these_before_none(
    columns: str | None, terminals: dict[int, int], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def size(stream: int) -> os.terminal_size:
        if stream not in terminals:
            raise OSError("no terminal")
        return os.terminal_size((terminals[stream], 24))

    monkeypatch.setattr("os.get_terminal_size", size)
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert terminal_width(200) == width


def test_a_command_stays_on_one_line() -> None:
    command = "python -m platform.search --resume one --studies /a/long/folder"
    lines = filled(f"Interrupted. What was measured is kept; go on with: {command}", 40, indent="  ").splitlines()
    assert lines[-1] == f"  {command}" and max(map(len, lines[:-1])) <= 40
    assert filled(f"It ran (see {command}; or wait) and ended.", 30).splitlines()[1] == f"{command};"
