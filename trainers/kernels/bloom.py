"""BLOOM's attention with any kernel, and its fused feed-forward block. transformers 5.23 computes BLOOM's ALiBi itself
and supports eager attention only.

Assumptions on transformers: the names and layout of the weights, which its checkpoints fix; a block calls
`self_attention(hidden, residual, attention_mask=...)` and expects an output with the residual added; the model's mask
comes from the registry of mask functions. `tests/kernels/test_kernels.py` checks them.
"""

from typing import Any

import torch
from torch import nn
from transformers.models.bloom.modeling_bloom import BloomAttention, BloomMLP

from trainers.kernels.attention import ScoreMod, Share, alibi_score, attend, flex_options_of
from trainers.kernels.family import FamilyKernels
from trainers.kernels.mlp import FusedMlp, fuse, gelu_mlp
from trainers.spec.layout_axes import Attention


class AlibiAttention(BloomAttention):
    """BLOOM's attention, computed by `attend`; ignores the ALiBi tensor that it gets."""

    num_heads: int
    head_dim: int
    score_mod: ScoreMod
    flex_options: dict[str, str] | None
    share: Share | None

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the other arguments are not needed
        self, hidden_states: torch.Tensor, residual: torch.Tensor, *, attention_mask: Any, **_: Any
    ) -> tuple[torch.Tensor, None]:
        batch, length, _width = hidden_states.shape
        fused = self.query_key_value(hidden_states).view(batch, length, self.num_heads, 3, self.head_dim)
        query, key, value = (part.transpose(1, 2) for part in fused.unbind(3))
        context, _probabilities = attend(
            self, query, key, value, attention_mask, self.head_dim**-0.5, self.flex_options
        )
        return residual + self.dense(context.reshape(batch, length, -1)), None


def _with_own_slopes(module: Any, args: Any, kwargs: Any) -> Any:
    """Returns the arguments of BLOOM's eager attention with this rank's heads' biases, [batch x heads, 1, keys]."""
    share: Share = module.share
    biases = kwargs["alibi"].unflatten(0, (-1, share.num_heads))
    return args, {**kwargs, "alibi": biases[:, share.heads.start : share.heads.stop].flatten(0, 1)}


class _FusedMlp(FusedMlp, BloomMLP):
    def forward(self, hidden_states: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + gelu_mlp(hidden_states, self.dense_h_to_4h, self.dense_4h_to_h)


class _BloomKernels(FamilyKernels):
    def use_attention(self, model: nn.Module, num_heads: int, attention: Attention) -> None:
        """Replaces every attention module of a BLOOM in place; parameters and their names stay."""
        if attention == "eager":
            return
        score_mod = alibi_score(Share(num_heads=num_heads, heads=range(num_heads)))
        module: Any  # otherwise a checker would not allow the attributes
        for module in model.modules():
            if type(module) is BloomAttention:
                module.__class__ = AlibiAttention
                # Torch types all attributes this way.
                module.score_mod = score_mod  # pyright: ignore[reportArgumentType]
                module.flex_options = flex_options_of(attention)  # pyright: ignore[reportArgumentType]

    def share_attention(self, module: Any, share: Share) -> None:
        """Makes an attention module compute `share`; its heads keep their ALiBi slopes of the whole model."""
        module.share = share
        if isinstance(module, AlibiAttention):
            module.score_mod = alibi_score(share)
        elif len(share.heads) < share.num_heads:
            module.register_forward_pre_hook(_with_own_slopes, with_kwargs=True)

    def fuse_mlp(self, model: nn.Module) -> None:
        fuse(model, BloomMLP, _FusedMlp)

    def attention_in_effect(self, model: nn.Module, configured: str) -> str:
        """Returns the configuration's kernel `configured`, or the kinds of attention modules if they do not match."""
        kinds = {type(module).__name__ for module in model.modules() if isinstance(module, BloomAttention)}
        expected = "BloomAttention" if configured == "eager" else "AlibiAttention"
        return configured if kinds <= {expected} else "+".join(sorted(kinds))


KERNELS = _BloomKernels()
