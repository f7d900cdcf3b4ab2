"""The versions of packages that a study writes down."""

import importlib.metadata

import pytest

from platform.common import checkout


def test_optional_packages_are_named_where_they_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = type("Distribution", (), {"version": "0.6.5"})
    monkeypatch.setattr(
        importlib.metadata, "distributions", lambda name: [installed] if name == "quack-kernels" else []
    )
    versions = checkout.versions()
    assert versions["quack-kernels"] == "0.6.5" and not {"flash-attn-4", "torchao"} & versions.keys()
