"""The commands' options are frozen: a knob that belongs to a space is an axis of `--set`, never an option."""

import argparse
import importlib
import re
from pathlib import Path

import pytest

import platform.report as report  # pyright takes `from platform import` for the standard module
import platform.search as search

ROOT = Path(__file__).parents[2]

SEARCH = """
    --address --all --data --device-memory-gib --dry-run --exclude-slow --gpu-s --gpus --json --layout --learn-from
    --list --max-trials --name --price-per-gpu-h --profile --repeats --resume --searcher --seed --set --steps --studies
    --time-budget-s --tokens --wait-for-gpus
"""
REPORT = "--csv --json --no-mlflow --studies"

COMMANDS = {"search": (search.parser, SEARCH), "report": (report.parser, REPORT)}


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest) -> tuple[argparse.ArgumentParser, set[str]]:
    """A command's parser, and the options it may have."""
    make, frozen = COMMANDS[request.param]
    return make(), set(frozen.split())


def helps(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Option or argument -> its help, as --help prints it."""
    listed = parser.format_help().partition("\n\n")[2]
    found: dict[str, str] = {}
    name = ""
    for line in listed.splitlines():
        if head := re.match(r"  (?:-h, )?(--[a-z-]+|\w+)", line):
            name = head[1]
            found[name] = line[2:].partition("  ")[2].strip()
        elif name and line.startswith("   "):
            found[name] = f"{found[name]} {line.strip()}".strip()
        else:
            name = ""
    return found


def test_no_option_comes_or_goes_unnoticed(command: tuple[argparse.ArgumentParser, set[str]]) -> None:
    parser, frozen = command
    assert {name for name in helps(parser) if name.startswith("--")} - {"--help"} == frozen


def test_every_option_and_argument_has_help(command: tuple[argparse.ArgumentParser, set[str]]) -> None:
    parser, _ = command
    assert [name for name, text in helps(parser).items() if len(text) < 10 or text.endswith(("else)", "("))] == []


def test_every_option_is_documented(command: tuple[argparse.ArgumentParser, set[str]]) -> None:
    _, frozen = command
    text = (ROOT / "docs" / "search.md").read_text()
    assert [name for name in sorted(frozen) if not re.search(rf"`{name}[ `]", text)] == []


def test_the_documentation_names_no_option_that_is_not_there() -> None:
    known = {*SEARCH.split(), *REPORT.split(), "--help"}
    for path in (ROOT / "docs" / "search.md", ROOT / "README.md"):
        named = set(re.findall(r"`(--[a-z-]+)", path.read_text()))
        assert named <= known, path


@pytest.mark.parametrize("name", ["search", "plan", "probe", "validate", "replay", "report"])
def test_a_wrong_option_is_told_in_one_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An option that is shortened is none, too: another one may begin alike tomorrow."""
    main = importlib.import_module(f"platform.{name}").main
    assert main(["thing", "--jso"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1
    assert "unrecognized arguments: --jso" in said.err or "unrecognized arguments: thing --jso" in said.err
