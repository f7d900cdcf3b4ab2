"""A new family takes a declaration: Gemma 1, declared here, is built, searched, predicted."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import search_spaces
from platform.cost_model.features import from_points
from platform.cost_model.hardware import find_cluster
from platform.cost_model.predict import predict
from trainers.models import weights
from trainers.models.model import build
from trainers.spec import architectures
from trainers.spec.architectures.llama_like import KEYS_WITH_ATTENTION_BIAS, LlamaLike
from trainers.spec.batch import BatchPoint
from trainers.spec.layout_axes import Attention
from trainers.spec.model import ModelSpec

GEMMA = LlamaLike(
    name="gemma",
    tied=True,
    norm_start=0.0,
    config_keys=KEYS_WITH_ATTENTION_BIAS,
    config_defaults={"num_key_value_heads": 16, "head_dim": 256},
)
GEMMA_2B: dict[str, Any] = {
    "model_type": "gemma",
    "num_hidden_layers": 18,
    "hidden_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "intermediate_size": 16384,
    "vocab_size": 256000,
}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds the family's file."""
    module, names = "trainers.spec.architectures.gemma", architectures.names()
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(ARCHITECTURE=GEMMA))
    monkeypatch.setattr(architectures, "names", lambda: (*names, "gemma"))


def test_its_published_configuration_is_searched_and_predicted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GEMMA_2B))
    space = search_spaces.load(str(tmp_path))
    assert space.recipe.model.num_parameters == 2_506_172_416
    candidates, rejected = space.candidates(4)
    assert candidates and not rejected
    assert space.miniature is not None and space.miniature.recipe.model.architecture == "gemma"
    batch = BatchPoint(micro_batch=1, grad_accum=128)
    columns = from_points(
        [(candidate.recipe, candidate.layout, batch) for candidate in candidates], find_cluster("4xH100")
    )
    step_time_s = predict(columns).step.total_s
    assert np.all(np.isfinite(step_time_s) & (step_time_s > 0))


@pytest.mark.parametrize("attention", ["sdpa", "flex"])
def test_it_is_built_and_computes_the_same_by_every_attention(attention: Attention) -> None:
    sizes: dict[str, Any] = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "vocab_size": 97}
    spec = ModelSpec(name="small", architecture="gemma", ffn_size=88, init_std=0.2, **sizes)
    tokens = torch.arange(48).reshape(2, 24)
    logits: list[torch.Tensor] = []
    for kernel in ("eager", attention):
        model = build(spec, attention=kernel)
        weights.materialise(
            model.module,
            names=model.names,
            seed=3,
            std=0.2,
            device=torch.device("cpu"),
            vector_start=GEMMA.vector_start,
        )
        logits.append(model.module(tokens).logits)
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-4, atol=1e-5)
