"""transformers is asked in a process of its own, once for each model; where it cannot be, nothing is said."""

import dataclasses
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from platform.common.builder import BuildQuestion
from platform.common.errors import InputError
from platform.plan.__main__ import main as plan
from platform.search.__main__ import main as search
from trainers.spec.model import ModelSpec

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 97,
    "seq_length": 32,
    "global_batch_size": 8,
}
_lengths = itertools.count(1000)


def model() -> ModelSpec:
    """Returns a model that this process has not asked for."""
    return ModelSpec.from_config({**CONFIG, "max_position_embeddings": next(_lengths)}, name="mine")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder of the user's cache, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def answered_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Has a shell command answer in place of transformers."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{command}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))


def test_a_reason_is_one_sentence_with_the_file_and_is_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered_by(tmp_path, monkeypatch, """echo x >> "$0.calls"; echo '{"reason": "it does not know zz"}'""")
    spec = model()
    for _ in range(2):
        with (
            BuildQuestion([spec], "my/config.json") as builder,
            pytest.raises(InputError, match=r"^transformers does not build the model of my/config.json: it does not"),
        ):
            builder.check()
    assert (tmp_path / "python.calls").read_text() == "x\n"
    (answer_file,) = (cache / "layout-search" / "built").iterdir()
    assert json.loads(answer_file.read_text()) == {"reason": "it does not know zz"}


def test_what_an_earlier_process_was_told_is_not_asked_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered_by(tmp_path, monkeypatch, """echo '{"reason": ""}'""")
    with BuildQuestion([spec := model()], "mine") as builder:
        builder.check()
    (answer_file,) = (cache / "layout-search" / "built").iterdir()
    answer_file.write_text('{"reason": "as kept"}')
    monkeypatch.setattr("platform.common.builder._answers", {})
    with BuildQuestion([spec], "mine") as builder, pytest.raises(InputError, match="as kept"):
        builder.check()


def test_each_model_is_asked_for_and_one_process_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered_by(tmp_path, monkeypatch, """echo x >> "$0.calls"; echo '{"reason": ""}'; echo '{"reason": "no"}'""")
    first, second = model(), dataclasses.replace(model(), name="other")
    with (
        BuildQuestion([first, second, first], "spaces.py") as builder,
        pytest.raises(InputError, match=r"^transformers does not build the model of spaces.py called other: no$"),
    ):
        builder.check()
    assert (tmp_path / "python.calls").read_text() == "x\n"
    with BuildQuestion([first], "spaces.py") as builder:
        builder.check()
    with BuildQuestion([second], "spaces.py") as builder, pytest.raises(InputError, match=r"of spaces.py: no$"):
        builder.check()
    assert (tmp_path / "python.calls").read_text() == "x\n"


def test_without_a_program_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with BuildQuestion([model()], "mine") as builder:
        builder.check()


def test_without_a_place_for_answers_it_is_asked_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("a file")
    answered_by(tmp_path, monkeypatch, """echo '{"reason": "no"}'""")
    with BuildQuestion([model()], "mine") as builder, pytest.raises(InputError, match="no"):
        builder.check()


@pytest.mark.parametrize("command", ["exit 1", "echo no JSON", "echo '[]'", "kill -9 $$"])
def test_no_answer_is_no_reason(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    answered_by(tmp_path, monkeypatch, command)
    with BuildQuestion([model()], "mine") as builder:
        builder.check()
    assert not cache.exists()


def test_a_model_without_a_file_is_not_asked_for_and_nobody_waits_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered_by(tmp_path, monkeypatch, """echo x >> "$0.calls"; exec sleep 600""")
    sizes = ModelSpec(name="sizes", architecture="llama", num_layers=1, hidden_size=8, num_heads=1, vocab_size=8)
    with BuildQuestion([sizes], "a"):
        pass
    assert not (tmp_path / "python.calls").exists()
    with BuildQuestion([model()], "mine"):
        pass


@pytest.mark.slow
def test_plan_and_search_refuse_what_transformers_does_not_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, "hidden_act": "zz"}))
    sentence = f"error: transformers does not build the model of {path}: it does not know hidden_act 'zz'\n"
    assert plan([str(path), "--cluster", "8xH100"]) == 2
    assert sentence in capsys.readouterr().err
    assert search([str(path), "--dry-run", "--address", "nowhere:1"]) == 2  # no Ray is looked for
    assert capsys.readouterr().err == sentence


SPACE = """
import dataclasses
from search_spaces.transformers_config import space_of_config
from pathlib import Path
def space():
    first, second = (space_of_config(Path(__file__).with_name(name)) for name in ("first.json", "second.json"))
    return dataclasses.replace(first, further_recipes=(second.recipe,))
"""


@pytest.mark.slow
def test_every_recipe_s_model_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "first.json").write_text(json.dumps(CONFIG))
    (tmp_path / "second.json").write_text(json.dumps({**CONFIG, "hidden_act": "zz"}))
    (path := tmp_path / "space.py").write_text(SPACE)
    sentence = f"error: transformers does not build the model of {path} called second: it does not know hidden_act 'zz'"
    assert plan([str(path), "--cluster", "8xH100"]) == 2
    assert sentence in capsys.readouterr().err
    assert search([str(path), "--dry-run", "--address", "nowhere:1"]) == 2
    assert sentence in capsys.readouterr().err
