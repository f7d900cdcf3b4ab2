"""The options of a search as a value: a command line's meaning, what a journal keeps, what a resume refuses."""

import dataclasses
import json
from pathlib import Path

import pytest

import search_spaces
from platform.common.errors import InputError
from platform.search.__main__ import main, parse
from platform.search.setup.options import StudyOptions, options_of
from platform.search.setup.request import resumed
from tests.samples import header
from trainers.spec.codec import to_json

FULL = StudyOptions(
    space="bloom7b",
    further=("gpt2", "llama3"),
    set=("seq_len=128,256", "tp=1"),
    command=("torchrun", "{gpus}", "train.py", "{micro_batch=1,2}"),
    folder=str(Path.cwd()),
    tokens_per_step=4096,
    seq_len=64,
    step_line="loss",
    recheck="/made/up/study",
    layout="/made/up/layout.json",
    learn_from="old-1",
    searcher="optuna",
    seed=7,
    repeats=0,
    steps=12,
    whole_steps=True,
    all=True,
    device_memory_gib=1.5,
    gpus=(1, 2, 4),
    tokens=1e11,
    price_per_gpu_h=2.5,
    data="/made/up/tokens.parquet",
)
"""Options of which none is at its default."""
_ARGUMENTS = """
    bloom7b gpt2 llama3 --set seq_len=128,256 --set tp=1 --tokens-per-step 4096 --seq-len 64 --step-line loss
    --layout /made/up/layout.json --data /made/up/tokens.parquet
    --tokens 100000000000.0 --price-per-gpu-h 2.5 --searcher optuna --learn-from old-1 --seed 7 --repeats 0 --steps 12
    --whole-steps --all --gpus 1,2,4 --device-memory-gib 1.5 -- torchrun {gpus} train.py {micro_batch=1,2}
"""
ARGUMENTS = tuple(_ARGUMENTS.split())
"""The same options as arguments of the command."""


def test_the_sample_leaves_no_option_at_its_default() -> None:
    """Checks all but what a command excludes, and what the file of a training alone says."""
    left_out = [field.name for field in dataclasses.fields(FULL) if getattr(FULL, field.name) == field.default]
    assert left_out == ["build", "environment", "without", "model", "means"]


@pytest.mark.parametrize("columns", [80, 100, 160])
def test_the_list_of_spaces_fits_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == [*search_spaces.names()]


def test_defaults_are_those_of_the_command_line() -> None:
    assert parse(["--list"]).study == StudyOptions()


def test_a_command_line_and_a_journal_say_the_same() -> None:
    assert parse(ARGUMENTS).study == dataclasses.replace(FULL, recheck=None)
    stored = json.loads(json.dumps(to_json(FULL)))
    assert options_of(header(options=stored)) == FULL
    assert header(options=stored).arguments == ARGUMENTS


def test_paths_are_understood_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").touch()
    (tmp_path / "gpt2").touch()
    parsed = parse(["mine.py", "--layout", "a.json", "--data", "~/b", "--learn-from", "./old", "--studies", "here"])
    assert parsed.study.space == str(tmp_path / "mine.py") and parsed.study.layout == str(tmp_path / "a.json")
    assert parsed.study.data == str(Path.home() / "b") and parsed.study.learn_from == str(tmp_path / "old")
    assert parsed.studies == tmp_path / "here"
    assert parse(["gpt2"]).study.space == "gpt2", "a built-in space comes before a file of its name"


def test_an_option_that_a_later_version_stored_is_refused() -> None:
    with pytest.raises(InputError, match="has no field colour"):
        options_of(header(options={"space": "gpt2", "colour": "red"}))


def test_a_resumed_study_keeps_what_it_began_with() -> None:
    parsed = parse(["--resume", "old", "--gpu-s", "5", "--seed", "7", "--gpus", "4,2,1"])
    options = resumed(parsed, dataclasses.replace(FULL, learn_from=None))
    assert options.study == dataclasses.replace(FULL, learn_from=None) and options.gpu_s == 5.0
    with pytest.raises(InputError, match="keeps the space, --price-per-gpu-h: leave it out"):
        resumed(parse(["gpt2", "--resume", "old", "--price-per-gpu-h", "3"]), FULL)
