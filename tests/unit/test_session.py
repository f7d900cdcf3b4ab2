"""What a session refuses and decides before anything runs."""

# pyright: reportPrivateUsage=false

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest

import platform.session as session  # pyright takes `from platform import` for the standard module
import search_spaces
from platform.errors import InputError
from platform.study.history import History
from tests.samples import header
from trainers.cluster import Cluster

ONE_NODE = Cluster(device_kind="cuda", device="NVIDIA H200", device_memory_gib=139.8, devices_per_node=8)
TWO_NODES = dataclasses.replace(ONE_NODE, num_nodes=2, devices_per_node=4)


def test_a_study_is_not_resumed_on_as_many_devices_laid_out_otherwise() -> None:
    history = History([header("made-up", at="2026-01-01T00:00:00+00:00", cluster=ONE_NODE)])
    session._check_same(history, cast(Any, SimpleNamespace(cluster=ONE_NODE)))
    with pytest.raises(InputError, match="start a new study"):
        session._check_same(history, cast(Any, SimpleNamespace(cluster=TWO_NODES)))


def test_workers_without_gpus_are_those_of_the_miniature() -> None:
    space = dataclasses.replace(search_spaces.load("bloom7b"), num_workers=8)
    assert session._cpu_workers(cast(Any, SimpleNamespace(space=space))) == 2
