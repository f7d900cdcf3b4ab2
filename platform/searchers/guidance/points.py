"""Batch points of a problem as rows of arrays: their positions, and their predictions before any measurement."""

import dataclasses
from typing import Any

import numpy as np

from platform.cost_model.columns import Array, Columns
from platform.cost_model.gp_inputs import GPInputs, Index, codes_of, gp_inputs_of
from platform.cost_model.predict import Prediction, predict
from platform.searchers.problem import RECIPE, Problem
from trainers.measuring.ladder import HEADROOM


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PointArrays(GPInputs):
    """Arrays with one row a point, in the order of the candidates and of their rungs."""

    owner: Index
    """Index of the point's candidate."""
    micro_batch: Index
    group: Index
    """Number of the point's recipe within its search; only points of one group compete."""
    log_step_s: Array
    """Natural logarithm of the predicted seconds for the tokens by which the group compares, mostly those of one step;
    zeros without predictions.
    """
    log_needed: Array
    """Logarithm of predicted memory over capacity: above 0 the point does not fit; minus infinity if unpredicted."""
    log_pooled: Array
    """Logarithm of pooled memory over the capacity less head-room: above 0 the point thrashes."""
    log_allocated_gib: Array
    """Logarithm of the predicted allocated peak, which measured peaks correct; NaN without predictions."""
    log_rank: Array
    """Logarithm of (probability of running well / expected step time), a plan's order; zeros if unpredicted."""
    predicted: bool
    """Whether the cost model knows the devices."""
    predicts_memory: bool
    """Whether it predicts their memory too; for CPUs it only predicts times."""


def make_points(problem: Problem[Any]) -> PointArrays:
    """Returns the points of all candidates, followed by those of earlier studies and of other searches."""
    candidates, columns = problem.rows, problem.columns
    owner = np.repeat(np.arange(len(candidates)), [len(candidate.micro_batches) for candidate in candidates])
    micro_batch = np.array([rung for candidate in candidates for rung in candidate.micro_batches], dtype=np.int64)
    searches = [0] * (len(problem.candidates) + len(problem.earlier))
    searches += [number for number, several in enumerate(problem.others, start=1) for _ in several]
    of_recipe = [candidate.axes.get(RECIPE, "") for candidate in candidates]
    groups = codes_of(list(zip(searches, of_recipe, strict=True)))[0]
    prediction = predict(columns) if columns is not None and len(owner) else None
    places = gp_inputs_of([candidate.axes for candidate in candidates], owner, micro_batch, columns, prediction)
    log_step_s, log_rank, nothing = np.zeros(len(owner)), np.zeros(len(owner)), np.full(len(owner), -np.inf)
    log_needed, log_pooled, log_allocated = nothing, nothing, np.full(len(owner), np.nan)
    predicts_memory = columns is not None and bool(np.isfinite(columns.capacity_gib).all())
    if columns is not None and prediction is not None:
        if predicts_memory:
            log_needed, log_pooled, log_allocated = _memory(columns, prediction)
        compared = np.array([candidate.tokens_per_step for candidate in candidates])[owner]
        log_step_s = np.log(prediction.step.total_s) - np.log(columns.tokens_per_step / compared)
        spread = prediction.expected_s / prediction.step.total_s
        log_rank = np.log(np.maximum(prediction.ok_probability, 1e-12) / spread) - log_step_s
    return PointArrays(
        **{field.name: getattr(places, field.name) for field in dataclasses.fields(GPInputs)},
        owner=owner,
        micro_batch=micro_batch,
        group=groups[owner],
        log_step_s=log_step_s,
        log_needed=log_needed,
        log_pooled=log_pooled,
        log_allocated_gib=log_allocated,
        log_rank=log_rank,
        predicted=columns is not None,
        predicts_memory=predicts_memory,
    )


def _memory(columns: Columns, prediction: Prediction) -> tuple[Array, Array, Array]:
    """Returns the logarithms of needed and pooled memory over the capacity, and of allocated memory in GiB."""
    memory = prediction.memory
    needed, pooled = (np.maximum(gib, 1e-9) / columns.capacity_gib for gib in (memory.needed_gib, memory.pooled_gib))
    return np.log(needed), np.log(pooled / HEADROOM), np.log(np.maximum(memory.allocated_gib, 1e-9))
