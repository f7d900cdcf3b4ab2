"""The order of a comparison's trainings, and what an interrupted one says."""

from pathlib import Path
from typing import Any

import pytest

import platform.train.converging.command as converge  # pyright takes `from platform import` for the standard module
import platform.train.converging.comparison_session as sessions
from platform.common.errors import InputError
from platform.train.converging.rates import Rate
from platform.train.converging.strategies import read_strategies
from tests.dead_driver import session_of_dead_driver
from tests.training.layout_file import write_layout
from tests.training.values import DDP


@pytest.mark.parametrize(
    ("trained", "sentence"),
    [
        (1, "1 of 6 trainings are complete: the same command resumes the rest.\n"),
        (5, "5 of 6 trainings are complete: the same command resumes the rest, with --seeds 2 it answers by these.\n"),
    ],
)
def test_an_interrupted_comparison_says_what_is_complete(
    trained: int, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write_layout(tmp_path / "ddp.json", DDP))
    options = converge.PARSER.read(
        [file, "optimizer=adafactor", "--steps", "10", "--seeds", "3", "--studies", str(tmp_path)]
    )
    strategies = read_strategies(options)
    session = sessions.ComparisonSession(options, strategies, tmp_path / "compared")
    codes = iter([0] * trained + [130])
    names: list[str] = []

    def train_on(*_: Any, name: str, **__: Any) -> int:
        names.append(name.rsplit(" ", 1)[-1])
        return next(codes)

    monkeypatch.setattr(sessions, "train_on", train_on)
    monkeypatch.setattr(session, "_connected", lambda: None)
    assert session.train({strategy.name: Rate(value=1e-3, source="stated") for strategy in strategies}) == 130
    assert names == [str(run // 2) for run in range(trained + 1)]
    assert capsys.readouterr().err.endswith(sentence)


def test_adapters_want_the_weights_of_a_folder(tmp_path: Path) -> None:
    file = str(write_layout(tmp_path / "ddp.json", DDP))
    options = converge.PARSER.read([file, "adapter=lora_4", "--steps", "10"])
    session = sessions.ComparisonSession(options, read_strategies(options), tmp_path / "compared")
    with pytest.raises(InputError, match="trains adapters beside a model that does not train"):
        session.check()
    assert not (tmp_path / "compared").exists()


def test_a_comparison_that_needs_no_cluster_sweeps_what_its_killed_driver_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    options = converge.PARSER.read(
        [str(write_layout(tmp_path / "ddp.json", DDP)), "optimizer=adafactor", "--steps", "10"]
    )
    abandoned = session_of_dead_driver(tmp_path)
    with sessions.ComparisonSession(options, read_strategies(options), tmp_path / "compared").on_a_cluster():
        pass
    assert not abandoned.exists()
