"""Toy kind: blocks with two feed-forward parts, which every token passes."""

import json
from typing import ClassVar

from trainers.spec.blocks.kind import BlockKind, Matrix
from trainers.spec.model_sizes import ModelSizes


class _Doubled(BlockKind):
    name = "doubled"
    costs = "doubled"
    sizes: ClassVar = {**BlockKind.sizes, "doubled_ffn": lambda spec: spec.ffn_size}

    def count(self, spec: ModelSizes) -> int:
        return json.loads(spec.config or "{}").get("doubled_layers", 0)

    def parameters(self, spec: ModelSizes) -> int:
        return super().parameters(spec) + self._second(spec).values

    def product_parameters(self, spec: ModelSizes) -> int:
        return super().product_parameters(spec) + self._second(spec).values

    def matrices(self, spec: ModelSizes) -> tuple[Matrix, ...]:
        return (*super().matrices(spec), self._second(spec))

    def _second(self, spec: ModelSizes) -> Matrix:
        return Matrix(rows=spec.ffn_size, width=spec.hidden_size, count=2)


KIND = _Doubled()
