"""`cluster.yaml` passes Ray's own validation (neither AWS nor a network is needed) and fits the checkout."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from platform.cluster.providers import Autoscaler

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "cluster.yaml").read_text()
# A commented node type is a name at the depth of the others and, below it, lines that are deeper.
COMMENTED = re.findall(r"^  # ([a-z]\w*):.*\n((?:  #  .*\n)+)", TEXT, flags=re.MULTILINE)


def _cluster(commented: str = "") -> dict[str, Any]:
    """Returns the content of the file, or, where `commented` names a node type, its content with that type uncommented
    and in place of its GPU nodes.
    """
    if not commented:
        return yaml.safe_load(TEXT)
    block = f"  {commented}:\n" + re.sub(r"^  # ", "  ", dict(COMMENTED)[commented], flags=re.MULTILINE)
    cluster = yaml.safe_load(TEXT.replace("\nfile_mounts:", f"\n{block}\nfile_mounts:"))
    cluster["available_node_types"]["p4d"] |= {"min_workers": 0, "max_workers": 0}
    return cluster


def _prepared(cluster: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(ROOT)  # file_mounts name the checkout as "."
    prepared = prepare_config(cluster)
    validate_config(prepared)
    return prepared


def test_ray_accepts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    types = _prepared(_cluster(), monkeypatch)["available_node_types"]
    assert types["p4d"]["node_config"]["InstanceType"] == "p4d.24xlarge"
    assert types["p4d"]["node_config"]["ImageId"] == types["head"]["node_config"]["ImageId"]


@pytest.mark.parametrize(("name", "instance"), [("p5e", "p5e.48xlarge"), ("g5", "g5.12xlarge"), ("p3", "p3.8xlarge")])
def test_ray_accepts_each_commented_node_type(name: str, instance: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {node_type for node_type, _ in COMMENTED} == {"p5e", "g5", "p3"}
    prepared = _prepared(_cluster(name), monkeypatch)["available_node_types"][name]
    assert prepared["node_config"]["InstanceType"] == instance
    assert prepared["min_workers"] == 0 < prepared["max_workers"]
    if name == "p3":
        assert all("requirements-v100.lock" in command for command in prepared["worker_setup_commands"])


@pytest.mark.parametrize(
    ("place", "key", "value", "sentence"),
    [
        ((), "max_worker", 1, "'max_worker' was unexpected"),
        (("docker",), "run_option", [], "'run_option' was unexpected"),
        (("available_node_types", "p4d"), "min_worker", 1, "'min_worker' was unexpected"),
        ((), "head_node_type", "heads", "head_node_type"),
        (("available_node_types", "p4d"), "min_workers", 3, "max_workers"),
    ],
)
def test_ray_refuses_what_is_wrong(
    place: tuple[str, ...], key: str, value: object, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = _cluster()
    inner = cluster
    for step in place:
        inner = inner[step]
    inner[key] = value
    with pytest.raises(Exception, match=sentence):
        _prepared(cluster, monkeypatch)


def test_efa_is_on_every_network_card_of_the_gpu_nodes_and_all_are_placed_together() -> None:
    node = _cluster()["available_node_types"]["p4d"]["node_config"]
    cards = node["NetworkInterfaces"]
    assert [(card["NetworkCardIndex"], card["DeviceIndex"]) for card in cards] == [(0, 0), (1, 1), (2, 1), (3, 1)]
    assert [card["InterfaceType"] for card in cards] == ["efa", "efa-only", "efa-only", "efa-only"]
    # Ray demands both on each interface, and none beside them.
    assert all(card["SubnetId"] and card["Groups"] for card in cards)
    assert not {"SubnetId", "SubnetIds", "SecurityGroupIds"} & set(node)
    assert node["Placement"]["GroupName"]


def test_the_head_has_no_gpu_and_serves_mlflow_to_itself_from_a_folder_that_outlives_the_container() -> None:
    cluster = _cluster()
    head = cluster["available_node_types"]["head"]["node_config"]
    assert head["InstanceType"] == "m7i.2xlarge"
    (server,) = [command for command in cluster["head_start_ray_commands"] if "mlflow" in command]
    script, folder, artifacts, *options = server.split("bash ")[1].split(" >> ")[0].split()
    assert (ROOT / script.removeprefix("/home/ray/layout-search/")).exists()
    assert artifacts.startswith("s3://") and options == ["--host", "127.0.0.1", "--port", "5000"]
    assert server.endswith("&")
    options = cluster["docker"]["head_run_options"]
    assert "--env MLFLOW_TRACKING_URI=http://127.0.0.1:5000" in options
    assert {option.rpartition(":")[2] for option in options if "--volume" in option} == {"/home/ray/studies", folder}


def test_every_node_has_the_token_and_asks_for_it() -> None:
    cluster = _cluster()
    assert "--env RAY_AUTH_MODE=token" in cluster["docker"]["run_options"]
    assert cluster["file_mounts"]["/home/ray/.ray/auth_token"] == "~/.ray/auth_token"


def test_the_image_holds_the_pinned_ray_our_python_and_no_cuda_of_its_own() -> None:
    docker = _cluster()["docker"]
    (ray,) = re.findall(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert not [name for name in docker if name.endswith("_image")]
    assert docker["image"] == f"rayproject/ray:{ray}-py311-cpu"  # the -gpu image has a cuDNN beside torch's
    assert f"{docker['image']}  # CHANGE: @sha256:" in TEXT, "a tag may move"
    assert "--env NVIDIA_VISIBLE_DEVICES=all" in docker["run_options"]


def test_no_gpu_node_bills_before_a_search_asks_for_it_and_all_are_asked_for_without_gpus() -> None:
    cluster = _cluster()
    for node_type in cluster["available_node_types"].values():
        assert node_type.get("min_workers", 0) == 0
    cluster["available_node_types"]["p4d"]["resources"] = {"CPU": 96, "GPU": 8}  # as Ray fills it in from the type
    target = Autoscaler(cluster).awaited(None)
    assert target is not None
    assert (target.num_nodes, target.num_gpus) == (2, 16)
    assert target.description.endswith("8 GPUs and 22.00 USD an hour each")
    assert "the head bills 0.40 USD an hour until `ray down`" in Autoscaler(cluster).bill()
    # Each type that the file has, as a comment too.
    types = {*cluster["available_node_types"], *dict(COMMENTED)}
    assert set(cluster["metadata"]["usd_per_node_h"]) == types


def test_every_node_is_in_the_group_that_is_prepared_since_ray_s_own_opens_port_22_to_all() -> None:
    for commented in ("", "p5e", "g5", "p3"):
        for name, node_type in _cluster(commented)["available_node_types"].items():
            node = node_type["node_config"]
            groups = [node.get("SecurityGroupIds")] + [card["Groups"] for card in node.get("NetworkInterfaces", ())]
            assert [group for group in groups if group] == [["sg-00000000000000001"]] * max(1, len(groups) - 1), name


def test_the_efa_installer_is_unpacked_only_where_it_has_the_pinned_hash(tmp_path: Path) -> None:
    """Runs the file's own command with a made-up download: an archive other than the pinned one is not unpacked."""
    (command,) = _cluster()["worker_setup_commands"]
    assert "latest" not in command
    script = command.replace("cd /tmp", f"cd {tmp_path}").replace("/dev/infiniband", "/").replace("sudo", "false")
    tar_command = "tar -czf efa.tar.gz --files-from /dev/null "
    script, replaced = re.subn(r"curl -fsSo efa\.tar\.gz \S+", tar_command, script)
    assert replaced == 1
    completed = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert completed.returncode != 0 and "efa.tar.gz: FAILED" in completed.stdout
    checksum = subprocess.run(["bash", "-c", f"cd {tmp_path} && sha256sum efa.tar.gz"], capture_output=True, text=True)
    script = re.sub(r"[0-9a-f]{64}", checksum.stdout.split()[0], script).replace(tar_command, "true ")
    completed = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert "efa.tar.gz: OK" in completed.stdout


def test_it_says_how_to_change_the_file_without_ending_a_search() -> None:
    assert "ray up --no-restart cluster.yaml" in TEXT


def test_setup_goes_by_the_same_steps_as_the_makefile() -> None:
    commands = " ".join(_cluster()["setup_commands"])
    makefile = (ROOT / "Makefile").read_text()
    assert "scripts/install.sh python requirements-cuda.lock" in commands
    assert "scripts/install.sh $(BIN)/python $(LOCK)" in makefile
