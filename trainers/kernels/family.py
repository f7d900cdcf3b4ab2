"""The kernels that stand in for modules of transformers in one family, by the name that its architecture gives."""

import functools
import importlib

from torch import nn

from trainers.kernels.attention import Share
from trainers.spec.architectures import architecture_of
from trainers.spec.layout_axes import Attention


class FamilyKernels:
    """Replaces modules of one family, in place. This one replaces none: attention goes through transformers' registry.

    A family's module defines a subclass and an instance of it, `KERNELS`.
    """

    def use_attention(self, model: nn.Module, num_heads: int, attention: Attention) -> None:
        """Replaces attention modules that cannot run `attention`."""

    def share_attention(self, module: nn.Module, share: Share) -> None:
        """Makes an attention module compute `share`."""
        setattr(module, "share", share)  # noqa: B010  # torch types any attribute as a tensor or a module

    def fuse_mlp(self, model: nn.Module) -> None:
        """Replaces the feed-forward modules by those of `trainers.kernels.mlp`."""

    def attention_in_effect(self, model: nn.Module, configured: str) -> str:
        """Returns the layout's word for the attention that `model` runs, where its configuration has `configured`."""
        return configured


@functools.cache
def family_kernels(architecture: str) -> FamilyKernels:
    """Returns the kernels of a family; imports transformers' code of it where it has some of its own."""
    path = architecture_of(architecture).kernels
    return importlib.import_module(path).KERNELS if path else FamilyKernels()
