"""A worker's successor, on a real Ray: a process that has imported what it needs before the next trial wants it."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.whole_searches.session import ENVIRONMENT, ROOT
from trainers.startup import prestart

TWO_TRIALS = """
import contextlib, json, os, sys, time
import psutil
from platform.cluster.connection import connected

def work(config):
    import json, os, sys, ray.train
    from trainers.startup import prestart
    if config["asks"]:
        prestart.ask(1, 0.0)
    ready = "trainers.engines.ddp" in sys.modules
    prestart.keep_to_share()
    import torch
    share = int(os.environ["OMP_NUM_THREADS"])
    with open(config["answers"], "w") as answers:
        json.dump({"pid": os.getpid(), "ready": ready, "threads": torch.get_num_threads(), "share": share}, answers)

def waiting(driver, is_worker):
    found, until_s = [], time.monotonic() + 600
    while not found and time.monotonic() < until_s:
        time.sleep(0.2)
        for each in psutil.Process(driver).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it is just ending
                kept = each.cmdline()[:1] == ["ray::IDLE"] and prestart.IS_TUNE in each.environ()
                if kept and (prestart.IS_WORKER in each.environ()) == is_worker:
                    found.append(each.pid)
    return found

def trials(config):
    folder, driver = config["folder"], config["driver"]

    def run(number, asks):
        answers = f"{folder}/answers-{number}"
        TorchTrainer(
            work,
            train_loop_config={"asks": asks, "answers": answers},
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=ray.train.ScalingConfig(num_workers=1),
            run_config=ray.train.RunConfig(
                storage_path=folder,
                name=str(number),
                worker_runtime_env={"env_vars": {prestart.IS_WORKER: "1"}},
            ),
        ).fit()
        return json.load(open(answers))

    answers = {"tune": [config["tune"], os.getpid()]}
    answers |= {"ahead": waiting(driver, True), "first": run(1, True)}
    answers |= {"waiting": waiting(driver, True), "second": run(2, False)}
    json.dump(answers, open(f"{folder}/answers", "w"))

with connected("local", cpu_workers=1) as place:
    import ray.train, ray.tune
    from ray.train.torch import TorchConfig, TorchTrainer
    from trainers.startup import prestart

    prestart.ask_first({place.nodes[0].id: 1}, 0.0)
    space = {"folder": sys.argv[1], "driver": os.getpid(), "tune": waiting(os.getpid(), False)}
    ray.tune.Tuner(ray.tune.with_resources(trials, {"CPU": 0.1}), param_space=space).fit()
"""


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the facts of two trials, of which the first asked for a successor, and the processes that waited between
    them.
    """
    folder = tmp_path_factory.mktemp("successors")
    completed = subprocess.run(
        [sys.executable, "-c", TWO_TRIALS, str(folder)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return json.loads((folder / "answers").read_text())


@pytest.mark.ray
@pytest.mark.heavy
def test_the_first_trials_worker_is_the_process_that_the_driver_asked_for(facts: dict[str, Any]) -> None:
    assert facts["ahead"] == [facts["first"]["pid"]]
    assert facts["first"]["ready"]


@pytest.mark.ray
@pytest.mark.heavy
def test_so_is_tunes_side_of_it(facts: dict[str, Any]) -> None:
    started, used = facts["tune"]
    assert used in started


@pytest.mark.ray
@pytest.mark.heavy
def test_the_next_trials_worker_is_the_process_that_was_asked_for(facts: dict[str, Any]) -> None:
    assert facts["second"]["pid"] in facts["waiting"]
    assert facts["second"]["pid"] != facts["first"]["pid"]


@pytest.mark.ray
@pytest.mark.heavy
def test_it_has_imported_what_a_worker_needs(facts: dict[str, Any]) -> None:
    assert facts["second"]["ready"]


@pytest.mark.ray
@pytest.mark.heavy
def test_it_has_the_threads_of_its_share(facts: dict[str, Any]) -> None:
    for worker in (facts["first"], facts["second"]):
        assert worker["threads"] == worker["share"] == 1


@pytest.mark.parametrize(
    ("cores", "num_workers", "cpus_per_worker", "room"),
    [(2, 2, 0.9, False), (16, 1, 8.0, True), (32, 4, 7.0, True), (64, 4, 8.0, True), (12, 4, 2.0, False)],
)
def test_successors_start_only_beside_spare_cores(
    cores: int, num_workers: int, cpus_per_worker: float, room: bool
) -> None:
    assert prestart.have_room(cores, num_workers, cpus_per_worker) is room


def test_other_processes_import_nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr(prestart.importlib, "import_module", imported.append)
    monkeypatch.delenv(prestart.IS_WORKER, raising=False)
    monkeypatch.delenv(prestart.IS_TUNE, raising=False)
    prestart.preload()
    assert not imported
