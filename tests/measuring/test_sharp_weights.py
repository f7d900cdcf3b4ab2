"""Sharpened weights spread attention's scores in every family, and are taken back."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainers.distributed.state import Counters, StateTensor, whole_tensor
from trainers.measuring.sharp_weights import SCORE_DEVIATION, sharpen
from trainers.models import weights
from trainers.models.model import build
from trainers.spec.model import ModelSpec
from trainers.spec.recipe import Recipe

SIZES: dict[str, Any] = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 128}
KEPT: dict[str, Any] = {
    "gpt2": {"max_positions": 64},
    "llama": {"num_kv_heads": 2},
    "qwen3": {"num_kv_heads": 2, "head_width": 16},
    "gpt_neox": {"max_positions": 64},
    "gpt_oss": {"num_kv_heads": 2, "head_width": 16, "num_experts": 4, "experts_per_token": 2, "ffn_size": 64},
}


@pytest.mark.parametrize("name", KEPT)
def test_scores_spread_and_weights_come_back(name: str) -> None:
    spec = ModelSpec(name=name, architecture=name, **SIZES, **KEPT[name])
    recipe = Recipe(model=spec, seq_len=48, global_batch=2, compute_precision="fp32")
    model = build(spec, attention="eager")
    weights.materialise(model.module, names=model.names, seed=0, std=spec.init_std, device=torch.device("cpu"))
    state: dict[str, StateTensor] = {
        f"weight/{key}": whole_tensor(parameter) for key, parameter in model.module.named_parameters()
    }
    state["exp_avg/one"] = whole_tensor(torch.ones(3))
    engine: Any = SimpleNamespace(
        training_state=lambda: state, counters=lambda: Counters(optimizer_step=2), adopt=lambda _: None
    )
    before = {key: tensor.parts[0].tensor.clone() for key, tensor in state.items()}
    first = _score_deviation(model.module)
    sharpen(engine, recipe)
    # Over zeros a fault in a forward pass that leaves a bias out does not show; experts stack theirs.
    biases = [tensor.parts[0].tensor for key, tensor in state.items() if key.endswith("bias")]
    assert all(bias.any() for bias in biases) and bool(biases) == (name in ("gpt2", "gpt_neox", "gpt_oss"))
    assert first < SCORE_DEVIATION / 2 < _score_deviation(model.module) < 2 * SCORE_DEVIATION
    sharpen(engine, recipe, undo=True)
    assert not state["exp_avg/one"].parts[0].tensor.any()
    for key, tensor in state.items():
        assert key == "exp_avg/one" or torch.allclose(tensor.parts[0].tensor, before[key], atol=1e-6), key


def _score_deviation(module: Any) -> float:
    """Returns the deviation of the scores of each query, over its keys, by the logarithms of their probabilities."""
    tokens = torch.randint(0, 128, (2, 48), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        attentions = module(tokens, output_attentions=True).attentions
    return float(torch.stack([layer[..., -1, :].log().std(-1).mean() for layer in attentions]).mean())
