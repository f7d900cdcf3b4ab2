"""Sizes and durations of a probe's measurements on each kind of device."""

import dataclasses

from trainers.records.probe import OPERATIONS, Operation

COPY_BYTES = {"cuda": 2**30, "cpu": 2**26}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProbeSize:
    """Sizes and seconds of a probe's measurements on one kind of device."""

    precisions: tuple[str, ...]
    product_sizes: tuple[int, ...]
    product_s: float
    """Seconds for each size and precision."""
    message_bytes: tuple[int, ...]
    """Sizes of collectives, ascending; the larger ones are skipped if time is short."""
    collective_s: float
    """Seconds for each operation and size."""
    operations: tuple[Operation, ...] = OPERATIONS


WHOLE = {
    "cuda": ProbeSize(
        precisions=("bf16", "fp16", "tf32", "fp32"),
        product_sizes=(1024, 2048, 4096, 8192),
        product_s=0.2,
        message_bytes=(2**16, 2**19, 2**22, 2**25, 2**28),
        collective_s=0.1,
    ),
    "cpu": ProbeSize(
        precisions=("fp32", "bf16"),
        product_sizes=(256, 512, 1024),
        product_s=0.1,
        message_bytes=(2**16, 2**18, 2**20, 2**22, 2**24),
        collective_s=0.05,
    ),
}


def short_size(kind: str, precision: str) -> ProbeSize:
    """Returns the size of the short probe in a study's first trial, whose products are in `precision`."""
    long = WHOLE[kind]
    return dataclasses.replace(
        long,
        precisions=tuple(name for name in long.precisions if name == precision),
        product_sizes=long.product_sizes[-1:] if kind == "cuda" else long.product_sizes[1:2],
        collective_s=long.collective_s / 4,
        operations=OPERATIONS[:2],
    )
