"""What the options of `platform.converge` ask for, as one value."""

import dataclasses
from pathlib import Path

from platform.reports.saving import FORMATS


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ConvergeOptions:
    """The options of one call."""

    targets: tuple[str, ...]
    """Studies, layout files, and changes such as "optimizer=adafactor" to the first of these."""
    studies: Path
    """Absolute."""
    out: Path | None
    """Absolute: the comparison's folder; None for `convergence` beside the first target's layout."""
    steps: int
    """Optimizer steps of the first target; the others train on as many tokens."""
    seeds: int
    rates: int
    """Learning rates that are tried for each recipe before it is trained; 0 for the rule."""
    data: str | None
    val_tokens: int | None
    address: str | None
    json: bool
    pictures: str = FORMATS[0]
    """The picture's format."""
