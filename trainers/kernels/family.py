"""The kernels that replace modules of transformers in one family, found by the architecture's `kernels`."""

import functools
import importlib

from torch import nn

from trainers.kernels.attention import Share
from trainers.spec.architectures import architecture_of
from trainers.spec.layout_axes import Attention


class FamilyKernels:
    """Replaces modules of one family in place; this base class replaces none. A family's module defines a subclass and
    an instance of it, `KERNELS`.
    """

    def use_attention(self, model: nn.Module, num_heads: int, attention: Attention) -> None:
        """Replaces attention modules that cannot run `attention`."""

    def share_attention(self, module: nn.Module, share: Share) -> None:
        """Makes an attention module compute `share`."""
        setattr(module, "share", share)  # noqa: B010  # torch types all attributes as tensors or modules

    def fuse_mlp(self, model: nn.Module) -> None:
        """Replaces the feed-forward modules by modules of `trainers.kernels.mlp`."""

    def attention_in_effect(self, model: nn.Module, configured: str) -> str:
        """Returns the layout's name for the attention that `model` runs; its configuration has `configured`."""
        return configured


@functools.cache
def family_kernels(architecture: str) -> FamilyKernels:
    """Returns the kernels of a family; imports its transformers code if the family has kernels of its own."""
    path = architecture_of(architecture).kernels
    return importlib.import_module(path).KERNELS if path else FamilyKernels()
