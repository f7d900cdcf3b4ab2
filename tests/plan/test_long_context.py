"""Long sequences as spaces: an 8B at 32k and 131k, cut by gathered keys or by exchanged heads, planned for 8 to 64
devices.
"""

import functools
from typing import Any, get_args

import numpy as np
import pytest

import search_spaces
from platform.cost_model.degrees import blocks_s
from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.predict import predict
from platform.plan.points import PlanPoints, points_of
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import CpExchange

SPACES = ("llama3_8b_32k", "llama3_8b_131k")
CLUSTERS = ("8xH100", "2x8xH100", "8x8xH100")


@functools.cache
def _points(name: str, cluster: str) -> PlanPoints:
    space = search_spaces.load(name)
    return points_of(space, space.recipe, find_cluster(cluster))


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("name", SPACES)
def test_both_exchanges_are_planned_and_some_layout_fits(name: str, cluster: str) -> None:
    points = _points(name, cluster)
    of_exchange = {layout.cp_exchange for layout in points.layouts if layout.cp > 1}
    assert of_exchange == {"gather", "all_to_all"}
    assert {layout.cp_exchange for layout in points.layouts if layout.cp == 1} == {"gather"}
    assert predict(points.columns(find_cluster(cluster))).fits.any()


def _exchange_s(layout: Layout, cluster: str = "8x8xH100") -> float:
    recipe = search_spaces.load("llama3_8b_131k").recipe
    columns = from_points([(recipe, layout, BatchPoint.of(recipe, layout, 1))], find_cluster(cluster))
    seconds = dict(blocks_s(columns, columns.tokens, np.zeros(1, bool)))["cp"]
    return float(np.asarray(seconds).item())


def test_gathered_keys_take_longer_with_each_rank_and_exchanged_heads_less() -> None:
    """Checks bytes by what a rank receives of one sequence: of the keys and values of all tokens all but its own, or
    its share of queries, keys, values and outputs of all but its own tokens, which is less with more ranks.
    """
    settings: dict[str, Any] = {"engine": "fsdp", "zero_stage": 3, "attention": "sdpa"}
    seconds = {
        (exchange, cp): _exchange_s(Layout(**settings, cp=cp, cp_exchange=exchange))
        for exchange in get_args(CpExchange)
        for cp in (2, 4, 8)
    }
    assert seconds["gather", 2] < seconds["gather", 4] < seconds["gather", 8]
    assert seconds["all_to_all", 2] > seconds["all_to_all", 4] > seconds["all_to_all", 8]
    model = search_spaces.load("llama3_8b_131k").recipe.model
    kv, out = 2 * model.num_kv_heads * model.head_dim, model.attention_width
    for cp in (2, 4, 8):
        gathered, exchanged = kv * (cp - 1) / cp, (kv + 2 * out) * (cp - 1) / cp / cp
        ratio = seconds["all_to_all", cp] / seconds["gather", cp]
        assert ratio == pytest.approx(exchanged / gathered, rel=0.2), cp


def test_a_rank_attends_to_whole_sequences_without_a_mask_where_heads_are_exchanged() -> None:
    """Checks that sdpa has its fast causal kernel there, which a part of the queries has not."""
    recipe = search_spaces.load("llama3_8b_32k").recipe
    layouts = [
        Layout(engine="fsdp", zero_stage=3, attention="sdpa", cp=8, cp_exchange=exchange)
        for exchange in get_args(CpExchange)
    ]
    points = [(recipe, layout, BatchPoint.of(recipe, layout, 1)) for layout in layouts]
    gathered, exchanged = from_points(points, find_cluster("8xH100")).flash.tolist()
    uncut = Layout(engine="fsdp", zero_stage=3, attention="sdpa", dp_shard=8)
    assert gathered < exchanged
    assert exchanged == from_points([(recipe, uncut, BatchPoint.of(recipe, uncut, 1))], find_cluster("8xH100")).flash
