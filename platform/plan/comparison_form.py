"""The form of a plan of several models or clusters, or for demands, as `--json` prints it."""

from typing import Literal, TypedDict

from platform.common.json_form import with_fields_of
from platform.plan.plan_form import AssumptionsForm, TimedLayoutForm


@with_fields_of(AssumptionsForm)
class AssumedForm(TypedDict):
    """The facts on which the rows of one model and cluster rest."""

    model: str
    """Name of the space."""
    cluster: str
    """The cluster as it was written."""


class DemandsForm(TypedDict):
    """The limits of the training; null for what is not demanded."""

    deadline_s: float | None
    """Seconds from beginning to end."""
    max_cost: float | None
    """US dollars."""


@with_fields_of(TimedLayoutForm, optional=True)
class ComparedForm(TypedDict):
    """One model on one cluster; the keys of a layout are left out where nothing fits."""

    model: str
    """Name of the space."""
    recipe: str
    """The recipe in one line."""
    cluster: str
    """The cluster as it was written, or would be."""
    listed: bool
    """Whether it was named, rather than found for the demands."""
    gpus: int
    """Number of devices."""
    tokens: float
    """Token budget."""
    meets: Literal["yes", "perhaps", "no"] | None
    """Whether the whole interval, a part of it or none keeps to the demands; null without demands."""
    gpu_days: float | None
    """Days of all devices; null without a layout."""
    elapsed_cost: float | None
    """The price of these days in US dollars; null where none is known."""
    elapsed_cost_low: float | None
    """Lower end of its interval."""
    elapsed_cost_high: float | None
    """Upper end of its interval."""
    price_per_gpu_h: float | None
    """The price of a device hour."""
    reason: str
    """The reason why nothing fits; empty where a layout does."""


class ClustersForm(TypedDict):
    """Models on clusters, a row each."""

    software: str
    """The software whose trainers run the layouts."""
    assumptions: list[AssumedForm]
    """The facts on which the rows rest."""
    demands: DemandsForm
    """The limits of the training."""
    comparison: list[ComparedForm]
    """The rows, those found for the demands below the cluster of their kind."""
    smallest: list[ComparedForm]
    """The row of each recipe that meets the demands with the fewest devices."""
