"""`cluster.yaml` passes Ray's own validation (neither AWS nor a network is needed) and fits the checkout."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).resolve().parents[2]


def _cluster() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "cluster.yaml").read_text())


def test_ray_accepts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # file_mounts name the checkout as "."
    prepared = prepare_config(_cluster())
    validate_config(prepared)
    gpu = prepared["available_node_types"]["gpu"]
    assert gpu["node_config"]["InstanceType"] == "p4d.24xlarge"
    assert gpu["node_config"]["ImageId"] == prepared["available_node_types"]["head"]["node_config"]["ImageId"]


@pytest.mark.parametrize(
    ("place", "key", "value", "sentence"),
    [
        ((), "max_worker", 1, "'max_worker' was unexpected"),
        (("docker",), "run_option", [], "'run_option' was unexpected"),
        (("available_node_types", "gpu"), "min_worker", 1, "'min_worker' was unexpected"),
        ((), "head_node_type", "heads", "head_node_type"),
        ((), "max_workers", 0, "max_workers"),
    ],
)
def test_ray_refuses_what_is_wrong(
    place: tuple[str, ...], key: str, value: object, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    cluster = _cluster()
    inner = cluster
    for each in place:
        inner = inner[each]
    inner[key] = value
    with pytest.raises(Exception, match=sentence):
        validate_config(prepare_config(cluster))


def test_images_hold_the_pinned_ray_and_our_python() -> None:
    pinned = re.search(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert pinned is not None
    docker = _cluster()["docker"]
    for image in (docker["image"], docker["head_image"]):
        assert image.startswith(f"rayproject/ray:{pinned[1]}-py311-")


def test_setup_goes_by_the_same_steps_as_the_makefile() -> None:
    commands = " ".join(_cluster()["setup_commands"])
    makefile = (ROOT / "Makefile").read_text()
    for step in ("constraints.txt", "--no-build-isolation", "--editable", "python scripts/install_pth.py"):
        assert step in commands
        assert step in makefile
