"""A preflight's refusals, from facts of nodes; the disk is a real one that is full."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import trainers.host.node as node
from platform.cluster.nodes import Node, handle_of
from platform.cluster.preflight import check, remarks
from platform.common.errors import ClusterError, InputError
from tests.disks import small_disk

FACTS = node.facts(gpu=False)


def _node(address: str = "10.0.0.1", clock_off_s: float = 0.0, **facts: Any) -> Node:
    return Node(id=address, address=address, num_cpus=1, num_gpus=0, facts={**FACTS, **facts}, clock_off_s=clock_off_s)


def test_this_machine_passes_and_says_what_it_runs(tmp_path: Path) -> None:
    check([_node(), _node("10.0.0.2")], tmp_path)
    check([], tmp_path)
    packages = {"torch", "ray", "deepspeed", "transformers", "torchao", "flash-attn-4", "quack-kernels"}
    assert {"python", *packages, "this project's code"} == FACTS["versions"].keys()


def test_nodes_that_compile_their_libraries_again_and_again_are_told_what_to_do() -> None:
    bare = {"torch": "/opt/site", "transformers": "/opt/site", "ray": "/home/site"}
    (remark,) = remarks([_node(), _node("10.0.0.2", uncompiled=bare)])
    assert remark.startswith("Node 10.0.0.2 has no bytecode of torch, transformers, ray, and Python writes none there")
    assert remark.endswith(": python -m compileall -q -j 0 /opt/site /home/site")
    (two,) = remarks([_node(uncompiled=bare), _node("10.0.0.2", uncompiled=bare)])
    assert two.startswith("Node 10.0.0.1 and 1 more node have no bytecode")
    assert not list(remarks([_node(uncompiled={})]))
    older = {name: value for name, value in FACTS.items() if name != "uncompiled"}  # by a checkout of its own
    assert not list(remarks([dataclasses.replace(_node(), facts=older)]))


def test_system_libraries_in_place_of_torch_s_own_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages, system = tmp_path / "packages", tmp_path / "cuda"
    for folder in (packages / "torch", packages / "nvidia/cudnn/lib", system):
        folder.mkdir(parents=True)
    for path in (packages / "torch/__init__.py", packages / "nvidia/cudnn/lib/libcudnn.so.9", system / "libcudnn.so.9"):
        path.touch()
    (system / "libcuda.so.1").touch()  # the driver's, which torch does not bring
    monkeypatch.setattr(
        node.importlib.util, "find_spec", lambda _: SimpleNamespace(origin=packages / "torch/__init__.py")
    )
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{packages}/nvidia/cudnn/lib:{system}:")
    assert node.replaced_libraries() == [str(system / "libcudnn.so.9")]
    monkeypatch.setenv("LD_LIBRARY_PATH", str(packages / "nvidia/cudnn/lib"))
    assert node.replaced_libraries() == []

    (remark,) = remarks(
        [_node(), _node("10.0.0.2", replaced_libraries=["/cuda/libcudnn.so.9", "/cuda/libcublas.so.13"])]
    )
    assert remark.startswith("Node 10.0.0.2 loads /cuda/libcudnn.so.9 and 1 more file by LD_LIBRARY_PATH in place of")


def test_the_odd_one_of_three_nodes_is_named_with_both_versions(tmp_path: Path) -> None:
    odd = _node("10.0.0.2", versions={**FACTS["versions"], "transformers": "4.1"})
    with pytest.raises(ClusterError, match=r"^node 10.0.0.2 has transformers 4.1, node 10.0.0.1 has 5"):
        check([_node(), odd, _node("10.0.0.3")], tmp_path)
    with pytest.raises(ClusterError, match=r"^node 10.0.0.2 has transformers 4.1"):
        check([odd, _node()], tmp_path)  # one against one: the driver's own counts


@pytest.mark.parametrize(
    ("holder", "expected"),
    [
        ({"gpu": 3, "pid": 4711, "name": "python", "gib": 12.34}, r"by process 4711 \(python, 12.3 GiB\)"),
        ({"gpu": 3, "pid": 4711, "name": "unseen from here", "gib": None}, r"by process 4711 \(unseen from here\)"),
        ({"gpu": 3, "pid": None, "name": "", "gib": 80.0}, r"by a process that NVML does not name \(80.0 GiB"),
    ],
)
def test_a_gpu_that_is_held_is_named_with_its_holder(tmp_path: Path, holder: dict[str, Any], expected: str) -> None:
    with pytest.raises(ClusterError, match=f"^GPU 3 of node 10.0.0.1 is held {expected}.*end it"):
        check([_node(held=[holder])], tmp_path)


@pytest.mark.parametrize(("off_s", "expected"), [(12.0, "12.0 s ahead of"), (-5.0, "5.0 s behind")])
def test_a_clock_that_is_off_is_named(tmp_path: Path, off_s: float, expected: str) -> None:
    check([_node(clock_off_s=1.0)], tmp_path)
    with pytest.raises(ClusterError, match=f"the clock of node 10.0.0.2 is at least {expected} the driver's"):
        check([_node(), _node("10.0.0.2", off_s)], tmp_path)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """Yields a folder on a disk of 1 MiB."""
    with small_disk(tmp_path / "full", 1) as folder:
        yield folder


def test_a_full_disk_is_named_also_where_the_study_s_folder_is_not_made_yet(full: Path, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"the disk under .*/full/studies/a of this machine has 1 MiB left"):
        check([_node()], full / "studies" / "a")
    with pytest.raises(ClusterError, match=r"the disk under .*/full of node 10.0.0.1 has 1 MiB left"):
        check([_node(temp=str(full), temp_free_mib=node.free_mib(full))], tmp_path)


def test_what_is_left_of_a_cluster_takes_its_workers_on_fewer_cores() -> None:
    two = [_node(), _node("10.0.0.2")]
    assert handle_of(two, cpu_workers=2, driver_ip="10.0.0.1").cpus_per_worker == 0.9
    handle = handle_of(two[:1], cpu_workers=2, driver_ip="10.0.0.1", left_out=True)
    assert (handle.cpus_per_worker, handle.cluster.num_devices, handle.left_out) == (0.4, 2, True)
    gpus = [dataclasses.replace(gpu_node, num_gpus=4, facts={**FACTS, "capability": (9, 0)}) for gpu_node in two]
    assert handle_of(gpus, cpu_workers=2, driver_ip="10.0.0.1").cluster.num_nodes == 2


@pytest.mark.parametrize(
    ("cpus", "num_workers", "share"),
    [
        ((2.0,), 2, 0.9),
        ((8.0,), 2, 1.0),
        ((1.0, 1.0, 1.0, 1.0), 4, 0.9),
        ((1.0, 1.0, 1.0), 4, 0.45),  # 0.7 each would be less than there is, and fit three workers only
        ((4.0, 1.0), 4, 0.97),
        ((0.0,), 2, 0.1),
    ],
)
def test_all_workers_without_gpus_fit_on_whole_nodes(cpus: tuple[float, ...], num_workers: int, share: float) -> None:
    nodes = [dataclasses.replace(_node(), num_cpus=num_cpus) for num_cpus in cpus]
    assert handle_of(nodes, cpu_workers=num_workers, driver_ip="10.0.0.1").cpus_per_worker == share


def test_unlike_gpus_are_refused_by_name() -> None:
    def gpus(number: int = 4, **facts: Any) -> Node:
        return dataclasses.replace(_node(), num_gpus=number, facts={**FACTS, "capability": (9, 0), **facts})

    def refused(*nodes: Node) -> str:
        with pytest.raises(InputError) as error:
            handle_of(nodes, cpu_workers=2, driver_ip="10.0.0.1")
        return str(error.value)

    h200, v100 = gpus(device="NVIDIA H200", memory_gib=140.4), gpus(device="Tesla V100", memory_gib=15.8)
    kinds = "the cluster mixes GPU types (NVIDIA H200 of 140.4 GiB and Tesla V100 of 15.8 GiB): one study measures one"
    assert refused(h200, v100).startswith(kinds)
    assert "(NVIDIA H200 and Tesla V100 in one node)" in refused(gpus(mixed=["NVIDIA H200", "Tesla V100"]))
    assert "unlike numbers of GPUs (4 and 8)" in refused(gpus(4), gpus(8))
