"""Blocks with sliding-window attention."""

from trainers.spec.blocks.kind import BlockKind
from trainers.spec.model_sizes import ModelSizes


class Windowed(BlockKind):
    """Blocks with a sliding window and without experts."""

    name = "windowed"

    def count(self, spec: ModelSizes) -> int:
        return 0 if spec.num_experts else spec.window_layers

    def keys_per_query(self, spec: ModelSizes, seq_len: int) -> float:
        """Returns the window, less the share of queries at the sequence's start that have fewer keys."""
        window = min(spec.window or seq_len, seq_len)
        return window - window * window / (2 * seq_len)


KIND = Windowed()
