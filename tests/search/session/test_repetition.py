"""Each study writes the file that repeats it: read again, it is the same search."""

import dataclasses
import os
from pathlib import Path

import pytest

from platform.search.__main__ import main, parse
from platform.search.session.repetition import RUN, write_run
from platform.search.setup.options import SearchOptions
from tests import needs

SPACE = "def space():\n    raise SystemExit\n"
PLACES = ("config", "studies", "name", "address", "json")
"""Options that say where and how, and not what."""


@pytest.mark.parametrize(
    "words",
    [
        ("gpt2",),
        ("bloom7b", "--set", "seq_len=128,256", "--set", "tp=1", "--tokens", "100B", "--price-per-gpu-h", "2.5"),
        ("bloom7b", "--gpus", "1,2,4", "--time-budget", "1.5h", "--gpu-s", "90", "--max-trials", "3"),
        ("space.py", "--data", "tokens", "--seed", "7", "--searcher", "optuna", "--repeats", "0", "--steps", "2"),
        ("--layout", "layout.json", "--whole-steps", "--all", "--device-memory-gib", "0.5", "--profile", "--safe"),
        ("gpt2", "--learn-from", "old-1", "--name", "mine", "--address", "local", "--json", "--exclude-slow"),
        ("--tokens-per-step", "4096", "--seq-len", "64", "--step-line", r"(?P<s>\d+)", "--", "run", "{a=1,2}", "--b=#"),
    ],
)
def test_a_study_s_file_says_what_its_command_said(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "space.py").write_text(SPACE)
    monkeypatch.chdir(tmp_path)
    end = words.index("--") if "--" in words else len(words)
    options = parse([*words[:end], "--studies", str(tmp_path), *words[end:]])
    write_run(tmp_path, options, options.study)
    again = parse(["--config", str(tmp_path / RUN)])
    fields = [field.name for field in dataclasses.fields(SearchOptions) if field.name not in PLACES]
    assert {name: getattr(again, name) for name in fields} == {name: getattr(options, name) for name in fields}


@pytest.mark.parametrize(
    ("text", "words", "sentence"),
    [
        ("spaces: gpt2", (), "has spaces, which is no option: did you mean space?"),
        ("space: gpt2", ("bloom7b",), "space is given twice"),
        ("command: [run]", ("--", "run"), "name two trainings: leave out one"),
        ("command: [run]\ngpus: [1, 2]", (), "the command has no hole {gpus}"),
        ("trust: true", (), "trust, which stands on the command line alone"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(
    text: str, words: tuple[str, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / RUN).write_text(text)
    assert main(["--config", str(tmp_path / RUN), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and sentence in line


def test_a_file_of_another_user_needs_trust(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs.root("give a file to another user")
    (tmp_path / RUN).write_text("list: false\n")
    os.chown(tmp_path / RUN, 12345, 12345)
    assert main(["--config", str(tmp_path / RUN)]) == 2
    assert "belongs to user 12345" in capsys.readouterr().err
    assert main(["--config", str(tmp_path / RUN), "--trust"]) == 2
    assert "stands on the command line alone" in capsys.readouterr().err
