"""`python -m platform.search MODEL_A MODEL_B`: a study for each model, on one cluster, and one table of both."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from platform.common.config_file import read_config
from platform.common.signals import INTERRUPTED
from platform.search.__main__ import parse
from platform.study.group import members_of, read_group
from platform.study.study import read
from tests.search.loop.played import Played
from tests.search.session.refusals import Refused, plain_environment, refused
from tests.search.session.test_counts_together import on_two_nodes
from tests.whole_searches.session import write_space

__all__ = ["on_two_nodes", "plain_environment", "refused"]
OPTIONS = ("--searcher", "sweep")


@pytest.fixture
def models(tmp_path: Path) -> tuple[str, str]:
    """Returns two space files, each of two layouts of one rung, whose trials take one worker."""
    axes = {"checkpointing": ("none", "full"), "engine": ("ddp",)}
    common: dict[str, Any] = {"axes": axes, "micro_batches": (1,), "num_workers": 1}
    first = write_space(tmp_path / "first.py", **common, hidden_size=32)
    return str(first), str(write_space(tmp_path / "second.py", **common, hidden_size=64))


def test_each_has_a_study_and_they_share_the_cluster(
    on_two_nodes: Played, models: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert on_two_nodes.search(*models, "--name", "s", *OPTIONS) == 0
    output = capsys.readouterr()
    printed = json.loads(output.out)
    assert [(row["study"], row["gpus"], row["efficiency"]) for row in printed["scaling"]] == [
        ("s-first", 1, 1.0),
        ("s-second", 1, 1.0),
    ]
    assert [study["study"] for study in printed["studies"]] == ["s-first", "s-second"]
    assert all(row["winner"]["layout"]["checkpointing"] == "none" for row in printed["scaling"])
    assert "first; second" in output.err or "first and second at the same time, on 2 nodes:" in output.err
    first, second = (read(on_two_nodes.studies / name)[0] for name in ("s-first", "s-second"))
    beside = {other for start in second.trials if (end := second.trial_end(start.trial_id)) for other in end.beside}
    assert beside & {f"s-first:{start.trial_id}" for start in first.trials}
    assert first.header and second.header and first.header.recipes[0].model != second.header.recipes[0].model
    assert [path.name for path in members_of(on_two_nodes.studies / "s-second")] == ["s-first", "s-second"]
    rows = list(csv.DictReader((on_two_nodes.studies / "s" / "scaling.csv").open()))
    assert [row["study"] for row in rows] == ["s-first", "s-second"]


def test_one_table_shows_the_winner_of_each_and_ranks_nothing(
    on_two_nodes: Played, models: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert on_two_nodes.search(*models, "--name", "s", *OPTIONS, as_object=False) == 0
    for text in (capsys.readouterr().out, _report(on_two_nodes, capsys)):
        table = text[text.rindex("fastest layout") :]
        assert "they are not ranked" in table and "efficiency" not in text[text.rindex("study") :]
        assert [line.split()[0] for line in table.splitlines() if line.startswith("s-")] == ["s-first", "s-second"]
        assert table.count("DDP") == 2, table


def _report(played: Played, capsys: pytest.CaptureFixture[str]) -> str:
    assert played.report("s") == 0
    return capsys.readouterr().out


def test_models_on_several_numbers_of_devices_are_as_many_studies(
    on_two_nodes: Played, models: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert on_two_nodes.search(*models, "--name", "s", "--gpus", "1,2", *OPTIONS) == 0
    rows = json.loads(capsys.readouterr().out)["scaling"]
    names = ["s-first-1gpu", "s-first-2gpu", "s-second-1gpu", "s-second-2gpu"]
    assert [row["study"] for row in rows] == names
    assert [row["efficiency"] for row in rows] == pytest.approx([1.0, 0.8, 1.0, 0.8])
    for name in names:  # one model teaches the other nothing
        history = read(on_two_nodes.studies / name)[0]
        assert history.end is not None and len({m.recipe.id for m in history.measurements}) == 1


def test_what_was_cut_goes_on_with_what_is_missing_of_each(
    on_two_nodes: Played, models: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    on_two_nodes.cut = 1
    assert on_two_nodes.search(*models, "--name", "s", *OPTIONS) == INTERRUPTED
    assert "--resume s" in capsys.readouterr().err
    on_two_nodes.cut = None
    assert on_two_nodes.search("--resume", "s") == 0
    ran = len(on_two_nodes.jobs)
    assert ran and on_two_nodes.search("--resume", "s") == 0 and not on_two_nodes.jobs, "nothing is left"
    for name in ("s-first", "s-second"):
        history = read(on_two_nodes.studies / name)[0]
        assert len({m.layout for m in history.measurements if not m.repeat}) == 2


def test_the_file_of_the_search_repeats_it(on_two_nodes: Played, models: tuple[str, str]) -> None:
    assert on_two_nodes.search(*models, "--name", "s", *OPTIONS) == 0
    file = on_two_nodes.studies / "s" / "run.yaml"
    assert read_config(file)["further"] == [models[1]]
    study = parse(["--config", str(file)]).study
    assert (study.space, study.further) == (models[0], (models[1],))
    assert read_group(on_two_nodes.studies / "s").models == {"first": models[0], "second": models[1]}


def test_two_files_of_one_name_have_studies_of_their_own(on_two_nodes: Played, models: tuple[str, str]) -> None:
    folder = Path(models[0]).parent / "other"
    folder.mkdir()
    other = write_space(folder / "first.py", num_workers=1, hidden_size=64, axes={"engine": ("ddp",)})
    assert on_two_nodes.search(models[0], str(other), "--name", "s", *OPTIONS) in (0, 1)
    assert {path.name for path in on_two_nodes.studies.iterdir()} >= {"s", "s-first-1", "s-first-2"}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("gpt2", "gpt2"), "gpt2 is named twice"),
        (("gpt2", "no-such-model"), "no-such-model: unknown space"),
        (("gpt2", "bloom7b", "--build", "own.py:build", "--tokens-per-step", "8"), "the space names another subject"),
        (("gpt2", "bloom7b", "--", "python", "own.py"), "the space names another subject"),
        (("gpt2", "bloom7b", "--name", "a/b"), "a/b"),
    ],
)
def test_what_makes_no_sense_is_refused(argv: tuple[str, ...], words: str, refused: Refused) -> None:
    assert words in refused(*argv)


@pytest.mark.parametrize("value", ["0", "=-1", "=", "4", "1000", "sometimes"])
def test_side_by_side_takes_its_three_words_alone(value: str, refused: Refused) -> None:
    argument = f"--side-by-side{value}" if value.startswith("=") else f"--side-by-side={value}"
    sentence = refused("gpt2", argument)
    assert all(word in sentence for word in ("--side-by-side", "off", "auto", "on")), sentence
