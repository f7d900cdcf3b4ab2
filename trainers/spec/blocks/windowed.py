"""Blocks whose queries see a sliding window of the tokens before them."""

from trainers.spec.blocks.kind import BlockKind
from trainers.spec.model_sizes import ModelSizes


class _Windowed(BlockKind):
    name = "windowed"

    def count(self, spec: ModelSizes) -> int:
        return spec.window_layers

    def keys_per_query(self, spec: ModelSizes, seq_len: int) -> float:
        """Returns the window less the triangle at the sequence's begin."""
        window = min(spec.window or seq_len, seq_len)
        return window - window * window / (2 * seq_len)


KIND = _Windowed()
