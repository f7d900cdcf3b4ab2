"""FLOPs per token agree with torch's counter and with DeepSpeed's profiler where these count the same: matrix products
of the forward and backward pass, all of attention's square.
"""

import os
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from trainers.models import model
from trainers.spec.model import ModelSpec

SEQ_LEN = 256
_SIZES: dict[str, Any] = {"num_layers": 2, "hidden_size": 256, "num_heads": 4, "vocab_size": 1000}
SPECS = {
    "bloom": ModelSpec(name="bloom", architecture="bloom", **_SIZES),
    "gpt2": ModelSpec(name="gpt2", architecture="gpt2", max_positions=SEQ_LEN, **_SIZES),
    "neox": ModelSpec(name="neox", architecture="gpt_neox", max_positions=SEQ_LEN, **_SIZES),
    "llama": ModelSpec(name="llama", architecture="llama", num_kv_heads=2, **_SIZES),
}


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "DS_ACCELERATOR", "cpu")  # DeepSpeed's profiler asks for one


def model_and_tokens(spec: ModelSpec) -> tuple[Any, torch.Tensor]:
    module = model.build(spec, attention="eager").module.to_empty(device="cpu")
    for parameter in module.parameters():
        torch.nn.init.constant_(parameter, 0.01)
    return module, torch.zeros((1, SEQ_LEN), dtype=torch.int64)


def counted_by_torch(spec: ModelSpec) -> float:
    """Returns torch's count of FLOPs of a forward and a backward pass, for each token."""
    module, tokens = model_and_tokens(spec)
    with FlopCounterMode(display=False) as counter:
        module(tokens).logits.sum().backward()
    return counter.get_total_flops() / SEQ_LEN


def counted_by_deepspeed(spec: ModelSpec) -> float:
    """Returns three times the FLOPs for each token of a forward pass, by DeepSpeed's count of its multiply-accumulates.

    The backward pass does each product twice.
    """
    from deepspeed.profiling.flops_profiler import FlopsProfiler

    module, tokens = model_and_tokens(spec)
    profiler: Any = FlopsProfiler(module)
    profiler.start_profile()
    module(tokens)
    macs = profiler.get_total_macs()
    profiler.end_profile()
    return 3 * 2 * macs / SEQ_LEN


@pytest.mark.parametrize("name", SPECS)
def test_flops_agree_with_torch_s_counter_and_deepspeed_s_profiler(name: str):
    spec = SPECS[name]
    ours = spec.flops_per_token(SEQ_LEN, "palm")
    looked_up = 0 if spec.tied_embeddings else spec.vocab_size  # rows of tables that nothing is multiplied by
    looked_up += SEQ_LEN if spec.architecture == "gpt2" else 0
    ours -= 6 * looked_up * spec.hidden_size
    assert counted_by_torch(spec) == pytest.approx(ours, rel=0.02)
    # DeepSpeed's profiler does not see `baddbmm`, by which BLOOM adds ALiBi to the products of queries and keys.
    unseen = 6 * spec.num_layers * spec.hidden_size * SEQ_LEN if spec.architecture == "bloom" else 0
    assert counted_by_deepspeed(spec) == pytest.approx(ours - unseen, rel=0.02)


@pytest.mark.parametrize("name", SPECS)
def test_a_causal_model_s_flops_have_half_of_attention_s_square(name: str):
    spec = SPECS[name]
    attention = spec.flops_per_token(SEQ_LEN, "palm") - spec.flops_per_token(SEQ_LEN, "6n")
    assert spec.flops_per_token(SEQ_LEN) == spec.flops_per_token(SEQ_LEN, "6n") + attention / 2
