"""The process groups of a layout's mesh: one for any set of axes, made when it is first asked for."""

import functools
import itertools
import math
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from trainers.spec.layout import Layout
from trainers.spec.layout_axes import AXES


class Mesh:
    """Places this rank among those of the default process group, which the axes of a layout number (`AXES`).

    All ranks ask for the same groups in the same order: making one is a collective of all of them.
    """

    def __init__(self, layout: Layout, device_type: str) -> None:
        self._layout = layout
        self._device_type = device_type
        self._groups: dict[tuple[str, ...], Any] = {}

    @functools.cached_property
    def coordinates(self) -> dict[str, int]:
        """Returns this rank's coordinate on each axis."""
        return self._layout.coordinates(dist.get_rank())

    def size(self, *axes: str) -> int:
        """Returns the number of ranks along these axes together."""
        return math.prod(getattr(self._layout, axis) for axis in axes)

    def group(self, *axes: str) -> Any:
        """Returns the process group of the ranks that differ from this one along `axes` alone, or of this one."""
        key = tuple(axis for axis in AXES if axis in axes)
        if key not in self._groups:
            self._groups[key] = self._make_group(key)
        return self._groups[key]

    def shards(self) -> DeviceMesh:
        """Returns the mesh of FSDP2: ("dp_replicate", "dp_shard") or ("dp_shard",), whose last axis takes in `cp`.

        Ranks of one context-parallel group hold the same weights and different tokens, as data-parallel ranks do.
        """
        shard = self.group("dp_shard", "cp")
        if self.size("dp_replicate") == 1:
            return DeviceMesh.from_group(shard, self._device_type, mesh_dim_names=("dp_shard",))
        ranks = self._ranks("dp_replicate", "dp_shard", "cp")
        return DeviceMesh.from_group(
            [self.group("dp_replicate"), shard],
            self._device_type,
            mesh=torch.tensor(ranks).view(self.size("dp_replicate"), -1),
            mesh_dim_names=("dp_replicate", "dp_shard"),
        )

    def _make_group(self, axes: tuple[str, ...]) -> Any:
        if self.size(*axes) == dist.get_world_size():
            return dist.group.WORLD
        by_place: dict[tuple[int, ...], list[int]] = {}
        for rank in range(dist.get_world_size()):
            coordinates = self._layout.coordinates(rank)
            by_place.setdefault(tuple(coordinates[axis] for axis in AXES if axis not in axes), []).append(rank)
        # A profiler's trace of a GPU shows this description with each collective of the group.
        own_group, _ = dist.new_subgroups_by_enumeration(list(by_place.values()), group_desc="+".join(axes))
        return own_group

    def _ranks(self, *axes: str) -> list[int]:
        """Returns the ranks that differ from this one along `axes` alone, in their order."""
        coordinates = self.coordinates
        spans = (range(getattr(self._layout, axis)) if axis in axes else (coordinates[axis],) for axis in AXES)
        strides = [math.prod(getattr(self._layout, inner) for inner in AXES[i + 1 :]) for i in range(len(AXES))]
        return [sum(map(int.__mul__, place, strides)) for place in itertools.product(*spans)]
