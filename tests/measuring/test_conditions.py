"""The conditions of a figure."""

import dataclasses
import importlib.metadata

import pytest

from tests.samples import CLUSTER, RECIPE, layout
from trainers.measuring.conditions import conditions_of


def test_versions_of_optional_packages_are_those_that_the_layout_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks it without them: the modules that use them are loaded late, and by compiled code."""
    monkeypatch.setattr(importlib.metadata, "version", lambda package: f"version of {package}")
    float8 = dataclasses.replace(RECIPE, compute_precision="fp8_tensorwise")
    optional = {"flash-attn-4", "quack-kernels", "torchao"}
    for recipe, kernels, expected in (
        (RECIPE, layout(), set[str]()),
        (RECIPE, layout(attention="flash4"), {"flash-attn-4"}),
        (RECIPE, layout(mlp="quack", loss="quack"), {"quack-kernels"}),
        (float8, layout(), {"torchao"}),
    ):
        versions = conditions_of(recipe, kernels, CLUSTER, "0123456").versions
        assert optional & versions.keys() == expected
        assert versions["torch"] == "version of torch"
