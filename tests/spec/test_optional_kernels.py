"""Kernels of optional packages: where they do not run, or were not tried, and how they are named where they lack."""

import dataclasses
import importlib.metadata
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.contract import cases
from tests.spec.support_cases import CPUS, DDP, FLOAT8, GPT2, GPUS, LAYOUT, OLD, OSS, RECIPE
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout
from trainers.spec.optional_kernels import OPTIONAL, installed_values, is_installed
from trainers.spec.recipe import Recipe
from trainers.spec.support import not_installed, refusal

ROOT = Path(__file__).parents[2]


def test_flash4_is_refused_where_it_does_not_run_or_was_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks the sentence of each reason; with the package, on a Hopper GPU, nothing refuses it."""
    wide = dataclasses.replace(GPT2, hidden_size=256, num_heads=4, max_positions=256)
    recipe = dataclasses.replace(RECIPE, model=wide, seq_len=256)
    layout = dataclasses.replace(LAYOUT, attention="flash4")
    assert "flash4 needs a CUDA device of compute capability 9.0 or more" in (refusal(recipe, layout, CPUS) or "")
    ampere = dataclasses.replace(GPUS, device="NVIDIA A100", capability=(8, 0))
    assert "got NVIDIA A100" in (refusal(recipe, layout, ampere) or "")
    assert "flash4 needs flash-attn-4>=4.0.0b36, which is not installed" in (refusal(recipe, layout, GPUS) or "")
    monkeypatch.setattr("trainers.spec.optional_kernels.OptionalKernel.is_installed", True)
    assert refusal(recipe, layout, GPUS) is None
    for axis, value, sentence in (
        ("compute_precision", "fp32", "attention flash4 supports only bf16 and fp16, got fp32"),
        (
            "attention_mask",
            "document",
            "flash4 supports only a causal mask, got document: choose attention flex",
        ),
        ("model", OSS, "flash4 does not support attention sinks, which gpt_oss has: choose attention flex"),
        ("seq_len", 192, "multiples of 128 tokens and heads of width 64 and 128, got seq_len 192"),
    ):
        assert sentence in (refusal(dataclasses.replace(recipe, **{axis: value}), layout, GPUS) or ""), axis
    split = dataclasses.replace(layout, dp_shard=1, cp=2)
    assert "attention flash4 was not tried with cp above 1: choose attention flex" in (
        refusal(recipe, split, GPUS) or ""
    )


def test_quack_kernels_are_refused_where_they_do_not_run_or_were_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(recipe: Recipe = RECIPE, layout: Layout = LAYOUT, cluster: Cluster = GPUS, **axes: Any) -> str:
        return refusal(recipe, dataclasses.replace(layout, **axes), cluster) or ""

    assert "mlp quack needs a CUDA device of compute capability 9.0 or more" in reason(cluster=CPUS, mlp="quack")
    assert "loss quack needs quack-kernels>=0.6.5, which is not installed" in reason(loss="quack")
    monkeypatch.setattr("trainers.spec.optional_kernels.OptionalKernel.is_installed", True)
    assert reason(mlp="quack", loss="quack") == ""
    fp32 = dataclasses.replace(RECIPE, compute_precision="fp32")
    assert "loss quack supports only bf16 and fp16, got fp32: choose loss chunked" in reason(fp32, loss="quack")
    float8 = dataclasses.replace(FLOAT8, seq_len=32)
    assert "loss quack supports only bf16 and fp16, got fp8_tensorwise" in reason(float8, loss="quack")
    llama = dataclasses.replace(RECIPE, model=cases.LLAMA)
    assert "with biases, which llama does not have: choose mlp plain" in reason(llama, mlp="quack")
    relu = dataclasses.replace(GPT2, config='{"activation_function": "relu"}')
    assert "which gpt2 does not have" in reason(dataclasses.replace(RECIPE, model=relu), mlp="quack")
    assert reason(llama, loss="quack") == ""
    split = dataclasses.replace(LAYOUT, dp_shard=1, dp_replicate=1, tp=2)
    assert "mlp quack was not tried with tp above 1: choose mlp plain" in reason(layout=split, mlp="quack")
    zero_3 = Layout(engine="deepspeed", zero_stage=3, dp_shard=2, grad_sync="every")
    assert "a fused block calls none, got mlp quack" in reason(layout=zero_3, mlp="quack")
    odd = dataclasses.replace(RECIPE, model=dataclasses.replace(GPT2, ffn_size=100))
    assert "multiples of 8, got hidden_size 32 and 100" in reason(odd, mlp="quack")
    assert "would keep both outputs of mlp quack" in reason(mlp="quack", checkpointing="selective")
    assert reason(mlp="quack", checkpointing="selective", compile="block") == ""
    assert "got compile model: choose compile block" in reason(**DDP, mlp="quack", compile="model")


def test_kernels_whose_packages_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = dataclasses.replace(GPT2, hidden_size=256, max_positions=256)
    recipe = dataclasses.replace(RECIPE, model=model, seq_len=256)
    points = [(recipe, dataclasses.replace(LAYOUT, tp=2)), (recipe, LAYOUT)]
    axes = ("attention", "mlp", "loss")
    assert not_installed(points, axes, GPUS) == (
        "Kernels of packages that are not installed here are not tried: attention flash4, mlp quack, loss quack (pip"
        " install 'flash-attn-4[cu13]>=4.0.0b36' 'quack-kernels[cu13]>=0.6.5')."
    )
    for other in (CPUS, OLD):
        assert not_installed(points, axes, other) is None
    assert "quack" not in (not_installed(points, axes[:1], GPUS) or "")
    assert "mlp" not in (not_installed(points[:1], axes, GPUS) or "")
    llama = dataclasses.replace(RECIPE, model=cases.LLAMA)  # heads of width 8, and no GELU
    assert "tried: loss quack (pip install 'quack-kernels" in (not_installed([(llama, LAYOUT)], axes, GPUS) or "")
    monkeypatch.setattr("trainers.spec.optional_kernels.OptionalKernel.is_installed", True)
    assert not_installed(points, axes, GPUS) is None


@pytest.mark.usefixtures("sees_optional_kernels")
@pytest.mark.parametrize(("version", "is_enough"), [("0.6.4", False), ("0.6.5", True), ("0.7.0b1", True)])
def test_an_older_package_than_was_tried_counts_as_missing(
    monkeypatch: pytest.MonkeyPatch, version: str, is_enough: bool
) -> None:
    monkeypatch.setattr("trainers.spec.optional_kernels.is_installed", is_installed.__wrapped__)
    installed = type("Distribution", (), {"version": version})
    monkeypatch.setattr(
        importlib.metadata, "distributions", lambda name: [installed] if name == "quack-kernels" else []
    )
    assert ("quack" in installed_values("loss")) == is_enough
    assert (
        "needs quack-kernels>=0.6.5, which is"
        in (refusal(RECIPE, dataclasses.replace(LAYOUT, loss="quack"), GPUS) or "")
    ) != is_enough


def test_optional_kernels_are_extras_of_the_project() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {value: extras.get(value) for _, value in OPTIONAL} == {
        value: [kernel.requirement] for (_, value), kernel in OPTIONAL.items()
    }
    page = (ROOT / "docs" / "models.md").read_text()
    assert all(f"'{kernel.requirement}'" in page for kernel in OPTIONAL.values())
