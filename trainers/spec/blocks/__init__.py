"""Kinds of transformer blocks. A new kind is a file here that defines `KIND`, and a file with its costs in
`platform/cost_model/blocks`. Blocks of no other kind are dense.
"""

import importlib
import pkgutil

from trainers.spec.blocks.kind import BlockKind
from trainers.spec.model_sizes import ModelSizes

DENSE = BlockKind()
KINDS: tuple[BlockKind, ...] = (
    *(
        importlib.import_module(f"{__name__}.{module.name}").KIND
        for module in pkgutil.iter_modules(__path__)
        if module.name != "kind"
    ),
    DENSE,
)
"""All kinds, dense blocks last."""


def blocks_of(spec: ModelSizes) -> tuple[tuple[BlockKind, int], ...]:
    """Returns the kinds of the model's blocks, each with its number of blocks."""
    others = [(kind, count) for kind in KINDS[:-1] if (count := kind.count(spec))]
    dense = spec.num_layers - sum(count for _, count in others)
    return (*others, *([(DENSE, dense)] if dense else []))
