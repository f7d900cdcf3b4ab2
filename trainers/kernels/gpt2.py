"""GPT-2's fused feed-forward block, with GELU inside its products."""

import torch
from torch import nn
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

from trainers.kernels.family import FamilyKernels
from trainers.kernels.mlp import FusedMlp, fuse, gelu_mlp


class _FusedMlp(FusedMlp, GPT2MLP):
    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gelu_mlp(hidden_states, self.c_fc, self.c_proj)


class _Gpt2Kernels(FamilyKernels):
    def fuse_mlp(self, model: nn.Module) -> None:
        fuse(model, GPT2MLP, _FusedMlp)


KERNELS = _Gpt2Kernels()
