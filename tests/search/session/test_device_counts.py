"""`--gpus 1,2`: a study for each number of devices, their comparison with its cost, and going on with what was cut.

A fake backend plays the trials; options, studies, journals and reports are real. `test_search.py` runs real trials.
"""

import csv
import json
from typing import Any

import pytest

from platform.common.errors import NOT_RESOLVED, ClusterError
from platform.common.signals import INTERRUPTED
from platform.search.session import session
from platform.study.study import read
from tests.search.loop.played import SPEEDS, Played, disturbed
from trainers.records.job import Job
from trainers.records.measurement import Measurement, days_for_tokens
from trainers.spec.batch import BatchPoint
from trainers.spec.codec import to_json
from trainers.spec.layout import Layout

TOKENS, PRICE = 1e9, 2.5


def _printed(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def test_each_number_has_a_winner_with_days_efficiency_and_cost(
    played: Played, pair: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = (pair, "--name", "s", "--gpus", "1,2", "--tokens", str(TOKENS), "--price-per-gpu-h", str(PRICE))
    assert played.search(*argv, "--searcher", "sweep") == 0
    assert played.ran == [1] * 4 + [2] * 4, "two layouts, then the winner's gate and its reference's"
    rows = _printed(capsys)["scaling"]
    assert [(row["gpus"], row["study"], row["tokens_per_s"]) for row in rows] == [
        (1, "s-1gpu", 1000.0),
        (2, "s-2gpu", 1600.0),
    ]
    for row in rows:
        days = days_for_tokens(TOKENS, SPEEDS[row["gpus"]])
        assert row["days"] == pytest.approx(days) and row["gpu_days"] == pytest.approx(days * row["gpus"])
        assert row["cost"] == pytest.approx(days * 24 * row["gpus"] * PRICE)
        assert row["efficiency"] == pytest.approx({1: 1.0, 2: 0.8}[row["gpus"]])
        assert row["winner"]["layout"]["checkpointing"] == "none"
    folder = played.folder / "studies" / "s"
    table = list(csv.DictReader((folder / "scaling.csv").open()))
    assert [float(table_row["cost"]) for table_row in table] == [row["cost"] for row in rows]
    assert (folder / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_one_layout_is_measured_on_each_number(played: Played, pair: str) -> None:
    path = played.folder / "layout.json"
    path.write_text(json.dumps({"layout": to_json(Layout(engine="ddp", checkpointing="full"))}))
    assert played.search(pair, "--layout", str(path), "--name", "s", "--gpus", "1,2") == 0
    layouts = [(job.layout.dp_replicate, job.layout.checkpointing, job.rungs[0].micro_batch) for job in played.jobs]
    assert layouts == [(1, "full", 1), (2, "full", 1)]


@pytest.mark.slow
def test_a_group_goes_on_with_what_is_missing_of_it(
    played: Played, pair: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = (pair, "--name", "s", "--gpus", "1,2", "--searcher", "sweep", "--price-per-gpu-h", str(PRICE))
    played.cut = 1
    assert played.search(*argv) == INTERRUPTED
    output = capsys.readouterr()
    assert played.ran == [1] and [row["gpus"] for row in json.loads(output.out)["scaling"]] == [1]
    assert "Go on with all of them: python -m platform.search --resume s" in output.err

    for refused in (("--gpus", "1"), ("--price-per-gpu-h", "3")):
        assert played.search("--resume", "s", *refused) == 2 and not played.jobs
        assert f"a resumed study keeps {refused[0]}" in capsys.readouterr().err

    played.cut = 2
    assert played.search("--resume", "s") == INTERRUPTED
    assert played.ran == [1, 1, 1, 2], "the layout that was not run, the gate, then the number that was not begun"
    capsys.readouterr()
    played.cut = None
    assert played.search("--resume", "s") == 0
    assert played.ran == [2, 2, 2]
    rows = _printed(capsys)["scaling"]
    assert [(row["gpus"], row["tokens_per_s"], row["cost"] is not None) for row in rows] == [
        (1, 1000.0, True),
        (2, 1600.0, True),
    ], "the price is kept"
    histories = [read(played.folder / "studies" / f"s-{count}gpu")[0] for count in (1, 2)]
    assert [(len(history.measurements), history.sessions) for history in histories] == [(3, 3), (3, 2)]


def test_a_dry_run_spends_none_of_the_device_seconds(
    played: Played, pair: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert played.search(pair, "--name", "s", "--gpus", "1,2", "--searcher", "sweep") == 0
    capsys.readouterr()
    assert played.search("--resume", "s", "--dry-run", "--gpu-s", "300") == 0
    budgets_s = [json.loads(line)["budget_s"] for line in capsys.readouterr().out.splitlines()]
    assert budgets_s == [100.0, 150.0], "a third on one device, all on two"


@pytest.mark.slow
def test_a_number_on_which_the_fastest_is_not_resolved_has_no_winner_and_the_exit_code_is_4(
    played: Played, pair: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def on_two(job: Job, batch: BatchPoint) -> Measurement:
        return disturbed(job, batch) if job.layout.world_size == 2 else Played.play(played, job, batch)

    monkeypatch.setattr(played, "play", on_two)
    assert played.search(pair, "--name", "s", "--gpus", "1,2", "--searcher", "sweep") == NOT_RESOLVED
    on_one, two = _printed(capsys)["scaling"]
    assert on_one["winner"] and on_one["layouts_tried"] == on_one["layouts_planned"] == 2
    assert two["winner"] is None and two["reason"].startswith("not resolved between ")
    assert played.report("s") == NOT_RESOLVED
    assert "the machine was disturbed" in " ".join(capsys.readouterr().out.split())

    assert played.search("--resume", "s") == NOT_RESOLVED, "it still is"
    assert set(played.ran) == {2} and all(job.repeat > 1 for job in played.jobs if job.rungs)
    monkeypatch.setattr(played, "play", lambda job, batch: Played.play(played, job, batch))
    assert _resumed_until_resolved(played) == 0
    capsys.readouterr()
    assert played.report("s", "--json") == 0
    assert [row["winner"]["layout"]["checkpointing"] for row in _printed(capsys)["scaling"]] == ["none", "none"]


def _resumed_until_resolved(played: Played) -> int:
    """Resumes until the winner is resolved, since quiet rounds must outweigh the disturbed ones; returns the exit
    code.
    """
    codes = (played.search("--resume", "s") for _ in range(5))
    return next((code for code in codes if code != NOT_RESOLVED), NOT_RESOLVED)


def test_a_fault_before_anything_was_measured_is_told_as_such(
    played: Played, pair: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise ClusterError("the disk is full")

    monkeypatch.setattr(session.preflight, "check", full)
    assert played.search(pair, "--name", "s", "--gpus", "1,2") == ClusterError.exit_code
    output = capsys.readouterr()
    assert "cluster fault: the disk is full" in output.err and "error:" not in output.err and not output.out
