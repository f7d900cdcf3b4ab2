"""The architectures: families of models that can be trained. A new one is a file here and a line in `_REGISTRY`."""

import functools
import importlib

from trainers.architectures.architecture import Architecture

_REGISTRY = {
    "bloom": "trainers.architectures.bloom:ARCHITECTURE",
    "gpt2": "trainers.architectures.gpt2:ARCHITECTURE",
    "gpt_neox": "trainers.architectures.gpt_neox:ARCHITECTURE",
    "llama": "trainers.architectures.llama:ARCHITECTURE",
    "qwen2": "trainers.architectures.qwen2:ARCHITECTURE",
    "qwen3": "trainers.architectures.qwen3:ARCHITECTURE",
    "mistral": "trainers.architectures.mistral:ARCHITECTURE",
    "olmo2": "trainers.architectures.olmo2:ARCHITECTURE",
    "phi3": "trainers.architectures.phi3:ARCHITECTURE",
    "gemma3_text": "trainers.architectures.gemma3_text:ARCHITECTURE",
}


def names() -> tuple[str, ...]:
    """Returns the names of all architectures, which are the `model_type`s of transformers."""
    return tuple(_REGISTRY)


@functools.cache
def architecture_of(name: str) -> Architecture:
    """Returns the declaration of the architecture of that name.

    Raises:
        ValueError: no such architecture.
    """
    if name not in _REGISTRY:
        raise ValueError(f"unknown architecture {name!r}: this project knows {', '.join(_REGISTRY)}")
    module, _, attribute = _REGISTRY[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
