"""The JSON form of a plan (`--json`)."""

from typing import Any, NotRequired, TypedDict

from platform.common.json_form import with_fields_of
from platform.plan.sizes import RoundedBatch


class NetworkForm(TypedDict):
    """The assumed network between nodes."""

    gbit_per_s_a_node: float
    """Gbit/s per node."""
    source: str
    """Source of the rate: "assumed", "catalogue", "stated" or "measured"."""
    node: str
    """The kind of node with this network; empty if unknown."""


class WholesForm(TypedDict):
    """Integer values that the plan assumes."""

    values: list[int]
    """The values, one for each different recipe."""
    source: str
    """Source of the values."""


class PriceForm(TypedDict):
    """Price of a device per hour."""

    value: float | None
    """US dollars; null if the price is unknown."""
    source: str
    """Source of the price."""


class AssumptionsForm(TypedDict):
    """The assumptions of the figures."""

    network: NetworkForm | None
    """The network between nodes; null for a single node."""
    seq_len: WholesForm
    """Tokens per sequence."""
    global_batch: WholesForm
    """Sequences per optimizer step."""
    price_per_gpu_h: PriceForm
    """Price of a device per hour."""
    software: str
    """The software that trains the layouts."""


class LayoutPlanForm(TypedDict):
    """A layout with its prediction."""

    layout: str
    """The layout in one line."""
    layout_id: str
    """Hash of the fields that define the layout."""
    micro_batch: int
    """Sequences per device and micro-step."""
    grad_accum: int
    """Micro-steps per optimizer step."""
    step_time_s: float
    """Seconds per optimizer step."""
    step_time_low_s: float
    """Lower end of the 80 % interval of the step time, s."""
    step_time_high_s: float
    """Upper end of the 80 % interval of the step time, s."""
    tokens_per_s: float
    """Tokens/s over all devices."""
    mfu: float
    """Model FLOP/s divided by the datasheet peak."""
    needed_gib: float
    """GiB that a device needs."""
    fit_probability: float
    """Probability that the layout fits in memory."""
    ok_probability: float
    """Probability that the layout runs within memory, including the allocator's pools."""
    days: float
    """Training days for the tokens."""
    cost: float | None
    """Cost of these days in US dollars; null if the price is unknown."""
    shares: dict[str, float]
    """Shares of the step by part: compute, host, communication, bubble."""
    loses_by: str
    """The part of the step that loses most time against the first layout; empty if the layout is not slower."""
    software: str
    """The software that trains the layout."""
    measured: bool
    """True if a study of `--learn-from` measured the step time."""


class ElapsedForm(TypedDict):
    """Days of a training with checkpoints, restarts and failures; null if a segment is unlikely ever to complete."""

    elapsed_days: float | None
    """Days from the start to the end."""
    elapsed_days_low: float | None
    """Lower end of the interval of `elapsed_days`."""
    elapsed_days_high: float | None
    """Upper end of the interval of `elapsed_days`."""
    goodput: float
    """Share of the elapsed days spent on steps that were not lost."""


@with_fields_of(ElapsedForm)
class TimedLayoutForm(LayoutPlanForm):
    """A layout with its days including all interruptions."""


@with_fields_of(TimedLayoutForm, optional=True)
class SizeForm(TypedDict):
    """The best layout of one size; layout keys are absent if nothing fits."""

    reason: str
    """The reason why nothing fits; empty if a layout fits."""


@with_fields_of(TimedLayoutForm, optional=True)
class DevicesForm(SizeForm):
    """The best layout on one number of devices."""

    gpus: int
    """Number of devices."""


@with_fields_of(TimedLayoutForm, optional=True)
class NodesForm(SizeForm):
    """The best layout on one number of nodes."""

    nodes: int
    """Number of nodes."""


@with_fields_of(TimedLayoutForm, optional=True)
class SweepForm(SizeForm):
    """The best layout for one network between nodes."""

    node_gbps: float
    """Gbit/s per node."""


@with_fields_of(TimedLayoutForm, optional=True)
class BalanceForm(SizeForm):
    """The best layout for one imbalance between experts."""

    balance: float
    """Token rows on the fullest rank divided by the mean."""


@with_fields_of(LayoutPlanForm, optional=True)
class PointForm(TypedDict):
    """A named point of the space; figures are absent if it cannot run on these devices."""

    point: str
    """Name of the point."""
    recipe: str
    """The point's recipe in one line."""
    fits: bool
    """True if the point fits in memory."""
    reason: str
    """The reason why the point does not fit; empty if it fits."""


class LargestForm(LayoutPlanForm):
    """The largest model on one number of devices."""

    gpus: int
    """Number of devices."""
    params_b: float
    """Parameters in 10^9."""
    layers: int
    """Transformer blocks."""
    hidden: int
    """Hidden size."""
    heads: int
    """Attention heads."""
    config: dict[str, Any]
    """`config.json` of the model."""


class PhaseForm(LayoutPlanForm):
    """A phase of a global batch ramp-up."""

    global_batch: int
    """Sequences per optimizer step."""
    nodes: int
    """Number of nodes."""
    efficiency: float
    """Tokens/s per device divided by the best rate of this phase on any number of nodes."""


class RecipePlanForm(TypedDict):
    """The layouts of one recipe. If nothing fits: only `recipe`, `layouts` and `reason`."""

    recipe: str
    """The recipe in one line."""
    layouts: list[TimedLayoutForm]
    """The best layouts, fastest first."""
    reason: NotRequired[str]
    """The reason why there is no layout."""
    faster_if_it_fits: NotRequired[LayoutPlanForm | None]
    """A layout that is faster than the first but less sure to fit."""
    num_layouts: NotRequired[int]
    """Number of layouts that fit with some micro-batch."""
    num_too_large: NotRequired[int]
    """Number of layouts that fit with no micro-batch."""
    loses_by: NotRequired[dict[str, int]]
    """Number of slower layouts by the part of the step that loses most time against the first layout."""
    nearest: NotRequired[str]
    """The layout that comes nearest to fitting; empty if something fits."""
    num_points: NotRequired[int]
    """Number of points (layout and micro-batch) considered."""
    skipped: NotRequired[dict[str, int]]
    """Number of skipped points by reason."""
    learned: NotRequired[str]
    """The corrections from the `--learn-from` study, as text."""
    at_listed_ends: NotRequired[list[str]]
    """Sentences on axes for which the best layout has the last listed value."""


class FewestForm(TypedDict):
    """The fewest nodes on which the model fits."""

    nodes: int
    """Number of nodes."""
    global_batch: int
    """Sequences per optimizer step."""
    fewer_with_another_batch: RoundedBatch | None
    """A global batch with which fewer nodes suffice; null if there is none."""
    needed_gib: float
    """GiB on the fullest device."""
    parts_gib: dict[str, float]
    """GiB on the fullest device by part."""
    binding_rank: str
    """The rank of the fullest device, as text."""
    smallest: str
    """The layout with the least memory, in one line."""
    against_nodes: list[NodesForm]
    """The best layout by number of nodes."""


class PlanForm(TypedDict):
    """A plan. It has `recipes`, or instead the key of the question that was asked."""

    space: str
    """Name of the space."""
    cluster: str
    """The cluster as the user wrote it."""
    software: str
    """The software that trains the layouts."""
    tokens: float
    """Tokens to train on, the basis of days and cost."""
    assumptions: AssumptionsForm
    """The assumptions of the figures."""
    recipe: NotRequired[str]
    """The recipe in one line, if the answer is for one recipe."""
    recipes: NotRequired[list[RecipePlanForm]]
    """The layouts of each recipe."""
    not_in_full: NotRequired[dict[str, str]]
    """Axes of which only some values are listed, with the reason."""
    gpus: NotRequired[list[DevicesForm]]
    """`--gpus`: the best layout by number of devices."""
    min_nodes: NotRequired[FewestForm]
    """`--min-nodes`: the fewest nodes."""
    sweep: NotRequired[list[SweepForm]]
    """`--sweep`: the best layout by network."""
    balances: NotRequired[list[BalanceForm]]
    """`--balance`: the best layout by balance."""
    batch_rampup: NotRequired[list[PhaseForm]]
    """`--batch-rampup`: the phases."""
    max_model: NotRequired[list[LargestForm]]
    """`--max-model`: the largest model by number of devices."""
    points: NotRequired[list[PointForm]]
    """The named points of a space that has them."""
