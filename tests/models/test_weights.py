"""Initial weights depend on seed and name alone."""

import subprocess
import sys

import pytest
import torch

from trainers.models.model import build
from trainers.models.weights import draw, materialise
from trainers.spec.model import ModelSpec

CPU = torch.device("cpu")
BLOOM = ModelSpec(name="bloom", architecture="bloom", num_layers=2, hidden_size=32, num_heads=4, vocab_size=97)


def _draw(name: str = "h.0.weight", *, seed: int = 1, shape: tuple[int, ...] = (64, 64)) -> torch.Tensor:
    return draw(name, torch.Size(shape), seed=seed, std=0.02, device=CPU)


def test_seed_and_name_decide() -> None:
    torch.manual_seed(0)
    first = _draw()
    torch.rand(10)
    assert torch.equal(first, _draw())
    assert not torch.equal(first, _draw(seed=2))
    assert not torch.equal(first, _draw("h.1.weight"))


@pytest.mark.slow
def test_another_process_draws_the_same() -> None:
    code = (
        "import torch; from trainers.models.weights import draw;"
        "print(draw('h.0.weight', torch.Size((64, 64)), seed=1, std=0.02, device=torch.device('cpu')).sum().item())"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert float(printed) == _draw().sum().item()


def test_the_kind_of_parameter_decides_the_distribution() -> None:
    matrix = _draw(shape=(500, 400))
    assert matrix.std().item() == pytest.approx(0.02, rel=0.02)
    assert matrix.mean().item() == pytest.approx(0.0, abs=2e-4)
    assert torch.equal(_draw("h.0.ln.weight", shape=(32,)), torch.ones(32))
    assert torch.equal(_draw("h.0.ln.bias", shape=(32,)), torch.zeros(32))


def test_parts_give_the_whole_model_and_ties_hold() -> None:
    full_model, parts = (build(BLOOM, attention="eager") for _ in range(2))
    materialise(full_model.module, names=full_model.names, seed=5, std=0.02, device=CPU)
    for part in (*parts.blocks, parts.module):
        materialise(part, names=parts.names, seed=5, std=0.02, device=CPU)
    for (name, weight), (other_name, other) in zip(
        full_model.module.named_parameters(), parts.module.named_parameters(), strict=True
    ):
        assert name == other_name
        assert torch.equal(weight, other)
    head = parts.module.get_parameter("lm_head.weight")
    assert head is parts.module.get_parameter("transformer.word_embeddings.weight")
    assert not any(parameter.is_meta for parameter in parts.module.parameters())
