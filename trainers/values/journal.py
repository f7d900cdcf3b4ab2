"""What a journal records: one frozen value a line. `trainers/values/journal_lines.py` has them as text."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

from trainers.profiling.sums import Sums
from trainers.values.batch import BatchPoint
from trainers.values.cluster import Cluster
from trainers.values.codec import UNLIKE, identity
from trainers.values.layout import Layout
from trainers.values.measurement import Measurement
from trainers.values.recipe import Recipe

TrialState = Literal["done", "interrupted", "failed"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StudyHeader:
    """The first line: what the study is about and what it runs on."""

    kind: ClassVar[str] = "study"
    at: str = ""
    """When the line was written, UTC, ISO 8601; `append` fills it in (in every kind)."""
    name: str
    space: str
    recipes: tuple[Recipe, ...]
    """What competes among itself, the space's reference recipe first."""
    cluster: Cluster
    tokens: float
    """The token budget: days are counted for it."""
    price_per_gpu_h: float | None = None
    """What one device costs an hour, in the user's currency; None where it was not said."""
    miniature: bool = False
    cap_gib: float | None = None
    """The limit given by --device-memory-gib."""
    seed: int = 0
    searcher: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    """What the study was asked for, as `platform.subject.options.StudyOptions` has it."""
    argv: tuple[str, ...] = ()
    """The same as arguments, in journals of schema 1."""
    engines: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    """Import path of each engine outside this project, with the hash of its source."""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    commit: str = "unknown"
    mlflow_uri: str = ""
    """Where the study is mirrored to, without a password."""
    study_id: str = ""
    """What tells the study from any other of its name, "" in journals of schema 1: ask `id`."""

    @property
    def id(self) -> str:
        """What tells the study from any other of its name."""
        return self.study_id or identity((self.name, self.at, self.argv))

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the study was asked for as a command's arguments, defaults too."""
        return self.argv or tuple(
            word
            for name, value in self.options.items()
            if value is not None and value is not False and value != []
            for word in _arguments(name, value)
        )

    @property
    def title(self) -> str:
        """Its name, what it searches for and on what, in one line."""
        return f"{self.name}: {self.recipes[0].label}, on {self.cluster.label_under(self.cap_gib)}"


def _arguments(name: str, value: Any) -> tuple[str, ...]:
    option = "--" + name.replace("_", "-")
    if name == "space" or value is True:
        return (str(value) if name == "space" else option,)
    if name == "set":
        return tuple(word for each in value for word in (option, str(each)))
    return (option, ",".join(map(str, value)) if isinstance(value, list) else str(value))  # type: ignore[reportUnknownArgumentType]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlannedLayout:
    """One layout that a session may try, with the prediction of its best rung. None where nothing is predicted."""

    recipe: str
    """The recipe's id."""
    layout: Layout
    micro_batches: tuple[int, ...]
    micro_batch: int | None = None
    """The rung that the prediction is of."""
    tokens_per_s: float | None = None
    """Over all devices."""
    step_time_s: float | None = None
    peak_gib: float | None = None
    """Most allocated, on one device."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """What a session may try, written at its start; the last line counts."""

    kind: ClassVar[str] = "planned"
    optional: ClassVar[bool] = True
    """A version that does not know the kind reads the journal without such lines."""
    at: str = ""
    layouts: tuple[PlannedLayout, ...]
    """The one that is predicted to be the fastest first, of each recipe."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """The matrix-product peak measured on the study's devices, on all of them at once."""

    kind: ClassVar[str] = "peak"
    at: str = ""
    device: str
    precision: str
    tflops: float
    """The median over devices."""
    spread: float = 0.0
    """Distance between the fastest and the slowest device over the median."""
    by_device: tuple[float, ...] = ()
    """Each device's own, by rank: one that lags is seen here."""
    nodes: tuple[str, ...] = ()
    """Address of each rank's node."""
    timed_s: float = 0.0
    """For how long products were timed, 0 in older journals: of its trial's time this is the study's."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrialStart:
    """A trial is about to be started."""

    kind: ClassVar[str] = "trial_start"
    at: str = ""
    trial_id: str
    key: str
    """The candidate's: recipe id, "-", layout id."""
    recipe: Recipe
    layout: Layout
    micro_batches: tuple[int, ...]
    """None where a trial runs the numerics gate alone, as its reference, or profiles."""
    repeat: int = 0
    """Above 0 for a final run of one point."""
    profiles: BatchPoint | None = None
    """The point that the trial profiles, in place of measuring."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RungStart:
    """A batch point of a trial is about to run."""

    kind: ClassVar[str] = "rung_start"
    at: str = ""
    trial_id: str
    batch: BatchPoint
    deadline_s: float
    """Seconds within which its first step must be through; from then on the time allowed follows what was measured."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A measurement, skipped ones included."""

    kind: ClassVar[str] = "measurement"
    at: str = ""
    measurement: Measurement = dataclasses.field(metadata={UNLIKE: True})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GateCurves:
    """What a layout's numerics gate gave: the same steps on the same samples from the same first weights."""

    kind: ClassVar[str] = "gate"
    at: str = ""
    trial_id: str
    recipe: Recipe
    layout: Layout
    steps: int
    sequences: int
    """In each step, over all ranks."""
    losses: tuple[float, ...]
    """Mean loss in nats over the step's sequences, before the step."""
    grad_norms: tuple[float, ...]
    """Global gradient norm before clipping."""
    step_times_s: tuple[float, ...] = ()
    """Seconds of each step; empty in journals of older versions."""
    is_reference: bool = False
    """Whether the layout ran for others to be compared with."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Where a step of one point goes, as torch.profiler saw it on one rank in a trial of its own."""

    kind: ClassVar[str] = "profile"
    at: str = ""
    trial_id: str
    recipe: Recipe
    layout: Layout
    batch: BatchPoint
    device_kind: str
    """"cuda": what ran on the device; "cpu": the operations of the worker's threads."""
    rank: int = 0
    num_steps: int
    """Steps that `sums` is the mean of."""
    measured_grad_accum: int
    """Micro-steps of these; `sums` is brought to a step of the point's own accumulation."""
    sums: Sums
    trace: str = ""
    """Name of the Chrome trace in the study's folder; "" where it was too large to be kept."""
    trace_mib: float
    """Its size, compressed."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrialEnd:
    """A trial is over.

    Raises:
        ValueError: an unknown state.
    """

    kind: ClassVar[str] = "trial_end"
    at: str = ""
    trial_id: str
    key: str
    state: TrialState
    """"done": nothing of its ladder is missing; "interrupted": to be run again; "failed": it could not be run."""
    wall_s: float
    gpu_s: float
    """Wall seconds times devices."""
    reason: str = ""
    fault: str = ""
    """What kind of failure it was, as `platform.loop.policy` has them; "" where it ran to its end."""
    node: str = ""
    """Address of the node that it failed on, where that is known."""

    def __post_init__(self) -> None:
        if self.state not in get_args(TrialState):
            raise ValueError(f"state of a trial must be one of {', '.join(get_args(TrialState))}, got {self.state!r}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Resume:
    """The study was taken up again."""

    kind: ClassVar[str] = "resume"
    at: str = ""
    argv: tuple[str, ...] = ()
    commit: str = "unknown"
    """Of the checkout that goes on with the study."""
    study: StudyHeader | None = None
    """The study's first line once more: damage to that one does not cost the study. None in journals of schema 1."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """The driver's last line of a session."""

    kind: ClassVar[str] = "end"
    at: str = ""
    exit_code: int
    wall_s: float
    gpu_s: float
    left_out: str = ""
    """What of the final runs a budget left no time for."""
    tried_all: bool = False
    """Whether the searcher had nothing more to try; what ended the search otherwise is a budget or a fault."""
    why: str = ""
    """Which budget was spent, the searcher's own verdict or the fault; "" where a session was interrupted, and in
    journals of older versions."""


Line = StudyHeader | Planned | Peak | TrialStart | RungStart | Measured | GateCurves | Profile | TrialEnd | Resume | End
