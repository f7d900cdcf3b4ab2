"""The architectures: families of models that can be trained. A new one is a file here, with its `ARCHITECTURE`."""

import functools
import importlib
from pathlib import Path

from trainers.spec.architectures.architecture import Architecture

_SHARED = ("__init__", "architecture", "experts", "llama_like", "windows")
"""Files that are no family's."""


@functools.cache
def names() -> tuple[str, ...]:
    """Returns the names of all architectures, which are the `model_type`s of transformers."""
    return tuple(sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in _SHARED))


@functools.cache
def architecture_of(name: str) -> Architecture:
    """Returns the declaration of the architecture of that name.

    Raises:
        ValueError: no such architecture.
    """
    if name not in names():
        raise ValueError(f"unknown architecture {name!r}: this project knows {', '.join(names())}")
    return importlib.import_module(f"{__name__}.{name}").ARCHITECTURE
