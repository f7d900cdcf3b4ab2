# pyright: basic
"""The MLflow mirror against a real sqlite store and a real server: complete, each run once, never in the way."""

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from platform.common.errors import InputError
from platform.report.result_files import write_results
from platform.study.result.result import StudyResult
from platform.study.study import Study, read
from platform.tracking.content import content_of
from platform.tracking.mirror import Mirror, default_uri
from platform.tracking.runs import Runs
from platform.tracking.serve import newest
from platform.tracking.system_metrics import SAMPLES
from tests.samples import header, layout, measurement, miniature, profile, skipped
from tests.tracking.studies import POINTS, runs_of, wait_for, write
from trainers.records.journal import End, GateCurves, Measured, Resume
from trainers.records.measurement import Outcome
from trainers.spec.layout import Layout

pytestmark = pytest.mark.mirror

ROOT = Path(__file__).parents[2]


def test_a_study_is_mirrored_in_full(
    studies: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    folder = write(studies, "full", *POINTS, skipped(micro_batch=8))
    uri = default_uri(studies)
    (folder / "trace-evil.json.gz").symlink_to(ROOT / "README.md")  # of a folder that was received: not uploaded
    assert store.stat().st_mode & 0o777 == 0o600, "a new database is this user's alone"
    mirror = Mirror(folder, uri).start()
    assert mirror.close(600) == ""
    assert dict(os.environ) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my studies"]

    client, parent, children = runs_of(uri, "full")
    assert parent.info.status == "FINISHED" and parent.info.run_name == "full"
    experiment = client.get_experiment(parent.info.experiment_id)
    assert experiment.artifact_location == (store.parent / "mlflow-artifacts").as_uri()
    assert parent.data.params["space"] == "bloom7b" and parent.data.params["tokens"] == "100000000000"
    assert (experiment.tags["mlflow.experimentKind"], parent.data.tags["role"]) == ("custom_model_development", "study")
    views = {name for name in experiment.tags if name.startswith("mlflow.sharedViewState.")}
    for name, address in mirror.addresses.items():
        assert parent.data.tags[f"mlflow.layoutSearch.{name}"] == address
        assert f"[{name}](#{address.partition('/#')[2]})" in parent.data.tags["mlflow.note.content"]
        assert f"mlflow.sharedViewState.{address.partition('Key=')[2].partition('&')[0]}" in views
    assert {"layouts", "charts", "studies", "scaling"} == set(mirror.addresses), "no gate ran: its view would be empty"
    named = newest(studies / "mlflow.db", 5099)
    assert named[0] == "full:" and [line.split()[0] for line in named[1:]] == ["page", "layouts", "charts"]
    assert all("http://127.0.0.1:5099/#/experiments/" in line for line in named[1:])
    assert parent.data.tags["winner_measurement_id"] == POINTS[1].id
    assert (parent.data.metrics["tokens_per_s"], parent.data.metrics["gpus"]) == (50000.0, 4)
    assert (parent.data.tags["winner_checkpointing"], parent.data.tags["winner_micro_batch"]) == ("full", "2")
    artifacts = {list_artifact.path for list_artifact in client.list_artifacts(parent.info.run_id)}
    assert artifacts == {
        *("layout.json", "measurements.csv", "measurements.parquet", "speed-memory.png", "heat-map.png"),
        *("measurements.json", "skipped.json"),
    }
    assert "40,000 tokens/s" not in parent.data.tags["mlflow.note.content"]
    assert "50,000 tokens/s" in parent.data.tags["mlflow.note.content"]
    copy = Path(client.download_artifacts(parent.info.run_id, "layout.json", str(tmp_path)))
    assert json.loads(copy.read_text())["measurement"] == POINTS[1].id

    skips = table(client, parent.info.run_id, "skipped.json", tmp_path)
    assert skips == [{**skips[0], "layout": layout().label, "micro_batch": 8, "reason": skipped().reason}]
    rows = table(client, parent.info.run_id, "measurements.json", tmp_path)
    assert [(row["outcome"], row["tokens_per_s"]) for row in rows] == [("ok", 50000.0), ("ok", 40000.0), ("oom", None)]

    by_id = {run.data.tags["measurement_id"]: run for run in children}
    assert set(by_id) == {point.id for point in POINTS} and len(children) == 3
    first, failed = by_id[POINTS[0].id], by_id[POINTS[2].id]
    assert (first.info.status, first.data.tags["outcome"]) == ("FINISHED", "ok")
    assert math.isnan(failed.data.metrics["tokens_per_s"])  # left out, it would be drawn above all others
    assert (failed.info.status, failed.data.tags["outcome"]) == ("FAILED", "oom")
    assert failed.data.tags["reason"] == POINTS[2].reason
    params = first.data.params
    names = ("engine", "sharding", "dp", "micro_batch", "outcome")
    assert [params[name] for name in names] == ["fsdp", "full", "4", "1", "ok"]
    assert all(set(child.data.params) == set(params) for child in children)
    assert (parent.data.params["model"], parent.data.params["seq_len"]) == ("bloom-7b1", "2048")
    assert first.data.tags["layout"] == layout().label and first.data.tags["step_time_derived"] == "true"
    assert first.data.metrics["tokens_per_s"] == 40000.0
    assert first.data.metrics["peak_reserved_gib"] == 66.5
    losses = client.get_metric_history(first.info.run_id, "loss")
    assert [loss.step for loss in losses] == [0, 1, 2] and losses[0].value == 12.0
    assert first.info.start_time <= losses[0].timestamp <= losses[1].timestamp <= losses[2].timestamp
    norms = [metric.value for metric in client.get_metric_history(first.info.run_id, "grad_norm")]
    # MLflow's databases hold the largest double for infinity.
    assert norms[0] >= 1.79e308 and math.isnan(norms[1]) and norms[2] == 2.0
    for reason, lowered in (("power_cap", [1.0, 0.0, 1.0]), ("hardware_thermal", [0.0, 0.0, 1.0])):
        history = client.get_metric_history(first.info.run_id, f"held_back_{reason}")
        assert [(metric.step, metric.value) for metric in history] == list(enumerate(lowered))
    assert losses[2].timestamp == first.info.end_time
    assert (first.info.end_time or 0) >= first.info.start_time > 0


def table(client: MlflowClient, run_id: str, name: str, folder: Path) -> list[dict]:
    """Returns the rows of a table of a run; checks that MLflow's pages know it as a table."""
    tables = json.loads(client.get_run(run_id).data.tags["mlflow.loggedArtifacts"])
    assert {"path": name, "type": "table"} in tables
    contents = json.loads(Path(client.download_artifacts(run_id, name, str(folder))).read_text())
    return [dict(zip(contents["columns"], row, strict=True)) for row in contents["data"]]


def test_a_winner_s_gate_and_its_reference_are_runs_with_their_curves(studies: Path, tmp_path: Path) -> None:
    best, plain = POINTS[1], layout()
    with Study.create(studies, "gated") as study:
        study.record(header("gated"))
        for point in POINTS[:2]:
            study.record(Measured(measurement=point))
        for on, losses in ((best.layout, (12.5, 12.01, 11.0)), (plain, (12.5, 12.0, 11.0))):
            gate = {"trial_id": "t9", "recipe": best.recipe, "steps": 3, "sequences": 32, "grad_norms": (3.0, 2.0, 1.0)}
            study.record(GateCurves(layout=on, losses=losses, is_reference=on == plain, **gate))
        study.record(End(exit_code=0, wall_s=10, gpu_s=40, left_out="9 runs of 3 finalists"))
    uri = default_uri(studies)
    for _ in range(2):
        assert Mirror(study.path, uri).start().close(600) == ""
    client, parent, children = runs_of(uri, "gated")
    gates = {run.data.tags["gate"]: run for run in children if "gate" in run.data.tags}
    assert len(children) == 4 and set(gates) == {"layout", "reference"}
    assert gates["reference"].info.run_name == "gate reference: FSDP2 stage 3 (t9)"
    assert [metric.value for metric in client.get_metric_history(gates["layout"].info.run_id, "gate_loss")] == [
        12.5, 12.01, 11.0]  # fmt: skip
    assert len(client.get_metric_history(gates["reference"].info.run_id, "gate_grad_norm")) == 3
    assert {gate.data.tags["role"] for gate in gates.values()} == {"gate"}
    assert parent.data.tags["winner_gate"] == "passed"
    assert parent.data.metrics["gate_loss_error"] == pytest.approx(0.01 / 12, rel=1e-3)
    assert "Numerics gate passed" in parent.data.tags["mlflow.note.content"]
    assert "Final runs left out: 9 runs of 3 finalists" in parent.data.tags["mlflow.note.content"]
    rows = table(client, parent.info.run_id, "gates.json", tmp_path)
    assert [(row["gate"], row["layout"]) for row in rows] == [("passed", best.layout.label), ("reference", plain.label)]


def test_the_machine_s_samples_are_the_study_s_system_metrics_once(studies: Path) -> None:
    folder = write(studies, "sampled", *POINTS[:1])
    began_ms = 1_790_000_000_000
    lines = [{"at_ms": began_ms + 5000 * n, "system/cpu_utilization_percentage": float(n)} for n in range(1500)]
    samples = folder / SAMPLES
    samples.write_text("".join(json.dumps(line) + "\n" for line in lines[:1200]))
    uri = default_uri(studies)
    assert Mirror(folder, uri).start().close(600) == ""
    samples.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert Mirror(folder, uri).start().close(600) == ""
    client, parent, _ = runs_of(uri, "sampled")
    metric_history = client.get_metric_history(parent.info.run_id, "system/cpu_utilization_percentage")
    assert [(metric.step, metric.timestamp, metric.value) for metric in metric_history] == [
        (n, began_ms + 5000 * n, float(n)) for n in range(1500)
    ]


def test_mirroring_again_and_after_a_resume_makes_nothing_twice(studies: Path) -> None:
    folder = write(studies, "again", *POINTS[:2], end=130)
    uri = default_uri(studies)
    assert Mirror(folder, uri).start().close(600) == ""
    assert runs_of(uri, "again")[1].info.status == "KILLED"
    study, _, _ = Study.resume(studies, "again")
    with study:
        study.record(Resume())
        study.record(Measured(measurement=POINTS[0]))
        study.record(Measured(measurement=POINTS[2]))
        study.record(End(exit_code=0, wall_s=10, gpu_s=40))
    for _ in range(2):
        assert Mirror(folder, uri).start().close(600) == ""
    client, parent, children = runs_of(uri, "again")
    assert parent.info.status == "FINISHED"
    assert sorted(run.data.tags["measurement_id"] for run in children) == sorted(point.id for point in POINTS)
    (first,) = [run for run in children if run.data.tags["measurement_id"] == POINTS[0].id]
    assert len(client.get_metric_history(first.info.run_id, "loss")) == 3


def test_a_run_that_was_begun_is_completed_and_one_made_twice_is_removed(studies: Path) -> None:
    folder = write(studies, "begun", *POINTS[:2])
    uri = default_uri(studies)
    entry = read(folder)[0].header
    assert entry is not None
    begun = Runs(uri, entry)  # what is left by a process killed between making a run and filling it
    for point in (POINTS[0], POINTS[1], POINTS[1]):
        begun._new(content_of(point, entry, started=entry.at, ended=entry.at))
    assert Mirror(folder, uri).start().close(600) == ""
    _, _, children = runs_of(uri, "begun")
    assert sorted(run.data.tags["measurement_id"] for run in children) == sorted(point.id for point in POINTS[:2])
    assert {run.info.status for run in children} == {"FINISHED"}
    assert all("tokens_per_s" in run.data.metrics for run in children)


def test_a_point_that_was_run_again_is_shown_once_by_its_median_run(studies: Path) -> None:
    again = [dataclasses.replace(POINTS[1], repeat=n, tokens_per_s=v) for n, v in ((1, 5e4), (2, 4e4), (3, 4.5e4))]
    folder = write(studies, "repeated", *POINTS, *again)
    uri = default_uri(studies)
    assert Mirror(folder, uri).start().close(600) == ""
    _, _, children = runs_of(uri, "repeated")
    shown = {run.data.tags["measurement_id"] for run in children if run.data.tags["role"] == "measurement"}
    assert shown == {POINTS[0].id, again[2].id, POINTS[2].id} and len(children) == 6


def test_a_profile_is_a_run_of_its_own_role(studies: Path) -> None:
    with Study.create(studies, "profiled") as study:
        study.record(header("profiled"))
        study.record(Measured(measurement=POINTS[0]))
        study.record(profile(POINTS[0]))
    uri = default_uri(studies)
    for _ in range(2):
        assert Mirror(study.path, uri).start().close(600) == ""
    _, _, children = runs_of(uri, "profiled")
    (profile_run,) = [run for run in children if run.data.tags["role"] == "profile"]
    assert len(children) == 2 and profile_run.data.metrics["profile_matmul_s"] == 0.04


def test_a_winner_that_is_none_any_longer_leaves_no_tags_figures_or_files(studies: Path) -> None:
    folder = write(studies, "unwon", POINTS[0])
    uri = default_uri(studies)
    assert Mirror(folder, uri).start().close(600) == ""
    client, parent, _ = runs_of(uri, "unwon")
    assert parent.data.tags["winner_measurement_id"] == POINTS[0].id
    study, _, _ = Study.resume(studies, "unwon")
    with study:  # run again, it fails: a point wins by its further runs alone
        study.record(Resume())
        study.record(Measured(measurement=dataclasses.replace(POINTS[0], repeat=1, outcome=Outcome.FAILED)))
        study.record(End(exit_code=1, wall_s=10, gpu_s=40))
    write_results(folder, StudyResult.of(read(folder)[0]))
    assert Mirror(folder, uri).start().close(600) == ""
    client, parent, _ = runs_of(uri, "unwon")
    assert not [name for name in parent.data.tags if name.startswith("winner")]
    assert math.isnan(parent.data.metrics["tokens_per_s"]) and parent.data.metrics["gpus"] == 4
    assert "layout.json" not in {list_artifact.path for list_artifact in client.list_artifacts(parent.info.run_id)}


def test_runs_of_an_older_version_are_made_anew(studies: Path) -> None:
    folder = write(studies, "old", *POINTS[:2])
    uri = default_uri(studies)
    assert Mirror(folder, uri).start().close(600) == ""
    client, parent, children = runs_of(uri, "old")
    for run in children:
        client.delete_tag(run.info.run_id, "format")
    client.log_metric(parent.info.run_id, "peak_allocated_gib", 61.0)
    assert Mirror(folder, uri).start().close(600) == ""
    _, renewed, remade = runs_of(uri, "old")
    assert len(remade) == 2 and not {run.info.run_id for run in remade} & {run.info.run_id for run in children}
    assert renewed.info.run_id == parent.info.run_id
    assert math.isnan(renewed.data.metrics["peak_allocated_gib"])


MIRRORING = """
import os, signal, sys, time
from pathlib import Path
from platform.tracking.mirror import Mirror
from platform.tracking.runs import Runs

begun, add = [], Runs.add

def add_some(runs, content):
    begun.append(content)
    if len(begun) > 15:
        time.sleep(600)  # however late the look below comes
    add(runs, content)

Runs.add = add_some
mirror = Mirror(Path(sys.argv[1]), sys.argv[2]).start()
while len(mirror.mirrored) < 8:
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)  # by itself: to look from outside takes longer than a run
"""


def test_a_killed_mirror_is_taken_up_where_it_was(studies: Path) -> None:
    many = [measurement(on=layout(bucket_mib=n + 1), tokens_per_s=1000.0 + n) for n in range(20)]
    folder = write(studies, "killed", *many)
    uri = default_uri(studies)
    process = subprocess.run([sys.executable, "-c", MIRRORING, str(folder), uri], cwd=ROOT, timeout=900)
    assert process.returncode == -signal.SIGKILL
    assert 8 <= len(runs_of(uri, "killed")[2]) < 20
    assert Mirror(folder, uri).start().close(600) == ""
    _, _, children = runs_of(uri, "killed")
    assert sorted(run.data.tags["measurement_id"] for run in children) == sorted(point.id for point in many)
    assert {run.info.status for run in children} == {"FINISHED"}


def test_a_miniature_is_tagged_on_each_of_its_runs(studies: Path) -> None:
    with Study.create(studies, "mini") as study:
        study.record(header("mini", miniature=True, recipes=(miniature(),)))
        small = measurement(recipe=miniature(), on=Layout(engine="ddp", dp_replicate=2))
        study.record(Measured(measurement=small))
    uri = default_uri(studies)
    assert Mirror(study.path, uri).start().close(600) == ""
    _, parent, (child,) = runs_of(uri, "mini")
    assert parent.info.run_name == "mini" and parent.data.tags["miniature"] == "true"
    assert parent.info.status == "KILLED"
    assert "miniature" not in str(child.info.run_name) and child.data.tags["miniature"] == "true"


def test_a_study_that_never_began_has_nothing_to_mirror(studies: Path) -> None:
    with Study.create(studies, "empty") as study:
        assert Mirror(study.path, default_uri(studies)).start().close(300) == ""


def test_a_second_mirror_of_one_study_stands_back(studies: Path) -> None:
    folder = write(studies, "two", POINTS[0], end=None)
    uri = default_uri(studies)
    first = Mirror(folder, uri).start()
    wait_for(lambda: first.mirrored != frozenset())
    assert Mirror(folder, uri).start().close(300).startswith("Another process")
    assert first.close(600) == ""
    assert len(runs_of(uri, "two")[2]) == 1


def test_an_unknown_scheme_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no known scheme"):
        Mirror(tmp_path, "ftp://somewhere")
