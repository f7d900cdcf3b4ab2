"""Plans as people see them: tables, sentences, pictures, and what they promise."""

import collections
import json
import re
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

import search_spaces
from platform.cost_model.hardware import find_cluster
from platform.plan.__main__ import main
from platform.plan.alike import distinct_rows
from platform.plan.best_layouts import best_plan
from search_spaces.gpt2 import GPT2
from tests.plan.test_plan import printed_json
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout
from trainers.spec.support import refusal


def test_people_see_tables(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ("bloom7b", "--cluster", "8xH100"),
        ("bloom7b", "--cluster", "4x8xH100", "--gpus", "8,16,32"),
        ("gpt_18b", "--cluster", "dgx-a100", "--min-nodes"),
    ):
        assert main(list(arguments)) == 0
        assert "days" in capsys.readouterr().out
    assert find_cluster("dgx-a100").num_devices == 8


def test_a_layout_s_words_are_read_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for columns in ("60", "150"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["bloom7b", "--cluster", "8xH100"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "FSDP2 stage 2, sync every, flex, chunked loss, compile block" in shown, columns


def test_every_loser_is_counted_by_what_it_loses_by(capsys: pytest.CaptureFixture[str]) -> None:
    (recipe,) = printed_json(capsys, "gpt_76b", "--cluster", "64xdgx-a100", "--top", "1000")["recipes"]  # type: ignore[misc]
    counts = collections.Counter(layout["loses_by"] for layout in recipe["layouts"] if layout["loses_by"])
    assert recipe["loses_by"] == dict(counts) and {"communication", "compute"} <= set(counts)


def test_a_layout_as_fast_as_the_first_loses_by_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks two that differ by a prefetch alone, which predictions do not know, and which are one row for people."""
    options = ("gpt2_128", "--cluster", "4xH200", "--set", "prefetch=0,1", "--device-memory-gib", "15.8", "--top", "2")
    layouts = printed_json(capsys, *options)["recipes"][0]["layouts"]  # type: ignore[index]
    assert [layout["loses_by"] for layout in layouts] == ["", ""] and "prefetch 1" in layouts[1]["layout"]
    monkeypatch.setenv("COLUMNS", "120")
    assert main([*options]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "and 1 that differs in prefetch alone" in printed and "prefetch 1" not in printed


def test_layouts_of_the_same_figures_are_one_row_if_each_axis_changes_nothing_by_itself() -> None:
    layouts = [
        Layout(engine="fsdp", zero_stage=3, dp_shard=2, prefetch=prefetch, loss=loss, attention=attention)
        for attention in ("sdpa", "eager")
        for loss in ("plain", "chunked")
        for prefetch in (0, 1)
    ]
    figures = np.array([[1.0, 40.0]] * 4 + [[1.0, 50.0]] * 2 + [[1.0, 40.0]] * 2)
    rows = list(distinct_rows(np.arange(8), layouts, figures, 3))
    assert [(row, others.words) for row, others in rows] == [
        (0, "and 3 that differ in prefetch or loss"),
        (4, "and 1 that differs in prefetch alone"),
        (6, "and 1 that differs in prefetch alone"),
    ]
    assert not list(distinct_rows(np.arange(0), layouts, figures, 3))


@pytest.mark.parametrize(
    "question", [(), ("--gpus", "4,8"), ("--min-nodes",), ("--max-model",), ("--batch-rampup", "64")]
)
def test_every_answer_says_on_which_devices_and_that_it_is_predicted(
    capsys: pytest.CaptureFixture[str], question: tuple[str, ...]
) -> None:
    assert main(["gpt2", "--cluster", "8xH100", "--device-memory-gib", "40", *question]) == 0
    place = "nodes of 8 x H100-SXM" if question else "8 x H100-SXM"
    shown = " ".join(capsys.readouterr().out.split())
    assert f"on {place} (40.0 GiB), run by layout-search, predicted, nothing measured" in shown


def test_lengths_that_fit_are_planned_beside_those_that_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    long, short = printed_json(
        capsys, "gpt2", "--cluster", "1xV100-16", "--set", "seq_len=1024,64", "--set", "micro_batch=8",
        "--set", "checkpointing=none", "--device-memory-gib", "5",
    )["recipes"]  # type: ignore[misc]  # fmt: skip
    assert not long["layouts"] and "GiB of 5.0" in long["nearest"]
    assert short["layouts"] and not short["nearest"]


def test_a_price_that_is_given_stands_for_the_catalogue_s(capsys: pytest.CaptureFixture[str]) -> None:
    def cost(*more: str) -> float | None:
        (recipe,) = printed_json(capsys, "bloom7b", "--cluster", "8xH100", "--top", "1", *more)["recipes"]  # type: ignore[misc]
        (layout,) = recipe["layouts"]
        return layout["cost"] and layout["cost"] / layout["days"]

    assert cost() is None
    assert cost("--price-per-gpu-h", "2.5") == pytest.approx(2.5 * 8 * 24)


def test_days_against_devices_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "days.png"
    printed_json(capsys, "gpt_7_5b", "--cluster", "64xdgx-a100", "--gpus", "2,8,16,32", "--png", str(picture))
    pixels = matplotlib.image.imread(picture)
    assert pixels.shape[:2] == (1050, 1200)
    band = np.abs(pixels[:, :, :3] - np.array([0xCF, 0xE2, 0xF3]) / 255).max(axis=2) < 0.01
    assert 0.02 < band.mean() < 0.3


def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ("gpt_7_5b", "--cluster", "64xdgx-a100")
    assert main([*plan, "--png", str(tmp_path / "x.png")]) == 2
    assert main([*plan, "--gpus", "8", "--png", str(tmp_path / "x.txt")]) == 2
    assert main([*plan, "--gpus", "8", "--png", str(tmp_path / "no" / "x.png")]) == 2
    assert main(["gpt_175b", "--cluster", "dgx-a100", "--gpus", "8", "--png", str(tmp_path / "x.png")]) == 2
    lines = capsys.readouterr().err.splitlines()
    parts = ("--gpus alone", "ends in", "folder", "nothing to draw")
    assert all(part in line for part, line in zip(parts, lines, strict=True)), lines
    assert list(tmp_path.iterdir()) == []


def test_a_plan_proposes_no_kernels_that_the_search_refuses() -> None:
    """Checks that the plan's rule over columns, a copy for speed, agrees with `spec.support` on each layout."""
    space = search_spaces.load("bloom7b")
    planned = best_plan(space, space.recipe, find_cluster("4xH200"), top=10_000).best
    cluster = Cluster(device_kind="cuda", device="H200", device_memory_gib=140.0, devices_per_node=4, capability=(9, 0))
    assert len(planned) > 200 and len({predicted_layout.layout.compile for predicted_layout in planned}) > 1
    assert {refusal(space.recipe, predicted_layout.layout, cluster) for predicted_layout in planned} == {None}


def test_a_config_json_is_planned_as_fast_as_the_built_in_space_of_its_model(tmp_path: Path) -> None:
    """Compares the ladders too: that of an own model ended at micro-batch 16, 13 % below the other's best."""
    (tmp_path / "config.json").write_text(json.dumps({**GPT2.to_config(), "activation_function": "gelu_new"}))
    cluster = find_cluster("1xH200")
    of_config, built_in = search_spaces.load(str(tmp_path)).with_changes(["seq_len=1024"]), search_spaces.load("gpt2")
    plans = [best_plan(space, space.recipe, cluster) for space in (of_config, built_in)]
    first, second = (plan.best[0] for plan in plans)
    assert first.micro_batch > 16 and not any(plan.at_ends for plan in plans)
    assert first.tokens_per_s == pytest.approx(second.tokens_per_s, rel=1e-6)


def test_a_best_micro_batch_that_is_the_last_one_listed_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("gpt2", "--cluster", "1xH200", "--set", "micro_batch=4,16")
    (recipe,) = printed_json(capsys, *arguments)["recipes"]  # type: ignore[misc]
    (sentence,) = recipe["at_listed_ends"]
    assert re.fullmatch(
        r"micro_batch 16 is the largest value listed: 32 is predicted \d+\.\d % faster \(--set micro_batch=16,32\)",
        sentence,
    )
    assert main([*arguments, "--top", "1"]) == 0
    assert "micro_batch 16 is the largest value listed" in capsys.readouterr().out
