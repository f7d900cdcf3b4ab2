"""The form of a plan as `--json` prints it."""

from typing import Any, NotRequired, TypedDict

from platform.common.json_form import with_fields_of
from platform.plan.sizes import RoundedBatch


class NetworkForm(TypedDict):
    """The network between nodes that is taken for granted."""

    gbit_per_s_a_node: float
    """Gbit/s of a node."""
    source: str
    """Its origin: "assumed", "catalogue", "stated" or "measured"."""
    node: str
    """The kind of node that has it; empty where none is known."""


class WholesForm(TypedDict):
    """Whole numbers that the plan is for."""

    values: list[int]
    """The values, one for each recipe that differs."""
    source: str
    """Their origin."""


class PriceForm(TypedDict):
    """The price of a device hour."""

    value: float | None
    """US dollars, where a price is known."""
    source: str
    """Its origin."""


class AssumptionsForm(TypedDict):
    """The facts on which the figures rest."""

    network: NetworkForm | None
    """The network between nodes; null within one node."""
    seq_len: WholesForm
    """Tokens of a sequence."""
    global_batch: WholesForm
    """Sequences of an optimizer step."""
    price_per_gpu_h: PriceForm
    """The price of a device hour."""
    software: str
    """The software whose trainers run the layouts."""


class LayoutPlanForm(TypedDict):
    """A layout with what is predicted of it."""

    layout: str
    """The layout in one line."""
    layout_id: str
    """Hash of what defines it."""
    micro_batch: int
    """Sequences a device and micro-step."""
    grad_accum: int
    """Micro-steps of a step."""
    step_time_s: float
    """Seconds of an optimizer step."""
    step_time_low_s: float
    """Lower end of its 80 % interval."""
    step_time_high_s: float
    """Upper end of its 80 % interval."""
    tokens_per_s: float
    """Tokens/s over all devices."""
    mfu: float
    """Model FLOPs over the datasheet's peak."""
    needed_gib: float
    """GiB that a device needs."""
    fit_probability: float
    """Probability that it fits."""
    ok_probability: float
    """Probability that it runs with head-room."""
    days: float
    """Days that the tokens take."""
    cost: float | None
    """The price of these days in US dollars; null where none is known."""
    shares: dict[str, float]
    """Shares of the step by part: compute, host, communication, bubble."""
    loses_by: str
    """The part of the step by which it loses most against the first; empty where it does not."""
    software: str
    """The software whose trainers run it."""
    measured: bool
    """Whether a study of `--learn-from` measured it."""


class ElapsedForm(TypedDict):
    """The days of a training with its checkpoints, restarts and failures; null where no segment is likely to end."""

    elapsed_days: float | None
    """Days from beginning to end."""
    elapsed_days_low: float | None
    """Lower end of their interval."""
    elapsed_days_high: float | None
    """Upper end of their interval."""
    goodput: float
    """Share of these days in which it trains."""


@with_fields_of(ElapsedForm)
class TimedLayoutForm(LayoutPlanForm):
    """A layout with its days by all that interrupts a training."""


@with_fields_of(TimedLayoutForm, optional=True)
class SizeForm(TypedDict):
    """The best layout of one size; the keys of a layout are left out where nothing fits."""

    reason: str
    """The reason why nothing fits; empty where a layout does."""


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
    """The best layout by one network between nodes."""

    node_gbps: float
    """Gbit/s of a node."""


@with_fields_of(TimedLayoutForm, optional=True)
class BalanceForm(SizeForm):
    """The best layout by how unevenly tokens choose experts."""

    balance: float
    """Rows of the fullest rank over the mean."""


@with_fields_of(LayoutPlanForm, optional=True)
class PointForm(TypedDict):
    """A named point of the space; figures are left out where it cannot run on these devices at all."""

    point: str
    """Its name."""
    recipe: str
    """Its recipe in one line."""
    fits: bool
    """Whether it fits."""
    reason: str
    """The reason why it does not."""


class LargestForm(LayoutPlanForm):
    """The largest model of one number of devices."""

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
    """The model's `config.json`."""


class PhaseForm(LayoutPlanForm):
    """A phase of a ramp of the global batch."""

    global_batch: int
    """Sequences of an optimizer step."""
    nodes: int
    """Number of nodes."""
    efficiency: float
    """Tokens/s a device over those of the last phase."""


class RecipePlanForm(TypedDict):
    """The layouts of one recipe; of one that nothing fits, `recipe`, `layouts` and `reason` alone."""

    recipe: str
    """The recipe in one line."""
    layouts: list[TimedLayoutForm]
    """The best layouts, the fastest first."""
    reason: NotRequired[str]
    """The reason why there is no layout."""
    faster_if_it_fits: NotRequired[LayoutPlanForm | None]
    """A layout that would be faster than the first, and might not fit."""
    num_layouts: NotRequired[int]
    """Layouts that were predicted."""
    num_too_large: NotRequired[int]
    """Layouts of these that do not fit."""
    loses_by: NotRequired[dict[str, int]]
    """Numbers of layouts by the part of the step by which they lose most."""
    nearest: NotRequired[str]
    """The layout that is nearest to fitting; empty where something fits."""
    num_points: NotRequired[int]
    """Batch points that were predicted."""
    skipped: NotRequired[dict[str, int]]
    """Numbers of layouts that cannot run, by reason."""
    learned: NotRequired[str]
    """The corrections by a study of `--learn-from`, in words."""
    at_listed_ends: NotRequired[list[str]]
    """Axes of which the best layout has the last listed value."""


class FewestForm(TypedDict):
    """The fewest nodes that hold the model."""

    nodes: int
    """Number of nodes."""
    global_batch: int
    """Sequences of an optimizer step."""
    fewer_with_another_batch: RoundedBatch | None
    """A global batch with which fewer nodes do; null for none."""
    needed_gib: float
    """GiB of the fullest device."""
    parts_gib: dict[str, float]
    """Its GiB by part."""
    binding_rank: str
    """The rank of the fullest device, in words."""
    smallest: str
    """The smallest layout in one line."""
    against_nodes: list[NodesForm]
    """The best layout by number of nodes."""


class PlanForm(TypedDict):
    """A plan. It has `recipes`, or in its place the key of the question that was asked."""

    space: str
    """Name of the space."""
    cluster: str
    """The cluster as it was written."""
    software: str
    """The software whose trainers run the layouts."""
    tokens: float
    """Token budget that days and cost are counted for."""
    assumptions: AssumptionsForm
    """The facts on which the figures rest."""
    recipe: NotRequired[str]
    """The recipe in one line, where the answer is for one."""
    recipes: NotRequired[list[RecipePlanForm]]
    """The layouts of each recipe."""
    not_in_full: NotRequired[dict[str, str]]
    """Axes of which not all values are listed, with the reason."""
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
