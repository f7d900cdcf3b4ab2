"""Hosts that wait for their devices after each pass, and for each other at each collective."""

import dataclasses
from typing import Literal

import numpy as np
import pytest

from platform.cost_model.columns import Columns
from platform.cost_model.host import host_layer_s, together_s
from platform.cost_model.layer_time import layer_seconds
from platform.cost_model.predict import under_the_host_s
from platform.cost_model.step_time import step_time
from tests.cost_model.points import GPT2, point
from trainers.spec.layout import Layout

NARROW = dataclasses.replace(GPT2, hidden_size=2048, num_heads=16, num_kv_heads=16, ffn_size=8192)


def _columns(*, tp: int = 1, micro_batch: int = 2, **values: float) -> Columns:
    columns = point(
        Layout(engine="ddp", tp=tp), cluster=f"{tp}xA100", model=NARROW, micro_batch=micro_batch, seq_len=1024
    )
    hosts = {"block_host": 2e-3, "block_host_backward": 2e-3, **values}
    return Columns.of({**columns.arrays(), **{name: np.array([value]) for name, value in hosts.items()}})


def _host_s(columns: Columns) -> float:
    return float(step_time(columns).host_s[0])


def test_a_host_that_waits_after_each_pass_gains_nothing_from_a_longer_backward_pass() -> None:
    """Checks a block whose forward pass is its host's and whose backward pass is its device's: the backlog of the one
    cannot hide the host's time of the other.
    """
    free, waiting = _columns(), _columns(waits_each_pass=1.0)
    layer = layer_seconds(waiting)
    by_hand = [float((together_s(np.asarray(2e-3), device) - device)[0]) for device in (layer.forward, layer.backward)]
    assert by_hand[0] > by_hand[1]
    assert _host_s(waiting) == pytest.approx(NARROW.num_layers * sum(by_hand))
    assert _host_s(free) < 0.5 * _host_s(waiting)


def test_a_host_that_waits_costs_no_more_where_each_pass_is_its_own() -> None:
    """Checks both ends, where host or device set the pace in each pass: waiting costs next to nothing."""
    for host_s, micro_batch in ((2e-2, 1), (1e-5, 8)):
        free, waiting = (
            _columns(micro_batch=micro_batch, waits_each_pass=value, block_host=host_s, block_host_backward=host_s)
            for value in (0.0, 1.0)
        )
        assert float(step_time(waiting).total_s[0]) == pytest.approx(float(step_time(free).total_s[0]), rel=0.02)


def test_a_softer_pace_waits_longer_where_host_and_device_need_as_long() -> None:
    hard, soft = (_columns(tp=4, micro_batch=8, waits_each_pass=1.0, sharpness=order) for order in (4.0, 2.5))
    assert _host_s(soft) > 1.5 * _host_s(hard)
    # A host that is twice as slow costs more of the step, whose deviation follows.
    assert float(under_the_host_s(soft, step_time(soft))[0]) > float(under_the_host_s(hard, step_time(hard))[0])


def test_a_replayed_micro_step_waits_for_no_host() -> None:
    """Checks that no block's launches count where CUDA graphs are replayed, however many blocks there are."""
    cases: tuple[tuple[Literal["off", "on"], int], ...] = (("off", 24), ("on", 24), ("on", 48))
    launched, replayed, deeper = (
        point(
            Layout(engine="ddp", attention="sdpa", compile="block", cuda_graphs=graphs),
            cluster="1xA100",
            model=dataclasses.replace(NARROW, num_layers=layers),
            micro_batch=1,
            seq_len=128,
        )
        for graphs, layers in cases
    )
    assert [host_layer_.tolist() for host_layer_ in host_layer_s(replayed)] == [[0.0]] * 3
    assert _host_s(launched) > 24 * sum(float(host_layer_[0]) for host_layer_ in host_layer_s(launched)[:2]) / 2
    assert _host_s(replayed) == _host_s(deeper) == 0
