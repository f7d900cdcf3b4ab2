"""A layout carried to another number of devices: the data-parallel degree is filled up, the rest stays."""

from typing import Any

import pytest

from search_spaces.degrees import refilled
from trainers.spec.layout import Layout


def _layout(**values: Any) -> Layout:
    base: dict[str, Any] = {"engine": "fsdp", "zero_stage": 3, "grad_sync": "every"}
    return Layout(**(base | values))


@pytest.mark.parametrize(
    ("values", "num_devices", "replicate", "shard"),
    [
        ({"dp_shard": 8}, 2, 1, 2),
        ({"dp_shard": 2}, 16, 1, 16),
        ({"dp_replicate": 2, "dp_shard": 4}, 16, 4, 4),  # the shards keep their size
        ({"engine": "ddp", "zero_stage": 0, "dp_replicate": 4}, 8, 8, 1),
    ],
)
def test_the_data_parallel_degree_is_filled_up(
    values: dict[str, Any], num_devices: int, replicate: int, shard: int
) -> None:
    filled = refilled(_layout(**values), num_devices)
    assert (filled.dp_replicate, filled.dp_shard) == (replicate, shard)
    assert filled.world_size == num_devices


def test_on_one_device_there_is_nothing_to_sync_between_micro_steps() -> None:
    assert refilled(_layout(dp_shard=4), 1).grad_sync == "last"


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="6 devices are not a multiple of the layout's dp_shard 4"):
        refilled(_layout(dp_replicate=2, dp_shard=4), 6)
