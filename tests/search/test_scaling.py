"""`--gpus 1,2`: a study for each number of devices, their comparison with its cost, and going on with what was cut.

A fake backend plays the trials; options, studies, journals and reports are real. `test_search.py` runs real trials.
"""

import contextlib
import csv
import itertools
import json
import re
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from platform.cluster.connection import Place
from platform.cluster.leftovers import Note
from platform.common.errors import NOT_RESOLVED, ClusterError
from platform.common.signals import INTERRUPTED
from platform.loop import tune
from platform.loop.loop import Loop
from platform.report import main as report
from platform.search import main
from platform.session import run, scaling, session
from platform.study.study import read
from tests.search.backend import CLUSTER, Backend, Clock, result
from tests.search.session import write_space
from trainers.values.batch import BatchPoint
from trainers.values.codec import to_json
from trainers.values.job import Job
from trainers.values.layout import Layout
from trainers.values.measurement import Measurement, days_for_tokens

SPEEDS = {1: 1000.0, 2: 1600.0}
"""Tokens/s of all devices, by their number."""
TOKENS, PRICE = 1e9, 2.5


class Played:
    """Sessions whose trials are played; `cut` ends one after a trial on so many devices, as Ctrl-C does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cut: int | None = None
        self.jobs: list[Job] = []
        self.fastest = "none"
        """The checkpointing of the faster layout."""
        self.losses: Callable[[Job], tuple[float, ...] | None] = lambda job: (2.0, 1.0)
        """Of a numerics gate."""

    def run(self, loop: Loop, **_: object) -> None:
        backend = Backend(loop.study, Clock(), self.play)
        backend.losses = self.losses
        while (job := backend.step(loop)) is not None:
            self.jobs.append(job)
            if job.layout.world_size == self.cut:
                raise KeyboardInterrupt

    def play(self, job: Job, batch: BatchPoint) -> Measurement:
        slower = 1.0 if job.layout.checkpointing == self.fastest else 0.8
        return result(job, batch, slower * SPEEDS[job.layout.world_size])

    def search(self, *argv: str) -> int:
        self.jobs.clear()
        return main([*argv, "--studies", str(self.folder / "studies"), "--json"])

    @property
    def ran(self) -> list[int]:
        """Devices of each trial."""
        return [job.layout.world_size for job in self.jobs]


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    @contextlib.contextmanager
    def here(*_: object, **__: object) -> Generator[Place]:
        yield Place(cluster=CLUSTER, cpus_per_worker=1.0, driver_ip="127.0.0.1")

    @contextlib.contextmanager
    def no_recorder(journal: Path, state: Path) -> Generator[str]:
        yield "none"

    class NoMirror:
        """MLflow makes a database in seconds; `tests/mirror` has it."""

        look = ""

        def __init__(self, *_: object) -> None: ...
        def start(self, **_: object) -> "NoMirror":
            return self

        def close(self, timeout_s: float, *_: object) -> str:
            return ""

    made = Played(tmp_path)
    monkeypatch.setattr(session, "connected", here)
    monkeypatch.setattr(session, "Mirror", NoMirror)
    monkeypatch.setattr(tune, "recorder", no_recorder)
    monkeypatch.setattr(tune, "note_of", lambda **_: Note())
    monkeypatch.setattr(tune, "run", made.run)
    monkeypatch.setattr(run.head, "watched", lambda *_: contextlib.nullcontext())
    return made


@pytest.fixture
def space(tmp_path: Path) -> str:
    """A space of two layouts of one rung, for a global batch that one and two devices share evenly."""
    axes = {"checkpointing": ("none", "full"), "engine": ("ddp",)}
    return str(write_space(tmp_path / "pair.py", axes=axes, micro_batches=(1,)))


def _said(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def test_each_number_has_a_winner_with_days_efficiency_and_cost(
    played: Played, space: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = (space, "--name", "s", "--gpus", "1,2", "--tokens", str(TOKENS), "--price-per-gpu-h", str(PRICE))
    assert played.search(*argv, "--searcher", "sweep") == 0
    assert played.ran == [1, 1, 2, 2]
    rows = _said(capsys)["scaling"]
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
    assert [float(each["cost"]) for each in table] == [row["cost"] for row in rows]
    assert (folder / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_one_layout_is_measured_on_each_number(played: Played, space: str) -> None:
    path = played.folder / "layout.json"
    path.write_text(json.dumps({"layout": to_json(Layout(engine="ddp", checkpointing="full"))}))
    assert played.search(space, "--layout", str(path), "--name", "s", "--gpus", "1,2") == 0
    layouts = [(job.layout.dp_replicate, job.layout.checkpointing, job.rungs[0].micro_batch) for job in played.jobs]
    assert layouts == [(1, "full", 1), (2, "full", 1)]


def test_a_group_goes_on_with_what_is_missing_of_it(
    played: Played, space: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = (space, "--name", "s", "--gpus", "1,2", "--searcher", "sweep", "--price-per-gpu-h", str(PRICE))
    played.cut = 1
    assert played.search(*argv) == INTERRUPTED
    said = capsys.readouterr()
    assert played.ran == [1] and [row["gpus"] for row in json.loads(said.out)["scaling"]] == [1]
    assert "Go on with all of them: python -m platform.search --resume s" in said.err

    for refused in (("--gpus", "1"), ("--price-per-gpu-h", "3")):
        assert played.search("--resume", "s", *refused) == 2 and not played.jobs
        assert f"a resumed study keeps {refused[0]}" in capsys.readouterr().err

    played.cut = 2
    assert played.search("--resume", "s") == INTERRUPTED
    assert played.ran == [1, 2], "the layout that was not run, then the number that was not begun"
    capsys.readouterr()
    played.cut = None
    assert played.search("--resume", "s") == 0
    assert played.ran == [2]
    rows = _said(capsys)["scaling"]
    assert [(row["gpus"], row["tokens_per_s"], row["cost"] is not None) for row in rows] == [
        (1, 1000.0, True),
        (2, 1600.0, True),
    ], "the price is kept"
    found = [read(played.folder / "studies" / f"s-{count}gpu")[0] for count in (1, 2)]
    assert [(len(each.measurements), each.sessions) for each in found] == [(2, 3), (2, 2)]


def test_what_a_further_session_of_one_number_needs_counts_ray_s_start(
    played: Played, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share one connection; a session of its own starts Ray anew."""
    played.fastest = "full"
    played.losses = lambda job: (2.0, 1.0) if job.is_winner_run else None  # so the gate's reference is left out
    now_s = itertools.count(0, 1000)
    monkeypatch.setattr(scaling, "time", SimpleNamespace(monotonic=lambda: next(now_s)))
    assert played.search(space, "--name", "s", "--gpus", "1,2", "--searcher", "sweep") == 0
    for count in (1, 2):
        end = read(played.folder / "studies" / f"s-{count}gpu")[0].end
        said = re.fullmatch(r"the reference of the numerics gate \(about (\d+) s more\)", end.left_out if end else "")
        assert said and 1000 <= int(said[1]) < 2000


def test_a_number_on_which_the_fastest_is_not_resolved_has_no_winner_and_the_exit_code_is_4(
    played: Played, space: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    factors = itertools.cycle([0.3, 0.9, 0.5, 0.85, 0.4])

    def disturbed(job: Job, batch: BatchPoint) -> Measurement:
        run = Played.play(played, job, batch)
        speed = run.tokens_per_s or 0.0
        if job.layout.world_size == 2 and job.repeat:
            speed *= next(factors)
        return result(job, batch, speed, step_time_derived=not job.repeat)

    monkeypatch.setattr(played, "play", disturbed)
    assert played.search(space, "--name", "s", "--gpus", "1,2", "--searcher", "sweep") == NOT_RESOLVED
    one, two = _said(capsys)["scaling"]
    assert one["winner"] and one["layouts_tried"] == one["layouts_planned"] == 2
    assert two["winner"] is None and two["reason"].startswith("not resolved between ")
    assert report(["s", "--studies", str(played.folder / "studies"), "--no-mlflow"]) == NOT_RESOLVED
    assert "the machine was disturbed" in " ".join(capsys.readouterr().out.split())
    played.jobs.clear()
    assert played.search("--resume", "s") in (0, NOT_RESOLVED)
    assert played.jobs and all(job.repeat > 1 for job in played.jobs if job.rungs and job.layout.world_size == 2)


def test_a_fault_before_anything_was_measured_is_told_as_such(
    played: Played, space: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise ClusterError("the disk is full")

    monkeypatch.setattr(session.preflight, "check", full)
    assert played.search(space, "--name", "s", "--gpus", "1,2") == ClusterError.exit_code
    said = capsys.readouterr()
    assert "cluster fault: the disk is full" in said.err and "error:" not in said.err and not said.out
