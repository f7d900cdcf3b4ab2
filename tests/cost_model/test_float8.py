"""Predictions of FP8 recipes beside bf16's."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from platform.cost_model.columns import Array, Columns
from platform.cost_model.compute import weight_casts_s
from platform.cost_model.engines.ddp import Ddp
from platform.cost_model.engines.fsdp import Fsdp
from platform.cost_model.features import from_points
from platform.cost_model.hardware import BANDWIDTH_SHARE, find_cluster, with_network
from platform.cost_model.lower_bound import lower_bound
from platform.cost_model.predict import predict
from search_spaces import load
from trainers.models import float8
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

BF16 = load("bloom7b").recipe
COMPILED = Layout(engine="fsdp", zero_stage=3, dp_shard=8, attention="flex", loss="chunked", compile="block")
EAGER = dataclasses.replace(COMPILED, compile="none")


def _seconds(precision: Any, layout: Layout, cluster: str = "8xH200") -> float:
    recipe = dataclasses.replace(BF16, compute_precision=precision)
    rows = from_points([(recipe, layout, BatchPoint.of(recipe, layout, 4))], find_cluster(cluster))
    return float(predict(rows).step.total_s[0])


@pytest.mark.parametrize("precision", ["fp8_tensorwise", "fp8_rowwise"])
def test_compiled_fp8_is_predicted_faster_than_bf16_and_uncompiled_slower_than_compiled(precision: str) -> None:
    bf16, compiled, eager = _seconds("bf16", COMPILED), _seconds(precision, COMPILED), _seconds(precision, EAGER)
    assert 1.1 < bf16 / compiled < 1.8, "8 B are published 10 to 25 % faster, of products that are half as long"
    assert eager / compiled > _seconds("bf16", EAGER) / bf16, "what compiling saves is more with casts"


def test_attention_and_head_stay_at_the_rate_of_bf16() -> None:
    in_float8 = dataclasses.replace(BF16, compute_precision="fp8_tensorwise")
    batch = BatchPoint.of(BF16, COMPILED, 4)
    row, plain = (from_points([(recipe, COMPILED, batch)], find_cluster("8xH200")) for recipe in (in_float8, BF16))
    assert row.flash_flops == pytest.approx(plain.flash_flops)
    assert row.matmul_flops / row.head_slowdown == pytest.approx(plain.matmul_flops)
    assert row.matmul_flops / plain.matmul_flops == pytest.approx(2 * 0.9, rel=0.01)


@pytest.mark.parametrize(("precision", "gathered"), [("fp8_tensorwise", 1.0), ("fp8_rowwise", 2.0), ("bf16", 2.0)])
def test_fsdp_gathers_a_byte_of_a_weight_with_a_scale_for_each_tensor_and_two_of_others(
    precision: Any, gathered: float
) -> None:
    recipe = dataclasses.replace(BF16, compute_precision=precision)
    stays_gathered = dataclasses.replace(COMPILED, zero_stage=2, checkpointing="selective")  # blocks stay gathered
    row, plain = (
        from_points(
            [(compared_recipe, stays_gathered, BatchPoint.of(compared_recipe, stays_gathered, 4))],
            find_cluster("8xH200"),
        )
        for compared_recipe in (recipe, BF16)
    )
    assert row.gathered_bytes == gathered
    weights = BF16.model.num_layers * BF16.model.parameters_per_layer
    (more,), (bf16,) = (list(Fsdp().copies(columns, [(np.zeros(1), np.zeros(1))])) for columns in (row, plain))
    assert bf16.at_loss - more.at_loss == pytest.approx(weights * (2.0 - gathered))


def _communication_s(precision: Any) -> float:
    """Returns the data-parallel seconds of a step over a network too slow for computation to hide them."""
    recipe = dataclasses.replace(BF16, compute_precision=precision)
    layout = dataclasses.replace(COMPILED, dp_shard=64, grad_sync="every")
    rows = from_points(
        [(recipe, layout, BatchPoint.of(recipe, layout, 1))], with_network(find_cluster("8x8xH200"), 0.01)
    )
    return float(np.ravel(predict(rows).step.data_s)[0])


def test_over_a_slow_network_two_gathers_of_a_byte_and_a_reduction_take_less_time() -> None:
    """Checks that FP8 gathers save two of 2 x 2 + 4 bytes (two gathers in bf16, a reduction in fp32)."""
    assert _communication_s("fp8_tensorwise") / _communication_s("fp8_rowwise") == pytest.approx(6 / 8, rel=0.05)


LLAMA = load("llama3_8b").recipe
DDP: dict[str, Any] = {"engine": "ddp"}
SELECTIVE = {**DDP, "checkpointing": "selective"}
STAGE_2: dict[str, Any] = {"engine": "fsdp", "zero_stage": 2}
MEASURED: tuple[tuple[Recipe, str, dict[str, Any], int, float], ...] = (
    (LLAMA, "bf16", SELECTIVE, 1, 89.1),
    (LLAMA, "bf16", SELECTIVE, 2, 114.4),
    (LLAMA, "bf16", DDP, 1, 100.1),
    (LLAMA, "bf16", DDP, 2, 136.4),
    (LLAMA, "bf16", STAGE_2, 1, 115.1),
    (LLAMA, "fp8_tensorwise", SELECTIVE, 1, 89.1),
    (LLAMA, "fp8_tensorwise", SELECTIVE, 2, 114.4),
    (LLAMA, "fp8_tensorwise", DDP, 1, 89.1),
    (LLAMA, "fp8_tensorwise", STAGE_2, 1, 102.9),
    (BF16, "bf16", {**SELECTIVE, "attention": "flex"}, 2, 69.9),
    (BF16, "bf16", {**SELECTIVE, "attention": "flex"}, 4, 83.2),
    (BF16, "bf16", {**SELECTIVE, "attention": "flex"}, 8, 102.3),
)
"""GiB allocated at most on one H200, with bf16 states, compiled blocks and a chunked loss
(docs/lab/layouts.csv#fp8-h200).
"""
FP32_STATES: tuple[tuple[dict[str, Any], int, float], ...] = (
    ({**SELECTIVE, "loss": "plain"}, 1, 118.3),
    ({**SELECTIVE, "loss": "plain"}, 2, 129.3),
    ({**SELECTIVE, "loss": "chunked"}, 2, 125.5),
)
"""GiB allocated at most by BLOOM-7b1 on one H200 under autocast (docs/measurements/bloom7b-kernels-1xH200.csv)."""


@pytest.mark.parametrize(("model", "precision", "layout", "micro_batch", "peak_gib"), MEASURED)
def test_memory_is_what_an_h200_measured_and_the_floor_is_below_it(
    model: Recipe, precision: Any, layout: dict[str, Any], micro_batch: int, peak_gib: float
) -> None:
    recipe = dataclasses.replace(model, state_precision="bf16", compute_precision=precision)
    values: dict[str, Any] = {"attention": "sdpa", **layout}
    chosen = Layout(**values, loss="chunked", compile="block")
    batch = BatchPoint(micro_batch=micro_batch, grad_accum=recipe.global_batch // micro_batch)
    predicted = float(predict(from_points([(recipe, chosen, batch)], find_cluster("1xH200"))).memory.allocated_gib[0])
    assert predicted == pytest.approx(peak_gib, rel=0.01)
    assert 0.5 * peak_gib < lower_bound(recipe, chosen, batch).total_gib < peak_gib


@pytest.mark.parametrize(("layout", "micro_batch", "peak_gib"), FP32_STATES)
def test_autocast_holds_the_cast_table_of_the_head_at_the_loss(
    layout: dict[str, Any], micro_batch: int, peak_gib: float
) -> None:
    chosen = Layout(**layout, attention="flex", compile="block")
    batch = BatchPoint(micro_batch=micro_batch, grad_accum=BF16.global_batch // micro_batch)
    predicted = float(predict(from_points([(BF16, chosen, batch)], find_cluster("1xH200"))).memory.allocated_gib[0])
    assert predicted == pytest.approx(peak_gib, rel=0.005)


def test_weights_are_cast_for_both_passes_unless_their_casts_are_gathered() -> None:
    """Checks 5 + 3 bytes of each weight of the blocks, a micro-batch; 9 + 5 where it is cast from fp32."""
    ddp = dataclasses.replace(COMPILED, engine="ddp", zero_stage=0, dp_shard=1, dp_replicate=8)
    seconds: dict[tuple[str, str], float] = {}
    for precision, layout in (("fp8_tensorwise", ddp), ("fp8_rowwise", COMPILED), ("fp8_tensorwise", COMPILED)):
        recipe = dataclasses.replace(BF16, compute_precision=precision)
        row = from_points([(recipe, layout, BatchPoint.of(recipe, layout, 4))], find_cluster("8xH200"))
        seconds[precision, layout.engine] = (weight_casts_s(row, row.layer_parameters) * row.bandwidth).item()
    a_byte = BF16.model.parameters_per_layer / BANDWIDTH_SHARE
    expected = {("fp8_tensorwise", "ddp"): 14.0, ("fp8_rowwise", "fsdp"): 8.0, ("fp8_tensorwise", "fsdp"): 0.0}
    assert seconds == pytest.approx({row: moved * a_byte for row, moved in expected.items()})


@pytest.mark.parametrize("compiled", ["none", "block"])
@pytest.mark.parametrize(("states", "cast_again"), [("bf16", 5.0), ("fp32", 9.0)])
def test_kept_weights_are_cast_once_a_step_and_laid_out_by_columns_in_each_micro_batch(
    states: Any, cast_again: float, compiled: Any
) -> None:
    """Checks two bytes of each weight a micro-batch, autocast's casts none; and once a step two reads and a byte."""
    recipe = dataclasses.replace(LLAMA, compute_precision="fp8_tensorwise", state_precision=states)
    layout = Layout(engine="ddp", attention="sdpa", compile=compiled, fp8_weights="kept")
    row = from_points([(recipe, layout, BatchPoint.of(recipe, layout, 2))], find_cluster("1xH200"))
    bandwidth = row.bandwidth * BANDWIDTH_SHARE
    assert (weight_casts_s(row, np.ones(1)) * bandwidth).item() == pytest.approx(2.0)
    assert Ddp().block_traffic(row, np.zeros(1)) == pytest.approx(_accumulated(row))
    assert (Ddp().step_casts_s(row, np.ones(1)) * bandwidth).item() == pytest.approx(cast_again)


def _accumulated(row: Columns) -> Array:
    """Returns the bytes per parameter of gradient accumulation, with a cast of gradients to the sums' type."""
    cast_back = np.where(row.state_bytes > row.compute_bytes, row.gradient_bytes - row.compute_bytes, 0.0)
    return 2 * row.gradient_bytes + row.compute_bytes + cast_back


@pytest.mark.parametrize(("states", "moved"), [("bf16", 8.0), ("fp32", 14.0)])
def test_weights_with_a_scale_for_each_tensor_are_cast_from_the_states_type_alone(states: Any, moved: float) -> None:
    """Checks two reads and a byte, then a read and a byte, and that autocast casts the head's table alone."""
    recipe = dataclasses.replace(LLAMA, compute_precision="fp8_tensorwise", state_precision=states)
    layout, batch = Layout(engine="ddp", attention="sdpa", compile="block"), BatchPoint(micro_batch=1, grad_accum=8)
    row = from_points([(recipe, layout, batch)], find_cluster("1xH200"))
    assert (weight_casts_s(row, np.ones(1)) * row.bandwidth * BANDWIDTH_SHARE).item() == pytest.approx(moved)
    assert Ddp().block_traffic(row, np.zeros(1)) == pytest.approx(_accumulated(row))
    of_table = Ddp().weight_traffic(row, np.zeros(1)) - _accumulated(row)
    assert of_table == pytest.approx(12.0 if states == "fp32" else 0.0)
    (copies,) = Ddp().copies(row, [(np.zeros(1), np.zeros(1))])
    assert copies.in_block == pytest.approx(0.0)
    assert lower_bound(recipe, dataclasses.replace(layout, compile="none"), batch).copies_gib == 0.0


@pytest.mark.parametrize(("precision", "copies"), [("fp8_tensorwise", 0), ("fp8_rowwise", 1)])
def test_layers_save_a_bf16_copy_of_a_weight_with_a_scale_for_each_row_alone(precision: Any, copies: int) -> None:
    recipe = dataclasses.replace(LLAMA, compute_precision=precision)
    block, device = torch.nn.Sequential(torch.nn.Linear(64, 32, bias=False)), torch.device("cpu")
    float8.convert(block, recipe, device, gathered=False)
    saved: list[torch.Tensor] = []
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        block(torch.randn(16, 64))
    assert sum(tensor.numel() == 64 * 32 and tensor.dtype is torch.bfloat16 for tensor in saved) == copies


def test_kept_weights_take_a_byte_each_and_pay_the_more_the_smaller_the_micro_batch() -> None:
    recipe = dataclasses.replace(LLAMA, compute_precision="fp8_tensorwise", state_precision="bf16")
    gains: list[float] = []
    for micro_batch in (1, 2, 4):
        (cast_s, cast_gib), (kept_s, kept_gib) = (_in_ddp(recipe, how, micro_batch) for how in ("cast", "kept"))
        weights_gib = LLAMA.model.num_layers * LLAMA.model.parameters_per_layer / 2**30
        assert kept_gib - cast_gib == pytest.approx(weights_gib, rel=1e-6)
        gains.append(cast_s / kept_s - 1)
    assert gains == sorted(gains, reverse=True) and gains[-1] > 0


def _in_ddp(recipe: Recipe, fp8_weights: Any, micro_batch: int) -> tuple[float, float]:
    """Returns the predicted seconds and GiB of a step, and checks that the floor is below them."""
    layout = Layout(engine="ddp", attention="sdpa", loss="chunked", compile="block", fp8_weights=fp8_weights)
    batch = BatchPoint.of(recipe, layout, micro_batch)
    prediction = predict(from_points([(recipe, layout, batch)], find_cluster("1xH200")))
    gib = float(prediction.memory.allocated_gib[0])
    assert lower_bound(recipe, layout, batch).total_gib < gib
    return float(prediction.step.total_s[0]), gib
