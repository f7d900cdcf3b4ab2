"""The mesh numbers ranks as `Layout.coordinates` does, and its groups hold the ranks along the axes asked for."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.contract.group import run_group
from trainers.distributed.groups import Mesh
from trainers.spec.layout import Layout
from trainers.spec.placement import placement_refusal

LAYOUTS = {
    "all axes but replicas": Layout(engine="fsdp", zero_stage=3, dp_shard=1, pp=2, cp=2, tp=2),
    "hybrid": Layout(engine="fsdp", zero_stage=3, dp_replicate=2, dp_shard=2, tp=2),
    "hybrid with cp": Layout(engine="fsdp", zero_stage=3, dp_replicate=2, dp_shard=2, cp=2),
}


def _members(layouts: dict[str, Layout]) -> dict[str, list[Any]]:
    """Returns what every rank sees of its groups: their ranks, the mesh of shards, and a sum over dp_shard and cp."""
    members: dict[str, list[Any]] = {}
    for name, layout in layouts.items():
        mesh = Mesh(layout, "cpu")
        groups = {
            axes: dist.get_process_group_ranks(mesh.group(*axes))
            for axes in (("pp",), ("dp_replicate",), ("dp_shard", "cp"), ("cp",), ("tp",))
        }
        total = torch.tensor(float(dist.get_rank()))
        dist.all_reduce(total, group=mesh.group("dp_shard", "cp"))
        shards = mesh.shards()
        mine = {"groups": groups, "total": total.item(), "shards": shards.mesh.tolist(), "names": shards.mesh_dim_names}
        members[name] = [None] * dist.get_world_size()
        dist.all_gather_object(members[name], mine)
    return members


@pytest.fixture(scope="module")
def members() -> dict[str, list[Any]]:
    return run_group(_members, LAYOUTS, 8)


@pytest.mark.contract
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_group_holds_the_ranks_that_differ_along_its_axes_alone(name: str, members: dict[str, list[Any]]) -> None:
    layout = LAYOUTS[name]
    for rank, mine in enumerate(members[name]):
        coordinates = layout.coordinates(rank)
        for axes, ranks in mine["groups"].items():
            expected = [
                other
                for other in range(8)
                if all(layout.coordinates(other)[axis] == coordinates[axis] for axis in coordinates if axis not in axes)
            ]
            assert ranks == expected
        assert mine["total"] == sum(mine["groups"]["dp_shard", "cp"])


@pytest.mark.contract
def test_the_mesh_of_shards_takes_in_context_parallel_ranks(members: dict[str, list[Any]]) -> None:
    assert members["all axes but replicas"][5]["shards"] == [5, 7]
    assert members["hybrid"][3]["shards"] == [[1, 3], [5, 7]]
    assert members["hybrid with cp"][3]["shards"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert members["hybrid"][3]["names"] == ("dp_replicate", "dp_shard")


TP_2 = Layout(engine="fsdp", zero_stage=3, dp_shard=2, tp=2)
CP_2_TP_2 = Layout(engine="fsdp", zero_stage=3, dp_shard=2, cp=2, tp=2)
TP_4 = Layout(engine="fsdp", zero_stage=3, dp_shard=2, tp=4)
STAGES = Layout(engine="fsdp", zero_stage=3, pp=2, tp=2)


@pytest.mark.parametrize(
    ("layout", "nodes", "sentence"),
    [
        (TP_2, "aabb", None),
        (TP_2, "abab", "a group of tp 2 stands on 2 nodes of 2 workers each"),
        (TP_2, "aaab", "got 1, 3 on 2 nodes"),
        (CP_2_TP_2, "aaaabbbb", None),
        (CP_2_TP_2, "aabbccdd", None),  # cp over nodes, tp within them
        (CP_2_TP_2, "abcdabcd", "tp 2 stands on 2 nodes of 2 workers each, and needs 1: ranks are not numbered"),
        (TP_4, "aabbccdd", None),  # asked for
        (TP_4, "abcdabcd", "a group of tp 4 stands on 4 nodes of 2 workers each, and needs 2"),
        (STAGES, "aabb", None),
        (Layout(engine="fsdp", zero_stage=3, dp_shard=4), "aaab", None),
    ],
)
def test_groups_of_tp_stand_on_few_nodes(layout: Layout, nodes: Sequence[str], sentence: str | None) -> None:
    refusal = placement_refusal(layout, nodes)
    assert refusal is None if sentence is None else refusal is not None and sentence in refusal
