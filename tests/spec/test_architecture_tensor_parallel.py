"""The plan by which each architecture's blocks are cut, compared with transformers' own tables and its modules."""

import pytest
import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.contract.mesh_cases import MODELS
from trainers.models.model import build
from trainers.spec import architectures
from trainers.spec.architectures import architecture_of


@pytest.mark.parametrize("name", ["llama", "gpt_neox"])
def test_a_plan_is_the_table_of_transformers_where_it_has_one(name: str) -> None:
    table: dict[str, str] = getattr(CONFIG_MAPPING[name], "base_model_tp_plan")  # noqa: B009  # in no stub
    assert {f"layers.*.{path}": kind for path, kind in architecture_of(name).tensor_parallel.items()} == table


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_names_every_linear_layer_of_a_block_and_attention_first(name: str) -> None:
    spec = MODELS[name]
    model = build(spec, attention="sdpa")
    family = architecture_of(spec.architecture)
    with_matrix = {
        path
        for path, module in model.blocks[0].named_modules()
        if isinstance(weight := getattr(module, "weight", None), torch.Tensor) and weight.dim() == 2
    }
    assert set(family.tensor_parallel) == with_matrix
    assert "attention" in type(model.blocks[0].get_submodule(family.attention_path)).__name__.lower()


def test_every_architecture_has_a_plan() -> None:
    assert [name for name in architectures.names() if not architecture_of(name).tensor_parallel] == []
