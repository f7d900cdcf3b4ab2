"""The order in which a sweep tries candidates: what the cost model expects to be fast and to fit comes first."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from platform.cost_model.columns import from_points
from platform.cost_model.predict import predict
from platform.cost_model.probed import found_cluster
from platform.errors import InputError
from search_spaces.space import Candidate
from trainers.cluster import Cluster
from trainers.probed import Probe


def likely_best_first(
    candidates: Sequence[Candidate], cluster: Cluster, cap_gib: float | None, probe: Probe | None = None
) -> list[Candidate]:
    """Candidates by their best rung's predicted tokens/s times the probability that it fits, the highest first.

    Predicted with the figures of `probe` where the cluster has one. Only an order: nothing is left out, and equal ones
    stay in the space's order. Where the catalogue does not know the GPU, and on CPUs, the space's own order stays.
    """
    if cluster.device_kind != "cuda" or not candidates:
        return list(candidates)
    try:
        memory_gib = min(cluster.device_memory_gib, cap_gib or cluster.device_memory_gib)
        spec = found_cluster(dataclasses.replace(cluster, device_memory_gib=memory_gib), probe)
    except InputError:
        return list(candidates)
    points = [(each.recipe, each.layout, batch) for each in candidates for batch in each.batch_points()]
    owner = np.repeat(np.arange(len(candidates)), [len(each.micro_batches) for each in candidates])
    prediction = predict(from_points(points, spec))
    tokens = np.array([recipe.tokens_per_step for recipe, _, _ in points])
    expected = prediction.fit_probability * tokens / prediction.expected_s
    best = np.zeros(len(candidates))
    np.maximum.at(best, owner, expected)
    return [candidates[index] for index in np.argsort(-best, kind="stable")]
