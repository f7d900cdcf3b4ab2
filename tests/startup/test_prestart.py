# pyright: reportPrivateUsage=false
"""A worker's successor, on a real Ray: a process that has imported what it needs before the next trial wants it."""

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray

from platform.search.loop.lanes import Lanes
from platform.search.session.session import _start_workers
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


@pytest.mark.parametrize(
    ("resources", "shares_node", "starts"),
    [
        ({"CPU": 16.0, "GPU": 8.0}, False, True),
        ({"CPU": 16.0, "GPU": 8.0}, True, False),
        ({"CPU": 32.0, "GPU": 8.0}, True, True),
        ({"CPU": 16.0}, False, True),
        ({"CPU": 16.0}, True, False),
    ],
)
def test_a_trial_that_shares_its_node_leaves_room_for_the_workers_of_all(
    resources: dict[str, float], shares_node: bool, starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    context = SimpleNamespace(get_node_id=lambda: "n1", get_runtime_env_string=lambda: "")
    monkeypatch.setattr(prestart.startup, "is_on", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(ray, "nodes", lambda: [{"NodeID": "n1", "Resources": resources}])
    monkeypatch.setattr(prestart, "_start", lambda node, num_workers, environment: started.append(num_workers))
    prestart.ask(2, 1.0, shares_node=shares_node)
    assert started == [1] * starts


@pytest.mark.parametrize(
    ("num_nodes", "per_trial", "per_node", "num_left", "workers"),
    [
        (4, 1, 1, 100, [2, 2, 2, 2]),
        (4, 1, 1, 3, [2, 2, 2]),
        (5, 2, 1, 100, [2, 2, 2, 2]),
        (5, 2, 1, 1, [2, 2]),
        (2, 1, 4, 100, [8, 8]),
        (2, 1, 4, 3, [4, 2]),  # free nodes first
        (2, 1, 1, 0, [2]),  # final runs alone
    ],
)
def test_a_session_starts_no_more_workers_than_its_first_trials_take(
    num_nodes: int, per_trial: int, per_node: int, num_left: int, workers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = {f"id{number}": f"10.0.0.{number}" for number in range(num_nodes)}
    lanes = Lanes(lambda: nodes, nodes_per_trial=per_trial, trials_per_node=per_node)
    setup = SimpleNamespace(cluster=SimpleNamespace(devices_per_node=2, num_nodes=per_trial))
    handle = SimpleNamespace(has_gpus=True, nodes=[SimpleNamespace(id=node) for node in nodes], cpus_per_worker=1.0)
    calls: list[tuple[dict[str, int], float, int]] = []
    monkeypatch.setattr(prestart, "ask_first", lambda *call: calls.append(call))
    _start_workers(cast(Any, setup), cast(Any, handle), lanes, num_left)
    num_trials = max(1, min(num_left, lanes.count()))
    assert calls == [(dict(zip(nodes, workers, strict=False)), 1.0, num_trials)]
    assert sum(workers) == 2 * per_trial * num_trials


def test_other_processes_import_nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr(prestart.importlib, "import_module", imported.append)
    monkeypatch.delenv(prestart.IS_WORKER, raising=False)
    monkeypatch.delenv(prestart.IS_TUNE, raising=False)
    prestart.preload()
    assert not imported
