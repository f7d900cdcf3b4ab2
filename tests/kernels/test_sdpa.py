"""The kernel under scaled_dot_product_attention that a measurement records is the one that a profiler sees run."""

import dataclasses
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainers.kernels.sdpa import kernel_of, leave_out_wrong_kernels
from trainers.models import weights
from trainers.models.model import build
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "vocab_size": 97}
LLAMA = ModelSpec(name="llama", architecture="llama", **SIZES)
QWEN2 = ModelSpec(name="qwen2", architecture="qwen2", window=8, window_layers=1, **SIZES)
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
KERNEL_BY_CASE = {
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
    "aten::_scaled_dot_product_attention_math": "math",
}


def _recipe(model: ModelSpec) -> Recipe:
    return Recipe(model=model, seq_len=24, global_batch=8, compute_precision="fp32")


@pytest.mark.parametrize("spec", [LLAMA, QWEN2], ids=["llama", "qwen2"])
@pytest.mark.parametrize("allowed", [None, SDPBackend.MATH], ids=["free", "math alone"])
def test_the_recorded_kernel_is_the_one_that_runs(spec: ModelSpec, allowed: SDPBackend | None) -> None:
    model = build(spec, attention="sdpa")
    weights.materialise(model.module, names=model.names, seed=1, std=0.02, device=CPU)
    with sdpa_kernel(allowed or BACKENDS):
        recorded = kernel_of(_recipe(spec), Layout(engine="ddp", attention="sdpa"), CPU)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            model.module(torch.arange(24)[None]).logits.sum().backward()
    recorded_kernels = {KERNEL_BY_CASE[event.key] for event in profiler.key_averages() if event.key in KERNEL_BY_CASE}
    assert recorded == "+".join(sorted(recorded_kernels))
    assert recorded == ("math" if allowed else "flash")


@pytest.mark.parametrize(
    ("spec", "seq_len", "degrees", "runs"),
    [
        (LLAMA, 192, {}, True),
        (LLAMA, 192, {"cp": 2}, False),
        (LLAMA, 256, {"cp": 2}, True),
        (QWEN2, 192, {}, False),
        (QWEN2, 8, {}, True),
    ],
)
def test_cudnn_is_left_out_where_its_gradients_may_be_no_numbers(
    spec: ModelSpec, seq_len: int, degrees: dict[str, int], runs: bool
) -> None:
    recipe = dataclasses.replace(_recipe(spec), seq_len=seq_len)
    leave_out_wrong_kernels(recipe, Layout(engine="ddp", attention="sdpa", **degrees))  # type: ignore[arg-type]
    assert torch.backends.cuda.cudnn_sdp_enabled() == runs
    torch.backends.cuda.enable_cudnn_sdp(True)


def test_other_attention_has_none() -> None:
    recipe = _recipe(LLAMA)
    assert kernel_of(recipe, Layout(engine="ddp", attention="eager"), CPU) == ""
    assert kernel_of(recipe, Layout(engine="ddp", attention="flex"), CPU) == "flash"
