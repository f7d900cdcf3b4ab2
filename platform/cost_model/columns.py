"""`Columns`: layout x batch points as columns of numbers, so that array formulas predict a million of them at once.

A field is a float array with one value per point, or a 0-d array if all points agree: formulas broadcast, so that
shared values are computed once.
"""

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from platform.cost_model.column_groups import Array, DeviceColumns, LayoutColumns, Mask, ModelColumns, Software
from trainers.spec.axis import axes_of, choices_of
from trainers.spec.blocks import KINDS
from trainers.spec.degree import Cut
from trainers.spec.layout import Layout
from trainers.spec.layout_axes import AXES, CUTTING, DATA_PARALLEL, MODEL_PARALLEL, PLACED

__all__ = ["FIELDS", "Array", "Columns", "Mask", "Software", "checkpointed_share", "code_of", "from_rows"]

CHUNK_LOGITS = 2.0**30
"""Logits of a chunk in `trainers/kernels/head.py`, repeated here because that module imports torch."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Columns(ModelColumns, LayoutColumns, DeviceColumns):
    """One row per point."""

    blocks: Mapping[str, Array]
    """Shares of the model's blocks by kind of costs, and sizes of single kinds of blocks; see `BLOCK_COLUMNS`."""
    degrees: Mapping[str, Array]
    """The values of `DEGREES`."""
    axes: Mapping[str, Array]
    """Values of the layouts' `ENGINE_AXES`; words are encoded by `code_of`."""
    software: Software = dataclasses.field(default_factory=Software)

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> "Columns":
        """Returns the columns of `arrays`, which must have all names of `FIELDS`."""
        fields, software, blocks, degrees, axes = ({name: arrays[name] for name in names} for names in _GROUPS)
        return cls(**fields, software=Software(**software), blocks=blocks, degrees=degrees, axes=axes)

    def arrays(self) -> dict[str, Array]:
        """Returns every array by its name in `FIELDS`."""
        fields, software, *_ = _GROUPS
        return {
            **{name: getattr(self, name) for name in fields},
            **{name: getattr(self.software, name) for name in software},
            **self.blocks,
            **self.degrees,
            **self.axes,
        }

    @property
    def shape(self) -> tuple[int, ...]:
        """The common shape of all arrays."""
        return np.broadcast_shapes(*(value.shape for value in self.arrays().values()))

    def ranks(self, degrees: Iterable[str]) -> Array:
        """Returns the number of ranks of these degrees together."""
        return math.prod((self.degrees[name] for name in degrees), start=np.ones(()))

    def parts(self, cut: Cut) -> Array:
        """Returns the number of parts into which `cut` is divided over ranks."""
        return self.ranks(["dp"] if cut == "samples" else CUTTING[cut])

    @property
    def dp(self) -> Array:
        """Number of ranks with different sequences."""
        return self.parts("samples")

    @property
    def tp(self) -> Array:
        """Number of ranks that share the width of layers."""
        return self.parts("width")

    @property
    def pp(self) -> Array:
        """Number of ranks that share the blocks of the model."""
        return self.parts("depth")

    @property
    def cp(self) -> Array:
        """Number of ranks that share the tokens of each sequence."""
        return self.parts("tokens")

    @property
    def tokens(self) -> Array:
        """Tokens of one micro-batch on a rank."""
        return self.micro_batch * self.seq_len / self.parts("tokens")

    @property
    def rank_block(self) -> Array:
        """Parameters of a block on a rank, mean over all blocks."""
        return self.layer_parameters / self.parts("width")

    @property
    def gathered_block(self) -> Array:
        """Parameters of a block with gathered shards on a rank (of experts only its own), mean over all blocks."""
        return self.rank_block - self.shared_out * (1 - 1 / self.parts("experts"))

    @property
    def shared_out(self) -> Array:
        """Parameters of a block that expert parallelism divides over ranks, mean over all blocks."""
        return self.blocks["expert_parameters"] * self.blocks["experts_share"]

    @property
    def rank_table(self) -> Array:
        return self.table_parameters / self.parts("width")

    @property
    def has_adapters(self) -> bool:
        """Whether any row trains adapters on frozen weights."""
        return bool(np.any(self.adapter_rank > 0))

    @property
    def adapter_block(self) -> Array:
        """Parameters of a block's adapters on a rank."""
        return self.adapter_rank * (self.adapted_inputs + self.adapted_outputs) / self.parts("width")

    def trained(self, parameters: Array) -> Array:
        """Returns the number of trained parameters of a rank with these model parameters: all of them, or its adapters
        (never combined with a pipeline).
        """
        if not self.has_adapters:
            return parameters
        return np.where(self.adapter_rank > 0, self.layers * self.adapter_block, parameters)

    def frozen(self, parameters: Array) -> Array:
        """Returns the number of frozen parameters of a rank with these model parameters."""
        return np.where(self.adapter_rank > 0, parameters, 0.0)

    @property
    def is_piped(self) -> Mask:
        """The rows with a pipeline."""
        return self.parts("depth") > 1

    @property
    def tokens_per_step(self) -> Array:
        """Tokens in one optimizer step, over all ranks."""
        return self.global_batch * self.seq_len

    def with_fullest(self, fullest: float) -> "Columns":
        """Returns the columns with `fullest`: exchanged expert rows on the fullest rank divided by the mean."""
        return dataclasses.replace(self, blocks={**self.blocks, "fullest": self.blocks["fullest"] * 0 + fullest})

    def flat(self) -> "Columns":
        """Returns a grid as one row per point; arrays that all points share stay 0-d."""
        shape = self.shape
        return self._each(lambda value: value if value.ndim == 0 else np.broadcast_to(value, shape).reshape(-1))

    def take(self, index: Any) -> "Columns":
        """Returns the rows (last axis) that `index`, a mask, slice or positions, selects; shared arrays stay."""
        return self._each(lambda value: value[..., index] if value.ndim == 1 or value.shape[-1:] > (1,) else value)

    def _each(self, change: Callable[[Array], Array]) -> "Columns":
        return Columns.of({name: change(value) for name, value in self.arrays().items()})


def checkpointed_share(c: Columns) -> Array:
    """Returns the share of the blocks that full checkpointing recomputes."""
    return np.ceil(c.layers / c.checkpoint_every) / c.layers


DEGREES = ("dp", *MODEL_PARALLEL)
"""Degrees along which groups of ranks communicate; data parallelism is one degree."""
MESH = tuple(dict.fromkeys("dp" if name in DATA_PARALLEL else name for name in PLACED))
"""`DEGREES` by their position in the mesh, outermost first."""
NUMBERING = tuple(name for name in DEGREES if name == "dp" or name in AXES)
"""Degrees whose product is the number of all ranks."""
ENGINE_AXES = tuple(name for name, declared in axes_of(Layout).items() if declared.of_some_engines)
"""Axes that apply only to engines whose rules name them; the engines' costs read them by name."""
BLOCK_COLUMNS = tuple(dict.fromkeys(name for kind in KINDS for name in (f"{kind.costs}_share", *kind.sizes)))
"""The share of blocks with each kind of costs, and the sizes that kinds declare."""
SOFTWARE_COLUMNS = tuple(field.name for field in dataclasses.fields(Software))
_OWN_FIELDS = tuple(
    field.name for field in dataclasses.fields(Columns) if field.name not in ("axes", "blocks", "degrees", "software")
)
_GROUPS = (_OWN_FIELDS, SOFTWARE_COLUMNS, BLOCK_COLUMNS, DEGREES, ENGINE_AXES)
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
