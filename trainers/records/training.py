"""A training as values: what is trained, by which schedule, in which phases, and what its workers record.

No torch and no Ray: the driver plans with these, the workers record with them.
"""

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
"""Version of the plan's file, raised when an older reader would misread a newer one."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LearningRateSchedule:
    """The learning rate as a function of the tokens trained on, as a share of the recipe's.

    After a linear warm-up "cosine" falls along half a cosine to `final_share` at the last token. "wsd" (warm-up,
    stable, decay) stays at the recipe's rate and falls linearly to `final_share` over the last `decay_tokens`.

    Raises:
        ValueError: a number out of range, or a warm-up and a decay that overlap.
    """

    kind: ScheduleKind
    tokens: int
    """Tokens of the whole training."""
    warmup_tokens: int = 0
    decay_tokens: int = 0
    """Tokens of the final decay, of "wsd" alone."""
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
    """Tokens at which it ends, counted from the training's begin: with the first step that reaches them."""
    layout: Layout
    batch: BatchPoint

    @property
    def global_batch(self) -> int:
        """Sequences in one optimizer step."""
        return self.batch.global_batch(self.layout)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """Held-out loss at intervals."""

    sequences: int
    """The last sequences of the data, which no step trains on; or the first ones of `data`. 0 for no validation."""
    every_tokens: int
    data: str = ""
    """Separate data; empty where the training's are held out."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPlan:
    """The plan of a training. Layouts and batch points may change while it lasts, the rest may not.

    Raises:
        ValueError: phases that do not follow each other or do not end with the training.
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
    """The same of held-out data of its own."""

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
        """Tokens to train on; the last step may take some more."""
        return self.lr_schedule.tokens

    def phase_at(self, tokens: int) -> TrainingPhase | None:
        """Returns the phase of the step that begins after `tokens`; None where the training is over."""
        return next((phase for phase in self.phases if tokens < phase.end_tokens), None)

    def tokens_per_step(self, phase: TrainingPhase) -> int:
        """Returns the tokens in one optimizer step of `phase`."""
        return phase.global_batch * self.recipe.seq_len

    @property
    def mathematics(self) -> dict[str, object]:
        """Values that must not change when a training is resumed, by the words that describe them."""
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
    """Folder of the training; on several nodes, shared by them."""
    attempt: int
    """Number of the attempt: workers of an older one that still live write nothing once a newer one has begun."""
    layout: Layout
    """Layout of this attempt, which ends where a phase has another one."""
    cluster: Cluster
    cpus_per_worker: float
    checkpoint_s: float = 600.0
    """Seconds between checkpoints."""
    checkpoint_steps: int | None = None
    """Optimizer steps between checkpoints, in place of seconds."""
    keep: int = 2
    """Number of checkpoints that are kept."""
    max_steps: int | None = None
    """Optimizer steps after which the attempt ends, without held-out losses and checkpoints, for measuring alone."""
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
    """Optimizer steps done before."""
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
    """Number of the first one, from 1."""
    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    learning_rates: tuple[float, ...]
    tokens: int
    """Tokens trained on after the last one."""
    tokens_per_step: int
    train_s: float
    """Seconds of the training after the last one, without start-ups and repeated steps."""
    steps_s: float
    """Seconds that these steps took."""
    data_s: float
    """Seconds of these in which rank 0 waited for tokens."""
    peak_gib: float
    trained_tokens: int | None = None
    """Tokens of these steps that have a loss, where the data mark them; None where all have."""

    @property
    def last_step(self) -> int:
        """Number of the last one."""
        return self.first_step + len(self.losses) - 1

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second while these steps ran, with and without a loss."""
        return len(self.losses) * self.tokens_per_step / self.steps_s

    @property
    def trained_tokens_per_s(self) -> float | None:
        """Tokens per second that have a loss, where the data mark them."""
        return None if self.trained_tokens is None else self.trained_tokens / self.steps_s


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Validated:
    """The held-out loss after a step."""

    kind: ClassVar[str] = "validated"
    attempt: int
    step: int
    tokens: int
    loss: float
    train_s: float
    wall_s: float
    fullest: tuple[float, ...] = ()
    """Held-out tokens of each block's fullest expert, over the mean of its experts; none in models without experts."""
    empty: tuple[int, ...] = ()
    """Experts of each block to which no held-out token goes."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Saving:
    """A checkpoint that is begun."""

    kind: ClassVar[str] = "saving"
    attempt: int
    step: int
    name: str
    gib: float
    """Size of all ranks' files together."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A checkpoint that is complete on disk."""

    kind: ClassVar[str] = "saved"
    attempt: int
    step: int
    name: str
    stall_s: float
    """Seconds in which the steps stood still."""
    background_s: float
    """Seconds of writing while steps ran."""
    gib: float
    """GiB written by all ranks together."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class NotSaved:
    """A checkpoint that could not be written; the one before it still exists."""

    kind: ClassVar[str] = "not_saved"
    attempt: int
    step: int
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SetAside:
    """A checkpoint that was found damaged, so that the training goes on from the one before it."""

    kind: ClassVar[str] = "set_aside"
    attempt: int
    step: int
    name: str
    reason: str


Record = Begun | Steps | Validated | Saving | Saved | NotSaved | SetAside
