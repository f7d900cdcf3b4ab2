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
    """A recipe. Of a user's command, fields that are not known are left out."""

    id: str
    """Hash of what defines it."""
    label: str
    """One line for people."""
    dropout: NotRequired[float]
    """Always 0; left out of a user's command."""


@with_fields_of(Layout, optional=True)
class LabelledLayoutForm(TypedDict):
    """A layout. Of a user's command, axes that are not known are left out."""

    id: str
    """Hash of what defines it."""
    label: str
    """One line for people."""


@with_fields_of(Cluster)
class LabelledClusterForm(TypedDict):
    """The devices that the study ran on."""

    label: str
    """One line for people."""


@with_fields_of(Measurement)
class MeasuredPointForm(TypedDict):
    """A batch point of one layout, measured. Times are the slowest rank's, memory the largest rank's."""

    id: str
    """Hash of recipe, layout, batch point and repeat."""
    recipe: str
    """Id of the recipe."""
    layout: LabelledLayoutForm
    """The layout."""
    num_devices: int
    """Devices that the layout takes."""
    global_batch: int
    """Sequences of an optimizer step, over all devices."""
    miniature: bool
    """Whether its model stands in where there is no GPU."""
    days: float | None
    """Days that the study's tokens take."""
    cost: float | None
    """Cost of the study's tokens, where a price is given."""


class SkippedForm(TypedDict):
    """A batch point that was not run."""

    recipe: str
    """Id of the recipe."""
    layout: LabelledLayoutForm
    """The layout."""
    batch: BatchPoint
    """Micro-batch and accumulation."""
    reason: str
    """The reason why it cannot run or fit."""


class NotTriedForm(TypedDict):
    """A planned layout of which nothing was measured, with the prediction of its best micro-batch."""

    layout: LabelledLayoutForm
    """The layout."""
    micro_batches: list[int]
    """Its ladder."""
    predicted_micro_batch: int | None
    """The micro-batch that is predicted to be the fastest."""
    predicted_tokens_per_s: float | None
    """Its tokens/s over all devices."""
    predicted_step_time_s: float | None
    """Its seconds of an optimizer step."""
    predicted_gib: float | None
    """Its memory of a device."""


class UnresolvedForm(TypedDict):
    """A point among which it is not resolved which is the fastest."""

    measurement: str
    """Id of its measurement."""
    layout: str
    """Id of its layout."""
    label: str
    """Its layout for people."""
    micro_batch: int
    """Sequences a device and micro-step."""
    search_tokens_per_s: float | None
    """Tokens/s in the search's own run."""
    tokens_per_s: list[float | None]
    """Tokens/s of each run in fresh processes."""
    disturbed: bool
    """Whether the machine was disturbed in them."""


class ComparisonForm(TypedDict):
    """The winner beside another point, over runs next to each other."""

    other: str
    """Id of the other's measurement."""
    ratio: float
    """The winner's tokens/s over the other's."""
    low: float | None
    """Lower end of the 95 % interval of the ratio."""
    high: float | None
    """Upper end of the 95 % interval of the ratio."""
    resolution: Resolution
    """The answer of the interval."""
    runs_to_resolve: int | None
    """Runs of each that would resolve it."""


class RunsForm(TypedDict):
    """A point's runs in fresh processes."""

    layout: str
    """Id of its layout."""
    batch: BatchPoint
    """Micro-batch and accumulation."""
    tokens_per_s: list[float | None]
    """Tokens/s of each run."""
    median_tokens_per_s: float | None
    """Median of the runs."""
    std_tokens_per_s: float | None
    """Standard deviation of the runs."""
    interval_tokens_per_s: tuple[float, float] | None
    """95 % interval of the median."""


@with_fields_of(GateVerdict)
class GateForm(TypedDict):
    """The numerics gate: the winner's first steps beside a plain layout's."""

    layout: str
    """Id of the winner's layout."""
    reference: str
    """Id of the plain layout."""
    passed: bool
    """Whether every difference is within its tolerance."""
    loss_error: float | None
    """Largest relative difference of the loss."""
    loss_tolerance: float | None
    """The tolerance of it."""
    norm_error: float | None
    """Largest relative difference of the gradients' norm."""
    norm_tolerance: float | None
    """The tolerance of it."""
    gradient_error: float | None
    """Largest relative difference of one parameter's gradients."""
    gradient_tolerance: float | None
    """The tolerance of it."""


@with_fields_of(Sums)
class ProfileForm(TypedDict):
    """The parts of the winner's step, by a profile."""

    wall_s: float
    """Seconds of the profiled steps."""
    rank: int
    """The rank that was profiled."""
    num_steps: int
    """Steps that were profiled."""
    measured_grad_accum: int
    """Micro-steps of each of these steps."""
    trace: str
    """File of the trace in the study's folder."""
    predicted: dict[str, float] | None
    """Predicted seconds by part."""


class ResultForm(TypedDict):
    """The result of one recipe."""

    recipe: LabelledRecipeForm | None
    """The recipe; null where a study has none."""
    winner: MeasuredPointForm | None
    """The fastest point; null where nothing fits, or where `unresolved` holds several."""
    caveats: list[Caveat]
    """The evidence that the result lacks."""
    unresolved: list[UnresolvedForm] | None
    """Points between which the fastest is not resolved; null for none."""
    layouts_tried: int | None
    """Layouts of which something was measured; null where the journal does not state what was planned."""
    layouts_planned: int | None
    """Layouts that were planned."""
    not_tried: list[NotTriedForm] | None
    """Planned layouts of which nothing was measured."""
    tie: list[str] | None
    """Ids of measurements tied with the winner; null where none was run beside it several times."""
    comparisons: list[ComparisonForm]
    """The winner beside other points."""
    runs: list[RunsForm]
    """Points that were run again in fresh processes."""
    gate: GateForm | None
    """The numerics gate; null where there was none."""
    float8_price: Float8Price | None
    """The winner in FP8 beside that in bf16; null where there is none."""
    profile: ProfileForm | None
    """The winner's profile; null where there is none."""


class StudyForm(ResultForm):
    """A study; the keys of a result are those of its first recipe. Figures that are not finite are null."""

    study: str
    """Name of the study."""
    space: str
    """Name of its space."""
    miniature: bool
    """Whether a small model stands in where there is no GPU."""
    cluster: LabelledClusterForm
    """The devices."""
    tokens: float
    """Token budget that days and cost are counted for."""
    price_per_gpu_h: float | None
    """Price of a device hour, where it is given."""
    measurements: list[MeasuredPointForm]
    """All batch points that ran, failures too."""
    skipped: list[SkippedForm]
    """Batch points that did not run."""
    recipes: list[ResultForm]
    """The result of each recipe."""
    wall_s: float
    """Seconds of all sessions."""
    gpu_s: float
    """Device seconds of all sessions."""
    end: End | None
    """The end of the last session; null while it runs, or where its driver was killed."""


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
    """The fastest point there."""
    tokens_per_s: float | None
    """Its tokens/s over all devices, the median over runs in fresh processes."""
    days: float | None
    """Days that the tokens take."""
    gpu_days: float | None
    """Days times devices."""
    efficiency: float | None
    """Tokens/s a device over those on the fewest devices."""
    runs: int
    """Its runs in fresh processes."""
    layouts_tried: int | None
    """Layouts of which something was measured."""
    layouts_planned: int | None
    """Layouts that were planned."""
    gate: str | None
    """The verdict of the numerics gate: "passed" or "failed"."""
    caveats: str
    """The evidence that the result lacks."""
    cost: float | None
    """Cost of the tokens, where a price is given."""
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
