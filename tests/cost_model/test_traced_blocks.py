"""Parts of a micro-step beside traces of one H200 (docs/lab/kernels.csv#blocks-traced), 16,384 tokens each."""

import dataclasses
import math
from typing import Literal

import numpy as np
import pytest

from platform.cost_model import blocks
from platform.cost_model.compute import optimizer_s
from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.layer_time import layer_seconds
from platform.cost_model.stacks import with_software
from search_spaces import load
from search_spaces.gpt_oss import GPT_OSS_20B
from search_spaces.llama3 import LLAMA3_8B
from search_spaces.qwen3 import QWEN3_30B_A3B
from tests.cost_model.points import changed, point
from trainers.spec.batch import BatchPoint
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec

LLAMA_8 = dataclasses.replace(LLAMA3_8B, num_layers=8)
LLAMA_1B = ModelSpec.from_config(
    {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
    },
    name="llama-1b",
)
STABLELM2 = ModelSpec.from_config(
    {
        "model_type": "stablelm",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "partial_rotary_factor": 0.25,
        "use_qkv_bias": True,
        "vocab_size": 100352,
        "max_position_embeddings": 4096,
    },
    name="stablelm2",
)
LAYOUT = Layout(engine="ddp", attention="sdpa", loss="chunked", compile="block")


@pytest.mark.parametrize(
    ("model", "seq_len", "products_ms", "attention_ms", "passes_ms"),
    [
        (STABLELM2, 4096, 175.1, 70.4, 26.6),
        (LLAMA_1B, 2048, 139.9, 37.9, 19.0),
        (LLAMA_8, 4096, 251.4, 37.5, 15.3),
    ],
    ids=["stablelm2", "llama-1b", "llama-8b"],
)
def test_products_attention_and_passes_of_gated_blocks_take_what_traces_show(
    model: ModelSpec, seq_len: int, products_ms: float, attention_ms: float, passes_ms: float
) -> None:
    columns = point(
        LAYOUT,
        cluster="1xH200",
        model=model,
        micro_batch=16384 // seq_len,
        grad_accum=8,
        seq_len=seq_len,
        state_precision="bf16",
    )
    tokens = columns.tokens
    layer = layer_seconds(columns)
    traced = 1e-3 * (products_ms + attention_ms + passes_ms)
    weights = float((layer_seconds(columns).backward - layer_seconds(changed(columns, layer_parameters=0)).backward)[0])
    of_block = float((layer.forward + layer.backward)[0]) - weights
    assert model.num_layers * of_block == pytest.approx(traced, rel=0.035)
    passes = sum(float(part[0]) for part in blocks.mean(columns, lambda kind: kind.passes_s(columns, tokens)))
    # Kernels' starts and ends lie between those of a trace.
    starts = 27 * 4e-6
    assert model.num_layers * (passes - starts) == pytest.approx(1e-3 * passes_ms, rel=0.16)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(("precision", "is_capped"), [("bf16", True), ("fp16", True), ("tf32", False), ("fp32", False)])
def test_the_power_cap_of_traces_holds_for_products_of_16_bits_alone(
    precision: str, is_capped: bool, attention: str
) -> None:
    """Checks that products of fp32 do not seem to exceed a share of matrix units that they do not use."""
    columns = point(
        dataclasses.replace(LAYOUT, attention=attention),
        cluster="1xH200",
        model=LLAMA_8,
        micro_batch=4,
        grad_accum=8,
        seq_len=4096,
        compute_precision=precision,
    )
    uncapped = layer_seconds(changed(columns, power_share=math.inf))
    assert (layer_seconds(columns).forward > uncapped.forward).item() is is_capped


def test_every_engine_that_runs_here_is_under_the_power_cap_and_other_software_is_not() -> None:
    """Checks that layouts of engines whose models are not split compete at the same clocks."""
    seconds: dict[str, float] = {}
    for engine in ("ddp", "deepspeed"):
        layout = Layout(engine=engine, attention="sdpa", loss="chunked", compile="block")
        columns = point(
            layout, cluster="1xH200", model=LLAMA_8, micro_batch=4, grad_accum=8, seq_len=4096, state_precision="bf16"
        )
        seconds[engine] = layer_seconds(columns).forward.item()
        assert columns.power_share.item() < 1
    assert seconds["deepspeed"] == pytest.approx(seconds["ddp"], rel=0.005)
    recipe = load("llama3_8b").recipe
    torchtitan = with_software(find_cluster("1xH200"), "torchtitan")
    assert math.isinf(from_points([(recipe, LAYOUT, BatchPoint.of(recipe, LAYOUT, 1))], torchtitan).power_share.item())


def test_what_recomputation_skips_is_as_slow_under_the_power_cap_as_what_it_repeats() -> None:
    full = dataclasses.replace(LAYOUT, checkpointing="full")
    columns = point(full, cluster="1xH200", model=LLAMA_8, micro_batch=4, grad_accum=8, seq_len=4096)
    uncapped = changed(columns, power_share=math.inf)
    passes = blocks.mean(columns, lambda kind: kind.passes_s(columns, columns.tokens))[0]
    layer, free = layer_seconds(columns), layer_seconds(uncapped)
    slower = (layer.forward - passes) / (free.forward - passes)
    assert slower > 1.01
    assert (layer.again - passes) / (free.again - passes) == pytest.approx(slower)


def test_steps_of_adamw_with_16_bit_states_are_bound_by_arithmetic() -> None:
    """Checks the traced kernels of 2.8 and 7.7 billion parameters: 16.6 and 41.2 ms for updates alone."""
    columns = point(LAYOUT, cluster="1xH200", model=LLAMA_8, state_precision="bf16")
    gradients = 4 / (4800e9 * 0.85)  # the norm reads them, and a copy is written
    for parameters, milliseconds in ((2.80e9, 16.6), (7.73e9, 41.2)):
        update = float(optimizer_s(columns, np.array([parameters]))[0]) - parameters * gradients
        assert update == pytest.approx(milliseconds / 1e3, rel=0.12)


@pytest.mark.parametrize(
    ("model", "num_layers", "attention", "products_ms", "passes_ms"),
    [(QWEN3_30B_A3B, 10, "sdpa", 91.1, 31.0), (GPT_OSS_20B, 8, "flex", 152.4, 38.9)],
    ids=["qwen3-30b-a3b", "gpt-oss-20b"],
)
def test_products_and_passes_of_experts_take_what_traces_show(
    model: ModelSpec, num_layers: int, attention: str, products_ms: float, passes_ms: float
) -> None:
    """Checks passes with routing, sorting and sums; grouped products run at higher clocks than `GROUPED_RATE` states,
    as do those of attention between them.
    """
    columns = point(
        dataclasses.replace(LAYOUT, attention=attention, experts="grouped"),
        cluster="1xH200",
        model=dataclasses.replace(model, num_layers=num_layers, window_layers=model.window_layers * num_layers // 24),
        micro_batch=4,
        grad_accum=4,
        seq_len=4096,
        state_precision="bf16",
        routing="balanced",
    )

    def ms(part: str) -> float:
        seconds = blocks.mean(columns, lambda kind: getattr(kind, part)(columns, columns.tokens))
        return 1e3 * num_layers * sum(float(way[0]) for way in seconds)

    assert ms("products_s") == pytest.approx(products_ms, rel=0.07)
    assert ms("passes_s") == pytest.approx(passes_ms, rel=0.15)


def test_one_rank_casts_and_copies_what_it_gathers() -> None:
    """Checks the traced kernels of one gather of Qwen2.5-7B's blocks in FP8 under FSDP2 on one GPU: 57 ms for casts, 6
    ms for copies.
    """
    model = ModelSpec.from_config(
        {
            "model_type": "qwen2",
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
            "max_position_embeddings": 32768,
        },
        name="qwen2.5-7b",
    )

    def of(stage: Literal[2, 3]) -> float:
        layout = dataclasses.replace(LAYOUT, engine="fsdp", zero_stage=stage)
        recipe: dict[str, object] = {"state_precision": "bf16", "compute_precision": "fp8_tensorwise", "seq_len": 1024}
        columns = point(layout, cluster="1xH200", model=model, micro_batch=4, grad_accum=1000, **recipe)
        return 28 * float(layer_seconds(columns).backward[0])

    # Half of the casts' kernels load value by value, which takes longer than their bytes.
    assert of(3) - of(2) == pytest.approx(2 * 63e-3, rel=0.3)
