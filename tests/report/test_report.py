"""`python -m platform.report`: as a user types it, on studies written beforehand."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from platform.report.__main__ import main
from platform.study.study import Study
from tests.samples import csv_rows, header, measurement, oom, skipped
from trainers.records.journal import End, Measured
from trainers.records.measurement import Measurement

ROOT = Path(__file__).parents[2]


def _study(studies: Path, name: str, *measurements: Measurement) -> Path:
    with Study.create(studies, name) as study:
        study.record(header(name))
        for point in measurements:
            study.record(Measured(measurement=point))
        study.record(End(exit_code=0, wall_s=10, gpu_s=40))
        return study.path


def test_a_kill_for_want_of_host_memory_is_told_from_a_full_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = dataclasses.replace(oom(micro_batch=4), asked_gib=None, reason="host memory of node 10.0.0.7 ran out")
    _study(tmp_path, "one", measurement(), killed)
    assert main(["one", "--studies", str(tmp_path), "--no-mlflow"]) == 0
    assert "host memory of node 10.0.0.7 ran out" in capsys.readouterr().out


def test_a_finished_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _study(tmp_path, "one", measurement(), oom(micro_batch=4), skipped(micro_batch=8))
    csv = tmp_path / "out.csv"
    assert main(["one", "--studies", str(tmp_path), "--csv", str(csv), "--no-mlflow"]) == 0
    out = capsys.readouterr().out
    for words in (
        "40,000",
        "ok *",
        "asked 4.00 GiB",
        "Skipped: 1 batch point",
        "Fastest for bloom-7b1",
        "layout.json",
    ):
        assert words in out, words
    assert [row["outcome"] for row in csv_rows(csv)] == ["ok", "oom", "skipped"]
    assert (folder / "measurements.parquet").exists() and (folder / "layout.json").exists()


def test_a_study_is_named_by_the_path_of_its_folder_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _study(tmp_path / "some", "one", measurement())
    monkeypatch.chdir(tmp_path)
    for text in (str(path), "some/one/"):
        assert main([text, "--studies", "others", "--no-mlflow"]) == 0
        assert "Fastest for bloom-7b1" in capsys.readouterr().out
    assert main(["some/two", "--no-mlflow"]) == 2
    assert capsys.readouterr().err == f"error: no study 'two' in {tmp_path / 'some'}: there are one\n"


def test_json_stands_alone_on_standard_output(tmp_path: Path) -> None:
    folder = _study(tmp_path, "one", measurement(), oom(micro_batch=4))
    with (folder / "journal.jsonl").open("a") as journal:
        journal.write('{"kind": "measu')
    command = [sys.executable, "-m", "platform.report", "one", "--studies", str(tmp_path), "--json", "--no-mlflow"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["winner"]["tokens_per_s"] == 40000.0
    assert "Line 5 of" in result.stderr and "the rest is used" in result.stderr


def _end(exit_code: int, reason: str = "") -> End:
    return End(exit_code=exit_code, wall_s=10, gpu_s=40, why=reason)


@pytest.mark.parametrize(
    ("end", "shown"),
    [
        (_end(0, "16 s are over (--time-budget)"), "Ended: 16 s are over (--time-budget)."),
        (_end(3, "3 trials in a\nrow failed"), "cluster fault: 3 trials in a row failed"),
        (_end(130), "Interrupted. What was measured is kept; go on with: python -m platform.search --resume one"),
        (_end(1), "Ended with exit code 1."),
        (None, "Cut short: its driver was killed. What was measured is kept; go on with: python -m platform.search"),
    ],
    ids=["budget", "fault", "interrupted", "older journal", "killed"],
)
def test_it_tells_what_ended_a_search_and_what_it_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], end: End | None, shown: str
) -> None:
    with Study.create(tmp_path, "one") as study:
        study.record(header("one"))
        study.record(Measured(measurement=measurement()))
        if end is not None:
            study.record(end)
    command = ["one", "--studies", str(tmp_path), "--no-mlflow"]
    assert main(command) == 0
    output = capsys.readouterr().out.splitlines()
    took = "0 s" if end is None else "10 s"  # by the session's own clock; of one that was killed by its lines'
    if end is not None and not end.exit_code:
        assert output.pop().startswith("Train it: python -m platform.train one ")
    assert output[-2].startswith(shown) and output[-1] == f"The search took {took}, 0 device seconds."
    assert main([*command, "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)["end"]
    assert reported is None if end is None else (reported["exit_code"], reported["why"]) == (end.exit_code, end.why)


def test_a_line_that_cannot_be_used_is_told_and_nothing_is_said_to_be_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Checks that the report sets no line aside: only a search that continues the study does."""
    _study(tmp_path, "one", measurement())
    with (tmp_path / "one" / "journal.jsonl").open("a") as file:
        file.write('{"kind": "measurem')
    assert main(["one", "--studies", str(tmp_path), "--no-mlflow"]) == 0
    output = capsys.readouterr().err
    assert "could not be used (not a whole JSON object): the rest is used." in output
    assert not (tmp_path / "one" / "journal.rejected.jsonl").exists()


def test_a_study_that_cannot_be_written_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _study(tmp_path, "one", measurement())
    (tmp_path / "one" / "measurements.csv").mkdir()
    assert main(["one", "--studies", str(tmp_path), "--no-mlflow"]) == 0
    captured = capsys.readouterr()
    assert "40,000" in captured.out and "Files:" not in captured.out
    assert "measurements.csv cannot be written: Is a directory; the result is shown without files" in captured.err


@pytest.mark.parametrize("name", [".", "../one"])
def test_a_study_is_found_from_within_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    _study(tmp_path, "one", measurement())
    monkeypatch.chdir(tmp_path / "one")
    assert main([name, "--no-mlflow"]) == 0
    assert f"{tmp_path.resolve()}/one/measurements.csv" in capsys.readouterr().out


def test_a_table_is_written_into_a_pipe_and_never_in_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _study(tmp_path, "one", measurement())
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert main(["one", "--studies", str(tmp_path), "--no-mlflow", "--csv", str(pipe)]) == 0
    assert pipe.is_fifo() and os.read(reader, 1 << 16).startswith(b"source,")
    os.close(reader)


def test_a_study_where_nothing_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _study(tmp_path, "one", oom(micro_batch=4))
    assert main(["one", "--studies", str(tmp_path), "--no-mlflow"]) == 1
    assert "Nothing fits in memory for bloom-7b1" in capsys.readouterr().out


def test_a_running_study_is_shown_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Study.create(tmp_path, "one") as study:
        study.record(header("one"))
        study.record(Measured(measurement=measurement()))
        assert main(["one", "--studies", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "The study is running" in captured.err and "40,000" in captured.out
    assert not (tmp_path / "mlflow.db").exists()


@pytest.mark.parametrize(
    ("arguments", "environment", "reason"),
    [
        (["ome"], {}, "error: no study 'ome' in .*did you mean one?"),
        (["one", "--csv", "/nowhere/out.csv", "--no-mlflow"], {}, "cannot be written"),
        (["one", "--csv", "", "--no-mlflow"], {}, "cannot be written: Is a directory"),
        (["one"], {"MLFLOW_TRACKING_URI": "ftp://host"}, "no known scheme"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    environment: dict[str, str],
    reason: str,
) -> None:
    _study(tmp_path, "one", measurement())
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main([*arguments, "--studies", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert all(part in captured.err for part in reason.split(".*"))
