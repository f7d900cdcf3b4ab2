"""`Recipe`: everything that changes the mathematics. Only measurements of one recipe compete."""

import dataclasses
import functools
from typing import Literal, get_args

from trainers.codec import identity
from trainers.spec import ModelSpec

Optimizer = Literal["adamw", "adafactor"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
StatePrecision = Literal["fp32", "bf16"]
Compression = Literal[
    "none", "bf16", "powersgd_1", "powersgd_2", "powersgd_4", "powersgd_8", "powersgd_16", "powersgd_32"
]

DataOrder = Literal["file", "shuffled"]

STREAM = "stream"
"""The value of `Recipe.data` that means the seeded, learnable stream."""
INCLUDED = "included"
"""The value of `Recipe.data` that means the text in `trainers/text/`, read byte by byte."""


@dataclasses.dataclass(frozen=True, kw_only=True)  # no slots: the id is kept beside the fields
class Recipe:
    """Model, batch, optimizer, precisions and data of one training run.

    Raises:
        ValueError: a size or rate out of range, a sequence longer than the model's positions, an unknown name.
    """

    model: ModelSpec
    seq_len: int
    """Tokens in one sequence."""
    global_batch: int
    """Sequences in one optimizer step, over all ranks."""
    optimizer: Optimizer = "adamw"
    """"adafactor" is that of transformers with a fixed learning rate, no first moment and updates clipped at 1."""
    compute_precision: Precision = "bf16"
    """Type of the matrix products; "tf32" is fp32 storage with TF32 products, another mathematics than "fp32"."""
    state_precision: StatePrecision = "fp32"
    """Type of master weights, optimizer states and gradients' sums, over micro-steps and over ranks."""
    compression: Compression = "none"
    """What DDP's gradients are squeezed into before they are exchanged: bf16, or PowerSGD's factors of that rank
    (arXiv 1905.13727) from the second optimizer step on."""
    learning_rate: float = 1e-4
    weight_decay: float = 0.1
    beta1: float = 0.9
    """AdamW's alone, as are `beta2` and `epsilon`."""
    beta2: float = 0.95
    epsilon: float = 1e-8
    grad_clip: float = 1.0
    """Largest global gradient norm; 0 for no clipping."""
    data: str = STREAM
    """STREAM, INCLUDED, or the path of a Parquet file or folder with a column of token ids."""
    seed: int = 0
    data_order: DataOrder = dataclasses.field(default="file", metadata={"later": True})
    """Order of a file's sequences in an epoch: as they lie there, or "shuffled" by (seed, epoch)."""

    def __post_init__(self) -> None:
        for field, names in (
            ("optimizer", Optimizer),
            ("compute_precision", Precision),
            ("state_precision", StatePrecision),
            ("compression", Compression),
            ("data_order", DataOrder),
        ):
            if getattr(self, field) not in get_args(names):
                raise ValueError(f"{field} must be one of {', '.join(get_args(names))}, got {getattr(self, field)!r}")
        for field in ("seq_len", "global_batch"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, got {getattr(self, field)}")
            if getattr(self, field) > 10**12:
                raise ValueError(f"{field} must be at most 10^12, got {getattr(self, field)}")
        for field in ("learning_rate", "epsilon"):
            if not getattr(self, field) > 0:
                raise ValueError(f"{field} must be above 0, got {getattr(self, field)}")
        for field in ("weight_decay", "grad_clip", "seed"):
            if not getattr(self, field) >= 0:
                raise ValueError(f"{field} must not be negative, got {getattr(self, field)}")
        for field in ("beta1", "beta2"):
            if not 0 <= getattr(self, field) < 1:
                raise ValueError(f"{field} must lie in [0, 1), got {getattr(self, field)}")
        if self.model.max_positions and self.seq_len > self.model.max_positions:
            raise ValueError(
                f"seq_len {self.seq_len} is longer than the {self.model.max_positions} positions of {self.model.name}"
            )

    @functools.cached_property
    def id(self) -> str:
        """Hash of what defines the recipe."""
        return _identity(self)

    @property
    def powersgd_rank(self) -> int:
        """Rank of the factors that PowerSGD exchanges; 0 where gradients are not factored."""
        name, _, rank = self.compression.partition("_")
        return int(rank) if name == "powersgd" else 0

    @property
    def tokens_per_step(self) -> int:
        """Tokens in one optimizer step, over all ranks."""
        return self.global_batch * self.seq_len

    @property
    def label(self) -> str:
        """One line for people: model, length, batch, optimizer and precisions."""
        parts = [
            self.model.name,
            f"length {self.seq_len}",
            f"global batch {self.global_batch}",
            self.optimizer,
            f"{self.compute_precision} compute",
            f"{self.state_precision} states",
        ]
        if self.compression != "none":
            parts.append(f"{self.compression} compression")
        return ", ".join(parts)


# A search of many layouts asks for the one recipe's hash once for each.
_identity = functools.lru_cache(maxsize=64)(identity)
