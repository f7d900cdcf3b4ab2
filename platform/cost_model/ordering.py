"""The order in which a sweep tries candidates: those predicted to be fast and to fit come first."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from platform.common.errors import InputError
from platform.cost_model.columns import Columns
from platform.cost_model.engines import costs
from platform.cost_model.features import from_points
from platform.cost_model.predict import predict
from platform.cost_model.probed_cluster import cluster_with_probe
from search_spaces.candidate import Candidate
from trainers.records.probe import Probe
from trainers.spec.cluster import Cluster


def likely_best_first(
    candidates: Sequence[Candidate], cluster: Cluster, cap_gib: float | None, probe: Probe | None = None
) -> tuple[list[Candidate], Columns | None]:
    """Returns the candidates, ordered by the largest predicted tokens/s of a rung times its probability of running
    well, and their columns (see `known_columns`) in this order.

    Predictions use the figures of `probe` if there is one. All candidates are kept, and equal ones keep the space's
    order. Without predictions all keep it, and the second value is None.
    """
    columns = known_columns(candidates, cluster, cap_gib, probe)
    return (list(candidates), None) if columns is None else ordered(candidates, columns)


def ordered(candidates: Sequence[Candidate], columns: Columns) -> tuple[list[Candidate], Columns]:
    """Returns the candidates and their `columns` in the order of `likely_best_first`."""
    rungs = np.array([len(candidate.micro_batches) for candidate in candidates])
    owner = np.repeat(np.arange(len(candidates)), rungs)
    prediction = predict(columns)
    expected = prediction.ok_probability * columns.tokens_per_step / prediction.expected_s
    best = np.zeros(len(candidates))
    np.maximum.at(best, owner, expected)
    order = np.argsort(-best, kind="stable")
    rows = np.split(np.arange(len(owner)), np.cumsum(rungs)[:-1])
    return [candidates[index] for index in order], columns.take(np.concatenate([rows[index] for index in order]))


def known_columns(
    candidates: Sequence[Candidate], cluster: Cluster, cap_gib: float | None, probe: Probe | None = None
) -> Columns | None:
    """Returns one row for each rung of each candidate, in order, or None without predictions.

    There are none if the catalogue does not know the GPU or the cost model does not know an engine, nor on CPUs, except
    for several hosts with links measured by `probe`, where exchanges decide.
    """
    several_hosts = probe is not None and len(probe.nodes) > 1
    if not candidates or not (cluster.device_kind == "cuda" or several_hosts):
        return None
    if any(costs(candidate.layout.engine) is None for candidate in candidates):
        return None
    try:
        memory_gib = min(cluster.device_memory_gib, cap_gib or cluster.device_memory_gib)
        if cluster.device_kind == "cpu":
            memory_gib = math.inf  # the memory model is for GPUs
        spec = cluster_with_probe(dataclasses.replace(cluster, device_memory_gib=memory_gib), probe)
    except InputError:
        return None
    return from_points(
        [(candidate.recipe, candidate.layout, batch) for candidate in candidates for batch in candidate.batch_points()],
        spec,
    )
