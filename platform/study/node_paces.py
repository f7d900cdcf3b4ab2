"""Paces of nodes beside each other, from the runs of one reference point on each: figures of different nodes are
compared through it. Every figure in a record stays as it was measured.
"""

import math
import statistics
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from trainers.records.measurement import Measurement, Outcome

RUN_TO_RUN = 0.0125
"""Log deviation of one run: two runs of a point in fresh processes differ by 1.2 % in the middle."""
DISTURBED = 0.1
"""Log distance from the middle node above which a reference run says nothing: the run or the node was disturbed."""

Paces = Mapping[frozenset[str], float]
"""Speed by the addresses of a trial's nodes, over that of the middle ones."""
UNKNOWN: Paces = MappingProxyType({})


def paces_of(references: Iterable[Measurement]) -> Paces:
    """Returns the paces by runs of one point, on different nodes each; the later one counts where nodes have two.

    A single run says less than it shows: each pace is drawn to the middle by the share of the spread that runs on one
    node have too. Empty for fewer than three nodes.
    """
    logs = {
        frozenset(run.addresses): math.log(run.tokens_per_s or 0.0)
        for run in references
        if run.addresses and run.outcome is Outcome.OK and 0 < (run.tokens_per_s or 0.0) < math.inf
    }
    if len(logs) < 3:
        return UNKNOWN
    middle = statistics.median(logs.values())
    near = {nodes: log - middle for nodes, log in logs.items() if abs(log - middle) <= DISTURBED}
    spread = statistics.pvariance(near.values(), 0.0)
    share = max(0.0, 1 - RUN_TO_RUN**2 / spread) if spread else 0.0
    return {nodes: math.exp(share * off) for nodes, off in near.items()}


def pace_of(measurement: Measurement, paces: Paces) -> float:
    """Returns the pace of the nodes on which it ran; 1 where it is not known."""
    return paces.get(frozenset(measurement.addresses), 1.0) if paces else 1.0
