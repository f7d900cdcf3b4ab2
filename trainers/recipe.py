"""`Recipe`: everything that changes the mathematics. Only measurements of one recipe compete."""

import dataclasses
import functools
import math
from typing import Literal, get_args

from trainers.codec import identity, shortened
from trainers.spec import ModelSpec

Optimizer = Literal["adamw", "adafactor"]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
StatePrecision = Literal["fp32", "bf16"]
Compression = Literal[
    "none", "bf16", "powersgd_1", "powersgd_2", "powersgd_4", "powersgd_8", "powersgd_16", "powersgd_32"
]
DataOrder = Literal["file", "shuffled"]

LARGEST_BATCH = 10**12
"""Of a sequence's tokens, of a batch's sequences and of what a batch is cut into."""
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
    """Sequences in one optimizer step, over all ranks; 0 where `grad_accum` fixes the accumulation in its place."""
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
    grad_accum: int = dataclasses.field(default=0, metadata={"later": True})
    """Micro-steps of an optimizer step where these are fixed: the global batch then follows from the micro-batch and
    the data-parallel ranks. 0: the micro-steps follow from `global_batch`."""

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
        if self.grad_accum and self.global_batch:
            raise ValueError(
                f"a fixed grad_accum makes the global batch follow from it: give one of them, got grad_accum"
                f" {self.grad_accum} and global_batch {self.global_batch}"
            )
        for field in ("seq_len", "grad_accum" if self.grad_accum else "global_batch"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, got {getattr(self, field)}")
            if getattr(self, field) > LARGEST_BATCH:
                raise ValueError(f"{field} must be at most 10^12, got {shortened(getattr(self, field))}")
        for field in ("learning_rate", "epsilon"):
            if not 0 < getattr(self, field) < math.inf:
                raise ValueError(f"{field} must be a finite number above 0, got {getattr(self, field)}")
        for field in ("weight_decay", "grad_clip", "seed"):
            if not 0 <= getattr(self, field) < 2**63:
                raise ValueError(f"{field} must lie in [0, 2^63), got {shortened(getattr(self, field))}")
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
        """Tokens in one optimizer step, over all ranks; with a fixed `grad_accum` those of one sequence a micro-step
        on one rank, so that all its batch points compare by the time that so many tokens take.
        """
        return (self.global_batch or self.grad_accum) * self.seq_len

    def of_batch(self, global_batch: int) -> "Recipe":
        """The recipe at that global batch, which fixes no accumulation: what a batch point trains."""
        return dataclasses.replace(self, global_batch=global_batch, grad_accum=0)

    @property
    def label(self) -> str:
        """One line for people: model, length, batch, optimizer and precisions."""
        parts = [
            self.model.name,
            f"length {self.seq_len}",
            f"accumulation {self.grad_accum}" if self.grad_accum else f"global batch {self.global_batch}",
            self.optimizer,
            f"{self.compute_precision} compute",
            f"{self.state_precision} states",
        ]
        if self.compression != "none":
            parts.append(f"{self.compression} compression")
        return ", ".join(parts)


# A search of many layouts asks for the one recipe's hash once for each.
_identity = functools.lru_cache(maxsize=64)(identity)
