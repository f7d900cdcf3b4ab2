"""Predicted peak memory against what torch's tracker finds on fake tensors."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.memory import peak_memory
from search_spaces.qwen3 import QWEN3_30B_A3B
from tests.cost_model.points import BLOOM_7B1, GPT2, fsdp, point
from trainers.spec.batch import BatchPoint
from trainers.spec.codec import to_json
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_torchs_tracker_agrees_within_five_percent() -> None:
    """Tracks both models in one child process, because its imports take longer than tracking a small model, here of six
    blocks.
    """
    gpt2, bloom = (dataclasses.replace(model, num_layers=6) for model in (GPT2, BLOOM_7B1))
    cases = [
        (gpt2, {"world_size": 2, "seq_len": 512, "micro_batch": 4, "grad_accum": 2}, "none", "sdpa"),
        (bloom, {"world_size": 8, "seq_len": 1024, "micro_batch": 2, "grad_accum": 1}, "full", "eager"),
    ]
    configurations = [
        {"model": to_json(model), **sizes, "checkpointing": checkpointing, "attention": attention}
        for model, sizes, checkpointing, attention in cases
    ]
    tracked = _tracked("track_memory.py", configurations)
    for (model, sizes, checkpointing, attention), peak_gib in zip(cases, tracked, strict=True):
        layout = fsdp(dp_shard=sizes["world_size"], grad_sync="every", checkpointing=checkpointing, attention=attention)
        columns = point(
            layout,
            cluster="8xH200",
            model=model,
            micro_batch=sizes["micro_batch"],
            grad_accum=sizes["grad_accum"],
            seq_len=sizes["seq_len"],
        )
        assert float(peak_memory(columns).allocated_gib[0]) == pytest.approx(peak_gib, rel=0.05), model.name


def _tracked(script: str, cases: Sequence[Mapping[str, object]]) -> list[Any]:
    """Returns what the script of this folder prints for the cases."""
    child = subprocess.run(
        [sys.executable, str(Path(__file__).with_name(script)), json.dumps(cases)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


KERNELS: Mapping[str, Any] = {"attention": "sdpa", "grad_sync": "last"}
INTERLEAVED: Mapping[str, Any] = {"pp": 2, "schedule": "interleaved", "virtual": 2}


def _agrees_with_the_tracker(layouts: Sequence[Layout], **precision: Any) -> None:
    """Checks predictions against peaks that torch's tracker finds on this project's engines, for one rank of each
    stage.
    """
    model = dataclasses.replace(GPT2, num_layers=8, vocab_size=50304)
    recipe = Recipe(model=model, seq_len=512, global_batch=16, **precision)
    cases = [{"recipe": to_json(recipe), "layout": to_json(layout), "micro_batch": 2} for layout in layouts]
    for layout, peaks in zip(layouts, _tracked("track_ranks.py", cases), strict=True):
        batch = BatchPoint.of(recipe, layout, 2)
        memory = peak_memory(from_points([(recipe, layout, batch)], find_cluster("8xH200")))
        assert float(memory.allocated_gib[0]) == pytest.approx(max(peaks), rel=0.05), (layout.label, peaks)
        fullest = peaks.index(max(peaks))
        assert int(memory.binding_rank[0]) == (2 if fullest else 0), (layout.label, peaks)


@pytest.mark.heavy
def test_the_fullest_stage_of_a_mesh_is_predicted_within_five_percent_of_torchs_tracker() -> None:
    degrees = ({"cp": 2}, {"tp": 2, "pp": 2})
    _agrees_with_the_tracker([fsdp(**KERNELS, dp_shard=2, **degree) for degree in degrees])


@pytest.mark.heavy
def test_every_degree_schedule_and_stage_is_predicted_within_five_percent_of_torchs_tracker() -> None:
    degrees = ({"pp": 2}, {"pp": 4}, {"tp": 2}, {"tp": 4}, {"cp": 4}, INTERLEAVED)
    degrees = (*degrees, {"zero_stage": 2, "pp": 2}, {"zero_stage": 2, **INTERLEAVED})
    _agrees_with_the_tracker([fsdp(**KERNELS, dp_shard=2, **degree) for degree in degrees])


@pytest.mark.heavy
def test_pipelines_under_ddp_are_predicted_within_five_percent_of_torchs_tracker() -> None:
    """Checks models with bf16 states, because the prediction is for CUDA's autocast, which computes powers and norms in
    fp32, unlike a CPU's autocast.
    """
    layouts = [Layout(engine="ddp", dp_replicate=2, **KERNELS, **degree) for degree in ({"pp": 2}, INTERLEAVED)]
    _agrees_with_the_tracker(layouts, state_precision="bf16")


@pytest.mark.heavy
def test_adapters_beside_a_frozen_model_are_predicted_within_five_percent_of_torchs_tracker() -> None:
    _agrees_with_the_tracker([fsdp(**KERNELS, dp_shard=2)], adapter="lora_16")
    _agrees_with_the_tracker([fsdp(**KERNELS, dp_shard=2)], adapter="qlora_16")


@pytest.mark.heavy
def test_plain_experts_are_predicted_within_five_percent_of_what_a_step_holds() -> None:
    """Checks steps whose ranks have all experts, and whose two ranks share them out."""
    model = dataclasses.replace(
        QWEN3_30B_A3B, config="", num_layers=3, hidden_size=256, num_heads=4, num_kv_heads=2, head_width=64,
        ffn_size=96, num_experts=16, experts_per_token=4, vocab_size=1024,
    )  # fmt: skip
    recipe = Recipe(model=model, seq_len=512, global_batch=16, routing="balanced", compute_precision="fp32")
    layouts = [
        fsdp(dp_shard=2, attention="sdpa", loss="chunked", experts="grouped", ep=ep, checkpointing=checkpointing)
        for ep, checkpointing in ((1, "none"), (2, "none"), (2, "full"), (2, "selective"))
    ]
    cases = [{"recipe": to_json(recipe), "layout": to_json(layout), "micro_batch": 4} for layout in layouts]
    for layout, peak in zip(layouts, _tracked("track_experts.py", cases), strict=True):
        memory = peak_memory(from_points([(recipe, layout, BatchPoint.of(recipe, layout, 4))], find_cluster("8xH200")))
        assert float(memory.allocated_gib[0]) == pytest.approx(peak, rel=0.05), layout.label
