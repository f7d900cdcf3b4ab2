"""A cluster as `ray up` makes it, run on this host: an autoscaler that starts nodes, a head that takes jobs, token
auth.
"""

import json
import logging
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray.autoscaler._private.fake_multi_node import node_provider

from platform.cluster import waiting
from tests.loopback import closed_port, free_port
from tests.whole_searches.head import short_folder, started
from tests.whole_searches.session import ROOT, write_space

IDLE_S = 3.0
"""Seconds after which the autoscaler removes an idle node."""


def _cluster_file(folder: Path, address: str) -> Path:
    """Returns a cluster file without a GPU on the head, with up to two nodes of two (made up) GPUs, each a Ray node on
    this host.
    """
    empty: dict[str, Any] = {"auth": {}, "docker": {}, "file_mounts": {}, "file_mounts_sync_continuously": False}
    lists = ("cluster_synced_files", "rsync_exclude", "rsync_filter", "initialization_commands", "setup_commands")
    commands = ("head_setup_commands", "worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands")
    path = folder / "cluster.yaml"
    text = yaml.safe_dump(
        {
            "cluster_name": "here",
            "max_workers": 2,
            "idle_timeout_minutes": IDLE_S / 60,
            "provider": {
                # Not "fake_multinode", its usual name: that wants a file which Ray's wheel does not hold.
                "type": "external",
                "module": f"{node_provider.__name__}.FakeMultiNodeProvider",
                "use_node_id_as_ip": True,
                "disable_node_updaters": True,
                "disable_launch_config_check": True,
                "gcs_address": address,
            },
            "head_node_type": node_provider.FAKE_HEAD_NODE_TYPE,
            "available_node_types": {
                node_provider.FAKE_HEAD_NODE_TYPE: {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
                "gpu": {"resources": {"CPU": 1, "GPU": 2}, "node_config": {}, "min_workers": 0, "max_workers": 2},
            },
            **empty,
            **{name: [] for name in (*lists, *commands)},
        }
    )
    path.write_text(text)
    return path


def _gpus() -> int:
    return sum(int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"])


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields a folder for a head."""
    for name in [variable for variable in os.environ if variable.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # of this process, which has read it when it imported Ray
    with short_folder() as short:
        yield short


@pytest.fixture
def port() -> Iterator[int]:
    """Yields a port for a head, which no other process is given."""
    with closed_port("") as port:
        yield port


@pytest.mark.ray
def test_an_autoscaler_starts_what_is_awaited_keeps_it_and_takes_it_down_after(
    folder: Path, port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _cluster_file(folder, f"{ray.util.get_node_ip_address()}:{port}")
    identity = {
        "RAY_FAKE_CLUSTER": "1",
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": node_provider.FAKE_HEAD_NODE_ID,
        "RAY_CLOUD_INSTANCE_ID": node_provider.FAKE_HEAD_NODE_ID,
        "RAY_NODE_TYPE_NAME": node_provider.FAKE_HEAD_NODE_TYPE,
    }
    second = {"RAY_enable_autoscaler_v2": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}  # the one that `ray up` starts
    open_to_all = {"RAY_AUTH_MODE": "disabled"}
    options = ("--num-cpus=1", f"--autoscaling-config={file}", "--include-dashboard=false")
    with started(folder, *options, port=port, environment=identity | second | open_to_all) as address:
        environment = {"py_modules": [str(ROOT / "trainers")]}
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, runtime_env=environment)
        # A process that asked another cluster before this one, as notebooks do, keeps that one's answer.
        monkeypatch.setattr("ray.autoscaler.v2.utils.cached_is_autoscaler_v2", False)
        try:
            assert _gpus() == 0
            with waiting.for_nodes(4, 900):
                assert _gpus() == 4
                time.sleep(2 * IDLE_S)
                assert _gpus() == 4
            until_s = time.monotonic() + 600
            while _gpus() and time.monotonic() < until_s:
                time.sleep(0.2)
            assert _gpus() == 0
        finally:
            ray.shutdown()
    out = capsys.readouterr().err
    assert "Waiting for 2 nodes of type gpu, 2 GPUs each: 0 of 4 GPUs are there" in " ".join(out.split())
    assert "launching" in out and "4 GPUs came after" in out and "the head bills until" in " ".join(out.split())


@pytest.mark.heavy
@pytest.mark.search
def test_a_submitted_job_runs_its_copy_of_the_checkout_and_keeps_the_study_in_the_home_folder(
    folder: Path, port: int
) -> None:
    dashboard = free_port()
    home = folder / "home"
    home.mkdir()
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    at_home = {"HOME": str(home), "CUDA_VISIBLE_DEVICES": ""}
    options = ("--num-cpus=2", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}")
    with started(folder, *options, port=port, also_up=dashboard, environment=token | at_home):
        search = [sys.executable, "-m", "platform.search", str(write_space(folder / "tiny.py", micro_batches=(1,)))]
        submit = ["job", "submit", f"--address=http://127.0.0.1:{dashboard}", f"--working-dir={ROOT}", "--"]
        completed = subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", *submit, *search, "--max-trials=1", "--repeats=0"],
            env={**os.environ, **token},
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    (study,) = (home / "studies").glob("tiny-*")
    first = json.loads((study / "journal.jsonl").read_text().splitlines()[0])
    assert first["name"] == study.name
    assert (study / "layout.json").exists() and (home / "studies" / "mlflow.db").exists()
    assert f"{study}" in completed.stdout  # the job's log says where it is
    assert not list((folder / "ray").glob("*/runtime_resources/working_dir_files/*/studies"))
