"""Adapters beside a frozen model: its states are its weights, and its steps have no gradients of weights."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from platform.cost_model.adapters import (
    BACKWARD_LAUNCHES,
    COMPILED_LAUNCH_S,
    LAUNCH_S,
    LAUNCHES,
    TENSOR_S,
    host_s,
)
from platform.cost_model.columns import Columns
from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.memory import lower_bound, peak_parts
from platform.cost_model.predict import Prediction, predict
from search_spaces import load
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

LORA = load("qwen3_8b_lora").recipe
FULL = dataclasses.replace(LORA, adapter="none")
FAST: dict[str, Any] = {"attention": "sdpa", "compile": "block", "loss": "chunked"}
DDP = Layout(engine="ddp", **FAST)
SHARDED = Layout(engine="fsdp", zero_stage=3, dp_shard=8, **FAST)
BATCH = BatchPoint(micro_batch=1, grad_accum=8)


def predicted(recipe: Recipe, layout: Layout) -> Prediction:
    return predict(from_points([(recipe, layout, BATCH)], find_cluster("8xH200")))


@pytest.mark.parametrize(("layout", "ranks"), [(DDP, 1), (SHARDED, 8)])
def test_states_are_frozen_weights_in_two_bytes_and_adapters_in_twelve(layout: Layout, ranks: int) -> None:
    parts = peak_parts(from_points([(LORA, layout, BATCH)], find_cluster("8xH200")))
    weights, adapters = 2 * LORA.model.num_parameters, LORA.trained_parameters
    assert adapters == 43_646_976
    assert float(parts.states[0]) == pytest.approx((weights + 12 * adapters) / ranks / 2**30)
    assert float(parts.gradients[0]) <= 4 * adapters / 2**30
    floor = lower_bound(LORA, layout, BATCH)
    assert floor.states_gib == pytest.approx(weights / ranks / 2**30)
    assert floor.gradients_gib == 0


def test_adapters_take_the_host_by_whether_blocks_are_compiled() -> None:
    layouts = [DDP, dataclasses.replace(DDP, compile="none")]
    columns = from_points([(LORA, layout, BATCH) for layout in layouts], find_cluster("8xH200"))
    layers = 7  # query, key, value, output, gate, up and down
    forward, backward = host_s(columns)
    assert forward == pytest.approx(
        [layers * (LAUNCHES["compiled"] * COMPILED_LAUNCH_S + 2 * TENSOR_S), layers * LAUNCHES["eager"] * LAUNCH_S]
    )
    assert backward[0] == pytest.approx(layers * BACKWARD_LAUNCHES["compiled"] * COMPILED_LAUNCH_S)
    single = from_points([(LORA, DDP, BATCH)], find_cluster("8xH200"))
    assert np.shape(host_s(Columns.of({**single.arrays(), "fused": np.empty(0)}))[0]) == (0,)


def test_a_micro_batch_of_one_waits_for_the_host_longer_the_more_is_launched() -> None:
    selective = dataclasses.replace(DDP, checkpointing="selective")
    quantised = dataclasses.replace(LORA, adapter="qlora_16")
    few = dataclasses.replace(LORA, lora_targets="q_proj+v_proj")
    points = ((few, DDP), (LORA, DDP), (LORA, selective), (quantised, selective))
    waits = [float(predicted(recipe, layout).step.host_s[0]) for recipe, layout in points]
    assert waits == sorted(waits) and len(set(waits)) == 4


@pytest.mark.parametrize("layout", [SHARDED, dataclasses.replace(SHARDED, zero_stage=2, checkpointing="full")])
def test_a_step_takes_about_as_much_less_time_as_it_has_fewer_flops(layout: Layout) -> None:
    points = [(recipe, layout, BatchPoint(micro_batch=4, grad_accum=2)) for recipe in (LORA, FULL)]  # the device's pace
    times = predict(from_points(points, find_cluster("8xH200"))).step.total_s
    flops = [recipe.flops_per_token(keys_per_query=1024) for recipe in (LORA, FULL)]
    assert flops[0] / flops[1] == pytest.approx(0.70, abs=0.02)
    assert 0.9 * flops[0] / flops[1] < times[0] / times[1] < 1


def test_one_device_holds_adapters_beside_a_model_whose_states_it_does_not() -> None:
    assert predicted(FULL, DDP).fit_probability[0] < 0.5 < 0.99 < predicted(LORA, DDP).fit_probability[0]


def test_weights_in_nf4_take_half_a_byte_and_the_time_to_dequantise_them() -> None:
    quantised = dataclasses.replace(LORA, adapter="qlora_16")
    linear = sum(outputs * inputs for outputs, inputs in quantised.quantised_layers.values()) * 36
    assert linear == 6_945_767_424
    for layout, ranks in ((DDP, 1), (SHARDED, 8)):
        of_weights, of_lora = (predicted(recipe, layout) for recipe in (quantised, LORA))
        parts = peak_parts(from_points([(quantised, layout, BATCH)], find_cluster("8xH200")))
        stored = linear * (0.5 + 1 / 64 + 2 / (64 * 256)) + 2 * (LORA.model.num_parameters - linear)
        stored += 12 * LORA.trained_parameters
        assert float(parts.states[0]) == pytest.approx(stored / ranks / 2**30, rel=1e-5)
        assert lower_bound(quantised, layout, BATCH).total_gib <= of_weights.memory.allocated_gib[0]
        assert of_weights.memory.needed_gib[0] < of_lora.memory.needed_gib[0]
    assert 1 < predicted(quantised, DDP).step.total_s[0] / predicted(LORA, DDP).step.total_s[0] < 1.3


def test_a_small_step_needs_the_memory_in_which_weights_are_drawn() -> None:
    small = dataclasses.replace(LORA, adapter="qlora_16", seq_len=64, global_batch=1)
    layout = dataclasses.replace(DDP, checkpointing="full")
    columns = from_points([(small, layout, BatchPoint(micro_batch=1, grad_accum=1))], find_cluster("1xH200"))
    prediction = predict(columns)
    head = 4 * small.model.vocab_size * small.model.hidden_size / 2**30
    states = float(peak_parts(columns).states[0])
    assert prediction.memory.allocated_gib[0] < states + head < prediction.memory.needed_gib[0]


def test_a_larger_rank_takes_more_memory_and_time() -> None:
    larger = dataclasses.replace(LORA, adapter="lora_256")
    for layout in (DDP, SHARDED):
        small, large = (predicted(recipe, layout) for recipe in (LORA, larger))
        assert small.step.total_s[0] < large.step.total_s[0]
        assert small.memory.needed_gib[0] < large.memory.needed_gib[0]


def test_fewer_layers_take_less_time() -> None:
    few = dataclasses.replace(LORA, lora_targets="q_proj+v_proj")
    assert predicted(few, DDP).step.total_s[0] < predicted(LORA, DDP).step.total_s[0]
