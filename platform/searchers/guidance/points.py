"""Every batch point of a problem as rows of arrays: where it lies, and what is predicted before anything is measured.

A point's place is made of its candidate's axes, whatever these are: a name counts as a switch, a number by its
doublings. So points share what is learned over engines, kernels and degrees, and a new axis needs no line here.
"""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from platform.cost_model.columns import Array, Columns
from platform.cost_model.predict import SHARE_SIGMA, predict, under_the_host_s
from platform.searchers.problem import MICRO_BATCH, RECIPE, Choice, Problem
from trainers.measuring.ladder import HEADROOM

Index = npt.NDArray[np.int64]

SWITCH_SIGMA = 0.03
"""Prior log deviation of what one value of a named axis does beyond the prediction, such as one engine or kernel."""
DOUBLING_SIGMA = 0.03
"""The same of one doubling of a number, such as a degree or the micro-batch."""
UNKNOWN = 5.0
"""How many times wider all of these are where nothing predicts the time."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Points:
    """Arrays of one row a point, in the order of the candidates and of their rungs."""

    owner: Index
    """Position of the point's candidate."""
    micro_batch: Index
    group: Index
    """Number of its recipe: only points of one group compete."""
    log_step_s: Array
    """Natural logarithm of the predicted seconds of as many tokens as the point's group compares by, mostly those of a
    step; zeros where nothing predicts it."""
    sigma: Array
    """Its log deviation."""
    log_needed: Array
    """Logarithm of predicted memory over the capacity: above 0 it does not fit. Minus infinity where not predicted."""
    log_pooled: Array
    """The same of what leaves head-room: above 0 it thrashes."""
    log_allocated_gib: Array
    """Of the predicted allocated peak, to learn from a measured one; NaN where not predicted."""
    host_share: Array
    """Share of the predicted step that grows and shrinks with the host's speed: there figures scatter."""
    effects: npt.NDArray[np.float32]
    """[points, features]: each scaled by the prior deviation of its effect, which is linear."""
    place: npt.NDArray[np.float32]
    """[points, axes]: coordinates of what is left, which is smooth."""
    predicted: bool
    """Whether the cost model knows the devices."""

    def __len__(self) -> int:
        return len(self.owner)


def make_points(problem: Problem[Any]) -> Points:
    """The points of all candidates, and after them those of an earlier study."""
    candidates = problem.rows
    counts = [len(each.micro_batches) for each in candidates]
    owner = np.repeat(np.arange(len(candidates)), counts)
    micro_batch = np.array([rung for each in candidates for rung in each.micro_batches], dtype=np.int64)
    groups = _codes([each.axes.get(RECIPE, "") for each in candidates])[0]
    switches, numbers = _axes(candidates)
    scale = 1.0 if problem.columns is not None else UNKNOWN
    doublings = np.log2(np.maximum(micro_batch, 1))[:, None]
    numbers = np.concatenate([numbers[owner], doublings - _mean(doublings)], axis=1)
    effects = [scale * SWITCH_SIGMA * switches[owner], scale * DOUBLING_SIGMA * numbers]
    log_step_s = np.zeros(len(owner))
    sigma = np.zeros(len(owner))
    log_needed, log_pooled = np.full(len(owner), -np.inf), np.full(len(owner), -np.inf)
    log_allocated, host_share = np.full(len(owner), np.nan), np.zeros(len(owner))
    if problem.columns is not None and len(owner):
        log_step_s, sigma, log_needed, log_pooled, log_allocated, host_share, shares = _predicted(problem.columns)
        compared = np.array([each.tokens_per_step for each in candidates])[owner]
        log_step_s = log_step_s - np.log(problem.columns.tokens_per_step / compared)
        effects.append(shares)
    return Points(
        owner=owner,
        micro_batch=micro_batch,
        group=groups[owner],
        log_step_s=log_step_s,
        sigma=sigma,
        log_needed=log_needed,
        log_pooled=log_pooled,
        log_allocated_gib=log_allocated,
        host_share=host_share,
        effects=np.concatenate(effects, axis=1).astype(np.float32),
        place=np.concatenate([switches[owner], numbers], axis=1).astype(np.float32),
        predicted=problem.columns is not None,
    )


def _predicted(columns: Columns) -> tuple[Array, Array, Array, Array, Array, Array, Array]:
    prediction = predict(columns)
    step, memory = prediction.step, prediction.memory
    shares = np.stack([sigma * getattr(step, part) / step.total_s for part, sigma in SHARE_SIGMA.items()], axis=1)
    needed, pooled = (np.maximum(each, 1e-9) / columns.capacity_gib for each in (memory.needed_gib, memory.pooled_gib))
    return (
        np.log(step.total_s),
        prediction.sigma,
        np.log(needed),
        np.log(pooled / HEADROOM),
        np.log(np.maximum(memory.allocated_gib, 1e-9)),
        under_the_host_s(columns, step) / step.total_s,
        shares,
    )


def _axes(candidates: Sequence[Choice]) -> tuple[Array, Array]:
    """[candidates, values of names] as 0 and 1, and [candidates, numbers] in doublings from their mean.

    Axes of a single value say nothing and are left out.
    """
    switches: list[Array] = []
    numbers: list[Array] = []
    rows = [each.axes for each in candidates]
    for axis in rows[0] if rows else ():
        if axis == MICRO_BATCH:
            continue  # the rung says it
        values = [row.get(axis, "") for row in rows]
        codes, names = _codes(values)
        if len(names) < 2:
            continue
        if all(isinstance(name, (int, float)) for name in names):
            known = np.log2(1.0 + np.array([float(str(name)) for name in names]))[codes][:, None]
            numbers.append(known - _mean(known))
        else:
            switches.append(np.eye(len(names))[codes])
    empty = np.zeros((len(rows), 0))
    return np.concatenate([empty, *switches], axis=1), np.concatenate([empty, *numbers], axis=1)


def _codes(values: Sequence[Hashable]) -> tuple[Index, list[Hashable]]:
    """Each value as its place among the distinct ones, and these in order of first appearance."""
    known: dict[Hashable, int] = {}
    codes = np.array([known.setdefault(value, len(known)) for value in values], dtype=np.int64)
    return codes, list(known)


def _mean(values: Array) -> float:
    return float(values.mean()) if len(values) else 0.0
