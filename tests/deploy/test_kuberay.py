"""The manifests for Kubernetes fit the schemas of KubeRay 1.7, and what must agree in them agrees. Offline.

An API server drops fields that a schema does not know, unless it validates strictly: here they are refused.
"""

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kuberay"
CRDS = Path(__file__).parent / "crds"
FILES = {"search-job.yaml": "rayjobs", "cluster.yaml": "rayclusters"}


def schema(name: str) -> dict[str, Any]:
    """Returns a schema of KubeRay in which unknown fields are errors."""
    full_schema = json.loads(gzip.decompress((CRDS / f"{name}.json.gz").read_bytes()))
    for key in ("apiVersion", "kind"):
        full_schema["properties"][key] = {"type": "string"}
    return _strict(full_schema)


def _strict(part: Any) -> Any:
    if isinstance(part, list):
        return [_strict(item) for item in part]
    if not isinstance(part, dict):
        return part
    changed: dict[str, Any] = {key: _strict(value) for key, value in part.items()}
    is_object = isinstance(changed.get("properties"), dict) and changed.get("type") == "object"
    if is_object and not changed.get("x-kubernetes-preserve-unknown-fields"):
        changed.setdefault("additionalProperties", False)
    return changed


def errors(manifest: Mapping[str, Any], name: str) -> list[str]:
    """Returns the errors that the schema finds in the manifest."""
    return [
        f"{iter_error.json_path}: {iter_error.message}"
        for iter_error in jsonschema.Draft7Validator(schema(name)).iter_errors(manifest)
    ]


def manifest(file: str) -> dict[str, Any]:
    """Returns the manifest as the API server reads it."""
    return yaml.safe_load((FOLDER / file).read_text())


def cluster_of(file: str) -> dict[str, Any]:
    """Returns the specification of the Ray cluster in the file."""
    spec = manifest(file)["spec"]
    return spec.get("rayClusterSpec", spec)


def containers(cluster: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the containers of the cluster's pods, those of the head first."""
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        yield from group["template"]["spec"]["containers"]


@pytest.mark.parametrize(("file", "name"), FILES.items())
def test_kuberay_s_schema_takes_it(file: str, name: str) -> None:
    assert errors(manifest(file), name) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "rayClusterSpec", "authOptions", "mode"), "tokens"),
        (("spec", "backofLimit"), 3),
        (("spec", "rayClusterSpec", "workerGroupSpecs", 0, "maxReplicas"), "two"),
        (("spec", "rayClusterSpec", "headGroupSpec", "template", "spec", "containers", 0, "volumeMount"), []),
    ],
)
def test_the_schema_refuses_what_is_wrong(path: tuple[Any, ...], value: object) -> None:
    changed: Any = manifest("search-job.yaml")
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert len(errors(changed, "rayjobs")) == 1


@pytest.mark.parametrize("file", FILES)
def test_a_search_waits_for_the_nodes_that_the_manifest_starts(file: str) -> None:
    cluster = cluster_of(file)
    head, worker = containers(cluster)
    (group,) = cluster["workerGroupSpecs"]
    gpus = worker["resources"]["limits"]["nvidia.com/gpu"]
    stated = {variable["name"]: variable["value"] for variable in head["env"]}["LAYOUT_SEARCH_NODES"]
    assert stated == f"{group['maxReplicas']}x{gpus}"
    assert worker["resources"]["requests"] == worker["resources"]["limits"]
    assert "nvidia.com/gpu" not in head["resources"]["limits"]


@pytest.mark.parametrize("file", FILES)
def test_nothing_is_open_without_a_token_and_pods_have_shared_memory_and_the_pinned_ray(file: str) -> None:
    cluster = cluster_of(file)
    assert cluster["authOptions"] == {"mode": "token"}
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert f"ray=={cluster['rayVersion']}" in pins
    for container in containers(cluster):
        assert "/dev/shm" in [mount["mountPath"] for mount in container["volumeMounts"]]


def pods(file: str) -> Iterator[dict[str, Any]]:
    """Yields the pod templates of the file."""
    cluster = cluster_of(file)
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        yield group["template"]
    if (submitter := manifest(file)["spec"].get("submitterPodTemplate")) is not None:
        yield submitter


@pytest.mark.parametrize("file", FILES)
def test_no_pod_runs_as_root_or_gains_rights(file: str) -> None:
    image_user = re.findall(r"^USER (\d+):", (ROOT / "deploy" / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    all_pods = [*pods(file)]
    assert len(all_pods) == (3 if file == "search-job.yaml" else 2)
    confined = [container for pod in all_pods for container in pod["spec"]["containers"]]
    confined += [cluster_of(file)[name] for name in ("autoscalerOptions",) if name in cluster_of(file)]
    for pod in all_pods:
        context = pod["spec"]["securityContext"]
        assert context["runAsNonRoot"] and [str(context["runAsUser"])] == image_user
        assert context["seccompProfile"] == {"type": "RuntimeDefault"} and context["fsGroup"] == context["runAsUser"]
    for container in confined:
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_the_network_policy_lets_in_the_cluster_s_own_pods_and_who_asks_for_the_job_alone() -> None:
    policy = manifest("network-policy.yaml")["spec"]
    of_ray = {"matchExpressions": [{"key": "ray.io/cluster", "operator": "Exists"}]}  # a label that KubeRay sets
    assert policy["podSelector"] == of_ray and policy["policyTypes"] == ["Ingress"]
    same, asking = policy["ingress"]
    assert same == {"from": [{"podSelector": of_ray}]}
    (submitter,) = [pod for pod in pods("search-job.yaml") if "metadata" in pod]
    assert {"podSelector": {"matchLabels": submitter["metadata"]["labels"]}} in asking["from"]
    assert asking["ports"] == [{"protocol": "TCP", "port": 8265}] and len(asking["from"]) == 2


@pytest.mark.parametrize("file", FILES)
def test_studies_outlive_the_cluster_and_gpus_do_not(file: str) -> None:
    claim = yaml.safe_load((FOLDER / "studies.yaml").read_text())["metadata"]["name"]
    cluster = cluster_of(file)
    volumes = {volume["name"]: volume for volume in cluster["headGroupSpec"]["template"]["spec"]["volumes"]}
    assert volumes["studies"]["persistentVolumeClaim"]["claimName"] == claim
    spec = manifest(file)["spec"]
    if file == "search-job.yaml":
        assert spec["shutdownAfterJobFinishes"] and "--auto-resume" in spec["entrypoint"]
        assert "--studies /studies" in spec["entrypoint"]
    else:
        (group,) = cluster["workerGroupSpecs"]
        assert (cluster["enableInTreeAutoscaling"], group["replicas"], group["minReplicas"]) == (True, 0, 0)
