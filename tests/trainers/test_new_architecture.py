"""A new family takes its declaration and a registry line: Qwen2, declared here, is built, searched and predicted."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import search_spaces
from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.predict import predict
from trainers import architectures, weights
from trainers.architectures.architecture import Architecture
from trainers.architectures.llama import ARCHITECTURE as LLAMA
from trainers.models import build
from trainers.values.batch import BatchPoint
from trainers.values.layout_axes import Attention
from trainers.values.spec import ModelSpec


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Qwen2(Architecture):
    def parameters_per_layer(self, spec: ModelSpec) -> int:
        """Llama's, and biases of queries, keys and values alone."""
        return super().parameters_per_layer(spec) + spec.hidden_size + 2 * spec.num_kv_heads * spec.head_dim


_FACTS: dict[str, Any] = {field.name: getattr(LLAMA, field.name) for field in dataclasses.fields(LLAMA)}
_FACTS.update(name="qwen2", counted_with={"use_sliding_window": False})
QWEN2 = _Qwen2(**_FACTS)
QWEN2_0_5B: dict[str, Any] = {
    "model_type": "qwen2",
    "num_hidden_layers": 24,
    "hidden_size": 896,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry line."""
    registry = architectures._REGISTRY  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setitem(registry, "qwen2", f"{__name__}:QWEN2")


def test_its_published_configuration_is_searched_and_predicted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN2_0_5B))
    space = search_spaces.load(str(tmp_path))
    assert space.recipe.model.num_parameters == 494_032_768
    candidates, rejected = space.candidates(4)
    assert candidates and not rejected
    assert space.miniature is not None and space.miniature.recipe.model.architecture == "qwen2"
    batch = BatchPoint(micro_batch=1, grad_accum=128)
    columns = from_points([(each.recipe, each.layout, batch) for each in candidates], find_cluster("4xH100"))
    step_time_s = predict(columns).step.total_s
    assert np.all(np.isfinite(step_time_s) & (step_time_s > 0))


@pytest.mark.parametrize("attention", ["sdpa", "flex"])
def test_it_is_built_and_computes_the_same_by_every_attention(attention: Attention) -> None:
    sizes: dict[str, Any] = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "vocab_size": 97}
    spec = ModelSpec(name="small", architecture="qwen2", ffn_size=88, init_std=0.2, **sizes)
    tokens = torch.arange(48).reshape(2, 24)
    logits: list[torch.Tensor] = []
    for each in ("eager", attention):
        model = build(spec, attention=each)
        weights.materialise(model.module, names=model.names, seed=3, std=0.2, device=torch.device("cpu"))
        logits.append(model.module(tokens).logits)
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-4, atol=1e-5)
