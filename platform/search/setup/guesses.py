"""The predictions that a model gives where it stands in for a user's own training (`search_spaces.stand_in`).

The searcher begins with the point that they say is fastest and corrects them by what trials measure; nothing else asks
them.
"""

from collections.abc import Sequence

import numpy as np

from platform.cost_model.columns import Columns
from platform.cost_model.ordering import known_columns, ordered
from platform.cost_model.stack_columns import BLIND_SIGMA
from search_spaces.candidate import Candidate
from search_spaces.stand_in import StandIn
from trainers.records.probe import Probe
from trainers.spec.cluster import Cluster


def likely_best_first(
    stand_in: StandIn, candidates: Sequence[Candidate], cluster: Cluster, cap_gib: float | None, probe: Probe | None
) -> tuple[list[Candidate], Columns | None]:
    """Returns the candidates by their stand-ins' predictions, with the stand-ins' columns in this order; without
    predictions in their own order, and None.
    """
    columns = known_columns([stand_in.of(candidate) for candidate in candidates], cluster, cap_gib, probe)
    return (list(candidates), None) if columns is None else ordered(candidates, blind(columns))


def blind(columns: Columns) -> Columns:
    """Returns the columns with the uncertainty of software of which no run was at hand."""
    return Columns.of({**columns.arrays(), "stack_sigma": np.full(columns.shape, BLIND_SIGMA)})


def sentence_on(stand_in: StandIn, *, is_known: bool) -> str:
    """Returns what a search says of it where it begins; `is_known` is whether the cost model knows the devices."""
    if is_known:
        return f"Predictions of {stand_in.recipe.name} order the trials; what fits is learned from what runs."
    return f"{stand_in.recipe.name} is not predicted on these devices: the search learns from its trials alone."
