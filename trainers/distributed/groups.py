"""The process groups of a layout's mesh: one for each requested set of axes, made at the first request."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from trainers.spec.layout import Layout
from trainers.spec.layout_axes import AXES


class Mesh:
    """Places this rank in the default process group, whose ranks a layout's axes number (`AXES`). All ranks must
    request the same groups in the same order, because creating a group is a collective of all of them.
    """

    def __init__(self, layout: Layout, device_type: str) -> None:
        self._layout = layout
        self._device_type = device_type
        self._groups: dict[tuple[str, ...], Any] = {}

    @functools.cached_property
    def coordinates(self) -> dict[str, int]:
        return self._layout.coordinates(dist.get_rank())

    def size(self, *axes: str) -> int:
        return math.prod(getattr(self._layout, axis) for axis in axes)

    def group(self, *axes: str) -> Any:
        """Returns the process group of the ranks whose coordinates differ from this rank's along `axes` only."""
        key = tuple(axis for axis in AXES if axis in axes)
        if key not in self._groups:
            self._groups[key] = self._make_group(key)
        return self._groups[key]

    def shards(self) -> DeviceMesh:
        """Returns FSDP2's mesh: ("dp_replicate", "dp_shard") or ("dp_shard",); its last axis includes `cp`, because
        context-parallel ranks hold the same weights and different tokens, as data-parallel ranks do.
        """
        return self._shards_of(self.group("dp_shard", "cp"), torch.tensor(self._ranks("dp_shard", "cp")))

    def expert_group(self) -> Any:
        """Returns the process group of `ep` neighbours in a shard group, which share out experts."""
        return self._within_shards("ep", lambda ranks: ranks.view(-1, self.size("ep")))

    def expert_shards(self) -> DeviceMesh:
        """Returns FSDP2's mesh for experts: like `shards`, over the ranks that have the same experts as this one."""
        size = self.size("ep")
        group = self._within_shards("dp_shard of experts", lambda ranks: ranks.view(-1, size).T)
        ranks = torch.tensor(self._ranks("dp_shard", "cp"))
        return self._shards_of(group, ranks[ranks.tolist().index(dist.get_rank()) % size :: size])

    def _shards_of(self, group: Any, ranks: torch.Tensor) -> DeviceMesh:
        """Returns FSDP2's mesh with shards on the `ranks` of `group`, and on as many in each replica."""
        if self.size("dp_replicate") == 1:
            return DeviceMesh.from_group(group, self._device_type, mesh_dim_names=("dp_shard",))
        replicas = torch.tensor(self._ranks("dp_replicate"))
        return DeviceMesh.from_group(
            [self.group("dp_replicate"), group],
            self._device_type,
            mesh=replicas[:, None] + (ranks - dist.get_rank()),
            mesh_dim_names=("dp_replicate", "dp_shard"),
        )

    def _within_shards(self, name: str, divide: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        """Returns this rank's process group `name`; `divide` arranges the ranks of a shard group as rows, one per new
        group.
        """
        key = (name,)
        if key not in self._groups:
            rows = [divide(torch.tensor(ranks)).tolist() for ranks in self._by_place(("dp_shard", "cp"))]
            self._groups[key] = self._new_group([row for group_rows in rows for row in group_rows], name)
        return self._groups[key]

    def _make_group(self, axes: tuple[str, ...]) -> Any:
        return self._new_group(self._by_place(axes), "+".join(axes))

    def _by_place(self, axes: tuple[str, ...]) -> list[list[int]]:
        """Returns the ranks of each group along `axes`."""
        by_place: dict[tuple[int, ...], list[int]] = {}
        for rank in range(dist.get_world_size()):
            coordinates = self._layout.coordinates(rank)
            by_place.setdefault(tuple(coordinates[axis] for axis in AXES if axis not in axes), []).append(rank)
        return list(by_place.values())

    @staticmethod
    def _new_group(ranks: list[list[int]], name: str) -> Any:
        if len(ranks) == 1:
            return dist.group.WORLD
        # A profiler's trace of a GPU shows this description with each collective of the group.
        own_group, _ = dist.new_subgroups_by_enumeration(ranks, group_desc=name)
        return own_group

    def _ranks(self, *axes: str) -> list[int]:
        """Returns the ranks whose coordinates differ from this rank's along `axes` only, in order."""
        coordinates = self.coordinates
        spans = (range(getattr(self._layout, axis)) if axis in axes else (coordinates[axis],) for axis in AXES)
        strides = [math.prod(getattr(self._layout, inner) for inner in AXES[i + 1 :]) for i in range(len(AXES))]
        return [sum(map(int.__mul__, place, strides)) for place in itertools.product(*spans)]
