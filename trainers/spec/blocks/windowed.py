"""Blocks whose queries see a sliding window of the tokens before them."""

from trainers.spec.blocks.kind import BlockKind
from trainers.spec.model_sizes import ModelSizes


class Windowed(BlockKind):
    """Blocks with a window and without experts."""

    name = "windowed"

    def count(self, spec: ModelSizes) -> int:
        return 0 if spec.num_experts else spec.window_layers

    def keys_per_query(self, spec: ModelSizes, seq_len: int) -> float:
        """Returns the window less the triangle at the sequence's begin."""
        window = min(spec.window or seq_len, seq_len)
        return window - window * window / (2 * seq_len)


KIND = Windowed()
