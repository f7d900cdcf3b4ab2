"""Decides what the end of a trial means: whether its layout is tried again, and whether the cluster is at fault. Pure.

Ends of trials, and what follows:

| kind | known facts | further trials |
|---|---|---|
| ran | the ladder ended, also by memory, loss or time | none needed |
| failed, hung | a rank or its watchdog stated the cause | none: the layout's own failure is a result |
| died | a process is gone without a message | one, another if the second dies on the same nodes; then `failed` |
| node lost | a node of the trial is gone | three: the layout had no part in it |
| unstarted | no worker ever reported | any number: nothing of the layout ran |
| starved | its host ran out of memory while a process outside the search held most of it | three |
| crowded | its host ran out of memory beside other trials | one, alone: the others may be the cause |

Died, node lost, unstarted and starved may be the cluster's fault; several in a row are, and end the session. A lost
node is not a fault if the remaining nodes hold a trial. If trials run side by side, a node on which two in a row end
this way is excluded first.
"""

import dataclasses
import enum
import itertools
from collections import Counter
from collections.abc import Collection, Sequence

from trainers.records.journal import TrialState
from trainers.records.measurement import Measurement, Outcome


class Kind(enum.StrEnum):
    RAN = "ran"
    FAILED = "failed"
    HUNG = "hung"
    DIED = "died"
    NODE_LOST = "node lost"
    UNSTARTED = "unstarted"
    STARVED = "starved"
    CROWDED = "crowded"

    @property
    def unexplained(self) -> bool:
        """Whether the cause may lie outside the layout."""
        return self in (Kind.DIED, Kind.NODE_LOST, Kind.UNSTARTED, Kind.STARVED)


class Next(enum.Enum):
    """The next step for the layout of a trial that ended."""

    SETTLED = "what was recorded stands"
    RETRY = "it gets another trial"
    GIVEN_UP = "it is recorded as failed"


RETRIES: dict[Kind, float] = {
    Kind.DIED: 1, Kind.NODE_LOST: 3, Kind.UNSTARTED: float("inf"), Kind.STARVED: 3, Kind.CROWDED: 1,
}  # fmt: skip
"""Number of further trials that a layout or confirmation run gets in a session; 0 for other kinds."""
MOST_DEATHS = 2
"""Number of deaths after which a layout gets no further trial, wherever they occurred."""
IN_A_ROW = 3
"""Number of unexplained ends in a row, of two layouts or of trials that never ran, that blame the cluster."""
WINDOW = 10
MOST_OF_WINDOW = 8
"""Number of bad ends among the last `WINDOW` trials that blame the cluster or its installation."""
_SILENT = "ended without a message from their workers"
_ENDINGS: dict[Kind, str] = {
    Kind.DIED: _SILENT,
    Kind.NODE_LOST: _SILENT,
    Kind.UNSTARTED: "did not start",
    Kind.STARVED: "lost their host's memory to a process outside the search",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """The end of one trial of a session."""

    key: tuple[str, int]
    """The candidate's key and the number of its run."""
    kind: Kind
    node: str = ""
    """The node on which the trial failed; "" if unknown."""
    reason: str = ""
    placed: tuple[str, ...] = ()
    """Addresses of the trial's nodes; empty if it could run on any."""
    has_spare: bool = False
    """Whether the remaining nodes hold a trial."""

    @property
    def is_of_cluster(self) -> bool:
        """Whether the cause may lie in the cluster."""
        return self.kind.unexplained and not (self.kind is Kind.NODE_LOST and self.has_spare)


def kind_of(
    state: TrialState,
    outcome: Outcome | None,
    *,
    started: bool,
    node_lost: bool,
    measures: bool,
    is_crowded: bool = False,
    is_starved: bool = False,
) -> Kind:
    """Returns the kind of a trial's end.

    `state` is what its processes report, `outcome` the one that ended its ladder (None: none), `started` whether a
    worker reported, `node_lost` whether one of its nodes is gone. `measures` is false for a reference's gate or a
    profile. `is_crowded` means that it was killed for lack of host memory while others ran on its hosts, `is_starved`
    while a process outside the search held most of it.
    """
    if is_starved and outcome is None:
        return Kind.STARVED
    if is_crowded and outcome is None:
        return Kind.CROWDED
    if not started:
        return Kind.UNSTARTED
    if outcome is Outcome.FAILED or outcome is Outcome.HUNG:
        return Kind(outcome.value)
    if state != "failed" or outcome is not None:
        return Kind.RAN
    return Kind.NODE_LOST if node_lost else Kind.DIED if measures else Kind.FAILED


def end_of(
    key: tuple[str, int],
    verdict: Measurement | None,
    *,
    state: TrialState,
    reason: str,
    started: bool,
    measures: bool,
    rank: int | None,
    nodes: Sequence[str],
    lost_nodes: Collection[str],
    is_crowded: bool = False,
    is_starved: bool = False,
    placed: Sequence[str] = (),
    has_spare: bool = False,
) -> Ended:
    """Returns the end of a trial from its ladder's `verdict` (None: none) and the reports of Tune and its processes.

    The arguments are those of `kind_of`. `nodes` are the trial's nodes by rank, of which `lost_nodes` no longer answer.
    """
    kind = kind_of(
        state,
        verdict and verdict.outcome,
        started=started,
        node_lost=bool(lost_nodes),
        measures=measures,
        is_crowded=is_crowded,
        is_starved=is_starved,
    )
    if state == "failed" and verdict is not None:
        # A process that ends after the verdict is a consequence, so the verdict's reason stays.
        reason, rank = verdict.reason, verdict.rank
    reason = reason or ("" if started else "its workers did not start")
    node = next(iter(lost_nodes), "") or (nodes[rank] if rank is not None and rank < len(nodes) else "")
    return Ended(key=key, kind=kind, node=node, reason=reason, placed=tuple(placed), has_spare=has_spare)


def follows(ends: Sequence[Ended]) -> Next:
    """Returns what follows for the layout of the last of a session's `ends`."""
    last = ends[-1]
    if last.kind not in RETRIES:
        return Next.SETTLED
    same = [end for end in ends if end.key == last.key and end.kind is last.kind]
    # Repeated deaths on the same nodes may be the node's fault.
    is_placed = last.kind is Kind.DIED and bool(last.placed) and len(same) <= MOST_DEATHS
    times = len({end.placed for end in same}) if is_placed else len(same)
    return Next.RETRY if times <= RETRIES[last.kind] else Next.GIVEN_UP


def fault(ends: Sequence[Ended], *, num_lanes: int = 1) -> str:
    """Returns why the cluster is at fault after a session's `ends` so far; "" if it is not.

    A layout that dies repeatedly is itself at fault, so dead processes count only if two layouts had them. A node may
    be at fault too: of `num_lanes` trials side by side, those in a row must have had at least half as many places.
    """
    counted = (end for end in reversed(ends) if end.is_of_cluster or not end.kind.unexplained)
    latest = list(itertools.islice(counted, WINDOW))
    row = list(itertools.takewhile(lambda end: end.is_of_cluster, itertools.chain(latest, counted)))
    is_general = len({end.key for end in row}) > 1 or all(end.kind is not Kind.DIED for end in row)
    if len(row) >= IN_A_ROW and is_general and 2 * len({end.placed for end in row}) >= num_lanes:
        kinds = {end.kind for end in row}
        ending = _ENDINGS[next(iter(kinds))] if len(kinds) == 1 else _ENDINGS[Kind.DIED]
        return f"{len(row)} trials in a row {ending}{_nodes_text(row)}, the last one with: {row[0].reason}"
    window = latest[::-1]
    bad = [end for end in window if end.kind is not Kind.RAN]
    if len(bad) >= MOST_OF_WINDOW:
        rate = f"{len(bad)} of the last {len(window)} trials failed"
        return f"{rate}{_nodes_text(bad)}, the last one with: {bad[-1].reason}"
    return ""


def failing_nodes(streaks: Counter[str], end: Ended) -> frozenset[str]:
    """Counts unexplained ends in a row by node in `streaks`; returns the nodes with at least two."""
    for address in end.placed:
        streaks[address] = streaks[address] + 1 if end.kind.unexplained else 0
    return frozenset(address for address, number in streaks.items() if number > 1)


def _nodes_text(bad: Sequence[Ended]) -> str:
    """Returns text on the node on which most of the trials failed; "" if none stands out."""
    commonest = Counter(end.node for end in bad if end.node).most_common(1)
    if not commonest or 2 * commonest[0][1] <= len(bad):
        return ""
    (node, count), total = commonest[0], len(bad)
    return f", {'all' if count == total else f'{count} of them'} on node {node}"
