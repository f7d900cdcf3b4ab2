"""FLOPs per token are those of torch's counter and of DeepSpeed's profiler, for every family, tied and untied."""

import dataclasses
import os
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.models.test_model import SPECS
from trainers.engines.model_preparation import prepare
from trainers.models import model
from trainers.spec.layout import Layout
from trainers.spec.model import ModelSpec

SEQ_LEN = 32
CASES = {
    f"{name}, {'tied' if tied else 'untied'}": dataclasses.replace(spec, tied_embeddings=tied)
    for name, spec in SPECS.items()
    for tied in (False, True)
}


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "DS_ACCELERATOR", "cpu")  # DeepSpeed's profiler asks for one


def tokens_and_model(spec: ModelSpec, checkpointing: str = "none") -> tuple[torch.Tensor, Any]:
    prepared = prepare(model.build(spec, attention="eager"), Layout(engine="ddp", checkpointing=checkpointing))  # pyright: ignore[reportArgumentType]
    module = prepared.module.to_empty(device="cpu")
    for parameter in module.parameters():
        torch.nn.init.constant_(parameter, 0.01)
    for buffer in module.buffers():  # such as rotary frequencies, which would be what the memory held before
        buffer.zero_()
    return torch.zeros((1, SEQ_LEN), dtype=torch.int64), module


def counted_by_torch(spec: ModelSpec, checkpointing: str = "none") -> float:
    """Returns torch's count of FLOPs of a forward and a backward pass, for each token."""
    tokens, module = tokens_and_model(spec, checkpointing)
    with FlopCounterMode(display=False) as counter:
        module(tokens).logits.sum().backward()
    return counter.get_total_flops() / SEQ_LEN


def counted_by_deepspeed(spec: ModelSpec) -> float:
    """Returns three times the FLOPs for each token of a forward pass, by DeepSpeed's count of its multiply-accumulates.

    The backward pass does each product twice.
    """
    from deepspeed.profiling.flops_profiler import FlopsProfiler

    tokens, module = tokens_and_model(spec)
    profiler: Any = FlopsProfiler(module)
    profiler.start_profile()
    module(tokens)
    macs = profiler.get_total_macs()
    profiler.end_profile()
    return 3 * 2 * macs / SEQ_LEN


@pytest.mark.parametrize("name", CASES)
def test_flops_are_those_of_torch_s_counter(name: str):
    """Counts the whole square of scores, which eager attention multiplies, window or not."""
    spec = CASES[name]
    rotary = spec.head_dim if spec.position == "rotary" else 0  # angles by a product, once for all heads and blocks
    ours = spec.flops_per_token(SEQ_LEN, keys_per_query=SEQ_LEN)
    assert ours <= counted_by_torch(spec) <= ours + 2 * rotary


@pytest.mark.parametrize("name", ["bloom", "gpt2", "llama, tied", "olmo2"])
def test_the_device_performs_as_many_flops_as_are_counted_at_least(name: str):
    """Checks recomputation too; norms after the last product ask for its output again."""
    spec = SPECS[name]
    for checkpointing, blocks in (("full", spec.num_layers), ("every_2", -(-spec.num_layers // 2))):
        ours = spec.hardware_flops_per_token(SEQ_LEN, checkpointing, keys_per_query=SEQ_LEN)
        last_products = 2 * blocks * spec.hidden_size * spec.ffn_size
        assert ours <= counted_by_torch(spec, checkpointing) <= ours + last_products + 2 * spec.head_dim


@pytest.mark.parametrize("name", ["bloom", "llama"])
def test_flops_are_those_of_deepspeed_s_profiler(name: str):
    spec = SPECS[name]
    # It does not see `baddbmm`, by which BLOOM adds ALiBi to the products of queries and keys.
    unseen = 6 * spec.num_layers * spec.hidden_size * SEQ_LEN if spec.architecture == "bloom" else 0
    ours = spec.flops_per_token(SEQ_LEN, keys_per_query=SEQ_LEN)
    assert counted_by_deepspeed(spec) == pytest.approx(ours - unseen, rel=0.02)


@pytest.mark.parametrize("name", SPECS)
def test_keys_are_those_that_queries_see(name: str):
    """Counts the scores above 0: a query sees itself and all tokens before it, or those of its block's window."""
    tokens, module = tokens_and_model(SPECS[name])
    with torch.no_grad():
        attentions = module(tokens, output_attentions=True, use_cache=False).attentions
    num_seen = sum(int((scores[0, 0] > 0).sum()) for scores in attentions) / SEQ_LEN / len(attentions)
    assert 0 < num_seen - SPECS[name].keys_per_query(SEQ_LEN) <= 0.5


@pytest.mark.parametrize(("name", "looked_up"), [("llama", 97 * 32), ("llama, tied", 0), ("gpt2", 40 * 32)])
def test_lookups_count_by_6n_alone(name: str, looked_up: int):
    """Checks that looked-up tables are in "6n" (arXiv 2001.08361) and in no product."""
    spec = SPECS[name]
    vectors = spec.num_parameters - looked_up - spec.product_parameters
    assert spec.flops_per_token(SEQ_LEN, "6n") == 6 * spec.num_parameters
    assert 0 < vectors < 50 * spec.hidden_size, "what is left are norms and biases"
