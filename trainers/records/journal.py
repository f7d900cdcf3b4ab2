"""The records of a journal: a frozen value per line. `trainers/records/journal_lines.py` converts them to text."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

from trainers.records.data_content import DataContent
from trainers.records.measurement import Measurement
from trainers.records.probe import Probe
from trainers.records.search_state import SearchState
from trainers.records.sums import Sums
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster
from trainers.spec.codec import UNLIKE, identity
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe

TrialState = Literal["done", "interrupted", "failed"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StudyHeader:
    """The first line of a journal: the study's recipes, layouts and cluster."""

    kind: ClassVar[str] = "study"
    at: str = ""
    """Time at which the line was written, UTC, ISO 8601; set by `append` (in every kind of line)."""
    name: str
    space: str
    recipes: tuple[Recipe, ...]
    """The recipes, each with a winner of its own; the space's reference recipe first."""
    cluster: Cluster
    tokens: float
    """The token budget for which days are computed."""
    price_per_gpu_h: float | None = None
    """Price of a device hour in the user's currency; None if not given."""
    miniature: bool = False
    cap_gib: float | None = None
    """The limit given by --device-memory-gib."""
    seed: int = 0
    searcher: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    """The study's options, as in `platform.search.setup.options.StudyOptions`."""
    space_sha256: str = ""
    """Hash of the space file, which is code; empty for other spaces."""
    data_content: Mapping[str, DataContent] = dataclasses.field(default_factory=dict[str, DataContent])
    """The content of the recipes' token files when the study began, by path; empty in older studies."""
    engines: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    """Import path of each engine outside this project, with the hash of its source."""
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])
    commit: str = "unknown"
    mlflow_uri: str = ""
    """The study's MLflow store, without a password."""
    study_id: str = ""
    """Identifies the study among others of the same name."""

    @property
    def id(self) -> str:
        """Identifies the study among others of the same name; derived from its time if the header has no id."""
        return self.study_id or identity((self.name, self.at))

    @property
    def arguments(self) -> tuple[str, ...]:
        """The study's options as command-line arguments, defaults included."""
        command = self.options.get("command") or ()
        return tuple(
            word
            for name, value in self.options.items()
            if value is not None and value is not False and value != [] and name not in _NOT_TYPED
            for word in _arguments(name, value)
        ) + (("--", *command) if command else ())

    @property
    def title(self) -> str:
        return f"{self.name}: {self.recipes[0].label}, on {self.cluster.label_under(self.cap_gib)}"


_NOT_TYPED = ("command", "folder", "environment", "without", "model", "means", "recheck")
"""Options of a study that the command line does not have."""


def _arguments(name: str, value: Any) -> tuple[str, ...]:
    option = "--" + name.replace("_", "-")
    if name == "space" or value is True:
        return (str(value) if name == "space" else option,)
    if name == "further":
        return tuple(map(str, value))
    if name == "set":
        return tuple(word for change in value for word in (option, str(change)))
    return (option, ",".join(map(str, value)) if isinstance(value, list) else str(value))  # type: ignore[reportUnknownArgumentType]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlannedLayout:
    """A layout that a session may try, with the prediction of its best batch point; None if there is no prediction."""

    recipe: str
    """The recipe's id."""
    layout: Layout
    micro_batches: tuple[int, ...]
    micro_batch: int | None = None
    """Micro-batch of the predicted batch point."""
    tokens_per_s: float | None = None
    """Predicted tokens/s over all devices."""
    step_time_s: float | None = None
    peak_gib: float | None = None
    """Predicted highest allocation on a device."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """The layouts that a session may try, written at its start; the last line of this kind is valid."""

    kind: ClassVar[str] = "planned"
    optional: ClassVar[bool] = True
    """Whether a version that does not know this kind of line ignores it."""
    at: str = ""
    layouts: tuple[PlannedLayout, ...]
    """The layouts of each recipe, the one predicted to be fastest first."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Peak:
    """The matrix-product peak of the study's devices, measured on all of them at once."""

    kind: ClassVar[str] = "peak"
    at: str = ""
    device: str
    precision: str
    tflops: float
    """The median over devices."""
    spread: float = 0.0
    """Difference between the fastest and the slowest device, divided by the median."""
    by_device: tuple[float, ...] = ()
    """The peak of each device, by rank, which reveals a slow device."""
    nodes: tuple[str, ...] = ()
    """Address of each rank's node."""
    timed_s: float = 0.0
    """Seconds for which products were timed, counted as the study's and not the trial's; 0 in older journals."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Lagging:
    """A node that is slower than the others, on which no further trial runs where others hold one.

    Raises:
        ValueError: the pace is none.
    """

    kind: ClassVar[str] = "lagging"
    optional: ClassVar[bool] = True
    at: str = ""
    node: str
    """The node's address."""
    pace: float
    """Its speed over that of the other nodes."""
    by: Literal["peak", "figures"]
    """Whether its matmul peaks say so, or figures of its trials beside what was believed of these."""

    def __post_init__(self) -> None:
        if not 0 < self.pace < math.inf:
            raise ValueError(f"pace of a node must be a number above 0, got {self.pace}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """Devices and links as the study's first trial measured them before its ladder."""

    kind: ClassVar[str] = "probed"
    optional: ClassVar[bool] = True
    at: str = ""
    probe: Probe


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrialStart:
    kind: ClassVar[str] = "trial_start"
    at: str = ""
    trial_id: str
    key: str
    """The candidate's key: recipe id, "-", layout id."""
    recipe: Recipe
    layout: Layout
    micro_batches: tuple[int, ...]
    """Micro-batches of its batch points; empty if the trial only runs the numerics gate, as its reference, or profiles.
    """
    repeat: int = 0
    """Above 0 for a repeated run of one point after the search."""
    profiles: BatchPoint | None = None
    """The batch point that the trial profiles instead of measuring."""
    state: SearchState | None = None
    """State of the search that asked for it; None in journals of older versions."""
    nodes: tuple[str, ...] = ()
    """Addresses of its nodes; empty if trials run one at a time, on any nodes."""
    beside: tuple[str, ...] = ()
    """Ids of the trials that ran when it began."""

    @property
    def is_final(self) -> bool:
        """Whether the trial comes after the search: a repeated run, a numerics gate alone or a profile."""
        return bool(self.repeat) or not self.micro_batches

    @property
    def is_gate(self) -> bool:
        return not self.micro_batches and self.profiles is None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RungStart:
    """A batch point of a trial is about to run."""

    kind: ClassVar[str] = "rung_start"
    at: str = ""
    trial_id: str
    batch: BatchPoint
    deadline_s: float
    """Seconds within which its first step must end; later limits follow from measured steps."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A measurement, skipped ones included."""

    kind: ClassVar[str] = "measurement"
    at: str = ""
    measurement: Measurement = dataclasses.field(metadata={UNLIKE: True})


FIRST_GRADIENTS = "gradients of step 1"
ROUNDED = "gradients of step 1 from weights rounded otherwise"
"""Names of sketches; only a reference has the second."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GateSketch:
    """Sketches of all tensors of one kind after a step of the numerics gate (`trainers.measuring.sketch`)."""

    of: str
    """Name of the sketched tensors, such as "gradients of step 1"; the comparison matches sketches by it."""
    values: str
    """Sums of each of `GateCurves.tensors` in turn, little-endian fp32 in base64."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GateCurves:
    """The curves of a layout's numerics gate: the same steps on the same samples from the same initial weights."""

    kind: ClassVar[str] = "gate"
    at: str = ""
    trial_id: str
    recipe: Recipe
    layout: Layout
    steps: int
    sequences: int
    """Number of sequences in a step, over all ranks."""
    losses: tuple[float, ...]
    """Mean loss in nats over the step's sequences, before the step."""
    grad_norms: tuple[float, ...]
    """Global gradient norm before clipping."""
    step_times_s: tuple[float, ...] = ()
    """Seconds of each step; empty in journals of older versions."""
    is_reference: bool = False
    """Whether the layout ran as a reference for others."""
    tensors: tuple[str, ...] = ()
    """The model's parameters; empty in journals of older versions, which compared only losses and norms."""
    sketches: tuple[GateSketch, ...] = ()
    clip_error: float | None = None
    """Relative difference between the length of the first step's gradients as the optimizer got them, and the smaller
    of norm and limit; None for optimizers that do not show it.
    """
    update_error: float | None = None
    """Largest relative difference, over parameters, between the last step's change and AdamW's by the layout's own
    moments, less the effect of rounding.
    """
    update_tensor: str = ""
    """The parameter with the largest difference."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """The time of one batch point's step by kind of kernel, from torch.profiler on one rank in a separate trial."""

    kind: ClassVar[str] = "profile"
    at: str = ""
    trial_id: str
    recipe: Recipe
    layout: Layout
    batch: BatchPoint
    device_kind: str
    """"cuda" for work on the device; "cpu" for the operations of the worker's threads."""
    rank: int = 0
    num_steps: int
    """Number of steps of which `sums` is the mean."""
    measured_grad_accum: int
    """Micro-steps of the profiled steps; `sums` is scaled to a step with the point's own accumulation."""
    sums: Sums
    trace: str = ""
    """Name of the Chrome trace in the study's folder; "" if it was too large to be stored."""
    trace_mib: float
    """Size of the compressed trace."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrialEnd:
    """The end of a trial.

    Raises:
        ValueError: the state is unknown.
    """

    kind: ClassVar[str] = "trial_end"
    at: str = ""
    trial_id: str
    key: str
    state: TrialState
    """"done": its ladder is complete; "interrupted": it has to run again; "failed": it could not be run."""
    wall_s: float
    gpu_s: float
    """Wall seconds times devices."""
    reason: str = ""
    fault: str = ""
    """Kind of failure, as in `platform.search.loop.policy`; "" if it ran to its end."""
    node: str = ""
    """Address of the node on which it failed, if known."""
    beside: tuple[str, ...] = ()
    """Ids of the trials that ran at any time while it did."""

    def __post_init__(self) -> None:
        if self.state not in get_args(TrialState):
            raise ValueError(f"state of a trial must be one of {', '.join(get_args(TrialState))}, got {self.state!r}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Resume:
    """The beginning of a resumed session."""

    kind: ClassVar[str] = "resume"
    at: str = ""
    argv: tuple[str, ...] = ()
    commit: str = "unknown"
    """Commit of the checkout that resumes the study."""
    study: StudyHeader | None = None
    """The study's first line repeated, so that the study survives damage to it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StudyCopy:
    """The study's first line repeated, so that a study of one session survives damage to it."""

    kind: ClassVar[str] = "study_copy"
    optional: ClassVar[bool] = True
    at: str = ""
    study: StudyHeader


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """The driver's last line of a session."""

    kind: ClassVar[str] = "end"
    at: str = ""
    exit_code: int
    wall_s: float
    gpu_s: float
    left_out: str = ""
    """Confirmation runs for which no time was left in the budget."""
    tried_all: bool = False
    """Whether the searcher had nothing more to try; otherwise a budget or a fault ended the search."""
    why: str = ""
    """The exhausted budget, the searcher's verdict or the fault; "" if the session was interrupted."""


Line = (
    StudyHeader
    | StudyCopy
    | Planned
    | Peak
    | Lagging
    | Probed
    | TrialStart
    | RungStart
    | Measured
    | GateCurves
    | Profile
    | TrialEnd
    | Resume
    | End
)
