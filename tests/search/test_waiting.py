"""GPU nodes that a real autoscaler starts: Ray's second, as `ray up` has it, with nodes that are Rays on this host."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import yaml
from ray.autoscaler._private.fake_multi_node import node_provider

import platform.waiting as waiting  # pyright takes `from platform import` for the standard module

ROOT = Path(__file__).parents[2]
IDLE_S = 3.0
"""After which the autoscaler takes a node down that nobody asks for."""


def _cluster_file(folder: Path, address: str) -> Path:
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


@contextlib.contextmanager
def _cluster(folder: Path) -> Generator[str]:
    """Address of a head without GPUs whose autoscaler may start two nodes of two (made up) GPUs."""
    with socket.socket() as one:
        one.bind(("", 0))
        port = one.getsockname()[1]
    address = f"{ray.util.get_node_ip_address()}:{port}"
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--port={port}", "--num-cpus=1"]
    command += [f"--temp-dir={folder / 'ray'}", f"--autoscaling-config={_cluster_file(folder, address)}"]
    identity = {
        "RAY_FAKE_CLUSTER": "1",
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": node_provider.FAKE_HEAD_NODE_ID,
        "RAY_CLOUD_INSTANCE_ID": node_provider.FAKE_HEAD_NODE_ID,
        "RAY_NODE_TYPE_NAME": node_provider.FAKE_HEAD_NODE_TYPE,
    }
    settings = {"RAY_enable_autoscaler_v2": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    with (folder / "out").open("w") as out:
        head = subprocess.Popen(
            [*command, "--include-dashboard=false", "--block"],
            env={**os.environ, **identity, **settings},
            stdout=out,
            stderr=out,
        )
    try:
        until_s = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            assert head.poll() is None and time.monotonic() < until_s, (folder / "out").read_text()
            time.sleep(0.2)
        yield address
    finally:
        started = psutil.Process(head.pid)
        for each in [*started.children(recursive=True), started]:  # not SIGTERM, on which it drains for 20 s
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        head.wait()


def _gpus() -> int:
    return sum(int(each["Resources"].get("GPU", 0)) for each in ray.nodes() if each["Alive"])


@pytest.mark.ray
def test_an_autoscaler_starts_what_is_awaited_keeps_it_and_takes_it_down_after(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with _cluster(tmp_path_factory.mktemp("as")) as address:  # a short path: sockets lie in it
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"py_modules": [str(ROOT / "trainers")]},
        )
        try:
            assert _gpus() == 0
            with waiting.for_gpus(4, 120):
                assert _gpus() == 4
                time.sleep(2 * IDLE_S)
                assert _gpus() == 4
            until_s = time.monotonic() + 30
            while _gpus() and time.monotonic() < until_s:
                time.sleep(0.2)
            assert _gpus() == 0
        finally:
            ray.shutdown()
    said = capsys.readouterr().err
    assert "Waiting for 2 nodes of type gpu: 0 of 4 GPUs are there" in said
    assert "launching" in said and "4 GPUs came after" in said
