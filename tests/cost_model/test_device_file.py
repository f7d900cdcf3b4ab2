"""A user's device file stands wherever a name of the catalogue does, and is refused in one sentence by its key."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from platform.common.errors import InputError
from platform.cost_model import device_file, hardware
from platform.cost_model.evidence import DISTANT_SIGMA, device_sigma
from platform.cost_model.hardware import find_cluster, find_device, from_cluster
from platform.cost_model.ordering import known_columns
from platform.plan.__main__ import main
from platform.validate.published_run import interpret
from search_spaces import load
from tests.plan.test_plan import printed_json
from trainers.spec.cluster import Cluster

CARD: dict[str, Any] = {
    "name": "RTX 4070", "aliases": ["NVIDIA GeForce RTX 4070"], "memory_gib": 11.6, "bandwidth_gb_per_s": 504,
    "tflops": {"bf16": 58.3, "fp32": 29.1}, "link": "pcie4", "source": "datasheet of 2023, dense figures",
}  # fmt: skip
A100: dict[str, Any] = {
    "memory_gib": 79.15, "bandwidth_gb_per_s": 2039, "tflops": {"bf16": 312, "fp16": 312, "fp32": 19.5, "tf32": 156},
    "link": "nvlink3", "source": "datasheet", "architecture": "Ampere", "units": 108, "host_gb_per_s": 32,
    "context_gib": 0.9, "matmul_share": 0.735, "flash_share": 0.45,
}  # fmt: skip
GPT = ("gpt2", "--set", "engine=ddp", "--set", "attention=sdpa", "--set", "micro_batch=4")


@pytest.fixture
def card(tmp_path: Path) -> Path:
    """Returns the path of a device file."""
    path = tmp_path / "card.json"
    path.write_text(json.dumps(CARD))
    return path


@pytest.fixture
def listed(card: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lists the device file in the environment."""
    monkeypatch.setenv(device_file.VARIABLE, os.pathsep.join([str(card)]))
    caches = (hardware.catalogue, hardware._names, hardware.calibrated_families)  # pyright: ignore[reportPrivateUsage]
    for cache in caches:
        cache.cache_clear()
    yield
    monkeypatch.delenv(device_file.VARIABLE)
    for cache in caches:
        cache.cache_clear()


def test_a_path_is_a_device_of_a_cluster(card: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = find_cluster(f"2x8x{card}")
    assert (cluster.num_nodes, cluster.devices_per_node, cluster.device.name) == (2, 8, "RTX 4070")
    assert cluster.intra_peak_gb_per_s == find_cluster("8xL40S").intra_peak_gb_per_s
    assert find_cluster(str(card)).num_devices == 1
    for written in (f"8x{card}", f"2x8x{card}@100"):
        plan: Any = printed_json(capsys, *GPT, "--cluster", written)
        layout = plan["recipes"][0]["layouts"][0]
        # A device of no run is as uncertain as the least certain of the catalogue.
        assert layout["step_time_high_s"] / layout["step_time_s"] > 1.25


def test_a_file_with_the_figures_of_a_device_is_predicted_as_that_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(A100))
    plans: list[Any] = [printed_json(capsys, *GPT, "--cluster", f"8x{name}") for name in (path, "A100-80GB")]
    mine, catalogued = (plan["recipes"][0]["layouts"][0] for plan in plans)
    assert (
        mine["step_time_s"] == pytest.approx(catalogued["step_time_s"])
        and mine["needed_gib"] == catalogued["needed_gib"]
    )
    assert mine["step_time_high_s"] > catalogued["step_time_high_s"]


def test_a_table_s_row_may_name_a_path(card: Path) -> None:
    row = {
        "model": "gpt", "layers": "12", "hidden": "768", "heads": "12", "vocab": "50304", "seq_len": "1024",
        "gpu": f"{card}", "gpu_mem_gb": "12", "gpus": "4", "tp": "1", "pp": "1", "strategy": "ddp",
        "micro_batch": "4", "grad_accum": "1", "activation_ckpt": "none", "precision": "bf16", "status": "ok",
        "iter_time_s": "1", "software": "huggingface",
    }  # fmt: skip
    assert interpret(row).cluster.device.name == "RTX 4070"


@pytest.mark.usefixtures("listed")
def test_a_listed_file_is_known_by_the_driver_s_name_as_a_search_sees_it() -> None:
    cluster = Cluster(
        device_kind="cuda", device="NVIDIA GeForce RTX 4070", device_memory_gib=11.7, devices_per_node=2,
        capability=(8, 9),
    )  # fmt: skip
    assert from_cluster(cluster).device.name == "RTX 4070"
    candidates, _ = load("gpt2").candidates(2)
    assert known_columns(candidates[:2], cluster, None) is not None
    assert find_cluster("2x8xRTX 4070").num_devices == 16


def test_a_family_that_is_not_stated_is_one_without_runs(card: Path) -> None:
    device = find_device(str(card))
    assert device.architecture == device_file.UNKNOWN_ARCHITECTURE
    assert device_sigma(device) >= max(DISTANT_SIGMA["family"], 0.2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"memory_gib": None}, "memory_gib must be a number from 0.1 to 4096, got None"),
        ({"memory_gib": -1}, "memory_gib must be a number from"),
        ({"memory_gib": 81_559}, "memory_gib must be a number from 0.1 to 4096, got 81559"),  # MiB
        ({"bandwidth_gb_per_s": 0.504}, "bandwidth_gb_per_s must be a number from 1 to"),  # TB/s
        ({"name": "x" * 61}, "name must have at most 60 characters"),
        ({"memory_gib": True}, "memory_gib must be a number from"),
        ({"bandwidth_gb_per_s": "504"}, "bandwidth_gb_per_s must be a number"),
        ({"bandwidth_gb_per_s": float("nan")}, "bandwidth_gb_per_s must be a number"),
        ({"tflops": 58}, "tflops must have dense TFLOP/s of fp32 and of bf16 or fp16"),
        ({"tflops": {"fp32": 29}}, "tflops must have dense TFLOP/s of fp32 and of bf16 or fp16"),
        ({"tflops": {"bf16": 58, "fp32": 0}}, "tflops.fp32 must be a number from"),
        ({"tflops": {"bf16": 58, "fp32": 29, "fp4": 9}}, "tflops.fp4 is none of bf16, fp16, fp8, tf32, fp32"),
        ({"tflops": {"bf16": 121, "fp8": 485, "fp32": 30}}, "tflops.fp8 485 is above 242, .* not those with sparsity"),
        ({"link": "nvlink9"}, "link must be GB/s or one of nvlink2, .*, got 'nvlink9'"),
        ({"link": 0}, "link must be a number from"),
        ({"source": ""}, "source must be text"),
        ({"aliases": "4070"}, "aliases must be a list of names"),
        ({"matmul_share": 1.5}, "matmul_share must be a number from 0.01 to 1"),
        ({"memory_gb": 12}, "memory_gb is no key of a device: did you mean memory_gib"),
    ],
)
def test_what_is_wrong_is_named_by_its_key(
    card: Path, changes: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    card.write_text(json.dumps(CARD | changes))
    with pytest.raises(InputError, match=f"device file {card}: {words}"):
        find_device(str(card))
    assert main(["gpt2", "--cluster", f"8x{card}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("key", ["memory_gib", "bandwidth_gb_per_s", "tflops", "link", "source"])
def test_what_is_missing_is_named(card: Path, key: str) -> None:
    card.write_text(json.dumps({name: value for name, value in CARD.items() if name != key}))
    with pytest.raises(InputError, match=f"device file {card}: {key} is missing: the file needs"):
        find_device(str(card))


@pytest.mark.parametrize("text", ["[1]", "{"])
def test_what_is_no_object_is_refused(card: Path, text: str) -> None:
    card.write_text(text)
    with pytest.raises(InputError, match=f"the device file {card} is no JSON file of this kind: "):
        find_cluster(f"8x{card}")


def test_a_link_may_be_a_number(card: Path) -> None:
    card.write_text(json.dumps(CARD | {"link": 100}))
    cluster = find_cluster(f"8x{card}")
    assert cluster.intra_peak_gb_per_s == 100 and 0 < cluster.intra_gb_per_s < 100
