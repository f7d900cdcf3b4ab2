"""Kernels that the notes of a row state, since the measurement table has no column for them, are read back."""

import pytest

from platform.validate.facts import mlp_of, noted_kernels


@pytest.mark.parametrize(
    ("notes", "kernels"),
    [
        ("", {}),
        ("repeat 1; fsdp stage 2", {}),
        ("quack MLP", {"mlp": "quack"}),
        ("repeat 1; CUDA graphs", {"cuda_graphs": "on"}),
        ("quack MLP; CUDA graphs", {"mlp": "quack", "cuda_graphs": "on"}),
    ],
)
def test_noted_kernels_are_read_back(notes: str, kernels: dict[str, str]) -> None:
    assert noted_kernels(notes) == kernels
    assert mlp_of(notes) == kernels.get("mlp", "plain")
