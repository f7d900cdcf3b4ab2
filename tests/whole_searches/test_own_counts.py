# pyright: basic
"""A user's own command on several numbers of CPU workers: each number's study, their table and their runs in MLflow."""

import csv
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from platform.study.study import read
from tests.whole_searches.studies import ANSWERED, RAN, start
from trainers.records.measurement import Outcome

pytestmark = [pytest.mark.ray, pytest.mark.search, pytest.mark.heavy]

LOOP = """
import json, os, sys, time
workers, batch, accum, mode = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if mode == "broken":
    raise ValueError("no such mode")
while True:
    began = time.perf_counter()
    for _ in range(accum):
        time.sleep(0.02 + 0.01 * batch)
    line = {"tokens": workers * batch * accum * 16, "s": time.perf_counter() - began, "loss": 3.0}
    with open(os.environ["LAYOUT_SEARCH_STEPS"], "a") as file:
        file.write(json.dumps(line) + "\\n")
"""


def test_each_number_of_workers_has_its_study_its_row_and_its_runs(tmp_path: Path) -> None:
    """Checks a command whose steps take half as long on two workers, with one mode that fails on both."""
    (tmp_path / "loop.py").write_text(LOOP)
    command = (sys.executable, str(tmp_path / "loop.py"), "{gpus}", "{micro_batch=1,2}", "{grad_accum}")
    options = ("--name", "own", "--gpus", "1,2", "--searcher", "sweep", "--steps", "5", "--repeats", "1")
    lengths = ("--tokens-per-step", "128", "--seq-len", "16", "--", *command, "{mode=plain,broken}")
    with start(tmp_path, "own", 1, *options, *lengths, environment={"XDG_CACHE_HOME": str(tmp_path)}) as session:
        ended = session.end()
    assert ended.code in ANSWERED, ended.err
    studies = tmp_path / "studies"
    histories = {gpus: read(studies / f"own-{gpus}gpu")[0] for gpus in (1, 2)}
    for gpus, history in histories.items():
        assert history.header is not None and history.header.cluster.num_devices == gpus
        first = [each for each in history.measurements if not each.repeat and "plain" in each.layout.flags]
        batches = [(each.batch.micro_batch, each.batch.grad_accum) for each in first]
        assert batches == [(1, 8 // gpus), (2, 4 // gpus)] and {each.outcome for each in first} <= RAN
        broken = [each for each in history.measurements if "broken" in each.layout.flags]
        assert broken and {each.outcome for each in broken} == {Outcome.FAILED}
        assert all("no such mode" in each.reason for each in broken)
        assert any(each.repeat for each in history.measurements), "confirmed"
    _check_table(studies / "own" / "scaling.csv", ended.out)
    _check_runs(studies, {gpus: len(history.measurements) for gpus, history in histories.items()})


def _check_table(path: Path, printed: str) -> None:
    one, two = csv.DictReader(path.open(encoding="utf-8"))
    assert (one["gpus"], two["gpus"], one["study"], two["study"]) == ("1", "2", "own-1gpu", "own-2gpu")
    speeds = float(one["tokens_per_s"]), float(two["tokens_per_s"])
    assert 1.5 < speeds[1] / speeds[0] < 2.5, "sleeping takes half as long"
    assert float(two["efficiency"]) == pytest.approx(speeds[1] / speeds[0] / 2, rel=0.01)
    assert "own-1gpu" in printed and "own-2gpu" in printed


def _check_runs(studies: Path, num_measured: dict[int, int]) -> None:
    """Checks that the store beside the studies has a finished run of each, with a child for each measurement."""
    client = MlflowClient(tracking_uri=f"sqlite:///{studies / 'mlflow.db'}")
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    for gpus, number in num_measured.items():
        runs = client.search_runs(experiments, f"tags.study = 'own-{gpus}gpu'", max_results=1000)
        parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
        assert [run.info.status for run in parents] == ["FINISHED"]
        children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parents[0].info.run_id]
        assert len(children) == number
        speeds = [run.data.metrics["tokens_per_s"] for run in children if "tokens_per_s" in run.data.metrics]
        assert len(speeds) >= 3 and min(speeds) > 0, "two micro-batches, one of them confirmed"
