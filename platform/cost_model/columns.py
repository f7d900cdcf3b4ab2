"""`Columns`: layout x batch points as columns of numbers, so that a million of them are predicted by array formulas.

A field is a float array of one common length, or a 0-d array where all points agree: formulas broadcast, so shared
values are computed once.
"""

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from platform.cost_model.column_groups import Array, DeviceColumns, LayoutColumns, Mask, ModelColumns, Software
from trainers.spec.axis import axes_of, choices_of
from trainers.spec.blocks import KINDS
from trainers.spec.layout import Layout

__all__ = ["FIELDS", "Array", "Columns", "Mask", "Software", "checkpointed_share", "code_of", "from_rows"]

CHUNK_LOGITS = 2.0**30
"""Logits of a chunk in `trainers/kernels/head.py`, which imports torch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns(ModelColumns, LayoutColumns, DeviceColumns):
    """One row per point."""

    blocks: Mapping[str, Array]
    """Shares of the model's blocks by their costs, and sizes that only some kinds of blocks have; see `BLOCK_COLUMNS`.
    """
    axes: Mapping[str, Array]
    """Values of `ENGINE_AXES` in the layouts; for words, the `code_of` each."""
    software: Software = dataclasses.field(default_factory=Software)

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> "Columns":
        """Returns the columns of `arrays`, which has every name of `FIELDS`."""
        fields, software, blocks, axes = ({name: arrays[name] for name in names} for names in _GROUPS)
        return cls(**fields, software=Software(**software), blocks=blocks, axes=axes)

    def arrays(self) -> dict[str, Array]:
        """Returns every array by its name in `FIELDS`."""
        fields, software, *_ = _GROUPS
        return {
            **{name: getattr(self, name) for name in fields},
            **{name: getattr(self.software, name) for name in software},
            **self.blocks,
            **self.axes,
        }

    @property
    def shape(self) -> tuple[int, ...]:
        """The common shape of all arrays."""
        return np.broadcast_shapes(*(value.shape for value in self.arrays().values()))

    @property
    def tokens_per_step(self) -> Array:
        """Tokens in one optimizer step, over all ranks."""
        return self.global_batch * self.seq_len

    def flat(self) -> "Columns":
        """Returns a grid with one row per point; arrays that all points share stay as they are."""
        shape = self.shape
        return self._each(lambda value: value if value.ndim == 0 else np.broadcast_to(value, shape).reshape(-1))

    def take(self, index: Any) -> "Columns":
        """Returns the rows (the last axis) that `index`, a mask, a slice or positions, selects; shared arrays stay as
        they are.
        """
        return self._each(lambda value: value[..., index] if value.ndim == 1 or value.shape[-1:] > (1,) else value)

    def _each(self, change: Callable[[Array], Array]) -> "Columns":
        return Columns.of({name: change(value) for name, value in self.arrays().items()})


def checkpointed_share(c: Columns) -> Array:
    """Returns the share of the blocks that full checkpointing recomputes."""
    return np.ceil(c.layers / c.checkpoint_every) / c.layers


ENGINE_AXES = tuple(name for name, declared in axes_of(Layout).items() if declared.of_some_engines)
"""Axes that have a meaning only in engines whose rules name them; the engines' costs read them by name."""
BLOCK_COLUMNS = tuple(dict.fromkeys(name for kind in KINDS for name in (f"{kind.costs}_share", *kind.sizes)))
"""The share of each kind's costs, and the sizes that kinds declare."""
SOFTWARE_COLUMNS = tuple(field.name for field in dataclasses.fields(Software))
_OWN_FIELDS = tuple(
    field.name for field in dataclasses.fields(Columns) if field.name not in ("axes", "blocks", "software")
)
_GROUPS = (_OWN_FIELDS, SOFTWARE_COLUMNS, BLOCK_COLUMNS, ENGINE_AXES)
FIELDS = tuple(name for names in _GROUPS for name in names)
"""Names of all arrays."""
_in_order = operator.itemgetter(*FIELDS)


def code_of(axis: str, word: str) -> int:
    """Returns the number that encodes `word`, a value of `axis`, in `Columns.axes`."""
    return choices_of(Layout)[axis].index(word)


def from_rows(rows: Sequence[Mapping[str, float]]) -> Columns:
    """Returns the columns of rows that name every field."""
    values = np.array([_in_order(row) for row in rows], dtype=np.float64).reshape(len(rows), len(FIELDS))
    return Columns.of(dict(zip(FIELDS, np.ascontiguousarray(values.T), strict=True)))
