"""The hardware catalogue: every figure has a source, and clusters are read as people write them."""

import contextlib
import json
import math
from pathlib import Path

import pytest

from platform.common.errors import InputError
from platform.cost_model import features, hardware, kernels, stacks
from platform.cost_model.hardware import (
    CLOCK_SIGMA,
    datasheet_tflops,
    device_names,
    find_cluster,
    find_device,
    find_device_by_memory,
    find_node,
    from_cluster,
    word_on,
)
from tests.cost_model.points import fsdp, point
from trainers.spec.cluster import Cluster

_RATIOS = ("matmul_ratio", "flash_ratio")
"""Facts of a stack by architecture."""


def test_every_entry_has_a_source_and_plausible_figures() -> None:
    catalogue = json.loads(Path(hardware.__file__).with_name("hardware.json").read_text())
    for kind in ("devices", "links", "nodes"):
        for name, entry in catalogue[kind].items():
            assert len(entry["source"]) > 10, f"{kind} {name}"
    # Those of a kind that an entry's own source does not speak of are explained once.
    documented = {"source", "note", "aliases", "taken_for_it", "link", "device", *catalogue["figures"]}
    for kind in ("devices", "links", "nodes"):
        assert not {field for entry in catalogue[kind].values() for field in entry} - documented, kind
    for name, entry in catalogue["devices"].items():
        assert entry["link"] in catalogue["links"], name
        assert entry["tflops"]["fp32"] <= entry["tflops"]["fp16"] or name == "CPU-core"
        assert 0 < entry["matmul_share"] < 1 and 0 < entry["flash_share"] < entry["matmul_share"]
    for name, entry in catalogue["nodes"].items():
        assert entry["device"] in catalogue["devices"], name
    for device, node in catalogue["defaults"].items():
        assert catalogue["nodes"][node]["device"] == device


def test_peaks_are_dense() -> None:
    """Checks each peak beside the others of its device: with sparsity one would be twice what its units have."""
    for name in device_names():
        peaks, link = find_device(name).tflops, find_device(name).link
        half = max(peaks["bf16"], peaks["fp16"])
        assert "fp8" not in peaks or 1.95 < peaks["fp8"] / half < 2.05, name
        assert peaks["tf32"] == peaks["fp32"] or 1.95 < half / peaks["tf32"] < 2.05 or link == "shared_memory", name


@pytest.mark.parametrize("name", sorted(set(device_names()) - {"CPU-core"}))
def test_a_socket_stays_and_a_remark_on_clocks_widens(name: str) -> None:
    device = find_device(name)
    for remark in ("(power limited)", "(500 W)", "(clocks locked at 1,200 MHz)"):
        limited = find_device(f"{name} {remark}")
        assert (limited.name, limited.memory_gib) == (name, device.memory_gib) and limited.sigma >= CLOCK_SIGMA
    assert find_device(f"{name} (HBM2e, NVLink, DGX)").sigma == device.sigma
    for memory_gb in (24, 40, 48, 64, 80, 94, 96, 141):
        with contextlib.suppress(InputError):
            assert not find_device(f"{name.split('-')[0]}-SXM-{memory_gb}GB").link.startswith("pcie")


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("GB200", "Blackwell"),
        ("B200", "Blackwell"),
        ("GH200", "Hopper"),
        ("H100-SXM", "Hopper"),
        ("H200", "Hopper"),
        ("H800", "Hopper"),
        ("A100-80GB", "Ampere"),
        ("A10G", "Ampere"),
        ("V100-32GB", "Volta"),
        ("L40S", "Ada Lovelace"),
        ("MI300X", "CDNA 3"),
    ],
)
def test_a_device_states_its_architecture(name: str, architecture: str) -> None:
    assert find_device(name).architecture == architecture


def test_constants_follow_the_architecture_not_the_name() -> None:
    def half_depth(name: str) -> float:
        return float(point(fsdp(), cluster=f"1x{name}").half_depth[0])

    assert half_depth("GB200") == half_depth("B200") < half_depth("GH200") == half_depth("H100")


def test_constants_by_architecture_name_those_of_the_catalogue() -> None:
    catalogue = json.loads(Path(hardware.__file__).with_name("hardware.json").read_text())
    architectures = {device["architecture"] for device in catalogue["devices"].values()}
    stated = {*kernels.EXPONENTIAL_WIDTH, *kernels.FLASH_HALF_LENGTH, *features.HALF_DEPTH} - {"other"}
    ratios = [stack.get(name, {}) for stack in stacks.table()["stacks"].values() for name in _RATIOS]
    assert stated | {architecture for ratio in ratios for architecture in ratio.get("value", {})} <= architectures


@pytest.mark.parametrize(
    ("text", "nodes", "per_node", "device"),
    [
        ("8xA100-80GB", 1, 8, "A100-80GB"),
        ("4x8xH100", 4, 8, "H100-SXM"),
        ("H200", 1, 1, "H200"),
        ("jean-zay-v100", 1, 4, "V100-32GB"),
        ("4xjean-zay-a100", 4, 8, "A100-80GB"),
        ("2 x p5.48xlarge", 2, 8, "H100-SXM"),
        ("2xMI150X", 1, 2, "MI250X"),
        ("8xA100-40", 1, 8, "A100-40GB"),
        ("2x4xV100-16", 2, 4, "V100-16GB"),
        ("2x8h100", 2, 8, "H100-SXM"),
        ("4x8A100-80GB", 4, 8, "A100-80GB"),
        ("8xRTX 4090", 1, 8, "RTX-4090"),
        ("2xp4de.24xlarge", 2, 8, "A100-80GB"),
        ("a3-highgpu-8g", 1, 8, "H100-SXM"),
        ("4xND96isr_H100_v5", 4, 8, "H100-SXM"),
    ],
)
def test_clusters_as_people_write_them(text: str, nodes: int, per_node: int, device: str) -> None:
    cluster = find_cluster(text)
    assert (cluster.num_nodes, cluster.devices_per_node, cluster.device.name) == (nodes, per_node, device)
    assert cluster.num_devices == nodes * per_node


@pytest.mark.parametrize(
    ("driver_name", "device"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("V100-SXM3-32GB (DGX-2)", "V100-SXM3-32GB"),
        ("H100-SXM5-80GB", "H100-SXM"),
        ("NVIDIA H100 SXM5 80GB", "H100-SXM"),
        ("B200 SXM", "B200"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("H100-SXM-94GB (HBM2e)", "H100-SXM-96GB"),
        ("NVIDIA H100 SXM5 94GB", "H100-SXM-96GB"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA RTX A6000", "RTX-A6000"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"),
        ("NVIDIA GeForce RTX 5090", "RTX-5090"),
        ("Tesla T4", "T4"),
        ("AMD Instinct MI325X", "MI325X"),
        ("Intel(R) Xeon(R) Platinum 8581C CPU @ 2.10GHz", "CPU-core"),
    ],
)
def test_names_as_the_driver_gives_them(driver_name: str, device: str) -> None:
    assert find_device(driver_name).name == device


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("8xA90", r"unknown device 'A90': near names are .*A100.*hardware\.json"),
        ("0xH100", "count below 1"),
        ("", "empty cluster"),
        ("8xZ9", "unknown device 'Z9': no name is near, known are V100-16GB"),
        ("8xRTX4080", r"unknown device 'RTX4080': near names are RTX-4090, RTX-5090, RTX-3090; describe"),
        ("8xA5000", "unknown device 'A5000': near names are RTX-A6000; describe others in a file of your own"),
        ("8h100", "no x between the count and the device: write it as 8xH100$"),
        ("H100x8", "has its count last: write it as 8xH100$"),
        ("2x8xH100,2x8xH200", "is a list: a cluster has equal nodes of one device"),
        ("8x/none/card.json", "the device file /none/card.json cannot be read: there is no such file"),
        ("8xdgx-h10", "nodes with near names: dgx-h100"),
    ],
)
def test_what_cannot_be_a_cluster(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        find_cluster(text)


def test_part_of_a_cluster_is_whole_nodes() -> None:
    cluster = find_cluster("4x8xH100")
    assert cluster.with_devices(2).devices_per_node == 2
    assert cluster.with_devices(24).num_nodes == 3
    with pytest.raises(InputError, match="12 devices are not whole nodes of 8"):
        cluster.with_devices(12)


def test_a_stated_memory_picks_the_sister() -> None:
    assert find_device_by_memory("A100", 40).name == "A100-40GB"
    assert find_device_by_memory("V100", 16).name == "V100-16GB"
    assert find_device_by_memory("A100", 80).name == find_device_by_memory("A100", None).name == "A100-80GB"
    assert find_device_by_memory("H200", 80).name == "H200"
    assert find_device_by_memory("A100 (power limited)", 40).sigma == CLOCK_SIGMA
    # A name that says its socket stays with it.
    assert find_device_by_memory("H100", 96).name == find_device_by_memory("H100-SXM-80GB", 96).name == "H100-SXM-96GB"
    odd = find_device_by_memory("H100-PCIe-80GB", 60)
    assert (odd.name, odd.memory_gib) == ("H100-PCIe", pytest.approx(59.3, abs=0.1))


def test_a_study_s_own_devices() -> None:
    spec = from_cluster(
        Cluster(device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.7, num_nodes=2, devices_per_node=4)
    )
    assert (spec.num_devices, spec.device.name, spec.device.memory_gib) == (8, "H200", 139.7)


def test_a_source_names_its_node() -> None:
    assert find_node("BigScience 176B on Jean Zay", "A100-80GB") == "jean-zay-a100"
    assert find_node("BigScience 1.3B", "V100-16GB") == "jean-zay-v100"
    assert find_node("somewhere", "A100-80GB") is None


def test_a_group_s_share_of_the_ports_is_the_one_measured_at_so_many_nodes() -> None:
    """Checks the bandwidths measured on Jean Zay (135 Gbit/s between two V100 nodes, 55 over sixteen, 42 over four A100
    nodes); another cluster has no such limit.
    """
    sizes = {2: 16.9, 3: 16.9, 16: 6.9, 48: 6.9}
    assert {nodes: find_cluster(f"{nodes}xjean-zay-v100").group_gb_per_s for nodes in sizes} == sizes
    assert find_cluster("48xjean-zay-a100").group_gb_per_s == 5.2
    assert find_cluster("48xdgx-a100").group_gb_per_s == math.inf


def test_a_device_that_nobody_sells_is_taken_with_a_word() -> None:
    assert word_on("8xMI150X") == (
        "MI150X is taken for MI250X: AMD never sold it, and Adastra has MI250X;"
        " a device is one of its two dies, as torch counts them"
    )
    assert word_on("8xMI250X") is None and word_on("4x8xH100") is None


def test_the_datasheet_peak_of_what_a_study_found() -> None:
    h200 = Cluster(device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8)
    assert datasheet_tflops(h200, "bf16") == 989.4
    assert datasheet_tflops(h200, "fp32") == 66.9
    assert datasheet_tflops(Cluster(device_kind="cuda", device="Some GPU", device_memory_gib=9.0), "bf16") is None
    assert (
        datasheet_tflops(Cluster(device_kind="cpu", device="Intel(R) Xeon(R)", device_memory_gib=9.0), "bf16") is None
    )


@pytest.mark.parametrize(
    ("name", "memory_gb"), [("H100 94 GB", None), ("NVIDIA H100 94GB", 94.0), ("H100 NVL", 94.0), ("H100", 94.0)]
)
def test_an_h100_of_94_gb_is_the_nvl(name: str, memory_gb: float | None) -> None:
    assert find_device_by_memory(name, memory_gb).name == "H100-NVL"
