"""Layouts: combinations that no engine can mean, and identities that last."""

import dataclasses
from typing import Any

import pytest

from trainers.layout import Layout

FSDP = Layout(engine="fsdp", zero_stage=3, dp_shard=4)
ZERO_2 = Layout(engine="deepspeed", zero_stage=2, dp_shard=4, grad_sync="every")


@pytest.mark.parametrize(
    ("layout", "changes", "sentence"),
    [
        (FSDP, {"reshard": 1}, "reshard is a number of ranks, 2 or more, got 1"),
        (FSDP, {"reshard": -1}, "reshard must not be negative, got -1"),
        (FSDP, {"zero_stage": 2, "reshard": 2}, "reshard is an axis of fsdp at stage 3, got reshard 2 with fsdp at"),
        (ZERO_2, {"reshard": 2}, "reshard is an axis of fsdp at stage 3"),
        (ZERO_2, {"prefetch": 1}, "of deepspeed at stage 3, got prefetch 1 with deepspeed at stage 2"),
        (FSDP, {"overlap": "on"}, "overlap is an axis of deepspeed at stages 1 to 3, got overlap on with fsdp"),
        (ZERO_2, {"overlap": "yes"}, "overlap must be one of default, on, off, got 'yes'"),
        (FSDP, {"checkpointing": "budget_60"}, "checkpointing must be one of .*budget_75"),
    ],
)
def test_what_no_engine_can_mean_is_told(layout: Layout, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        dataclasses.replace(layout, **changes)


def test_a_later_field_changes_no_identity_but_its_own() -> None:
    """The hash of a layout that was measured before there were `overlap` and `reshard`."""
    assert Layout(engine="fsdp", zero_stage=3, dp_shard=2).id == "7f70676a251c"
    ids = {FSDP.id, dataclasses.replace(FSDP, reshard=2).id, dataclasses.replace(FSDP, dp_shard=2).id}
    ids |= {ZERO_2.id, dataclasses.replace(ZERO_2, overlap="on").id, dataclasses.replace(ZERO_2, overlap="off").id}
    assert len(ids) == 6


def test_ranks_of_one_data_parallel_coordinate_see_the_same_sequences() -> None:
    """Data-parallel axes are outermost: neighbours share a tensor-parallel group first."""
    layout = Layout(engine="fsdp", zero_stage=3, dp_replicate=2, dp_shard=2, tp=2)
    assert [layout.data_parallel_rank(rank) for rank in range(layout.world_size)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [FSDP.data_parallel_rank(rank) for rank in range(4)] == [0, 1, 2, 3]
