"""Architectures: families of models that can be trained. A new family is a file here that defines `ARCHITECTURE`."""

import functools
import importlib
from pathlib import Path

from trainers.spec.architectures.architecture import Architecture

_SHARED = ("__init__", "architecture", "llama_like", "windows", "with_experts")
"""Files here that define no family."""


@functools.cache
def names() -> tuple[str, ...]:
    """Returns the names of all architectures, which equal transformers' `model_type`s."""
    return tuple(sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in _SHARED))


@functools.cache
def architecture_of(name: str) -> Architecture:
    """Returns the declaration of an architecture.

    Raises:
        ValueError: the name is unknown.
    """
    if name not in names():
        raise ValueError(f"unknown architecture {name!r}: this project knows {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}").ARCHITECTURE
