"""The commands' options are frozen: a knob that belongs to a space is an axis of `--set`, never an option."""

# pyright: reportPrivateUsage=false

import argparse
import importlib
import re
from pathlib import Path

import pytest

import platform.report.__main__ as report  # pyright takes `from platform import` for the standard module
import platform.search.__main__ as search
import search_spaces
from platform.search.setup.confirmation_rules import FINALISTS
from platform.search.setup.study_setup import GATES, TIMINGS
from platform.study.result.ranking import TIE_WIDTH
from trainers.measuring import matmul_peak

ROOT = Path(__file__).parents[3]
NAMES = ("search", "your-model", "your-training", "your-training-measured", "measuring", "gate", "results", "mlflow")
PAGES = [ROOT / "docs" / f"{name}.md" for name in NAMES]

SEARCH = """
    --address --all --auto-resume --build --config --copy-to --data --device-memory-gib --dry-run --exclude-slow --gpu-s
    --gpus --json --layout --learn-from --list --max-trials --name --price-per-gpu-h --profile --repeats --resume --safe
    --searcher --side-by-side
    --seed --seq-len --set --step-line --steps --studies --time-budget --tokens --tokens-per-step --trust
    --wait-for-gpus --wandb --whole-steps
"""
REPORT = "--compare --csv --html --json --markdown --mlflow --no-mlflow --pictures --serve --studies --trust --wandb"

COMMANDS_OF_ROOMS = ("search", "plan", "validate", "report")
"""Commands that are packages."""
COMMANDS = {"search": (search.PARSER, SEARCH), "report": (report.PARSER, REPORT)}


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest) -> tuple[argparse.ArgumentParser, set[str]]:
    """Returns a command's parser, and the options it may have."""
    parser, frozen = COMMANDS[request.param]
    return parser, set(frozen.split())


def helps(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Returns the help of each option or argument, as --help prints it."""
    listed = parser.format_help().partition("\n\n")[2]
    help_by_option: dict[str, str] = {}
    name = ""
    for line in listed.splitlines():
        if head := re.match(r"  (?:-h, )?(--[a-z-]+|\w+)", line):
            name = head[1]
            help_by_option[name] = line[2:].partition("  ")[2].strip()
        elif name and line.startswith("   "):
            help_by_option[name] = f"{help_by_option[name]} {line.strip()}".strip()
        else:
            name = ""
    return help_by_option


def test_no_option_comes_or_goes_unnoticed(command: tuple[argparse.ArgumentParser, set[str]]) -> None:
    parser, frozen = command
    assert {name for name in helps(parser) if name.startswith("--")} - {"--help"} == frozen


def test_every_option_and_argument_has_help(command: tuple[argparse.ArgumentParser, set[str]]) -> None:
    parser, _ = command
    assert [name for name, text in helps(parser).items() if len(text) < 10 or text.endswith(("else)", "("))] == []


def test_the_figures_that_the_pages_tell_are_those_of_the_search() -> None:
    gpu, gate, small = TIMINGS["cuda"], GATES["cuda"], GATES["cpu"]
    shape, *others = (" x ".join(map(str, sizes)) for sizes in matmul_peak._SHAPES["cuda"])
    shown = (
        f"`--wait-for-gpus`, {search.PARSER.parse_args([]).wait_for_gpus / 60:g} min by default)",
        f"the best three points have N runs each ({search_spaces.load('bloom7b').repeats}, unless",
        f"narrower than {100 * TIE_WIDTH:g} %",
        f"whose step stays within {gpu.longest_step_s:g} s, its windows {gpu.winner_s:g} s long in all",
        f"over {gate.steps} steps of {gate.sequences} sequences",
        f"On CPUs a step has {small.sequences} sequences",
        f"{gpu.peak_s:g} s of products of random normal numbers, the best of three shapes ({shape} among them)",
        f"as many as fill {gpu.rung_s:g} s (and three windows at least)",
    )
    text = "\n".join(page.read_text() for page in (*PAGES, ROOT / "docs" / "clusters.md"))
    assert [sentence for sentence in shown if sentence not in text] == []
    assert (FINALISTS, gpu.min_windows, len(others) + 1) == (3, 3, 3)


def test_the_documentation_names_no_option_that_is_not_there() -> None:
    options = {*SEARCH.split(), *REPORT.split(), "--help"}
    for path in (*PAGES, ROOT / "README.md"):
        named = set(re.findall(r"`(--[a-z-]+)", path.read_text()))
        assert named <= options, path


@pytest.mark.parametrize("name", [*COMMANDS_OF_ROOMS, "probe", "replay"])
def test_a_wrong_option_is_told_in_one_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Checks that a shortened option is no option either, since another one may begin alike tomorrow."""
    main = importlib.import_module(
        f"platform.{name}.__main__" if name in COMMANDS_OF_ROOMS else f"platform.{name}"
    ).main
    assert main(["thing", "--jso"]) == 2
    output = capsys.readouterr()
    assert output.out == "" and len(output.err.splitlines()) == 1
    assert "unrecognized arguments: --jso" in output.err or "unrecognized arguments: thing --jso" in output.err
