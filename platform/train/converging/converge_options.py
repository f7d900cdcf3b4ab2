"""The options of `platform.converge`, as one value."""

import dataclasses
from pathlib import Path

from platform.report.image_formats import FORMATS


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ConvergeOptions:
    """The options of one call."""

    targets: tuple[str, ...]
    """Studies, layout files, or changes to the first of these such as "optimizer=adafactor"."""
    studies: Path
    """Absolute path of the studies' folder."""
    out: Path | None
    """Absolute path of the comparison's folder; None for `convergence` beside the first target's layout."""
    steps: int
    """Optimizer steps of the first target; the others train on as many tokens."""
    seeds: int
    rates: int
    """Number of learning rates tried for each recipe before its training; 0 to scale the rate by the rule."""
    data: str | None
    val_tokens: int | None
    address: str | None
    json: bool
    trust: bool = False
    """Whether studies and folders of another user are used."""
    pictures: str = FORMATS[0]
    """File format of the picture."""
