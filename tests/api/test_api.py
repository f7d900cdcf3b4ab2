"""The Python API beside the commands: the same values, the same sentences, and nothing printed."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import platform.api as api
import platform.api.studies as api_studies
from platform.api.arguments import arguments
from platform.plan.__main__ import main as plan_command
from platform.report.__main__ import main as report_command
from platform.report.measurement_table import write_table
from platform.study.study import Study
from platform.train.exporting.command import main as export_command
from tests.samples import header, layout, measurement, oom, skipped
from trainers.records.journal import End, Measured


def test_options_are_a_command_s_arguments() -> None:
    words = arguments("gpt2", set={"seq_len": 1024, "engine": ["fsdp", "ddp"]}, time_budget_s=60, gpus=None, all=True)
    assert words == ["gpt2", "--set", "seq_len=1024", "--set", "engine=fsdp,ddp", "--time-budget-s=60", "--all"]
    assert arguments(set=["tp=2", "pp=1"], json=False, gpus=[1, 2]) == ["--set", "tp=2", "--set", "pp=1", "--gpus=1,2"]


@pytest.mark.parametrize(
    "options",
    [
        {"cluster": "8xH100", "top": 3},
        {"cluster": "8xH100", "gpus": [8, 4]},
        {"cluster": "2x8xH100", "sweep": "node-gbps=10,400"},
        pytest.param({"cluster": "8xA100-80GB", "min_nodes": True}, marks=pytest.mark.heavy),
        {"cluster": "8xH100", "batch_rampup": "64,128"},
    ],
)
def test_a_plan_is_what_the_command_prints(options: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    planned = api.plan("gpt2", **options)
    assert capfd.readouterr() == ("", "")
    assert plan_command(arguments("gpt2", json=True, **options)) == 0
    assert planned.answer == json.loads(capfd.readouterr().out)
    assert planned.rows and planned.best == planned.rows[0] and planned.best["tokens_per_s"] > 0
    frame = planned.frame()
    assert len(frame) == len(planned.rows) and "tokens_per_s" in frame
    assert "<table" in planned._repr_html_()  # type: ignore[reportPrivateUsage]


def test_a_plan_prints_its_tables_where_asked(capfd: pytest.CaptureFixture[str]) -> None:
    api.plan("gpt2", cluster="8xH100", top=1, verbose=True)
    assert "tok/s" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("space", "options", "sentence"),
    [
        ("gpt2", {"cluster": "8xH1000"}, "8xH1000"),
        ("gpt2", {"cluster": "8xH100", "tokens": "many"}, "tokens"),
        ("gpt2", {"cluster": "8xH100", "color": "red"}, "--color"),
        ("nope", {"cluster": "8xH100"}, "unknown space"),
    ],
)
def test_a_mistake_is_the_command_s_sentence(
    space: str, options: dict[str, Any], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(api.InputError, match=sentence) as error:
        api.plan(space, **options)
    assert capfd.readouterr() == ("", "")
    assert plan_command(arguments(space, **options)) == 2
    assert " ".join(str(error.value).split()) in " ".join(capfd.readouterr().err.split())


@pytest.fixture
def studies(tmp_path: Path) -> Path:
    with Study.create(tmp_path, "one") as study:
        study.record(header("one"))
        for entry in (
            measurement(),
            measurement(micro_batch=2, tokens_per_s=30000.0),
            oom(micro_batch=4),
            skipped(micro_batch=8),
        ):
            study.record(Measured(measurement=entry))
        other = measurement(on=layout(zero_stage=2), tokens_per_s=20000.0)
        study.record(Measured(measurement=other))
        study.record(End(exit_code=0, wall_s=60.0, gpu_s=240.0, tried_all=True))
    return tmp_path


def test_a_study_is_what_the_report_prints(studies: Path, capfd: pytest.CaptureFixture[str]) -> None:
    study = api.open("one", studies)
    assert capfd.readouterr() == ("", "")
    assert report_command(["one", "--studies", str(studies), "--json", "--no-mlflow"]) == 0
    assert study.answer == json.loads(capfd.readouterr().out)
    assert study.name == "one" and study.best is not None and study.best["tokens_per_s"] == 40000.0
    assert "not gated" in study.caveats
    assert "<table" in study._repr_html_()  # type: ignore[reportPrivateUsage]
    assert api.open(studies / "one").answer == study.answer


def test_an_export_is_the_command_s(studies: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    study = api.open("one", studies)
    options: dict[str, Any] = {"to": "accelerate", "tokens": "20M"}
    exported = study.export(out=tmp_path / "a", **options)
    assert capfd.readouterr() == ("", "")
    launch = tmp_path / "a" / "launch.sh"
    assert exported.launch == launch and launch.exists() and exported.limits
    assert any("gate" in caveat for caveat in exported.caveats)
    assert export_command(arguments(study.path, out=tmp_path / "b", **options)) == 0
    printed = capfd.readouterr().err.splitlines()
    assert [line.replace(f"{tmp_path / 'b'}/", f"{tmp_path / 'a'}/") for line in printed] == list(exported.sentences)
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"to": "nope"}, "invalid choice"),
        ({"run": 3}, "runs nothing"),
        ({"tokens": None}, "needs"),
    ]
    for wrong, sentence in mistakes:
        changed: dict[str, Any] = {**options, "out": tmp_path / "c", **wrong}
        with pytest.raises(api.InputError, match=sentence):
            study.export(**changed)


def test_what_a_notebook_shows_is_escaped(studies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_studies, "verdicts", lambda result: ["<script>alert(1)</script>"])
    assert "<script>" not in api.open("one", studies)._repr_html_()  # type: ignore[reportPrivateUsage]


def test_a_study_s_frame_is_its_table(studies: Path, tmp_path: Path) -> None:
    study = api.open("one", studies)
    write_table(tmp_path / "table.csv", study.result)
    frame, table = study.frame(), pd.read_csv(tmp_path / "table.csv")
    assert list(frame.columns) == list(table.columns) and len(frame) == len(table) == 5
    assert max(frame["tokens_per_s_per_gpu"]) == max(table["tokens_per_s_per_gpu"]) == 10000.0


def test_a_missing_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(api.InputError, match="two"):
        api.open("two", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"space": "nope"}, "unknown space"),
        ({"space": "gpt2", "gpus": [1, 2]}, "one number of devices"),
        ({"space": "gpt2", "repeats": "many"}, "--repeats"),
    ],
)
def test_a_search_refuses_what_the_command_refuses(
    arguments: dict[str, Any], sentence: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(api.InputError, match=sentence):
        api.search(**arguments, studies=tmp_path)
    assert capfd.readouterr() == ("", "")


def _made_here(layout: Any) -> Any:
    return lambda: 1.0


def test_a_function_is_measured_by_its_file_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {}
    monkeypatch.setattr("platform.api.functions.search", lambda **words: options.update(words))  # type: ignore[reportUnknownLambdaType]
    api.measure(_made_here, {"width": [1, 2], "kernel": ["sdpa", "1"], "fused": [True]}, tokens_per_step=64)
    words = arguments(**options)
    assert words[0] == f"--build={os.path.relpath(__file__)}:_made_here" and words[-1] == "--tokens-per-step=64"
    assert words[2::2][:3] == ["width=1,2", 'kernel=sdpa,"1"', "fused=true"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((lambda layout: None,), "is no function at the top of a file"),  # type: ignore[reportUnknownLambdaType]
        ((len,), "len is no function at the top of a file"),
        ((_made_here, {"kernel": ["a,b"]}), "a value of axis kernel has neither commas"),
        ((_made_here,), "--build needs --tokens-per-step N"),
    ],
)
def test_a_function_that_trials_cannot_find_is_refused(
    arguments: tuple[Any, ...], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(api.InputError, match=sentence):
        api.measure(*arguments, studies=tmp_path)


@pytest.mark.heavy
@pytest.mark.ray
@pytest.mark.search
class TestARealSearch:
    def test_it_joins_the_caller_s_ray_and_leaves_it_running(self, tmp_path: Path) -> None:
        import ray

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        try:
            study = api.search("gpt2", max_trials=1, repeats=0, studies=tmp_path)
            assert isinstance(study, api.MeasuredStudy) and len(study.frame())
            assert ray.is_initialized() and ray.get(ray.remote(lambda: 7).remote()) == 7
        finally:
            ray.shutdown()

    def test_the_file_of_a_study_repeats_it(self, tmp_path: Path) -> None:
        first = api.search("gpt2", set={"engine": "ddp"}, max_trials=1, repeats=0, studies=tmp_path, address="local")
        assert isinstance(first, api.MeasuredStudy)
        again = api.search(config=first.path / "run.yaml", studies=tmp_path, address="local")
        assert isinstance(again, api.MeasuredStudy) and again.path != first.path
        assert again.result.header.options == first.result.header.options
        assert [run.layout for run in again.result.history.measurements] == [
            run.layout for run in first.result.history.measurements
        ]

    def test_one_that_is_stopped_keeps_its_study(self, tmp_path: Path) -> None:
        running = api.search("gpt2", name="mine", studies=tmp_path, wait=False, address="local")
        assert isinstance(running, api.Search)
        while not (tmp_path / "mine" / "journal.jsonl").exists():
            assert running.process.poll() is None, sys.stderr
        running.stop()
        with pytest.raises(KeyboardInterrupt):
            running.wait()
        assert api.open("mine", tmp_path).answer["study"] == "mine"


def test_several_models_and_clusters_are_compared() -> None:
    small = {"engine": "ddp", "attention": "sdpa"}
    planned = api.plan(["gpt2", "gpt2"], ["8xH100", "8xB200"], set=small, price=["8xB200=60/h", "H100=2"])
    assert [row["cluster"] for row in planned.rows] == ["8xH100", "8xB200"] * 2
    assert [row["price_per_gpu_h"] for row in planned.rows] == [2.0, 7.5] * 2
