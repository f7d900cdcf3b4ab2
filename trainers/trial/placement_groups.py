"""Removes placement groups that are no longer used; Ray Train may leave one if its controller runs in Tune's process.

Neither Tune nor Train names its groups. Ray keeps groups that an actor made until the job ends, so each process removes
its own groups, and the driver removes the groups of dead processes.
"""

import contextlib
from collections.abc import Callable
from typing import Any, cast

import ray
from ray._private.state import state
from ray._raylet import PlacementGroupID
from ray.core.generated import gcs_pb2
from ray.util.placement_group import PlacementGroup


def remove_own() -> int:
    """Removes the groups that this actor's process made; returns their number."""
    actor_id = ray.get_runtime_context().get_actor_id()
    return 0 if actor_id is None else _remove(lambda group: group.creator_actor_id.hex() == actor_id)


def remove_of_the_dead(job_id: str) -> int:
    """Removes the groups that the job's dead actors made; returns their number."""
    return _remove(
        # Tune's groups have no actor; Ray reports them as made by a dead actor with an id of all ones.
        lambda group: group.creator_actor_dead and set(group.creator_actor_id) != {0xFF} and _is_of(group, job_id)
    )


def remove_all(job_id: str) -> int:
    return _remove(lambda group: _is_of(group, job_id))


def _is_of(group: Any, job_id: str) -> bool:
    """Returns whether the job made the group: the last four bytes of a group's id are the job's id."""
    return group.placement_group_id.hex().endswith(job_id)


def _remove(is_left: Callable[[Any], bool]) -> int:
    # Private API of Ray: the public table does not state a group's creator.
    messages, removed = cast(Any, gcs_pb2).PlacementGroupTableData, 0
    rows: list[bytes] = state._connect_and_get_accessor().get_placement_group_table()  # pyright: ignore[reportPrivateUsage]
    for group in map(messages.FromString, rows):
        if group.state != messages.REMOVED and is_left(group):
            with contextlib.suppress(Exception):
                ray.util.remove_placement_group(PlacementGroup(PlacementGroupID(group.placement_group_id)))
                removed += 1
    return removed
