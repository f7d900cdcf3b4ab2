"""The layout that a plan recommends: its first row surely fits, and `--save-layout` writes it."""

# pyright: reportPrivateUsage=false

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from platform.cost_model.predict import SURE
from platform.plan.__main__ import main
from platform.plan.layout_table import _note_on_chance
from platform.study.layout_file import read_layout
from trainers.spec.layout import Layout

EDGE = ("bloom7b", "--cluster", "8xH100", "--set", "offload=none")
"""A plan whose fastest point is predicted to need 78.2 of 79.1 GiB."""


def recipe_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Returns the JSON object of a plan's only recipe."""
    assert main([*arguments, "--json"]) == 0, capsys.readouterr().err
    (recipe,) = json.loads(capsys.readouterr().out)["recipes"]
    return recipe


def test_layouts_that_surely_fit_come_first_and_a_faster_point_stands_apart(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = recipe_of(capsys, *EDGE, "--top", "500")
    sure = [layout["ok_probability"] >= SURE for layout in recipe["layouts"]]
    assert sure == sorted(sure, reverse=True) and 0 < sum(sure) < len(sure)
    first, faster = recipe["layouts"][0], recipe["faster_if_it_fits"]
    assert faster["tokens_per_s"] > first["tokens_per_s"] and 0.5 < faster["ok_probability"] < SURE
    assert sum(recipe["loses_by"].values()) < len(sure), "layouts that are faster than the first lose by nothing"


@pytest.mark.parametrize("width", ("80", "120"))
def test_the_table_states_the_probability_and_names_the_faster_point(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert main([*EDGE, "--top", "500"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if "±" in line]
    assert max(map(len, lines)) <= int(width) and re.search(r" 100 % .* best *$", rows[0])
    shown = " ".join(" ".join(lines).split())
    assert re.search(
        r"[\d.]+ % faster, but memory suffices with 58 % probability only: FSDP2 stage 2, .*, batch 8 x 8 ", shown
    )


@pytest.mark.parametrize(
    ("tokens_per_s", "shown"), [(1000.4, ""), (1001.0, "0.1 % faster, but memory suffices with 60 %")]
)
def test_a_gain_that_rounds_to_nothing_is_not_named(tokens_per_s: float, shown: str) -> None:
    layout = Layout(engine="ddp")
    first = SimpleNamespace(ok_probability=1.0, tokens_per_s=1000.0)
    figures = {"ok_probability": 0.6, "tokens_per_s": tokens_per_s, "micro_batch": 1, "grad_accum": 1}
    faster = SimpleNamespace(layout=layout, **figures)
    plan: Any = SimpleNamespace(best=[first], faster_if_it_fits=faster)
    assert _note_on_chance(plan)[: len("0.1 % faster, but memory suffices with 60 %")] == shown


def test_a_faster_layout_that_is_less_sure_to_fit_stands_below(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*EDGE, "--top", "500", "--set", "micro_batch=8"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "±" in line]
    chances = [int(re.findall(r"(\d+) %", line)[0]) for line in rows]
    faster = [chance for chance, line in zip(chances, rows, strict=True) if line.rstrip().endswith(" faster")]
    assert chances[0] >= 90 and faster and max(faster) < 90


def test_where_no_layout_can_stand_the_most_frequent_reasons_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpt2", "--cluster", "3xH100", "--set", "global_batch=512"]) == 2
    shown = capsys.readouterr().err
    counts = [int(count.replace(",", "")) for count in re.findall(r"([\d,]+) points", shown)]
    assert len(counts) == 3 and counts[0] > counts[1] and f"; {counts[2]} points for other reasons; with --set" in shown


def test_a_reason_that_names_a_set_value_comes_before_more_frequent_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["qwen3_30b_a3b", "--cluster", "8xH100", "--set", "ep=16"]) == 2
    shown = capsys.readouterr().err
    assert "runs on 8 x H100-SXM: ep 16 does not divide the ranks that share one copy of the model, 8 here" in shown


def test_where_nothing_surely_fits_it_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    smallest = (*EDGE, "--set", "micro_batch=1", "--set", "tp=1", "--set", "pp=1")
    least = min(recipe_of(capsys, *smallest, "--top", "500")["layouts"], key=lambda layout: layout["needed_gib"])
    assert main([*smallest, "--device-memory-gib", f"{least['needed_gib'] * 1.01:.2f}"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "memory suffices for no layout with 90 % probability" in shown and "faster, but" not in shown


def test_the_first_row_is_saved_as_a_layout_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "layout.json"
    first = recipe_of(capsys, *EDGE, "--save-layout", str(path))["layouts"][0]
    saved = read_layout(path)
    assert saved.layout.id == first["layout_id"] and saved.recipe is not None and saved.batch is not None
    assert (saved.batch.micro_batch, saved.batch.grad_accum) == (first["micro_batch"], first["grad_accum"])
    predicted = json.loads(path.read_text())["predicted"]
    assert predicted["tokens_per_s"] == first["tokens_per_s"] and "measurement" not in json.loads(path.read_text())
    assert main([*EDGE, "--save-layout", str(path)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "predicted and not measured" in last and last.endswith(f"platform.search bloom7b --layout {path}")


@pytest.mark.parametrize(
    ("arguments", "words"),
    (
        (("bloom7b", "--gpus", "4,8"), "got --gpus"),
        (("gpt_7_5b", "--max-model"), "got --max-model"),
        (("bloom7b", "--set", "global_batch=256,512"), "got 2: fix one by --set"),
        (("bloom7b", "--software", "nanotron"), "got --software nanotron"),
    ),
)
def test_what_has_no_one_first_layout_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    path = tmp_path / "layout.json"
    assert main([*arguments, "--cluster", "8xH100", "--save-layout", str(path)]) == 2
    assert words in capsys.readouterr().err and not path.exists()


def test_a_folder_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "none" / "layout.json"
    assert main([*EDGE, "--save-layout", str(path)]) == 2
    assert f"the file {path} cannot be written: No such file or directory" in capsys.readouterr().err
