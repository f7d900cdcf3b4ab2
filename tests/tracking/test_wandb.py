"""W&B as a second mirror, with the real package in offline mode: nothing is sent, and the runs are whole."""

import dataclasses
import importlib
import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from platform.common.errors import InputError
from platform.report.__main__ import main as report
from platform.study.study import Study
from platform.tracking import wandb_option
from platform.tracking.wandb_option import check_project
from platform.tracking.wandb_runs import MIRRORED, WandbMirror, as_numbers
from tests.samples import header, layout, measurement, oom, skipped
from trainers.records.journal import End, Measured

AT = "2026-01-01T00:00:00+00:00"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in {"MODE": "offline", "SILENT": "true", "ERROR_REPORTING": "false"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    with Study.create(tmp_path, "one") as study:
        study.record(header("one", at=AT))
        for run in (measurement(), measurement(on=layout(zero_stage=2), tokens_per_s=30000.0), oom(micro_batch=4)):
            study.record(Measured(measurement=run))
        study.record(Measured(measurement=skipped(micro_batch=8)))
        study.record(End(exit_code=0, wall_s=60.0, gpu_s=240.0, tried_all=True))
    return tmp_path / "one"


def runs_in(folder: Path) -> list[dict[str, Any]]:
    """Returns what each offline file of W&B holds: its run, its summary and its history.

    `Run.finish` tells W&B's service to close the file and does not wait for it, so files are read until each is whole.
    """
    until = time.monotonic() + 300.0
    runs = _read(folder)
    while not all({"exit", "kind"} <= run.keys() for run in runs):
        assert time.monotonic() < until, f"a file of W&B stayed open: {runs}"
        time.sleep(0.1)
        runs = _read(folder)
    return runs


def _read(folder: Path) -> list[dict[str, Any]]:
    protocol: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")

    runs: list[dict[str, Any]] = []
    for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        run: dict[str, Any] = {"path": path, "config": {}, "summary": {}, "history": []}
        for data in _records(path.read_bytes()):
            record = protocol.Record()
            record.ParseFromString(data)
            match record.WhichOneof("record_type"):
                case "run":
                    run |= {"name": record.run.display_name, "kind": record.run.job_type, "id": record.run.run_id}
                    run |= {"group": record.run.run_group, "notes": record.run.notes, "project": record.run.project}
                    run["config"] |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
                case "summary":
                    run["summary"] |= {
                        item.key or item.nested_key[0]: item.value_json for item in record.summary.update
                    }
                case "history":
                    run["history"].append([item.key or "/".join(item.nested_key) for item in record.history.item])
                case "exit":
                    run["exit"] = record.exit.exit_code
                case _:
                    pass
        runs.append(run)
    return runs


def _records(data: bytes) -> Iterator[bytes]:
    """Yields the records of a file of W&B, which is a log of LevelDB's format: blocks of 32 KiB with parts of records,
    each behind a checksum, its length and whether it is whole (1), first, middle or last (4).
    """
    place, parts = 7, b""
    while place + 7 <= len(data):
        if 2**15 - place % 2**15 < 7:
            place += 2**15 - place % 2**15
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        if place + 7 + length > len(data):
            return
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


@pytest.mark.mirror
def test_each_measurement_is_a_run_of_the_study_s_group(folder: Path) -> None:
    mirror = WandbMirror(folder, "team/layouts").start()
    assert mirror.close(120.0) == ""
    runs = runs_in(folder)
    by_kind = {kind: [run for run in runs if run["kind"] == kind] for kind in {run["kind"] for run in runs}}
    assert len(runs) == 4 and len(by_kind["study"]) == 1
    assert {(run["group"], run["project"]) for run in runs} == {("one", "layouts")}
    (study,) = by_kind["study"]
    assert study["name"] == "one" and "Fastest" in study["notes"] and study["config"]["tokens"] == 100e9
    assert study["config"]["winner_micro_batch"] == measurement().batch.micro_batch, "a number, to sort by"
    speeds = [run["summary"].get("tokens_per_s") for run in runs if run is not study]
    assert sorted(map(float, filter(None, speeds))) == [30000.0, 40000.0]
    failed = [run for run in runs if run is not study and run["exit"]]
    assert len(failed) == 1 and failed[0]["config"]["micro_batch"] == 4, "the one that ran out of memory"
    assert any("loss" in key for run in runs for keys in run["history"] for key in keys)
    assert "wandb sync" in mirror.look and str(folder / "wandb") in mirror.look


@pytest.mark.mirror
def test_what_was_mirrored_is_not_mirrored_again(folder: Path) -> None:
    assert WandbMirror(folder, "layouts").start().close(120.0) == ""
    first = runs_in(folder)
    assert WandbMirror(folder, "layouts").start().close(120.0) == ""
    assert len(runs_in(folder)) == len(first)
    study, _, _ = Study.resume(folder.parent, "one")
    with study:
        study.record(Measured(measurement=dataclasses.replace(measurement(), repeat=1)))
        study.record(End(exit_code=0, wall_s=70.0, gpu_s=280.0, tried_all=True))
    assert WandbMirror(folder, "layouts").start().close(120.0) == ""
    # Files of one second have no order, and the study's may replace its own of that second.
    new = [run for run in runs_in(folder) if run not in first]
    assert sorted(run["kind"] == "study" for run in new) == [False, True]
    assert len({run["id"] for run in (*first, *new)}) == len(first) + 1, "the study's run keeps its id"
    assert len((folder / "wandb" / MIRRORED).read_text().splitlines()) == len(first) + 2


@pytest.mark.mirror
def test_a_report_brings_both_up_to_date(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(["one", "--studies", str(folder.parent), "--wandb", "layouts"]) == 0
    words = capsys.readouterr().err
    assert "MLflow and W&B are up to date." in words and "wandb sync" in words
    assert len(runs_in(folder)) == 4


@pytest.mark.mirror
def test_what_wandb_lacks_is_said_and_nothing_else_fails(folder: Path) -> None:
    (folder / "wandb").write_text("in the way")
    words = WandbMirror(folder, "layouts").start().close(60.0)
    assert words.startswith("W&B at layouts was not reached") and "brings it up to date" in words


@pytest.mark.parametrize("project", ["", "a/b/c", "/a", "a/", "a?b", "a" * 200])
def test_what_can_be_no_project_is_refused(project: str) -> None:
    with pytest.raises(InputError, match="--wandb takes PROJECT or ENTITY/PROJECT, got"):
        check_project(project)


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb_option.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install wandb"):
        check_project("layouts")


def test_ids_commits_and_versions_stay_text() -> None:
    params = {"version_cuda": "12.10", "commit": "0123456", "space": "7", "micro_batch": "4", "learning_rate": "1e-4"}
    params["winner_measurement_id"] = "0123456"
    plain = as_numbers(params)
    assert plain == {**params, "micro_batch": 4, "learning_rate": 1e-4}
