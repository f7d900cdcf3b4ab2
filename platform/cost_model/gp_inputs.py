"""Inputs of the regression: the features by which measured points inform others.

A point's place consists of its axes, whatever these are: a word counts as a switch, a number by its doublings. Points
with different engines, kernels and degrees therefore share measurements, and a new axis needs no code here.
"""

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from platform.cost_model import constants
from platform.cost_model.columns import Array, Columns
from platform.cost_model.predict import SHARE_SIGMA, Prediction, under_the_host_s

Index = npt.NDArray[np.int64]

SWITCH_SIGMA = constants.number("places", "SWITCH_SIGMA")
DOUBLING_SIGMA = constants.number("places", "DOUBLING_SIGMA")
PART_SHARE = constants.number("places", "PART_SHARE")
UNKNOWN = 5.0
"""Factor by which the deviations of effects are wider without a predicted time."""
VALUE_SHARE = 0.5
"""Deviation of one value of a number beside its doublings where no time is predicted, as a share of a switch's. With 0
a published table is searched in more trials than TPE needs, with 1 most of them take more than with this share
(`benchmarks.without_predictions`, docs/lab/search.csv#without-predictions).
"""
MICRO_BATCH = "micro_batch"
"""The axis of recorded results for micro-batches of one layout; `gp_inputs_of` has its own argument for it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GPInputs:
    """Arrays with one row per point."""

    effects: npt.NDArray[np.float32]
    """[points, features]: features with linear effects, each scaled by the prior deviation of its effect."""
    place: npt.NDArray[np.float32]
    """[points, axes]: coordinates of the smooth part."""
    host_share: Array
    """Share of the predicted step that scales with the host's speed; measurements of this share scatter more."""
    sigma: Array
    """Log deviation of the predicted step time; 0 without a prediction."""
    stall: Array
    """Probability that the point's step stalls; 0 without a prediction."""

    def __len__(self) -> int:
        return len(self.sigma)


def gp_inputs_of(
    axes: Sequence[Mapping[str, Any]],
    owner: Index,
    micro_batch: Index,
    columns: Columns | None = None,
    prediction: Prediction | None = None,
    origin: slice = slice(None),
) -> GPInputs:
    """Returns the places of points, each with the axes of its `owner` in `axes`.

    `columns` and `prediction` have one row per point; None without predictions. Doublings are relative to the mean over
    the rows of `origin`: points far from it are less certain.
    """
    switches, numbers, values = _axes(axes, origin)
    predicted = columns is not None and prediction is not None and len(owner) > 0
    scale = 1.0 if columns is not None else UNKNOWN
    doublings = np.log2(np.maximum(micro_batch, 1))[:, None]
    numbers = np.concatenate([numbers[owner], doublings - _mean(doublings[origin])], axis=1)
    effects = [scale * SWITCH_SIGMA * switches[owner], scale * DOUBLING_SIGMA * numbers]
    host_share, sigma, stall = np.zeros(len(owner)), np.zeros(len(owner)), np.zeros(len(owner))
    if predicted and columns is not None and prediction is not None:
        step = prediction.step
        parts = [
            PART_SHARE * part_sigma * getattr(step, part) / step.total_s for part, part_sigma in SHARE_SIGMA.items()
        ]
        effects.append(np.stack(parts, axis=1))
        host_share, sigma = under_the_host_s(columns, step) / step.total_s, prediction.sigma
        stall = prediction.stall
    elif columns is None:
        # A prediction knows that the middle of a degree is often best. Without one each value has an effect of its own
        # beside the doublings, which alone would have the best at an end of every axis.
        sigma_of_value = scale * VALUE_SHARE * SWITCH_SIGMA
        effects += [sigma_of_value * of_axis[owner] for of_axis in values]
        effects.append(sigma_of_value * _switches(micro_batch.tolist()))
    return GPInputs(
        effects=np.concatenate(effects, axis=1).astype(np.float32),
        place=np.concatenate([switches[owner], numbers], axis=1).astype(np.float32),
        host_share=host_share,
        sigma=sigma,
        stall=stall,
    )


def _axes(rows: Sequence[Mapping[str, Any]], origin: slice) -> tuple[Array, Array, list[Array]]:
    """Returns [rows, values of names] as 0 and 1, [rows, numbers] in doublings from the mean of the rows of `origin`,
    and for each axis of numbers [rows, values] as 0 and 1.

    Axes with a single value carry no information and are left out.
    """
    switches: list[Array] = []
    numbers: list[Array] = []
    values: list[Array] = []
    for axis in rows[0] if rows else ():
        if axis == MICRO_BATCH:
            continue
        codes, names = codes_of([row.get(axis, "") for row in rows])
        if len(names) < 2:
            continue
        if all(isinstance(name, (int, float)) for name in names):
            doublings = np.log2(1.0 + np.array([float(str(name)) for name in names]))[codes][:, None]
            numbers.append(doublings - _mean(doublings[origin]))
            values.append(_switches(codes.tolist()))
        else:
            switches.append(np.eye(len(names))[codes])
    empty = np.zeros((len(rows), 0))
    return np.concatenate([empty, *switches], axis=1), np.concatenate([empty, *numbers], axis=1), values


def _switches(values: Sequence[Hashable]) -> Array:
    """Returns [rows, values] as 0 and 1; no column for two values or one, of which doublings say all."""
    codes, names = codes_of(values)
    return np.eye(len(names))[codes] if len(names) > 2 else np.zeros((len(codes), 0))


def codes_of(values: Sequence[Hashable]) -> tuple[Index, list[Hashable]]:
    """Returns each value's index among the distinct values, and the distinct values in order of first appearance."""
    places: dict[Hashable, int] = {}
    codes = np.array([places.setdefault(value, len(places)) for value in values], dtype=np.int64)
    return codes, list(places)


def _mean(values: Array) -> float:
    return float(values.mean()) if len(values) else 0.0
