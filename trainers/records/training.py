"""A training as values: its recipe, schedule and phases, and its workers' records. Imports no torch, no Ray."""

import dataclasses
import math
from typing import ClassVar, Literal

from trainers.records.data_content import DataContent
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

ScheduleKind = Literal["constant", "cosine", "wsd"]
FORMAT = 1
"""Version of the plan's file, raised if an older reader would misread a newer one."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LearningRateSchedule:
    """The learning rate as a function of the tokens trained on, as a share of the recipe's.

    After a linear warm-up "constant" stays at the recipe's rate. "cosine" falls along half a cosine to `final_share` at
    the last token. "wsd" (warm-up, stable, decay) stays at the recipe's rate and falls linearly to `final_share` over
    the last `decay_tokens`.

    Raises:
        ValueError: a number is out of range, or warm-up and decay overlap.
    """

    kind: ScheduleKind
    tokens: int
    """Tokens of the whole training."""
    warmup_tokens: int = 0
    decay_tokens: int = 0
    """Tokens of the final decay; only for "wsd"."""
    final_share: float = 0.0

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"a training takes at least 1 token, got {self.tokens}")
        for field in ("warmup_tokens", "decay_tokens"):
            if getattr(self, field) < 0:
                raise ValueError(f"{field} must be at least 0, got {getattr(self, field)}")
        if self.warmup_tokens + self.decay_tokens > self.tokens:
            raise ValueError(
                f"a warm-up of {self.warmup_tokens} tokens and a decay of {self.decay_tokens} exceed the"
                f" {self.tokens} tokens of the training"
            )
        if not 0 <= self.final_share <= 1:
            raise ValueError(f"final_share must lie in [0, 1], got {self.final_share}")

    def share_at(self, tokens: int) -> float:
        """Returns the share of the recipe's learning rate for the step that ends at `tokens`."""
        tokens = min(tokens, self.tokens)
        if tokens < self.warmup_tokens:
            return tokens / self.warmup_tokens
        if self.kind == "cosine":
            progress = (tokens - self.warmup_tokens) / max(1, self.tokens - self.warmup_tokens)
            return self.final_share + (1 - self.final_share) * (1 + math.cos(math.pi * progress)) / 2
        remaining_tokens = self.tokens - tokens
        if self.kind == "wsd" and remaining_tokens < self.decay_tokens:
            return self.final_share + (1 - self.final_share) * remaining_tokens / self.decay_tokens
        return 1.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPhase:
    """A part of a training with one global batch, on one layout."""

    end_tokens: int
    """Number of tokens at which it ends, counted from the training's start: with the first step that reaches it."""
    layout: Layout
    batch: BatchPoint

    @property
    def global_batch(self) -> int:
        return self.batch.global_batch(self.layout)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """Held-out loss at intervals."""

    sequences: int
    """Number of sequences: the last ones of the data, which no step trains on, or the first ones of `data`. 0 for no
    validation.
    """
    every_tokens: int
    data: str = ""
    """Path of separate data; empty to hold out sequences of the training's data."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPlan:
    """The plan of a training. Layouts and batch points may change between attempts, everything else may not.

    Raises:
        ValueError: the phases are not in order or do not end with the training.
    """

    recipe: Recipe
    """The recipe, with the global batch of the last phase."""
    phases: tuple[TrainingPhase, ...]
    lr_schedule: LearningRateSchedule
    validation: Validation
    initial_weights: str = ""
    """Folder of a transformers model with the initial weights; empty for weights drawn from the seed."""
    data_content: DataContent | None = None
    """The content of the recipe's token files when the training began; None for the stream, and in older plans."""
    validation_content: DataContent | None = None
    """The same for separate held-out data."""

    def __post_init__(self) -> None:
        ends = [phase.end_tokens for phase in self.phases]
        if not ends or ends != sorted(set(ends)) or ends[0] < 1:
            raise ValueError(f"phases end at ascending numbers of tokens, got {', '.join(map(str, ends)) or 'none'}")
        if ends[-1] != self.lr_schedule.tokens:
            raise ValueError(
                f"the last phase ends with the training, at {self.lr_schedule.tokens} tokens, got {ends[-1]}"
            )

    @property
    def tokens(self) -> int:
        """Number of tokens to train on; the last step may exceed it."""
        return self.lr_schedule.tokens

    def phase_at(self, tokens: int) -> TrainingPhase | None:
        """Returns the phase of the step that begins after `tokens`; None if the training has ended."""
        return next((phase for phase in self.phases if tokens < phase.end_tokens), None)

    def tokens_per_step(self, phase: TrainingPhase) -> int:
        return phase.global_batch * self.recipe.seq_len

    @property
    def mathematics(self) -> dict[str, object]:
        """Values that must not change when a training is resumed, by their names in sentences."""
        return {
            "the recipe": dataclasses.replace(self.recipe, data=""),
            "the data": self.data_content.key if self.data_content else self.recipe.data,
            "the phases' tokens and global batches": [(phase.end_tokens, phase.global_batch) for phase in self.phases],
            "the learning-rate schedule": self.lr_schedule,
            "the held-out data": (
                dataclasses.replace(self.validation, data="" if self.validation_content else self.validation.data),
                self.validation_content and self.validation_content.key,
            ),
            "the initial weights": self.initial_weights,
        }


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """Everything that the workers of one attempt need."""

    plan: TrainingPlan
    folder: str
    """Folder of the training; nodes must share it."""
    attempt: int
    """Number of the attempt; workers of an older attempt write nothing once a newer one has begun."""
    layout: Layout
    """Layout of this attempt, which ends when a phase has another layout."""
    cluster: Cluster
    cpus_per_worker: float
    checkpoint_s: float = 600.0
    """Seconds between checkpoints."""
    checkpoint_steps: int | None = None
    """Optimizer steps between checkpoints, instead of seconds."""
    keep: int = 2
    """Number of checkpoints to keep."""
    max_steps: int | None = None
    """Optimizer steps after which the attempt ends, without held-out losses and checkpoints, for measuring only."""
    peak_s: float = 0.5
    """Seconds of matrix products that detect slow devices."""
    report_s: float = 2.0
    """Approximate seconds between two reports of the steps."""
    hang_floor_s: float = 60.0
    first_step_s: float = 300.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """An attempt's workers are ready for their first step."""

    kind: ClassVar[str] = "begun"
    attempt: int
    step: int
    """Number of optimizer steps before."""
    tokens: int
    startup_s: float
    layout: str
    nodes: tuple[str, ...]
    """Address of each rank's node."""
    matmul_tflops: tuple[float, ...]
    """Peak of each rank's device, all measured at once before the first step."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Consecutive optimizer steps."""

    kind: ClassVar[str] = "steps"
    attempt: int
    first_step: int
    """Number of the first step, from 1."""
    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    learning_rates: tuple[float, ...]
    tokens: int
    """Tokens trained on after the last step."""
    tokens_per_step: int
    train_s: float
    """Seconds of the training up to the last step, without start-ups and repeated steps."""
    steps_s: float
    """Seconds of these steps."""
    data_s: float
    """Seconds of these in which rank 0 waited for tokens."""
    peak_gib: float
    trained_tokens: int | None = None
    """Number of tokens of these steps with a loss, if the data mark tokens; None if all have a loss."""

    @property
    def last_step(self) -> int:
        return self.first_step + len(self.losses) - 1

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second during these steps, with and without a loss."""
        return len(self.losses) * self.tokens_per_step / self.steps_s

    @property
    def trained_tokens_per_s(self) -> float | None:
        """Tokens with a loss per second, if the data mark tokens."""
        return None if self.trained_tokens is None else self.trained_tokens / self.steps_s


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Validated:
    kind: ClassVar[str] = "validated"
    attempt: int
    step: int
    tokens: int
    loss: float
    train_s: float
    wall_s: float
    fullest: tuple[float, ...] = ()
    """Held-out tokens of each block's fullest expert over the mean of its experts; empty for models without experts."""
    empty: tuple[int, ...] = ()
    """Number of experts without any held-out token, for each block."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Saving:
    """A checkpoint has been begun."""

    kind: ClassVar[str] = "saving"
    attempt: int
    step: int
    name: str
    gib: float
    """Size of all ranks' files together."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A checkpoint is complete on disk."""

    kind: ClassVar[str] = "saved"
    attempt: int
    step: int
    name: str
    stall_s: float
    """Seconds for which the steps were paused."""
    background_s: float
    """Seconds of writing while steps ran."""
    gib: float
    """GiB written by all ranks together."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NotSaved:
    """A checkpoint could not be written; the previous one still exists."""

    kind: ClassVar[str] = "not_saved"
    attempt: int
    step: int
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SetAside:
    """A checkpoint was found damaged, so the training continues from the previous one."""

    kind: ClassVar[str] = "set_aside"
    attempt: int
    step: int
    name: str
    reason: str


Record = Begun | Steps | Validated | Saving | Saved | NotSaved | SetAside
