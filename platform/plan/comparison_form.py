"""The JSON form of a plan for several models or clusters, or for a deadline or cost (`--json`)."""

from typing import Literal, TypedDict

from platform.common.json_form import with_fields_of
from platform.plan.plan_form import AssumptionsForm, TimedLayoutForm


@with_fields_of(AssumptionsForm)
class AssumedForm(TypedDict):
    """Assumptions for one model on one cluster."""

    model: str
    """Name of the space."""
    cluster: str
    """The cluster as the user wrote it."""


class DemandsForm(TypedDict):
    """Limits on the training; null for no limit."""

    deadline_s: float | None
    """Seconds from the start to the end."""
    max_cost: float | None
    """US dollars."""


@with_fields_of(TimedLayoutForm, optional=True)
class ComparedForm(TypedDict):
    """One model on one cluster; layout keys are absent if nothing fits."""

    model: str
    """Name of the space."""
    recipe: str
    """The recipe in one line."""
    cluster: str
    """The cluster as the user wrote it or could write it."""
    listed: bool
    """True if the user named the cluster, false if it was found for the demands."""
    gpus: int
    """Number of devices."""
    tokens: float
    """Tokens to train on."""
    meets: Literal["yes", "perhaps", "no"] | None
    """"yes" if the whole interval of days and cost surely meets the demands, "no" if no part of it does, otherwise
    "perhaps"; null without demands.
    """
    gpu_days: float | None
    """Training days times devices; null without a layout."""
    elapsed_cost: float | None
    """Cost of the elapsed days in US dollars; null if the price is unknown."""
    elapsed_cost_low: float | None
    """Lower end of the interval of `elapsed_cost`."""
    elapsed_cost_high: float | None
    """Upper end of the interval of `elapsed_cost`."""
    price_per_gpu_h: float | None
    """Price of a device per hour, US dollars."""
    reason: str
    """The reason why nothing fits; empty if a layout fits."""


class ClustersForm(TypedDict):
    """Models on clusters, one row for each pair."""

    software: str
    """The software that trains the layouts."""
    assumptions: list[AssumedForm]
    """The assumptions of each model and cluster."""
    demands: DemandsForm
    """Limits on the training."""
    comparison: list[ComparedForm]
    """The rows; rows found for the demands follow the listed cluster of the same device."""
    smallest: list[ComparedForm]
    """Rows with the fewest devices that meet the demands, one for each recipe."""
