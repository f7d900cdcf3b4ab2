"""The architectures: families of models that can be trained. A new one is a file here and a line in `_REGISTRY`."""

import functools
import importlib

from trainers.spec.architectures.architecture import Architecture

_REGISTRY = {
    "bloom": "trainers.spec.architectures.bloom:ARCHITECTURE",
    "gpt2": "trainers.spec.architectures.gpt2:ARCHITECTURE",
    "gpt_neox": "trainers.spec.architectures.gpt_neox:ARCHITECTURE",
    "llama": "trainers.spec.architectures.llama:ARCHITECTURE",
    "qwen2": "trainers.spec.architectures.qwen2:ARCHITECTURE",
    "qwen3": "trainers.spec.architectures.qwen3:ARCHITECTURE",
    "mistral": "trainers.spec.architectures.mistral:ARCHITECTURE",
    "olmo2": "trainers.spec.architectures.olmo2:ARCHITECTURE",
    "olmo3": "trainers.spec.architectures.olmo3:ARCHITECTURE",
    "phi3": "trainers.spec.architectures.phi3:ARCHITECTURE",
    "smollm3": "trainers.spec.architectures.smollm3:ARCHITECTURE",
    "stablelm": "trainers.spec.architectures.stablelm:ARCHITECTURE",
    "glm4": "trainers.spec.architectures.glm4:ARCHITECTURE",
    "gemma3_text": "trainers.spec.architectures.gemma3_text:ARCHITECTURE",
    "glm": "trainers.spec.architectures.glm:ARCHITECTURE",
    "starcoder2": "trainers.spec.architectures.starcoder2:ARCHITECTURE",
    "nemotron": "trainers.spec.architectures.nemotron:ARCHITECTURE",
    "arcee": "trainers.spec.architectures.arcee:ARCHITECTURE",
    "seed_oss": "trainers.spec.architectures.seed_oss:ARCHITECTURE",
    "ernie4_5": "trainers.spec.architectures.ernie4_5:ARCHITECTURE",
    "exaone4": "trainers.spec.architectures.exaone4:ARCHITECTURE",
    "hunyuan_v1_dense": "trainers.spec.architectures.hunyuan_v1_dense:ARCHITECTURE",
    "internlm3": "trainers.spec.architectures.internlm3:ARCHITECTURE",
    "helium": "trainers.spec.architectures.helium:ARCHITECTURE",
    "granite": "trainers.spec.architectures.granite:ARCHITECTURE",
    "cohere2": "trainers.spec.architectures.cohere2:ARCHITECTURE",
    "ministral3": "trainers.spec.architectures.ministral3:ARCHITECTURE",
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
