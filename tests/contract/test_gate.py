"""The numerics gate catches planted faults by what it compares, and passes every engine and degree."""

# pyright: reportPrivateUsage=false

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from benchmarks import gate_faults
from platform.study.result.gate import GateVerdict, compare
from tests.contract.group import run_group
from trainers.engines.create import create_engine
from trainers.measuring import gate_curves
from trainers.measuring.device import CpuClock
from trainers.records.job import GateSize
from trainers.records.journal import GateCurves
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe
from trainers.spec.recipe_axes import Adapter, Precision

pytestmark = pytest.mark.contract

SIZE = GateSize(steps=2, sequences=4)
CPU = torch.device("cpu")


def _model(name: str, architecture: str, **sizes: Any) -> ModelSpec:
    return ModelSpec(
        name=name, architecture=architecture, num_layers=2, hidden_size=64, num_heads=4, vocab_size=128, **sizes
    )


MODELS = {
    "ALiBi, tied": _model("bloom", "bloom"),
    "qk-norm, untied": _model("qwen3", "qwen3", num_kv_heads=2, head_width=16),
}
IN_NF4 = _model("llama", "llama")
PLAIN = Layout(engine="ddp", attention="eager", loss="plain", grad_sync="last", checkpointing="none")
FAST = dataclasses.replace(PLAIN, attention="sdpa", loss="chunked")
PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")


def _recipe(model: ModelSpec, precision: Precision = "fp32", **fields: Any) -> Recipe:
    return Recipe(model=model, seq_len=48, global_batch=4, compute_precision=precision, **fields)


PLANTED: list[tuple[Precision, str, str]] = [
    (precision, name, fault)
    for precision in PRECISIONS
    for name, model in MODELS.items()
    for fault, plant in gate_faults.FAULTS
    if gate_faults.applies(plant, _recipe(model), FAST)
]


def _frozen_norm_moves(engine: Any) -> None:
    norms = [parameter for name, parameter in engine._frozen if name.endswith("q_norm.weight")]
    gate_faults._after_each_step(engine, norms, lambda _, after: after * 1.01)


def _frozen_scale_moves(engine: Any) -> None:
    scales = [parameter for name, parameter in engine._frozen if name.endswith("q_proj.nf4_scales")]
    gate_faults._after_each_step(engine, scales, lambda _, after: after + 1)


def _adapters_scaled(engine: Any) -> None:
    for module in engine.models[0].module.modules():
        if hasattr(module, "lora_scale"):
            module.lora_scale *= 1.1


OF_ADAPTERS: dict[str, Any] = {
    "nothing": gate_faults._nothing,
    "a frozen weight moves": _frozen_norm_moves,
    "adapters 10 % too large": _adapters_scaled,
    "the last micro-step's gradients alone": gate_faults._last_micro_step_alone,
}
ADAPTERS: dict[str, tuple[ModelSpec, Adapter, dict[str, Any]]] = {
    "adapters": (MODELS["qk-norm, untied"], "lora_4", OF_ADAPTERS),
    "adapters over NF4": (IN_NF4, "qlora_4", {**OF_ADAPTERS, "a frozen weight moves": _frozen_scale_moves}),
}


UNSEEN: set[tuple[Precision, str, str]] = {
    ("bf16", "ALiBi, tied", "attention scores 10 % too large"),
    ("bf16", "ALiBi, tied", "gradients with 5 % noise"),
}
"""Faults that pass: no larger than what rounding of ALiBi's biases does to large models, which must pass."""


@functools.cache
def planted() -> dict[tuple[str, str, str], GateVerdict]:
    return run_group(_planted, None, 1)


def _planted(_: None) -> dict[tuple[str, str, str], GateVerdict]:
    plants = dict(gate_faults.FAULTS)
    references: dict[tuple[Precision, str], GateCurves] = {}
    verdicts: dict[tuple[str, str, str], GateVerdict] = {}
    for precision, name, fault in PLANTED:
        recipe = _recipe(MODELS[name], precision)
        if (precision, name) not in references:
            references[precision, name] = gate_faults.curves(recipe, PLAIN, SIZE, 1, gate_faults.unfaulted, CPU)
        curves = gate_faults.curves(recipe, FAST, SIZE, 2, plants[fault], CPU)
        verdicts[precision, name, fault] = compare(references[precision, name], curves)
    for precision in PRECISIONS:
        for kind, (model, adapter, faults) in ADAPTERS.items():
            recipe = _recipe(model, precision, adapter=adapter)
            reference = gate_faults.curves(recipe, PLAIN, SIZE, 1, gate_faults.unfaulted, CPU)
            for fault, plant in faults.items():
                curves = gate_faults.curves(recipe, FAST, SIZE, 2, plant, CPU)
                verdicts[precision, kind, fault] = compare(reference, curves)
    return verdicts


@pytest.mark.parametrize("fault", OF_ADAPTERS)
@pytest.mark.parametrize("kind", ADAPTERS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_fault_of_adapters_fails_the_gate(precision: str, kind: str, fault: str) -> None:
    verdict = planted()[precision, kind, fault]
    assert verdict.passed == (fault == "nothing"), verdict.sentence


@pytest.mark.parametrize(("precision", "name", "fault"), PLANTED)
def test_a_planted_fault_fails_the_gate(precision: str, name: str, fault: str) -> None:
    verdict = planted()[precision, name, fault]
    assert verdict.passed == (fault == "nothing" or (precision, name, fault) in UNSEEN), verdict.sentence


SPLIT = [
    Layout(engine="ddp", dp_replicate=2),
    Layout(engine="fsdp", dp_shard=2, zero_stage=3, checkpointing="full"),
    Layout(engine="fsdp", dp_shard=2, zero_stage=2),
    Layout(engine="deepspeed", dp_replicate=2),
    Layout(engine="deepspeed", dp_shard=2, zero_stage=1),
    Layout(engine="deepspeed", dp_shard=2, zero_stage=2, grad_sync="every"),
    Layout(engine="deepspeed", dp_shard=2, zero_stage=3, grad_sync="every"),
    Layout(engine="ddp", tp=2),
    Layout(engine="fsdp", pp=2, zero_stage=2),
    Layout(engine="ddp", cp=2, attention="sdpa"),
]


def _of_split(precision: Precision) -> Recipe:
    return _recipe(_model("gpt2", "gpt2", max_positions=64), precision)


@functools.cache
def split() -> list[list[GateCurves]]:
    return run_group(_split, SPLIT, 2)


def _split(layouts: list[Layout]) -> list[list[GateCurves]]:
    return [[_curves(_of_split(precision), layout) for precision in PRECISIONS] for layout in layouts]


def _curves(recipe: Recipe, layout: Layout) -> GateCurves:
    """Returns the curves that a trial records, by the trial's own steps."""
    engine = create_engine(recipe, layout, CPU)
    job = SimpleNamespace(trial_id="", recipe=recipe, layout=layout, is_winner_run=True, first_step_s=60.0)
    meter = SimpleNamespace(peaks=list)
    watchdog = SimpleNamespace(beat=lambda *_, **__: None, saw=lambda _: None, allowance_s=60.0)
    context: Any = SimpleNamespace(
        job=job,
        rank=dist.get_rank(),
        device=CPU,
        meter=meter,
        watchdog=watchdog,
        clock=CpuClock,
        gather=_gather,
        enter=lambda _: None,
        promise=lambda _: None,
    )
    batch = BatchPoint.of(recipe, layout, SIZE.sequences // (2 * layout.data_parallel))
    curves = gate_curves.curves_of(context, engine, SIZE, batch)
    engine.close()
    return curves


def _gather(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


@functools.cache
def of_one_rank() -> list[GateCurves]:
    return run_group(_of_one_rank, None, 1)


def _of_one_rank(_: None) -> list[GateCurves]:
    return [
        gate_faults.curves(_of_split(precision), PLAIN, SIZE, 1, gate_faults.unfaulted, CPU) for precision in PRECISIONS
    ]


@pytest.mark.parametrize("index", [pytest.param(i, id=layout.label) for i, layout in enumerate(SPLIT)])
def test_tensors_that_are_cut_over_ranks_have_the_sketches_of_whole_ones(index: int) -> None:
    verdict = compare(of_one_rank()[0], split()[index][0])
    assert verdict.passed and len(verdict.checks) == 10, verdict.sentence
    assert max(check.error for check in verdict.checks) < 1e-4, cast(Any, verdict.checks)


@pytest.mark.parametrize("index", [pytest.param(i, id=layout.label) for i, layout in enumerate(SPLIT)])
def test_a_sound_layout_in_bf16_is_as_far_apart_as_rounding_puts_it(index: int) -> None:
    verdict = compare(of_one_rank()[1], split()[index][1])
    assert verdict.passed and len(verdict.checks) == 10, verdict.sentence
    assert all(check.error < 0.7 * check.tolerance for check in verdict.checks), verdict.checks
