"""A new family takes a declaration and a registry line: StarCoder 2, declared here, is built, searched, predicted."""

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
from trainers.models import weights
from trainers.models.model import build
from trainers.spec import architectures
from trainers.spec.architectures.architecture import Architecture
from trainers.spec.architectures.llama import ARCHITECTURE as LLAMA
from trainers.spec.batch import BatchPoint
from trainers.spec.layout_axes import Attention
from trainers.spec.model import ModelSpec

STARCODER2 = Architecture(
    name="starcoder2",
    position="rotary",
    norm_vectors=2,
    bias=True,
    gated=False,
    tied=True,
    embedding_norm=False,
    config_keys=LLAMA.config_keys,
    counted_with={"use_bias": True},
    trained_with={"sliding_window": None},
    embeddings=LLAMA.embeddings,
    blocks=LLAMA.blocks,
    final_norm=LLAMA.final_norm,
    head=LLAMA.head,
    tensor_parallel={
        "self_attn.q_proj": "colwise",
        "self_attn.k_proj": "colwise",
        "self_attn.v_proj": "colwise",
        "self_attn.o_proj": "rowwise",
        "mlp.c_fc": "colwise",
        "mlp.c_proj": "rowwise",
    },
)
STARCODER2_3B: dict[str, Any] = {
    "model_type": "starcoder2",
    "num_hidden_layers": 30,
    "hidden_size": 3072,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "intermediate_size": 12288,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds the registry line."""
    registry = architectures._REGISTRY  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setitem(registry, "starcoder2", f"{__name__}:STARCODER2")


def test_its_published_configuration_is_searched_and_predicted(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(STARCODER2_3B))
    space = search_spaces.load(str(tmp_path))
    assert space.recipe.model.num_parameters == 3_030_371_328
    candidates, rejected = space.candidates(4)
    assert candidates and not rejected
    assert space.miniature is not None and space.miniature.recipe.model.architecture == "starcoder2"
    batch = BatchPoint(micro_batch=1, grad_accum=128)
    columns = from_points(
        [(candidate.recipe, candidate.layout, batch) for candidate in candidates], find_cluster("4xH100")
    )
    step_time_s = predict(columns).step.total_s
    assert np.all(np.isfinite(step_time_s) & (step_time_s > 0))


@pytest.mark.parametrize("attention", ["sdpa", "flex"])
def test_it_is_built_and_computes_the_same_by_every_attention(attention: Attention) -> None:
    sizes: dict[str, Any] = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "vocab_size": 97}
    spec = ModelSpec(name="small", architecture="starcoder2", ffn_size=88, init_std=0.2, **sizes)
    tokens = torch.arange(48).reshape(2, 24)
    logits: list[torch.Tensor] = []
    for kernel in ("eager", attention):
        model = build(spec, attention=kernel)
        weights.materialise(model.module, names=model.names, seed=3, std=0.2, device=torch.device("cpu"))
        logits.append(model.module(tokens).logits)
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-4, atol=1e-5)
