"""The options of `platform.train`, as one value."""

import dataclasses
from pathlib import Path

from trainers.records.training import ScheduleKind
from trainers.spec.recipe import DataOrder


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PhaseOption:
    """A phase, as given by `--phase`."""

    tokens: int
    """Length of the phase, in tokens."""
    global_batch: int
    layout: Path | None = None
    """File with the phase's layout; None for the training's layout."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainOptions:
    """The options of one call."""

    target: str
    """A study's name or folder, or a file with a layout."""
    studies: Path
    """Absolute path of the studies' folder."""
    tokens: int
    out: Path | None = None
    """Folder of the training; None for the default beside the target."""
    data: str | None = None
    data_order: DataOrder | None = None
    recipe: str | None = None
    """The recipe's id, needed where a study has several."""
    learning_rate: float | None = None
    lr_schedule: ScheduleKind = "cosine"
    warmup_tokens: int | None = None
    decay_tokens: int | None = None
    final_share: float | None = None
    val_tokens: int | None = None
    val_every: int | None = None
    val_data: str | None = None
    phases: tuple[PhaseOption, ...] = ()
    """Phases before the last one, which has the recipe's global batch."""
    start_from: str | None = None
    seed: int | None = None
    verify_data: bool = False
    """Whether every byte of the token files is compared."""
    checkpoint_s: float = 600.0
    checkpoint_steps: int | None = None
    keep: int = 2
    grace: float | None = None
    """Seconds after an interrupt in which a checkpoint must be complete; None for no limit."""
    address: str | None = None
    trust: bool = False
    """Whether a study, training or folder of another user is used."""
    json: bool = False
