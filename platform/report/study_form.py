"""The form of a study as `--json` prints it (`platform.search`, `platform.report`)."""

from typing import NotRequired, TypedDict

from platform.common.json_form import with_fields_of
from platform.study.result.caveats import Caveat
from platform.study.result.float8_price import Float8Price
from platform.study.result.gate import GateVerdict
from platform.study.result.ranking import Resolution
from trainers.records.journal import End
from trainers.records.measurement import Measurement
from trainers.records.sums import Sums
from trainers.spec.batch import BatchPoint
from trainers.spec.cluster import Cluster
from trainers.spec.layout import Layout
from trainers.spec.recipe import Recipe


@with_fields_of(Recipe, optional=True)
class LabelledRecipeForm(TypedDict):
    """A recipe. Unknown fields of a user's command are left out."""

    id: str
    """Hash of the recipe's defining fields."""
    label: str
    """Description on one line."""
    dropout: NotRequired[float]
    """Always 0; left out for a user's command."""


@with_fields_of(Layout, optional=True)
class LabelledLayoutForm(TypedDict):
    """A layout. Unknown axes of a user's command are left out."""

    id: str
    """Hash of the layout's axes."""
    label: str
    """Description on one line."""


@with_fields_of(Cluster)
class LabelledClusterForm(TypedDict):
    """The devices that the study ran on."""

    label: str
    """Description on one line."""


@with_fields_of(Measurement)
class MeasuredPointForm(TypedDict):
    """A measured batch point of one layout. Times are the slowest rank's, memory is the largest rank's."""

    id: str
    """Hash of recipe, layout, batch point and repeat."""
    recipe: str
    """Id of the recipe."""
    layout: LabelledLayoutForm
    """The layout."""
    num_devices: int
    """Number of devices that the layout uses."""
    global_batch: int
    """Sequences of an optimizer step, over all devices."""
    miniature: bool
    """Whether a small model stands in for the recipe's, because there is no GPU."""
    days: float | None
    """Days for the study's tokens."""
    cost: float | None
    """Cost of the study's tokens, if a price is given."""


class SkippedForm(TypedDict):
    """A batch point that was not run."""

    recipe: str
    """Id of the recipe."""
    layout: LabelledLayoutForm
    """The layout."""
    batch: BatchPoint
    """Micro-batch and accumulation."""
    reason: str
    """The reason why the point cannot run or does not fit."""


class NotTriedForm(TypedDict):
    """A planned layout without measurements, with the prediction of its best micro-batch."""

    layout: LabelledLayoutForm
    """The layout."""
    micro_batches: list[int]
    """The layout's micro-batches."""
    predicted_micro_batch: int | None
    """The micro-batch predicted to be the fastest."""
    predicted_tokens_per_s: float | None
    """Predicted tokens/s over all devices."""
    predicted_step_time_s: float | None
    """Predicted seconds of an optimizer step."""
    predicted_gib: float | None
    """Predicted memory of a device."""


class UnresolvedForm(TypedDict):
    """One of the points among which the fastest is not resolved."""

    measurement: str
    """Id of the point's measurement."""
    layout: str
    """Id of the point's layout."""
    label: str
    """Description of the layout."""
    micro_batch: int
    """Sequences per device and micro-step."""
    search_tokens_per_s: float | None
    """Tokens/s in the search's run."""
    tokens_per_s: list[float | None]
    """Tokens/s of each run in fresh processes."""
    disturbed: bool
    """Whether the machine was disturbed during the runs."""


class ComparisonForm(TypedDict):
    """The winner compared with another point, over paired runs."""

    other: str
    """Id of the other point's measurement."""
    ratio: float
    """The winner's tokens/s over the other point's."""
    low: float | None
    """Lower end of the 95 % interval of the ratio."""
    high: float | None
    """Upper end of the 95 % interval of the ratio."""
    resolution: Resolution
    """The conclusion from the interval."""
    runs_to_resolve: int | None
    """Number of runs of each point that would resolve the comparison."""


class RunsForm(TypedDict):
    """A point's runs in fresh processes."""

    layout: str
    """Id of the point's layout."""
    batch: BatchPoint
    """Micro-batch and accumulation."""
    tokens_per_s: list[float | None]
    """Tokens/s of each run."""
    median_tokens_per_s: float | None
    """Median of the runs."""
    std_tokens_per_s: float | None
    """Standard deviation of the runs."""
    interval_tokens_per_s: tuple[float, float] | None
    """95 % interval of the mean over the runs."""


@with_fields_of(GateVerdict)
class GateForm(TypedDict):
    """The numerics gate: the winner's first steps compared with a plain layout's."""

    layout: str
    """Id of the winner's layout."""
    reference: str
    """Id of the plain layout."""
    passed: bool
    """Whether every difference is within its tolerance."""
    loss_error: float | None
    """Largest relative difference of the loss."""
    loss_tolerance: float | None
    """Allowed difference of the loss."""
    norm_error: float | None
    """Largest relative difference of the gradients' norm."""
    norm_tolerance: float | None
    """Allowed difference of the norm."""
    gradient_error: float | None
    """Largest relative difference of one parameter's gradients."""
    gradient_tolerance: float | None
    """Allowed difference of the gradients."""


@with_fields_of(Sums)
class ProfileForm(TypedDict):
    """The profiled parts of the winner's step."""

    wall_s: float
    """Seconds of a profiled step."""
    rank: int
    """The profiled rank."""
    num_steps: int
    """Number of profiled steps."""
    measured_grad_accum: int
    """Micro-steps of each profiled step."""
    trace: str
    """File of the trace in the study's folder."""
    predicted: dict[str, float] | None
    """Predicted seconds by part."""


class ResultForm(TypedDict):
    """The result of one recipe."""

    recipe: LabelledRecipeForm | None
    """The recipe; null if the study has none."""
    winner: MeasuredPointForm | None
    """The fastest point; null if nothing fits or `unresolved` holds several points."""
    caveats: list[Caveat]
    """Limits of the result's evidence."""
    unresolved: list[UnresolvedForm] | None
    """Points among which the fastest is not resolved; null if it is resolved."""
    layouts_tried: int | None
    """Number of layouts with measurements; null if the journal states no plan."""
    layouts_planned: int | None
    """Number of planned layouts."""
    not_tried: list[NotTriedForm] | None
    """Planned layouts without measurements."""
    tie: list[str] | None
    """Ids of measurements tied with the winner; null if no point has two runs paired with the winner's."""
    comparisons: list[ComparisonForm]
    """The winner compared with other points."""
    runs: list[RunsForm]
    """Points with runs in fresh processes."""
    gate: GateForm | None
    """The numerics gate; null if it did not run."""
    float8_price: Float8Price | None
    """The FP8 winner compared with the bf16 winner; null if there is none."""
    profile: ProfileForm | None
    """The winner's profile; null if there is none."""


class StudyForm(ResultForm):
    """A study; the keys of a result are those of its first recipe. Figures that are not finite are null."""

    study: str
    """Name of the study."""
    space: str
    """Name of the study's space."""
    miniature: bool
    """Whether a small model stands in for the recipe's, because there is no GPU."""
    cluster: LabelledClusterForm
    """The devices."""
    tokens: float
    """Token budget for days and cost."""
    price_per_gpu_h: float | None
    """Price of a device hour, if given."""
    measurements: list[MeasuredPointForm]
    """All batch points that ran, failures included."""
    skipped: list[SkippedForm]
    """Batch points that did not run."""
    recipes: list[ResultForm]
    """The result of each recipe."""
    wall_s: float
    """Seconds of all sessions."""
    gpu_s: float
    """Device seconds of all sessions."""
    end: End | None
    """The end of the last session; null while it runs or after its driver was killed."""


class ScalingRowForm(TypedDict):
    """The result of one recipe on one number of devices."""

    gpus: int
    """Number of devices."""
    recipe: str
    """Id of the recipe."""
    label: str
    """The recipe in words, its model first."""
    study: str
    """Name of the study."""
    winner: MeasuredPointForm | None
    """The fastest point on these devices."""
    tokens_per_s: float | None
    """The winner's tokens/s over all devices, the median over runs in fresh processes."""
    days: float | None
    """Days for the study's tokens."""
    gpu_days: float | None
    """Days times devices."""
    efficiency: float | None
    """Tokens/s a device over tokens/s a device on the fewest devices."""
    runs: int
    """Number of the winner's runs in fresh processes."""
    layouts_tried: int | None
    """Number of layouts with measurements."""
    layouts_planned: int | None
    """Number of planned layouts."""
    gate: str | None
    """The verdict of the numerics gate: "passed" or "failed"."""
    caveats: str
    """Names of the result's caveats."""
    cost: float | None
    """Cost of the tokens, if a price is given."""
    reason: str
    """The reason why there is no winner."""


class ScalingForm(TypedDict):
    """Several searches of one command, on several numbers of devices or of several models."""

    scaling: list[ScalingRowForm]
    """A row for each recipe and number of devices."""
    studies: list[StudyForm]
    """The study of each model and number of devices."""


class SeveralForm(TypedDict):
    """Several studies that `--html` shows on one page."""

    studies: list[StudyForm]
    """The studies, in the order in which they were named."""
