"""Blocks with experts and sliding-window attention."""

from trainers.spec.blocks.experts import Experts
from trainers.spec.blocks.windowed import Windowed
from trainers.spec.model_sizes import ModelSizes


class _WindowedExperts(Experts, Windowed):
    name = "windowed_experts"

    def count(self, spec: ModelSizes) -> int:
        return spec.window_layers if spec.num_experts else 0


KIND = _WindowedExperts()
